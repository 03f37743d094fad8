"""What a run can be gone on from: its state, what adds up over it, and its history, in files with digests.

A state is one safetensors file (and a linked file for every stack that is on disk); a manifest beside it holds the
rest, the digests of those files and of the lines of places.csv, which columns of a row are which layer (`layout`), and
the name of the run they belong to. Nothing is ever pickled. Files are whole or not there at all: written under another
name, synced to the disk, and renamed. What is loaded is checked twice: against its digests, and against what the run
can go on from (`check_fits`).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..errors import Unwritten, UsageError
from ..language.files import TEXT, named, parsed, read_text, sha256_of
from ..method import State
from ..simulate.disk_state import OnDisk, link, opened
from ..stacks.stack import Layout, Stacks, aligned
from .forms import LineForm, ManifestForm, StateForm, check_of, held

COPIES = ("metrics.jsonl", "checkpoints/history.jsonl")  # the same lines: one for people, and one to make it again from
METRICS = 16 * TEXT  # bytes of either
MANIFEST = 16 * TEXT  # bytes of a manifest: a million clients have their times in it
Columns = dict[str, list[dict[str, Any]]]  # "centers/model": every layer with its name, shape, first and last column


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
    steps: float = 0.0  # local steps of a client, the mean over a cohort, added up over the rounds in `counted`
    examples: float = 0.0  # and examples it went through, as often as their gradient was taken
    counted: int = 0  # rounds whose work is counted: all, unless an earlier version began the run
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

    @property
    def work(self) -> dict[str, float] | None:
        """Local steps and examples of a client in a round; None before the first."""
        n = self.counted
        return {"steps": self.steps / n, "examples": self.examples / n} if n else None

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
    layout: Columns = field(default_factory=dict, repr=False)  # empty: saved by a version that did not say
    places: str = ""  # the digest of places.csv; empty: nobody has a center, or a version that did not say

    def to_json(self) -> dict[str, Any]:
        """All but the state."""
        rest = {"tally": self.tally.to_json(), "history": list(self.history), "layout": self.layout}
        return rest | {"places": self.places}

    @staticmethod
    def from_json(found: dict[str, Any], state: State) -> Checkpoint:
        """From what `to_json` gave, with its state."""
        tally, history = Tally.from_json(found["tally"]), tuple(found["history"])
        return Checkpoint(state, tally, history, found.get("layout", {}), found.get("places", ""))


class OfAnotherRun(UsageError):
    """A checkpoint that lies in a run's folder and is not the run's."""


def columns(layouts: Mapping[str, Layout], state: State) -> Columns:
    """Which columns of the rows of a file's tensor are which layer: `row[first:last].reshape(shape)`."""
    out: Columns = {}
    for part, stacks in (("centers", state.centers), ("kept", state.kept)):
        for name in layouts.keys() & stacks.keys():
            layout, ends = layouts[name], list(itertools.accumulate(layouts[name].sizes))
            each = zip(layout.names, layout.shapes, layout.sizes, ends, strict=True)
            out[f"{part}/{name}"] = [
                {"name": called, "shape": list(shape), "first": end - size, "last": end}
                for called, shape, size, end in each
            ]
    return out


def save_checkpoint(path: Path, checkpoint: Checkpoint, run: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Write the tensors to PATH; returns the manifest, which is to be written after them.

    The history stays in metrics.jsonl and its copy, of which `metrics` says how many lines belong to it, and their
    digests: a manifest that held all of it would make late rounds slower than early ones.
    """
    saved, rest = save_state(path, checkpoint.state), checkpoint.to_json()
    del rest["history"]
    manifest = {"run": run, "round": checkpoint.state.round, **saved, **rest, "metrics": dict(metrics)}
    return manifest | {"check": check_of(manifest)}


def read_manifest(path: Path, run: str = "") -> dict[str, Any]:
    """A checkpoint's manifest as it was written, with its history; a ValueError says what is wrong with it.

    `run`: the run that it must belong to, if it is known.
    """
    found = held(ManifestForm, parsed(read_text(path, MANIFEST)))
    if found["check"] != check_of(found):
        raise ValueError("its manifest was changed")
    if run and found.get("run", run) != run:
        raise OfAnotherRun(
            f"checkpoint {path.stem} in {path.parent} belongs to another run, of another seed, model or other "
            f"settings: take {path.stem}.* out of there"
        )
    if found.get("metrics"):  # an earlier version wrote the history into the manifest
        found["history"] = history_in(path.parent.parent, found["metrics"])
    rounds = [row["round"] for row in found.setdefault("history", [])]
    if found["round"] != int(path.stem[6:]) or rounds != sorted(set(rounds)) or max(rounds, default=0) > found["round"]:
        raise ValueError("its rounds do not fit together")
    return found


def history_in(folder: Path, said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, or of its copy, that a manifest speaks of; a ValueError if neither is what it was.

    A run that was to take more rounds has left out its last row, where it would not have been evaluated there.
    """
    found = list[list[str]]()
    for name in COPIES:
        with contextlib.suppress(OSError, ValueError):
            text = read_text(folder / name, METRICS) if said["lines"] else ""
            found.append(text.splitlines(keepends=True)[: said["lines"]])
    shorter = [lines[: said["lines"] - 1] for lines in found]  # if neither is whole: one may be cut there
    for each, digest in ((found, said["sha256"]), (shorter, said["but_last"])):
        for rows in each:
            if hashlib.sha256("".join(rows).encode()).hexdigest() == digest:
                return [held(LineForm, parsed(row)) for row in rows]
    raise ValueError(f"{' and '.join(COPIES)} were changed")


def load_checkpoint(manifest: Path, run: str, device: torch.device | str) -> Checkpoint:
    """A checkpoint by its manifest; a ValueError says what is wrong with it."""
    found = read_manifest(manifest, run)
    return Checkpoint.from_json(found, load_state(manifest.with_suffix(".safetensors"), found, device))


def check_fits(found: Checkpoint, first: State, n_clients: int, rounds: int) -> None:
    """Refuse a checkpoint that a run cannot go on from: other names, shapes or types than those of its `first` state.

    Centers may have become more, and memory longer, since then; what was not remembered yet may be missing. A center's
    optimizer adds its moments in the first round.
    """
    state, tally = found.state, found.tally
    if state.round > rounds:
        raise ValueError(f"it is of round {state.round}, and the run has {rounds}")
    for part in ("centers", "kept", "memory"):
        there, wanted = (getattr(of, part) for of in (state, first))
        names = wanted.keys() & there.keys() if part == "memory" else wanted.keys()
        moments = there.keys() - names if part == "centers" else set[str]()
        fit = all(there[name].dim() == 2 and there[name].dtype.is_floating_point for name in moments)
        if there.keys() != names | moments or not fit:
            raise ValueError(f"its {part} are {_listed(there)}, not {_listed(wanted)}")
        for name in names:
            _check_alike(f"{part}/{name}", there[name], wanted[name], part == "kept", n_clients)
    if (tally.took is not None and len(tally.took) != n_clients) or len(tally.times) not in (0, n_clients):
        raise ValueError(f"it is of other clients than these {n_clients}")


def _check_alike(name: str, rows: Tensor, wanted: Tensor, all_of_it: bool, n_clients: int) -> None:
    first = 0 if all_of_it or len(wanted) == n_clients != 1 else 1  # more rows than in the beginning are as good
    same = rows.dtype == wanted.dtype and rows.dim() == wanted.dim() and rows.shape[first:] == wanted.shape[first:]
    if not same or len(rows) < (len(wanted) if name.startswith("centers") else 0):
        found, right = (f"{str(t.dtype)[6:]} {tuple(t.shape)}" for t in (rows, wanted))
        raise ValueError(f"its {name} is {found}, not {right}")


def _listed(stacks: Stacks) -> str:
    return ", ".join(sorted(stacks)) or "none"


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
    saved = {"sha256": replace_file(path, lambda temporary: save_file(tensors, temporary))}
    return saved | {"bytes": path.stat().st_size} | ({"disk": disk} if disk else {})


def load_state(path: Path, found: dict[str, Any], device: torch.device | str) -> State:
    """A state by its manifest, its digests checked; a ValueError says what is wrong with it."""
    held(StateForm, found)
    if sha256_of(path, found.get("bytes")) != found["sha256"]:
        raise ValueError("its digest is wrong")
    tensors = aligned(load_file(path))  # in the file they lie anywhere
    for place, one in enumerate(found.get("disk", [])):
        file = path.with_suffix(f".{place}.bin")
        stack = opened(file, tuple(map(int, one["shape"])), one["dtype"])  # which knows how long it must be
        if sha256_of(file) != one["sha256"]:
            raise ValueError(f"the digest of {file.name} is wrong")
        tensors[one["key"]] = stack
    state = State({}, {}, {}, int(found["round"]))
    for key, tensor in tensors.items():
        part, _, name = key.partition("/")
        if part not in ("centers", "kept", "memory"):
            raise ValueError(f"it is not known what {key} is")
        on_host = part == "memory" or isinstance(tensor, OnDisk)  # what the parts remember is read by the host
        state = replace(state, **{part: getattr(state, part) | {name: tensor if on_host else tensor.to(device)}})
    return state


def replace_file(path: Path, write: Callable[[Path], object]) -> str:
    """Write a file under another name, sync it, give it its name; returns its digest."""
    with writing(path):
        return renamed(path, write)


def renamed(path: Path, write: Callable[[Path], object]) -> str:
    """The same, where what goes wrong is somebody else's to explain."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with named(path):
            write(temporary)
            digest = sha256_of(temporary)
            with temporary.open("r+b") as file:  # for writing: Windows syncs nothing else
                os.fsync(file.fileno())
            temporary.replace(path)
            _sync_names(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return digest


def synced(path: Path) -> None:
    """Have what was written to a file, and its name, on the disk."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())
    _sync_names(path.parent)


def _sync_names(path: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A full or read-only disk, in one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise Unwritten(path, getattr(error, "strerror", None) or str(error)) from error
