"""A run's folder: what was asked for, what came out, and enough to go on. One writer and one reader for each file.

config.json        the settings, and what else must be handed over to go on (`given`)
environment.json   versions, device, data fingerprint: what a number depends on besides the settings
metrics.jsonl      one line for each evaluation; nothing in it depends on time or machine
places.csv         every client's center at each evaluation, where clients have one
clients.csv        every client's scores at the end
edges.csv          every edge's scores at the end, where there are edges
summary.json       the run in one object, written last: a run that has one is finished
checkpoints/       the newest states, each a safetensors file and a manifest with digests
best.*             the best state on the validation split
state/             what clients keep, where it is held on disk
log.txt            lines for people
lock.json          who writes here, while somebody does: `runs.lock`

Every file is written whole or not at all. A checkpoint counts only if its digests are right and it belongs to this run
(`identity`); a damaged one is passed over for the one before. A resumed run ends with the very bytes of an
uninterrupted one.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..errors import UsageError, require
from ..language.own_code import ask_consent, own_names, remember
from ..method import State
from .checkpoint import (
    Checkpoint,
    Columns,
    load_checkpoint,
    load_state,
    replace_file,
    save_checkpoint,
    save_state,
    writing,
)
from .lock import Lock
from .settings import Settings

P = ParamSpec("P")
T = TypeVar("T")
KEEP = 3  # checkpoints kept
DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError)


def file_name(words: str) -> str:
    """Words as a name that every file system takes.

    >>> file_name("mine:ditto(mu=0.1)-digits")
    'mine-ditto(mu=0.1)-digits'
    """
    return re.sub(r"[^\w.,()=+-]+", "-", words)


class Folder:
    """A run's folder. `Folder.new` never takes over another run's; `Folder.open` wants one that is there.

    Who only reads needs no lock. Who writes claims it: `Run.go` releases it, also after an error and after Ctrl-C.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: Lock | None = None
        self._metrics, self._but_last, self._lines = hashlib.sha256(), "", 0  # of metrics.jsonl as we wrote it
        self._kept = 0  # how many `alone` are around what is being done

    @staticmethod
    def new(path: Path) -> Folder:
        """A folder of our own; one that holds anything is refused."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(
                f"{path} exists already and is not overwritten: choose another --out, or continue the run with "
                f"`polycentric resume {path}`"
            )
        with writing(path):
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        return Folder(path)

    @staticmethod
    def fresh(parent: Path, name: str) -> Folder:
        """A folder `name`, or `name-2`, `name-3`, ...: whichever is free."""
        name = file_name(name)
        with writing(parent):
            parent.mkdir(parents=True, exist_ok=True)
            for attempt in range(1, 10_000):
                path = parent / (name if attempt == 1 else f"{name}-{attempt}")
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
                    return Folder.new(path)
        raise UsageError(f"there is no free name for {name} in {parent}: choose --out")

    @staticmethod
    def open(path: Path) -> Folder:
        """The folder of a run that was begun."""
        if not (path / "config.json").is_file():
            if inside := sorted(config.parent for config in path.glob("*/config.json")):
                raise UsageError(f"{path} is not the folder of a run, but has {len(inside)} in it: {_runs_of(inside)}")
            raise UsageError(f"{path} is not the folder of a run (it has no config.json); `ls runs` shows yours")
        return Folder(path)

    def claim(self) -> None:
        """Be the only one who writes here, until `release`; refused where somebody else does."""
        if self._lock is not None and self._lock.ours:
            return
        with writing(self.path):
            lock = Lock(self.path)
            ended = lock.take()
            self._lock = lock
            if ended is not None:
                self.log(f"taken over from {ended}, which has ended")
            for left in [*self.path.glob(".*.tmp"), *self.path.glob("checkpoints/.*.tmp")]:  # by a run that was killed
                left.unlink(missing_ok=True)

    def claim_new(self) -> None:
        """The same for a new run: refused where somebody else was faster."""
        self.claim()
        require(not self.begun, f"{self.path} is another run's by now: choose another --out")

    def release(self) -> None:
        """Let others write here, unless there is an `alone` around this."""
        if self._lock is not None and not self._kept:
            self._lock.release()
            self._lock = None

    @contextlib.contextmanager
    def alone(self) -> Iterator[Folder]:
        """Be the only one who writes here within this block."""
        self.claim()
        self._kept += 1
        try:
            yield self
        finally:
            self._kept -= 1
            self.release()

    def keep(self) -> None:
        """Tell others that somebody still writes here, and end where it is no longer this process."""
        if self._lock is not None:
            self._lock.keep()

    def write_config(self, settings: Settings, given: Sequence[str]) -> None:
        """The settings, and the names of what was given as objects of Python that no words say."""
        values = settings.model_dump()
        remember(self.path, own_names(values))  # a run that is begun here may go on here
        self.write_json("config.json", values | ({"given": list(given)} if given else {}))

    def read_config(self, trust: bool = False) -> tuple[Settings, tuple[str, ...]]:
        """The settings, checked, and what must be handed over beside them; code that they name needs consent."""
        values, where = self.read_json("config.json"), str(self.path / "config.json")
        ask_consent(values, self.path, trust)
        given = values.pop("given", [])
        if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
            raise UsageError(f"given in {where} must be a list of names, got {given!r}")
        return Settings.of(values, where), tuple(given)

    @property
    def begun(self) -> bool:
        """Whether a run has written what it needs to be gone on with."""
        return (self.path / "environment.json").is_file()

    @property
    def finished(self) -> bool:
        """Whether a run ended here."""
        return (self.path / "summary.json").is_file()

    def unfinish(self) -> None:
        """A run that ended here goes on: until it ends again, nobody takes it for finished."""
        (self.path / "summary.json").unlink(missing_ok=True)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """A JSON file, whole or not at all."""
        self.write_text(name, json.dumps(value, indent=2, default=str) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """A text file, whole or not at all."""
        replace_file(self.path / name, lambda temporary: temporary.write_text(text, encoding="utf-8"))

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """A safetensors file, whole or not at all."""
        found = {k: t.cpu().contiguous() for k, t in tensors.items()}
        replace_file(self.path / name, lambda temporary: save_file(found, temporary))

    def read_tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of a file of this run; empty where it is not there."""
        path = self.path / name
        with reading(path):
            return load_file(path) if path.is_file() else {}

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON file of this run."""
        with reading(self.path / name):
            value = json.loads((self.path / name).read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise UsageError(f"{self.path / name} does not hold a JSON object")
        return value

    def read_clients(self) -> list[dict[str, str]]:
        """The lines of clients.csv."""
        path = self.path / "clients.csv"
        with reading(path), path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def log(self, line: str) -> None:
        """A line for people, with the time."""
        with contextlib.suppress(OSError), (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl."""
        with writing(self.path), (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(line := json.dumps(row) + "\n")
        self._count(line)

    def _count(self, line: str) -> None:
        self._but_last, self._lines = self._metrics.hexdigest(), self._lines + 1
        self._metrics.update(line.encode())

    def rewind_metrics(self, history: Sequence[dict[str, Any]]) -> None:
        """Make metrics.jsonl what it was at a checkpoint."""
        lines = [json.dumps(row) + "\n" for row in history]
        self.write_text("metrics.jsonl", "".join(lines))
        self._metrics, self._but_last, self._lines = hashlib.sha256(), "", 0
        for line in lines:
            self._count(line)

    def append_places(self, round: int, places: list[int]) -> None:
        """One line of places.csv: the round, and every client's center."""
        with writing(self.path), (self.path / "places.csv").open("a", encoding="utf-8") as file:
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

    def rewind_places(self, rounds: Container[int]) -> dict[int, list[int]]:
        """Make places.csv what it was at a checkpoint, from the rounds that were evaluated until then."""
        kept = {r: places for r, places in self.read_places().items() if r in rounds}
        if kept or (self.path / "places.csv").is_file():
            lines = (",".join(map(str, [r, *places])) + "\n" for r, places in kept.items())
            self.write_text("places.csv", "".join(lines))
        return kept

    def save(self, checkpoint: Checkpoint, run: str = "") -> None:
        """Write a checkpoint and forget the oldest; the one before stays good until this one is."""
        stem = f"round-{checkpoint.state.round:06d}"
        tensors = self.path / "checkpoints" / f"{stem}.safetensors"
        with writing(tensors):
            tensors.parent.mkdir(exist_ok=True)
            if len(checkpoint.history) != self._lines:  # interrupted after an evaluation
                self.rewind_metrics(checkpoint.history)
            if self._lines:
                with (self.path / "metrics.jsonl").open("r+b") as written:
                    os.fsync(written.fileno())
        said = {"lines": self._lines, "sha256": self._metrics.hexdigest(), "but_last": self._but_last}
        self.write_json(f"checkpoints/{stem}.json", save_checkpoint(tensors, checkpoint, run, said))
        for old in self._manifests()[KEEP:]:
            for file in (old, old.with_suffix(".safetensors"), *old.parent.glob(f"{old.stem}.*.bin")):
                file.unlink(missing_ok=True)

    def load(self, device: torch.device | str = "cpu", run: str = "") -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is whole, and what is wrong with those passed over."""
        problems: list[str] = []
        for manifest in self._manifests():
            try:
                return load_checkpoint(manifest, run, device), problems
            except DAMAGED as error:
                problems.append(f"checkpoint {manifest.stem} is damaged ({error}); the one before it is used")
        return None, problems

    def save_best(self, state: State, layout: Columns | None = None) -> None:
        """The best state so far on the validation split."""
        saved = save_state(self.path / "best.safetensors", state)
        self.write_json("best.json", {"round": state.round, **saved, "layout": layout or {}})

    def load_best(self, device: torch.device | str = "cpu") -> State:
        """The best state on the validation split."""
        found = self.read_json("best.json")
        try:
            return load_state(self.path / "best.safetensors", found, device)
        except DAMAGED as error:
            raise UsageError(f"the best model of {self.path} is damaged: {error}") from error

    def _manifests(self) -> list[Path]:
        """Newest first."""
        found = (self.path / "checkpoints").glob("round-*.json")
        return sorted((p for p in found if p.stem[6:].isdigit()), key=lambda p: int(p.stem[6:]), reverse=True)


def released_on_error(make: Callable[P, T]) -> Callable[P, T]:
    """A run that cannot be made does not keep its folder, which is among the arguments, from others."""

    @wraps(make)
    def making(*given: P.args, **named: P.kwargs) -> T:
        try:
            return make(*given, **named)
        except BaseException:
            for folder in (*given, *named.values()):
                if isinstance(folder, Folder):
                    folder.release()
            raise

    return making


def _runs_of(paths: Sequence[Path]) -> str:
    """Runs beside each other, one for each method with its settings, and what to type for one of them."""
    found: dict[str, tuple[int, Path]] = {}
    for path in paths:
        name, seed = path.name, 0
        with contextlib.suppress(*DAMAGED):
            config = json.loads((path / "config.json").read_text(encoding="utf-8"))
            own = ", ".join(f"{key}={value}" for key, value in config["set"].items())
            name, seed = f"{config['method']}({own})" if own else config["method"], int(config["seed"])
        found[name] = min(found.get(name, (seed, path)), (seed, path))
    shown = [f"{name}, seed {seed}: {path}" for name, (seed, path) in list(found.items())[:12]]
    return "; ".join(["type the path of one", *shown, *(["..."] if len(found) > 12 else [])])


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """A file that is not there or is damaged, in one line."""
    try:
        yield
    except (OSError, ValueError, RecursionError, SafetensorError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
