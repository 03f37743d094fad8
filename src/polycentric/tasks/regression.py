"""One number, or several: half the squared error.

    outputs z (n, targets)      targets y (n,) or (n, targets)      loss  1/2 sum_j (z_j - y_j)^2      answer  z

For client i, `rmse` is the root of the mean squared error and `mae` the mean absolute error; micro_rmse is that of all
examples, and r2 = 1 - sum (z - y)^2 / sum (y - mean y)^2 of all of them together.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from .goal import Goal, Numbers
from .scores import Integers, Mark, Reals, Scores, mean_by_client


class Regression(Goal):
    """Numbers to predict."""

    outputs_are = "the numbers themselves"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Half the squared error of every example, summed over the numbers to predict."""
        return squared_error(outputs, targets)

    def answers(self, outputs: Tensor) -> Tensor:
        """The outputs."""
        return outputs.double()

    def room(self, n_outputs: int, target: tuple[int, ...]) -> tuple[int, ...]:
        """Every number."""
        return (n_outputs,)

    def noted(self, outputs: Tensor) -> Tensor:
        """The outputs."""
        return outputs.double()

    def score(
        self, noted: Reals, targets: Numbers, losses: Reals, owner: Integers, n_clients: int, classes: tuple[str, ...]
    ) -> Scores:
        """How far off the numbers are."""
        return score_numbers(noted, targets, losses, owner, n_clients)

    def off(self, answers: Tensor, targets: Tensor) -> dict[str, float]:
        """Over all examples and numbers."""
        off = answers - targets.double().reshape(answers.shape)
        return {"rmse": float(off.square().mean().sqrt()), "mae": float(off.abs().mean())}


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error of every example, summed over the numbers to predict."""
    if outputs.dim() > targets.dim():
        return (outputs.squeeze(-1) - targets).square() / 2
    return (outputs - targets).square().sum(-1) / 2


def score_numbers(answers: Reals, y: Reals, losses: Reals, owner: Integers, n_clients: int) -> Scores:
    """Scores of every client from the numbers predicted, (examples, targets), and the true ones."""
    y = y.reshape(answers.shape).astype(np.float64)
    count = np.bincount(owner, minlength=n_clients)
    off = answers - y
    with np.errstate(over="ignore", invalid="ignore"):
        square = off**2
    rmse = Mark(np.sqrt(mean_by_client(square.mean(1), owner, count)), lower_is_better=True, root=True)
    mae = Mark(mean_by_client(np.abs(off).mean(1), owner, count), lower_is_better=True)
    spread = ((y - y.mean(0)) ** 2).sum(0) if len(y) else np.zeros(1)
    r2 = float((1 - square.sum(0) / spread).mean()) if (spread > 0).all() else float("nan")
    loss = mean_by_client(losses, owner, count)
    return Scores(count, loss, pooled={"r2": r2}, marks={"rmse": rmse, "mae": mae})
