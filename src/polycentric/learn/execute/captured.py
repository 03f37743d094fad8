"""Steps of a block as CUDA graphs.

On a GPU launching a step's many small kernels costs more than running them, so a step of a shape that comes again is
captured, and from then on replayed. For that there must be few shapes: the clients' rows stand in fixed places, and a
graph works on the first 1, 2, 3, 4, 6, 8, 12, 16, 24, ... of them, a *bucket* (`bucket_size`). What is carried by those
who leave is copied; their places may be worked on to no effect. A graph is one step, which finds its batch by a count
that it moves on itself: so there is one graph for every bucket, whatever the number of steps, and the first step of a
bucket, which is launched, is all that a capture waits for.

Where models move in place, what is captured is the step's program (`replay`), recorded for the bucket on a copy of the
rows: it launches fewer kernels than `vmap` and `grad` do, and gradients of large layers are never written
(`gpu.fuse_moves`). All of the program is captured, also what it does with rows that no step moves: other clients will
stand in their places. The first step is the program's, too: captured and launched it gives the same bits, so it does
not matter when a capture is made.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...stacks.stack import Stacks
from ...tasks.task import Batch
from .recording import CannotRecord
from .replay import Replay
from .scan import Steps, as_function, clients_in, copied, first_of, joined, stretches

TOGETHER = 64  # steps whose batches are put in their places at once
COPIES = 4 << 30  # bytes of fixed places beside the newest; graphs share their working memory: one works at a time


class Captured:
    """The scan of captured steps: keeps the graphs of every learner that it has met, as far as memory goes."""

    def __init__(self) -> None:
        self.graphs: dict[object, Graphs] = {}  # the newest is the last

    def __call__(self, steps: Steps, carry: Stacks, rows: Stacks) -> Stacks:
        """All steps, in fixed places."""

        schedule, n = steps.schedule, clients_in(carry)
        index, weight = schedule.index, schedule.weight
        if not schedule.n_steps:
            return carry
        graphs = self._graphs(steps, carry, rows)
        graphs.enter(carry, rows)
        *legs, end = *stretches(schedule.steps), (0, 0, 0)
        finished = [graphs.leave(legs[0][2], n)]
        for (first, last, active), (_, _, staying) in zip(legs, [*legs[1:], end], strict=True):
            bucket = min(bucket_size(active), n)
            graphs.take(steps, index[first:last, :bucket], weight[first:last, :bucket])
            finished.append(graphs.leave(staying, active))
        return joined(finished[::-1])

    def _graphs(self, steps: Steps, carry: Stacks, rows: Stacks) -> Graphs:
        """Those of this learner and these shapes; the oldest of others make room."""
        index, weight = steps.schedule.index, steps.schedule.weight
        shapes = ((name, value.shape[1:]) for name, value in (carry | rows).items())
        key = (steps.learner, tuple(index.shape[2:]), *shapes)
        graphs = self.graphs.pop(key, None)
        if graphs is None or graphs.room < clients_in(carry):
            pool = torch.cuda.graph_pool_handle() if index.is_cuda else None
            graphs = Graphs(carry, rows, index[0], weight[0], pool)
        while self.graphs and sum(other.bytes for other in self.graphs.values()) > COPIES:
            self.graphs.pop(next(iter(self.graphs)))
        self.graphs[key] = graphs
        return graphs


class Graphs:
    """Steps of one learner as CUDA graphs: what clients carry and hold stands in fixed places, to be overwritten.

    A step is not kept: it knows the executor, and an executor that is known to its own graphs would not go, with all
    their memory, when it is let go.
    """

    def __init__(self, carry: Stacks, rows: Stacks, index: Tensor, weight: Tensor, pool: Any) -> None:
        self.pool = pool
        self.carry = copied(carry)
        self.rows = {name: value.clone(memory_format=torch.contiguous_format) for name, value in rows.items()}
        self.room, self.bytes = len(index), sum(value.nbytes for value in (carry | rows).values())
        self.index, self.weight = (t.expand(TOGETHER, *t.shape).clone() for t in (index, weight))
        self.at = torch.zeros(1, dtype=torch.int64, device=index.device)  # the next of these batches
        self.programs: dict[int, Replay | None] = {}  # by bucket; None: the step cannot be recorded
        self.replays: dict[int, Callable[[], object] | None] = {}  # by bucket; None: launched once, not captured yet

    def enter(self, carry: Stacks, rows: Stacks) -> None:
        """Clients take their places."""
        for mine, given in ((self.carry, carry), (self.rows, rows)):
            for name, value in given.items():
                mine[name][: len(value)].copy_(value)

    def leave(self, first: int, last: int) -> Stacks:
        """What some of them carry now."""
        return {name: value[first:last].clone() for name, value in self.carry.items()}

    def take(self, steps: Steps, index: Tensor, weight: Tensor) -> None:
        """The steps of (steps, bucket, ...) batches by the first clients."""
        n, bucket = index.shape[:2]
        for first in range(0, n, TOGETHER):
            some = slice(first, min(first + TOGETHER, n))
            self.index[: some.stop - first, :bucket].copy_(index[some])
            self.weight[: some.stop - first, :bucket].copy_(weight[some])
            self.at.zero_()
            for _ in range(first, some.stop):
                self._next(steps, bucket)

    def _next(self, steps: Steps, bucket: int) -> None:
        """The next step: launched the first time, when libraries set themselves up, and replayed from then on."""
        one = partial(self._step, bucket, steps)
        if bucket not in self.replays:
            self.replays[bucket], self.programs[bucket] = None, self._program(bucket, steps)
            return one()
        replay = self.replays[bucket]
        if replay is None:
            replay = self.replays[bucket] = recorded(one, self.pool)
        replay()

    def _program(self, bucket: int, steps: Steps) -> Replay | None:
        """The step of a bucket as a program; it is recorded on copies, and nobody has moved."""
        if not steps.in_place:
            return None
        carry, rows = first_of(bucket, self.carry), first_of(bucket, self.rows)
        batch = self._batch(bucket, steps)
        try:
            return Replay(as_function(steps, carry, rows), [*copied(carry).values()], [*rows.values()], batch.tensors)
        except CannotRecord:
            return None

    def _batch(self, bucket: int, steps: Steps) -> Batch:
        """The next one."""
        index, weight = (batches.index_select(0, self.at)[0, :bucket] for batches in (self.index, self.weight))
        return steps.gather(index, weight)

    def _step(self, bucket: int, steps: Steps) -> None:
        carry, rows, batch = first_of(bucket, self.carry), first_of(bucket, self.rows), self._batch(bucket, steps)
        program = self.programs[bucket]
        if program is None:
            self._stepped(carry, steps.take(carry, rows, batch))
        else:
            with torch.no_grad():
                begun = program.begin(*carry.values(), *rows.values(), looks=False)
                begun.along([part[None] for part in batch.tensors])
        self.at.add_(1)

    def _stepped(self, carry: Stacks, new: Stacks) -> None:
        """What is carried from now on, put in its places."""
        places = {place.untyped_storage().data_ptr() for place in self.carry.values()}
        moved = {}
        for name, value in new.items():
            if not _same(value, carry[name]):  # what stands in another's place is taken before that is written
                moved[name] = value.clone() if value.untyped_storage().data_ptr() in places else value
        for name, value in moved.items():
            carry[name].copy_(value)


def _same(value: Tensor, place: Tensor) -> bool:
    """Whether a value stands in its place already."""
    return value.data_ptr() == place.data_ptr() and value.stride() == place.stride()


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


def bucket_size(n: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, ... that is n or more.

    >>> [bucket_size(n) for n in (1, 3, 5, 8, 9, 30, 33)]
    [1, 3, 6, 8, 12, 32, 48]
    """
    coarse = 1 << max(n.bit_length() - 2, 0)
    return -(-n // coarse) * coarse
