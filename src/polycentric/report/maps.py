"""Maps: which edges cover which clients, drawn; and where clients go."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from ..topology.cells.coverage import Geometry, covered
from .figure import colour, panels
from .layout import spots_of_cells

MOST_DOTS = 5_000  # clients drawn; the others are left out, and said
WIDE = 48  # letters of a panel's title on one line
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
    spots = geometry.spots(n_clients, seed, round)
    stations, radii, at = spots or spots_of_cells(covered(geometry.outer, n_clients, seed, round))
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


def _trails(axis: Any, geometry: Geometry, n_clients: int, seed: int, round: int) -> None:
    whose = np.linspace(0, n_clients - 1, min(TRAILS, n_clients)).astype(int)
    ways = [geometry.spots(n_clients, seed, r) for r in range(max(0, round - TRAIL), round + 1)]
    way = np.stack([spots.clients[whose] for spots in ways if spots])  # who moves does so on a map
    for number in range(len(whose)):
        axis.plot(*way[:, number].T, color="#D55E00", linewidth=1.1, alpha=0.9, zorder=2)
