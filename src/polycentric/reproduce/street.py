"""Street cameras: two detectors trained by 5 and by 20 devices, against training alone and on pooled images."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..report import curves
from ..report.boxes import draw_recall
from ..runs.evaluate import in_chunks
from ..runs.serving import holder
from ..runs.start import open as open_run
from .judge import claim_by_seed, less, listed, means_of
from .rows import at_end, cell, rows
from .table import Claim, Draw, Measure, Row, Runs, Table, Verdict

DATA = "street(144x176)"
DETECTORS = {"YOLO": "yolo", "Faster R-CNN": "faster-rcnn"}
DEVICES = (5, 20)
ROUNDS, EPOCHS, LONGER = 10, 5, 4  # the paper: up to 1,000 rounds of 5
TRAINING: dict[str, dict[str, Any]] = {  # chosen on a fifth of the training images, pooled, the last of every camera
    "YOLO": {"lr": 0.1, "momentum": 0.9, "batch": 4, "decay": 0.85},
    "Faster R-CNN": {"lr": 0.03, "momentum": 0.9, "batch": 4, "decay": 0.85},
}
ALONE, LONG, POOLED, FEDAVG = "alone", "alone, 4 times as long", "pooled images", "FedAvg"
METHODS: dict[str, tuple[str, Mapping[str, Any]]] = {
    ALONE: ("nofed", {}),
    LONG: ("nofed", {}),
    FEDAVG: ("fedavg", {}),
    "FedProx": ("fedprox", {"mu": 0.01}),
    "FeSEM(2)": ("fesem", {"k": 2}),
    "FedMes": ("fedmes", {"cells": "ring(5, 2, 2)"}),
    "heads at home": ("fedavg", {"cut": "private('head*')"}),
    POOLED: ("fedavg", {}),
}
COMMON, OWN, BYTES = "all test images, one model", "own test images", "MB sent"


def _name(detector: str, method: str, devices: int, what: str) -> str:
    return f"{detector}: {method}: {devices} devices: {what}"


def _run(detector: str, method: str, devices: int) -> dict[str, Any]:
    name, own = METHODS[method]
    dealt = {"partition": "iid", "clients": 1} if method == POOLED else {"partition": f"natural=device{devices}"}
    training = {**TRAINING[detector], "epochs": EPOCHS * (LONGER if method == LONG else 1), **own}
    return cell(name, DATA, DETECTORS[detector], ROUNDS, training, evaluate_every=2, **dealt)


def common(summary: dict[str, Any]) -> float:
    """mAP in % on everybody's test images by one client's model, the mean over clients."""
    run = open_run(summary["run_dir"])
    task, test = run.clients.task, run.federation.test
    found, last = [], (torch.empty(0), float("nan"))
    for k in range(run.federation.n_clients):
        row = holder(run, client=k).rows
        whole = torch.cat([row[name].flatten() for name in task.names])
        if not torch.equal(whole, last[0]):  # clients of one center share a model
            last = whole, _map50(run, row, task, test)
        found.append(last[1])
    return 100 * statistics.fmean(found)


@torch.no_grad()
def _map50(run: Any, row: Any, task: Any, test: Any) -> float:
    noted = torch.cat([task.goal.noted(task.predict(row, task.inputs(x))).cpu() for x, _ in in_chunks(test)])
    nothing = np.zeros(len(test))
    one = task.goal.score(
        noted.numpy(), test.y.cpu().numpy(), nothing, nothing.astype(np.int64), 1, run.federation.classes
    )
    return float(one.pooled["pooled_map50"])


def _megabytes(summary: dict[str, Any]) -> float:
    return float(summary["bytes_up"] + summary["bytes_down"]) / 1e6


MEASURES: dict[str, Measure] = {
    COMMON: common,
    OWN: at_end("metrics", "micro_map50", scale=100),
    BYTES: _megabytes,
}


def _row(detector: str, method: str, devices: int, what: str) -> Row | None:
    if method == "FedMes" and devices == 5:
        return None  # five devices make no cells
    where = {"section": f"{detector}, {devices} devices", "line": method, "column": what}
    told = what if what == BYTES else f"mAP in %, {what}"
    run = _run(detector, method, devices)
    return Row(_name(detector, method, devices, what), run, None, MEASURES[what], told, **where)


def _claims(detector: str) -> tuple[Claim, ...]:
    def better(devices: int, what: str, alone: str) -> Claim:
        of = {name: _name(detector, name, devices, what) for name in (alone, FEDAVG)}

        def judged(found: dict[str, list[float]]) -> Verdict:
            return less(found[alone], found[FEDAVG]), listed(means_of(found), "{} {:.1f} %")

        text = f"{detector}, {devices} devices: FedAvg beats training {alone}, on {what}."
        return claim_by_seed(text, of, judged)

    def pooled(devices: int) -> Claim:
        of = {name: _name(detector, name, devices, COMMON) for name in (FEDAVG, POOLED)}

        def judged(found: dict[str, list[float]]) -> Verdict:
            return less(found[FEDAVG], found[POOLED]), listed(means_of(found), "{} {:.1f} %")

        return claim_by_seed(f"{detector}, {devices} devices: training on pooled images beats FedAvg.", of, judged)

    each = [better(devices, what, way) for devices in DEVICES for what in (COMMON, OWN) for way in (ALONE, LONG)]
    return (*each, *(pooled(devices) for devices in DEVICES))


def _curves(detector: str, devices: int) -> Draw:
    """mAP of all test images by the clients' own models, over rounds and bytes."""

    def draw(path: Path, runs: Runs) -> object:
        every = {method: tuple(runs[_name(detector, method, devices, OWN)]) for method in METHODS}
        there = {method: folders for method, folders in every.items() if folders}
        if there:
            curves.figure(there, path, "pooled_map50", ("rounds", "bytes"))
        return bool(there)

    return draw


STREET = Table(
    name="street",
    title="Street cameras: federated object detection",
    reference=(
        "Luo et al., Real-world image datasets for federated learning, 2019, https://arxiv.org/abs/1910.11089 "
        "(YOLOv3 and Faster R-CNN, all devices in every round, 5 local epochs, weights by images)."
    ),
    data=(
        "the paper's 956 images and its lists of training and test images, stored at 352 x 288 and learned at 176 x "
        "144 (the paper: 416 and 600 pixels). Test images have no device: theirs is that of the nearest background. "
        f"Detectors are small and start from nothing, not from ImageNet; {ROUNDS} rounds of {EPOCHS} local epochs (the "
        "paper: up to 1,000)"
    ),
    what="average precision (mAP) in % at IoU 0.5",
    measure=at_end("metrics", "micro_map50", scale=100),
    rows=rows(_row, DETECTORS, METHODS, DEVICES, MEASURES),
    claims=tuple(one for detector in DETECTORS for one in _claims(detector)),
    seeds=3,
    figures={
        **{f"street-{word}-{n}.png": _curves(detector, n) for detector, word in DETECTORS.items() for n in DEVICES},
        "street-recall.png": lambda path, runs: draw_recall(open_run(runs.first(_name("YOLO", FEDAVG, 20, OWN))), path),
    },
)
