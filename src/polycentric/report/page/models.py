"""Models of clients beside each other: on a map over the rounds, by how alike updates are, by learned relations."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from ...errors import UsageError
from ...runs.folder import Folder
from ...runs.loop import Run
from ...runs.metrics import Integers, Reals
from .. import clusters
from . import parts
from .parts import Part
from .seen import Seeds, Sight
from .topology import ATTACKS, ROLES, roles_of

MOST_FRAMES = 8  # rounds of a map
MOST_ON_MAP = 1200  # points of all its frames: t-SNE takes time by their square
MOST_ALIKE = 120  # clients of a heat map of similarities
MOST_RELATED = 150


def on_a_map(sight: Sight) -> Part | None:
    """PCA and t-SNE of what clients send: over the rounds where sketches were kept, else at the end."""
    found, labels, most, several = dict[str, Part](), list[str](), 1, False
    ways = ("PCA", "t-SNE")
    for group, run in sight.opened:
        frames = frames_of(group, run)
        if frames is None or len(frames[0][1]) < 4:
            continue
        coloured = _coloured(group, run)
        several |= len(coloured) > 1
        rounds = [round for round, _, _ in frames]
        for j, way in enumerate(ways):
            at, titles = _places(frames, way, run.clients.seed)
            box = _box(at)
            for k, (round, index, _) in enumerate(frames):
                colours = coloured.get(round, coloured[-1])
                moved = k and int((colours[1][index] != coloured.get(rounds[k - 1], colours)[1][index]).sum())
                every = _points(at[k], index, colours, run)
                x, y = (parts.axis(title, range=list(ends)) for title, ends in zip(titles, box, strict=True))
                found[f"{len(labels)}.{j}.{k}"] = parts.chart(x, y, every, bare=True, equal=True, legend=True) | {
                    "at": f"round {round}" + (f", {moved} moved" if moved else ""),
                    "trails": True,
                }
        labels.append(group.label)
        most = max(most, len(rounds))
    if not found:
        return None
    over = "; move the slider through the rounds. A line is the way on which a client came"
    over += ", and a ring has the colour of the cluster that it has just left" if several else ""
    return parts.panel(
        "map",
        "Clients' models on a map",
        "What every client sends, less the mean of all: clients that learn alike stand together"
        f"{over if most > 1 else ''}. In t\N{NON-BREAKING HYPHEN}SNE only neighbourhoods mean something, not "
        "distances.",
        parts.switch({"run": labels, "by": ways, "round": [str(k) for k in range(most)]}, found, slider="round"),
    )


Frames = list[tuple[int, Integers, Reals]]  # round, clients (n,), rows (n, width)


def frames_of(group: Seeds, run: Run) -> Frames | None:
    """What clients sent in some rounds, from the run's sketches; without any, what they would send next."""
    folder = Folder(group.shown)
    if rounds := folder.sketched():
        every = [rounds[k] for k in parts.thinned(len(rounds), MOST_FRAMES)]
        try:
            found = [(round, folder.read_sketch(round)) for round in every]
        except UsageError:  # a sketch was damaged
            return None
        most = MOST_ON_MAP // len(every)
        return [
            (round, of["index"].numpy()[at], of["model"].double().numpy()[at])
            for round, of in found
            if (at := parts.thinned(len(of["index"]), most))
        ]
    if run.federation.absent:
        return None
    try:
        index, rows = clusters.local_models(run, MOST_ON_MAP // 3)
    except UsageError:  # its clients send no models
        return None
    return [(run.state.round, index.numpy(), rows.double().numpy())]


def _places(frames: Frames, way: str, seed: int) -> tuple[list[Reals], tuple[str, str]]:
    """Where everybody stands in every frame, on the same axes."""
    rows = np.concatenate([rows - rows.mean(0) for _, _, rows in frames])
    gram = rows @ rows.T
    if way == "PCA":
        at, share = clusters.principal(gram)
        titles = (f"first axis, {share[0]:.0%} of the variance", f"second axis, {share[1]:.0%}")
    else:
        at, titles = clusters.neighbours(gram, seed), ("", "")
    ends = np.cumsum([len(index) for _, index, _ in frames])[:-1]
    return np.split(at, ends), titles


def _box(at: list[Reals]) -> list[tuple[float, float]]:
    """The range of both axes over all frames, and a margin."""
    every = np.concatenate(at)
    low, high = every.min(0), every.max(0)
    pad = 0.06 * np.maximum(high - low, 1e-9)
    return [(float(a), float(b)) for a, b in zip(low - pad, high + pad, strict=True)]


def _coloured(group: Seeds, run: Run) -> dict[int, tuple[str, Integers]]:
    """By what clients are coloured: their cluster of the round, their known group, or all the same; -1: at the end."""
    n, places = run.federation.n_clients, group.places
    if places and len(set(next(reversed(places.values())))) > 1:
        found = {round: ("cluster", np.array(of)) for round, of in places.items()}
        return found | {-1: next(reversed(found.values()))}
    known, roles = run.federation.group, roles_of(run)
    if bool((roles == ATTACKS).any()):
        return {-1: ("role", roles)}
    return {-1: ("", np.zeros(n, dtype=int)) if known is None else ("group", known.numpy())}


def _points(at: Reals, index: Integers, coloured: tuple[str, Integers], run: Run) -> list[Part]:
    """A series for each colour."""
    (word, of), roles = coloured, roles_of(run)
    names, group = run.federation.clients, run.federation.group
    words, out = run.federation.group_names, []
    for k in np.unique(of[index]).tolist():
        mine = of[index] == k
        who = index[mine].tolist()
        text = [
            names[c]
            + ("" if group is None else f", group {words[int(group[c])] if words else int(group[c])}")
            + (f", {ROLES[int(roles[c])]}" if roles[c] else "")
            for c in who
        ]
        title = _title(run, word, k)
        x, y = at[mine].T
        out.append(parts.series(f"{title} ({len(who)})", k, parts.numbers(x), y, "points", text=text, who=who))
    return out


# -- matrices ------------------------------------------------------------------------------------------------


def alike(sight: Sight) -> Part | None:
    """Cosines between clients' updates from one common start, ordered by cluster, or by group."""
    found = dict[str, Part]()
    for group, run in sight.opened:
        part = _alike(group, run)
        if part is not None:
            found[group.label] = part
    if not found:
        return None
    return parts.panel(
        "similarity",
        "Who learns alike",
        "Cosines between what clients learn from one common model, ordered by cluster, or by known group; lines divide "
        "them. Clients with like data move alike.",
        parts.by_run(found),
    )


def _alike(group: Seeds, run: Run) -> Part | None:
    if run.federation.absent:
        return None
    try:
        index, rows = clusters.updates(run, MOST_ALIKE)
    except (UsageError, KeyError):  # parts of models are clients' own: there is no common start
        return None
    if len(index) < 4:
        return None
    cosines = clusters.cosines(rows)
    word, of = _coloured(group, run)[-1]
    place = of[index.numpy()]
    _, _, order = clusters.ordered(cosines, place)
    most = float(np.abs(cosines[~np.eye(len(cosines), dtype=bool)]).max())
    names = [run.federation.clients[c] for c in index.numpy()[order].tolist()]
    return parts.heat(
        cosines[np.ix_(order, order)], rows=names, columns=names, title="cosine", split=parts.number(most),
        blocks=_blocks(run, word, place[order]),
    )  # fmt: skip


def _blocks(run: Run, word: str, place: Integers) -> list[list[Any]]:
    """Where clients of one cluster, or group, stand together: first, last and their name."""
    ends = [0, *(np.flatnonzero(np.diff(place)) + 1).tolist(), len(place)]
    return [[a, b - 1, _title(run, word, int(place[a]))] for a, b in pairwise(ends)] if word else []


def _title(run: Run, word: str, k: int) -> str:
    words = run.federation.group_names
    if word == "role":
        return ROLES[k]
    return words[k] if word == "group" and words else f"{word} {k}" if word else "clients"


def related(sight: Sight) -> Part | None:
    """Correlations between clients' tasks, where a method learns them."""
    found = dict[str, Part]()
    for group, run in sight.opened:
        table = run.now.exchange.topology.relations(run.state.memory)
        if table is None:
            continue
        known = run.federation.group
        order = np.arange(len(table)) if known is None else np.argsort(known.numpy(), kind="stable")
        order = order[parts.thinned(len(order), MOST_RELATED)]
        names = [run.federation.clients[k] for k in order.tolist()]
        z = table.numpy()[np.ix_(order, order)]
        found[group.label] = parts.heat(z, rows=names, columns=names, split=1, title="correlation")
    if not found:
        return None
    return parts.panel(
        "relations",
        "How tasks are related",
        "Correlations between clients' tasks, from the covariance that the method learned.",
        parts.by_run(found),
    )
