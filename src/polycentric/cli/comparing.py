"""Commands over many runs: compare, sweep, reproduce, curves, participation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .options import AsJson, Device, Jobs, Quiet, RunFolders, Trust, interruptible, of_settings, settings_of

RUNS_FOLDER = "Folder for the runs; finished ones in it are not run again."
OVER = "rounds, seconds (simulated), bytes, bytes_up, bytes_down"
RunsFolder = Annotated[Path, typer.Option(help=RUNS_FOLDER)]
Figure = Annotated[Path, typer.Option(help="The file to draw into: .png, .svg or .pdf.")]


@of_settings(without=("seed",))
def compare(
    methods: Annotated[list[str], typer.Argument(help="Methods, or CONFIG.toml files.")],
    options: dict[str, Any],
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds (0, 1, ...) to run every method with.")] = 3,
    out: RunsFolder = Path("runs/compare"),
    jobs: Jobs = 1,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on the same federation: mean and standard deviation over seeds.

    A setting that a method does not have is left out for it, so `--set mu=0.1` reaches fedprox only.

    Example: polycentric compare nofed fedavg fedprox --data digits --partition rotations=4 --seeds 5
    """
    from ..runs.grid import compared, known
    from ..runs.settings import pairs
    from .screen import comparison_table, counting, stdout, tell

    methods, own = list(dict.fromkeys(methods)), pairs(options.pop("set", []))
    names = {method: _method_of(method) for method in methods}
    _all_used(names.values(), own)
    cells = [
        settings_of(method, options | {"seed": seed, "set": known(names[method], own)}, trust=trust)
        for seed in range(seeds)
        for method in methods
    ]
    with interruptible(), counting("compare", len(cells), quiet or as_json) as progress:
        rows = compared(cells, out, jobs, progress, methods * seeds)
    if as_json:
        tell({"data": cells[0].data, "rounds": cells[0].rounds, "seeds": seeds, "methods": rows})
        return
    stdout.print(comparison_table(rows, seeds, cells[0]))


def _method_of(name: str) -> str:
    """The method itself, also of a CONFIG.toml."""
    from ..runs.settings import read_toml

    return str(read_toml(Path(name)).get("method", "")) if name.endswith(".toml") else name


def _all_used(methods: Any, settings: dict[str, Any]) -> None:
    """Refuse a setting that none of the methods has."""
    from ..errors import unknown
    from ..runs.recipes import parameters

    every = {name for method in methods for name in parameters(method)}
    for key in settings:
        if key.partition(".")[0] not in every:
            raise unknown(f"setting of {', '.join(methods)}", key, every)


@of_settings(without=("seed",))
def sweep(
    config: Annotated[Path, typer.Argument(help="A TOML file with a [grid] table of lists.")],
    options: dict[str, Any],
    out: Annotated[Path | None, typer.Option(help=RUNS_FOLDER)] = None,
    jobs: Jobs = 1,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run every combination of a grid of settings.

    CONFIG.toml holds what `run` takes, and a [grid] table whose lists are combined:

      method = "fedavg"

      data = "digits"

      [grid]

      seed = [0, 1, 2]

      "set.lr" = [0.03, 0.1, 0.3]
    """
    from ..runs.grid import run_cells
    from .options import grid_of
    from .screen import counting, stdout, sweep_table, tell

    points, cells = grid_of(config, options, trust)
    folder = out or Path("runs") / f"sweep-{config.stem}"
    with interruptible(), counting(f"sweep {config.stem}", len(cells), quiet or as_json) as progress:
        summaries = run_cells(cells, folder, jobs=jobs, progress=progress)
    rows = [summary | {"grid": point} for point, summary in zip(points, summaries, strict=True)]
    if as_json:
        tell({"config": str(config), "grid": list(points[0]), "runs": rows})
        return
    stdout.print(sweep_table(rows, list(points[0])))


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A table by name; without one, the tables are listed.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for NAME.md and NAME.json.")] = Path("docs/results"),
    runs: RunsFolder = Path("runs/reproduce"),
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of every run. [default: those of the table]")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Run only rows whose setting contains this word.")] = None,
    cached: Annotated[bool, typer.Option("--cached", help="Run nothing; write the table from finished runs.")] = False,
    device: Device = "auto",
    jobs: Jobs = 1,
    quiet: Quiet = False,
) -> None:
    """Reproduce a table of a paper, and write its numbers next to ours."""
    from ..errors import unknown
    from ..reproduce import TABLES, reproduce_table
    from .listing import list_tables
    from .screen import counting, say, stdout

    if name is None:
        stdout.print(list_tables())
        return
    if name not in TABLES:
        raise unknown("table", name, TABLES)

    def bar(total: int) -> Any:
        return counting(name or "", total, quiet)

    with interruptible():
        how: dict[str, Any] = {"cached": cached, "device": device, "jobs": jobs, "bar": bar}
        written = reproduce_table(TABLES[name], out, runs, seeds=seeds, only=only or [], **how)
    say(f"written: {written.path}")
    if written.missing:
        some = "; ".join(written.missing[:8]) + (" ..." if len(written.missing) > 8 else "")
        again = f" --seeds {seeds}" if seeds else ""
        say(f"{len(written.missing)} of {len(TABLES[name].rows)} rows are not complete: {some}")
        say(f"to run what is missing: polycentric reproduce {name}{again}")


def curves(
    runs: RunFolders,
    over: Annotated[str, typer.Option(help=f"{OVER}; several, separated by commas, give one panel each.")] = "rounds",
    metric: Annotated[str, typer.Option(help="A metric, as it is named in metrics.jsonl.")] = "micro_accuracy",
    out: Figure = Path("curves.png"),
    log: Annotated[bool, typer.Option("--log", help="A logarithmic axis of rounds, seconds or bytes.")] = False,
) -> None:
    """Draw learning curves of several runs; runs that differ only in their seed become one band.

    Example: polycentric curves runs/compare --over rounds,seconds,bytes --out curves.png
    """
    from ..errors import require, unknown
    from ..report.curves import AXES, figure, gathered
    from .screen import say

    wanted: list[Any] = [word.strip() for word in over.split(",")]
    for word in wanted:
        if word not in AXES:
            raise unknown("axis", word, AXES)
    require(out.suffix in (".png", ".svg", ".pdf"), f"--out must end in .png, .svg or .pdf, got '{out}'")
    figure(gathered(runs), out, metric, wanted, log)
    say(f"figure: {out}")


def participation(
    runs: RunFolders,
    out: Figure = Path("participation.png"),
) -> None:
    """Draw how often clients took part (participation), and how unequally; runs that differ only in seed are pooled.

    Example: polycentric participation runs/uniform runs/active --out participation.png
    """
    from ..errors import require
    from ..report.curves import gathered
    from ..report.participation import draw_participation
    from .screen import say

    require(out.suffix in (".png", ".svg", ".pdf"), f"--out must end in .png, .svg or .pdf, got '{out}'")
    for label, unequal in draw_participation(gathered(runs), out).items():
        say(f"{label}: Gini {unequal:.3f}")
    say(f"figure: {out}")
