"""What is learned, by what the targets are; and how a word, a class or an object becomes a goal."""

from __future__ import annotations

from ..data.federation import Kind
from ..errors import UsageError, require
from ..language.own_code import imported, own_function
from .classification import Classification
from .detection import Detection
from .goal import Goal
from .multi_label import MultiLabel
from .next_symbol import NextSymbol
from .regression import Regression

GOALS: dict[Kind, Goal] = {
    "classes": Classification(),
    "labels": MultiLabel(),
    "numbers": Regression(),
    "symbols": NextSymbol(),
    "boxes": Detection(),
}


def goal_of(thing: object) -> Goal:
    """A goal from `module:attribute`, a class, or what is one already."""
    found = imported(thing, "goal") if isinstance(thing, str) else thing
    if isinstance(thing, str) and not isinstance(found, Goal):
        found = own_function(thing, "goal")
    if isinstance(found, type):
        require(
            issubclass(found, Goal),
            f"goal {found.__name__} is a class that is no pc.Goal: write class {found.__name__}(pc.Goal)",
        )
        try:
            found = found()
        except TypeError as error:  # a loss that is not written, or arguments that nobody gives
            raise UsageError(f"goal {getattr(found, '__name__', found)} cannot be made: {error}") from error
    if not isinstance(found, Goal):
        raise UsageError(f"a goal is a pc.Goal, its class, or module:attribute of one, got {thing!r}")
    return found
