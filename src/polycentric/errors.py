"""What goes wrong for a reason the user can mend: one line, no traceback.

Every message says *what*, *which value*, *why*, and *what to type instead*.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class UsageError(ValueError):
    """A mistake in what was asked for; the command prints it as one line and exits with 2."""

    def __init__(self, message: str) -> None:
        # What is quoted may hold line breaks or terminal codes; the message stays one printable line.
        super().__init__("".join(c if c.isprintable() else " " for c in message))


class Diverged(RuntimeError):
    """Most of a cohort sent numbers that are not finite; the state before that round is kept."""


class Lost(RuntimeError):
    """Another rank of the run has ended, or says nothing any more; the state of the last whole round is kept."""


class OtherRankFailed(RuntimeError):
    """Another rank has failed and says why, so this one ends without a word."""


def unknown(what: str, name: str, choices: Iterable[str]) -> UsageError:
    """The message for a name nobody knows, with the nearest one that somebody does.

    >>> print(unknown("method", "fedavgg", ["fedavg", "fedprox"]))
    unknown method 'fedavgg': did you mean 'fedavg'? Known: fedavg, fedprox
    """
    known = sorted(choices)
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return UsageError(f"unknown {what} '{name}': {hint}Known: {', '.join(known)}")


def require(condition: bool, message: str) -> None:
    """Refuse with `message` unless `condition` holds."""
    if not condition:
        raise UsageError(message)


def within(part: Any, **bounds: str | tuple[str, ...]) -> None:
    """Refuse a part with a field outside of its bounds: `lr=">= 0"`, `beta="[0, 1)"`, `how=("a", "b")`; None is inside.

    >>> within(slice(0, 3), start=">= 0", stop="(0, 3]", step="> 0")
    """
    for name, bound in bounds.items():
        value, wanted = getattr(part, name), f"in {bound}"
        if value is None:
            continue
        if isinstance(bound, tuple):
            good, wanted = value in bound, f"{', '.join(bound[:-1])} or {bound[-1]}"
        elif bound.startswith(">"):
            sign, least = bound.split()
            good = value >= float(least) if sign == ">=" else value > float(least)
            wanted = {"> 0": "positive", ">= 1": "at least 1"}.get(bound, bound)
        else:
            low, high = map(float, bound[1:-1].split(","))
            good = (value >= low if bound[0] == "[" else value > low) and (
                value <= high if bound[-1] == "]" else value < high
            )
        require(good, f"{type(part).__name__}.{name} must be {wanted}, got {value!r}")
