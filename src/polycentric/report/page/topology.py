"""The topology as it is: centers, cells or neighbours, and clients coloured by cluster, group or score."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...runs.loop import Run
from ...runs.metrics import Integers, Reals
from ..layout import spots_of
from . import parts
from .answer import picture_of
from .clients import column_of
from .parts import Part
from .seen import Seeds, Sight

MOST_DOTS = 1200  # clients drawn; the others are left out, and said
MOST_LINKS = 4000
MOST_GROUPS = 24  # colours come round again, and can no longer be told


def drawn(sight: Sight) -> Part | None:
    """Who talks to whom, for every label that can be drawn."""
    found = {group.label: part for group in sight.groups if (part := _picture(group, sight))}
    if not found:
        return None
    centers = any(not part["peers"] for part in found.values())
    said = [f"A dot is a client{', a diamond a center' if centers else ''}; lines are those who hear each other."]
    said += ["A circle is the cell of a center."] if any(any(part["centers"]["r"]) for part in found.values()) else []
    said += ["A wider line is used in more of the rounds."] if any(part["matchings"] for part in found.values()) else []
    return parts.panel("topology", "Who talks to whom", " ".join(said), parts.by_run(found))


def _picture(group: Seeds, sight: Sight) -> Part | None:
    picture = picture_of(group)
    if picture is None or group.run is None:
        return None
    spots, n = spots_of(picture), picture.n_clients
    kept = np.array(parts.thinned(n, MOST_DOTS))
    place = np.full(n, -1)
    place[kept] = np.arange(len(kept))
    receiver, sender, share = (part.numpy() for part in picture.links)
    there = place[sender] >= 0 if picture.n_centers else (place[sender] >= 0) & (place[receiver] >= 0)
    there = np.flatnonzero(there)[parts.thinned(int(there.sum()), MOST_LINKS)]
    ends = receiver[there] if picture.n_centers else place[receiver[there]]
    part = np.zeros(len(there), dtype=int) if picture.part is None else picture.part.numpy()[there]
    used = np.unique(receiver).tolist() if picture.n_centers else []  # a center that nobody talks to is not drawn
    number = {center: k for k, center in enumerate(used)}
    low, size = _box(spots.clients, spots.centers[used], spots.radii[used])
    at, centers = (spots.clients[kept] - low) / size, (spots.centers[used] - low) / size
    exchange = group.run.now.exchange
    return {
        "kind": "picture",
        "words": exchange.words(n) + ("" if len(kept) == n else f" ({len(kept):,} of {n:,} clients are drawn)"),
        "clients": {"x": parts.numbers(at[:, 0]), "y": parts.numbers(at[:, 1]), "names": _names(group, kept)},
        "centers": {
            "x": parts.numbers(centers[:, 0]),
            "y": parts.numbers(centers[:, 1]),
            "r": parts.numbers(spots.radii[used] / size),
            "n": used,
            "cloud": picture.cloud,
        },
        "links": [
            [int(number[a] if picture.n_centers else a), int(b), parts.number(float(s)), int(p)]
            for a, b, s, p in zip(
                ends.tolist(), place[sender[there]].tolist(), share[there].tolist(), part.tolist(), strict=True
            )
        ],
        "peers": not picture.n_centers,
        "matchings": picture.part is not None,
        "colours": _colours(group, sight, kept),
    }


def _box(clients: Reals, centers: Reals, radii: Reals) -> tuple[Any, float]:
    """The lower left corner of a square that holds everything, and its side."""
    low = np.vstack([clients, centers - radii[:, None]]).min(0)
    high = np.vstack([clients, centers + radii[:, None]]).max(0)
    size = float((high - low).max()) or 1.0
    return low - (size - (high - low)) / 2, size


def _names(group: Seeds, kept: Any) -> list[str]:
    assert group.run is not None
    return [group.run.federation.clients[k] for k in kept.tolist()]


def _colours(group: Seeds, sight: Sight, kept: Any) -> list[Part]:
    """What clients can be coloured by: their cluster, role, known group, score; at least by nothing."""
    run, found = group.run, list[Part]()
    assert run is not None
    places = run.now.exchange.topology.assignment(run.state.memory)
    if places is not None and len(set(places.tolist())) > 1:
        found.append(_kinds("cluster", places.cpu().numpy()[kept], lambda k: f"cluster {k}"))
    roles = roles_of(run)
    if len(set(roles.tolist())) > 1:
        found.append(_kinds("role", roles[kept], lambda k: ROLES[k]))
    if run.federation.group is not None:
        names = run.federation.group_names
        found.append(_kinds("group", run.federation.group.numpy()[kept], lambda k: names[k] if names else f"group {k}"))
    column = column_of(sight)
    score = [row.get(f"{column}_in_use") or None for row in group.members]
    if any(score):
        values = [None if score[k] is None else float(score[k] or 0) for k in kept.tolist()]
        known = [value for value in values if value is not None]
        ends = parts.numbers([min(known), max(known)]) if known else [0, 1]
        found.append(
            {"name": column, "values": parts.numbers(values), "between": ends, "axis": parts.axis(column, column)}
        )
    return found or [{"name": "", "kinds": [0] * len(kept), "labels": {}}]


ROLES = {0: "trains", 1: "attacks", 2: "never trains"}
ATTACKS = 1


def roles_of(run: Run) -> Integers:
    """What every client is in a run: a number of `ROLES`."""
    attacks, out = run.clients.attackers.numpy(), run.clients.held_out_mask.numpy()
    found: Integers = np.where(attacks, ATTACKS, np.where(out, 2, 0))
    return found


def _kinds(name: str, numbers: Any, label: Any) -> Part:
    every, counts = np.unique(numbers, return_counts=True)
    pairs = sorted(zip(every.tolist(), counts.tolist(), strict=True))
    labels = {str(k): f"{label(k)} ({n:,})" for k, n in pairs[:MOST_GROUPS]}
    return {"name": name, "kinds": numbers.tolist(), "labels": labels}
