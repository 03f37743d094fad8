"""Training with a second model that predicts a protected attribute from a representation inside the first.

joint          min  L(w) + s L^a(w, a)       over both, s = `strength`
its own steps  min  L^a(w, a)                over a alone, w stands still
against it     min  L(w) - lambda L^a(w, a)  over w alone, s = -lambda, a stands still
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor

from ..errors import require
from ..stacks.stack import Stacks
from ..tasks.task import Batch, Task
from .train import Train


@dataclass(frozen=True)
class TrainWithAuxiliary(Train):
    """`Train` on the loss plus `strength` times that of the second model, or on the second alone.

    Arguments:
        strength: weight of the second model's loss; below zero the model learns to mislead it.
        alone: only the second model's loss.
    """

    strength: float = 1.0
    alone: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.hide is None,
            f"hide={self.hide} hides examples, but a second model learns from them without noise, and the first of it: "
            "leave out adversary and auxiliary, or hide",
        )

    @property
    def trains_like(self) -> Train | None:
        """The same without the second model; that one's own steps are no training of a client's model."""
        own = {each.name: getattr(self, each.name) for each in fields(Train)}
        return None if self.alone else Train(**own | {"inertia": 0.0})

    def loss(self, row: Stacks, batch: Batch, task: Task) -> Tensor:
        """L + strength L^a, or L^a."""
        attribute = task.attribute_loss(row, batch)
        return attribute if self.alone else super().loss(row, batch, task) + self.strength * attribute
