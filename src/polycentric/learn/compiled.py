"""Stacked steps as compiled programs: a few clients and a few steps at a time, small enough to stay in the cache.

Tracing a step for every number of clients that may be at work would never end, so clients are taken in pieces of 8, 4,
2 and 1 and steps in runs of 4 and 1: whatever the block, there are at most eight programs a learner. A piece takes all
steps of a stretch before the next one begins; its parameters do not leave the cache. Programs are kept by torch between
runs (its inductor cache), so a second run pays a fraction of the first.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from ..data import Split
from ..stack import Stacks
from ..task import Batch, Task
from .batches import Schedule
from .executor import Learner
from .stacked import Stacked, Step

PIECES = (8, 4, 2, 1)  # clients in one program
RUNS = (4, 1)  # steps in one program

Program = Callable[..., list[Tensor]]


class Compiled(Stacked):
    """The stacked executor with its steps compiled for the processor; the same numbers to rounding."""

    def __init__(self, task: Task, split: Split) -> None:
        super().__init__(task, split)
        self.programs: dict[object, Program] = {}
        self.compile_seconds = 0.0
        self.works = True

    def _stretch(
        self, learner: Learner, step: Step, carry: Stacks, rows: Stacks, schedule: Schedule, steps: range
    ) -> Stacks:
        if not self.works:
            return super()._stretch(learner, step, carry, rows, schedule, steps)
        done: list[Stacks] = []
        for some in _pieces(len(next(iter(carry.values()))), PIECES):
            here = {name: value[some].contiguous() for name, value in carry.items()}
            held = {name: value[some] for name, value in rows.items()}  # often one row, seen many times: no copy
            for part in _pieces(len(steps), RUNS):
                at = slice(steps.start + part.start, steps.start + part.stop)
                batch = self._batch(schedule.index[at, some], schedule.weight[at, some])
                here = self._call(learner, step, here, held, batch)
            done.append(here)
        return done[0] if len(done) == 1 else {name: torch.cat([d[name] for d in done]) for name in carry}

    def _call(self, learner: Learner, step: Step, carry: Stacks, rows: Stacks, batch: Batch) -> Stacks:
        """Some steps of some clients, batches (steps, clients, ...)."""
        names = list(carry)

        def several(*flat: Tensor) -> list[Tensor]:
            now, n = dict(zip(names, flat, strict=False)), len(names)
            held = dict(zip(rows, flat[n:], strict=False))
            x, y, weight = flat[-3:]
            for s in range(len(x)):
                now = step(now, held, Batch(x[s], y[s], weight[s]))
            return [now[name] for name in names]

        flat = [*carry.values(), *rows.values(), *batch]
        key = (learner, tuple(names), tuple(rows), *((t.shape, t.dtype) for t in flat))
        if key not in self.programs:
            self.programs[key] = self._compile(several, flat)
        with torch.no_grad():
            return dict(zip(names, self.programs[key](*flat), strict=True))

    def _compile(self, several: Program, flat: list[Tensor]) -> Program:
        if not self.works:  # found out earlier in this stretch
            return several
        began = time.monotonic()
        try:
            with torch.no_grad():
                program: Program = torch.compile(make_fx(several)(*flat), dynamic=False)
                program(*flat)
        except Exception as error:  # no compiler on this machine, or something it cannot take: slower, not wrong
            first = " ".join(str(error).split())[:160]
            warnings.warn(f"steps are not compiled on this machine ({first}); they run stacked", stacklevel=2)
            self.works, program = False, several
        self.compile_seconds += time.monotonic() - began
        return program


def _pieces(n: int, sizes: tuple[int, ...]) -> Iterator[slice]:
    """Consecutive pieces of 0 .. n-1, the largest sizes first.

    >>> [(p.start, p.stop) for p in _pieces(13, (8, 4, 2, 1))]
    [(0, 8), (8, 12), (12, 13)]
    """
    first = 0
    for size in sizes:
        while n - first >= size:
            yield slice(first, first + size)
            first += size
