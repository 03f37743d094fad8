"""Judging claims: means that are there only if every seed got there, differences beyond doubt, and their words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ..runs.paired import FEWEST, margin
from .table import Claim, Values, Verdict

Label = TypeVar("Label")
MISSING = "a row was not run, or a seed did not get there"


def reached(values: Values, setting: str) -> list[float]:
    """What was measured, if every seed got there; else nothing."""
    found = values.get(setting) or []
    return [] if any(map(math.isnan, found)) else found


def finite(values: Values, setting: str) -> list[float]:
    """What was measured of the seeds that got there."""
    return [value for value in values.get(setting) or [] if not math.isnan(value)]


def mean(values: Values, setting: str) -> float:
    """The mean over seeds; NaN where one did not get there, or none was run."""
    return statistics.fmean(reached(values, setting) or [math.nan])


def means_of(found: Mapping[Label, Sequence[float]]) -> dict[Label, float]:
    """The mean of every row's seeds."""
    return {label: statistics.fmean(numbers) for label, numbers in found.items()}


def error_of(numbers: Sequence[float]) -> float:
    """The standard error of a mean."""
    return statistics.stdev(numbers) / math.sqrt(len(numbers))


def clearly(differences: Sequence[float]) -> bool | None:
    """Whether differences, seed by seed, are clearly above zero, or below; None in between.

    The rule of `compare`: three seeds or more, and `margin` standard errors (Student's t, 95 %).
    """
    if len(differences) < FEWEST:
        return None
    middle = statistics.fmean(differences)
    return middle > 0 if abs(middle) > margin(len(differences)) * error_of(differences) else None


def less(low: Sequence[float], high: Sequence[float]) -> bool | None:
    """Whether one is clearly below the other, seed by seed."""
    return clearly([b - a for a, b in zip(low, high, strict=False)])


def as_good(ours: Sequence[float], theirs: Sequence[float], within: float = 0.0) -> bool | None:
    """Whether ours is clearly above what lies so far below theirs, seed by seed."""
    return less([x - within for x in theirs], ours)


def some(verdicts: Iterable[bool | None]) -> bool | None:
    """One of them; it fails only if all do."""
    found = list(verdicts)
    return True if True in found else None if None in found else False


def every(verdicts: Iterable[bool | None]) -> bool | None:
    """All of them; one that fails is enough to fail, and one that cannot be told leaves it open."""
    found = list(verdicts)
    return False if False in found else None if None in found else True


def listed(numbers: Mapping[Any, object], form: str, between: str = ", ") -> str:
    """Numbers, or words for them, by name.

    >>> listed({"a": 0.5, "b": 2}, "{} {:.1f} %")
    'a 0.5 %, b 2.0 %'
    """
    return between.join(form.format(name, number) for name, number in numbers.items())


def claim_by_seed(
    text: str,
    settings: Mapping[Label, str],
    judge: Callable[[dict[Label, list[float]]], Verdict],
    numbers: Callable[[Values, str], list[float]] = reached,
    least: int = 1,
) -> Claim:
    """A claim about what was measured of some rows; it cannot be told where one has fewer than `least` seeds."""

    def judged(values: Values) -> Verdict:
        found = {key: numbers(values, setting) for key, setting in settings.items()}
        return judge(found) if all(len(seeds) >= least for seeds in found.values()) else (None, MISSING)

    return Claim(text, judged)


def claim(text: str, settings: Mapping[Label, str], judge: Callable[[dict[Label, float]], Verdict]) -> Claim:
    """A claim about the means of some rows."""
    return claim_by_seed(text, settings, lambda found: judge(means_of(found)))


def claim_of_row(text: str, setting: str, judge: Callable[[list[float]], Verdict]) -> Claim:
    """A claim about the seeds of one row that got there."""
    return claim_by_seed(text, {setting: setting}, lambda found: judge(found[setting]), finite)
