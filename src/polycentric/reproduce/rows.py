"""Rows of a table: the settings of their runs, a row at every point of a grid, and what is measured of a run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..report.curves import rows_of
from ..runs.folder import Folder
from ..runs.settings import Settings
from ..stacks.stack import Stacks
from .table import Measure, Row


def cell(
    method: str, data: str, model: str, rounds: int, own: Mapping[str, Any], *, evaluate_every: int = 1, **more: Any
) -> dict[str, Any]:
    """The settings of a run, without its seed; `own` are those of the method. Nobody is fine-tuned but where asked.

    >>> cell("fedavg", "mnist", "2nn", 5, {"lr": 0.1})["set"]
    {'lr': 0.1}
    """
    named = {"method": method, "data": data, "model": model, "rounds": rounds, "evaluate_every": evaluate_every}
    return named | {"fine_tune": 0, "set": dict(own)} | more


def rows(make: Callable[..., Row | Iterable[Row] | None], *axes: Iterable[Any]) -> tuple[Row, ...]:
    """What `make` gives at every point of a grid, the last axis running fastest; a setting that is there stays.

    >>> [row.setting for row in rows(lambda a, b: Row(f"{a}{b}", {}) if a != b else None, "xy", "xyx")]
    ['xy', 'yx']
    """
    out: dict[str, Row] = {}
    for point in itertools.product(*axes):
        made = make(*point)
        for row in [made] if isinstance(made, Row) else made or ():
            out.setdefault(row.setting, row)
    return tuple(out.values())


# -- what is measured ----------------------------------------------------------------------------------------


def at_end(*path: str, scale: float = 1.0) -> Measure:
    """A number of the summary, such as `at_end("metrics", "ari")`; NaN where there is none."""

    def measure(summary: dict[str, Any]) -> float:
        found: Any = summary
        for key in path:
            found = (found or {}).get(key)
        return math.nan if found is None else scale * float(found)

    return measure


def error(metric: str) -> Measure:
    """What a share lacks to 100 %."""
    return lambda summary: 100 * (1 - float(summary["metrics"][metric]))


def history(run: Path | str) -> list[dict[str, Any]]:
    """Every evaluation of a run, in order, from its folder."""
    return rows_of(Path(run))


def first_reaching(run: Path | str, target: float, metric: str = "micro_accuracy") -> dict[str, Any] | None:
    """The first evaluation of a run at which `metric` is `target` or more."""
    return next((row for row in history(run) if (row.get(metric) or 0.0) >= target), None)


def rounds_to(target: float, metric: str = "micro_accuracy") -> Measure:
    """The round of that evaluation; NaN where the target was not reached."""

    def measure(summary: dict[str, Any]) -> float:
        row = first_reaching(summary["run_dir"], target, metric)
        return math.nan if row is None else float(row["round"])

    return measure


def settings_of(folder: Path) -> Settings:
    """What a run was asked for."""
    return Folder.open(folder).read_config()[0]


def clients_of(folder: Path | str) -> list[dict[str, str]]:
    """A line for every client of a finished run, from its folder."""
    return Folder(Path(folder)).read_clients()


def memory_of(folder: Path) -> Stacks:
    """What a method remembered at a run's last checkpoint."""
    return Folder.open(folder).load_last().state.memory


def between_tasks(folder: Path) -> Any:
    """(tasks, tasks) correlations from a run's last checkpoint; of a graph, row k from the covariance of client k."""
    from ..runs.start import built_method

    found = built_method(settings_of(folder)).exchanges[0].topology.relations(memory_of(folder))
    assert found is not None
    return found.numpy()
