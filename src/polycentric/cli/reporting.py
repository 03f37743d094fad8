"""`polycentric report`: one page on runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import RunFolders, Trust


def report(
    runs: RunFolders,
    out: Annotated[Path, typer.Option(help="The file to write: one HTML page that needs nothing else.")] = Path(
        "report.html"
    ),
    against: Annotated[
        str | None, typer.Option(help="The label that the others are compared with. [default: the first]")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="From the runs' files only: no data are read, and no model is looked at.")
    ] = False,
    examples: Annotated[
        bool, typer.Option(help="Show examples of each cluster; use --no-examples if the data are personal.")
    ] = True,
    trust: Trust = False,
) -> None:
    """Write one HTML page on one run or several: the answer, curves, every client, topology, models, how it was made.

    Runs that differ only in their seed are one label; several labels are compared. The page opens offline, by double
    click, in any browser of 2023 or later, and loads nothing.

    Examples:

      polycentric report runs/fedavg-digits

      polycentric report runs/compare --against nofed --out compare.html
    """
    from ..report.page import looked_at, page_path, write_page
    from .screen import say

    page_path(out)  # what is wrong is said before runs are opened
    sight = looked_at(runs, against=against, trust=trust, quick=quick, examples=examples)
    written = write_page(sight, out)
    for line in sight.notes:
        say(f"note: {line}")
    say(f"report: {written}")
