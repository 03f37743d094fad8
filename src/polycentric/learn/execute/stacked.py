"""All clients of a block at once: `torch.func.vmap` over the client axis, one step at a time.

Clients of unequal size take unequal numbers of steps. The block is sorted by steps, so that at step s the
clients still at work are a prefix of the rows: nobody waits, and nothing is computed to be thrown away. The
steps between two departures are a *stretch*, all of one shape.

On a GPU launching a step's many small kernels costs more than running them, so steps of a shape that comes often are
captured once as CUDA graphs and replayed, several in a row. For that there must be few shapes: the clients' rows stand
in fixed places, and a graph works on the first 1, 2, 3, 4, 6, 8, 12, 16, 24, ... of them (`bucket_size`). What is carried by
those who leave is copied; their places may be worked on to no effect. A captured step and a launched one give the same
bits, so it does not matter when a capture is made. Convolutions and max pools run as kernels of our own there
(`convolve`, `pools`), and models move in place (`in_place`).

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
from torch import Tensor
from torch.func import grad, vmap

from ...data import Split
from ...stacks.cohort import Cohort
from ...stacks.draw import seeded
from ...stacks.stack import Stacks, to_device_of
from ...tasks.task import Batch, Task, draws
from ..batches import BatchSchedule, Plan, rows_at
from ..gpu.in_place import descend
from ..gpu.overrides import use_gpu_kernels
from ..learner import Client, Learner

Step = Callable[[Stacks, Stacks, Batch], Stacks]
OnBatch = Callable[[Stacks, Stacks, Tensor, Tensor], Stacks]  # the same, with the batch by index and weight
LONG = 4  # steps in a row that make a capture worth its cost, which is that of a few launched ones
RUNS = (8, 2, 1)  # steps in one graph: between them nothing is copied
OFTEN = 8  # steps of one shape, in all, that do
COPIES = 4 << 30  # bytes of fixed places beside the newest; graphs share their working memory: one works at a time
LINE = 64  # bytes


class Stacked:
    """Runs a learner's step for a whole block as one batched program."""

    def __init__(self, task: Task, split: Split) -> None:
        self.task, self.split = task, split
        on_gpu = task.device.type == "cuda"
        self.client = Client(task, gradient, partial(descend, task) if on_gpu else None)
        self.drawing = task.device if draws(task, split.x[:2]) else None
        self.captures = on_gpu and self.drawing is None
        self.graphs: dict[object, Captured] = {}

    def __call__(self, learner: Learner, rows: Stacks, cohort: Cohort) -> Stacks:
        """The longest work first; those who are done leave from the end."""
        plan = learner.plan(cohort)
        order = torch.argsort(plan.steps, descending=True, stable=True)
        in_order = bool((order == torch.arange(len(order))).all())
        if not in_order:
            by = to_device_of(next(iter(rows.values())), order)
            plan = replace(plan, steps=plan.steps[order])
            rows, cohort = {n: v[by] for n, v in rows.items()}, cohort[order]
        schedule = self._schedule(cohort, plan)
        with (
            seeded(self.drawing, cohort.seed, cohort.round, cohort.index[0], "modules"),
            use_gpu_kernels(self.task.device),
        ):
            carry = self._scan(learner, learner.begin(rows, cohort, self.task), rows, schedule)
        out = learner.end(carry, rows, cohort)
        if in_order:
            return out
        back = torch.argsort(order)
        return {name: value[to_device_of(value, back)] for name, value in out.items()}

    def _schedule(self, cohort: Cohort, plan: Plan) -> BatchSchedule:
        return BatchSchedule(self.split, cohort, plan)

    def _scan(self, learner: Learner, carry: Stacks, rows: Stacks, schedule: BatchSchedule) -> Stacks:
        def one(carry: Stacks, row: Stacks, batch: Batch) -> Stacks:
            return learner.step(carry, row, batch, self.client)

        step = vmap(one, randomness="different")
        if self.captures:
            return self._in_places(learner, step, carry, rows, schedule)
        if self.client.descent is not None:  # it overwrites what is carried, which is still the caller's
            carry = {name: empty_aligned(value).copy_(value) for name, value in carry.items()}
        finished = []
        for first, last, active in stretches(schedule.steps):
            if active < len(next(iter(carry.values()))):
                finished.append({name: value[active:] for name, value in carry.items()})
                carry, rows = first_of(active, carry), first_of(active, rows)
            carry = self._stretch(learner, step, carry, rows, schedule, range(first, last))
        return joined([carry, *reversed(finished)])

    def _stretch(
        self, learner: Learner, step: Step, carry: Stacks, rows: Stacks, schedule: BatchSchedule, steps: range
    ) -> Stacks:
        active = len(next(iter(carry.values())))
        for s in steps:
            carry = step(carry, rows, self._batch(schedule.index[s, :active], schedule.weight[s, :active]))
        return carry

    def _in_places(self, learner: Learner, step: Step, carry: Stacks, rows: Stacks, schedule: BatchSchedule) -> Stacks:
        def one(carry: Stacks, rows: Stacks, index: Tensor, weight: Tensor) -> Stacks:
            return step(carry, rows, self._batch(index, weight))

        n, index, weight = len(next(iter(carry.values()))), schedule.index, schedule.weight
        if not schedule.n_steps:
            return carry
        key = (learner, tuple(index.shape[2:]), *((name, value.shape[1:]) for name, value in (carry | rows).items()))
        graphs = self.graphs.pop(key, None)
        if graphs is None or graphs.room < n:
            pool = torch.cuda.graph_pool_handle() if index.is_cuda else None
            graphs = Captured(carry, rows, index[0], weight[0], pool)
        while self.graphs and sum(g.bytes for g in self.graphs.values()) > COPIES:
            self.graphs.pop(next(iter(self.graphs)))
        self.graphs[key] = graphs  # the newest is the last

        graphs.enter(carry, rows)
        *legs, end = *stretches(schedule.steps), (0, 0, 0)
        finished = [graphs.leave(legs[0][2], n)]
        for (first, last, active), (_, _, staying) in zip(legs, [*legs[1:], end], strict=True):
            wide = min(bucket_size(active), n)
            graphs.take(one, index[first:last, :wide], weight[first:last, :wide])
            finished.append(graphs.leave(staying, active))
        return joined(finished[::-1])

    def _batch(self, index: Tensor, weight: Tensor) -> Batch:
        x, y = self.task.inputs(rows_at(self.split.x, index)), self.task.targets(rows_at(self.split.y, index))
        return Batch(x, y, weight.to(self.task.dtype))

    def outputs(self, rows: Stacks, x: Tensor) -> Tensor:
        """Every client's model on its own examples."""
        with torch.no_grad(), use_gpu_kernels(self.task.device):
            return vmap(self.task.predict, randomness="different")(rows, x)


class Captured:
    """Steps of one learner as CUDA graphs: what clients carry and hold stands in fixed places, to be overwritten.

    A step is not kept: it knows the executor, and an executor that is known to its own graphs would not go, with all
    their memory, when it is let go.
    """

    def __init__(self, carry: Stacks, rows: Stacks, index: Tensor, weight: Tensor, pool: Any) -> None:
        self.pool = pool
        self.carry = {name: empty_aligned(value).copy_(value) for name, value in carry.items()}
        self.rows = {name: value.clone(memory_format=torch.contiguous_format) for name, value in rows.items()}
        self.room, self.bytes = len(index), _bytes(carry | rows)
        self.index, self.weight = (t.expand(RUNS[0], *t.shape).clone() for t in (index, weight))
        self.seen: Counter[int] = Counter()  # steps so far, by how many clients took them
        self.replays: dict[int, dict[int, Callable[[], object]]] = {}  # by clients, and by how many steps they take

    def enter(self, carry: Stacks, rows: Stacks) -> None:
        """Clients take their places."""
        for mine, given in ((self.carry, carry), (self.rows, rows)):
            for name, value in given.items():
                mine[name][: len(value)].copy_(value)

    def leave(self, first: int, last: int) -> Stacks:
        """What some of them carry now."""
        return {name: value[first:last].clone() for name, value in self.carry.items()}

    def take(self, step: OnBatch, index: Tensor, weight: Tensor) -> None:
        """The steps of (steps, clients, ...) batches by the first clients, in as few replays as can be."""
        n, wide = index.shape[:2]
        self.seen[wide] += n
        captured = wide in self.replays or n >= LONG or self.seen[wide] >= OFTEN
        first = 0
        while first < n:
            run = next(length for length in RUNS if length <= n - first)
            self.index[:run, :wide].copy_(index[first : first + run])
            self.weight[:run, :wide].copy_(weight[first : first + run])
            self._replay(step, run, wide) if captured else self._steps(run, wide, step)
            first += run

    def _replay(self, step: OnBatch, run: int, wide: int) -> None:
        if wide not in self.replays:
            mine = {name: empty_aligned(value).copy_(value) for name, value in first_of(wide, self.carry).items()}
            settled(partial(step, mine, first_of(wide, self.rows), self.index[0, :wide], self.weight[0, :wide]))
        replays = self.replays.setdefault(wide, {})
        if run not in replays:
            replays[run] = recorded(partial(self._steps, run, wide, step), self.pool)
        replays[run]()

    def _steps(self, run: int, wide: int, step: OnBatch) -> None:
        now, rows = first_of(wide, self.carry), first_of(wide, self.rows)
        for s in range(run):
            now = step(now, rows, self.index[s, :wide], self.weight[s, :wide])
        for name, value in now.items():
            self.carry[name][:wide].copy_(value)


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


def bucket_size(n: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, ... that is n or more.

    >>> [bucket_size(n) for n in (1, 3, 5, 8, 9, 30, 33)]
    [1, 3, 6, 8, 12, 32, 48]
    """
    coarse = 1 << max(n.bit_length() - 2, 0)
    return -(-n // coarse) * coarse


def first_of(n: int, stacks: Stacks) -> Stacks:
    """The first n clients' rows, not copied."""
    return {name: value[:n] for name, value in stacks.items()}


def joined(parts: list[Stacks]) -> Stacks:
    """Rows end to end; of one part alone, its own."""
    parts = [part for part in parts if len(next(iter(part.values())))] or parts[:1]
    return parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def empty_aligned(like: Tensor) -> Tensor:
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
