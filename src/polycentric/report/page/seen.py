"""What a page looks at: runs by label, what their files say, and one run of each label, opened.

Files are enough for most panels, and for a run that is still going. Models, examples and topologies need the run
itself, which is opened where its data are here and nothing needs consent; where it cannot be, that is said.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...errors import UsageError
from ...method import Exchange
from ...runs.folder import Folder
from ...runs.grid import rows_of as rows_of_summaries
from ...runs.lock import writer
from ...runs.loop import Run
from ...runs.outputs import Recorder, environment
from ...runs.paired import leading, unequal, with_differences, with_who
from ...runs.settings import Settings
from ...runs.start import open as open_run
from ..curves import gathered, rows_of

MOST_OPENED = 8  # labels whose runs are opened: as many as there are colours
DEALT = ("data", "partition", "clients", "valid", "seed", "data_seed", "standardise", "patience")


@dataclass(eq=False)
class Seeds:
    """Runs of one label, which differ in their seed only."""

    label: str
    folders: tuple[Path, ...]
    number: int = 0  # among the labels: its colour
    run: Run | None = None  # one of them, opened

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings of the first; nothing that they name is run."""
        return Folder(self.folders[0]).read_values()

    @cached_property
    def settings(self) -> Settings:
        """The same, checked."""
        values = {key: value for key, value in self.config.items() if key != "given"}
        return Settings.of(values, str(self.folders[0] / "config.json"))

    @cached_property
    def environment(self) -> dict[str, Any]:
        """What else numbers depend on."""
        folder = Folder(self.folders[0])
        return folder.read_environment() if folder.begun else {}

    @cached_property
    def histories(self) -> list[list[dict[str, Any]]]:
        """Every run's evaluations."""
        return [self.read(folder) for folder in self.folders if (folder / "metrics.jsonl").is_file()]

    @cached_property
    def read(self) -> Any:
        """The lines of a run's metrics, read once."""
        return cache(rows_of)

    @cached_property
    def finished(self) -> tuple[Path, ...]:
        """Those that came to their end."""
        return tuple(
            folder for folder in self.folders if Folder(folder).finished and "metrics" in self._summary(folder)
        )

    @cached_property
    def summaries(self) -> list[dict[str, Any]]:
        """Of those that ended, also by diverging."""
        return [self._summary(folder) for folder in self.folders if Folder(folder).finished]

    def _summary(self, folder: Path) -> dict[str, Any]:
        return Folder(folder).read_summary() | {"run_dir": str(folder)}

    @cached_property
    def clients(self) -> list[list[dict[str, str]]]:
        """The clients of every run that ended, a line each."""
        return [Folder(folder).read_clients() for folder in self.finished]

    @cached_property
    def shown(self) -> Path:
        """The folder that single runs are shown of: the opened one's."""
        return self.run.folder.path if self.run is not None and self.run.folder else (*self.finished, *self.folders)[0]

    @cached_property
    def places(self) -> dict[int, list[int]]:
        """Every client's center by the round, of the run that is shown."""
        return Folder(self.shown).read_places()

    @cached_property
    def members(self) -> list[dict[str, str]]:
        """The clients of the run that is shown, a line each; none while it goes on."""
        return Folder(self.shown).read_clients() if self.shown in self.finished else []

    def values(self, metric: str) -> list[float]:
        """A metric of every run: at its end, or so far."""
        ended = {s["run_dir"]: s.get("metrics", {}).get(metric) for s in self.summaries}
        last = {
            str(f): self.read(f)[-1].get(metric)
            for f in self.folders
            if (f / "metrics.jsonl").is_file() and self.read(f)
        }
        found = [ended.get(str(folder), last.get(str(folder))) for folder in self.folders]
        return [value for value in found if value is not None]

    @property
    def exchange(self) -> Exchange | None:
        """By which the models in use came, of the opened run."""
        return None if self.run is None else self.run.now.exchange

    @cached_property
    def going(self) -> str:
        """How far the runs are that have not ended; empty: all have."""
        left = [folder for folder in self.folders if not Folder(folder).finished]
        done = [rows[-1]["round"] if (rows := self.read(f)) else 0 for f in left if (f / "metrics.jsonl").is_file()]
        how = "is" if any(writer(folder) for folder in left) else "stopped"
        return f"{self.label} {how} at round {min(done, default=0)} of {self.settings.rounds}" if left else ""


@dataclass(eq=False)
class Sight:
    """All that a page shows."""

    groups: list[Seeds]
    against: str | None = None
    examples: bool = True  # whether single examples may be shown
    notes: list[str] = field(default_factory=list)

    @cached_property
    def metric(self) -> str:
        """What the answer goes by."""
        return leading({name for rows in self.histories for row in rows[-1:] for name in row})

    @property
    def histories(self) -> Iterator[list[dict[str, Any]]]:
        """The evaluations of every run."""
        return (rows for group in self.groups for rows in group.histories)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """What `compare` would tell of these runs: a row for each label that has ended, with differences and gains."""
        ended = [(s, group.label) for group in self.groups for s in group.summaries]
        rows = rows_of_summaries([s for s, _ in ended], [label for _, label in ended])
        if not any(row["runs"] for row in rows):
            return []
        rows = with_differences(rows, [], self.against)
        alike = [row for row in rows if not row["difference"] or row["difference"]["mean"] is not None]
        counted = {row["method"]: row for row in with_who(alike, [], each=True)}  # clients of the same examples
        return [counted.get(row["method"], row) for row in rows]

    @cached_property
    def said(self) -> list[str]:
        """What a reader must know: what is not there, and in what else rows differ."""
        rows = [row for row in self.rows if row["runs"]]
        by = {group.label: group.settings for group in self.groups}
        differ = unequal(rows, [by[row["method"]] for row in rows]) if len(rows) > 1 else []
        going = [group.going for group in self.groups if group.going]
        diverged = [f"{row['method']}: {row['diverged']} runs diverged" for row in self.rows if row["diverged"]]
        return [*going, *diverged, *(line.partition("; make them equal")[0] for line in differ), *self.notes]

    @property
    def paths(self) -> dict[str, tuple[Path, ...]]:
        """The folders of every label, as figures take them."""
        return {group.label: group.folders for group in self.groups}

    @property
    def opened(self) -> list[tuple[Seeds, Run]]:
        """The labels of which a run is open."""
        return [(group, group.run) for group in self.groups if group.run is not None]


def looked_at(
    paths: Sequence[Path],
    *,
    against: str | None = None,
    trust: bool = False,
    quick: bool = False,
    examples: bool = True,
) -> Sight:
    """Runs in folders, or in folders of folders; `quick`: from their files only."""
    groups = [Seeds(label, _by_seed(found), k) for k, (label, found) in enumerate(gathered(paths).items())]
    sight, known = Sight(groups, against, examples), dict[str, Any]()
    if quick:
        return sight
    for group in groups[:MOST_OPENED]:
        if group.finished:
            try:
                _open(group, trust, known)
            except UsageError as error:
                sight.notes.append(f"{group.label} is shown without its models and examples: {error}")
    if len(groups) > MOST_OPENED:
        sight.notes.append(f"models and examples are shown of the first {MOST_OPENED} of {len(groups)} labels")
    return sight


def _by_seed(folders: Sequence[Path]) -> tuple[Path, ...]:
    return tuple(sorted(folders, key=lambda folder: int(Folder(folder).read_values().get("seed") or 0)))


def _open(group: Seeds, trust: bool, known: dict[str, Any]) -> None:
    """Open the first run of a label; runs on the same data share them."""
    dealt = str([group.config.get(name) for name in DEALT])
    shared = {"federation": known[dealt]} if dealt in known and not group.config.get("given") else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it said so when it ran
        group.run = open_run(group.finished[0], trust=trust, device="auto", examples=False, **shared)
    if (
        not group.run.federation.absent
    ):  # else they were an object of Python's, and what is known without them is enough
        known.setdefault(dealt, group.run.federation)


@contextmanager
def of_run(run: Run, examples: bool = True) -> Iterator[Sight]:
    """A run in memory; one that has no folder is given one for as long as it is looked at."""
    if run.folder is not None:
        yield Sight([Seeds(run.method.name, (run.folder.path,), run=run)], examples=examples)
        return
    with TemporaryDirectory() as temporary:
        folder = Folder.new(Path(temporary) / "run")
        folder.write_config(run.settings, run.given)
        folder.write_environment(environment(run))
        for round, places in run.places.items():
            folder.append_places(round, places)
        for round, found in run.sketches.items():
            folder.write_sketch(round, found)
        Recorder(folder, "").on_end(run)
        yield Sight([Seeds(run.method.name, (folder.path,), run=run)], examples=examples)
