"""Commands that run a method, go on with a run, and look at one: run, resume, personalize, clusters."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import AsJson, Out, Quiet, Track, Trust, Wait, interruptible, of_settings, settings_of


@of_settings()
def run(
    method: Annotated[str, typer.Argument(help="A method (`polycentric methods`) or a CONFIG.toml.")],
    options: dict[str, Any],
    out: Out = None,
    wait: Wait = 600.0,
    trust: Trust = False,
    track: Track = None,
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
    from ..runs.folder import Folder
    from ..runs.start import attach_folder, prepared
    from ..runs.trackers import tracker
    from ..simulate.ranks import join_ranks
    from .screen import progress

    with join_ranks(wait) as ranks:
        folder, hidden = None, quiet or as_json or not ranks.first
        with ranks.together():
            asked = settings_of(method, options, check=False, trust=trust)  # it is built right away
            trackers = [tracker(name) for name in track or ()]  # one that is not there is said before anything is done
            made = prepared(asked, ranks=ranks)
            if ranks.first:
                name = f"{asked.method}-{made.federation.name}-{time.strftime('%Y%m%d-%H%M%S')}"
                folder = Folder.new(out) if out else Folder.fresh(Path("runs"), name)
                attach_folder(made, folder)
                made.callbacks += tuple(trackers)
        again = f"polycentric resume {ranks.text(str(folder.path) if folder else '')}"  # any rank may have to say it
        with progress(asked.method, asked.rounds, quiet=hidden) as watching, interruptible(again):
            made.callbacks += watching
            made.go()
        summary = made.summary() if folder else {}
    if folder:  # else another rank speaks for all
        told(summary, folder, as_json)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that was interrupted, or gets more rounds.")],
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="New total number of rounds, if the run should get more than it was started with."),
    ] = None,
    wait: Wait = 600.0,
    trust: Trust = False,
    track: Track = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Resume an interrupted run from its last checkpoint; the result is bit for bit that of an uninterrupted run.

    With --rounds a finished run gets more rounds, and ends as if it had been started with that many.
    """
    from ..runs.folder import Folder
    from ..runs.start import resumed
    from ..runs.trackers import tracker
    from ..simulate.ranks import join_ranks
    from .screen import progress, say

    with join_ranks(wait) as ranks:
        opened, begun, wanted, summary, damaged, hidden = None, 0, 0, {}, [], quiet or as_json or not ranks.first
        with ranks.together():
            if ranks.first:
                opened, trackers = Folder.open(folder), [tracker(name) for name in track or ()]
                begun = opened.read_config(trust)[0].rounds
                wanted = max(begun, rounds or 0)
                damaged = opened.damaged() if opened.finished else []
                summary = opened.read_summary() if opened.finished and not damaged else {}
        enough = "metrics" in summary and (summary.get("stopped") or wanted == begun)
        done = ranks.text("yes" if enough else "no")
        if done == "no":
            with (
                progress(f"resume {folder.name}", wanted, quiet=hidden) as watching,
                interruptible(f"polycentric resume {folder}"),
            ):
                ended, problems = resumed(opened, ranks=ranks, rounds=rounds, trust=trust)
                ended.callbacks += (*watching, *(trackers if opened else ()))
                ended.go()
            summary = ended.summary()
            mended = [name for name in damaged if not name.startswith("sketches/")]
            problems += [f"{name} was changed since the run ended, and is written again" for name in mended]
    if opened is None:  # another rank speaks for all
        return
    if done == "yes":
        problems = [
            f"{folder} is finished, so nothing was run; to add rounds: `polycentric resume {folder} --rounds N`"
        ]
    for problem in problems:
        say(f"note: {problem}")
    told(summary, opened, as_json)


def personalize(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    steps: Annotated[str, typer.Option(help="Numbers of fine-tuning steps, separated by commas.")] = "0,1,2,5,10,20,50",
    lr: Annotated[float | None, typer.Option(help="Learning rate of fine-tuning. [default: the method's]")] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Personalisation: accuracy against steps of fine-tuning at every client, and how many clients get worse."""
    from ..errors import require
    from ..runs.start import open as open_run
    from .listing import personalization
    from .screen import stdout, tell

    wanted = [word.strip() for word in steps.split(",")]
    good = all(w.isascii() and w.isdigit() and len(w) < 10 for w in wanted)
    require(good, f"--steps takes whole numbers such as 0,1,5,20, got '{steps}'")
    points, table = personalization(open_run(folder, trust=trust), [int(w) for w in wanted], lr)
    if as_json:
        tell({"run_dir": str(folder), "points": points})
        return
    stdout.print(table)


def clusters(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run with several centers.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the figures. [default: clusters/ in the run's]")] = None,
    clients: Annotated[
        int | None, typer.Option(min=4, help="Show at most this many clients, drawn by the run's seed.")
    ] = None,
    examples: Annotated[
        bool, typer.Option(help="Also show examples of each cluster; use --no-examples if the data are personal.")
    ] = True,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Draw the clusters of a run: over the rounds, as maps, as a tree, by examples; members.csv lists the clients.

    Example: polycentric clusters runs/fesem-digits
    """
    from ..report.clusters import draw, places_of, told, write_members
    from ..runs.start import open as open_run
    from .screen import say, stdout, tell

    looked_at = open_run(folder, trust=trust)
    places_of(looked_at)
    paths = draw(looked_at, out or folder / "clusters", examples=examples, clients=clients)
    found, members = told(looked_at), write_members(looked_at, (out or folder / "clusters") / "members.csv")
    if as_json:
        tell({"run_dir": str(folder), **found, "figures": [str(path) for path in paths], "members": str(members)})
        return
    for path in (*paths, members):
        stdout.print(str(path), soft_wrap=True)
    sizes = ", ".join(f"{k}: {n}" for k, n in found["sizes"].items())
    known = f"; with the known groups ARI {found['ari']:.2f}, NMI {found['nmi']:.2f}" if "ari" in found else ""
    say(f"clients of each cluster: {sizes}{known}")


def told(summary: dict[str, Any], folder: Any, as_json: bool) -> None:
    """What a run came to."""
    from .screen import bytes_, say, stdout, summary_table, tell

    if as_json:
        tell(summary)
        return
    stdout.print(summary_table(summary))
    config = folder.read_values()
    clock = str(config.get("clock", ""))
    took = summary.get("simulated_seconds") or 0
    unit = "simulated trips to the edge" if clock.lower().startswith("normalised") else "simulated seconds"
    unit = "seconds of rounds and scores" if "nodes" in config.get("given", ()) else unit
    say(
        f"{summary['rounds']} rounds in {summary['seconds']:.1f} s; up {bytes_(summary['bytes_up'])}, "
        f"down {bytes_(summary['bytes_down'])}; {took:{',.1f' if took >= 10 else '.3g'}} {unit}; {summary['run_dir']}"
    )
    if summary.get("late"):
        say(f"note: {summary['late']} client updates missed the deadline and were left out")
    if summary["dropped"]:
        say(f"note: {summary['dropped']} client updates were NaN or infinite and were left out")
    if summary.get("attackers"):
        say(f"note: {summary['attackers']} clients were simulated attackers; scores are over the others")
    if found := summary.get("unseen"):
        shown = {way: scores["micro_accuracy"] for way, scores in found.items() if "micro_accuracy" in (scores or {})}
        if shown:
            ways = ", ".join(f"{way} {share:.1%}" for way, share in shown.items())
            say(
                f"note: accuracy on a device that was never seen: {ways}"
                + (f" ({found['note']})" if found["note"] else "")
            )
    if found := summary.get("optimistic"):
        each, one = found.get("micro_accuracy"), found["one_center"].get("micro_accuracy")
        if each is not None and one is not None:
            say(
                f"note: if every client took its best center by test labels (optimistic, no result), accuracy would be "
                f"{each:.1%}; with the one best center for all, {one:.1%}"
            )
    elif "optimistic" in summary:
        say("note: no optimistic scores: there are no whole models to choose among, or the data have no classes")
    if config.get("fine_tune") == 1 and not summary.get("personalised"):  # more than one epoch was said before
        say(f"note: no fine-tuned scores: clients of {summary['method']} take no training steps that could go on alone")
    if summary["stopped"]:
        say(f"note: stopped early, {summary['stopped']}")
