"""Rounds to 99 % on MNIST: FedSGD and FedAvg(E, B), IID and with two digits a client.

Table 2 of McMahan et al., AISTATS 2017: the MNIST CNN, 100 clients, a tenth of them in every round.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

from .judge import listed, mean, reached
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
    own = {"lr": rates[at]} if sgd else {"lr": rates[at], "epochs": epochs, "batch": batch or "all"}
    more: dict[str, Any] = {"partition": dealt[0], "clients": 100, "target": TARGET}
    own |= {"select": "uniform(n=10)"}
    settings = cell("fedsgd" if sgd else "fedavg", "mnist", "mnist-cnn", rounds, own, **more)
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
    ratios = {}
    for name in ("FedAvg E=1 B=10", "FedAvg E=5 B=10", "FedAvg E=20 B=10"):
        if reached(values, f"{name}, IID") and reached(values, f"{name}, non-IID"):
            ratios[name] = mean(values, f"{name}, non-IID") / mean(values, f"{name}, IID")
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
    notes=(
        "A row holds when our mean is within a factor 1.5 of the paper's single number, either way; the paper gives no "
        "spread. Far fewer rounds than the paper's is not the paper's number either.",
        "FedSGD has no verdict because it has no mean: some seeds were not at 99 % after 1,500 rounds, where the paper "
        "was after 626 and 483. Its numbers are not reproduced.",
        "We count the first round whose accuracy is 99 % or more; the paper interpolates between evaluations.",
        "The paper chose the best learning rate for every row on a fine grid, by the curve it reports. Ours come from "
        "the sweeps in `sweeps/`: four rates, one seed (0, which is also one of the reported seeds), scored on a tenth "
        "of the training examples held out. 0.2 for B = 10, 0.4 for FedSGD, 0.4 and 0.2 for full batches on IID and "
        "non-IID data. All but the last are the largest of their grid, so larger ones may be better still.",
        "Rates for B = 10 were searched with E = 5 only and used for E = 1 and E = 20 as they are.",
        "On non-IID data FedAvg needs fewer than half of the paper's rounds. We did not look for the reason; our "
        "learning rate may be larger than theirs, which the paper does not print.",
        "Measured on one H200 with convolutions in TF32, several runs beside each other.",
    ),
)
