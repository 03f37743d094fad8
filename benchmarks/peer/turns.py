"""What a peer needs to take part: the work, and the turns.

The program that measures (`benchmarks/peers.py`) starts a peer in an interpreter of the peer's own, with a folder:

    work.json    model, shape and classes, clients, batch, lr, device, round's number of steps
    work.npz     x and y as (clients, steps * batch, ...), already in the order of the batches; start/NAME

and then writes `go` for every round it wants. The peer answers each with one line of JSON, the seconds of that round
by the clock and of its own process by the processor;
after its first round it leaves its model in answer.npz. This file needs NumPy only, and torch for a module.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


class Work:
    """The same clients, batches and first model for everybody."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: dict[str, Any] = json.loads((folder / "work.json").read_text())
        with np.load(folder / "work.npz") as held:
            self.x, self.y = held["x"], held["y"]
            self.start = {name.removeprefix("start/"): held[name] for name in held.files if name.startswith("start/")}
        self.n_clients, self.batch, self.lr = len(self.x), int(self.told["batch"]), float(self.told["lr"])
        self.device: str = self.told["device"]

    def module(self) -> Any:
        """The model of the work as a module of torch, with the first parameters."""
        import torch

        from polycentric.models import build

        made = build(self.told["model"], tuple(self.told["shape"]), self.told["classes"])
        made.load_state_dict({name: torch.as_tensor(value) for name, value in self.start.items()})
        return made.to(self.device)


class Turns:
    """Waits for `go`, and says how long what came then has taken."""

    def __init__(self, work: Work) -> None:
        self.work, self.rounds = work, 0
        self.out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever a library prints goes with its errors, and not between the answers
        self.began = self.used = 0.0

    def wait(self) -> bool:
        """Until the next round is wanted; False: no more are."""
        if sys.stdin.readline().strip() != "go":
            return False
        self.began, self.used = time.perf_counter(), time.process_time()
        return True

    def ended(self, model: Callable[[], Mapping[str, Any]], version: str = "") -> None:
        """A round is over; `model` is asked for the first one only, after the clock was read."""
        now, used = time.perf_counter(), time.process_time()
        row: dict[str, Any] = {"seconds": now - self.began, "processor": used - self.used}
        if self.rounds == 0:
            row["version"] = version
            np.savez(self.work.folder / "answer.npz", **{k: np.asarray(v) for k, v in model().items()})
        self.rounds += 1
        print(json.dumps(row), file=self.out, flush=True)


def take_part(play: Callable[[Work, Turns], None]) -> None:
    """The whole program of a peer."""
    work = Work(Path(sys.argv[1]))
    play(work, Turns(work))
