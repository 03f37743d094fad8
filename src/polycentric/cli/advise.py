"""`polycentric topology advise`: what theory says about a graph before anything is trained."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer


def advise(
    graph: Annotated[str, typer.Argument(help="ring, torus, erdos-renyi(p=0.3), file(edges.txt), ...")] = "ring",
    clients: Annotated[int, typer.Option(min=1, max=4096, help="How many clients.")] = 8,
    tau: Annotated[int, typer.Option(min=1, help="Local steps between two averagings.")] = 1,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps you mean to take in all.")] = None,
    draw: Annotated[
        Path | None, typer.Option(help="Draw the graph and rho over the budget into this file (.png, .svg).")
    ] = None,
    budget: Annotated[float, typer.Option(help="Budget of the drawing, in (0, 1].")] = 0.5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """How often to average, over how dense a graph, and what MATCHA can save on it.

    Examples:

      polycentric topology advise ring --clients 16 --tau 5

      polycentric topology advise "erdos-renyi(p=0.3)" --clients 8 --steps 20000 --draw graph.png
    """
    import json
    from dataclasses import asdict

    from ..language import value_of
    from ..topology.graphs.networks import Network
    from ..topology.graphs.bounds import advise as advised
    from .screen import out as screen
    from .screen import say

    network = value_of("graph", graph, Network)
    found = advised(network, clients, tau, steps)
    if draw:
        from ..report.graphs import draw_advice

        draw_advice(draw, network, clients, budget)
    if as_json:
        print(json.dumps(asdict(found) | {"steps": _plain(found.steps)}, default=float))
        return
    screen.print(_graphs(found))
    if found.budgets:
        screen.print(_budgets(found))
    for sentence in found.words:
        screen.print(f"- {sentence}", highlight=False)
    if draw:
        say(f"written: {draw}")


def _graphs(found: Any) -> Any:
    from rich.table import Table

    table = Table(title=f"{found.clients} clients", title_justify="left")
    for heading in ("graph", "edges", "zeta", "T, tau = 1", *([f"T, tau = {found.tau}"] * (found.tau > 1))):
        table.add_column(heading, justify="left" if heading == "graph" else "right")
    for name, edges, zeta, one, many in found.rows:
        last = [_count(many)] * (found.tau > 1)
        table.add_row(name, f"{edges:,}", f"{zeta:.4f}", _count(one), *last)
    return table


def _budgets(found: Any) -> Any:
    from rich.table import Table

    table = Table(title="MATCHA on this graph", title_justify="left")
    for heading in ("budget", "rho", "rho, periodic", "matchings a round"):
        table.add_column(heading, justify="right")
    for budget, rho, periodic, matchings in found.budgets:
        table.add_row(f"{budget:g}", f"{rho:.5f}", f"{periodic:.5f}", f"{matchings:.2f}")
    return table


def _count(steps: float) -> str:
    return "never" if math.isinf(steps) else f"{steps:,.0f}" if steps < 1e7 else f"{steps:.2e}"


def _plain(steps: float) -> float | None:
    return None if math.isinf(steps) else steps
