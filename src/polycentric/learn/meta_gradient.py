"""Learning to be adapted: the gradient of the loss *after* a client has taken a few steps.

    theta_0 = theta,   theta_j = theta_{j-1} - beta grad L(theta_{j-1}),   j = 1 .. K

    MAML      g = J_1 J_2 ... J_K grad L(theta_K),   J_j = I - beta H(theta_{j-1})
    FOMAML    g = grad L(theta_K)                    the same with every J_j = I

The product runs from the right: v <- grad L(theta_K), then v <- v - beta H(theta_{j-1}) v for j = K .. 1, each a
Hessian-vector product. No Hessian is ever formed.
Reference: Finn et al., Model-agnostic meta-learning, ICML 2017, https://arxiv.org/abs/1703.03400
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import LARGEST_FLOAT, require
from ..stacks.cohort import Cohort
from ..stacks.stack import Stacks
from ..tasks.task import Batch, Task
from .batches import MOST_STEPS, Plan, plan_of
from .gradient import grad
from .learner import Client, Learner
from .train import Train


@dataclass(frozen=True)
class Maml(Learner):
    """Sends `start - g`, so that a center's SGD(lr) step is a step along the mean meta-gradient.

    `held_out`: the outer loss is on the second half of the batch, the inner steps on the first (MAML proper); otherwise
    both are on the whole batch.
    """

    lr: float = 0.05  # beta, the rate of the inner steps
    steps: int = 5  # K, inner steps
    batch: int | None = None  # examples of the client that are used; None: all
    held_out: bool = False
    first_order: bool = False  # leave the Hessians out (FOMAML)

    def __post_init__(self) -> None:
        require(0 <= self.lr <= LARGEST_FLOAT, f"lr must be >= 0, got {self.lr}; try 0.05")
        require(self.steps >= 1, f"steps must be at least 1, got {self.steps}; lr=0 takes the gradient where it is")
        require(self.steps <= MOST_STEPS, f"a round has at most {MOST_STEPS:,} steps, got {self.steps}")
        least = 2 if self.held_out else 1
        require(self.batch is None or self.batch >= least, f"batch must be at least {least} or None, got {self.batch}")

    @property
    def passes(self) -> float:  # type: ignore[override]
        """A gradient for every inner step and for the outer one; a Hessian-vector product is worth two."""
        return self.steps + 1 if self.first_order else 3 * self.steps + 1

    @property
    def trains_like(self) -> Train:
        """Its inner steps."""
        return Train(lr=self.lr, batch=self.batch)

    def plan(self, cohort: Cohort) -> Plan:
        """One batch."""
        most = int(cohort.sizes.max()) if self.batch is None and self.held_out else self.batch
        return plan_of(cohort, 1, 1, most)  # a number, so that examples are shuffled before they are halved

    def begin(self, rows: Stacks, cohort: Cohort, task: Task) -> Stacks:
        """The model."""
        return {"model": rows["model"]}

    def step(self, carry: Stacks, row: Stacks, batch: Batch, client: Client) -> Stacks:
        """The whole of it: inner steps, then the gradient pulled back through them."""
        inner, outer = self.halves(batch) if self.held_out else (batch, batch)

        def gradient_on(batch: Batch) -> Callable[[Tensor], Tensor]:
            return grad(lambda model: client.task.mean_loss(row | {"model": model}, batch))

        gradient = gradient_on(inner)
        path = [carry["model"]]
        for _ in range(self.steps):
            path.append(path[-1] - self.lr * gradient(path[-1]))
        v = gradient_on(outer)(path[-1])
        if not self.first_order:
            for theta in reversed(path[:-1]):
                v = v - self.lr * curvature_along(gradient, theta, v)
        return {"model": carry["model"] - v}

    @staticmethod
    def halves(batch: Batch) -> tuple[Batch, Batch]:
        """The first and the second half of the examples that are there; one example counts in both."""
        there = batch.weight > 0
        place, n = torch.cumsum(there, 0), there.sum()
        first, second = there & (2 * place <= n + 1), there & ((2 * place > n + 1) | (n == 1))

        def of(which: Tensor) -> Batch:
            weight = which.to(batch.weight.dtype)
            return batch._replace(weight=weight / weight.sum().clamp(min=1))

        return of(first), of(second)

    def end(self, carry: Stacks, rows: Stacks, cohort: Cohort) -> Stacks:
        """`start - g`."""
        return carry


def curvature_along(gradient: Callable[[Tensor], Tensor], theta: Tensor, v: Tensor) -> Tensor:
    """H(theta) v, where `gradient` is the gradient: the gradient of <gradient, v> with v held fixed."""
    v = v.detach()
    along: Tensor = grad(lambda at: (gradient(at) * v).sum())(theta)
    return along
