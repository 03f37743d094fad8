"""One client after another, in plain PyTorch: the readable reference that every other executor must equal."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..cohort import Cohort
from ..data import Split
from ..draw import seeded
from ..stack import Stacks
from ..task import Batch, Task
from .batches import Schedule
from .executor import Client, Learner


class Looped:
    """Runs a learner with a Python loop over clients and steps; an error names the client and the step."""

    def __init__(self, task: Task, split: Split) -> None:
        self.task, self.split = task, split
        self.client = Client(task, gradient)

    def __call__(self, learner: Learner, rows: Stacks, cohort: Cohort) -> Stacks:
        """Every client in turn; the carries are stacked at the end."""
        schedule = Schedule(self.split, cohort, learner.plan(cohort))
        carry = learner.begin(rows, cohort, self.task)
        done = []
        for k, (client, n_steps) in enumerate(zip(cohort.index.tolist(), schedule.steps, strict=True)):
            row, mine = {n: v[k] for n, v in rows.items()}, {n: v[k] for n, v in carry.items()}
            counts = schedule.counts[:, k].tolist()
            with seeded(self.task.device, cohort.seed, cohort.round, client, "modules"):  # dropout and the like
                for s in range(n_steps):
                    try:
                        mine = learner.step(mine, row, self._batch(schedule, s, k, counts[s]), self.client)
                    except Exception as error:
                        error.add_note(f"at client {client}, step {s} of round {cohort.round}")
                        raise
            done.append(mine)
        return learner.end({name: torch.stack([mine[name] for mine in done]) for name in carry}, rows, cohort)

    def _batch(self, schedule: Schedule, s: int, k: int, count: int) -> Batch:
        index = schedule.index[s, k, :count]
        weight = schedule.weight[s, k, :count].to(self.task.dtype)
        return Batch(self.task.inputs(self.split.x[index]), self.task.targets(self.split.y[index]), weight)

    def outputs(self, rows: Stacks, x: Tensor) -> Tensor:
        """Every client's model on its own examples."""
        with torch.no_grad():
            each = [self.task.predict({n: v[k] for n, v in rows.items()}, mine) for k, mine in enumerate(x)]
        return torch.stack(each)


def gradient(objective: Callable[[Stacks], Tensor], params: Stacks) -> Stacks:
    """The gradient by ordinary autograd."""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    with torch.enable_grad():
        value = objective(leaves)
    grads = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, grads, strict=True))
