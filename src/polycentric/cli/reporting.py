"""`polycentric report`, `watch` and `figure`: a page on runs, one that moves with them, and figures for a paper."""

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


def figure(
    name: Annotated[
        str,
        typer.Argument(
            help="curves, participation, topology, rounds, map, similarity, splits, examples, frames or recall."
        ),
    ],
    runs: RunFolders,
    form: Annotated[str, typer.Option("--format", help="pdf, svg or png.")] = "pdf",
    columns: Annotated[int, typer.Option(help="As wide as 1 or 2 columns of a paper.")] = 1,
    out: Annotated[Path | None, typer.Option(help="The file to draw into. [default: NAME.FORMAT]")] = None,
    metric: Annotated[str, typer.Option(help="Of curves: a metric. [default: as compare's]")] = "",
    over: Annotated[str, typer.Option(help="Of curves: rounds, seconds, bytes; several with commas.")] = "",
    trust: Trust = False,
) -> None:
    """Draw one figure of runs for a paper: as wide as one or two of its columns, in its small type.

    Examples:

      polycentric figure curves runs/compare --over rounds,bytes --columns 2

      polycentric figure topology runs/matcha --format svg
    """
    from ..errors import unknown
    from ..report.paper import draw_figure
    from .screen import say

    if form not in ("pdf", "svg", "png"):
        raise unknown("format", form, ("pdf", "svg", "png"))
    path = out or Path(f"{name}.{form}")
    say(f"figure: {draw_figure(name, runs, path, columns=columns, metric=metric, over=over, trust=trust)}")


def watch(
    folder: Annotated[Path, typer.Argument(help="The folder of runs to watch.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port on this machine.")] = 8471,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser.")] = True,
) -> None:
    """Watch runs in a browser while they go: a list that moves, and every run on the panels of a report.

    It listens on this machine only, reads, and writes nothing; Ctrl-C ends it, and the runs go on.

    Example: polycentric watch runs
    """
    import webbrowser

    from ..errors import require
    from ..report.live.server import listening, serve
    from .screen import say

    require(folder.is_dir(), f"{folder} is no folder: name the one that holds runs, such as runs")
    door = listening(port)  # before anybody is sent there
    say(f"http://127.0.0.1:{port} shows the runs in {folder}; Ctrl-C ends it")
    if browser:
        webbrowser.open(f"http://127.0.0.1:{port}")
    serve(folder, door)
