"""Rounds to 99 % on MNIST: FedSGD and FedAvg(E, B), IID and with two digits a client.

Table 2 of McMahan et al., AISTATS 2017: the MNIST CNN, 100 clients, a tenth of them in every round.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

from .table import Claim, Row, Table, Values

TARGET = 0.99
FEDSGD_ROUNDS = 1500  # we wait for FedSGD

# (E, B), clients' learning rate IID / non-IID, rounds in the paper IID / non-IID, rounds we wait.
# The learning rates were chosen on a validation split (sweeps/fedavg-mnist-*.toml), as the paper tuned its own.
GRID: tuple[tuple[int, int | None, tuple[float, float], tuple[int, int], int], ...] = (
    (1, None, (0.4, 0.4), (626, 483), FEDSGD_ROUNDS),
    (5, None, (0.4, 0.2), (179, 1000), 1500),
    (1, 10, (0.2, 0.2), (34, 350), 800),
    (5, 10, (0.2, 0.2), (20, 229), 500),
    (20, 10, (0.2, 0.2), (18, 173), 300),
)


def _rows() -> tuple[Row, ...]:
    rows = []
    for epochs, batch, rates, paper, rounds in GRID:
        for lr, found, dealt, words in zip(rates, paper, ("iid", "shards=2"), ("IID", "non-IID"), strict=True):
            sgd = epochs == 1 and batch is None
            training = {"lr": lr} if sgd else {"lr": lr, "epochs": epochs, "batch": batch or "all"}
            name = "FedSGD" if sgd else f"FedAvg E={epochs} B={batch or 'all'}"
            settings: dict[str, Any] = {
                "method": "fedsgd" if sgd else "fedavg",
                "data": "mnist",
                "partition": dealt,
                "clients": 100,
                "model": "mnist-cnn",
                "rounds": rounds,
                "target": TARGET,
                "evaluate_every": 1,
                "fine_tune": 0,
                "set": {"select": "uniform(n=10)"} | training,
            }
            rows.append(Row(f"{name}, {words}", settings, float(found)))
    return tuple(rows)


def _measure(summary: dict[str, Any]) -> float:
    rounds = summary.get("rounds_to_target")
    return math.nan if rounds is None else float(rounds)


def _speedup(words: str, paper: float) -> Claim:
    def judge(values: Values) -> tuple[bool | None, str]:
        slow, fast = values.get(f"FedSGD, {words}"), values.get(f"FedAvg E=5 B=10, {words}")
        if not slow or not fast or any(map(math.isnan, fast)):
            return None, "one of the two rows was not run, or FedAvg did not reach the target"
        bound = "at least " if any(map(math.isnan, slow)) else ""
        rounds = [FEDSGD_ROUNDS if math.isnan(value) else value for value in slow]
        ratio = statistics.fmean(rounds) / statistics.fmean(fast)
        return ratio > 1, f"{bound}{ratio:.1f} times fewer rounds here, {paper:.1f} times in the paper"

    return Claim(f"FedAvg(E=5, B=10) needs fewer rounds than FedSGD on {words} data.", judge)


def _harder(values: Values) -> tuple[bool | None, str]:
    pairs = []
    for setting, rounds in values.items():
        other = values.get(setting.replace(", IID", ", non-IID"))
        if setting.endswith(", IID") and "B=10" in setting and other and not any(map(math.isnan, [*rounds, *other])):
            pairs.append((setting, statistics.fmean(other) / statistics.fmean(rounds)))
    if not pairs:
        return None, "no pair of rows was run"
    shown = ", ".join(f"{setting.removesuffix(', IID')} {ratio:.1f} times" for setting, ratio in pairs)
    return all(ratio > 1 for _, ratio in pairs), shown


FEDAVG_MNIST = Table(
    name="fedavg-mnist",
    title="FedAvg on MNIST: rounds to 99 %",
    reference=(
        "McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS 2017, "
        "https://arxiv.org/abs/1602.05629, Table 2 (CNN, C = 0.1, 100 clients)."
    ),
    data="MNIST, the original 60,000 + 10,000 images; non-IID: two shards of sorted digits a client",
    what="rounds to 99 % test accuracy",
    measure=_measure,
    rows=_rows(),
    claims=(
        _speedup("IID", 626 / 20),
        _speedup("non-IID", 483 / 229),
        Claim("Two digits a client cost FedAvg many more rounds than IID data.", _harder),
    ),
    seeds=5,
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
