"""`polycentric topology`: who averages with whom, and what theory says about a graph before anything is trained."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import AsJson, settings_of

topology_app = typer.Typer(
    help="Look at topologies: who averages with whom.", no_args_is_help=True, rich_markup_mode=None
)


@topology_app.command("show")
def show(
    method: Annotated[str, typer.Argument(help="A method, or a CONFIG.toml.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Settings of the method: cells=overlap(u=20,v=10), graph=ring.")
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(min=1, help="How many clients. [default: as many as the cells are written for, or 90; graphs 16]"),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything random. [default: 0]")] = None,
    rounds: Annotated[str, typer.Option(help="Rounds to draw where clients move, separated by commas.")] = "0",
    png: Annotated[Path | None, typer.Option(help="Draw the map, or the graph, into this PNG file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the topology of a method: who averages with whom; cells and overlaps of edges, or links of a graph; zeta.

    Examples:

      polycentric topology show fedmes --set "cells=overlap(u=20, v=10)" --set alpha_v=1.3 --png map.png

      polycentric topology show fedmes --set "cells=map(edges=9, speed=0.05)" --clients 60 --rounds 0,10 --png walk.png

      polycentric topology show matcha --set "graph=erdos-renyi(p=0.3)" --clients 12 --png graph.png
    """
    from ..errors import require
    from ..runs.start import built_method
    from .screen import say, stdout, tell

    typed = {"set": settings, "clients": clients, "seed": seed}
    said = settings_of(method, {name: value for name, value in typed.items() if value is not None})
    built, clients, seed = built_method(said), said.clients, said.seed
    topology = built.exchanges[-1].topology
    cells = topology.geometry
    n = clients or (16 if cells is None else cells.default_n_clients or 90)
    facts = topology.facts(n, seed)
    if cells is None:
        if png:
            require(bool(facts), f"{method} has neither edges nor a graph to draw: leave out --png")
            from ..report.graphs import draw_graph

            draw_graph(topology, n, png)
            say(f"figure: {png}")
        stages = stages_of(built, n)
        if as_json:
            tell({"clients": n, "stages": stages, **facts})
            return
        stdout.print(_grid([*((when, words) for when, words in stages.items()), *_graph_rows(facts)]))
        return
    wanted = [word.strip() for word in rounds.split(",")]
    good = all(w.isascii() and w.isdigit() and len(w) < 7 for w in wanted) and len(wanted) <= 6
    require(good, f"--rounds takes up to six whole numbers such as 0,10,20, got '{rounds}'")
    if png:
        from ..report.maps import draw_map

        draw_map(cells, n, png, seed=seed, rounds=[int(w) for w in wanted], title=method.removesuffix(".toml"))
        say(f"figure: {png}")
    if as_json:
        tell(facts)
        return
    stdout.print(_table(facts))


def stages_of(method: Any, n_clients: int) -> dict[str, str]:
    """Who averages with whom, in words, for every phase of a method."""
    found, first = {}, 0
    for place, (rounds, exchanges) in enumerate(method.phases):
        last = place == len(method.phases) - 1
        when = "every round" if last and not first else f"from round {first}" if last else f"round {first}"
        when += f" to {first + rounds - 1}" if not last and rounds > 1 else ""
        said = dict.fromkeys(exchange.words(n_clients) for exchange in exchanges)
        found[when] = "; then ".join(said)
        first += rounds
    return found


def _graph_rows(graph: dict[str, Any]) -> list[tuple[str, str]]:
    if not graph:
        return []
    low, high = graph["neighbours"]
    rows = [("links", f"{graph['links']:,}; {low if low == high else f'{low} to {high}'} neighbours a client")]
    if "zeta" in graph:
        agree = (
            "parts of the graph never agree"
            if graph["zeta"] > 1 - 1e-9
            else "share of a disagreement left after a round"
        )
        rows.append(("zeta", f"{graph['zeta']:.4f}: {agree}"))
    else:
        rows.append(("matchings", f"{graph['matchings']}, {graph['matchings_a_round']:.2f} of them in a round"))
        rows.append(("rho", f"{graph['rho']:.4f}: expected share of a squared disagreement left after a round"))
        rows.append(("alpha", f"{graph['alpha']:.4f}: weight of a neighbour"))
    return rows


def _grid(rows: list[tuple[str, str]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, style="bold"), Text(value))
    return table


def _table(facts: dict[str, Any]) -> Any:
    def listed(names: list[str]) -> str:
        return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")

    low, high = facts["column_sums"]
    zeta = facts["zeta"]
    every = facts["cloud_every"]
    agree = "they never agree" if zeta > 1 - 1e-9 else "share of a disagreement left after a round"
    if every:
        alone = "no agreement" if zeta > 1 - 1e-9 else "share of a disagreement left after a round"
        agree = f"{alone}, until the cloud averages them" if every > 1 else "all agree after every round"
    rows = [
        ("edges", str(facts["edges"])),
        ("clients", f"{facts['clients']:,}, {facts['in_overlaps']:,} of them in overlaps; {facts['pairs']:,} pairs"),
        ("in every cell", listed([str(n) for n in facts["in_cells"]])),
        ("regions", listed([f"{name} ({n})" for name, n in facts["regions"].items()])),
        ("clients move", "yes; the numbers are of round 0" if facts["moves"] else "no"),
        ("weight of a bridge", f"{facts['bridge']:g} (alpha_v / alpha_u)"),
        ("zeta of the edges", f"{zeta:.4f}: {agree}"),
        ("columns sum to", f"{low:.4f}" if high - low < 1e-6 else f"{low:.4f} to {high:.4f}"),
        ("doubly stochastic", "yes" if facts["doubly_stochastic"] else "no: some clients count more than others"),
    ]
    if facts["counts"] is not None:
        least, most = facts["counts"]
        uneven = f"{least:.4f} to {most:.4f} in what edges agree on; 1 on average"
        rows.append(("a client counts", "1: edges agree on the mean" if most - least < 1e-6 else uneven))
    if every is not None:
        said = f"every {every} rounds; then all edges agree" if every > 1 else "every round" if every else "never"
        rows.append(("cloud", said))
    return _grid(rows)


@topology_app.command()
def advise(
    graph: Annotated[str, typer.Argument(help="ring, torus, erdos-renyi(p=0.3), file(edges.txt), ...")] = "ring",
    clients: Annotated[int, typer.Option(min=1, max=4096, help="How many clients.")] = 8,
    tau: Annotated[int, typer.Option(min=1, help="Local steps between two rounds of averaging.")] = 1,
    steps: Annotated[int | None, typer.Option(min=1, help="Total number of local steps you plan to take.")] = None,
    draw: Annotated[
        Path | None, typer.Option(help="Draw the graph and rho over the budget into this file (.png, .svg).")
    ] = None,
    budget: Annotated[float, typer.Option(help="Communication budget used in the drawing, in (0, 1].")] = 0.5,
    as_json: AsJson = False,
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
    from ..topology.graphs.theory import advise as advised
    from .screen import say, stdout

    network = value_of("graph", graph, Network)
    found = advised(network, clients, tau, steps)
    if draw:
        from ..report.graphs import draw_advice

        draw_advice(draw, network, clients, budget)
    if as_json:
        print(json.dumps(asdict(found) | {"steps": _plain(found.steps)}, default=float))
        return
    stdout.print(_graphs(found))
    if found.budgets:
        stdout.print(_budgets(found))
    for sentence in found.words:
        stdout.print(f"- {sentence}", highlight=False)
    if draw:
        say(f"figure: {draw}")


def _graphs(found: Any) -> Any:
    from .screen import titled

    numbers = ("edges", "zeta", "T, tau = 1", *([f"T, tau = {found.tau}"] * (found.tau > 1)))
    table = titled(f"{found.clients} clients", "graph", right=numbers)
    for name, edges, zeta, one, many in found.rows:
        last = [_count(many)] * (found.tau > 1)
        table.add_row(name, f"{edges:,}", f"{zeta:.4f}", _count(one), *last)
    return table


def _budgets(found: Any) -> Any:
    from .screen import titled

    table = titled("MATCHA on this graph", right=("budget", "rho", "rho, periodic", "matchings a round"))
    for budget, rho, periodic, matchings in found.budgets:
        table.add_row(f"{budget:g}", f"{rho:.5f}", f"{periodic:.5f}", f"{matchings:.2f}")
    return table


def _count(steps: float) -> str:
    return "never" if math.isinf(steps) else f"{steps:,.0f}" if steps < 1e7 else f"{steps:.2e}"


def _plain(steps: float) -> float | None:
    return None if math.isinf(steps) else steps
