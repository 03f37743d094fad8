"""Steps of a block as CUDA graphs.

On a GPU launching a step's many small kernels costs more than running them, so steps of a shape that comes often are
captured once, several in a row, and replayed. For that there must be few shapes: the clients' rows stand in fixed
places, and a graph works on the first 1, 2, 3, 4, 6, 8, 12, 16, 24, ... of them, a *bucket* (`bucket_size`). What is
carried by those who leave is copied; their places may be worked on to no effect. A captured step and a launched one
give the same bits, so it does not matter when a capture is made.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...stacks.stack import Stacks
from .scan import Steps, clients_in, copied, first_of, joined, stretches

OnBatch = Callable[[Stacks, Stacks, Tensor, Tensor], Stacks]  # a step, with the batch by index and weight
LONG = 4  # steps in a row that make a capture worth its cost, which is that of a few launched ones
RUNS = (8, 2, 1)  # steps in one graph: between them nothing is copied
OFTEN = 8  # steps of one shape, in all, that do
COPIES = 4 << 30  # bytes of fixed places beside the newest; graphs share their working memory: one works at a time


class Captured:
    """The scan of captured steps: keeps the graphs of every learner that it has met, as far as memory goes."""

    def __init__(self) -> None:
        self.graphs: dict[object, Graphs] = {}  # the newest is the last

    def __call__(self, steps: Steps, carry: Stacks, rows: Stacks) -> Stacks:
        """All steps, in fixed places."""

        def take(carry: Stacks, rows: Stacks, index: Tensor, weight: Tensor) -> Stacks:
            return steps.take(carry, rows, steps.gather(index, weight))

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
            graphs.take(take, index[first:last, :bucket], weight[first:last, :bucket])
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
        self.index, self.weight = (t.expand(RUNS[0], *t.shape).clone() for t in (index, weight))
        self.seen: Counter[int] = Counter()  # steps so far, by bucket
        self.replays: dict[int, dict[int, Callable[[], object]]] = {}  # by bucket, and by how many steps are taken

    def enter(self, carry: Stacks, rows: Stacks) -> None:
        """Clients take their places."""
        for mine, given in ((self.carry, carry), (self.rows, rows)):
            for name, value in given.items():
                mine[name][: len(value)].copy_(value)

    def leave(self, first: int, last: int) -> Stacks:
        """What some of them carry now."""
        return {name: value[first:last].clone() for name, value in self.carry.items()}

    def take(self, step: OnBatch, index: Tensor, weight: Tensor) -> None:
        """The steps of (steps, bucket, ...) batches by the first clients, in as few replays as can be."""
        n, bucket = index.shape[:2]
        self.seen[bucket] += n
        captured = bucket in self.replays or n >= LONG or self.seen[bucket] >= OFTEN
        first = 0
        while first < n:
            run = next(length for length in RUNS if length <= n - first)
            self.index[:run, :bucket].copy_(index[first : first + run])
            self.weight[:run, :bucket].copy_(weight[first : first + run])
            self._replay(step, run, bucket) if captured else self._steps(run, bucket, step)
            first += run

    def _replay(self, step: OnBatch, run: int, bucket: int) -> None:
        if bucket not in self.replays:
            mine, rows = copied(first_of(bucket, self.carry)), first_of(bucket, self.rows)
            settled(partial(step, mine, rows, self.index[0, :bucket], self.weight[0, :bucket]))
        replays = self.replays.setdefault(bucket, {})
        if run not in replays:
            replays[run] = recorded(partial(self._steps, run, bucket, step), self.pool)
        replays[run]()

    def _steps(self, run: int, bucket: int, step: OnBatch) -> None:
        now, rows = first_of(bucket, self.carry), first_of(bucket, self.rows)
        for s in range(run):
            now = step(now, rows, self.index[s, :bucket], self.weight[s, :bucket])
        for name, value in now.items():
            self.carry[name][:bucket].copy_(value)


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


def bucket_size(n: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, ... that is n or more.

    >>> [bucket_size(n) for n in (1, 3, 5, 8, 9, 30, 33)]
    [1, 3, 6, 8, 12, 32, 48]
    """
    coarse = 1 << max(n.bit_length() - 2, 0)
    return -(-n // coarse) * coarse
