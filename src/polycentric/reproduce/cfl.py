"""Clustered FL on ten clients, half of which see every image upside down: what the split is worth to each.

After the notebook of Sattler et al.: 10,000 training and 10,000 test images, Dirichlet(1.0), full participation.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .table import Claim, Measure, Row, Table, Values, curves

CLIENTS, ROUNDS, T_MIN = 10, 80, 20
TRAINING = {"lr": 0.1, "momentum": 0.9, "decay": 0.99, "batch": 128}
GAIN, LEAST, FOUND = (
    "gain of a client, on average",
    "gain of the client that gains least",
    "agreement with the rotations",
)


def _cell(method: str, more: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "method": method,
        "data": "unipen62",
        "partition": "dirichlet=1.0+sample=10000+rotations=2",
        "clients": CLIENTS,
        "model": "lg-lenet",
        "rounds": ROUNDS,
        "evaluate_every": 1,
        "fine_tune": 0,
        "set": TRAINING | dict(more),
    }


FEDAVG, CFL = _cell("fedavg", {"equal": True}), _cell("cfl", {"t_min": T_MIN})


def accuracies(folder: Path) -> dict[str, float]:
    """Every client's accuracy at the end of a run."""
    with (folder / "clients.csv").open(newline="", encoding="utf-8") as file:
        return {row["client"]: float(row["accuracy_in_use"]) for row in csv.DictReader(file) if row["accuracy_in_use"]}


def _gains(summary: dict[str, Any]) -> list[float]:
    """Accuracy of every client less that without splits, in points; the other run lies beside this one."""
    folder = Path(summary["run_dir"])
    for path in sorted(folder.parent.glob("fedavg-*/summary.json")):
        other = json.loads(path.read_text(encoding="utf-8"))
        if other.get("seed") == summary["seed"] and other.get("rounds") == summary["rounds"] and "metrics" in other:
            alone, mine = accuracies(path.parent), accuracies(folder)
            return [100 * (mine[name] - alone[name]) for name in mine if name in alone]
    return []


def _macro(summary: dict[str, Any]) -> float:
    return 100 * float(summary["metrics"]["macro_accuracy"])


def _of_gains(pick: Any) -> Measure:
    def measure(summary: dict[str, Any]) -> float:
        gains = _gains(summary)
        return float(pick(gains)) if gains else math.nan

    return measure


def _finite(values: Values, setting: str) -> list[float]:
    return [value for value in values.get(setting, []) if not math.isnan(value)]


def _every(values: Values) -> tuple[bool | None, str]:
    least = _finite(values, LEAST)
    if not least:
        return None, "not run, or the run without splits is missing"
    return (
        min(least) > 0,
        f"the client that gains least gains {statistics.fmean(least):+.1f} points, {min(least):+.1f} in the worst seed",
    )


def _ten(values: Values) -> tuple[bool | None, str]:
    gains = _finite(values, GAIN)
    if not gains:
        return None, "not run, or the run without splits is missing"
    mean = statistics.fmean(gains)
    return 5 <= mean <= 20, f"{mean:+.1f} points on average; 5 to 20 counts as about ten"


def _exact(values: Values) -> tuple[bool | None, str]:
    found = _finite(values, FOUND)
    if not found:
        return None, "not run"
    return min(found) > 0.99, f"adjusted Rand index {', '.join(f'{value:.2f}' for value in found)}"


def _draw(out: Path, done: Mapping[str, Sequence[Path]]) -> list[tuple[str, str]]:
    from ..errors import UsageError
    from ..report.clusters import draw_similarity, draw_splits
    from ..report.figure import band, panels
    from ..runs.grid import ended
    from ..runs.record import Folder

    figures = []
    runs = {"FedAvg": done.get("FedAvg", ()), "Clustered": done.get("Clustered", ())}
    if all(runs.values()):
        with panels(out / "cfl-rounds.png", 1, 2, size=(4.4, 3.2)) as axes:
            left, right = axes[0]
            for number, (name, folders) in enumerate(runs.items()):
                rounds, found = curves(folders, "macro_accuracy")
                band(left, rounds, [[100 * accuracy for accuracy in one] for one in found], number, name)
            left.set_xlabel("round")
            left.set_title("mean accuracy of a client, %")
            left.legend(loc="lower right")
            for a, b in zip(*(map(accuracies, folders) for folders in runs.values()), strict=False):
                for name in a:
                    right.plot([0, 1], [100 * a[name], 100 * b[name]], "-o", ms=3, lw=0.8, color="#777777", alpha=0.6)
            right.set_xticks([0, 1], list(runs))
            right.set_xlim(-0.2, 1.2)
            right.set_title("every client at the end, %")
        figures.append(("cfl-rounds.png", "Accuracy over the rounds, and of every client at the end, all seeds."))
    name, caption = "cfl-splits.png", "Seed 0: cosines of updates as they were when a cluster split, and their tree."
    kept = Folder(runs["Clustered"][0]).read_tensors("splits.safetensors") if runs["Clustered"] else {}
    if draw_splits(kept, out / name) or (out / name).is_file():  # an older run has not kept them
        figures.append((name, caption))
    name, caption = "cfl-similarity.png", "Seed 0 at the end: cosines of updates from one common start, and their tree."
    try:
        if runs["Clustered"] and draw_similarity(ended(Folder.open(runs["Clustered"][0]), "auto"), out / name):
            figures.append((name, caption))
    except UsageError:  # its checkpoint is not here: the figure stays as it was
        if (out / name).is_file():
            figures.append((name, caption))
    return figures


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
    measure=_macro,
    rows=(
        Row("FedAvg", FEDAVG, what="mean accuracy of a client in %"),
        Row("Clustered", CFL, what="mean accuracy of a client in %"),
        Row(
            GAIN, CFL, 10.0, _of_gains(lambda gains: statistics.fmean(gains)), "points above FedAvg, mean over clients"
        ),
        Row(LEAST, CFL, None, _of_gains(min), "points above FedAvg, smallest over clients"),
        Row(FOUND, CFL, None, lambda s: float(s["metrics"]["ari"]), "adjusted Rand index"),
    ),
    claims=(
        Claim("Every client gains by the split.", _every),
        Claim("The gain is about ten points.", _ten),
        Claim("The two groups are found exactly.", _exact),
    ),
    draw=_draw,
    seeds=5,
    notes=(
        "The gain of a client is its accuracy at the end less what it has at the end of FedAvg (which counts clients "
        "equally, as Clustered does) with the same seed; until the first split the two are the same run.",
        f"As in the notebook: {ROUNDS} rounds, one epoch, batches of 128, lr 0.1 times 0.99 a round, momentum 0.9, no "
        f"split before round {T_MIN}. The norms that it splits by (0.4 and 1.6) belong to its model; here they are "
        "shares of the largest update so far, the defaults of `cfl`.",
        "The net is LG-FedAvg's for CIFAR-10: the notebook's two convolutions (6 and 16 filters of 5 x 5), with two "
        "dense layers before the last.",
        "Agreement 1 is the two groups and nothing else; a group that splits again lowers it.",
    ),
)
