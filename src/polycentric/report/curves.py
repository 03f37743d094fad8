"""Learning curves of several runs: any metric over rounds, simulated seconds or bytes, with bands over seeds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import UsageError, require, unknown
from ..runs.folder import Folder
from ..runs.metrics import Reals, is_share
from ..runs.paired import leading
from .figure import COLOURS, band, colour, legend, panels, paper, target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What is along the axis; a function makes it from a run's folder and the rounds of its evaluations.
Over = Literal["rounds", "seconds", "bytes", "bytes_up", "bytes_down"] | Callable[[Path, list[int]], Any]
Metric = str | Callable[[dict[str, Any]], float | None]  # its name, or how it is made from an evaluation
Groups = Mapping[str, Sequence[Path]]  # label -> the folders of its seeds

AXES = {
    "rounds": "rounds",
    "seconds": "simulated seconds",
    "bytes": "bytes moved, up and down",
    "bytes_up": "bytes moved up",
    "bytes_down": "bytes moved down",
}
# What is added up along an axis; others are their own.
KEYS = {"rounds": ("round",), "seconds": ("simulated_seconds",), "bytes": ("bytes_up", "bytes_down")}
WIDE = 46  # letters of a label on one line
# Settings that do not make another method.
ASIDE = {"seed", "device", "executor", "block", "workers", "checkpoint_every"}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl."""
    return Folder(folder).read_metrics()


Rows = Callable[[Path], list[dict[str, Any]]]


def curve(
    folder: Path, metric: Metric = "micro_accuracy", over: Over = "rounds", read: Rows = rows_of
) -> tuple[Reals, Reals]:
    """(x, y) of one run, a point for every evaluation that has the metric; `read`: who remembers the lines of a run."""
    rows = read(folder)
    if isinstance(metric, str) and rows and not any(metric in row for row in rows):
        raise UsageError(f"{folder}: {unknown('metric', metric, sorted({key for row in rows for key in row}))}")
    found = [(row, row.get(metric) if isinstance(metric, str) else metric(row)) for row in rows]
    there, y = [row for row, value in found if value is not None], [value for _, value in found if value is not None]
    if not isinstance(over, str):
        return np.array(over(folder, [row["round"] for row in there]), dtype=float), np.array(y, dtype=float)
    keys = KEYS.get(over, (over,))
    old = any(key not in row for row in there for key in keys)
    require(not old, f"{folder} has no {AXES[over]} in some lines: an earlier version wrote them; run it again")
    x = [float(sum(row[key] for key in keys)) for row in there]
    return np.array(x), np.array(y, dtype=float)


def together(curves: Sequence[tuple[Reals, Reals]]) -> tuple[Reals, Reals]:
    """Several curves at common places: (places,) and (curves, places), between points along straight lines.

    Where seeds differ in their seconds, they have no evaluation in common; only the stretch that all of them cover
    is kept, so that a mean is never over fewer of them.
    """
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    places = np.unique(np.concatenate([x for x, _ in curves]))
    places = places[(places >= first) & (places <= last)]
    return places, np.stack([np.interp(places, x, y) for x, y in curves])


@dataclass(frozen=True, eq=False)
class Line:
    """The curves of a group's seeds at common places; `still`: it does not move along the axis, and has an end only."""

    number: int  # among the groups: those without runs keep theirs
    label: str
    x: Reals  # (places,)
    y: Reals  # (seeds, places)
    still: bool = False


def lines_of(
    groups: Groups, metric: Metric = "micro_accuracy", over: Over = "rounds", read: Rows = rows_of
) -> list[Line]:
    """A line for every group that has runs."""
    found = []
    for number, (label, folders) in enumerate(groups.items()):
        curves = [(x, y) for x, y in (curve(folder, metric, over, read) for folder in folders) if len(x)]
        if folders and not curves:
            raise UsageError(
                f"{folders[0]} has no evaluation with {metric} yet; choose another --metric, or resume the run"
            )
        if curves and isinstance(over, str) and over != "rounds" and all(x[0] == x[-1] for x, _ in curves):
            ends = np.array([[y[-1]] for _, y in curves])
            found.append(Line(number, label, curves[0][0][-1:], ends, still=True))
        elif curves:
            found.append(Line(number, label, *together(curves)))
    return found


def draw(
    axis: Axes,
    groups: Groups,
    metric: Metric = "micro_accuracy",
    over: Over = "rounds",
    style: Callable[[str], Mapping[str, Any]] = lambda label: {},
) -> None:
    """A curve for every group on an axis; who does not move along it (nobody's bytes) is a dotted line at its end.

    A group without runs keeps its colour for later. `style` says how the line of a label is drawn, as `band` takes it.
    """
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    for line in lines_of(groups, metric, over):
        if line.still:
            level = float(line.y.mean())
            axis.axhline(level, color=colour(line.number), linestyle=":", label=line.label)
            how: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
            how |= {"fontsize": 8, "color": colour(line.number)}
            axis.annotate(f"{line.label}, at its end: no {over}", (1, level), xytext=(-2, 3), **how)
        else:
            band(axis, line.x, line.y, **{"number": line.number, "label": line.label, **style(line.label)})
    if isinstance(metric, str):
        axis.set_ylabel(metric.replace("_", " "))
        if is_share(metric):
            axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None, symbol=" %"))
    if isinstance(over, str):
        axis.set_xlabel(AXES[over] if over != "seconds" else unit_of(groups))
        if over.startswith("bytes"):
            axis.xaxis.set_major_locator(MaxNLocator(6))
            axis.xaxis.set_major_formatter(EngFormatter(unit="B"))


@dataclass(frozen=True)
class Curves:
    """A panel of curves: a metric of several groups of runs over rounds, or over something else."""

    groups: Groups
    metric: Metric = "micro_accuracy"
    over: Over = "rounds"
    level: float | None = None  # that they should reach
    style: Callable[[str], Mapping[str, Any]] = lambda label: {}  # as `band` takes it
    dress: Mapping[str, Any] = field(default_factory=dict)  # as `Axes.set` takes it

    @property
    def there(self) -> bool:
        """Whether any run was scored."""
        return any(self._scored(folders) for folders in self.groups.values())

    @staticmethod
    def _scored(folders: Sequence[Path]) -> list[Path]:
        return [folder for folder in folders if (folder / "metrics.jsonl").is_file()]

    def draw(self, axis: Axes) -> None:
        """Draw it."""
        groups = {label: self._scored(folders) for label, folders in self.groups.items()}
        draw(axis, groups, self.metric, self.over, self.style)
        if self.level is not None:
            target(axis, self.level)
        axis.set(**self.dress)


UNITS = {  # what is along an axis of seconds, and how runs came by it
    "simulated seconds": "under a clock of seconds",
    "simulated time, normalised": "under a normalised clock, whose unit is a trip to the edge",
    "seconds of rounds and scores": "by nodes elsewhere, and took the seconds that it took",
}


def unit_of(groups: Groups) -> str:
    """What a second is; runs that count in different units have no axis in common."""
    simulated, normalised, real = UNITS
    found: dict[str, str] = {}
    for label, folders in groups.items():
        for folder in folders:
            values = Folder(folder).read_values()
            trips = str(values.get("clock", "")).lower().startswith("normalised")
            unit = real if "nodes" in (values.get("given") or ()) else normalised if trips else simulated
            found.setdefault(unit, label)
    said = " and ".join(f"'{label}' was run {UNITS[unit]}" for unit, label in sorted(found.items()))
    require(len(found) < 2, f"{said}: draw them over rounds or bytes, or run them under one --clock")
    return next(iter(found), simulated)


def figure(groups: Groups, path: Path, metric: str = "", over: Sequence[Over] = ("rounds",), log: bool = False) -> None:
    """One panel for each of `over`, beside each other, with one legend; without a metric, that of a comparison."""
    first = next((row for folders in groups.values() for folder in folders for row in rows_of(folder)), {})
    metric = metric or (leading(first) if first else "micro_accuracy")
    beside = 0.0 if paper() else _height(groups)  # inches of a legend that has no room on the panels
    with panels(path, 1, len(over), size=(5.2 + (3.0 / len(over) if beside else 0), max(3.8, beside))) as axes:
        for axis, what in zip(axes[0], over, strict=True):
            draw(axis, groups, metric, what)
            if log:
                axis.set_xscale("log")
        lines, labels = axes[0, 0].get_legend_handles_labels()
        seeds = {len(folders) for folders in groups.values()}
        title = f"mean and one deviation, {seeds.pop()} seeds" if len(seeds) == 1 and seeds != {1} else None
        labels = [fill(label, WIDE, subsequent_indent="  ") for label in labels]
        how: dict[str, Any] = {"title": title, "fontsize": 8.5, "title_fontsize": 8.5, "alignment": "left"}
        if paper():
            legend(axes)
        elif beside:  # it would hide what it explains
            axes[0, 0].figure.legend(lines, labels, loc="outside right upper", handlelength=3.2, **how)
        else:
            axes[0, -1].legend(lines, labels, **how)


def _height(groups: Groups) -> float:
    """Inches of a legend that stands beside the panels; 0 where it is small enough to stand on one."""
    lines = sum(len(fill(label, WIDE).splitlines()) for label in groups)
    return 0.8 + 0.19 * lines if len(groups) > len(COLOURS) else 0.0


def gathered(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Runs that differ only in their seed, under one label; a folder of runs stands for all that are in it."""
    folders = [folder for path in paths for folder in _runs_in(path)]
    configs = [Folder(folder).read_values() for folder in folders]
    for folder, config in zip(folders, configs, strict=True):
        require(isinstance(config.get("method"), str), f"{folder / 'config.json'} does not say which method was run")
    found: dict[str, list[int]] = {}
    for place, config in enumerate(configs):
        alike = {key: value for key, value in config.items() if key not in ASIDE}
        found.setdefault(json.dumps(alike, sort_keys=True), []).append(place)
    kinds = [_flat(configs[places[0]]) for places in found.values()]
    labels = [_label(kind, kinds, folders[places[0]]) for kind, places in zip(kinds, found.values(), strict=True)]
    if len(set(labels)) < len(labels):
        labels = [folders[places[0]].name for places in found.values()]
    return {label: [folders[place] for place in places] for label, places in zip(labels, found.values(), strict=True)}


def _runs_in(path: Path) -> list[Path]:
    if (path / "config.json").is_file():
        return [path]
    inside = sorted(config.parent for config in path.glob("*/config.json"))
    require(bool(inside), f"{path} is neither a run nor a folder of runs: none of them has a config.json")
    begun = [folder for folder in inside if (folder / "metrics.jsonl").is_file()]
    require(bool(begun), f"none of the {len(inside)} runs in {path} has been scored yet")
    return begun


def _flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Settings by name, those of the method among them."""
    own = config.get("set")
    flat = {key: value for key, value in config.items() if key != "set" and key not in ASIDE}
    return {key: str(value) for key, value in (flat | (dict(own) if isinstance(own, Mapping) else {})).items()}


def _label(kind: Mapping[str, str], kinds: Sequence[Mapping[str, str]], folder: Path) -> str:
    """The method, and whatever tells it from others of its name."""
    name = kind["method"]
    alike = [other for other in kinds if other["method"] == name]
    differ = [key for key in kind if any(other.get(key) != kind[key] for other in alike)]
    if not re.fullmatch(r"[A-Za-z_][\w.:-]*", name):
        return folder.name  # a method built in Python: its text is no title
    return ", ".join([name, *(f"{key}={kind[key]}" for key in differ)])
