"""Rounds to 99 % on MNIST: FedSGD and FedAvg(E, B), IID and with two digits a client."""

from __future__ import annotations

import math
import statistics
from typing import Any

from .judge import listed, mean
from .rows import at_end, cell, rows
from .table import Claim, Row, Table, Values, Verdict

TARGET = 0.99
FEDSGD_ROUNDS = 1500  # we wait for FedSGD

# (E, B), clients' learning rate IID / non-IID, rounds in the paper IID / non-IID, rounds we wait.
# The learning rates were chosen on a validation split (sweeps/fedavg-mnist-*.toml), as the paper tuned its own.
Line = tuple[int, int | None, tuple[float, float], tuple[int, int], int]
GRID: tuple[Line, ...] = (
    (1, None, (0.4, 0.4), (626, 483), FEDSGD_ROUNDS),
    (5, None, (0.4, 0.2), (179, 1000), 1500),
    (1, 10, (0.2, 0.2), (34, 350), 800),
    (5, 10, (0.2, 0.2), (20, 229), 500),
    (20, 10, (0.2, 0.2), (18, 173), 300),
)
DEALT = (("iid", "IID"), ("shards=2", "non-IID"))


def _row(line: Line, dealt: tuple[str, str]) -> Row:
    epochs, batch, rates, paper, rounds = line
    at, sgd = DEALT.index(dealt), epochs == 1 and batch is None
    own: dict[str, Any] = {"lr": rates[at]} | ({} if sgd else {"epochs": epochs, "batch": batch or "all"})
    own |= {"select": "uniform(n=10)"}
    method = "fedsgd" if sgd else "fedavg"
    settings = cell(method, "mnist", "mnist-cnn", rounds, own, partition=dealt[0], clients=100, target=TARGET)
    name = "FedSGD" if sgd else f"FedAvg E={epochs} B={batch or 'all'}"
    return Row(f"{name}, {dealt[1]}", settings, float(paper[at]))


def _speedup(words: str, paper: float) -> Claim:
    def judge(values: Values) -> Verdict:
        slow, fast = values.get(f"FedSGD, {words}"), mean(values, f"FedAvg E=5 B=10, {words}")
        if not slow or math.isnan(fast):
            return None, "one of the two rows was not run, or FedAvg did not reach the target"
        bound = "at least " if any(map(math.isnan, slow)) else ""
        ratio = statistics.fmean(FEDSGD_ROUNDS if math.isnan(value) else value for value in slow) / fast
        return ratio > 1, f"{bound}{ratio:.1f} times fewer rounds here, {paper:.1f} times in the paper"

    return Claim(f"FedAvg(E=5, B=10) needs fewer rounds than FedSGD on {words} data.", judge)


def _harder(values: Values) -> Verdict:
    names = [f"FedAvg E={epochs} B=10" for epochs in (1, 5, 20)]
    found = {name: mean(values, f"{name}, non-IID") / mean(values, f"{name}, IID") for name in names}
    ratios = {name: ratio for name, ratio in found.items() if not math.isnan(ratio)}
    if not ratios:
        return None, "no pair of rows was run"
    return all(ratio > 1 for ratio in ratios.values()), listed(ratios, "{} {:.1f} times")


FEDAVG_MNIST = Table(
    name="fedavg-mnist",
    title="FedAvg on MNIST: rounds to 99 %",
    reference=(
        "McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS 2017, "
        "https://arxiv.org/abs/1602.05629, Table 2 (CNN, C = 0.1, 100 clients)."
    ),
    data="MNIST, the original 60,000 + 10,000 images; non-IID: two shards of sorted digits a client",
    what="rounds to 99 % test accuracy",
    measure=at_end("rounds_to_target"),
    rows=rows(_row, GRID, DEALT),
    claims=(
        _speedup("IID", 626 / 20),
        _speedup("non-IID", 483 / 229),
        Claim("Two digits a client cost FedAvg many more rounds than IID data.", _harder),
    ),
    holds=lambda paper, ours: paper / 1.5 <= ours <= 1.5 * paper,
)
