"""When a run ends before its last round. A rule is given the run after every round, and says why it should end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .loop import Run


class Stop(Protocol):
    """A rule that may end a run."""

    def reason(self, run: Run) -> str:
        """Why the run should end now; empty: it should go on."""


@dataclass(frozen=True)
class Target:
    """The test accuracy over all examples is there: how many rounds it takes is what is asked."""

    accuracy: float

    def reached(self, history: list[dict[str, Any]]) -> int | None:
        """The first evaluated round that reached it."""
        return next((row["round"] for row in history if (row.get("micro_accuracy") or 0.0) >= self.accuracy), None)

    def reason(self, run: Run) -> str:
        """Says when."""
        there = self.reached(run.history)
        return "" if there is None else f"the target of {self.accuracy:.4g} was reached in round {there}"


@dataclass(frozen=True)
class Patience:
    """So many evaluations without a better validation score; only the validation split has a say."""

    evaluations: int

    def reason(self, run: Run) -> str:
        """Says since when."""
        waited = run.tally.since_best >= self.evaluations
        return f"no better validation score since round {run.tally.best_round}" if waited else ""
