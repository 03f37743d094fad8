"""Settings found by validation: random search and successive halving beside the grid.

    random     n points drawn from lists and ranges; all are run to the end
    halving    n points are run for R / eta^s rounds, the best 1/eta of them for eta times as many, ... the last for R

A point is a combination of settings; it is run with every seed that is asked for, and judged by the mean of its
validation score over them. The test examples have no say: only the winner's test score is told. Every rung of a
halving is a run of its own from the first round on, so that it is what `run` would give; all rungs together cost about
as much as n / eta^s whole runs for each rung.

Reference:   Jamieson and Talwalkar, Non-stochastic best arm identification and hyperparameter optimization, AISTATS
             2016, https://arxiv.org/abs/1502.07943
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import Diverged, UsageError, require, unknown
from ..stacks.draw import uniform
from .grid import ProgressCallback, run_cells
from .guarantee import warn_choice
from .settings import Settings
from .start import built_method

Point = dict[str, Any]  # a value for every axis
Axis = list[Any] | Mapping[str, Any]  # values, or a range {low, high, log}
SEARCHES = ("random", "halving")
ETA = 3  # of how many points one goes on, and how many times as many rounds it gets


@dataclass(frozen=True, eq=False)
class Tried:
    """A point, how far it was run, and what came of it."""

    point: Point
    rounds: int
    runs: tuple[dict[str, Any], ...]  # the summaries, one for each seed

    @property
    def scores(self) -> list[float]:
        """The validation score in every seed; fewer where training diverged or a score is no number."""
        found = [run["validation"]["value"] for run in self.runs if run.get("validation")]
        return [score for score in found if score is not None and math.isfinite(score)]

    @property
    def diverged(self) -> bool:
        """Whether a seed came to no score: then nothing can be said for this point."""
        return len(self.scores) < len(self.runs)

    @property
    def score(self) -> float:
        """The mean over seeds, more is better; the least of all where training diverged."""
        mean = statistics.fmean(self.scores) if not self.diverged else -math.inf
        less = any(run["validation"]["lower_is_better"] for run in self.runs if run.get("validation"))
        return -mean if less and not self.diverged else mean


def checked_axes(grid: Mapping[str, Any], where: str) -> dict[str, Axis]:
    """The axes of a search: lists, or ranges {low, high, log}, of which every mistake is said."""
    for key, axis in grid.items():
        if isinstance(axis, list):
            continue
        name = f"{key} in {where}"
        for word in axis:
            if word not in ("low", "high", "log"):
                raise unknown(f"key of the range {name}", str(word), ("low", "high", "log"))
        ends = [axis.get(end) for end in ("low", "high")]
        good = all(isinstance(end, int | float) and not isinstance(end, bool) and math.isfinite(end) for end in ends)
        require(good and ends[0] < ends[1], f"{name} needs numbers low < high, got {dict(axis)}")
        log = axis.get("log", False)
        require(isinstance(log, bool), f"log of {name} must be true or false, got {log!r}")
        require(not log or ends[0] > 0, f"{name}: a range with log=true must begin above 0, got low={ends[0]}")
    return dict(grid)


def drawn_points(axes: Mapping[str, Axis], trials: int, seed: int = 0) -> list[Point]:
    """So many different points; all there are, where lists have no more.

    >>> drawn_points({"set.lr": [0.1, 0.2], "rounds": [3]}, 5)
    [{'set.lr': 0.1, 'rounds': 3}, {'set.lr': 0.2, 'rounds': 3}]
    """
    lists = [axis for axis in axes.values() if isinstance(axis, list)]
    if len(lists) == len(axes) and math.prod(map(len, lists)) <= trials:
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*lists)]
    found: dict[str, Point] = {}
    for attempt in range(100 * trials):
        u = uniform(seed, "search", torch.tensor([attempt]), torch.arange(len(axes))).flatten().tolist()
        point = {key: _at(axis, share) for (key, axis), share in zip(axes.items(), u, strict=True)}
        found.setdefault(str(point), point)
        if len(found) == trials:
            break
    return list(found.values())


def _at(axis: Axis, share: float) -> Any:
    """The value at a share of the way along an axis; whole numbers where both ends are."""
    if isinstance(axis, list):
        return axis[min(int(share * len(axis)), len(axis) - 1)]
    low, high, whole = axis["low"], axis["high"], all(isinstance(axis[end], int) for end in ("low", "high"))
    high = high + 1 if whole else high
    value = low * (high / low) ** share if axis.get("log") else low + (high - low) * share
    return min(math.floor(value), axis["high"]) if whole else float(f"{value:.4g}")  # as a person would type it


def rungs(trials: int, rounds: int, how: str) -> list[tuple[int, int]]:
    """(points, rounds) of every stage of a search.

    >>> rungs(20, 50, "random"), rungs(20, 50, "halving")
    ([(20, 50)], [(20, 6), (7, 17), (3, 50)])
    """
    stages = 0 if how == "random" else int(math.log(trials, ETA) + 1e-9)
    stages = min(stages, int(math.log(max(rounds, 1), ETA) + 1e-9))  # a stage has a round at least
    return [(math.ceil(trials / ETA**s), math.ceil(rounds / ETA ** (stages - s))) for s in range(stages + 1)]


def search(
    points: Sequence[Point],
    cells_at: Callable[[Point, int], list[Settings]],
    rounds: int,
    how: str,
    parent: Path,
    *,
    jobs: int = 1,
    progress: ProgressCallback | None = None,
) -> list[Tried]:
    """What became of every point, the best first: those that went on before those that did not.

    Arguments:
        points: to try.
        cells_at: the settings of a point for so many rounds, one for each seed.
        rounds: of a whole run.
        how: "random" or "halving".
        parent: a folder for the runs; finished ones in it are not run again.
    """
    kept, out, done = list(points), list[Tried](), 0
    stages = rungs(len(points), rounds, how)
    warn_choice([built_method(cell) for point in points for cell in cells_at(point, rounds)], "a search")
    for stage, (_, length) in enumerate(stages):
        cells = [cells_at(point, length) for point in kept]
        flat, before = [cell for each in cells for cell in each], done

        def told(n: int, total: int, summary: dict[str, Any], before: int = before) -> None:
            if progress:
                progress(before + n, total, summary)

        summaries = iter(run_cells(flat, parent, jobs=jobs, progress=told))
        done += len(flat)
        tried = [Tried(p, length, tuple(next(summaries) for _ in c)) for p, c in zip(kept, cells, strict=True)]
        tried.sort(key=lambda t: -t.score)  # a stable sort: the first drawn wins ties
        _check_scored(tried)
        going_on = stages[stage + 1][0] if stage + 1 < len(stages) else 0
        going_on = min(going_on, sum(not t.diverged for t in tried))
        kept = [t.point for t in tried[:going_on]]
        out = tried[going_on:] + out if going_on else tried + out
    return out


def _check_scored(tried: Sequence[Tried]) -> None:
    runs = [run for one in tried for run in one.runs]
    if all("diverged" in run for run in runs):
        raise Diverged(f"training diverged at all {len(tried)} points of the search: try smaller learning rates")
    if not any(run.get("validation") for run in runs):
        raise UsageError("no client has validation examples to choose by: set valid=0.2 or more")
