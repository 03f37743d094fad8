"""Commands over many runs: compare, sweep, reproduce, curves, participation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..runs.settings import Settings
from .options import AsJson, Device, Jobs, Quiet, RunFolders, Trust, interruptible, of_settings, settings_of

RUNS_FOLDER = "Folder for the runs; finished ones in it are not run again."
OVER = "rounds, seconds (simulated), bytes, bytes_up, bytes_down"
RunsFolder = Annotated[Path, typer.Option(help=RUNS_FOLDER)]
Figure = Annotated[Path, typer.Option(help="The file to draw into: .png, .svg or .pdf.")]


@of_settings(without=("seed",))
def compare(
    methods: Annotated[list[str], typer.Argument(help="Methods, as fedavg or fesem(k=4), or CONFIG.toml files.")],
    options: dict[str, Any],
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds (0, 1, ...) to run every method with.")] = 3,
    against: Annotated[
        str | None, typer.Option(help="The row that the others are compared with, seed by seed. [default: the first]")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(help="The metric to compare by. [default: micro_accuracy; of numbers micro_rmse; of boxes mAP]"),
    ] = None,
    who: Annotated[bool, typer.Option("--who", help="Also say who gains and who loses, by client and group.")] = False,
    unequal_work: Annotated[
        bool, typer.Option("--unequal-work", help="Rows are meant to do unequal local work: do not warn.")
    ] = False,
    out: RunsFolder = Path("runs/compare"),
    jobs: Jobs = 1,
    trust: Trust = False,
    form: Annotated[str, typer.Option("--format", help="table, csv, markdown, latex or json.")] = "table",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on the same federation: mean and standard deviation over seeds, and paired differences.

    A setting that a method does not have is left out for it, so `--set mu=0.1` reaches fedprox only. Settings in
    brackets make rows of one method: `fesem(k=2) fesem(k=8)`. A difference is called one only where it is larger than
    as many standard errors as Student's t asks (2.8 with five seeds), over three seeds or more.

    Example: polycentric compare nofed fedavg "fesem(k=4)" --data digits --partition rotations=4 --seeds 5
    """
    from ..errors import require, unknown
    from ..runs.grid import compared, known
    from ..runs.paired import reference_of, unequal, with_differences, with_who
    from ..runs.settings import pairs
    from .screen import counting, say
    from .tables import FORMATS

    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    require(not as_json or form in ("table", "json"), f"--json and --format {form} are two formats: drop one of them")
    methods, own = list(dict.fromkeys(methods)), pairs(options.pop("set", []))
    reference_of(methods, against)  # refused before anything runs
    names = {method: _method_of(method, trust) for method in methods}
    _all_used(list(names.values()), own)
    cells = [
        settings_of(method, options | {"seed": seed, "set": known(names[method], own)}, trust=trust)
        for seed in range(seeds)
        for method in methods
    ]
    with interruptible(), counting("compare", len(cells), quiet or as_json or form != "table") as progress:
        rows = compared(cells, out, jobs, progress, methods * seeds)
    rows = with_who(with_differences(rows, cells, against, by), cells, each=who)
    for line in unequal(rows, cells, work=not unequal_work):
        say(f"note: {line}")
    _told(rows, seeds, cells[0], "json" if as_json else form, who)


def _told(rows: list[dict[str, Any]], seeds: int, first: Settings, form: str, who: bool) -> None:
    """A comparison in the form that was asked for."""
    from ..report import tables
    from . import screen
    from .tables import comparison_tables, for_people

    told = [row["difference"]["told"] for row in rows if row["difference"]]
    if form == "json":
        screen.tell({"data": first.data, "rounds": first.rounds, "seeds": seeds, "methods": rows})
    elif form == "csv":
        screen.write(tables.as_csv(tables.gains_csv(rows) if who else tables.comparison_csv(rows)))
    elif form == "table":
        for table in comparison_tables(rows, seeds, first):
            screen.stdout.print(table)
        for line in told:
            screen.stdout.print(line, soft_wrap=True)
        if who:
            screen.stdout.print(for_people(tables.gains(rows)))
    else:
        written, mark = (tables.markdown, "- ") if form == "markdown" else (tables.latex, "% ")
        shown = [tables.comparison(rows, seeds, first), *([tables.gains(rows)] if who else [])]
        screen.write("\n\n".join([written(shown[0]), *(["\n".join(mark + line for line in told)] if told else [])]))
        for other in shown[1:]:
            screen.write(f"\n{written(other)}")


def _method_of(name: str, trust: bool) -> str:
    """The method itself with its settings, also of a CONFIG.toml."""
    if not name.endswith(".toml"):
        return name
    from ..language.own_code import ask_consent
    from ..runs.settings import read_toml

    values = read_toml(Path(name))
    ask_consent(values, Path(name), trust)
    return str(values.get("method", ""))


def _all_used(methods: list[str], settings: dict[str, Any]) -> None:
    """Refuse a setting that reaches none of the rows."""
    from ..errors import unknown
    from ..language import settings_in
    from ..runs.grid import known
    from ..runs.recipes import parameters

    for key in settings:
        if not any(known(method, {key: None}) for method in methods):
            every = {name for method in methods for name in parameters(settings_in("method", method)[0])}
            raise unknown(f"setting of {', '.join(methods)}", key, every)


@of_settings(without=("seed",))
def sweep(
    config: Annotated[Path, typer.Argument(help="A TOML file with a [grid] table of lists, or of ranges.")],
    options: dict[str, Any],
    search: Annotated[
        str, typer.Option(help="grid: every combination. random, halving: some of them, chosen by validation only.")
    ] = "grid",
    trials: Annotated[int | None, typer.Option(min=1, help="Combinations that a search tries. [default: 20]")] = None,
    search_seed: Annotated[int, typer.Option(min=0, help="Of which combinations a search draws.")] = 0,
    out: Annotated[Path | None, typer.Option(help=RUNS_FOLDER)] = None,
    jobs: Jobs = 1,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run every combination of a grid of settings, or search it.

    CONFIG.toml holds what `run` takes, and a [grid] table whose lists are combined:

      method = "fedavg"

      data = "digits"

      [grid]

      seed = [0, 1, 2]

      "set.lr" = [0.03, 0.1, 0.3]

    With --search random or halving there may be ranges, too, and the best on the validation split is told with the
    command that runs it; seeds are not searched, every combination is run with all of them:

      "set.lr" = { low = 0.001, high = 1.0, log = true }
    """
    from ..errors import require, unknown
    from ..runs.grid import run_cells
    from ..runs.search import SEARCHES
    from .options import grid_of
    from .screen import counting, stdout, tell
    from .searching import searched
    from .tables import sweep_table

    folder, hidden = out or Path("runs") / f"sweep-{config.stem}", quiet or as_json
    if search not in ("grid", *SEARCHES):
        raise unknown("search", search, ("grid", *SEARCHES))
    if search != "grid":
        with interruptible():
            searched(config, options, search, trials or 20, search_seed, folder, jobs, trust, as_json, hidden)
        return
    require(trials is None, f"--trials {trials} is for a search: add --search random, or leave it out")
    points, cells = grid_of(config, options, trust)
    with interruptible(), counting(f"sweep {config.stem}", len(cells), hidden) as progress:
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
    keep: Annotated[
        bool, typer.Option("--keep", help="Rows that the page has more runs of than are here keep their numbers.")
    ] = False,
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
        how: dict[str, Any] = {"cached": cached, "keep": keep, "device": device, "jobs": jobs, "bar": bar}
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
    metric: Annotated[str, typer.Option(help="A metric of metrics.jsonl. [default: as compare's]")] = "",
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
