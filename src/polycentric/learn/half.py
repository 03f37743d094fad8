"""Training on one half of a client's examples, and judging on the other half what came of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..errors import require
from ..stacks.cohort import Cohort
from ..stacks.stack import Stacks
from ..tasks.task import Batch, Task
from .batches import Plan
from .learner import Client, Learner
from .measure import OnceOver
from .train import Train

HALVES = ("half0", "half1")  # what is learned from a model on the first half of a client's examples, and on the second


@dataclass(frozen=True)
class TrainOnHalf(Learner):
    """Trains from `model` on one half of the client's examples, into `half0` or `half1`; the model stays as it is.

    Which examples are in which half is drawn once, by client, for the whole run. Both halves together cost as much as
    one training on all. A client with one example learns nothing on its second half.
    """

    train: Train
    half: int

    def __post_init__(self) -> None:
        require(self.half in (0, 1), f"TrainOnHalf.half must be 0 or 1, got {self.half}")
        require(
            not self.train.hides,
            f"hide={self.train.hide} hides examples, but what is learned on halves is judged by the examples of the "
            "other half, without noise: leave hide out, or give the number of centers, as k=4",
        )

    def plan(self, cohort: Cohort) -> Plan:
        """As training, on half the examples."""
        return on_half(self.train, self.half, cohort)

    def begin(self, rows: Stacks, cohort: Cohort, task: Task) -> Stacks:
        """As training."""
        return self.train.begin(rows, cohort, task)

    def step(self, carry: Stacks, row: Stacks, batch: Batch, client: Client) -> Stacks:
        """As training."""
        return self.train.step(carry, row, batch, client)

    def end(self, carry: Stacks, rows: Stacks, cohort: Cohort) -> Stacks:
        """What was learned, beside the model."""
        return {HALVES[self.half]: carry["model"]}


@dataclass(frozen=True)
class GainOnHalf(OnceOver):
    """How much better examples of one half are served by one model than by another, both learned on the other halves.

        gain_h  =  sum over examples of half h  of  merit(own_h') - merit(one_h'),      h' = 1 - h

    The merit of an answer is 1 where it is right; where numbers are predicted, minus its loss.
    """

    half: int
    passes = 2 / 3  # two models, no way back

    def plan(self, cohort: Cohort) -> Plan:
        """Every example of the half once."""
        return on_half(super(), self.half, cohort)

    def begin(self, rows: Stacks, cohort: Cohort, task: Task) -> Stacks:
        """A sum of zero."""
        return {"sum": rows["own0"].new_zeros(len(cohort))}

    def step(self, carry: Stacks, row: Stacks, batch: Batch, client: Client) -> Stacks:
        """Add some examples."""
        own, one = (
            client.task.goal.merit(client.task.predict(row | {"model": row[name]}, batch.x).detach(), batch.y)
            for name in (f"own{1 - self.half}", f"one{1 - self.half}")
        )
        return {"sum": carry["sum"] + ((own - one) * (batch.weight > 0)).sum()}

    def end(self, carry: Stacks, rows: Stacks, cohort: Cohort) -> Stacks:
        """The sum."""
        return {f"gain{self.half}": carry["sum"][:, None]}


def on_half(learner: Any, half: int, cohort: Cohort) -> Plan:
    """A learner's plan, for one half of the examples."""
    sizes = Plan(cohort.sizes, None, half=half).sizes(cohort)
    plan: Plan = learner.plan(replace(cohort, sizes=sizes))
    return replace(plan, steps=plan.steps * (sizes > 0), half=half)
