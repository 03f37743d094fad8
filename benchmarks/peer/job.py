"""What a way of doing a whole job reads, and what it says at its end (`benchmarks/end_to_end.py`).

The folder in the first argument holds

    job.json     the path of the data, shape, widths and classes of the model, rounds, cohort, lr, batch, ...
    job.npz      train, test: indices of examples, one client after another; offset, test_offset; start/NAME

A way reads the examples itself, from the file that ours reads. It prints one line of JSON: the accuracy at the end and
the seconds of its phases, counted from the start of its process. NumPy is all that is needed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

BEGAN = float(os.environ.get("END_TO_END_BEGAN", time.time()))  # when the process was started


class Job:
    """The same examples, clients and first model for everybody."""

    def __init__(self, folder: str) -> None:
        self.told: dict[str, Any] = json.loads((Path(folder) / "job.json").read_text())
        with np.load(Path(folder) / "job.npz") as held:
            arrays = {name: held[name] for name in held.files}
        self.start = {name.removeprefix("start/"): v for name, v in arrays.items() if name.startswith("start/")}
        with np.load(self.told["data"]) as held:
            x, y = held["x"], held["y"]
        train, test = arrays["train"], arrays["test"]
        self.x, self.y = scaled(x[train]), y[train].astype(np.int64)
        self.test_x, self.test_y = scaled(x[test]), y[test].astype(np.int64)
        self.offset, self.test_offset = arrays["offset"], arrays["test_offset"]
        self.n_clients = len(self.offset) - 1
        self.rounds, self.cohort = int(self.told["rounds"]), int(self.told["cohort"])
        self.every, self.cores = int(self.told["evaluate_every"]), int(self.told["cores"])
        self.lr, self.batch, self.seed = float(self.told["lr"]), int(self.told["batch"]), int(self.told["seed"])

    def of(self, client: int) -> slice:
        """Where a client's training examples lie."""
        return slice(int(self.offset[client]), int(self.offset[client + 1]))

    def test_of(self, client: int) -> slice:
        """Where a client's test examples lie."""
        return slice(int(self.test_offset[client]), int(self.test_offset[client + 1]))

    def module(self) -> Any:
        """The model as a module of torch, with the first parameters: dense layers with ReLU between them."""
        import torch
        from torch import nn

        sizes = [self.x.shape[1], *self.told["hidden"], self.told["classes"]]
        layers: list[nn.Module] = []
        for n_inputs, n_outputs in pairwise(sizes):
            layers += [nn.Linear(n_inputs, n_outputs), nn.ReLU()]
        made = nn.Sequential(*layers[:-1])
        for parameter, value in zip(made.parameters(), self.start.values(), strict=True):
            parameter.data.copy_(torch.as_tensor(value))
        return made


def scaled(images: Any) -> Any:
    """Pixels in [0, 1], a row for every image."""
    return images.reshape(len(images), -1).astype(np.float32) / 255


class Phases:
    """Seconds from one mark to the next."""

    def __init__(self) -> None:
        self.last, self.seconds = BEGAN, dict[str, float]()

    def mark(self, name: str) -> None:
        """What came since the last mark was this."""
        now = time.time()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.last
        self.last = now


def say(accuracy: float, version: str, phases: Phases) -> None:
    """The last line of a way."""
    told = {"accuracy": accuracy, "version": version, "phases": phases.seconds}
    print(json.dumps(told), flush=True)


def folder() -> str:
    """Of the job."""
    return os.environ.get("JOB_FOLDER") or sys.argv[1]
