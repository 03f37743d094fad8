"""Terms that a client adds to its loss.

    term.penalty(row)               a number added to the loss; its gradient comes by itself
    term.correct(new, row, lr)      a change after the step, for terms too stiff for a gradient

`row` holds everything the client has, by name: `model` where it is, `start` where it began this round,
and whatever else it received or keeps. A term can be added to every method that trains.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass

from torch import Tensor

from .errors import require
from .stack import Stacks


class Term(ABC):  # noqa: B024 - both verbs have a meaning when left out
    """Something a client minimises besides its loss."""

    def penalty(self, row: Stacks) -> Tensor | float:
        """A number, differentiable in `row["model"]`."""
        return 0.0

    def correct(self, new: Tensor, row: Stacks, lr: Tensor | float) -> Tensor:
        """The model after a step of size `lr`, corrected."""
        return new


@dataclass(frozen=True)
class Prox(Term):
    """mu/2 |w - start|^2: a client is tied to what it received (FedProx).

    The explicit step oscillates where lr * mu > 1 and diverges where lr * mu > 2. The implicit one,

        w  <-  (w - lr g + lr mu start) / (1 + lr mu),

    solves the penalty's part of the step exactly and is stable for every mu.
    """

    mu: float
    implicit: bool = False

    def __post_init__(self) -> None:
        require(self.mu >= 0, f"Prox.mu must not be negative, got {self.mu}")

    def penalty(self, row: Stacks) -> Tensor | float:
        """mu/2 |w - start|^2, unless the step is implicit."""
        if self.implicit or self.mu == 0:
            return 0.0
        return self.mu / 2 * (row["model"] - row["start"]).square().sum()

    def correct(self, new: Tensor, row: Stacks, lr: Tensor | float) -> Tensor:
        """The implicit step."""
        if not self.implicit:
            return new
        return (new + lr * self.mu * row["start"]) / (1 + lr * self.mu)
