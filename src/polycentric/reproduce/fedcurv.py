"""FedCurv on MNIST with about two digits a client: rounds, and megabytes, to 90, 95 and 97 %."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from ..report.curves import Curves, Over
from .judge import every, less, reached
from .rows import cell, first_reaching, rounds_to, rows
from .table import Claim, Row, Runs, Table, Values, Verdict, figure

TARGETS = (0.90, 0.95, 0.97)
PRICED = 0.95  # the target whose megabytes are counted
WAIT = {1: 500, 10: 250, 20: 150}  # E -> rounds
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedProx": {"mu": 0.001},
    "FedCurv": {"strength": 1.0, "implicit": True},
}


def _settings(method: str, epochs: int) -> dict[str, Any]:
    own = {"select": "uniform(n=10)", "lr": 0.3, "epochs": epochs, "batch": 20} | METHODS[method]
    return cell(
        method.lower(), "mnist", "2nn", WAIT[epochs], own, partition="shards=2", clients=100, target=max(TARGETS)
    )


def _megabytes(summary: dict[str, Any]) -> float:
    row = first_reaching(summary["run_dir"], PRICED)
    return math.nan if row is None else (row["bytes_up"] + row["bytes_down"]) / 1e6


def _name(epochs: int, target: float, method: str, what: str = "rounds") -> str:
    return f"E={epochs}, {what} to {100 * target:.0f} %, {method}"


def _rows(epochs: int) -> Iterator[Row]:
    for target in TARGETS:
        for method in METHODS:
            yield Row(_name(epochs, target, method), _settings(method, epochs), measure=rounds_to(target))
    for method in METHODS:
        what = f"megabytes up and down to {100 * PRICED:.0f} %"
        yield Row(_name(epochs, PRICED, method, "MB"), _settings(method, epochs), None, _megabytes, what)


def _ratio(values: Values, settings: Sequence[str]) -> float | None:
    """The second's rounds, or megabytes, over the first's.

    Where the first did not get there with every seed and the second did, 0; the other way round, infinity; None where
    neither did, or a row was not run.
    """
    mine, theirs = (reached(values, setting) for setting in settings)
    if not all(values.get(setting) for setting in settings) or not (mine or theirs):
        return None
    return 0.0 if not mine else math.inf if not theirs else statistics.fmean(theirs) / statistics.fmean(mine)


def _times(ratio: float) -> str:
    return f"{ratio:.2f} times" if 0 < ratio < math.inf else f"only {'the other' if not ratio else 'FedCurv'} got there"


def _fewer(epochs: int, other: str) -> Claim:
    def judge(values: Values) -> Verdict:
        shown, sure = [], []
        for target in TARGETS:
            pair = [_name(epochs, target, method) for method in ("FedCurv", other)]
            if (ratio := _ratio(values, pair)) is not None:
                shown.append(f"to {100 * target:.0f} % {_times(ratio)}")
                sure.append(less(values[pair[0]], values[pair[1]]) if 0 < ratio < math.inf else ratio > 0)
        if not shown:
            return None, "a row was not run, or no target was reached by every seed of one of them"
        return every(sure), f"{other}'s rounds over FedCurv's: {', '.join(shown)}"

    return Claim(f"With E = {epochs}, FedCurv needs fewer rounds than {other} to every target.", judge)


def _cheaper(values: Values) -> Verdict:
    ratio = _ratio(values, [_name(max(WAIT), PRICED, method, "MB") for method in ("FedCurv", "FedAvg")])
    if ratio is None:
        return None, "a row was not run, or the target was not reached by every seed of one of them"
    return ratio > 1, f"FedAvg's megabytes over FedCurv's with E = {max(WAIT)}: {_times(ratio)}"


def _curves(runs: Runs, epochs: int, over: Over) -> Curves:
    groups = {method: runs[_name(epochs, PRICED, method)] for method in METHODS}
    return Curves(groups, over=over, dress={"title": f"E = {epochs}", "ylim": (0.5, 1), "ylabel": "test accuracy"})


FEDCURV = Table(
    name="fedcurv",
    title="FedCurv on MNIST: rounds to 90, 95 and 97 %",
    reference=(
        "Shoham et al., Overcoming forgetting in federated learning on non-IID data, 2019, "
        "https://arxiv.org/abs/1910.07796. The numbers of its table are not at hand; its claim is judged."
    ),
    data="MNIST, two shards of sorted digits a client, 100 clients, 10 a round; a perceptron of two layers of 200",
    what="rounds to a test accuracy",
    measure=rounds_to(max(TARGETS)),
    rows=rows(_rows, WAIT),
    claims=(
        *(_fewer(epochs, other) for epochs in (20, 10) for other in ("FedAvg", "FedProx")),
        Claim("FedCurv is also cheaper than FedAvg at equal bytes, where E is large.", _cheaper),
    ),
    figures={
        "fedcurv.png": figure(
            lambda runs: [[_curves(runs, epochs, over) for epochs in WAIT] for over in ("rounds", "bytes")]
        ),
    },
)
