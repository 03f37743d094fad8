"""Dual coordinate ascent on the hinge loss: a linear model per client, one example at a time (MOCHA's local solver).

    P  =  sum_t 1/n_t sum_i max(0, 1 - y_ti x_ti^T w_t)  +  lambda/2 tr(W^T Sigma^-1 W),     rows w_t
    D  =  sum_t 1/n_t sum_i alpha_ti y_ti                -  the same penalty at W(alpha),    0 <= alpha_ti y_ti <= 1
    b_t  =  1/n_t sum_i alpha_ti x_ti,      W(alpha)  =  Sigma B / lambda

    a step on example i, with s = `stiffness`:
        beta   <-  clip( alpha y + n_t (1 - y x^T (w_t + delta)) / (s |x|^2), 0, 1 )
        delta  +=  s (y beta - alpha) x / n_t,      alpha <- y beta

Several classes are one problem each against the rest, with the same Sigma; for two classes the two problems mirror each
other and the classifier is the usual one. The last number of x is 1: a bias, under the same penalty as the rest.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import require
from ..stacks.cohort import Cohort
from ..stacks.draw import uniform
from ..stacks.stack import Layout, Stacks
from ..tasks.task import Batch, Task
from .batches import Plan
from .learner import Client, Learner


@dataclass(frozen=True)
class Sdca(Learner):
    """A `share` of n_t coordinate steps in a round, along shuffles of the examples; b_t goes up as `model`.

    The dual variables stay with the client under the name `alpha`, one for each example and class, as many as the
    largest client has examples; places beyond its own are never touched. A straggler does its share of the steps.
    `primal` and `dual` are the client's part of P and D at the model it received: their sums over all clients differ by
    the duality gap.
    """

    share: float = 0.5
    shuffle: bool = True  # False: in their order, from the first; for looking

    def __post_init__(self) -> None:
        require(
            0 < self.share <= 1000,
            f"share of the examples in a round must be in (0, 1000], got {self.share}; try 0.5",
        )

    def keeps_each(self, like: Tensor, largest: int, n_outputs: int) -> Stacks:
        """Dual variables of zero."""
        return {"alpha": like.new_zeros(1, largest * n_outputs)}

    def plan(self, cohort: Cohort) -> Plan:
        """One look at all examples, in their order; the coordinate steps are inside."""
        return Plan(torch.ones_like(cohort.sizes), None, shuffle=False)

    def work(self, cohort: Cohort) -> Plan:
        """Inside its single look, a step on an example each."""
        return Plan((cohort.effort * self.share * cohort.sizes).ceil().long().clamp(min=1), 1)

    def begin(self, rows: Stacks, cohort: Cohort, task: Task) -> Stacks:
        """The duals, and which example every step takes, (block, steps); -1 where a client has done its share."""
        model = rows["model"]
        check_linear(task)
        steps = self.work(cohort).steps
        most = int(steps.max())
        order = shuffles(cohort, most) if self.shuffle else torch.arange(most) % cohort.sizes[:, None]
        order = torch.where(torch.arange(order.shape[1]) < steps[:, None], order, -1)
        blank = model.new_zeros(len(cohort), 1)
        carry = {"alpha": rows["alpha"], "order": order.to(model.device), "model": model}
        return carry | {"primal": blank, "dual": blank}

    def step(self, carry: Stacks, row: Stacks, batch: Batch, client: Client) -> Stacks:
        """All coordinate steps of one client."""
        layout = client.task.layouts["model"]
        w = joined(layout, row["model"])  # (classes, inputs + 1)
        n = (batch.weight > 0).sum().to(w.dtype)
        there = (batch.weight > 0).to(w.dtype)[:, None]
        x = torch.cat([batch.x.flatten(1), torch.ones_like(batch.x.flatten(1)[:, :1])], 1) * there
        y = 2.0 * torch.nn.functional.one_hot(batch.y.long(), len(w)).to(w.dtype) - 1  # (examples, classes)
        alpha = carry["alpha"].view(-1, len(w))
        mine = alpha[: len(x)] * there
        gain, half = (mine * y).sum() / n, (w * (mine.mT @ x / n)).sum() / 2
        hinge = ((1 - y * (x @ w.mT)).clamp(min=0) * there).sum() / n

        s, norm, beta = row["stiffness"][0], x.square().sum(1), mine * y
        for i in carry["order"].unbind(-1):
            at = i.clamp(min=0)
            xi, yi, old, length = x[at], y[at], beta[at], norm[at]
            move = n * (1 - yi * (w @ xi)) / (s * length.clamp(min=torch.finfo(w.dtype).tiny))
            new = torch.where((length > 0) & (i >= 0), (old + move).clamp(0, 1), old)
            w = w + (s / n) * torch.outer(yi * (new - old), xi)
            beta = beta.index_copy(0, at[None], new[None])

        alpha = torch.cat([beta * y * there, alpha[len(x) :]])
        total = (beta * y).mT @ x / n
        after = {"alpha": alpha.reshape(-1), "order": carry["order"], "model": parted(layout, total)}
        return after | {"primal": (hinge + half)[None], "dual": (gain - half)[None]}

    def end(self, carry: Stacks, rows: Stacks, cohort: Cohort) -> Stacks:
        """Dual sums, dual variables, and what is told of the objectives."""
        return {name: carry[name] for name in ("alpha", "model", "primal", "dual")}


def shuffles(cohort: Cohort, steps: int) -> Tensor:
    """Examples of every client in random order, pass after pass, (block, steps); keyed by client and pass."""
    largest = int(cohort.sizes.max())
    place, passes = torch.arange(largest), -(-steps // int(cohort.sizes.min()))
    each = []
    for number in range(passes):
        key = uniform(cohort.seed, cohort.round, "sdca", number, cohort.index[:, None], place)
        each.append(torch.where(place < cohort.sizes[:, None], key, 2.0).argsort(1))
    s = torch.arange(steps)
    which, at = s // cohort.sizes[:, None], s % cohort.sizes[:, None]
    return torch.stack(each)[which, torch.arange(len(cohort))[:, None], at]


def joined(layout: Layout, row: Tensor) -> Tensor:
    """Weights and bias of a linear model as one matrix, (classes, inputs + 1)."""
    parts = list(layout.views(row).values())
    return torch.cat([parts[0], parts[1][:, None] if len(parts) > 1 else torch.zeros_like(parts[0][:, :1])], 1)


def parted(layout: Layout, matrix: Tensor) -> Tensor:
    """The row that holds weights and bias."""
    parts = [matrix[:, :-1].reshape(-1), matrix[:, -1]]
    return torch.cat(parts[: len(layout.names)])


def check_linear(task: Task) -> None:
    """Refuse a model that is not one linear layer, and targets that are not classes."""
    shapes = task.layouts["model"].shapes
    linear = len(task.layouts) == 1 and len(shapes) == 2 and len(shapes[0]) == 2 and shapes[1] == shapes[0][:1]
    require(
        linear and shapes[0][0] > 1,
        f"dual coordinate ascent needs a linear model with a bias and an output for each class, not "
        f"{type(task.module).__name__} with parameters {', '.join(task.layouts['model'].names)}: use --model logistic",
    )
