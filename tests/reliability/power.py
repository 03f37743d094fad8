"""A power cut at every moment of a run, and every folder that a file system may leave of it.

What a run does to its folder is recorded: bytes written, files and folders synced, names given, renamed and removed. A
power cut leaves of that, as POSIX has it,

    of a file's bytes      those that were synced, and of later ones all, none, some (torn), or zeros in their place
    of a folder's names    those that were synced, and of later changes any, in whatever order they reach the disk

Every such folder is made, and the run resumed in it: it must come to the very bits of a run that nobody interrupted; or
say, where nothing had begun, how to begin anew. `python tests/reliability/power.py [states]`
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from polycentric.runs import lock
from reliability.damage import RESULTS, RUN, Counts, _data, _typed, _within

COMMAND = ["run", *RUN, "--data", "own.npz", "--out", "run"]
ON_DISK = [
    "--state",
    "disk",
    "--set",
    "absent=last",
    "--set",
    "match=distance",
]  # what clients sent last is kept in files
MOST = 5  # changes of names of which every subset is tried; of more, all, none, and one more or less


@dataclass
class Disk:
    """What is on the disk for certain, and what may be there."""

    synced: dict[int, bytes] = field(default_factory=dict)  # file: its bytes at its last sync
    latest: dict[int, bytes] = field(default_factory=dict)
    names: dict[str, int | None] = field(default_factory=dict)  # path: its file; None: a folder
    pending: list[tuple[str, str, str, int | None]] = field(default_factory=list)  # what, path, from, file

    def states(self) -> Iterator[dict[str, bytes | None]]:
        """Every folder that a cut of the power may leave now."""
        n = len(self.pending)
        every = range(1 << n) if n <= MOST else {0, (1 << n) - 1, *(1 << k for k in range(n))}
        for chosen in every:
            names = dict(self.names)
            for k, (what, path, source, file) in enumerate(self.pending):
                if chosen >> k & 1:
                    if what == "unlink":
                        names.pop(path, None)
                    elif what == "rename":
                        names.pop(source, None)
                        names[path] = file
                    else:
                        names[path] = file
            unsynced = sorted({f for f in names.values() if f is not None and self.latest[f] != self.synced.get(f)})
            for how in itertools.product(range(4), repeat=min(2, len(unsynced))):
                modes = dict(zip(unsynced, how, strict=False))
                yield {p: None if f is None else self._bytes(f, modes.get(f, 0)) for p, f in names.items()}

    def _bytes(self, file: int, mode: int) -> bytes:
        sure, whole = self.synced.get(file, b""), self.latest[file]
        more = whole[len(sure) :] if whole.startswith(sure) else whole
        base = sure if whole.startswith(sure) else b""
        return (whole, sure, base + more[: len(more) // 2], base + b"\0" * len(more))[mode]


class Recorder:
    """Records what happens in a folder, and the disk after every step."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.disk, self.steps = folder, Disk(), list[Disk]()
        self._file: dict[int, int] = {}  # inode: file; an inode may come again as another file
        self._path: dict[str, int | None] = {}
        self._count = itertools.count()

    def look(self) -> None:
        """Whatever was written since the last step."""
        here = {str(p.relative_to(self.folder)): p for p in sorted(self.folder.rglob("*"))}
        for path, place in here.items():
            inode = place.stat().st_ino
            file = None if place.is_dir() else self._file.setdefault(inode, next(self._count))
            if path not in self._path:
                self._path[path] = file
                self.disk.pending.append(("create", path, "", file))
            if file is not None and (whole := place.read_bytes()) != self.disk.latest.get(file):
                self.disk.latest[file] = whole
        self._keep()

    def _keep(self) -> None:
        disk = self.disk
        self.steps.append(Disk(dict(disk.synced), dict(disk.latest), dict(disk.names), list(disk.pending)))

    def _name(self, path: Any) -> str | None:
        whole = Path(path).absolute()
        return str(whole.relative_to(self.folder)) if whole.is_relative_to(self.folder) else None

    def fsync(self, descriptor: int) -> None:
        self.look()
        inode = os.fstat(descriptor).st_ino
        if inode in self._file:
            self.disk.synced[self._file[inode]] = self.disk.latest[self._file[inode]]
        else:
            folders = {p.stat().st_ino: p for p in (self.folder, *self.folder.rglob("*")) if p.is_dir()}
            if inode in folders:
                self._sync_names(folders[inode])
        self._keep()

    def _sync_names(self, folder: Path) -> None:
        left = []
        for what, path, source, file in self.disk.pending:
            if (self.folder / path).parent != folder:
                left.append((what, path, source, file))
                continue
            if what != "create":
                self.disk.names.pop(source or path, None)
            if what != "unlink":
                self.disk.names[path] = file
        self.disk.pending = left

    def replace(self, source: Any, target: Any) -> None:
        self.look()
        REPLACE(source, target)
        old, new = self._name(source), self._name(target)
        if old is not None and new is not None:
            self._path[new] = self._path.pop(old)
            self.disk.pending.append(("rename", new, old, self._path[new]))
            self._keep()

    def unlink(self, path: Any, **how: Any) -> None:
        self.look()
        inode = os.stat(path).st_ino if os.path.exists(path) else None
        UNLINK(path, **how)
        name = self._name(path)
        if name in self._path:
            file = self._path.pop(name)
            if inode is not None and file not in self._path.values():
                self._file.pop(inode, None)
            self.disk.pending.append(("unlink", name, "", file))
            self._keep()


REPLACE, UNLINK = os.replace, os.unlink


def recorded(root: Path, command: list[str]) -> tuple[list[dict[str, bytes | None]], dict[str, bytes]]:
    """Every folder that a power cut may leave of a run, each once; and what the run comes to."""
    with _within(root):
        _data("own.npz", 6, 0)
        (root / "run").mkdir()
        seen = Recorder(root / "run")
        shims = {"fsync": seen.fsync, "replace": seen.replace, "unlink": seen.unlink}
        with mock.patch.multiple(os, **shims):
            said = _typed(command)
        assert said.code == 0, said.err[-1:]
        right = {name: Path("run", name).read_bytes() for name in RESULTS}
    found: dict[Any, dict[str, bytes | None]] = {}
    for disk in seen.steps:
        for state in disk.states():
            there = {p: b for p, b in state.items() if _reachable(p, state)}
            found.setdefault(frozenset((p, b) for p, b in there.items() if p != "log.txt"), there)
    return list(found.values()), right


def _reachable(path: str, state: dict[str, bytes | None]) -> bool:
    """Whether the folders are there that a name lies in."""
    return all(str(folder) in state for folder in Path(path).parents if str(folder) != ".")


def cut(n: int | None, seed: int, root: Path, more: Sequence[str] = ()) -> Counts:
    """Resume from every folder, or from `n` of them; `more`: words of the command."""
    counts = Counts()
    states, right = recorded(root, command := [*COMMAND, *more])
    chosen = range(len(states)) if n is None else random.Random(seed).sample(range(len(states)), min(n, len(states)))
    later = mock.patch.object(
        lock.Owner, "alive", lambda _: False
    )  # whoever wrote is gone: the machine was started again
    with later, mock.patch.object(lock, "HALF_WRITTEN_SECONDS", 0.0), _within(root):
        for case in chosen:
            shutil.rmtree("run", ignore_errors=True)
            Path("run").mkdir()
            for path, whole in sorted(states[case].items()):
                if whole is None:
                    Path("run", path).mkdir(exist_ok=True)
                else:
                    Path("run", path).write_bytes(whole)
            counts.add(*_gone_on(command, right, f"state {case} of {len(states)}: {sorted(states[case])}"))
    return counts


def _gone_on(command: list[str], right: dict[str, bytes], case: str) -> tuple[str, str]:
    """What becomes of a folder after the power is back: at most two pieces of advice are followed."""
    words, way = ["resume", "run", "--quiet"], ""
    for _ in range(3):
        said = _typed(words)
        last = said.err[-1] if said.err else ""
        if said.code == 0:
            same = all(Path("run", name).read_bytes() == whole for name, whole in right.items())
            return ("as uninterrupted" + way if same else "silent"), f"{case}: {last}"
        if said.code in ("hang", "traceback"):
            return str(said.code), f"{case}: {last}"
        if "lock.json" in last and "delete it" in last:
            Path("run/lock.json").unlink()
            way = ", its lock deleted"
        elif "polycentric run" in last or "no config.json" in last:
            words, way = command, ", begun anew"
        else:
            break
    return "lines", f"{case}: no way out: {last}"


def main(words: Sequence[str]) -> int:
    """`power.py [states]`: so many of them; without a number, all."""
    import torch

    torch.set_num_threads(1)
    os.environ.setdefault("POLYCENTRIC_DEVICE", "cpu")
    bad, n = 0, int(words[0]) if words else None
    for name, more in (("in memory", []), ("on disk", ON_DISK)):
        with tempfile.TemporaryDirectory() as folder:
            counts = cut(n, 0, Path(folder).resolve(), more)
        print(f"power, state {name}:", counts, flush=True)
        bad += len(counts.bad)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
