"""A client that is shown several models and takes the one that fits its own training examples best."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import require
from ..stacks.cohort import Cohort
from ..stacks.stack import Stacks
from ..tasks.task import Batch, Task
from .batches import Plan
from .learner import Client, Learner
from .measure import OnceOver, examples_in
from .train import Train

MOST = 10_000  # models that come down to one client


def candidates(k: int) -> tuple[str, ...]:
    """The names under which K models come down."""
    require(k <= MOST, f"k must be at most {MOST:,} where all centers come down to a client, got {k}")
    return tuple(f"candidate{j}" for j in range(k))


def least(numbers: Tensor) -> Tensor:
    """Where the least finite number of every row stands, (rows,); -1 where there is none."""
    some = numbers.isfinite()
    return torch.where(some.any(1), torch.where(some, numbers, math.inf).argmin(1), -1)


@dataclass(frozen=True)
class Choose(OnceOver):
    """Makes the best of `candidate0` .. `candidate(K-1)` the client's `model`; its number is `choice`.

        choice_i = argmin_k F_i(c_k),     F_i the mean loss over all training examples of client i

    The lowest number wins ties, and a loss that is not finite never wins. A client without examples, or for which no
    loss is finite, takes the first, and tells -1.
    """

    k: int

    def __post_init__(self) -> None:
        require(self.k >= 1, f"Choose.k must be at least 1, got {self.k}")

    @property
    def passes(self) -> float:  # type: ignore[override]
        """K losses, without the way back."""
        return self.k / 3

    def fitted(self, n_clients: int) -> Choose:
        """No more candidates than there are clients, as the topology has them."""
        return replace(self, k=min(self.k, max(1, n_clients)))

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
        best = least(carry["sum"] / carry["seen"][:, None])
        model = rows["candidate0"]
        for j, name in enumerate(candidates(self.k)[1:], start=1):
            model = torch.where((best == j)[:, None], rows[name], model)
        return {"model": model, "choice": best[:, None].to(model.dtype)}


@dataclass(frozen=True)
class TryEach(Learner):
    """Trains a little from every candidate, and tells from which it moved least: FeSEM's E-step for a newcomer.

        choice_i = argmin_k |w_i(k) - c_k|^2,     w_i(k) what client i learns from c_k

    Its own model would be nearest to wherever it began, so it begins everywhere. -1 where no distance is finite.
    """

    k: int
    train: Train

    @property
    def passes(self) -> float:  # type: ignore[override]
        """K times the training."""
        return self.k * self.train.passes

    def plan(self, cohort: Cohort) -> Plan:
        """As training."""
        return self.train.plan(cohort)

    def begin(self, rows: Stacks, cohort: Cohort, task: Task) -> Stacks:
        """What training carries, once for each candidate."""
        carry: Stacks = {}
        for name in candidates(self.k):
            mine = self.train.begin(self._here(rows, name), cohort, task)
            carry |= {f"{name}/{part}": value for part, value in mine.items()}
        return carry

    def step(self, carry: Stacks, row: Stacks, batch: Batch, client: Client) -> Stacks:
        """A step from each."""
        new: Stacks = {}
        for name in candidates(self.k):
            mine = {part.removeprefix(f"{name}/"): v for part, v in carry.items() if part.startswith(f"{name}/")}
            mine = self.train.step(mine, self._here(row, name), batch, client)
            new |= {f"{name}/{part}": value for part, value in mine.items()}
        return new

    def end(self, carry: Stacks, rows: Stacks, cohort: Cohort) -> Stacks:
        """The candidate with the shortest way."""
        moved = [carry[f"{name}/model"] - rows[name] for name in candidates(self.k)]
        way = torch.stack([each.square().sum(1, dtype=torch.float64) for each in moved], dim=1)
        return {"choice": least(way)[:, None].to(rows["candidate0"].dtype)}

    @staticmethod
    def _here(rows: Stacks, name: str) -> Stacks:
        return rows | {"model": rows[name], "start": rows[name]}
