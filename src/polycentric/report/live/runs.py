"""Which runs a folder holds, and how far each is. Runs are read, never written, and never opened: files are enough."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...language.files import opened, parsed
from ...runs.folder import Folder
from ...runs.lock import writer
from ...runs.paired import leading
from ..page.parts import number

DEPTH = 3  # folders below the one that is watched: runs, and runs of comparisons
MOST = 5000  # runs that are listed
SECONDS = 1.0  # between two looks at which runs there are
TAIL = 1 << 16  # bytes at the end of metrics.jsonl that are looked at for its last line


@dataclass(frozen=True)
class Row:
    """A run in the list."""

    id: str  # a short digest of its place: what a browser asks for
    name: str
    method: str
    data: str
    seed: int
    round: int
    rounds: int
    metric: str
    value: float | int | None
    status: str  # running, finished, stopped
    changed: float  # when its metrics were written, in seconds

    def to_json(self) -> dict[str, Any]:
        """As a browser is told."""
        return dict(self.__dict__)


@dataclass(eq=False)
class RunList:
    """The runs below a folder."""

    root: Path
    _rows: dict[Path, tuple[tuple[float, ...], Row]] = field(default_factory=dict)
    _folders: list[Path] = field(default_factory=list)
    _looked: float = -1e9

    def folders(self) -> list[Path]:
        """Folders of runs, those below others too; looked for once a second at most."""
        if time.monotonic() - self._looked > SECONDS:
            self._folders, self._looked = sorted(self._found(self.root, DEPTH))[:MOST], time.monotonic()
        return self._folders

    def _found(self, folder: Path, depth: int) -> list[Path]:
        found: list[Path] = []
        try:
            inside = list(os.scandir(folder))
        except OSError:
            return found
        if any(entry.name == "config.json" for entry in inside):
            return [folder]
        for entry in inside:
            if depth and entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                found += self._found(Path(entry.path), depth - 1)
        return found

    def rows(self) -> list[Row]:
        """How far every run is; the files of one that did not change are not read again."""
        found = []
        for folder in self.folders():
            stamp = self._stamp(folder)
            known = self._rows.get(folder)
            if known is None or known[0] != stamp:
                row = self._row(folder, stamp[0])
                if row is None:
                    continue
                known = self._rows[folder] = (stamp, row)
            found.append(known[1])
        return found

    def folder_of(self, id: str) -> Path | None:
        """The run that a browser asks for; None: there is none, whatever it wrote."""
        return next((folder for folder in self.folders() if self.id_of(folder) == id), None)

    def id_of(self, folder: Path) -> str:
        """A short name that is no path."""
        return hashlib.sha256(str(folder.relative_to(self.root)).encode()).hexdigest()[:16]

    def _stamp(self, folder: Path) -> tuple[float, ...]:
        """When what a row is made of was written; and whether somebody writes."""
        found = []
        for name in ("metrics.jsonl", "summary.json", "config.json", "digests.json"):
            try:
                seen = (folder / name).stat()
                found += [seen.st_mtime, float(seen.st_size)]
            except OSError:
                found += [0.0, 0.0]
        return (*found, float(writer(folder) is not None))

    def _row(self, folder: Path, changed: float) -> Row | None:
        try:
            here = Folder(folder)
            config, last = here.read_values(), last_line(folder / "metrics.jsonl")
            metric = leading(set(last)) if last else ""
            alive = writer(folder) is not None
            return Row(
                id=self.id_of(folder),
                name=str(folder.relative_to(self.root)) if folder != self.root else folder.name,
                method=str(config.get("method", "")),
                data=str(config.get("data", "")),
                seed=int(config.get("seed") or 0),
                round=int(last.get("round") or 0),
                rounds=int(config.get("rounds") or 50),
                metric=metric,
                value=number(last.get(metric)),
                status="finished" if here.finished else "running" if alive else "stopped",
                changed=changed,
            )
        except (UsageError, OSError, ValueError, TypeError):  # being written, or not a run of ours
            return None


def last_line(path: Path) -> dict[str, Any]:
    """The last whole line of a file of JSON lines; empty where there is none."""
    try:
        with opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL))
            lines = file.read(TAIL).split(b"\n")
    except OSError:
        return {}
    for line in reversed(lines[:-1]):
        try:
            found = parsed(line)
        except ValueError:
            continue
        return found if isinstance(found, dict) else {}
    return {}


def as_event(rows: list[Row]) -> str:
    """Rows as JSON on one line."""
    return json.dumps([row.to_json() for row in rows], allow_nan=False)
