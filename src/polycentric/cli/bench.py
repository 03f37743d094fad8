"""`polycentric bench`: our round, a plain PyTorch loop and the limit, in turns in one process."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .options import AsJson, Device


def bench(
    models: Annotated[
        list[str] | None, typer.Option(help="A model to measure; repeat the option for several. [default: five models]")
    ] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="Clients in the round. [default: by model]")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Local steps of every client.")] = 3,
    batch: Annotated[int, typer.Option(min=1, help="Examples in a step.")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of every measurement; the fastest counts.")] = 3,
    executors: Annotated[
        list[str] | None,
        typer.Option(help="An executor to measure; repeat the option for several. [default: by model]"),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Also measure rounds with this many worker processes.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every torch operator.")] = 1,
    device: Device = "auto",
    precision: Annotated[
        str,
        typer.Option(
            help="Precision of our rounds: float32, bf16 or tf32; the plain loop and the limit stay in float32."
        ),
    ] = "float32",
    profile: Annotated[bool, typer.Option("--profile", help="Also print where the time of one round goes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure a round against a plain PyTorch loop and against one model without client borders.

    Examples:

      polycentric bench

      polycentric bench --models mlp --clients 100 --repeats 20 --profile

      torchrun --nproc-per-node 2 -m polycentric bench --models mlp        several ranks, and what travels between them
    """
    import torch

    from ..runs import bench as measured
    from ..runs.machine import device_of
    from ..simulate.ranks import join_ranks
    from .screen import say, stdout, tell

    torch.set_num_threads(threads)
    where, rows, tables = device_of(device), [], []
    with join_ranks() as ranks:
        for model in models or measured.USUAL:
            race = measured.Race.of(model, clients, steps, batch, where, precision)
            rows.append(measured.measure(race, executors, repeats, workers, ranks))
            if profile and ranks.first:
                looked_at = executors[-1] if executors else rows[-1]["auto"]
                tables.append(f"{model}, one round, {looked_at}:\n{measured.profile(race, looked_at)}")
    if not ranks.first:
        return
    if as_json:
        tell({"rows": rows} | ({"profiles": tables} if profile else {}))
        return
    stdout.print(_table(rows))
    for row in rows if ranks.size > 1 else ():
        there = row["received_by_a_rank"]
        say(
            f"{row['model']}: the first of {ranks.size} ranks received {there['bytes'] / 1e6:.2f} MB a round, "
            f"{there['models_a_block']:.2f} models for each of {there['blocks']} blocks."
        )
    for table in tables:
        stdout.print(table, soft_wrap=True)
    say(
        f"{rows[0]['device']}, {threads} thread{'s' if threads > 1 else ''} an operator; the fastest of {repeats} "
        "rounds, taken in turns. The limit is one model trained on the same samples without client borders."
    )


def _table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table("model", "work", "way", "seconds", "of the plain loop", "of the limit", "first round")
    for row in rows:
        for i, (name, seconds) in enumerate(row["seconds"].items()):
            plain, limit = row["over_plain"].get(name), row["over_limit"].get(name)
            first = row["first_seconds"].get(name)
            table.add_row(
                row["model"] if i == 0 else "",
                f"{row['clients']} x {row['steps']} x {row['batch']}" if i == 0 else "",
                f"{name} (auto)" if name == row["auto"] else name,
                f"{seconds:.4f}",
                f"{plain:.2f}" if plain else "",
                f"{limit:.2f}" if limit else "",
                f"{first:.3f} s" if first is not None else "",
            )
    return table
