"""`polycentric topology`: look at who averages with whom."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

topology_app = typer.Typer(help="Look at who averages with whom.", no_args_is_help=True, rich_markup_mode=None)


@topology_app.command("show")
def show(
    method: Annotated[str, typer.Argument(help="A method with edges (fedmes, hierarchical), or a CONFIG.toml.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Settings of the method: cells=overlap(u=20,v=10), alpha_v=1.3.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, help="How many clients. [default: as many as the cells were written for]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of what is drawn.")] = 0,
    rounds: Annotated[str, typer.Option(help="Rounds to draw where clients move, separated by commas.")] = "0",
    png: Annotated[Path | None, typer.Option(help="Draw the map into this PNG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Cells, overlaps, how fast edges agree (zeta), and whether all clients count the same.

    Examples:

      polycentric topology show fedmes --set "cells=overlap(u=20, v=10)" --set alpha_v=1.3 --png map.png

      polycentric topology show fedmes --set "cells=map(edges=9, speed=0.05)" --clients 60 --rounds 0,10 --png walk.png
    """
    from ..edge_theory import cells_of
    from ..errors import Mistake, require
    from .app import _settings
    from .screen import out as screen
    from .screen import say, tell

    topology = _settings(method, set=settings).build_method().exchanges[-1].topology
    cells = cells_of(topology)
    if cells is None:
        raise Mistake(f"{method} has no edges, so there is no map to show; methods with edges: fedmes, hierarchical")
    n = clients or cells.geometry.natural or 90
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


def edge_summary(topology: Any, n_clients: int, seed: int) -> dict[str, Any]:
    """The numbers of a topology with edges, equal clients, round 0."""
    from ..coverage import covered
    from ..edge_theory import cells_of, edge_facts

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
        "zeta": facts.zeta,
        "column_sums": [round(float(facts.columns.min()), 6), round(float(facts.columns.max()), 6)],
        "doubly_stochastic": facts.doubly_stochastic,
    }


def _table(facts: dict[str, Any]) -> Any:
    from rich.table import Table
    from rich.text import Text

    def listed(names: list[str]) -> str:
        return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")

    table = Table.grid(padding=(0, 2))
    low, high = facts["column_sums"]
    zeta = facts["zeta"]
    agree = "they never agree" if zeta > 1 - 1e-9 else "what is left of a disagreement after a round"
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
    if facts["cloud_every"] is not None:
        said = f"every {facts['cloud_every']} rounds" if facts["cloud_every"] else "never"
        rows.append(("cloud", f"{said}; then all edges agree" if facts["cloud_every"] else said))
    for name, value in rows:
        table.add_row(Text(name, style="bold"), Text(value))
    return table
