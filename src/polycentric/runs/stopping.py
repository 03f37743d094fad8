"""Rules that end a run before its last round: a target that is reached, patience that is at its end.

A rule is asked after every round, in the order of `rules`; the first that has a reason ends the run. Where models have
become no numbers, there is nothing to go on with (`check_finite`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ..errors import Diverged
from ..method import State
from ..round import Trip
from ..simulate.homes import at_hand, centers_away
from ..simulate.ranks import ALONE, Ranks
from .settings import Settings

if TYPE_CHECKING:
    from .loop import Run


class Stop(Protocol):
    """A rule that may end a run before its last round; it is asked after every round."""

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


def rules(settings: Settings) -> tuple[Stop, ...]:
    """The rules that settings ask for."""
    from .guarantee import Budget

    target, patience = settings.target, settings.patience
    budget = (Budget(settings.epsilon),) if settings.epsilon is not None else ()
    return budget + ((Target(target),) if target is not None else ()) + ((Patience(patience),) if patience else ())


def check_finite(
    trips: Sequence[Trip],
    late: Sequence[int],
    before: State,
    after: State,
    attackers: Tensor | None = None,
    ranks: Ranks = ALONE,
) -> None:
    """Refuse to go on where most answers, or a center, are no numbers any more."""
    attacked = attackers is not None and bool(attackers.any())
    smaller = "a smaller share or size of the attack, or " * attacked + "a smaller learning rate"
    for trip, left_out in zip(trips, late, strict=True):
        asked = len(trip.cohort) - left_out
        lost = asked - len(trip.arrived)
        if 2 * lost > asked:
            raise Diverged(
                f"round {before.round}: {lost} of {asked} clients sent NaN or infinity; "
                f"the training diverges: try {smaller}, such as --set lr=0.01"
            )
    strange = not bool(at_hand(after, ranks).sum(dtype=torch.float64).isfinite())
    if ranks.anybody(strange) if centers_away(after) else strange:  # all stop, or nobody
        raise Diverged(
            f"round {before.round}: the model of a center became NaN or infinite; try {smaller} "
            "of the center, or of the clients, such as --set lr=0.01"
        )
