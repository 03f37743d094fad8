"""What a run can be gone on from: its state, what adds up over it, and its history, in files with digests.

A state is one safetensors file (and a linked file for every stack that is on disk); a manifest beside it holds the
rest, the digests of those files, and the name of the run they belong to. Nothing is ever pickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..method import State
from ..simulate.disk_state import OnDisk, link, opened
from ..stacks.stack import aligned
from .files import digest_of, replace_file


@dataclass(frozen=True)
class Tally:
    """What adds up over a run, beside its state."""

    bytes_up: int = 0
    bytes_down: int = 0
    dropped: int = 0  # answers that were not finite
    best: float | None = None  # on the validation split
    best_round: int | None = None
    since_best: int = 0  # evaluations without a better one
    links: Mapping[str, int] = field(default_factory=dict)  # the same bytes, by kind of link
    seconds: float = 0.0  # simulated: when the last client was done
    times: tuple[float, ...] = ()  # when every client was; empty: all at the same time
    late: int = 0  # answers that missed the clock's deadline
    # In how many rounds an answer of every client came, (clients,); None: no round yet. There may be a million of them.
    took: Tensor | None = field(default=None, compare=False, repr=False)

    def clients_times(self, n_clients: int) -> Tensor:
        """When every client was done, (clients,); one number seen many times where all were done together."""
        if self.times:
            return torch.tensor(self.times, dtype=torch.float64)
        return torch.tensor(self.seconds, dtype=torch.float64).expand(n_clients)

    def at(self, times: Tensor) -> Tally:
        """The same at a later time."""
        if times.stride() == (0,):
            return replace(self, seconds=float(times[0]), times=())
        last = float(times.max())
        return replace(self, seconds=last, times=() if bool((times == last).all()) else tuple(times.tolist()))

    def judged(self, value: float, round: int) -> Tally:
        """The same after a validation score: a better one, or one more without."""
        if self.best is None or value > self.best:
            return replace(self, best=value, best_round=round, since_best=0)
        return replace(self, since_best=self.since_best + 1)

    def to_json(self) -> dict[str, Any]:
        """For a JSON file."""
        return asdict(self) | {"took": None if self.took is None else self.took.tolist()}

    @staticmethod
    def from_json(found: dict[str, Any]) -> Tally:
        """From a JSON file."""
        took = torch.tensor(found["took"]) if found.get("took") else None
        return Tally(**found | {"times": tuple(found.get("times", ())), "took": took})


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A state that can be gone on from."""

    state: State
    tally: Tally
    history: tuple[dict[str, Any], ...] = field(default=(), repr=False)

    def to_json(self) -> str:
        """All but the state."""
        return json.dumps({"tally": self.tally.to_json(), "history": list(self.history)})

    @staticmethod
    def from_json(text: str, state: State) -> Checkpoint:
        """From what `to_json` wrote, with its state."""
        found = json.loads(text)
        return Checkpoint(state, Tally.from_json(found["tally"]), tuple(found["history"]))


def save_checkpoint(path: Path, checkpoint: Checkpoint, run: str) -> dict[str, Any]:
    """Write the tensors to PATH; returns the manifest, which is to be written after them."""
    manifest = {
        "run": run,
        "round": checkpoint.state.round,
        **save_state(path, checkpoint.state),
        "tally": checkpoint.tally.to_json(),
        "history": list(checkpoint.history),
    }
    return manifest | {"check": _check_of(manifest)}


def load_checkpoint(manifest: Path, run: str, device: torch.device | str) -> Checkpoint:
    """A checkpoint by its manifest; a ValueError says what is wrong with it."""
    found = json.loads(manifest.read_text(encoding="utf-8"))
    if found.pop("check") != _check_of(found):
        raise ValueError("its manifest was changed")
    if run and found.get("run", run) != run:
        raise ValueError("it belongs to another run")
    state = load_state(manifest.with_suffix(".safetensors"), found, device)
    return Checkpoint(state, Tally.from_json(found["tally"]), tuple(found["history"]))


def save_state(path: Path, state: State) -> dict[str, Any]:
    """Write a state's tensors, and link those that are in files already; returns their digests."""
    parts = {"centers": state.centers, "kept": state.kept, "memory": state.memory}
    every = {f"{part}/{name}": t for part, stacks in parts.items() for name, t in stacks.items()}
    tensors = {key: t.detach().cpu().contiguous().clone() for key, t in every.items() if not isinstance(t, OnDisk)}
    disk: list[dict[str, Any]] = []
    for key, t in every.items():
        if isinstance(t, OnDisk):
            digest = replace_file(path.with_suffix(f".{len(disk)}.bin"), partial(link, t))
            disk.append({"key": key, "dtype": str(t.dtype)[6:], "shape": list(t.shape), "sha256": digest})
    saved = replace_file(path, lambda temporary: save_file(tensors, temporary))
    return {"sha256": saved, "disk": disk} if disk else {"sha256": saved}


def load_state(path: Path, found: dict[str, Any], device: torch.device | str) -> State:
    """A state by its manifest, its digests checked; a ValueError says what is wrong with it."""
    if digest_of(path) != found["sha256"]:
        raise ValueError("its digest is wrong")
    tensors = aligned(load_file(path))  # in the file they lie anywhere
    for place, one in enumerate(found.get("disk", [])):
        file = path.with_suffix(f".{place}.bin")
        if digest_of(file) != one["sha256"]:
            raise ValueError(f"the digest of {file.name} is wrong")
        tensors[one["key"]] = opened(file, tuple(map(int, one["shape"])), one["dtype"])
    state = State({}, {}, {}, int(found["round"]))
    for key, tensor in tensors.items():
        part, _, name = key.partition("/")
        on_host = part == "memory" or isinstance(tensor, OnDisk)  # what the parts remember is read by the host
        state = replace(state, **{part: getattr(state, part) | {name: tensor if on_host else tensor.to(device)}})
    return state


def _check_of(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
