"""A graph with how often its edges are used, how fast neighbours agree for every budget, and what a run did of both."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import torch

from ..stacks.cohort import Cohort
from ..topology import Matchings, Topology
from ..topology.graphs.decomposition import MatchingPlan, plan_for
from ..topology.graphs.networks import Network, graph_for
from .figure import colour, panels

BUDGETS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0)


def draw_plan(axis: Any, plan: MatchingPlan, counts: Sequence[float] | None = None) -> None:
    """The graph; a wider edge is used more often. `counts`: shares of the rounds measured, instead of p."""
    import matplotlib as mpl

    graph = networkx.empty_graph(plan.n)
    used = plan.p if counts is None else np.asarray(counts, dtype=float)
    for number, part in enumerate(plan.matchings):
        graph.add_edges_from(part, matching=number)
    place = _places(graph)
    for i, j, number in graph.edges(data="matching"):
        share = float(used[number])
        look: dict[str, Any] = {"linewidth": 0.6 + 4.5 * share, "alpha": 0.4 + 0.6 * share, "solid_capstyle": "round"}
        line = "-" if share > 0.005 else ":"
        axis.plot(*place[[i, j]].T, color=colour(number), linestyle=line, zorder=1, **look)
    _dots(axis, place)
    marks = [
        mpl.lines.Line2D([], [], color=colour(k), linewidth=0.6 + 4.5 * float(p), label=f"{float(p):.2f}")
        for k, p in enumerate(used[:8])
    ]
    title = "used in a share of\nthe rounds, by matching" if len(used) <= 8 else "the first 8 matchings"
    beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    axis.legend(handles=marks, title=title, fontsize=8, title_fontsize=8, **beside)


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
        draw_plan(axes[0, 0], plan_for(network, n, budget))
        axes[0, 0].set_title(f"{n} clients, budget {budget:g}")
        draw_rho(axes[0, 1], network, n)
        axes[0, 1].set_title("how fast neighbours agree")


def draw_graph(topology: Topology, n: int, path: Path) -> None:
    """Who is beside whom; with matchings, how often they talk."""
    with panels(path, size=(6.2 if isinstance(topology, Matchings) else 4.4, 4.0)) as axes:
        axis = axes[0, 0]
        if isinstance(topology, Matchings):
            draw_plan(axis, topology.plan(n))
            axis.set_title(f"{n} clients, budget {topology.budget:g}")
            return
        ones = torch.ones(n, dtype=torch.int64)
        everyone = Cohort(torch.arange(n), ones, ones.double(), n, 0, 0)
        receiver, sender, _ = topology.up(topology.remembers(n), everyone, "model").links
        graph = networkx.empty_graph(n)
        graph.add_edges_from((i, j) for i, j in zip(receiver.tolist(), sender.tolist(), strict=True) if i < j)
        at = _places(graph)
        for i, j in graph.edges:
            axis.plot(*at[[i, j]].T, color=colour(0), linewidth=1.2, alpha=0.7, zorder=1)
        _dots(axis, at)
        axis.set_title(f"{n} clients, {graph.number_of_edges()} links")


def _dots(axis: Any, at: Any) -> None:
    """Clients as dots, with their numbers where there are few."""
    large = len(at) <= 40
    axis.scatter(*at.T, s=230 if large else 18, color="white", edgecolors="#333333", linewidths=1.0, zorder=2)
    for i in range(len(at) if large else 0):
        axis.text(*at[i], str(i), ha="center", va="center", fontsize=8, zorder=3)
    axis.set_axis_off()
    axis.set_aspect("equal")
    axis.margins(0.08)


def activation(topology: Matchings, seed: int, rounds: int, n: int) -> list[float]:
    """In which share of the rounds every matching was used, from the coins themselves."""
    return [float(share) for share in topology.active(seed, torch.arange(rounds), n).double().mean(0)]


def _places(graph: networkx.Graph) -> Any:
    """(clients, 2): on a circle where there are few clients, by springs where there are many."""
    n = graph.number_of_nodes()
    if n > 16:
        placed = networkx.spring_layout(graph, seed=0)
        return np.array([placed[i] for i in range(n)])
    angle = 2 * np.pi * np.arange(n) / n
    return np.stack([np.sin(angle), np.cos(angle)], 1)
