"""A client that is shown several models and takes the one that fits its own training examples best."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..cohort import Cohort
from ..errors import require
from ..stack import Stacks
from ..task import Batch, Task
from .batches import Plan
from .executor import Client, Learner
from .look import examples_in, once_over


def candidates(k: int) -> tuple[str, ...]:
    """The names under which K models come down."""
    return tuple(f"candidate{j}" for j in range(k))


@dataclass(frozen=True)
class Choose(Learner):
    """Makes the best of `candidate0` .. `candidate(K-1)` the client's `model`; its number is `choice`.

        choice_i = argmin_k F_i(c_k),     F_i the mean loss over all training examples of client i

    The lowest number wins ties, and a loss that is not finite never wins; a client without examples, or for which no
    loss is finite, takes the first.
    """

    k: int

    def __post_init__(self) -> None:
        require(self.k >= 1, f"Choose.k must be at least 1, got {self.k}")

    def plan(self, cohort: Cohort) -> Plan:
        """Every example once."""
        return once_over(cohort)

    def begin(self, rows: Stacks, cohort: Cohort, task: Task) -> Stacks:
        """Sums of zero."""
        like = rows["candidate0"]
        return {"sum": like.new_zeros(len(cohort), self.k), "seen": like.new_zeros(len(cohort))}

    def step(self, carry: Stacks, row: Stacks, batch: Batch, client: Client) -> Stacks:
        """Add the losses of some examples, at every candidate."""
        losses = [client.task.quiet_loss(row | {"model": row[name]}, batch).detach() for name in candidates(self.k)]
        n = examples_in(batch)
        return {"sum": carry["sum"] + n * torch.stack(losses), "seen": carry["seen"] + n}

    def end(self, carry: Stacks, rows: Stacks, cohort: Cohort) -> Stacks:
        """The candidate of the lowest mean loss."""
        loss = carry["sum"] / carry["seen"][:, None]
        best = torch.where(loss.isfinite(), loss, math.inf).argmin(1)
        model = rows["candidate0"]
        for j, name in enumerate(candidates(self.k)[1:], start=1):
            model = torch.where((best == j)[:, None], rows[name], model)
        return {"model": model, "choice": best[:, None].to(model.dtype)}
