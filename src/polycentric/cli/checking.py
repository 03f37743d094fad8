"""The command that looks at data before any training: data check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .options import AsJson, of_settings, settings_of


@of_settings("partition", "clients", "seed", "data_seed", "standardise")
def data_check(
    name: Annotated[str, typer.Argument(help="A data set by name or path.")],
    options: dict[str, Any],
    png: Annotated[Path | None, typer.Option(help="Also draw it into this file: .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """What is unlike between clients, what is wrong with their data, and whether one center or several may pay.

    In seconds and before any training: label skew, shifted features, sizes, duplicates and leaks; then a probe with a
    linear model on held-out training examples. The test examples have no say in the answer.

    Example: polycentric data check digits --partition rotations=4 --png check.png
    """
    from rich.table import Table
    from rich.text import Text

    from ..errors import require
    from ..report.data_check import draw_check
    from ..runs.check_data import check_data
    from ..runs.start import load_data
    from .screen import say, stdout, tell

    good = png is None or png.suffix in (".png", ".svg", ".pdf")
    require(good, f"--png must end in .png, .svg or .pdf, got '{png}'")
    settings = settings_of("nofed", options | {"data": name})
    check = check_data(load_data(settings), seed=settings.seed)
    if png:
        draw_check(check, png)
        say(f"drawn in {png}")
    if as_json:
        tell(check.as_json())
        return
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("data", style="bold"), Text(f"{check.federation.name}, {check.federation.n_clients:,} clients"))
    for finding in check.findings:
        table.add_row(Text(finding.about, style="bold"), Text(finding.text))
    for line in check.answers:
        table.add_row(Text("answer", style="bold"), Text(line))
    stdout.print(table)
