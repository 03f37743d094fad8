"""The commands. Heavy imports wait inside them, so that `--help` answers at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from .advise import advise
from .bench import bench
from .topology import topology_app

app = typer.Typer(
    name="polycentric",
    help="Federated learning for clients whose data are not alike: no center, one center, or many.",
    epilog="Begin with: polycentric demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Look at data sets and bring in your own.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")
app.add_typer(topology_app, name="topology")
topology_app.command()(advise)

Data = Annotated[
    str | None,
    typer.Option(help="A data set by name or path; `polycentric data list` shows them. [default: digits]"),
]
Partition = Annotated[
    str | None,
    typer.Option(
        help="How examples are dealt: natural, iid, dirichlet=0.5, shards=2, classes=2, quantity=1.5, rotations=4, "
        "cells=c, skewed=10; then +rotations=2 or +sample=10000."
    ),
]
Clients = Annotated[int | None, typer.Option(help="How many clients.")]
Model = Annotated[
    str | None,
    typer.Option(help="A model by name (`polycentric methods` lists them) or your own as module:attribute."),
]
Rounds = Annotated[int | None, typer.Option(help="How many rounds. [default: 50]")]
Seed = Annotated[int | None, typer.Option(help="Of everything random. [default: 0]")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A setting of the method or its parts: lr=0.1, epochs=5, select=uniform(n=10), select.n=20.",
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder for the run. [default: a new one in runs/]")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, or auto. [default: auto]")]
Clock = Annotated[
    str | None,
    typer.Option(
        help="How simulated seconds are counted: physical(distance=200), normalised(t_c=10), delays(link=0.3); "
        "with deadline=5 in the brackets who is late is left out. [default: physical]"
    ),
]
AttackOption = Annotated[
    str | None,
    typer.Option(
        help="Some clients attack: nan, sign-flip, large-norm, same-value or label-flip, like sign-flip(share=0.2)."
    ),
]
Wait = Annotated[float, typer.Option(help="Under torchrun: seconds without a word before another rank counts as lost.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs beside each other, each in a process of its own.")]


@app.command()
def demo(quiet: Quiet = False, out: Annotated[Path | None, typer.Option(help="Folder for the runs.")] = None) -> None:
    """See what this is about: 40 clients with rotated digits, five ways to learn, half a minute on an idle core."""
    from .demo import demonstrate

    demonstrate(out, quiet)


@app.command()
def run(
    method: Annotated[str, typer.Argument(help="A method (`polycentric methods`) or a CONFIG.toml.")],
    data: Data = None,
    partition: Partition = None,
    clients: Clients = None,
    model: Model = None,
    rounds: Rounds = None,
    seed: Seed = None,
    settings: Sets = None,
    out: Out = None,
    valid: Annotated[
        float | None, typer.Option(help="Share of every client's training examples held out for validation.")
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(help="Stop after so many evaluations without a better validation score, and keep the best model."),
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Stop once the test accuracy over all examples is there.")
    ] = None,
    fine_tune: Annotated[
        int | None,
        typer.Option(help="Epochs of local fine-tuning before the last evaluation; 0 leaves it out. [default: 1]"),
    ] = None,
    held_out: Annotated[
        float | None, typer.Option(help="Share of the clients that never train and are scored apart.")
    ] = None,
    attack: AttackOption = None,
    dissimilarity: Annotated[
        bool | None, typer.Option("--dissimilarity", help="Also measure how unlike the clients' gradients are.")
    ] = None,
    optimistic: Annotated[
        bool | None,
        typer.Option(
            "--optimistic", help="Also score centers chosen by the test labels: a bias to show, not a result."
        ),
    ] = None,
    evaluate_every: Annotated[
        int | None, typer.Option(help="Rounds between evaluations. [default: about 50 in a run]")
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Rounds between checkpoints. [default: every 30 seconds]")
    ] = None,
    executor: Annotated[
        str | None, typer.Option(help="How clients are run: looped, stacked, compiled or auto. [default: auto]")
    ] = None,
    block: Annotated[int | None, typer.Option(help="Clients learned at once. [default: what fits the cache]")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Blocks of clients learned beside each other, on the processor. [default: 1]")
    ] = None,
    device: Device = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64. [default: float32]")] = None,
    state: Annotated[
        str | None,
        typer.Option(help="Where what clients keep is held: memory, or disk for files in the run's folder."),
    ] = None,
    wait: Wait = 600.0,
    precision: Annotated[
        str | None,
        typer.Option(help="How clients multiply: float32, bf16, or on a GPU tf32. [default: float32]"),
    ] = None,
    clock: Clock = None,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="Also train every client alone, and say how many would have done better so."),
    ] = False,
    track: Annotated[bool, typer.Option("--track", help="Write TensorBoard events into the run's folder.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run one method on one federation.

    Examples:

      polycentric run fedavg --data digits --rounds 20

      polycentric run fedprox --data digits --partition dirichlet=0.3 --clients 40 --set mu=0.1 --set lr=0.05

      polycentric run fedavg --set "select=uniform(n=10)" --set "center=momentum(lr=1, beta=0.9)"

      torchrun --standalone --nproc-per-node 2 -m polycentric run fedavg --rounds 20
    """
    from ..runs.grid import enter
    from ..runs.metrics import plain
    from ..runs.record import Folder
    from ..simulate.ranks import join_ranks
    from .screen import out as screen
    from .screen import progress, summary_table, tell

    options = dict(
        data=data, partition=partition, clients=clients, model=model, rounds=rounds, seed=seed, valid=valid,
        patience=patience, target=target, fine_tune=fine_tune, evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every, held_out=held_out, dissimilarity=dissimilarity, optimistic=optimistic,
        executor=executor, block=block, workers=workers, device=device, dtype=dtype, clock=clock, attack=attack,
        state=state, precision=precision, set=settings,
    )  # fmt: skip
    with join_ranks(wait) as ranks:
        folder, hidden = None, quiet or as_json or not ranks.first
        with ranks.together():
            asked = _settings(method, **options)
            prepared = asked.prepare(ranks=ranks)
            if ranks.first:
                name = f"{asked.method}-{prepared.federation.name}-{time.strftime('%Y%m%d-%H%M%S')}"
                folder = Folder.new(out) if out else Folder.fresh(Path("runs"), name)
                enter(prepared, asked, folder)
        place = ranks.text(str(folder.path) if folder else "")
        with (
            progress(asked.method, asked.rounds, quiet=hidden) as watch,
            _interruptible(f"polycentric resume {place}"),
        ):
            prepared.go(_tracked(watch, folder.path) if track and folder else watch)
        below = _share_below_alone(asked, prepared, hidden) if alone else None
    if folder is None:  # another rank speaks for all
        return
    summary = prepared.summary()
    if below is not None:
        summary["metrics"] |= plain({"share_below_alone": below})
        folder.write_json("summary.json", summary)
    if as_json:
        tell(summary)
        return
    screen.print(summary_table(summary))
    _closing(summary, folder)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that was interrupted.")],
    wait: Wait = 600.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Go on with an interrupted run; it ends with the very bits it would have had."""
    from ..runs.grid import reopen, settings_of
    from ..runs.record import Folder
    from ..simulate.ranks import join_ranks
    from .screen import out as screen
    from .screen import progress, say, summary_table, tell

    with join_ranks(wait) as ranks:
        opened, rounds, summary, hidden = None, 0, {}, quiet or as_json or not ranks.first
        with ranks.together():
            if ranks.first:
                opened = Folder.open(folder)
                rounds = settings_of(opened).rounds
                summary = opened.read_json("summary.json") if (folder / "summary.json").is_file() else {}
        done = ranks.text("yes" if summary.get("stopped") or summary.get("rounds", -1) >= rounds else "no")
        if done == "no":
            with (
                progress(f"resume {folder.name}", rounds, quiet=hidden) as watch,
                _interruptible(f"polycentric resume {folder}"),
            ):
                ended, problems = reopen(opened, watch, ranks=ranks)
            summary = ended.summary()
    if opened is None:  # another rank speaks for all
        return
    if done == "yes":
        say(f"note: {folder} is finished, so nothing was run")
    else:
        for problem in problems:
            say(f"note: {problem}")
    if as_json:
        tell(summary)
        return
    screen.print(summary_table(summary))
    _closing(summary, opened)


@app.command()
def personalize(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    steps: Annotated[str, typer.Option(help="Numbers of local steps, separated by commas.")] = "0,1,2,5,10,20,50",
    lr: Annotated[float | None, typer.Option(help="Learning rate of fine-tuning. [default: the method's]")] = None,
    as_json: AsJson = False,
) -> None:
    """Accuracy against steps of fine-tuning at every client, and how many clients get worse."""
    from ..errors import require
    from ..runs.grid import ended
    from ..runs.loop import check_the_same
    from ..runs.record import Folder
    from .listing import personalization
    from .screen import out as screen
    from .screen import tell

    require((folder / "summary.json").is_file(), f"{folder} is not a finished run: `polycentric resume {folder}` first")
    wanted = [word.strip() for word in steps.split(",")]
    good = all(w.isascii() and w.isdigit() and len(w) < 10 for w in wanted)
    require(good, f"--steps takes whole numbers such as 0,1,5,20, got '{steps}'")
    looked_at = ended(Folder.open(folder))
    check_the_same(looked_at, Folder.open(folder))
    points, table = personalization(looked_at, [int(w) for w in wanted], lr)
    if as_json:
        tell({"run_dir": str(folder), "points": points})
        return
    screen.print(table)


@app.command()
def clusters(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run with several centers.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the figures. [default: clusters/ in the run's]")] = None,
    clients: Annotated[int | None, typer.Option(min=4, help="Show at most so many, drawn by the run's seed.")] = None,
    examples: Annotated[
        bool, typer.Option(help="Also show examples of each cluster; leave them out where data are personal.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """See the clusters of a run: over the rounds, on a map, as a tree, and by examples.

    Example: polycentric clusters runs/fesem-digits
    """
    from ..errors import require
    from ..report.clusters import draw, places_of, told
    from ..runs.grid import ended
    from ..runs.loop import check_the_same
    from ..runs.record import Folder
    from .screen import out as screen
    from .screen import say, tell

    opened = Folder.open(folder)
    require((folder / "summary.json").is_file(), f"{folder} is not a finished run: `polycentric resume {folder}` first")
    looked_at = ended(opened)
    check_the_same(looked_at, opened)
    places_of(looked_at)
    paths = draw(looked_at, out or folder / "clusters", examples=examples, clients=clients)
    found = told(looked_at)
    if as_json:
        tell({"run_dir": str(folder), **found, "figures": [str(path) for path in paths]})
        return
    for path in paths:
        screen.print(str(path), soft_wrap=True)
    sizes = ", ".join(f"{k}: {n}" for k, n in found["sizes"].items())
    known = f"; with the known groups ARI {found['ari']:.2f}, NMI {found['nmi']:.2f}" if "ari" in found else ""
    say(f"clients of each cluster: {sizes}{known}")


@app.command()
def compare(
    methods: Annotated[list[str], typer.Argument(help="Methods, or CONFIG.toml files.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every method, with seeds 0, 1, ...")] = 3,
    data: Data = None,
    partition: Partition = None,
    clients: Clients = None,
    model: Model = None,
    rounds: Rounds = None,
    settings: Sets = None,
    attack: AttackOption = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs; finished ones in it are not run again.")] = Path(
        "runs/compare"
    ),
    device: Device = None,
    clock: Clock = None,
    jobs: Jobs = 1,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on the same federation: mean and standard deviation over seeds.

    A setting that a method does not have is left out for it, so `--set mu=0.1` reaches fedprox only.

    Example: polycentric compare nofed fedavg fedprox --data digits --partition rotations=4 --seeds 5
    """
    from .compare import compare_methods, comparison_table
    from .screen import out as screen
    from .screen import tell

    common = dict(
        data=data,
        partition=partition,
        clients=clients,
        model=model,
        rounds=rounds,
        device=device,
        clock=clock,
        attack=attack,
    )
    methods = list(dict.fromkeys(methods))
    cells = [
        _settings(method, **common, seed=seed, set=_those_known(method, settings))
        for seed in range(seeds)
        for method in methods
    ]
    _all_used(methods, settings)
    with _interruptible():
        rows = compare_methods(cells, out, jobs, quiet or as_json, methods * seeds)
    if as_json:
        tell({"data": cells[0].data, "rounds": cells[0].rounds, "seeds": seeds, "methods": rows})
        return
    screen.print(comparison_table(rows, seeds, cells[0]))


@app.command()
def curves(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders of such folders, as compare makes.")],
    over: Annotated[
        str,
        typer.Option(
            help="rounds, seconds (simulated), bytes, bytes_up, bytes_down; several with commas, a panel each."
        ),
    ] = "rounds",
    metric: Annotated[str, typer.Option(help="A number of metrics.jsonl.")] = "micro_accuracy",
    out: Annotated[Path, typer.Option(help="The file to draw into: .png, .svg or .pdf.")] = Path("curves.png"),
    log: Annotated[bool, typer.Option("--log", help="A logarithmic axis of rounds, seconds or bytes.")] = False,
) -> None:
    """Draw learning curves of runs beside each other; runs that differ only in their seed become one band.

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
    say(f"drawn in {out}")


@app.command()
def participation(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders of such folders, as compare makes.")],
    out: Annotated[Path, typer.Option(help="The file to draw into: .png, .svg or .pdf.")] = Path("participation.png"),
) -> None:
    """Draw how often clients of runs took part, and how unequal that is; runs that differ in their seed count as one.

    Example: polycentric participation runs/uniform runs/active --out participation.png
    """
    from ..errors import require
    from ..report.curves import gathered
    from ..report.participation import draw_participation
    from .screen import say

    require(out.suffix in (".png", ".svg", ".pdf"), f"--out must end in .png, .svg or .pdf, got '{out}'")
    for label, unequal in draw_participation(gathered(runs), out).items():
        say(f"{label}: Gini {unequal:.3f}")
    say(f"drawn in {out}")


@app.command()
def sweep(
    config: Annotated[Path, typer.Argument(help="A TOML file with a [grid] table of lists.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs; finished ones in it are not run again.")
    ] = None,
    device: Device = None,
    jobs: Jobs = 1,
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
    from .compare import sweep_grid, sweep_table
    from .screen import out as screen
    from .screen import tell

    with _interruptible():
        rows, keys = sweep_grid(config, out or Path("runs") / f"sweep-{config.stem}", device, jobs, quiet or as_json)
    if as_json:
        tell({"config": str(config), "grid": keys, "runs": rows})
        return
    screen.print(sweep_table(rows, keys))


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="A method, to see its equations and settings.")] = None,
) -> None:
    """List methods and models, or show one method: equations, what it reduces to, every setting."""
    from .listing import list_methods, show_method
    from .screen import out as screen

    if name is None:
        screen.print(list_methods())
        return
    page, settings = show_method(name)
    print(page)  # as it is written: an equation must not be wrapped
    screen.print(settings)


@data_app.command("list")
def data_list() -> None:
    """The data sets that are here, and where they were found."""
    from .listing import list_data
    from .screen import out as screen

    screen.print(list_data())


@data_app.command("show")
def data_show(
    name: Annotated[str, typer.Argument(help="A data set by name or path.")],
    partition: Partition = None,
    clients: Clients = None,
    seed: Seed = None,
    png: Annotated[Path | None, typer.Option(help="Also draw the heat map into this PNG file.")] = None,
) -> None:
    """Labels by client, sizes, and how unlike the clients are."""
    from ..data import describe, heat_map
    from .screen import out as screen
    from .screen import say

    federation = _settings("nofed", data=name, partition=partition, clients=clients, seed=seed).load_data()
    if png:
        heat_map(federation, png)
        say(f"drawn in {png}")
    screen.print(describe(federation))


@data_app.command("import")
def data_import(
    path: Annotated[
        Path,
        typer.Argument(help="An .npz file, LEAF json, IDX or CIFAR binary files, or images as CLIENT/CLASS/*.png."),
    ],
    name: Annotated[str | None, typer.Option(help="What to call it. [default: the name of the file or folder]")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a data set of that name.")] = False,
) -> None:
    """Read data of your own once, and keep them under a name."""
    from ..data import install
    from .screen import say

    called = path.resolve().stem if name is None else name
    where = install(path, called, force=force)
    say(f"kept as {where}; use it with --data {called}")


@app.command()
def doctor() -> None:
    """Check this machine: versions, devices, memory, data, and a round that must come out right."""
    from .listing import examine
    from .screen import out as screen

    good, table = examine()
    screen.print(table)
    raise typer.Exit(0 if good else 1)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="A table; without a name they are listed.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for NAME.md and NAME.json.")] = Path("docs/results"),
    runs: Annotated[Path, typer.Option(help="Folder for the runs; finished ones are not run again.")] = Path(
        "runs/reproduce"
    ),
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of every cell. [default: as the table says]")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Run only rows whose setting contains this word.")] = None,
    cached: Annotated[bool, typer.Option("--cached", help="Run nothing; write the table from finished runs.")] = False,
    device: Device = None,
    jobs: Jobs = 1,
    quiet: Quiet = False,
) -> None:
    """Run a paper's table again, and write its numbers beside ours."""
    from ..errors import unknown
    from ..reproduce import TABLES, reproduce_table
    from .listing import list_tables
    from .screen import counting, say
    from .screen import out as screen

    if name is None:
        screen.print(list_tables())
        return
    if name not in TABLES:
        raise unknown("table", name, TABLES)

    def bar(total: int) -> Any:
        return counting(name or "", total, quiet)

    with _interruptible():
        written = reproduce_table(
            TABLES[name],
            out,
            runs,
            seeds=seeds,
            only=only or [],
            cached=cached,
            device=device or "auto",
            jobs=jobs,
            bar=bar,
        )
    say(f"written: {written.path}")
    if written.missing:
        some = "; ".join(written.missing[:8]) + (" ..." if len(written.missing) > 8 else "")
        again = f" --seeds {seeds}" if seeds else ""
        say(f"{len(written.missing)} of {len(TABLES[name].rows)} rows lack runs: {some}")
        say(f"all of them, and nothing twice: polycentric reproduce {name}{again}")


# -- from options to settings --------------------------------------------------------------------------------


def _settings(method: str, **options: Any) -> Any:
    from ..runs.settings import Settings, changed, pairs, read_toml

    values: dict[str, Any] = {"method": method}
    if method.endswith(".toml"):
        values = read_toml(Path(method))
        Settings.of(values, method).build_method()  # what is wrong in the file is said of the file
    given = {key: value for key, value in options.items() if value is not None and key != "set"}
    changes = options.get("set") or []
    settings = Settings.of(changed(values | given, pairs(changes) if isinstance(changes, list) else changes))
    settings.build_method()  # every mistake in the settings is found before anything is read or written
    settings.build_clock()
    settings.build_attack()
    return settings


def _those_known(method: str, settings: list[str] | None) -> dict[str, Any]:
    from ..methods.recipes import parameters
    from ..runs.settings import pairs, read_toml

    name = str(read_toml(Path(method)).get("method", "")) if method.endswith(".toml") else method
    return {key: value for key, value in pairs(settings or []).items() if key.partition(".")[0] in parameters(name)}


def _all_used(methods: list[str], settings: list[str] | None) -> None:
    from ..errors import unknown
    from ..methods.recipes import parameters
    from ..runs.settings import pairs

    used = {key for method in methods for key in _those_known(method, settings)}
    for key in pairs(settings or []):
        if key not in used:
            every = {name for method in methods if not method.endswith(".toml") for name in parameters(method)}
            raise unknown(f"setting of {', '.join(methods)}", key, every)


def _share_below_alone(asked: Any, ran: Any, quiet: bool) -> float:
    """Train every client alone under the same training, and compare."""
    from ..methods.recipes import parameters
    from ..runs.metrics import share_below
    from .screen import progress

    known = {key: value for key, value in asked.set.items() if key.partition(".")[0] in parameters("nofed")}
    lonely = asked.model_copy(update={"method": "nofed", "set": known, "patience": None, "fine_tune": 0})
    prepared = lonely.prepare(ran.federation, ran.clients.ranks)
    with progress("nofed", asked.rounds, quiet=quiet) as watch:
        prepared.go(watch)
    judged = ran.clients.scored_mask.numpy()
    return share_below(ran.scores["in_use"].only(judged), prepared.scores["in_use"].only(judged))


def _tracked(watch: Any, path: Path) -> Any:
    from ..errors import UsageError

    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("--track needs TensorBoard: pip install 'polycentric[track]'") from error
    writer = SummaryWriter(str(path / "tensorboard"))

    def both(round: int, rounds: int, row: dict[str, Any] | None) -> None:
        for name, value in (row or {}).items():
            writer.add_scalar(name, value, round)
        writer.flush()
        if watch:
            watch(round, rounds, row)

    return both


class Interrupted(Exception):
    """Ctrl-C, with what to type to go on."""


@contextmanager
def _interruptible(command: str = "") -> Iterator[None]:
    """Say after Ctrl-C how to go on: with `command`, or with the same one again. The same where a rank was lost."""
    from ..errors import Lost

    again = f"`{command}` goes on from the last whole round" if command else "the same command again goes on"
    try:
        yield
    except KeyboardInterrupt as end:
        raise Interrupted(again) from end
    except Lost as end:
        raise Lost(f"{end}; {again}") from end


def _closing(summary: dict[str, Any], folder: Any) -> None:
    from .screen import bytes_, say

    clock = str(folder.read_json("config.json").get("clock", ""))
    took = summary.get("simulated_seconds") or 0
    unit = "simulated trips to the edge" if clock.lower().startswith("normalised") else "simulated seconds"
    say(
        f"{summary['rounds']} rounds in {summary['seconds']:.1f} s; up {bytes_(summary['bytes_up'])}, "
        f"down {bytes_(summary['bytes_down'])}; {took:{',.1f' if took >= 10 else '.3g'}} {unit}; {summary['run_dir']}"
    )
    if summary.get("late"):
        say(f"note: {summary['late']} answers missed the deadline and were left out")
    if summary["dropped"]:
        say(f"note: {summary['dropped']} answers were not finite and were left out")
    if summary.get("attackers"):
        say(f"note: {summary['attackers']} clients attacked; scores are those of the others")
    if found := summary.get("optimistic"):
        each, one = found.get("micro_accuracy"), found["one_center"].get("micro_accuracy")
        if each is not None and one is not None:
            say(
                f"note: with the best center of every client by its test labels, which is no result, {each:.1%} of all "
                f"examples would be right; with the best one for all {one:.1%}"
            )
    elif "optimistic" in summary:
        say("note: no optimistic scores: clients share no whole models to choose among, or there are no classes")
    if summary["stopped"]:
        say(f"note: stopped early, {summary['stopped']}")


app.command()(bench)
