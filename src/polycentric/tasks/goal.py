"""What is learned: how outputs and targets become a loss, outputs an answer, and answers the scores of every client.

    class Quantile(pc.Goal):                                    one of your own: --goal mine:Quantile
        def loss(self, outputs, targets):                       one number for each example
            off = targets - outputs.squeeze(-1)
            return torch.maximum(0.9 * off, -0.1 * off)

Everything but the loss has a default. Each of ours is a small file beside this one; `docs/tasks.md` walks through them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from .scores import Integers, Reals, Scores, mean_by_client

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> one loss for each example
Numbers = npt.NDArray[Any]


class Goal(ABC):
    """What is learned from examples and their targets.

    Outputs are what the model gives for n examples, (n, *wanted). A goal reads nothing but them and the targets (n,
    ...), and gives every example a number of its own, whatever stands beside it: stacks and padding need that.
    """

    outputs_are: ClassVar[str] = "numbers"  # what an exported model gives
    leads: ClassVar[tuple[str, ...]] = ()  # metrics that choices go by: the first that there is, or the loss
    votes: ClassVar[Literal["", "class", "labels"]] = ""  # what models may vote for
    averages: ClassVar[bool] = True  # the mean of several models' outputs is an answer
    placed: ClassVar[bool] = False  # targets are places in an image: they move when augmenting moves the image

    def fitted(self, module: nn.Module) -> Self:
        """The same goal, knowing the model, where that says how its outputs are read; refuses one that cannot do it."""
        return self

    def wanted(self, n_outputs: int, target: tuple[int, ...]) -> tuple[int, ...] | None:
        """The shape of one example's outputs, of a target's shape and the numbers a model puts out; None: any."""
        return (n_outputs,)

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every example, (n,)."""

    def answers(self, outputs: Tensor) -> Tensor:
        """What the model says, (n, ...): what is compared with the targets."""
        return outputs

    def merit(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How well each example is served, (n,), more is better."""
        return -self.loss(outputs, targets)

    # -- scores: what is noted of every example, and what it comes to ------------------------------------------

    def room(self, n_outputs: int, target: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of what is noted of one example."""
        return ()

    def noted(self, outputs: Tensor) -> Tensor:
        """What scores are made of beside the losses, (n, *room) in float64; by default nothing."""
        return outputs.new_zeros(len(outputs)).double()

    def score(
        self, noted: Reals, targets: Numbers, losses: Reals, owner: Integers, n_clients: int, classes: tuple[str, ...]
    ) -> Scores:
        """The scores of every client, of what was noted, the target, the loss and the owner of every example."""
        count = np.bincount(owner, minlength=n_clients)
        return Scores(count, mean_by_client(losses, owner, count))

    # -- told to people: a row of a table for each example ----------------------------------------------------

    def probabilities(self, outputs: Tensor) -> Tensor | None:
        """Of every class or label, (n, n_outputs); None where there are none."""
        return None

    def right(self, answers: Tensor, targets: Tensor) -> Tensor | None:
        """The share of what was told that is right, (n,); None where answers are not right or wrong."""
        return None

    def off(self, answers: Tensor, targets: Tensor) -> dict[str, float]:
        """How far answers are off, over all of them, where none is right or wrong."""
        return {}

    def told(self, answer: Tensor, heads: tuple[str, ...]) -> dict[str, Any]:
        """One answer, or one target, as cells of a table by what they are of; by an empty name where it is one."""
        each = answer.reshape(-1).tolist()
        return {"": each[0]} if len(each) == 1 else dict(zip(map(str, heads), each, strict=False))
