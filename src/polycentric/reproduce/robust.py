"""Error against the share of attackers: trimmed k-means and trimmed rounds (TKM), with more and less trimming."""

from __future__ import annotations

import math
from typing import Any

from ..report.figure import Points
from ..runs.folder import Folder
from .judge import claim
from .rows import at_end, cell, error, rows
from .table import Claim, Row, Runs, Table, Verdict, figure

SHARES = (0.0, 0.05, 0.1, 0.2, 0.3)
BETAS = (0.0, 0.05, 0.1, 0.2)
ATTACKS = {"sign-flip": "scale=3", "large-norm": "scale=10", "label-flip": ""}

SYNTHETIC, DIGITS, MNIST = "synthetic", "digits", "mnist"
# data, clients, rounds, partition; and what TKM is given
SETTINGS: dict[str, tuple[str, int, int, dict[str, str], dict[str, Any]]] = {
    SYNTHETIC: ("mixture(k=2,clients=400)", 100, 20, {}, {"warm_up": 50, "steps": 1, "batch": "all", "lr": 0.3}),
    DIGITS: ("digits", 60, 20, {"partition": "rotations=2"}, {"warm_up": 20, "epochs": 1, "batch": 10, "lr": 0.1}),
    MNIST: ("mnist", 100, 6, {"partition": "rotations=2"}, {"warm_up": 2, "epochs": 1, "batch": 50, "lr": 0.1}),
}
DATA = {
    SYNTHETIC: "linear regression, 20 parameters, two groups of about 50 clients with 50 examples each",
    DIGITS: "scikit-learn's digits, 60 clients with about 24 examples each, half of them turned by 180 degrees",
    MNIST: "MNIST, 100 clients with 600 examples each, half of them turned by 180 degrees",
}


def _name(data: str, attack: str, share: float, beta: float) -> str:
    who = "no attackers" if not share else f"{attack} {100 * share:g} %"
    return f"{data}, {who}, beta {beta:g}"


def _distance(summary: dict[str, Any]) -> float:
    """The root of the mean of |w - w*|^2 over honest clients; half of it is the loss over the probes."""
    return math.sqrt(2 * summary["metrics"]["macro_loss"])


PERCENT = (error("micro_accuracy"), "test error in %")
MEASURED = {SYNTHETIC: (_distance, "distance to the true parameters"), DIGITS: PERCENT, MNIST: PERCENT}


def _row(data: str, attack: str, share: float, beta: float) -> Row:
    """Without attackers all attacks are one."""
    source, clients, rounds, dealt, own = SETTINGS[data]
    words = f"{attack}({', '.join(filter(None, [f'share={share:g}', ATTACKS[attack]]))})"
    more = dealt | ({"attack": words} if share else {})
    own = {"k": 2, "beta": beta} | own
    run = cell("tkm", source, "logistic", rounds, own, evaluate_every=rounds, clients=clients, **more)
    return Row(_name(data, attack, share, beta), run, None, *MEASURED[data], DATA[data])


def _below(data: str, attack: str) -> Claim:
    shares, beta, least = SHARES[1:4], BETAS[-1], 0.53 if data == SYNTHETIC else 0.33

    def judge(means: dict[tuple[float, float], float]) -> Verdict:
        gains = [1 - means[share, beta] / means[share, 0.0] for share in shares]
        return min(gains) >= least, ", ".join(f"{100 * gain:.0f} %" for gain in gains)

    text = (
        f"On {data}, under {attack}, with beta = {beta:g} the error is at least {100 * least:g} % below "
        f"that of plain means (beta = 0), at {', '.join(f'{100 * share:g}' for share in shares)} % attackers."
    )
    settings = {(share, b): _name(data, attack, share, b) for share in shares for b in (0.0, beta)}
    return claim(text, settings, judge)


def _agreement(runs: Runs, setting: str) -> list[float]:
    """The adjusted Rand index of every run that ended."""
    ended = [Folder(home).read_summary() for home in runs[setting]]
    return [at_end("metrics", "ari")(summary) for summary in ended if "metrics" in summary]


def _points(runs: Runs, data: str, attack: str, groups: bool) -> Points:
    numbers = (lambda setting: _agreement(runs, setting)) if groups else runs.numbers
    lines = {
        f"beta = {beta:g}": {100 * share: numbers(_name(data, attack, share, beta)) for share in SHARES}
        for beta in BETAS
    }
    dress: dict[str, Any] = {"title": f"{data}, {attack}", "xlabel": "attackers in %", "ylabel": MEASURED[data][1]}
    dress |= {"yscale": "log", "ylim": (0.02, 8)} if data == SYNTHETIC else {"ylim": (0, 100)}
    if groups:
        dress |= {"ylabel": "adjusted Rand index", "yscale": "linear", "ylim": (-0.1, 1.1)}
    return Points(lines, 0.3 if groups else 0.0, dress=dress)


def _panels(runs: Runs, groups: bool) -> list[list[Points]]:
    """A row for every data set, a column for every attack, a line for every beta."""
    return [[_points(runs, data, attack, groups) for attack in ATTACKS] for data in SETTINGS]


ROBUST = Table(
    name="robust",
    title="TKM: error against the share of attackers",
    reference=(
        "Ghosh et al., Robust federated learning in a heterogeneous environment, 2019, "
        "https://arxiv.org/abs/1906.06629: an error at least 53 % (synthetic) and 33 % (real data) below "
        "the non-robust baseline in typical settings."
    ),
    data=f"{'; '.join(DATA.values())}; these are not the paper's data",
    what="error of the honest clients: distance to the true parameters (synthetic), test error in % (digits, mnist)",
    measure=PERCENT[0],
    rows=rows(_row, SETTINGS, ATTACKS, SHARES, BETAS),
    claims=tuple(_below(data, attack) for data in SETTINGS for attack in ATTACKS),
    figures={
        "robust.png": figure(lambda runs: _panels(runs, False)),
        "robust-groups.png": figure(lambda runs: _panels(runs, True)),
    },
)
