"""Training on one half of a client's examples, so that the other half can judge what was found from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import require
from ..stacks.cohort import Cohort
from ..stacks.stack import Stacks
from ..tasks.task import Batch, Task
from .batches import Plan
from .learner import Client, Learner
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

    def plan(self, cohort: Cohort) -> Plan:
        """As training, on half the examples."""
        sizes = Plan(cohort.sizes, None, half=self.half).sizes(cohort)
        plan = self.train.plan(replace(cohort, sizes=sizes))
        return replace(plan, steps=plan.steps * (sizes > 0), half=self.half)

    def begin(self, rows: Stacks, cohort: Cohort, task: Task) -> Stacks:
        """As training."""
        return self.train.begin(rows, cohort, task)

    def step(self, carry: Stacks, row: Stacks, batch: Batch, client: Client) -> Stacks:
        """As training."""
        return self.train.step(carry, row, batch, client)

    def end(self, carry: Stacks, rows: Stacks, cohort: Cohort) -> Stacks:
        """What was learned, beside the model."""
        return {HALVES[self.half]: carry["model"]}
