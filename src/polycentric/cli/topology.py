"""`polycentric topology`: look at who averages with whom."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

topology_app = typer.Typer(help="Look at who averages with whom.", no_args_is_help=True, rich_markup_mode=None)


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
    seed: Annotated[int | None, typer.Option(min=0, help="Of what is drawn. [default: 0]")] = None,
    rounds: Annotated[str, typer.Option(help="Rounds to draw where clients move, separated by commas.")] = "0",
    png: Annotated[Path | None, typer.Option(help="Draw the map, or the graph, into this PNG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Who averages with whom. Of edges: cells, overlaps, how fast edges agree (zeta); of graphs: links and zeta.

    Examples:

      polycentric topology show fedmes --set "cells=overlap(u=20, v=10)" --set alpha_v=1.3 --png map.png

      polycentric topology show fedmes --set "cells=map(edges=9, speed=0.05)" --clients 60 --rounds 0,10 --png walk.png

      polycentric topology show matcha --set "graph=erdos-renyi(p=0.3)" --clients 12 --png graph.png
    """
    from ..errors import UsageError, require
    from ..runs.start import built_method
    from ..topology.cells.theory import cells_of
    from .options import settings_of
    from .screen import out as screen
    from .screen import say, tell

    typed = {"set": settings, "clients": clients, "seed": seed}
    said = settings_of(method, {name: value for name, value in typed.items() if value is not None})
    built, clients, seed = built_method(said), said.clients, said.seed
    topology = built.exchanges[-1].topology
    cells = cells_of(topology)
    if cells is None:
        n = clients or 16
        graph = graph_summary(topology, n)
        if png:
            if not graph:
                raise UsageError(
                    f"{method} has neither edges nor a graph, so there is nothing to draw: leave out --png"
                )
            from ..report.graphs import draw_graph

            draw_graph(topology, n, png)
            say(f"drawn in {png}")
        stages = stages_of(built, n)
        if as_json:
            tell({"clients": n, "stages": stages, **graph})
            return
        screen.print(_grid([*((when, words) for when, words in stages.items()), *_graph_rows(graph)]))
        return
    n = clients or cells.geometry.default_n_clients or 90
    facts = edge_summary(topology, n, seed)
    wanted = [word.strip() for word in rounds.split(",")]
    require(
        all(w.isascii() and w.isdigit() and len(w) < 7 for w in wanted) and len(wanted) <= 6,
        f"--rounds takes up to six whole numbers such as 0,10,20, got '{rounds}'",
    )
    if png:
        from ..report.maps import draw_map

        draw_map(cells.geometry, n, png, seed=seed, rounds=[int(w) for w in wanted], title=method.removesuffix(".toml"))
        say(f"drawn in {png}")
    if as_json:
        tell(facts)
        return
    screen.print(_table(facts))


def stages_of(method: Any, n_clients: int) -> dict[str, str]:
    """Who averages with whom, in words, for every phase of a method."""
    found, first = {}, 0
    for place, (rounds, exchanges) in enumerate(method.phases):
        last = place == len(method.phases) - 1
        when = "every round" if last and not first else f"from round {first}" if last else f"round {first}"
        when += f" to {first + rounds - 1}" if not last and rounds > 1 else ""
        said = dict.fromkeys(in_words(exchange.topology, n_clients) for exchange in exchanges)
        found[when] = "; then ".join(said)
        first += rounds
    return found


def in_words(topology: Any, n: int) -> str:
    """Who averages with whom, in a line."""
    from .. import topology as of

    match topology:
        case of.Sums(of=inner, names=names):
            return f"{in_words(inner, n)}; {', '.join(names)} are added up, not averaged"
        case of.Star(denominator=by) if by is not None:
            return f"one center: the sum of what clients send over {by:g}, the same model down to all"
        case of.Star(equal=equal):
            return f"one center: the mean by {'clients' if equal else 'examples'}, the same model down to all"
        case of.Alone():
            return "no center: every client by itself"
        case of.TaskStar():
            return (
                "one center averages the models; tasks are kept apart, related by a covariance learned during the run"
            )
        case of.Duals(relation=relation):
            how = {"none": "not at all", "same": "as one model"}.get(relation, "by a covariance learned during the run")
            return f"one center holds every client's task; they are related {how}"
        case of.TaskGraph():
            return "no center: neighbours average their models, and learn how their tasks are related"
        case of.Matchings():
            return "no center: neighbours average, some matchings of the graph at a time"
        case of.Peers():
            return "no center: every client averages with its neighbours on the graph"
    return _clusters_in_words(topology, n)


def _clusters_in_words(topology: Any, n: int) -> str:
    from .. import topology as of

    match topology:
        case of.NewcomerAssignment(k=k):
            return f"newcomers find the nearest of {min(k, n)} centers"
        case of.Seeding(k=k):
            return f"one center becomes {min(k, n)}: what clients have learned is clustered then"
        case of.Clusters(k=k, frozen=frozen):
            where = (
                "they stay where the clustering put them" if frozen else "each is at the nearest, found in every round"
            )
            return f"{min(k, n)} centers, the means of their clients; {where}"
        case of.Choice(k=k):
            return f"{min(k, n)} centers; every client takes the one that fits its examples best, in every round"
        case of.Splitting():
            return "one center, that splits in two where its clients disagree: how often is decided during the run"
    return type(topology).__name__


def graph_summary(topology: Any, n: int) -> dict[str, Any]:
    """The numbers of a topology with a graph, everybody there; empty where there is none."""
    from ..stacks.cohort import Cohort
    from ..topology import Matchings, Peers
    from ..topology.graphs.theory import zeta

    if not isinstance(topology, Peers):
        return {}
    topology.n_centers(n)
    if isinstance(topology, Matchings):
        plan = topology.plan(n)
        pairs, found = plan.edges[0], {"matchings": len(plan.p), "matchings_a_round": plan.expected_matchings}
        found |= {"alpha": plan.alpha, "rho": plan.rho}
    else:
        import torch

        ones = torch.ones(n, dtype=torch.int64)
        weights = topology.mixing({}, Cohort(torch.arange(n), ones, ones.double(), n, 0, 0))
        receiver, sender, _ = weights.links
        pairs, found = torch.stack([receiver, sender], 1)[receiver < sender], {"zeta": zeta(weights)}
    degree = pairs.flatten().bincount(minlength=n)
    return {"links": len(pairs), "neighbours": [int(degree.min()), int(degree.max())], **found}


def _graph_rows(graph: dict[str, Any]) -> list[tuple[str, str]]:
    if not graph:
        return []
    low, high = graph["neighbours"]
    rows = [("links", f"{graph['links']:,}; {low if low == high else f'{low} to {high}'} neighbours a client")]
    if "zeta" in graph:
        agree = "parts of the graph never agree" if graph["zeta"] > 1 - 1e-9 else "left of a disagreement after a round"
        rows.append(("zeta", f"{graph['zeta']:.4f}: {agree}"))
    else:
        rows.append(("matchings", f"{graph['matchings']}, {graph['matchings_a_round']:.2f} of them in a round"))
        rows.append(("rho", f"{graph['rho']:.4f}: left of a squared disagreement after a round, expected"))
        rows.append(("alpha", f"{graph['alpha']:.4f}: weight of a neighbour"))
    return rows


def edge_summary(topology: Any, n_clients: int, seed: int) -> dict[str, Any]:
    """The numbers of a topology with edges, equal clients, round 0; zeta knows of a cloud that is met every round."""
    from ..topology.cells.coverage import covered
    from ..topology.cells.theory import cells_of, edge_facts

    own = cells_of(topology)
    assert own is not None
    cells, facts = covered(own.geometry, n_clients, seed), edge_facts(topology, n_clients, seed=seed)
    regions = cells.regions
    sizes = regions.of.bincount(minlength=len(regions.edges)).tolist()
    return {
        "edges": cells.n_edges,
        "clients": n_clients,
        "pairs": len(cells.edge),
        "moves": own.geometry.moves,
        "in_cells": cells.sizes.tolist(),
        "regions": dict(zip(regions.names(), sizes, strict=True)),
        "in_overlaps": int((cells.covers > 1).sum()),
        "bridge": own.bridge,
        "cloud_every": getattr(topology, "every", None),
        "zeta": 0.0 if getattr(topology, "every", None) == 1 else facts.zeta,
        "column_sums": [round(float(facts.columns.min()), 6), round(float(facts.columns.max()), 6)],
        "doubly_stochastic": facts.doubly_stochastic,
    }


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
    agree = "they never agree" if zeta > 1 - 1e-9 else "what is left of a disagreement after a round"
    if every:
        alone = "no agreement" if zeta > 1 - 1e-9 else "left of a disagreement after a round"
        agree = f"{alone}, until they meet in the cloud" if every > 1 else "all agree after every round"
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
    if every is not None:
        said = f"every {every} rounds; then all edges agree" if every > 1 else "every round" if every else "never"
        rows.append(("cloud", said))
    return _grid(rows)
