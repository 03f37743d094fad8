"""Clustered FL on ten clients, half of which see every image upside down: what the split is worth to each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..report.clusters import draw_similarity, draw_splits
from ..report.curves import Curves
from ..report.figure import Drawn, Panel
from ..runs.folder import Folder
from ..runs.start import open as open_run
from .judge import claim_of_row
from .rows import at_end, cell, clients_of
from .table import Measure, Row, Runs, Table, Verdict, figure

CLIENTS, ROUNDS, T_MIN = 10, 80, 20
TRAINING = {"lr": 0.1, "momentum": 0.9, "decay": 0.99, "batch": 128}
DEALT: dict[str, Any] = {"partition": "dirichlet=1.0+sample=10000+rotations=2", "clients": CLIENTS}
FEDAVG = cell("fedavg", "unipen62", "lg-lenet", ROUNDS, TRAINING | {"equal": True}, **DEALT)
CFL = cell("cfl", "unipen62", "lg-lenet", ROUNDS, TRAINING | {"t_min": T_MIN}, **DEALT)
GAIN, LEAST = "gain of a client, on average", "gain of the client that gains least"
FOUND = "agreement with the rotations"


def accuracies(folder: Path) -> dict[str, float]:
    """Every client's accuracy at the end of a run."""
    return {row["client"]: float(row["accuracy_in_use"]) for row in clients_of(folder) if row["accuracy_in_use"]}


def _gains(summary: dict[str, Any]) -> list[float]:
    """Accuracy of every client less that without splits, in points; the other run lies beside this one."""
    folder = Path(summary["run_dir"])
    for path in sorted(folder.parent.glob("fedavg-*/summary.json")):
        other = Folder(path.parent).read_summary()
        if other.get("seed") == summary["seed"] and other.get("rounds") == summary["rounds"] and "metrics" in other:
            alone, mine = accuracies(path.parent), accuracies(folder)
            return [100 * (mine[name] - alone[name]) for name in mine if name in alone]
    return []


def _of_gains(pick: Callable[[list[float]], float]) -> Measure:
    return lambda summary: pick(_gains(summary) or [math.nan])


def _every(least: list[float]) -> Verdict:
    shown = f"gains {statistics.fmean(least):+.1f} points, {min(least):+.1f} in the worst seed"
    return min(least) > 0, f"the client that gains least {shown}"


def _ten(gains: list[float]) -> Verdict:
    mean = statistics.fmean(gains)
    return 5 <= mean <= 20, f"{mean:+.1f} points on average; 5 to 20 counts as about ten"


def _exact(found: list[float]) -> Verdict:
    return min(found) > 0.99, f"adjusted Rand index {', '.join(f'{value:.2f}' for value in found)}"


def _clients(runs: Runs) -> Drawn:
    """Every client at the end, without splits and with them."""

    def draw(axis: Any) -> None:
        for a, b in zip(map(accuracies, runs["FedAvg"]), map(accuracies, runs["Clustered"]), strict=False):
            for name in a:
                axis.plot([0, 1], [100 * a[name], 100 * b[name]], "-o", ms=3, lw=0.8, color="#777777", alpha=0.6)
        axis.set_xticks([0, 1], ["FedAvg", "Clustered"])

    dress = {"xlim": (-0.2, 1.2), "title": "every client at the end, %"}
    return Drawn(draw, bool(runs["FedAvg"] and runs["Clustered"]), dress)


def _rounds(runs: Runs) -> list[list[Panel]]:
    groups = {name: runs[name] for name in ("FedAvg", "Clustered")}
    dress = {"title": "mean accuracy of a client", "ylabel": ""}
    return [[Curves(groups, "macro_accuracy", dress=dress), _clients(runs)]]


def _splits(path: Path, runs: Runs) -> bool:
    return draw_splits(Folder(runs.first("Clustered")).read_tensors("splits.safetensors"), path)


def _similarity(path: Path, runs: Runs) -> bool:
    return draw_similarity(open_run(runs.first("Clustered"), device="auto"), path)


CFL_TABLE = Table(
    name="cfl",
    title="Clustered FL: what a split is worth to every client",
    reference=(
        "Sattler et al., Clustered federated learning, 2019, https://arxiv.org/abs/1910.01991, and its authors' "
        "notebook: EMNIST, 10 clients, 5 of them with images turned by 180 degrees."
    ),
    data=(
        "stand-in for EMNIST: unipen62 pooled, 10,000 training and 10,000 test images drawn by the seed, 62 classes, "
        "Dirichlet(1.0) over 10 clients, images of every second client turned by 180 degrees"
    ),
    what="accuracy of a client in %, gains in points",
    measure=at_end("metrics", "macro_accuracy", scale=100),
    rows=(
        Row("FedAvg", FEDAVG, what="mean accuracy of a client in %"),
        Row("Clustered", CFL, what="mean accuracy of a client in %"),
        Row(GAIN, CFL, 10.0, _of_gains(statistics.fmean), "points above FedAvg, mean over clients"),
        Row(LEAST, CFL, None, _of_gains(min), "points above FedAvg, smallest over clients"),
        Row(FOUND, CFL, None, at_end("metrics", "ari"), "adjusted Rand index"),
    ),
    claims=(
        claim_of_row("Every client gains by the split.", LEAST, _every),
        claim_of_row("The gain is about ten points.", GAIN, _ten),
        claim_of_row("The two groups are found exactly.", FOUND, _exact),
    ),
    figures={
        "cfl-rounds.png": figure(_rounds),
        "cfl-splits.png": _splits,
        "cfl-similarity.png": _similarity,
    },
)
