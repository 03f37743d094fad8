"""Maps: which edges cover which clients, drawn; and where clients go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..coverage import Attached, CellMap, Coverage, Geometry, covered
from .figure import colour, panels

MOST_DOTS = 5_000  # clients drawn; the others are left out, and said
TRAILS, TRAIL = 16, 5  # clients whose way is drawn, and over how many rounds


def draw_map(
    geometry: Geometry, n_clients: int, path: Path, *, seed: int = 0, rounds: Sequence[int] = (0,), title: str = ""
) -> Path:
    """Clients and edges, one panel a round; a client in one cell has its edge's colour, a bridge is dark.

    Where the geometry has no coordinates, edges stand on a circle and a client stands between the edges that cover it.
    """
    with panels(path, 1, len(rounds), size=(4.6, 4.4)) as axes:
        for axis, round in zip(axes[0], rounds, strict=True):
            _panel(axis, geometry, n_clients, seed, round)
            before = f"round {round}: " if geometry.moves else f"{title}: " if title else ""
            axis.set_title(before + _words(geometry, n_clients, seed, round))
            if geometry.moves and round:
                _trails(axis, geometry, n_clients, seed, round)
    return path


def _words(geometry: Geometry, n_clients: int, seed: int, round: int) -> str:
    cells = covered(geometry, n_clients, seed, round)
    bridges = int((cells.covers > 1).sum())
    some = f" ({MOST_DOTS:,} drawn)" if n_clients > MOST_DOTS else ""
    return f"{cells.n_edges} edges, {n_clients:,} clients{some}, {bridges:,} in overlaps"


def _panel(axis: Any, geometry: Geometry, n_clients: int, seed: int, round: int) -> None:
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
        from matplotlib.patches import Circle

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
    axis.set_aspect("equal")
    axis.set_xticks([])
    axis.set_yticks([])
    axis.grid(False)
    for side in axis.spines.values():
        side.set_visible(False)
    low = np.minimum((stations - radii[:, None]).min(0), at.min(0))
    high = np.maximum((stations + radii[:, None]).max(0), at.max(0))
    pad = 0.03 * (high - low).max()
    axis.set_xlim(low[0] - pad, high[0] + pad)
    axis.set_ylim(low[1] - pad, high[1] + pad)


def _laid_out(cells: Coverage) -> tuple[Any, Any, Any]:
    """Edges on a circle; the clients of a region in a sunflower about the middle of its edges."""
    n = cells.n_edges
    angle = np.pi / 2 + 2 * np.pi * np.arange(n) / n
    stations = np.stack([np.cos(angle), np.sin(angle)], 1) if n > 1 else np.zeros((1, 2))
    gap = 2 * np.sin(np.pi / n) if n > 1 else 1.0
    regions, at = cells.regions, np.zeros((cells.n_clients, 2))
    of = regions.of.numpy()
    for number, edges in enumerate(regions.edges):
        members = np.flatnonzero(of == number)
        middle = stations[list(edges)].mean(0) * (1.5 if len(edges) == 1 and n > 1 else 1.0)
        k = np.arange(len(members))
        reach = gap * 0.2 * np.sqrt((k + 0.5) / max(len(members), 12))
        at[members] = middle + np.stack([np.cos(2.399963 * k), np.sin(2.399963 * k)], 1) * reach[:, None]
    away = np.hypot(*(at[cells.client.numpy()] - stations[cells.edge.numpy()]).T)
    radii = np.full(n, 0.25 * gap)
    np.maximum.at(radii, cells.edge.numpy(), away)
    return stations, radii * 1.04, at


def _trails(axis: Any, geometry: Geometry, n_clients: int, seed: int, round: int) -> None:
    inner = geometry.of if isinstance(geometry, Attached) else geometry
    assert isinstance(inner, CellMap)
    whose = np.linspace(0, n_clients - 1, min(TRAILS, n_clients)).astype(int)
    way = np.stack([inner.positions(n_clients, seed, r)[whose] for r in range(max(0, round - TRAIL), round + 1)])
    for number in range(len(whose)):
        axis.plot(*way[:, number].T, color="#D55E00", linewidth=1.1, alpha=0.9, zorder=2)
