"""All clients of a block at once: `torch.func.vmap` over the client axis, and one scan over the block's steps.

The block is sorted by steps, its batches are drawn, and a *scan* takes the steps: as they are (`launch`), as CUDA
graphs (`captured`), or recorded and replayed (`traced`). On a GPU convolutions, max pools and dense layers run as
kernels of our own (`gpu.overrides`), and models move in place (`gpu.in_place`).

Modules that draw by themselves (dropout) draw for a whole block here: the same bits for the same block, but not
those of the looped executor.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ...data import Split
from ...stacks.cohort import Cohort
from ...stacks.draw import seeded
from ...stacks.stack import Stacks, to_device_of
from ...tasks.task import Batch, Task
from ..batches import BatchSchedule, batch_at
from ..gpu.in_place import descend
from ..gpu.overrides import use_gpu_kernels
from ..gradient import grad, vmap
from ..learner import Client, Executor, Learner
from . import looped
from .captured import Captured
from .scan import Scan, Steps, clients_in, copied, over_stretches
from .stackable import draws

FEW = 2  # clients whose steps cost less one after another than in a stack (docs/speed.md)


class Stacked(Executor):
    """Runs a learner's steps for a whole block at once.

    Arguments:
        task: what is learned.
        split: everybody's examples.
        scan: how the steps are taken; None: captured on a GPU, unless modules draw, and launched elsewhere.
        in_place: whether models move in place, layer by layer; None: on a GPU.
        few: so many clients or fewer are taken one after another, as the looped executor takes them, wherever that many
            are still at work: a stack's step costs more than two plain ones. None: 2 on a processor, none elsewhere.
    """

    def __init__(
        self,
        task: Task,
        split: Split,
        scan: Scan | None = None,
        in_place: bool | None = None,
        few: int | None = None,
    ) -> None:
        on_gpu = task.device.type == "cuda"
        in_place = on_gpu if in_place is None else in_place
        self.task, self.split = task, split
        self.client = Client(task, gradient, partial(descend, task) if in_place else None)
        self.alone = Client(task, looped.gradient, partial(looped.descent, task))
        self.few = (FEW if task.device.type == "cpu" else 0) if few is None else few
        self.drawing = task.device if draws(task, split.x[:2]) else None
        self.scan: Scan = scan or (Captured() if on_gpu and self.drawing is None else launch)

    def __call__(self, learner: Learner, rows: Stacks, cohort: Cohort) -> Stacks:
        """The longest work first; those who are done leave from the end."""
        plan = learner.plan(cohort)
        order = torch.argsort(plan.steps, descending=True, stable=True)
        in_order = bool((order == torch.arange(len(order))).all())
        if not in_order:
            by = to_device_of(next(iter(rows.values())), order)
            plan = replace(plan, steps=plan.steps[order])
            rows, cohort = {n: v[by] for n, v in rows.items()}, cohort[order]
        steps = self.steps(learner, BatchSchedule(self.split, cohort, plan, self.task.augment))
        with (
            seeded(self.drawing, cohort.seed, cohort.round, cohort.index[0], "modules"),
            use_gpu_kernels(self.task.device),
        ):
            carry = self.scan(steps, learner.begin(rows, cohort, self.task), rows)
        out = learner.end(carry, rows, cohort)
        if in_order:
            return out
        back = torch.argsort(order)
        return {name: value[to_device_of(value, back)] for name, value in out.items()}

    def steps(self, learner: Learner, schedule: BatchSchedule) -> Steps:
        """What a scan is given: the step of one client, for any number of them."""

        def one(client: Client, carry: Stacks, row: Stacks, batch: Batch) -> Stacks:
            return learner.step(carry, row, batch, client)

        def take(carry: Stacks, rows: Stacks, batch: Batch) -> Stacks:
            return vmap(partial(one, self.client), (0, 0, batch.axes), randomness="different")(carry, rows, batch)

        gather = partial(batch_at, self.task, self.split, schedule.augment)
        in_place = self.client.descent is not None
        return Steps(learner, take, gather, schedule, in_place, self.few, partial(one, self.alone))

    def outputs(self, rows: Stacks, x: Tensor, part: str = "") -> Tensor:
        """Every client's model, or a part of it, on its own examples."""
        with torch.no_grad(), use_gpu_kernels(self.task.device):
            return vmap(self.task.inside(part).predict, randomness="different")(rows, x)


def launch(steps: Steps, carry: Stacks, rows: Stacks) -> Stacks:
    """Every step as it is, one after another."""
    carry = copied(carry) if steps.in_place else carry
    return over_stretches(partial(launch_stretch, steps), steps.schedule.steps, carry, rows)


def launch_stretch(steps: Steps, carry: Stacks, rows: Stacks, stretch: range) -> Stacks:
    """Some steps of all clients given."""
    schedule, active = steps.schedule, clients_in(carry)
    if active <= steps.few:
        return one_by_one(steps, carry, rows, stretch)
    for s in stretch:
        carry = steps.take(carry, rows, steps.gather(schedule.index[s, :active], schedule.weight[s, :active]))
    return carry


def one_by_one(steps: Steps, carry: Stacks, rows: Stacks, stretch: range) -> Stacks:
    """Some steps of all clients given, one client after another."""
    index, weight, counts = steps.schedule.index, steps.schedule.weight, steps.schedule.counts.tolist()
    done = []
    for k in range(clients_in(carry)):
        mine, row = {n: v[k].clone() for n, v in carry.items()}, {n: v[k] for n, v in rows.items()}
        for s in stretch:
            here = slice(counts[s][k])
            mine = steps.take_alone(mine, row, steps.gather(index[s, k, here], weight[s, k, here]))
        done.append(mine)
    return {n: torch.stack([mine[n] for mine in done]) for n in done[0]}


def gradient(objective: Callable[[Stacks], Tensor], params: Stacks) -> Stacks:
    """The gradient as a function, so that it can be batched."""
    return dict(grad(objective)(params))
