"""All clients of a block at once: `torch.func.vmap` over the client axis, one step at a time.

Clients of unequal size take unequal numbers of steps. The block is sorted by steps, so that at step s the
clients still at work are a prefix of the rows: nobody waits, and nothing is computed to be thrown away. The
steps between two departures are a *stretch*, all of one shape; on a GPU the steps of a shape that comes often are
captured once as CUDA graphs and replayed, several in a row, since launching a step's many small kernels costs more than
running them. A captured step and a launched one give the same bits, so it does not matter when a capture is made.
Convolutions and max pools run as kernels of our own there (`convolve`, `pools`), and models move in place (`in_place`).

Modules that draw by themselves (dropout) draw for a whole block here: the same bits for the same block, but not
those of the looped executor.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from ..cohort import Cohort
from ..data import Split
from ..draw import seeded
from ..stack import Stacks
from ..task import Batch, Task
from .batches import Plan, Schedule, rows_at
from .executor import Client, Learner
from .in_place import descend
from .instead import convolving

Step = Callable[[Stacks, Stacks, Batch], Stacks]
OnBatch = Callable[[Stacks, Stacks, Tensor, Tensor], Stacks]  # the same, with the batch by index and weight
LONG = 8  # steps in a row that make a capture worth its cost
RUNS = (8, 2, 1)  # steps in one graph: between them nothing is copied
OFTEN = 32  # steps of one shape, in all, that do
LINE = 64  # bytes
COPIES = 2 << 30  # bytes of rows that captures may hold; their working memory they share: one is at work at a time


class Stacked:
    """Runs a learner's step for a whole block as one batched program."""

    def __init__(self, task: Task, split: Split) -> None:
        self.task, self.split = task, split
        on_gpu = task.device.type == "cuda"
        self.client = Client(task, gradient, partial(descend, task) if on_gpu else None)
        draws = any(isinstance(part, nn.modules.dropout._DropoutNd) for part in task.module.modules())
        self.captures = on_gpu and not draws
        self.graphs: dict[object, Captured] = {}
        self.seen: Counter[object] = Counter()  # steps of every shape so far
        self.pool = torch.cuda.graph_pool_handle() if self.captures else None

    def __call__(self, learner: Learner, rows: Stacks, cohort: Cohort) -> Stacks:
        """The longest work first; those who are done leave from the end."""
        plan = learner.plan(cohort)
        order = torch.argsort(plan.steps, descending=True, stable=True)
        in_order = bool((order == torch.arange(len(order))).all())
        if not in_order:
            by = order.to(next(iter(rows.values())).device)
            plan = replace(plan, steps=plan.steps[order])
            rows, cohort = {n: v[by] for n, v in rows.items()}, cohort[order]
        schedule = self._schedule(cohort, plan)
        with (
            seeded(self.task.device, cohort.seed, cohort.round, cohort.index[0], "modules"),
            convolving(self.task.device),
        ):
            carry = self._scan(learner, learner.begin(rows, cohort, self.task), rows, schedule)
        out = learner.end(carry, rows, cohort)
        if in_order:
            return out
        back = torch.argsort(order)
        return {name: value[back.to(value.device)] for name, value in out.items()}

    def _schedule(self, cohort: Cohort, plan: Plan) -> Schedule:
        return Schedule(self.split, cohort, plan)

    def _scan(self, learner: Learner, carry: Stacks, rows: Stacks, schedule: Schedule) -> Stacks:
        def one(carry: Stacks, row: Stacks, batch: Batch) -> Stacks:
            return learner.step(carry, row, batch, self.client)

        step = vmap(one, randomness="different")
        finished = []
        for first, last, active in stretches(schedule.steps):
            if active < len(next(iter(carry.values()))):
                finished.append({name: value[active:] for name, value in carry.items()})
                carry = {name: value[:active] for name, value in carry.items()}
                rows = {name: value[:active] for name, value in rows.items()}
            carry = self._stretch(learner, step, carry, rows, schedule, range(first, last))
        parts = [carry, *reversed(finished)]
        return {name: torch.cat([part[name] for part in parts]) for name in carry} if finished else carry

    def _stretch(
        self, learner: Learner, step: Step, carry: Stacks, rows: Stacks, schedule: Schedule, steps: range
    ) -> Stacks:
        active = len(next(iter(carry.values())))
        index, weight = schedule.index[:, :active], schedule.weight[:, :active]
        key = (learner, tuple(index.shape[1:]), *((name, value.shape) for name, value in (carry | rows).items()))
        stays = self.client.descent is not None  # what is carried is overwritten, and stays where it is

        def one(carry: Stacks, rows: Stacks, index: Tensor, weight: Tensor) -> Stacks:
            new = step(carry, rows, self._batch(index, weight))
            return {name: carry[name].copy_(value) for name, value in new.items()} if stays else new

        if not self.captures or not (key in self.graphs or self._worth_it(key, len(steps), carry | rows)):
            if stays and steps.start == 0:
                carry = {name: room_for(value).copy_(value) for name, value in carry.items()}
            for s in steps:
                carry = one(carry, rows, index[s], weight[s])
            return carry
        if key not in self.graphs:
            self.graphs[key] = Captured(one, carry, rows, index[0], weight[0], self.pool)
        at = slice(steps.start, steps.stop)
        return self.graphs[key].run(one, carry, rows, index[at], weight[at])

    def _worth_it(self, key: object, steps: int, held: Stacks) -> bool:
        """Whether a shape should be captured; a long stretch makes room for itself, a frequent shape does not."""
        self.seen[key] += steps
        if steps < LONG and self.seen[key] < OFTEN:
            return False
        wanted = _bytes(held)
        while steps >= LONG and self.graphs and wanted + sum(g.bytes for g in self.graphs.values()) > COPIES:
            self.graphs.pop(next(iter(self.graphs)))
        return steps >= LONG or wanted + sum(g.bytes for g in self.graphs.values()) <= COPIES

    def _batch(self, index: Tensor, weight: Tensor) -> Batch:
        x, y = self.task.inputs(rows_at(self.split.x, index)), self.task.targets(rows_at(self.split.y, index))
        return Batch(x, y, weight.to(self.task.dtype))

    def outputs(self, rows: Stacks, x: Tensor) -> Tensor:
        """Every client's model on its own examples."""
        with torch.no_grad(), convolving(self.task.device):
            return vmap(self.task.predict, randomness="different")(rows, x)


class Captured:
    """Steps of one shape as CUDA graphs: inputs stand in fixed places, and the last outputs overwrite them.

    The step is not kept: it knows the executor, and an executor that is known to its own graphs would not go, with all
    their memory, when it is let go.
    """

    def __init__(self, step: OnBatch, carry: Stacks, rows: Stacks, index: Tensor, weight: Tensor, pool: Any) -> None:
        self.pool = pool
        self.carry = {name: room_for(value).copy_(value) for name, value in carry.items()}
        self.rows = {name: value.clone(memory_format=torch.contiguous_format) for name, value in rows.items()}
        self.bytes = _bytes(carry | rows)
        self.index, self.weight = (t.expand(RUNS[0], *t.shape).clone() for t in (index, weight))
        self.replays: dict[int, Callable[[], object]] = {}  # by how many steps they take
        settled(partial(step, self.carry, self.rows, self.index[0], self.weight[0]))

    def run(self, step: OnBatch, carry: Stacks, rows: Stacks, index: Tensor, weight: Tensor) -> Stacks:
        """All steps of (steps, clients, ...) batches, in as few replays as there are graphs for."""
        for mine, given in ((self.carry, carry), (self.rows, rows)):
            for name, value in given.items():
                mine[name].copy_(value)
        first, n = 0, len(index)
        while first < n:
            run = next(length for length in RUNS if length <= n - first)
            self.index[:run].copy_(index[first : first + run])
            self.weight[:run].copy_(weight[first : first + run])
            if run not in self.replays:
                self.replays[run] = recorded(partial(self._take, run, step), self.pool)
            self.replays[run]()
            first += run
        return {name: room_for(value).copy_(value) for name, value in self.carry.items()}

    def _take(self, steps: int, step: OnBatch) -> None:
        now = self.carry
        for s in range(steps):
            now = step(now, self.rows, self.index[s], self.weight[s])
        for name, value in now.items():
            self.carry[name].copy_(value)


def settled(function: Callable[[], object]) -> None:
    """Calls a function aside: libraries set themselves up before anything is captured."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(aside)


def recorded(function: Callable[[], object], pool: Any) -> Callable[[], object]:
    """What a function would do on a GPU, as a CUDA graph: every call does it."""
    graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
    gc.disable()  # a graph that is collected while another is captured spoils that one
    try:
        with torch.cuda.graph(graph, pool=pool):
            function()
    finally:
        if collects:
            gc.enable()
    replay: Callable[[], object] = graph.replay
    return replay


def stretches(steps: list[int]) -> Iterator[tuple[int, int, int]]:
    """(first step, last step, clients at work), for numbers of steps in falling order.

    >>> list(stretches([5, 3, 3, 1]))
    [(0, 1, 4), (1, 3, 3), (3, 5, 1)]
    """
    first, active = 0, len(steps)
    while active:
        last = steps[active - 1]
        if last > first:
            yield first, last, active
            first = last
        active -= 1
        while active and steps[active - 1] == last:
            active -= 1


def room_for(like: Tensor) -> Tensor:
    """Room for rows, each beginning with a line of memory: what reads or writes many numbers at once can do so."""
    if like.dim() != 2:
        return torch.empty_like(like, memory_format=torch.contiguous_format)
    line = LINE // like.element_size()
    return like.new_empty(len(like), -(-like.shape[1] // line) * line)[:, : like.shape[1]]


def _bytes(stacks: Stacks) -> int:
    return sum(value.numel() * value.element_size() for value in stacks.values())


def gradient(objective: Callable[[Stacks], Tensor], params: Stacks) -> Stacks:
    """The gradient as a function, so that it can be batched."""
    return dict(grad(objective)(params))
