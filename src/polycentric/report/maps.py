"""Maps: which edges cover which clients, drawn; and where clients go."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from ..topology.cells.coverage import Coverage, Geometry, covered
from ..topology.cells.map import CellMap
from ..topology.cells.shapes import Attached
from .figure import colour, panels

MOST_DOTS = 5_000  # clients drawn; the others are left out, and said
WIDE = 48  # letters of a panel's title on one line
FEW = 25  # edges whose cells may be drawn as circles where they have no coordinates
TRAILS, TRAIL = 16, 5  # clients whose way is drawn, and over how many rounds


def draw_map(
    geometry: Geometry, n_clients: int, path: Path, *, seed: int = 0, rounds: Sequence[int] = (0,), title: str = ""
) -> Path:
    """Clients and edges, one panel a round; a client in one cell has its edge's colour, a bridge is dark.

    Where the geometry has no coordinates, edges stand on a circle and clients where the circles of just their edges
    overlap; where no circles can show that, there are none, and a client stands between its edges.
    """
    with panels(path, 1, len(rounds), size=(4.6, 4.4)) as axes:
        for axis, round in zip(axes[0], rounds, strict=True):
            _panel(axis, geometry, n_clients, seed, round)
            cells = covered(geometry, n_clients, seed, round)
            before = f"round {round}: " if geometry.moves else f"{title}: " if title else ""
            some = f" ({MOST_DOTS:,} drawn)" if n_clients > MOST_DOTS else ""
            overlaps = f"{int((cells.covers > 1).sum()):,} in overlaps"
            axis.set_title(fill(f"{before}{cells.n_edges} edges, {n_clients:,} clients{some}, {overlaps}", WIDE))
            if geometry.moves and round:
                _trails(axis, geometry, n_clients, seed, round)
    return path


def _panel(axis: Any, geometry: Geometry, n_clients: int, seed: int, round: int) -> None:
    from matplotlib.patches import Circle

    cells = covered(geometry, n_clients, seed, round)
    inner = geometry.of if isinstance(geometry, Attached) else geometry
    if isinstance(inner, CellMap):
        stations, radii, at = inner.stations, inner.radii, inner.positions(n_clients, seed, round)
    else:
        stations, radii, at = _laid_out(covered(inner, n_clients, seed, round))
    shown = np.arange(n_clients) if n_clients <= MOST_DOTS else np.linspace(0, n_clients - 1, MOST_DOTS).astype(int)
    first, covers = cells.edge[cells.first].numpy(), cells.covers.numpy()
    size = max(2.0, min(26.0, 2600 / len(shown)))
    many = cells.n_edges > 25
    for edge, (place, radius) in enumerate(zip(stations, radii, strict=True)):
        axis.add_patch(Circle(place, radius, facecolor=colour(edge), alpha=0.05 if many else 0.1, linewidth=0))
        axis.add_patch(Circle(place, radius, fill=False, edgecolor=colour(edge), linewidth=0.6 if many else 1.1))
    alone = shown[covers[shown] == 1]
    bridge = shown[covers[shown] > 1]
    axis.scatter(*at[alone].T, s=size, c=[colour(e) for e in first[alone]], linewidths=0, zorder=3)
    axis.scatter(*at[bridge].T, s=size, c="#222222", linewidths=0, zorder=3)
    axis.scatter(*stations.T, s=28 if many else 90, marker="^", c="white", edgecolors="#222222", linewidths=1, zorder=4)
    if not many:
        for edge, place in enumerate(stations):
            axis.annotate(
                f"edge {edge}", place, (0, -14), textcoords="offset points", ha="center", fontsize=8, zorder=5
            )
    axis.grid(False)
    axis.spines[:].set_visible(False)
    low = np.minimum((stations - radii[:, None]).min(0), at.min(0))
    high = np.maximum((stations + radii[:, None]).max(0), at.max(0))
    pad = 0.03 * (high - low).max()
    (left, bottom), (right, top) = low - pad, high + pad
    axis.set(aspect="equal", xticks=[], yticks=[], xlim=(left, right), ylim=(bottom, top))


def _laid_out(cells: Coverage) -> tuple[Any, Any, Any]:
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
    return stations, np.full(n, radius), at


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


def _trails(axis: Any, geometry: Geometry, n_clients: int, seed: int, round: int) -> None:
    inner = geometry.of if isinstance(geometry, Attached) else geometry
    assert isinstance(inner, CellMap)
    whose = np.linspace(0, n_clients - 1, min(TRAILS, n_clients)).astype(int)
    way = np.stack([inner.positions(n_clients, seed, r)[whose] for r in range(max(0, round - TRAIL), round + 1)])
    for number in range(len(whose)):
        axis.plot(*way[:, number].T, color="#D55E00", linewidth=1.1, alpha=0.9, zorder=2)
