"""FedProx and FedAvg where most of the cohort is slow: accuracy with 0, 50 and 90 % stragglers."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from ..report.curves import Curves
from .judge import claim, listed
from .rows import at_end, cell, rows
from .table import Claim, Row, Runs, Table, figure

GAIN = 22.0  # points, on average over the paper's five data sets
MOST = 90  # % of stragglers at which the gain is claimed

# words -> data, partition, clients, learning rate, rounds, evaluation every so many rounds
SETS: dict[str, tuple[str, str | None, int | None, float, int, int]] = {
    **{f"synthetic({x})": (f"synthetic({x})", None, None, 0.01, 50, 1) for x in ("0,0", "0.5,0.5", "1,1")},
    "MNIST": ("mnist", "classes=2", 1000, 0.03, 100, 5),
}
METHODS: dict[str, tuple[str, dict[str, float]]] = {
    "FedAvg": ("fedavg", {}),
    "FedProx mu=0": ("fedprox", {"mu": 0.0}),
    "FedProx mu=1": ("fedprox", {"mu": 1.0}),
}


def _name(data: str, slow: int, method: str) -> str:
    return f"{data}, {slow} % stragglers, {method}"


def _row(words: str, slow: int, label: str) -> Row:
    data, partition, clients, lr, rounds, every = SETS[words]
    method, own = METHODS[label]
    if slow == 0 and own.get("mu") == 0:  # nobody is slow and nothing is tied: FedAvg, to the bit
        method, own = METHODS["FedAvg"]
    training = {"lr": lr, "epochs": 20, "batch": 10, "select": "uniform(n=10)"}
    training |= own | ({"stragglers": slow / 100} if slow else {})
    more = {"partition": partition, "clients": clients, "dissimilarity": True}
    more["executor"] = "looped" if data == "mnist" else "traced"  # one client takes 16,000 small steps
    run = cell(method, data, "logistic", rounds, training, evaluate_every=every, **more)
    return Row(_name(words, slow, label), run)


def _more(
    text: str,
    better: str,
    worse: str,
    slow: int = MOST,
    holds: Callable[[float], bool] = lambda gain: gain > 0,
    end: str = "",
) -> Claim:
    """What one method gains over another, in points of accuracy on average over the data sets."""

    def judge(means: dict[tuple[str, str], float]) -> tuple[bool, str]:
        gains = {data: 100 * (means[data, better] - means[data, worse]) for data in SETS}
        mean = statistics.fmean(gains.values())
        return holds(mean), f"{mean:+.1f} points on average ({listed(gains, '{} {:+.1f}')}){end}"

    settings = {(data, method): _name(data, slow, method) for data in SETS for method in (better, worse)}
    return claim(text, settings, judge)


def _curves(runs: Runs, data: str, accuracy: bool) -> Curves:
    groups = {method: runs[_name(data, MOST, method)] for method in METHODS}
    if not accuracy:
        return Curves(groups, "dissimilarity", dress={"yscale": "log"})
    return Curves(groups, dress={"title": data, "ylim": (0, 1), "ylabel": "test accuracy"})


FEDPROX = Table(
    name="fedprox",
    title="FedProx: accuracy with stragglers",
    reference=(
        "Li et al., Federated optimization in heterogeneous networks, MLSys 2020, https://arxiv.org/abs/1812.06127, "
        "figures 1 and 2. The paper prints curves, not numbers."
    ),
    data=(
        "synthetic(alpha, beta) made by the paper's formula, 30 clients (our draw, sizes cut at 10,000); MNIST, two "
        "digits a client, 1,000 clients with sizes by a lognormal law (our deal)"
    ),
    what="test accuracy over all examples after the last round",
    measure=at_end("metrics", "micro_accuracy"),
    rows=rows(_row, SETS, (0, 50, MOST), METHODS),
    claims=(
        _more(
            "At 90 % stragglers FedProx gains about 22 points over FedAvg, on average.",
            "FedProx mu=1",
            "FedAvg",
            holds=lambda gain: GAIN / 1.5 <= gain <= 1.5 * GAIN,
            end=f"; {GAIN:.0f} in the paper, over other data sets as well",
        ),
        _more("At 90 %, keeping what stragglers have done is better than dropping them.", "FedProx mu=0", "FedAvg"),
        _more("At 90 %, the proximal term helps beyond that.", "FedProx mu=1", "FedProx mu=0"),
        _more("At 50 %, FedProx is better than FedAvg.", "FedProx mu=1", "FedAvg", 50),
        _more("The proximal term helps even where nobody is slow.", "FedProx mu=1", "FedAvg", 0),
    ),
    figures={
        "fedprox.png": figure(
            lambda runs: [[_curves(runs, data, accuracy) for data in SETS] for accuracy in (True, False)]
        ),
    },
)
