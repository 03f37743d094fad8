"""Where things stand in a drawing of a topology: on its map where it has one, else where they can be seen best."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import networkx
import numpy as np

from ..topology.base import Picture, Spots
from ..topology.cells.coverage import Coverage

FEW = 25  # edges whose cells may be drawn as circles where they have no coordinates
RING = 48  # clients that stand on one circle about their center
SPRINGS = 600  # clients up to which a graph is laid out by springs


def spots_of(picture: Picture) -> Spots:
    """Where centers and clients of a topology stand; radii are 0 where there are no cells."""
    if picture.spots is not None:
        return picture.spots
    receiver, sender, _ = picture.links
    if not picture.n_centers:
        return Spots(np.zeros((0, 2)), np.zeros(0), spots_of_graph(picture.n_clients, receiver, sender))
    if picture.several:
        return spots_of_cells(Coverage(receiver, sender, picture.n_centers, picture.n_clients))
    return spots_of_centers(picture.n_clients, receiver.numpy(), sender.numpy(), picture.n_centers)


def spots_of_centers(n: int, center: Any, client: Any, n_centers: int) -> Spots:
    """Centers on a circle, the one alone in the middle; clients about their own, and nobody at a place of another."""
    used = np.unique(center)
    first = np.pi if len(used) == 2 else np.pi / 2  # two stand side by side
    angle = first - 2 * np.pi * np.arange(len(used)) / max(len(used), 1)
    centers, at = np.zeros((n_centers, 2)), np.zeros((n, 2))
    if len(used) > 1:
        centers[used] = np.stack([np.cos(angle), np.sin(angle)], 1)
    reach = 0.8 * np.sin(np.pi / len(used)) if len(used) > 1 else 1.0
    for k in used:
        members = client[center == k]
        at[members] = centers[k] + reach * around(len(members))
    lost = np.setdiff1d(np.arange(n), client)  # who hears nobody stands below
    at[lost] = np.stack([np.linspace(-1, 1, len(lost)), np.full(len(lost), -1.25 - reach)], 1)
    return Spots(centers, np.zeros(n_centers), at)


def spots_of_graph(n: int, one: Any, other: Any) -> Any:
    """(clients, 2): on a circle where there are few clients, by springs where there are many; rings without links."""
    if not len(one):
        return sunflower(n)
    if n > 16:
        graph = networkx.empty_graph(n)
        graph.add_edges_from(zip(one.tolist(), other.tolist(), strict=True))
        if n <= SPRINGS:
            placed = networkx.spring_layout(graph, seed=0)
            return np.array([placed[i] for i in range(n)])
    angle = 2 * np.pi * np.arange(n) / n
    return np.stack([np.sin(angle), np.cos(angle)], 1)


def around(n: int) -> Any:
    """n places about a middle that is left free: on a circle where they are few, (n, 2)."""
    if n > RING:
        return sunflower(n + n // 12)[n // 12 :]
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / max(n, 1)
    return np.stack([np.cos(angle), np.sin(angle)], 1)


def sunflower(n: int) -> Any:
    """n places in a disc of radius one, evenly spread, (n, 2)."""
    k = np.arange(n)
    return np.sqrt((k + 0.5) / max(n, 1))[:, None] * np.stack([np.cos(2.399963 * k), np.sin(2.399963 * k)], 1)


def spots_of_cells(cells: Coverage) -> Spots:
    """Edges on a circle, all with one radius, and every client inside the circles of its edges and of no other.

    Where no radius has a place for every region, radii are 0: no circles tell the truth, and clients stand about the
    middle of their edges.
    """
    n = cells.n_edges
    angle = np.pi / 2 + 2 * np.pi * np.arange(n) / n
    stations = np.stack([np.cos(angle), np.sin(angle)], 1) if n > 1 else np.zeros((1, 2))
    gap = 2 * np.sin(np.pi / n) if n > 1 else 1.0
    regions, of, at = cells.regions, cells.regions.of.numpy(), np.zeros((cells.n_clients, 2))
    radius, rooms = _rooms(stations, gap, regions.edges, np.bincount(of)) if n <= FEW else (0.0, [])
    middles = [stations[list(edges)].mean(0) for edges in regions.edges]
    spots = [tuple(middle.round(6)) for middle in middles]  # regions of opposite edges have one middle
    room, there = Counter[Any](), Counter[Any]()
    for spot, size in zip(spots, np.bincount(of), strict=True):
        room[spot] += size
    for number, (middle, spot) in enumerate(zip(middles, spots, strict=True)):
        members = np.flatnonzero(of == number)
        if rooms:
            at[members] = _spread(rooms[number], len(members))
        else:
            k = np.arange(len(members)) + there[spot]
            there[spot] += len(members)
            reach = gap * 0.2 * np.sqrt((k + 0.5) / max(room[spot], 12))
            at[members] = middle + np.stack([np.cos(2.399963 * k), np.sin(2.399963 * k)], 1) * reach[:, None]
    return Spots(stations, np.full(n, radius), at)


def _rooms(stations: Any, gap: float, regions: Sequence[tuple[int, ...]], sizes: Any) -> tuple[float, list[Any]]:
    """One radius for all circles, and the places of every region: those in the circles of its edges and in no other.

    The radius is the one with the least ground that nobody stands on, and with the least crowding where it is worst.
    """
    far = 1 + 1.2 * gap  # no circle reaches further
    step = far / 110
    grid = np.stack(np.meshgrid(*[np.arange(-far, far, step)] * 2), -1).reshape(-1, 2)
    grid[:, 0] += np.where(np.round((grid[:, 1] + far) / step) % 2 == 1, step / 2, 0.0)  # every second row in between
    away = np.hypot(*np.moveaxis(grid[:, None] - stations, -1, 0))  # (places, edges)
    each = 2 ** np.arange(len(stations))
    best, radius, rooms = 0.0, 0.0, []
    for some in gap * np.linspace(0.4, 1.2, 33):
        inside, clear = away < some, (np.abs(away - some) > step).all(1)  # not on a line
        code = np.where(clear, inside @ each, -1)
        found = [grid[code == each[list(edges)].sum()] for edges in regions]
        room = [len(places) for places in found]
        roomy = min(np.array(room) / sizes) / (max(1, sum(room)) / sizes.sum())  # of the mean room for a client
        score = sum(room) / max(1, int(inside.any(1).sum())) + 0.2 * roomy
        if min(room) > 0 and score > best:
            best, radius, rooms = score, float(some), found
    return radius, rooms


def _spread(places: Any, n: int) -> Any:
    """n of these places about their middle, as far apart as there is room for; some of them twice where n is more."""
    middle = places[np.hypot(*(places - places.mean(0)).T).argmin()]  # a region may not hold its own middle
    order = np.hypot(*(places - middle).T).argsort(kind="stable")
    few = order[: max(n, len(order) // 2)]
    return places[few[np.linspace(0, len(few) - 1, n).round().astype(int)]]
