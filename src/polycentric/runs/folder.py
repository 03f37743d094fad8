"""A run's folder: what was asked for, what came out, and enough to go on. One writer and one reader for each file.

The module is long because all files of a run stand in one place.

config.json        the settings, and what else must be handed over to go on (`given`)
outline.json       what is known of data that were given as an object, without their examples: `data.outline`
environment.json   versions, device, data fingerprint: what a number depends on besides the settings
metrics.jsonl      one line for each evaluation; nothing in it depends on time or machine
places.csv         every client's center at each evaluation, where clients have one
sketches/          of the models that clients sent at each evaluation, where they are asked for
clients.csv        every client's scores at the end
edges.csv          every edge's scores at the end, where there are edges
summary.json       the run in one object, written after them: a run that has one is finished
digests.json       written last: the digests of all these, so that nothing of a finished run is changed unnoticed
checkpoints/       the newest states, each a safetensors file and a manifest with digests
best.*             the best state on the validation split
state/             what clients keep, where it is held on disk
log.txt            lines for people
lock.json          who writes here, while somebody does: `runs.lock`

Every file is written whole or not at all. A checkpoint counts only if its digests are right and it belongs to this run
(`identity`); to resume, a damaged one is passed over for the one before. A resumed run ends with the very bytes of an
uninterrupted one. What is read of a finished run is compared with its digest first: a file that was changed is refused,
and `resume` writes it again from the checkpoint. environment.json has the digests of the settings and of itself.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import math
import os
import re
import time
import warnings
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from functools import wraps
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..data import Federation
from ..data.outline import from_outline
from ..errors import UsageError, require
from ..language.files import TEXT, opened, parsed, read_bytes, read_text, sha256_of, why
from ..language.own_code import ask_consent, own_names, remember
from ..method import State
from .checkpoint import (
    COPIES,
    METRICS,
    Checkpoint,
    Columns,
    OfAnotherRun,
    load_checkpoint,
    load_state,
    read_manifest,
    replace_file,
    save_checkpoint,
    save_state,
    synced,
    writing,
)
from .forms import DigestsForm, EnvironmentForm, LineForm, StateForm, check_of, held, held_summary
from .lock import LOCK, Lock
from .settings import Settings, digest_of_values, without

P = ParamSpec("P")
T = TypeVar("T")
KEEP = 3  # checkpoints kept
CLIENTS, PLACES = 1 << 30, 4 << 30  # bytes of clients.csv and of places.csv: there may be a million clients
FILES = ("metrics.jsonl", "places.csv", "clients.csv", "edges.csv", "best.json", "best.safetensors")
DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError)
BEFORE = {LOCK, "config.json", "outline.json", "checkpoints", "log.txt"}  # what there is before a run has begun


class Damaged(UsageError):
    """A file of a finished run that is not as it was when the run ended."""

    @staticmethod
    def at(path: Path, what: str = "was changed since the run ended") -> Damaged:
        """With what to type."""
        return Damaged(f"{path} {what}: `polycentric resume {path.parent}` writes it again from the checkpoint")


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
        """A folder of our own; one that holds anything is refused, but for what a run leaves that had not begun."""
        if path.exists() and (not path.is_dir() or not _free(path)):
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
            if path.is_dir() and any(path.iterdir()) and _free(path):
                raise _unbegun(path)
            raise UsageError(f"{path} is not the folder of a run (it has no config.json); `ls runs` shows yours")
        return Folder(path)

    def require_begun(self) -> None:
        """Refuse to go on with a run that was ended before it had written what it was made from."""
        if not self.begun and _free(self.path):
            raise _unbegun(self.path)
        lost = f"{self.path} has lost its environment.json, without which a run is not gone on with"
        require(self.begun, f"{lost}: restore it, or start a new run")

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
            for left in (
                left for at in ("", "checkpoints/", "sketches/") for left in self.path.glob(f"{at}.*.tmp")
            ):  # by a run that was killed
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
        """The settings, and the names of what was given as objects of Python that no words say.

        A run that has begun allows others by this only: its environment gets to know them first.
        """
        values = settings.model_dump() | ({"given": list(given)} if given else {})
        remember(self.path, own_names(values))  # a run that is begun here may go on here
        if self.begun:
            was = digest_of_values(self.read_json("config.json"))
            self.write_environment(self.read_environment(), [was, digest_of_values(values)])
        self.write_json("config.json", values)

    def read_values(self) -> dict[str, Any]:
        """What config.json holds; refused where it is not what the run was started with."""
        values, known = self.read_json("config.json"), self.read_environment()["settings"] if self.begun else []
        if known and digest_of_values(values) not in known:
            free = ", ".join(sorted(without("matters")))
            raise UsageError(
                f"{self.path / 'config.json'} was changed since the run was started: restore it, or start a new run; "
                f"only {free} may be changed there"
            )
        return values

    def read_config(self, trust: bool = False) -> tuple[Settings, tuple[str, ...]]:
        """The settings, checked, and what must be handed over beside them; code that they name needs consent."""
        values, where = self.read_values(), str(self.path / "config.json")
        ask_consent(values, self.path, trust)
        given = values.pop("given", [])
        if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
            raise UsageError(f"given in {where} must be a list of names, got {given!r}")
        return Settings.of(values, where), tuple(given)

    def write_environment(self, facts: Mapping[str, Any], settings: Sequence[str] = ()) -> None:
        """What a number depends on besides the settings, with the digests of the settings it belongs to."""
        facts = {**facts, "settings": list(settings) or [digest_of_values(self.read_json("config.json"))]}
        self.write_json("environment.json", facts | {"check": check_of(facts)})

    def read_environment(self) -> dict[str, Any]:
        """The same, as it was written."""
        path = self.path / "environment.json"
        found = self.read_json("environment.json")
        with reading(path):
            held(EnvironmentForm, found)
        if "settings" in found and found.get("check") != check_of(found):
            raise UsageError(f"{path} was changed since the run was started: restore it, or start a new run")
        return {"settings": [], **found}

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
        for name in ("summary.json", "digests.json"):
            (self.path / name).unlink(missing_ok=True)

    # -- a finished run ------------------------------------------------------------------------------------

    def finish(self, summary: Mapping[str, Any], names: Sequence[str] = ()) -> None:
        """The summary, and then the digests of it, of the files in `names`, and of the newest checkpoint."""
        self.write_json("summary.json", summary)
        ends = [str(file.relative_to(self.path)) for last in self._manifests()[:1] for file in _of_one(last)]
        there = [name for name in ("summary.json", *FILES, *names, *ends) if (self.path / name).is_file()]
        found: dict[str, Any] = {"files": {name: _mark(self.path / name) for name in sorted(there)}}
        self.write_json("digests.json", found | {"check": check_of(found)})

    def digests(self) -> dict[str, list[Any]]:
        """How long every file was when the run ended, and its digest; empty where an earlier version wrote none."""
        path = self.path / "digests.json"
        if not path.exists():
            if self.begun and self.read_environment()["settings"]:
                raise Damaged.at(path, "is missing")
            return {}
        try:
            found = held(DigestsForm, self.read_json("digests.json"))
        except ValueError as error:
            raise Damaged.at(path, f"cannot be read ({error})") from error
        if found["check"] != check_of(found):
            raise Damaged.at(path)
        return dict(found["files"])

    def damaged(self) -> list[str]:
        """The files of a finished run that are not as they were when it ended."""
        try:
            ended = self.digests()
        except Damaged:
            return ["digests.json"]
        return [name for name, mark in ended.items() if not self._is(name, mark)]

    def _is(self, name: str, mark: Sequence[Any]) -> bool:
        try:
            return bool(sha256_of(self.path / name, mark[0]) == mark[1])
        except OSError:
            return False

    def _read(self, name: str, limit: int = TEXT) -> str:
        """The text of a file; of a finished run, as it was when it ended."""
        path = self.path / name
        ended = self.digests() if self.finished else {}
        with reading(path):
            raw = read_bytes(path, limit)
            if ended and ended.get(name) != [len(raw), hashlib.sha256(raw).hexdigest()]:
                raise Damaged.at(path)
            return raw.decode("utf-8")

    def read_summary(self) -> dict[str, Any]:
        """The run in one object, of one that ended."""
        text, path = self._read("summary.json"), self.path / "summary.json"
        try:
            return held_summary(parsed(text))
        except ValueError as error:
            raise Damaged.at(path, f"cannot be read ({error})") from error

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
        if not path.is_file():
            return {}
        if self.finished and (ended := self.digests()) and not self._is(name, ended.get(name, (0, None))):
            raise Damaged.at(path)
        with reading(path), opened(path):
            return load_file(path)

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON file of this run."""
        with reading(self.path / name):
            value = parsed(read_text(self.path / name))
        if not isinstance(value, dict):
            raise UsageError(f"{self.path / name} does not hold a JSON object")
        return value

    def read_outline(self) -> Federation | None:
        """What was written of data that were given as an object; None where nothing was."""
        there = (self.path / "outline.json").is_file()
        return from_outline(self.read_json("outline.json"), str(self.path / "outline.json")) if there else None

    def read_clients(self) -> list[dict[str, str]]:
        """The lines of clients.csv: a number in every column, or nothing, but for names."""
        text, path = self._read("clients.csv", CLIENTS), self.path / "clients.csv"
        with reading(path):
            rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
            heads = rows[0] if rows else []
            if not {"client", "group", "accuracy_in_use", "loss_in_use"} <= set(heads) or len(set(heads)) < len(heads):
                raise ValueError("its first line does not name the columns")
            for number, row in enumerate(rows[1:], start=2):
                if len(row) != len(heads):
                    raise ValueError(f"line {number} has {len(row)} cells, not {len(heads)}")
                for head, cell in zip(heads, row, strict=True):
                    whole = head not in ("group", "took_part") or cell.isdecimal()
                    if cell and head not in ("client", "group_name") and not (whole and math.isfinite(float(cell))):
                        raise ValueError(f"line {number}: {head} is {cell[:40]!r}")
            return [dict(zip(heads, row, strict=True)) for row in rows[1:]]

    def read_edges(self) -> list[str]:
        """The lines of edges.csv below its first; none where there are no edges."""
        there = (self.path / "edges.csv").is_file()
        return self._read("edges.csv").splitlines()[1:] if there else []

    def log(self, line: str) -> None:
        """A line for people, with the time."""
        with contextlib.suppress(OSError), open(self.path / "log.txt", "a", encoding="utf-8", opener=_at_once) as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl, and of its copy."""
        line = json.dumps(row) + "\n"
        for name in COPIES:
            with writing(self.path), (self.path / name).open("a", encoding="utf-8") as file:
                file.write(line)
        self._count(line)

    def _count(self, line: str) -> None:
        self._but_last, self._lines = self._metrics.hexdigest(), self._lines + 1
        self._metrics.update(line.encode())

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; of a run that goes on, those that its newest checkpoint has are compared."""
        path, text = self.path / "metrics.jsonl", self._read("metrics.jsonl", METRICS)
        known = "" if self.finished else _lines(self._newest_history())
        if not text.startswith(known):
            raise Damaged.at(path, "is not what the newest checkpoint says")
        goes_on, whole = self.begun and not self.finished, text.splitlines()
        if goes_on and not text.endswith("\n"):
            whole = whole[:-1]  # it may be being written
        if goes_on and (since := len(whole) - known.count("\n")):
            warnings.warn(
                f"{self.path} is not finished: no checkpoint covers its last {since} evaluations", stacklevel=3
            )
        with reading(path):
            rows = [held(LineForm, parsed(line)) for line in whole]
            if any(a["round"] >= b["round"] for a, b in pairwise(rows)):
                raise ValueError("its rounds are out of order")
            return rows

    def _newest_history(self) -> Sequence[dict[str, Any]]:
        for manifest in self._manifests():
            try:
                found: list[dict[str, Any]] = read_manifest(manifest)["history"]
            except DAMAGED as error:
                warnings.warn(f"checkpoint {manifest.stem} of {self.path} is damaged ({why(error)})", stacklevel=4)
                continue
            return found
        return ()

    def rewind_metrics(self, history: Sequence[dict[str, Any]]) -> None:
        """Make metrics.jsonl and its copy what they were at a checkpoint."""
        text = _lines(history)
        for name in COPIES:
            self.write_text(name, text)
        self._metrics, self._but_last, self._lines = hashlib.sha256(), "", 0
        for line in text.splitlines(keepends=True):
            self._count(line)

    def append_places(self, round: int, places: list[int]) -> str:
        """One line of places.csv, which is returned: the round, and every client's center."""
        line = places_line(round, places)
        with writing(self.path), (self.path / "places.csv").open("a", encoding="utf-8") as file:
            file.write(line)
        return line

    def read_places(self, n_clients: int | None = None, n_centers: int | None = None) -> dict[int, list[int]]:
        """Every client's center, by the round; refused where these are others than the clients and centers there are.

        A line cut short by an interruption is left out.
        """
        path = self.path / "places.csv"
        if not path.exists():
            if self.finished and path.name in self.digests():
                raise Damaged.at(path, "is missing")
            return {}
        found = _places_in(self._read("places.csv", PLACES))
        for places in found.values():
            if len(places) != (n_clients or len(places)) or max(places, default=0) >= (n_centers or 1 << 63):
                raise Damaged.at(path, "does not fit the clients and centers of the run")
        return found

    def rewind_places(
        self, then: Container[int], digest: str, rounds: Container[int]
    ) -> tuple[dict[int, list[int]], list[str]]:
        """Make places.csv what it was at a checkpoint, of the rounds evaluated until `then` those that are in `rounds`.

        Where it cannot be, since its lines have another `digest` than those of then, it begins anew, and that is said.
        """
        path, kept = self.path / "places.csv", dict[int, list[int]]()
        with contextlib.suppress(OSError, ValueError):
            kept = {r: places for r, places in _places_in(read_text(path, PLACES)).items() if r in then}
        text = "".join(starmap(places_line, kept.items()))
        lost = digest not in ("", hashlib.sha256(text.encode()).hexdigest())
        kept = {r: places for r, places in kept.items() if r in rounds and not lost}
        if lost or kept or path.exists():
            self.write_text("places.csv", "".join(starmap(places_line, kept.items())))
        said = f"{path} is damaged: the centers that clients had until now are lost, and it goes on without them"
        return kept, [said] if lost else []

    def sketched(self) -> list[int]:
        """The rounds of which there are sketches of clients' models, in order."""
        found = (p.stem[6:] for p in (self.path / "sketches").glob("round-*.safetensors"))
        return sorted(int(round) for round in found if re.fullmatch("[0-9]{6,13}", round))

    def write_sketch(self, round: int, found: Mapping[str, Tensor]) -> None:
        """The sketches of a round."""
        with writing(self.path):
            (self.path / "sketches").mkdir(exist_ok=True)
        self.write_tensors(sketch_name(round), found)

    def read_sketch(self, round: int) -> dict[str, Tensor]:
        """The sketches of a round: `index`, which clients, and `model`, a row for each."""
        found = self.read_tensors(sketch_name(round))
        index, rows = (found.get(name, torch.zeros(0, 0, 0)) for name in ("index", "model"))
        good = (index.dtype, rows.dtype, index.dim(), rows.dim()) == (torch.int64, torch.float32, 1, 2)
        if not good or len(index) != len(rows) or not bool(rows.isfinite().all()) or bool((index < 0).any()):
            raise UsageError(f"{self.path / sketch_name(round)} holds no sketches of models")
        return {"index": index, "model": rows}

    def rewind_sketches(self, rounds: Collection[int]) -> list[str]:
        """Leave those of some rounds only, as they were when the run ended; returns which of these are lost."""
        ended: Mapping[str, Sequence[Any]] = {}
        with contextlib.suppress(Damaged):
            ended = self.digests() if self.finished else {}
        for round in self.sketched():
            name = sketch_name(round)
            if round not in rounds or not self._is(name, ended.get(name, _mark(self.path / name))):
                (self.path / name).unlink(missing_ok=True)
        lost = [path for round in sorted(rounds) if (path := sketch_name(round)) in ended]
        return [
            f"{self.path / name} is damaged: the map of that round is lost, and it goes on without it"
            for name in lost
            if not (self.path / name).is_file()
        ]

    def save(self, checkpoint: Checkpoint, run: str = "") -> None:
        """Write a checkpoint and forget the oldest; the one before stays good until this one is."""
        stem = f"round-{checkpoint.state.round:06d}"
        tensors = self.path / "checkpoints" / f"{stem}.safetensors"
        with writing(tensors):
            tensors.parent.mkdir(exist_ok=True)
            if (self.path / "places.csv").is_file():  # its digest is in the checkpoint; other tables can be made again
                synced(self.path / "places.csv")
            if len(checkpoint.history) != self._lines:  # interrupted after an evaluation
                self.rewind_metrics(checkpoint.history)
            for name in COPIES:
                if self._lines:
                    synced(self.path / name)
        said = {"lines": self._lines, "sha256": self._metrics.hexdigest(), "but_last": self._but_last}
        self.write_json(f"checkpoints/{stem}.json", save_checkpoint(tensors, checkpoint, run, said))
        every = self._manifests()
        kept = {manifest.stem for manifest in every[:KEEP]}
        for old in every[KEEP:]:  # before its tensors: without them it would be a damaged one
            old.unlink(missing_ok=True)
        for file in tensors.parent.glob("round-*.*"):  # also of those that were killed between two files
            if file.name.partition(".")[0] not in kept and file.is_file():
                file.unlink(missing_ok=True)

    def load(
        self, device: torch.device | str = "cpu", run: str = "", check: Callable[[Checkpoint], None] = lambda _: None
    ) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is whole and passes a `check`, and what is wrong with those passed over."""
        problems: list[str] = []
        for manifest in self._manifests():
            try:
                found = load_checkpoint(manifest, run, device)
                check(found)
            except OfAnotherRun:
                raise
            except DAMAGED as error:
                problems.append(f"checkpoint {manifest.stem} is damaged ({why(error)}); the one before it is used")
            else:
                return found, problems
        return None, problems

    def load_last(
        self, device: torch.device | str = "cpu", run: str = "", check: Callable[[Checkpoint], None] = lambda _: None
    ) -> Checkpoint:
        """The newest checkpoint; of a finished run the one that it ended with, or none."""
        found, problems = self.load(device, run, check)
        if self.finished:
            last = [Path(name).stem for name in self.digests() if name.startswith("checkpoints/")]
            if found is not None and last and f"round-{found.state.round:06d}" not in last:
                problems.append(f"checkpoint {last[0]} is missing")
            if problems:
                wrong = problems[0].partition("; the one before")[0]
                raise UsageError(
                    f"{self.path}: {wrong}, and others are not the run's end: `polycentric resume {self.path}` trains "
                    "what is lost again"
                )
        if found is None:
            raise UsageError(f"{self.path} has no usable checkpoint: {'; '.join(problems) or 'there is none'}")
        for problem in problems:
            warnings.warn(problem, stacklevel=3)
        return found

    def save_best(self, state: State, layout: Columns | None = None, run: str = "") -> None:
        """The best state so far on the validation split."""
        saved = save_state(self.path / "best.safetensors", state)
        found = {"run": run, "round": state.round, **saved, "layout": layout or {}}
        self.write_json("best.json", found | {"check": check_of(found)})

    def load_best(self, device: torch.device | str = "cpu", round: int | None = None, run: str = "") -> State:
        """The best state on the validation split, which is that of `round`, and of the same `run`."""
        try:
            found = held(StateForm, self.read_json("best.json"))
            if found.keys() - {"round", "sha256", "disk", "layout"} and found.get("check") != check_of(found):
                raise ValueError("its manifest was changed")
            if (run and found.get("run", run) != run) or found["round"] != (found["round"] if round is None else round):
                raise ValueError(f"it is of round {found['round']}, or of another run")
            return load_state(self.path / "best.safetensors", found, device)
        except DAMAGED as error:
            raise UsageError(
                f"the best model of {self.path} is damaged: {why(error)}; to train it again, delete "
                f"{self.path / 'checkpoints'} and {self.path / 'summary.json'}, and `polycentric resume {self.path}`"
            ) from error

    def _manifests(self) -> list[Path]:
        """Newest first."""
        found = (self.path / "checkpoints").glob("round-*.json")
        named = (p for p in found if re.fullmatch("round-[0-9]{6,13}", p.stem))
        return sorted(named, key=lambda p: int(p.stem[6:]), reverse=True)


def sketch_name(round: int) -> str:
    """The file of a round's sketches."""
    return f"sketches/round-{round:06d}.safetensors"


def _free(path: Path) -> bool:
    """Whether a folder holds nothing but what a run leaves that was ended before it had begun: nothing is lost."""
    names = {one.name for one in path.iterdir() if not (one.name.startswith(".") and one.name.endswith(".tmp"))}
    if not names <= BEFORE or names == {"log.txt"} or any((path / "checkpoints").glob("*")):
        return False
    if "config.json" not in names:
        return True
    with contextlib.suppress(UsageError):
        return Settings.model_fields.keys() <= Folder(path).read_json("config.json").keys()  # and not somebody else's
    return False


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)  # a pipe is not waited for


def _unbegun(path: Path) -> UsageError:
    return UsageError(
        f"the run in {path} was ended before it had begun, and nothing of it is lost: type its `polycentric run` "
        f"again, with --out {path}"
    )


def _mark(path: Path) -> list[Any]:
    return [path.stat().st_size, sha256_of(path)]


def _of_one(manifest: Path) -> list[Path]:
    """The files of one checkpoint."""
    return [manifest, manifest.with_suffix(".safetensors"), *manifest.parent.glob(f"{manifest.stem}.*.bin")]


def _lines(history: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in history)


def places_line(round: int, places: Sequence[int]) -> str:
    """A line of places.csv."""
    return ",".join(map(str, [round, *places])) + "\n"


def _places_in(text: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for line in text.splitlines(keepends=True):
        if re.fullmatch(r"[0-9]{1,13}(,[0-9]{1,13})*\n", line):
            round, *places = map(int, line.split(","))
            found[round] = places
    return found


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
            config = parsed(read_text(path / "config.json"))
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
    except Damaged:
        raise
    except (OSError, ValueError, RecursionError, SafetensorError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read: {why(error)}") from error
