"""The command that counts before anything is run, privacy; and the one that attacks what was run, audit."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .options import AsJson, Quiet, Trust, interruptible
from .using import Force, RunFolder

if TYPE_CHECKING:
    from rich.table import Table

    from ..runs.audit import Audit


def privacy(
    clients: Annotated[int, typer.Option(help="How many clients have data.", min=2)] = 1000,
    share: Annotated[float, typer.Option(help="Share of the clients in a round.", min=0.0, max=1.0)] = 0.1,
    rounds: Annotated[int, typer.Option(help="How many rounds.", min=1)] = 100,
    noise: Annotated[float | None, typer.Option(help="Noise on the sum, over the clip.", min=0.0)] = None,
    epsilon: Annotated[float | None, typer.Option(help="Find the noise for this epsilon instead.", min=0.0)] = None,
    delta: Annotated[float | None, typer.Option(help="[default: m^-1.1 for m clients]", min=0.0, max=1.0)] = None,
    sampling: Annotated[Literal["poisson", "fixed"], typer.Option(help="How a round's clients are drawn.")] = "poisson",
    as_json: AsJson = False,
) -> None:
    """What epsilon some noise promises, or how much noise an epsilon needs, before anything is run.

    For dp-fedavg and dp-fed-ls, by sampling and by the accountants; `zero` is what holds where everybody may know who
    took part.

    Example: polycentric privacy --clients 2000 --share 0.05 --rounds 200 --noise 1.5

    Example: polycentric privacy --clients 2000 --share 0.05 --rounds 200 --epsilon 2
    """
    from ..errors import require
    from ..methods import dp_fedavg
    from ..parts import accountant
    from ..parts.select import Poisson, Uniform
    from ..runs.guarantee import calibrated, delta_of, releases
    from .screen import stdout, tell, titled

    both = noise is not None and epsilon is not None
    require(not both, f"noise={noise} and epsilon={epsilon}: one is found from the other, so drop one of them")
    drawn = Poisson(share) if sampling == "poisson" else Uniform(share=share)
    least = delta_of(delta, clients)
    method = dp_fedavg(select=drawn, noise=noise, epsilon=epsilon)
    method = calibrated(method, rounds, clients, least)
    told = releases(method, rounds, clients)
    require(told is not None, f"noise={noise} hides nothing: use a positive number, such as 1")
    hidden = told or []
    factor = 2.0 if hidden[0].neighbours == "replace" else 1.0
    z = factor * hidden[0].noise
    spent = accountant.epsilon(hidden, least)
    found: dict[str, Any] = {
        "noise": z,
        "delta": least,
        "neighbours": hidden[0].neighbours,
        "epsilon": spent,
        "epsilon_rdp": accountant.epsilon(hidden, least, "rdp"),
        "epsilon_zero": accountant.epsilon([accountant.Release(z, times=rounds)], least),
    }
    if as_json:
        tell(found)
        return
    title = f"{rounds:,} rounds of {share:.3g} of {clients:,} clients ({sampling}), noise {z:.4g}, delta {least:.3g}"
    table = titled(title, "neighbours", "accountant", right=["epsilon"])
    meaning = accountant.WORDS[hidden[0].neighbours].format(unit="client")
    table.add_row(meaning, accountant.named(hidden, spent), f"{spent:.4g}")
    table.add_row("", "rdp", f"{found['epsilon_rdp']:.4g}")
    table.add_row(accountant.WORDS["zero"].format(unit="client"), "exact", f"{found['epsilon_zero']:.4g}")
    stdout.print(table)


def audit(
    run: RunFolder,
    shadows: Annotated[
        int, typer.Option(min=0, help="Repeat the run so often on random halves of the examples; try 8.")
    ] = 0,
    clients: Annotated[
        bool, typer.Option("--clients", help="Also guess which clients trained, if some were held out.")
    ] = False,
    canary: Annotated[
        int, typer.Option(min=0, help="Trials of canary clients that try to refute the stated epsilon; try 1000.")
    ] = 0,
    keep: Annotated[
        Path | None, typer.Option(help="Folder for the scores of the shadows: the same command again goes on.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write a JSON file.")] = None,
    force: Force = False,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Attack a finished run: can its training examples, or its clients, be told from others by its models?

    Beside it stands what the run's epsilon, if it has one, allows any attack.

    Examples:

      polycentric audit runs/first

      polycentric audit runs/private --shadows 8 --canary 1000
    """
    from ..errors import UsageError
    from ..runs.start import open as open_run
    from .screen import counting, say, stdout, tell
    from .using import write_whole

    if out is not None and out.exists() and not force:
        raise UsageError(f"{out} is there already: choose another --out, or add --force to replace it")
    opened = open_run(run, trust=trust)
    going_on = interruptible() if keep else nullcontext()  # else all shadows are made again
    with counting("shadows", shadows, quiet or as_json or not shadows) as told, going_on:
        found = opened.audit(shadows=shadows, clients=clients, canary=canary, keep=keep, progress=told)
    result = {"run_dir": str(run), "method": opened.method.name, "data": opened.federation.name, **found.to_json()}
    if out is not None:
        write_whole(out, json.dumps(result, indent=1) + "\n")
    if as_json:
        tell(result)
        return
    stdout.print(_table(found, f"attacks on {opened.method.name} on {opened.federation.name}"))
    for line in found.said:
        say(line)


def _table(found: Audit, title: str) -> Table:
    from ..runs.separation import AT
    from .screen import titled

    promised = any(found.bound(attack.unit) for attack in found.attacks)
    each = any(attack.worst for attack in found.attacks)
    heads = ["AUC", "initial", *(["worst client"] * each), f"TPR at {AT[0]:.0%}", *(["allowed"] * promised)]
    table = titled(title, "attack", right=heads)
    for attack in found.attacks:
        now, before, bound, worst = attack.found, attack.before, found.bound(attack.unit), attack.worst
        table.add_row(
            attack.name,
            f"{now.auc:.3f}±{now.error:.3f}",
            "-" if before is None else f"{before.auc:.3f}±{before.error:.3f}",
            *(["-" if worst is None else f"{worst['auc']:.2f}±{worst['auc_error']:.2f}"] * each),
            f"{now.tpr[AT[0]]:.1%}±{now.tpr_error[AT[0]]:.1%}",
            *([f"{bound['auc']:.3f}" if bound else "-"] * promised),
        )
    return table
