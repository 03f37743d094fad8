"""The folder of a run: everything needed to trust it, read it, and go on with it.

    config.json        what was asked for, resolved          environment.json  versions, device, data fingerprint
    metrics.jsonl      one line for every evaluation         summary.json      the numbers at the end
    clients.csv        every client's score at the end       log.txt           what happened, with the time
    places.csv         a round, and every client's center then, where clients have one
    splits.safetensors how alike clients were at every split of a cluster, where there were splits
    checkpoints/       round-000020.safetensors and .json    best.safetensors  the best model on the validation split
    state/             what clients keep, where it is kept on disk; of a checkpoint, round-000020.0.bin and so on

A file appears whole or not at all: it is written under another name, synced to the disk and renamed. A
checkpoint counts only if its digest is right; a damaged one is passed over for the one before. Nothing in
`metrics.jsonl` depends on time or machine, so a resumed run ends with the very bytes of an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..errors import UsageError
from ..method import State
from ..simulate.disk_state import OnDisk, link, opened
from ..stacks.stack import aligned

KEEP = 3  # checkpoints kept


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

    def listed(self) -> dict[str, Any]:
        """For a JSON file."""
        return asdict(self) | {"took": None if self.took is None else self.took.tolist()}

    def at(self, times: Tensor) -> Tally:
        """The same at a later time."""
        if times.stride() == (0,):
            return replace(self, seconds=float(times[0]), times=())
        last = float(times.max())
        return replace(self, seconds=last, times=() if bool((times == last).all()) else tuple(times.tolist()))


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A state that can be gone on from."""

    state: State
    tally: Tally
    history: tuple[dict[str, Any], ...] = field(default=(), repr=False)

    def told(self) -> str:
        """All but the state, as a text."""
        return json.dumps({"tally": self.tally.listed(), "history": list(self.history)})

    @staticmethod
    def heard(told: str, state: State) -> Checkpoint:
        """From a text, with its state."""
        found = json.loads(told)
        return Checkpoint(state, _tally(found["tally"]), tuple(found["history"]))


class Folder:
    """A run's folder. `Folder.new` never takes over another run's; `Folder.open` wants one that is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def new(path: Path) -> Folder:
        """A folder of our own; one that holds anything is refused."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(
                f"{path} is there already and is not overwritten: choose another --out, or continue it with "
                f"`polycentric resume {path}`"
            )
        with _spoken(path):
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        return Folder(path)

    @staticmethod
    def fresh(parent: Path, name: str) -> Folder:
        """A folder `name`, or `name-2`, `name-3`, ...: whichever is free."""
        with _spoken(parent):
            parent.mkdir(parents=True, exist_ok=True)
            for attempt in range(1, 10_000):
                path = parent / (name if attempt == 1 else f"{name}-{attempt}")
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
                    return Folder.new(path)
        raise UsageError(f"no free name for {name} in {parent}")

    @staticmethod
    def open(path: Path) -> Folder:
        """The folder of a run that was begun."""
        if not (path / "config.json").is_file():
            raise UsageError(f"{path} is not the folder of a run (it has no config.json); `ls runs` shows yours")
        for left in [*path.glob(".*.tmp"), *path.glob("checkpoints/.*.tmp")]:  # by a run that was killed
            left.unlink(missing_ok=True)
        return Folder(path)

    # -- small files ---------------------------------------------------------------------------------------

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """A JSON file, whole or not at all."""
        self.write_text(name, json.dumps(value, indent=2, default=str) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """A text file, whole or not at all."""

        def write(temporary: Path) -> None:
            temporary.write_text(text, encoding="utf-8")

        _replace(self.path / name, write)

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """A safetensors file, whole or not at all."""
        _replace(
            self.path / name,
            lambda temporary: save_file({k: t.cpu().contiguous() for k, t in tensors.items()}, temporary),
        )

    def read_tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of a file of this run; empty where it is not there."""
        path = self.path / name
        try:
            return load_file(path) if path.is_file() else {}
        except (OSError, SafetensorError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from error

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON file of this run."""
        try:
            value = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{self.path / name} cannot be read: {error}") from error
        if not isinstance(value, dict):
            raise UsageError(f"{self.path / name} does not hold a JSON object")
        return value

    def log(self, line: str) -> None:
        """A line for people, with the time."""
        with contextlib.suppress(OSError), (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl."""
        with _spoken(self.path), (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def append_places(self, round: int, places: list[int]) -> None:
        """One line of places.csv: the round, and every client's center."""
        with _spoken(self.path), (self.path / "places.csv").open("a", encoding="utf-8") as file:
            file.write(",".join(map(str, [round, *places])) + "\n")

    def read_places(self) -> dict[int, list[int]]:
        """Every client's center, by the round; a line cut short by an interruption is left out."""
        path = self.path / "places.csv"
        found: dict[int, list[int]] = {}
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
                if line.endswith("\n") and re.fullmatch(r"\d+(,\d+)*\n", line):
                    round, *places = map(int, line.split(","))
                    found[round] = places
        return found

    def rewind_places(self, round: int) -> dict[int, list[int]]:
        """Make places.csv what it was after a round."""
        kept = {r: places for r, places in self.read_places().items() if r <= round}
        if kept or (self.path / "places.csv").is_file():
            lines = (",".join(map(str, [r, *places])) + "\n" for r, places in kept.items())
            self.write_text("places.csv", "".join(lines))
        return kept

    # -- checkpoints ---------------------------------------------------------------------------------------

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and forget the oldest; the one before stays good until this one is."""
        stem = f"round-{checkpoint.state.round:06d}"
        tensors = self.path / "checkpoints" / f"{stem}.safetensors"
        with _spoken(tensors):
            tensors.parent.mkdir(exist_ok=True)
        manifest = {
            "round": checkpoint.state.round,
            **_save_state(tensors, checkpoint.state),
            "tally": checkpoint.tally.listed(),
            "history": list(checkpoint.history),
        }
        self.write_json(f"checkpoints/{stem}.json", manifest | {"check": _check_of(manifest)})
        for old in self._manifests()[KEEP:]:
            for file in (old, old.with_suffix(".safetensors"), *old.parent.glob(f"{old.stem}.*.bin")):
                file.unlink(missing_ok=True)

    def load(self, device: torch.device | str = "cpu") -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is whole, and what is wrong with those passed over."""
        problems: list[str] = []
        for manifest in self._manifests():
            try:
                found = json.loads(manifest.read_text(encoding="utf-8"))
                if found.pop("check") != _check_of(found):
                    raise ValueError("its manifest was changed")
                state = _load_state(manifest.with_suffix(".safetensors"), found, device)
                return Checkpoint(state, _tally(found["tally"]), tuple(found["history"])), problems
            except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
                problems.append(f"checkpoint {manifest.stem} is damaged ({error}); the one before it is used")
        return None, problems

    def rewind_metrics(self, history: tuple[dict[str, Any], ...]) -> None:
        """Make metrics.jsonl what it was at a checkpoint."""
        self.write_text("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in history))

    def save_best(self, state: State) -> None:
        """The best state so far on the validation split."""
        saved = _save_state(self.path / "best.safetensors", state)
        self.write_json("best.json", {"round": state.round, **saved})

    def load_best(self, device: torch.device | str = "cpu") -> State:
        """The best state on the validation split."""
        found = self.read_json("best.json")
        try:
            return _load_state(self.path / "best.safetensors", found, device)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise UsageError(f"the best model of {self.path} is damaged: {error}") from error

    def _manifests(self) -> list[Path]:
        """Newest first."""
        found = (self.path / "checkpoints").glob("round-*.json")
        return sorted((p for p in found if p.stem[6:].isdigit()), key=lambda p: int(p.stem[6:]), reverse=True)


def _save_state(path: Path, state: State) -> dict[str, Any]:
    """Write a state's tensors, and link those that are in files already; returns their digests."""
    parts = {"centers": state.centers, "kept": state.kept, "memory": state.memory}
    every = {f"{part}/{name}": t for part, stacks in parts.items() for name, t in stacks.items()}
    tensors = {key: t.detach().cpu().contiguous().clone() for key, t in every.items() if not isinstance(t, OnDisk)}
    disk: list[dict[str, Any]] = []
    for key, t in every.items():
        if isinstance(t, OnDisk):
            digest = _replace(path.with_suffix(f".{len(disk)}.bin"), partial(link, t))
            disk.append({"key": key, "dtype": str(t.dtype)[6:], "shape": list(t.shape), "sha256": digest})
    saved = _replace(path, lambda temporary: save_file(tensors, temporary))
    return {"sha256": saved, "disk": disk} if disk else {"sha256": saved}


def _load_state(path: Path, found: dict[str, Any], device: torch.device | str) -> State:
    if _digest(path) != found["sha256"]:
        raise ValueError("its digest is wrong")
    tensors = aligned(load_file(path))  # in the file they lie anywhere
    for place, one in enumerate(found.get("disk", [])):
        file = path.with_suffix(f".{place}.bin")
        if _digest(file) != one["sha256"]:
            raise ValueError(f"the digest of {file.name} is wrong")
        tensors[one["key"]] = opened(file, tuple(map(int, one["shape"])), one["dtype"])
    state = State({}, {}, {}, int(found["round"]))
    for key, tensor in tensors.items():
        part, _, name = key.partition("/")
        on_host = part == "memory" or isinstance(tensor, OnDisk)  # what the parts remember is read by the host
        state = replace(state, **{part: getattr(state, part) | {name: tensor if on_host else tensor.to(device)}})
    return state


def _tally(found: dict[str, Any]) -> Tally:
    took = torch.tensor(found["took"]) if found.get("took") else None
    return Tally(**found | {"times": tuple(found.get("times", ())), "took": took})


def _check_of(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _replace(path: Path, write: Callable[[Path], object]) -> str:
    """Write a file under another name, sync it, give it its name; returns its digest."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _spoken(path):
        try:
            write(temporary)
            digest = _digest(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        finally:
            temporary.unlink(missing_ok=True)
    return digest


@contextlib.contextmanager
def _spoken(path: Path):  # type: ignore[no-untyped-def]
    """A full or read-only disk, in one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"cannot write {path}: {reason}; what was written before is whole, so make room and go on with "
            "`polycentric resume`"
        ) from error
