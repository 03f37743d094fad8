"""Clusters over the rounds: their sizes, who moved when, and what their members look like."""

from __future__ import annotations

import base64
import io
from itertools import pairwise

import numpy as np

from .. import clusters
from ..tables import TextTable
from . import parts
from .parts import Part
from .seen import Seeds, Sight

MOST_COLUMNS = 6  # rounds of a flow
MOST_MOVES = 60  # lines of the table of moves


def over_rounds(sight: Sight) -> Part | None:
    """Sizes of clusters, how many moved, from where to where, and who."""
    sizes, flows, moves = dict[str, Part](), dict[str, Part](), dict[str, Part]()
    for group in sight.groups:
        seen = clusters.over_rounds(group.places) if group.places else None
        if seen is None or len(seen.sizes) < 2:
            continue
        x, alive = seen.rounds, [k for k in range(len(seen.sizes)) if seen.sizes[k].any()]
        areas = [parts.series(f"cluster {k}", k, x, seen.sizes[k], "area") for k in alive]
        axes = parts.axis("rounds"), parts.axis("clients", zero=True)
        sizes[group.label] = parts.chart(*axes, areas, stack=True)
        flows |= {group.label: flow} if (flow := _flow(seen)) else {}
        moves |= {group.label: who} if (who := _moves(group, seen)) else {}
    return parts.panel(
        "clusters",
        "Clusters over the rounds",
        "How many clients every cluster has, "
        + ("and who went where between the rounds shown." if flows else "round by round; nobody went to another."),
        *map(parts.by_run, (sizes, flows, moves)),
    )


def _flow(seen: clusters.OverRounds) -> Part | None:
    """Clients by cluster in a few rounds, and how many went from one to another between them."""
    changed = [0, *(k + 1 for k in np.flatnonzero(seen.moved).tolist()), len(seen.rounds) - 1]
    every = sorted(set(changed))
    if not seen.moved.any():
        return None
    columns = [every[k] for k in parts.thinned(len(every), MOST_COLUMNS)]
    nodes = [
        [j, k, int(seen.sizes[k, at])]
        for j, at in enumerate(columns)
        for k in range(len(seen.sizes))
        if seen.sizes[k, at]
    ]
    place = {(j, k): i for i, (j, k, _) in enumerate(nodes)}
    links = []
    for j, (at, then) in enumerate(pairwise(columns)):
        pairs, counts = np.unique(np.stack([seen.places[at], seen.places[then]]), axis=1, return_counts=True)
        links += [
            [place[j, a], place[j + 1, b], n] for (a, b), n in zip(pairs.T.tolist(), counts.tolist(), strict=True)
        ]
    return {"kind": "flow", "columns": [f"round {seen.rounds[at]}" for at in columns], "nodes": nodes, "links": links}


def _moves(group: Seeds, seen: clusters.OverRounds) -> Part | None:
    """Who moved, when, from where to where."""
    names = [row["client"] for row in group.members] or [str(k) for k in range(seen.places.shape[1])]
    found = [
        (
            names[c] if c < len(names) else str(c),
            str(seen.rounds[t + 1]),
            str(seen.places[t, c]),
            str(seen.places[t + 1, c]),
        )
        for t, c in np.argwhere(np.diff(seen.places, axis=0) != 0).tolist()
    ]
    if not found:
        return None
    more = f"the first {MOST_MOVES} of {len(found):,}" if len(found) > MOST_MOVES else ""
    shown = TextTable("who moved", ("client", "by round", "from", "to"), tuple(found[:MOST_MOVES]), more)
    return parts.table(shown) | {"folded": True}


def examples(sight: Sight) -> Part | None:
    """A few pictures of every cluster's clients."""
    found = dict[str, Part]()
    for group, run in sight.opened:
        exchange = group.exchange
        placed = exchange is not None and exchange.topology.assignment(run.state.memory) is not None
        sheet = clusters.sheet_of(run) if sight.examples and placed and not run.federation.absent else None
        if sheet is None or len(set(sheet.clusters)) < 2:
            continue
        high = len(sheet.tiles[0][0])
        names = [run.federation.clients[c] for c in sheet.clients]
        found[group.label] = {
            "kind": "image",
            "src": _png(np.concatenate([np.concatenate(row, axis=1) for row in sheet.tiles])),
            "high": high,
            "alt": f"examples of {len(set(sheet.clusters))} clusters, a line for each of {len(names)} clients",
            "rows": [
                {"n": k, "name": f"cluster {k}", "client": name} for k, name in zip(sheet.clusters, names, strict=True)
            ],
            "columns": [run.federation.classes[c] for c in sheet.classes],
        }
    if not found:
        return None
    return parts.panel(
        "examples",
        "What clusters look like",
        "A line is a client, a column a class; the frame is the colour of the cluster. Where a client has no example "
        "of a class, the frame is empty.",
        parts.by_run(found),
    )


def _png(pixels: np.ndarray) -> str:  # type: ignore[type-arg]
    """Numbers from 0 to 1, (height, width, 3), as a PNG in a page."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray((255 * np.clip(pixels, 0, 1)).round().astype(np.uint8)).save(out, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
