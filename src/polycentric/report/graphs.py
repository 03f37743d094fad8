"""A graph with how often its edges are used, how fast neighbours agree for every budget, and what a run did of both."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..stacks.cohort import Cohort
from ..topology import Matchings, Topology
from ..topology.base import Picture
from ..topology.graphs.decomposition import plan_for
from ..topology.graphs.networks import Network, graph_for
from .figure import colour, panels
from .layout import spots_of

BUDGETS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0)


def draw_links(axis: Any, picture: Picture) -> None:
    """A graph of clients; where its links are used by matchings, a wider one is used more often."""
    import matplotlib as mpl

    one, other, shares = picture.links
    place = spots_of(picture).clients
    part = None if picture.part is None else picture.part.tolist()
    for k, (i, j, share) in enumerate(zip(one.tolist(), other.tolist(), shares.tolist(), strict=True)):
        look: dict[str, Any] = {"linewidth": 1.2, "alpha": 0.7, "color": colour(0)}
        if part is not None:
            look = {"linewidth": 0.6 + 4.5 * share, "alpha": 0.4 + 0.6 * share, "color": colour(part[k])}
            look |= {"linestyle": "-" if share > 0.005 else ":", "solid_capstyle": "round"}
        axis.plot(*place[[i, j]].T, zorder=1, **look)
    _dots(axis, place)
    if part is None:
        return
    used = dict(zip(part, shares.tolist(), strict=True))
    marks = [
        mpl.lines.Line2D([], [], color=colour(k), linewidth=0.6 + 4.5 * p, label=f"{p:.2f}")
        for k, p in sorted(used.items())[:8]
    ]
    title = "used in a share of\nthe rounds, by matching" if len(used) <= 8 else "the first 8 matchings"
    beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    axis.legend(handles=marks, title=title, fontsize=8, title_fontsize=8, **beside)


def draw_centers(axis: Any, picture: Picture, kinds: Sequence[int]) -> None:
    """Centers as diamonds, and their clients about them, coloured by number; a cloud, where centers meet in one."""
    spots = spots_of(picture)
    for center, client, _ in zip(*map(Tensor.tolist, picture.links), strict=True):
        axis.plot(*np.stack([spots.centers[center], spots.clients[client]]).T, color="#999999", linewidth=0.6, zorder=1)
    size = max(4.0, min(40.0, 4000 / picture.n_clients))
    axis.scatter(*spots.clients.T, s=size, c=[colour(k) for k in kinds], linewidths=0, zorder=2)
    used = spots.centers[np.unique(picture.links.receiver.numpy())]
    for place in used if picture.cloud else ():
        axis.plot(*np.stack([place, used.mean(0)]).T, color="#222222", linewidth=0.9, linestyle="--", zorder=1)
    if picture.cloud:
        look: dict[str, Any] = {"boxstyle": "round", "facecolor": "white", "edgecolor": "#222222", "linewidth": 0.8}
        axis.text(*used.mean(0), "cloud", ha="center", va="center", fontsize=7, bbox=look, zorder=4)
    axis.scatter(*used.T, s=50, marker="D", c="#222222", edgecolors="white", linewidths=0.8, zorder=3)
    axis.set_axis_off()
    axis.set_aspect("equal")
    axis.margins(0.05)


def draw_rho(axis: Any, network: Network, n: int, budgets: Sequence[float] = BUDGETS) -> None:
    """rho over the budget: MATCHA, periodic, and all matchings in every round."""
    for number, (schedule, label) in enumerate((("matcha", "MATCHA"), ("periodic", "periodic"))):
        plans = [plan_for(network, n, b, schedule) for b in budgets]  # type: ignore[arg-type]
        axis.plot(budgets, [p.rho for p in plans], marker="o", markersize=3, color=colour(number), label=label)
    full = plan_for(network, n, 1.0).rho
    axis.axhline(full, color="#555555", linestyle="--", linewidth=1.0, label="vanilla (budget 1)")
    axis.set(xlabel="budget: share of the matchings in a round", ylabel="rho (less is faster consensus)")
    axis.set_ylim(top=1.005)
    axis.legend()


def draw_advice(path: Path, network: Network, n: int, budget: float = 0.5) -> None:
    """The graph at a budget, and rho over all budgets, side by side."""
    graph_for(network, n)
    with panels(path, 1, 2, size=(4.8, 3.4)) as axes:
        draw_links(axes[0, 0], pictured(Matchings(network, budget), n))
        axes[0, 0].set_title(f"{n} clients, budget {budget:g}")
        draw_rho(axes[0, 1], network, n)
        axes[0, 1].set_title("how fast neighbours agree")


def draw_graph(topology: Topology, n: int, path: Path) -> None:
    """Who is beside whom; with matchings, how often they talk."""
    picture = pictured(topology, n)
    with panels(path, size=(4.4 if picture.part is None else 6.2, 4.0)) as axes:
        draw_links(axes[0, 0], picture)
        often = "" if picture.part is None else ", by matching"
        axes[0, 0].set_title(f"{n} clients, {len(picture.links.sender)} links{often}")


def pictured(topology: Topology, n: int, seed: int = 0, rounds: int = 0) -> Picture:
    """What a drawing shows of a topology with n clients, all of them there, after so many rounds."""
    ones = torch.ones(n, dtype=torch.int64)
    return topology.picture(topology.remembers(n), Cohort(torch.arange(n), ones, ones.double(), n, seed, rounds))


def _dots(axis: Any, at: Any) -> None:
    """Clients as dots, with their numbers where there are few."""
    large = len(at) <= 40
    axis.scatter(*at.T, s=230 if large else 18, color="white", edgecolors="#333333", linewidths=1.0, zorder=2)
    for i in range(len(at) if large else 0):
        axis.text(*at[i], str(i), ha="center", va="center", fontsize=8, zorder=3)
    axis.set_axis_off()
    axis.set_aspect("equal")
    axis.margins(0.08)
