"""What goes wrong for a reason the user can mend: one line, no traceback.

Every message says *what*, *which value*, *why*, and *what to type instead*.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
