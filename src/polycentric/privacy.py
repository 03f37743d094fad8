"""What is hidden: something done to what leaves a client, and something to what a center has heard.

A privacy part must cover every name that leaves a client; an exchange that sends a bare one beside it is
refused when it is built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .cohort import Cohort
from .mixing import Heard, Mixing
from .stack import Stacks


class Privacy(Protocol):
    """The two sides of a mechanism."""

    @property
    def covers(self) -> tuple[str, ...] | None:
        """Names it protects; None: nothing is promised."""

    def at_clients(self, rows: Stacks) -> Stacks:
        """Before anything leaves: clip."""

    def at_centers(
        self, heard: dict[str, Heard], centers: Stacks, up: Callable[[], Mixing], cohort: Cohort
    ) -> dict[str, Heard]:
        """Before a center looks: noise. `up` is over everyone who might have come, not over who came."""


@dataclass(frozen=True)
class NoPrivacy:
    """Models travel as they are."""

    @property
    def covers(self) -> tuple[str, ...] | None:
        """Nothing is promised."""
        return None

    def at_clients(self, rows: Stacks) -> Stacks:
        """As they are."""
        return rows

    def at_centers(
        self, heard: dict[str, Heard], centers: Stacks, up: Callable[[], Mixing], cohort: Cohort
    ) -> dict[str, Heard]:
        """As heard."""
        return heard
