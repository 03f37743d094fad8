"""Commands that take something out of a finished run: export, predict, detect, assign, evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .options import AsJson, Trust, of_settings

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]
Client = Annotated[str | None, typer.Option(help="The client whose model it is, by its name or number.")]
Center = Annotated[int | None, typer.Option(help="The center whose model it is, by its number.")]
Force = Annotated[bool, typer.Option("--force", help="Replace files that are there.")]
Table = Annotated[Path | None, typer.Option(help="Write a CSV file.")]
MOST = 8  # centers that a table on the screen has room for


def export(
    run: RunFolder,
    client: Client = None,
    center: Center = None,
    every: Annotated[
        bool, typer.Option("--all", help="All centers where clients share whole models, otherwise all clients.")
    ] = False,
    format: Annotated[str, typer.Option(help="safetensors, torch-export or onnx.")] = "safetensors",
    out: Annotated[Path | None, typer.Option(help="Folder for the files. [default: export/ in the run's]")] = None,
    force: Force = False,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Write models as files for other programs, each checked against the run's own; prints the lines that load it.

    Examples:

      polycentric export runs/first

      polycentric export runs/first --client 3 --format torch-export --out models
    """
    from ..runs.start import open as open_run
    from .screen import say, tell, write

    how: dict[str, Any] = {"client": client, "center": center, "all": every, "format": format}
    written = open_run(run, trust=trust, examples=False).export(**how, out=out, force=force)
    if as_json:
        files = [{"file": str(one.path), "about": str(one.about), "checked": one.checked} for one in written]
        tell({"run_dir": str(run), "format": format, "models": files, "load": written[0].lines.splitlines()})
        return
    for one in written:
        checked = f"the run's outputs on {one.checked} examples, off by at most {one.off:.1g}"
        say(f"written: {one.path}; {checked if one.checked else 'not run here'}")
    write(written[0].lines)


def predict(
    run: RunFolder,
    file: Annotated[Path, typer.Argument(help="New examples: .npz, a folder of pictures, or a table (.csv).")],
    client: Client = None,
    center: Center = None,
    out: Annotated[Path | None, typer.Option(help="The file to write. [default: standard output]")] = None,
    force: Force = False,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Answers to new examples, a row each: what is predicted, how probable, and what is right where that is known.

    Example: polycentric predict runs/first new.npz --client 3 --out predictions.csv
    """
    from ..errors import UsageError
    from ..runs.start import open as open_run
    from .screen import say, tell, write

    if out is not None and out.exists() and not force:
        raise UsageError(f"{out} is there already: choose another --out, or add --force to replace it")
    found = open_run(run, trust=trust, examples=False).predict(file, client=client, center=center)
    told, n = found.summary(), len(found.outputs)
    if out is not None:
        write_whole(out, found.table())
    if as_json:
        scored = n if found.known is None else int(found.known.sum())
        about = {"run_dir": str(run), "file": str(file), "examples": n, "scored": scored if told else 0}
        tell(about | {"scores": told, "predictions": list(found.rows()), "said": list(found.said)})
        return
    if out is None:
        write(found.table())
    for line in found.said:
        say(line)
    if told:
        say(f"{n} examples; " + ", ".join(f"{name} {value:.4g}" for name, value in told.items()))


def detect(
    run: RunFolder,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Pictures, or folders of them.")],
    client: Client = None,
    center: Center = None,
    score: Annotated[float, typer.Option(min=0, max=1, help="The lowest score of a box that is drawn.")] = 0.3,
    out: Annotated[Path, typer.Option(help="Folder for the pictures with boxes.")] = Path("detected"),
    force: Force = False,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Draw what a trained detector sees into pictures of any size; the pictures themselves stay as they are.

    Examples:

      polycentric detect runs/street crossing.jpg

      polycentric detect runs/street frames --client 3 --score 0.5 --out seen
    """
    from ..report.detect import detect_in
    from ..runs.start import open as open_run
    from .screen import say, tell

    opened = open_run(run, trust=trust, examples=False)
    seen = detect_in(opened, images, out, client=client, center=center, least=score, force=force)
    if as_json:
        tell({"run_dir": str(run), "images": [one.to_json() for one in seen]})
        return
    for one in seen:
        say(f"{one.written}: {one.words}")


@of_settings("partition", "clients", "data_seed")
def assign(
    run: RunFolder,
    data: Annotated[str, typer.Argument(help="Clients, by the name or path of their data.")],
    options: dict[str, Any],
    out: Table = None,
    force: Force = False,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Which center fits new clients, by the loss on their training examples; nothing is trained.

    Example: polycentric assign runs/fesem-digits new.npz --out centers.csv
    """
    from ..errors import UsageError
    from ..runs.start import open as open_run
    from .screen import say, stdout, tell, titled

    if out is not None and out.exists() and not force:
        raise UsageError(f"{out} is there already: choose another --out, or add --force to replace it")
    found = open_run(run, trust=trust, examples=False).assign(data, **options)
    if out is not None:
        write_whole(out, found.table())
    if as_json:
        tell({"run_dir": str(run), "data": data, "clients": list(found.rows()), "note": found.note})
        return
    losses = [f"loss_{k}" for k in found.centers] if len(found.centers) <= MOST else []
    table = titled(f"mean loss of every center at the clients of {data}", "client", right=("center", "margin", *losses))
    for row in found.rows():
        numbers = ["-" if row[name] is None else f"{row[name]:.4g}" for name in ("margin", *losses)]
        table.add_row(row["client"], "-" if row["center"] is None else str(row["center"]), *numbers)
    stdout.print(table)
    if found.note:
        say(found.note)


@of_settings("data", "partition", "clients", "data_seed")
def evaluate(
    run: RunFolder,
    options: dict[str, Any],
    all_new: Annotated[
        bool, typer.Option("--all-new", help="Everybody is a newcomer, whatever they are called.")
    ] = False,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Scores of a run's models on other data; nothing is trained.

    A client that has the name of one of the run's keeps that client's model; others are newcomers.

    Example: polycentric evaluate runs/first --data new.npz
    """
    from ..errors import require
    from ..runs.start import open as open_run
    from .screen import say, stdout, summary_table, tell

    require("data" in options, "say on which data: --data NAME, or a path")
    opened = open_run(run, trust=trust, examples=False)
    found = opened.evaluate(options.pop("data"), **options, all_new=all_new).summary()
    summary = {"method": opened.method.name, "run_dir": str(run), **found}
    if as_json:
        tell(summary)
        return
    stdout.print(summary_table(summary))
    for line in summary["said"]:
        say(line)


def write_whole(path: Path, text: str) -> None:
    """A file, whole or not at all."""
    from ..runs.checkpoint import renamed

    path.parent.mkdir(parents=True, exist_ok=True)
    renamed(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
