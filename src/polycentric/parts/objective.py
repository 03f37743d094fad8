"""Terms that a client adds to its loss.

    term.penalty(row)               a number added to the loss; its gradient comes by itself
    term.correct(new, row, lr)      a change after the step, for terms too stiff for a gradient

`row` holds everything the client has, by name: `model` where it is, `start` where it began this round,
and whatever else it received or keeps. A term can be added to every method that trains.
"""

import math
import warnings
from abc import ABC
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..errors import within
from ..language import register
from ..stacks.stack import Stacks


class Term(ABC):  # noqa: B024 - both verbs have a meaning when left out
    """Something a client minimises besides its loss."""

    blind: ClassVar[bool] = False  # it reads the model and what came down, and nothing else that examples have told

    def penalty(self, row: Stacks) -> Tensor | float:
        """A number, differentiable in `row["model"]`."""
        return 0.0

    def correct(self, new: Tensor, row: Stacks, lr: Tensor | float) -> Tensor:
        """The model after a step of size `lr`, corrected."""
        return new

    def check(self, rows: Stacks, lr: float) -> None:  # noqa: B027 - most terms have nothing to say
        """Warn, before a block begins, if steps of size `lr` are too long for this term."""


@dataclass(frozen=True)
class Prox(Term):
    """mu/2 |w - start|^2: a proximal term, which ties a client to the model it received (FedProx).

    The explicit step oscillates where lr * mu > 1 and diverges where lr * mu > 2. The implicit one,

        w  <-  (w - lr g + lr mu start) / (1 + lr mu),

    solves the penalty's part of the step exactly and is stable for every mu.
    """

    mu: float
    implicit: bool = False
    blind = True

    def __post_init__(self) -> None:
        within(self, mu=">= 0; try 0.1")

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


@dataclass(frozen=True)
class AdaptiveProx(Term):
    """mu/2 |w - start|^2 with a mu that comes down from the center, which raises and lowers it."""

    blind = True

    def penalty(self, row: Stacks) -> Tensor | float:
        """mu/2 |w - start|^2."""
        return row["mu"][0] / 2 * (row["model"] - row["start"]).square().sum()


@dataclass(frozen=True)
class Ball(Term):
    """No step leads farther than `radius` from the model received.

        w  <-  start + (w - start) min(1, radius / |w - start|)

    What a client sends is then short already, and a clip changes little.
    """

    radius: float
    blind = True

    def __post_init__(self) -> None:
        within(self, radius="> 0; try 1")

    def correct(self, new: Tensor, row: Stacks, lr: Tensor | float) -> Tensor:
        """Back to the ball."""
        if self.radius == math.inf:
            return new
        way = new - row["start"]
        return row["start"] + way * (self.radius / way.square().sum().sqrt().clamp(min=self.radius))


@dataclass(frozen=True)
class Dane(Term):
    """<g - grad F_k(w), x>: the client's gradient is corrected to the mean gradient of all (FedDANE).

    `gradient` comes from the center, `own_gradient` is the client's own, both at the model received.
    """

    def penalty(self, row: Stacks) -> Tensor | float:
        """Linear in the model."""
        return ((row["gradient"] - row["own_gradient"]) * row["model"]).sum()


@dataclass(frozen=True)
class Ridge(Term):
    """strength/2 |w|^2 of the parameters that go under one name."""

    strength: float
    name: str = "model"
    blind = True

    def __post_init__(self) -> None:
        within(self, strength=">= 0; try 0.0001")

    def penalty(self, row: Stacks) -> Tensor | float:
        """Nothing where the strength is zero."""
        return self.strength / 2 * row[self.name].square().sum() if self.strength else 0.0


@dataclass(frozen=True)
class MultiTask(Term):
    """The client's part of strength/2 tr(W^T Q W), with all other tasks as they were at the last exchange.

        gradient  =  strength ( Q_kk w_k + sum_{i != k} Q_ki w_i )

    `task` is w_k where it is now; `stiffness` = Q_kk and `pull` = sum_{i != k} Q_ki w_i came down and stay while the
    client trains. One step needs lr * strength * (largest eigenvalue of Q) < 2.
    """

    strength: float
    blind = True

    def __post_init__(self) -> None:
        within(self, strength=">= 0; try 0.001")

    def penalty(self, row: Stacks) -> Tensor | float:
        """Quadratic in the own task, linear in the others'."""
        if not self.strength:
            return 0.0
        w = row["task"]
        return self.strength * (row["stiffness"][0] / 2 * w.square().sum() + (row["pull"] * w).sum())


@dataclass(frozen=True)
class Curvature(Term):
    """lambda sum_j (w - w_j)^T diag(I_j) (w - w_j) over the *other* clients j, up to a constant (EWC, FedCurv).

        = lambda [ u.w^2 - 2 v.w ],     u = sum_j I_j - I_own,    v = sum_j I_j w_j - I_own w_own

    Two sums carry it, whatever the number of clients. `fisher` and `pull` are the sums that came down, `own_fisher`
    and `own_pull` the client's share of them. Rounding may leave u a little below zero; it is cut off there.
    Stability: the explicit step needs 2 lr lambda max(u) < 2, and warns where it is not. The implicit one,

        w  <-  (w - lr g + 2 lr lambda v) / (1 + 2 lr lambda u),

    solves the penalty's part of the step exactly, coordinate by coordinate, and is stable always.
    """

    strength: float  # lambda; 1/2 makes it the second-order expansion of the others' losses where I is the Hessian
    implicit: bool = False

    def __post_init__(self) -> None:
        within(self, strength=">= 0; try 0.1")

    def penalty(self, row: Stacks) -> Tensor | float:
        """Quadratic in the model, with a diagonal curvature; nothing if the step is implicit."""
        if self.implicit:
            return 0.0
        u, v = self.sums(row)
        w = row["model"]
        return self.strength * (u * w.square() - 2 * v * w).sum()

    def correct(self, new: Tensor, row: Stacks, lr: Tensor | float) -> Tensor:
        """The implicit step."""
        if not self.implicit:
            return new
        u, v = self.sums(row)
        return (new + 2 * lr * self.strength * v) / (1 + 2 * lr * self.strength * u)

    def sums(self, row: Stacks) -> tuple[Tensor, Tensor]:
        """(u, v): the others' part of what came down."""
        return (row["fisher"] - row["own_fisher"]).clamp(min=0), row["pull"] - row["own_pull"]

    def check(self, rows: Stacks, lr: float) -> None:
        """2 lr lambda max(u) < 2, for everybody of the block."""
        if self.implicit or not self.strength:
            return
        steepest = float(self.sums(rows)[0].max())
        if lr * self.strength * steepest >= 1:
            warnings.warn(
                f"2 lr strength max(u) = {2 * lr * self.strength * steepest:.2g} is not below 2, so the steps on the "
                f"curvature penalty diverge: use implicit=True, or a strength below {1 / (lr * steepest):.2g}",
                stacklevel=2,
            )


register(Term, "ball", Ball, short="radius")
register(Term, "prox", Prox)
