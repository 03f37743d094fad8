"""`polycentric data import`: a user's own files, read once and kept under a name; what became of them is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def data_import(
    path: Annotated[
        Path,
        typer.Argument(
            help="A table (.csv, .parquet), an .npz file, LEAF json, IDX or CIFAR binary files, or images as "
            "CLIENT/CLASS/*.png or GROUP/CLIENT/CLASS/*.png, or with boxes: VOC xml, COCO json, YOLO txt."
        ),
    ],
    client: Annotated[str | None, typer.Option(help="Of a table: the column that says whose a row is.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Of a table: the column to predict; several with commas: x,y.")
    ] = None,
    types: Annotated[
        str | None,
        typer.Option(
            help="Of a table: what columns are where the guess is wrong: age=number,zip=category,seen=date (dmy, mdy), "
            "note=skip."
        ),
    ] = None,
    test: Annotated[str | None, typer.Option(help="Of a table: a column that is true for test rows.")] = None,
    group: Annotated[
        str | None, typer.Option(help="Of a table: a column with a known population, to judge by.")
    ] = None,
    labels: Annotated[
        bool, typer.Option("--labels", help="Of a table: the target is several labels: a|b, or 0 and 1 in each column.")
    ] = False,
    size: Annotated[
        str | None, typer.Option(help="Of pictures: resize all of them to HEIGHTxWIDTH, such as 64x64.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What to call it. [default: the name of the file or folder]")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a data set of that name.")] = False,
) -> None:
    """Import data of your own, so that --data NAME finds them."""
    from ..data import install, npz
    from ..data.pictures import size_of
    from .screen import say

    given = {"client": client, "target": target, "types": types, "test": test, "group": group, "labels": labels}
    how: dict[str, Any] = {key: value for key, value in given.items() if value}
    how |= {"size": size_of(size, "--size")} if size is not None else {}
    called = path.resolve().stem if name is None else name
    where = install(path, called, force=force, **how)
    pool = npz(where)
    if "columns" not in (pool.recipe or {}):
        if pool.kind == "boxes":
            _show_boxes(pool)
        say(f"imported as {where}; use it with --data {called}")
        return
    _show(pool)
    say(f"imported as {where}")
    dealt = "" if pool.client is not None else " --partition iid --clients 10"
    say(f"next: polycentric run fedavg --data {called}{dealt} --standardise train")


def _show_boxes(pool: Any) -> None:
    from .screen import stdout

    label = pool.y[..., 0]
    of_each = [f"{name} ({int((label == at).sum()):,})" for at, name in enumerate(pool.classes)]
    stdout.print(f"{len(label):,} images, {int((label >= 0).sum()):,} boxes: {', '.join(of_each)}", soft_wrap=True)
    if pool.client is not None:
        sizes = pool.client.bincount()
        stdout.print(f"{len(pool.clients)} clients, {int(sizes.min()):,} to {int(sizes.max()):,} images")
    for line in filter(None, pool.note.split("; ")):
        stdout.print(line, soft_wrap=True, markup=False)


def _show(pool: Any) -> None:
    from ..data import table_report
    from .screen import stdout, titled

    rows, said = table_report(pool)
    table = titled(f"columns of {pool.name}", "column", "kind", "values", right=["missing"])
    for row in rows:
        table.add_row(*row)
    stdout.print(table)
    for line in said:
        stdout.print(line, soft_wrap=True)
