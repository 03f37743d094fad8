"""All clients of a block at once: `torch.func.vmap` over the client axis, one step at a time.

Clients of unequal size take unequal numbers of steps. The block is sorted by steps, so that at step s the
clients still at work are a prefix of the rows: nobody waits, and nothing is computed to be thrown away.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, vmap

from ..cohort import Cohort
from ..data import Split
from ..draw import seed_of
from ..stack import Stacks
from ..task import Batch, Task
from .batches import Schedule
from .executor import Client, Learner


class Stacked:
    """Runs a learner's step for a whole block as one batched program."""

    def __init__(self, task: Task, split: Split) -> None:
        self.task, self.split = task, split
        self.client = Client(task, gradient)

    def __call__(self, learner: Learner, rows: Stacks, cohort: Cohort) -> Stacks:
        """The longest work first; those who are done leave from the end."""
        plan = learner.plan(cohort)
        order = torch.argsort(plan.steps, descending=True, stable=True)
        sorted_already = bool((order == torch.arange(len(order))).all())
        if not sorted_already:
            by = order.to(next(iter(rows.values())).device)
            plan = type(plan)(plan.steps[order], plan.batch, plan.shuffle)
            rows, cohort = {n: v[by] for n, v in rows.items()}, cohort[order]
        schedule = Schedule(self.split, cohort, plan)
        carry = self._scan(learner, learner.begin(rows, cohort, self.task), rows, cohort, schedule)
        out = learner.end(carry, rows, cohort)
        if sorted_already:
            return out
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return {name: value[back.to(value.device)] for name, value in out.items()}

    def _scan(self, learner: Learner, carry: Stacks, rows: Stacks, cohort: Cohort, schedule: Schedule) -> Stacks:
        def step(carry: Stacks, row: Stacks, batch: Batch) -> Stacks:
            return learner.step(carry, row, batch, self.client)

        every = vmap(step, randomness="different")
        weight = schedule.weight.to(self.task.dtype)
        steps, active, finished = schedule.steps, len(cohort), []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(cohort.seed, cohort.round, int(cohort.index[0]), "modules"))
            for s in range(schedule.n_steps):
                going = sum(1 for n in steps[:active] if n > s) if steps[active - 1] <= s else active
                if going < active:
                    finished.append({name: value[going:] for name, value in carry.items()})
                    carry = {name: value[:going] for name, value in carry.items()}
                    rows = {name: value[:going] for name, value in rows.items()}
                    active = going
                index = schedule.index[s, :active]
                x, y = self.task.inputs(self.split.x[index]), self.task.targets(self.split.y[index])
                carry = every(carry, rows, Batch(x, y, weight[s, :active]))
        parts = [carry, *reversed(finished)]
        return {name: torch.cat([part[name] for part in parts]) for name in carry} if finished else carry

    def outputs(self, rows: Stacks, x: Tensor) -> Tensor:
        """Every client's model on its own examples."""
        with torch.no_grad():
            return vmap(self.task.outputs, randomness="different")(rows, x)


def gradient(objective: Callable[[Stacks], Tensor], params: Stacks) -> Stacks:
    """The gradient as a function, so that it can be batched."""
    return dict(grad(objective)(params))
