"""The command that counts before anything is run: privacy."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from .options import AsJson


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
    from ..runs.guarantee import calibrated, delta_of, releases
    from .screen import stdout, tell, titled

    both = noise is not None and epsilon is not None
    require(not both, f"noise={noise} and epsilon={epsilon}: one is found from the other, so drop one of them")
    least = delta_of(delta, clients)
    method = dp_fedavg(share=share, sampling=sampling, noise=noise, epsilon=epsilon)
    method = calibrated(method, rounds, clients, least)
    told = releases(method, rounds, clients)
    require(told is not None, f"noise={noise} hides nothing: use a positive number, such as 1")
    hidden = told or []
    factor = 2.0 if hidden[0].neighbours == "replace" else 1.0
    z = factor * hidden[0].noise
    found = {
        "noise": z,
        "delta": least,
        "neighbours": hidden[0].neighbours,
        "epsilon": accountant.epsilon(hidden, least),
        "epsilon_rdp": accountant.epsilon(hidden, least, "rdp"),
        "epsilon_zero": accountant.epsilon([accountant.Release(z, times=rounds)], least),
    }
    if as_json:
        tell(found)
        return
    title = f"{rounds:,} rounds of {share:.3g} of {clients:,} clients ({sampling}), noise {z:.4g}, delta {least:.3g}"
    table = titled(title, "neighbours", "accountant", right=["epsilon"])
    meaning = accountant.WORDS[hidden[0].neighbours].format(unit="client")
    table.add_row(meaning, accountant.named(hidden, found["epsilon"]), f"{found['epsilon']:.4g}")
    table.add_row("", "rdp", f"{found['epsilon_rdp']:.4g}")
    table.add_row(accountant.WORDS["zero"].format(unit="client"), "exact", f"{found['epsilon_zero']:.4g}")
    stdout.print(table)
