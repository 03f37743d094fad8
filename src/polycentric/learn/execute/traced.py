"""Stacked steps, recorded once and replayed: a few clients at a time, few enough for their rows to stay in the cache.

`vmap` and `grad` cost more at every step of a small model than the numbers do. Here a step is recorded the first time
it is met (`recording`), rid of what does nothing (`tidy`), and from then on replayed as a row of operators
(`replay`); where an update is a product of matrices, the product adds it to the row in place (`fuse_update`).

A block is sorted by steps, and taken in pieces. A piece takes all its steps before the next one begins, on rows of its
own that never move: whoever is done leaves from the end. Up to eight clients have a program for every number of them;
more have one for the next number of 12, 16, 24, 32, ..., and those who are done before the others, but still within
that number, have been copied by then.

Batches narrower than asked for are padded to a power of two, so that there are few widths. Those of learners that take
all examples at once (`batch=None`) are as wide as the largest client of a block: few blocks share a program, so that
only those who take several steps have one.

Which program runs is a function of the block alone, and a step is never taken by being recorded: a resumed run gives
the same bits, and so do workers.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from ...data import Split
from ...stacks.cohort import Cohort
from ...stacks.stack import Stacks
from ...tasks.task import Batch, Task
from ..learner import Executor, Learner
from .recording import CannotRecord
from .replay import Replay
from .scan import Steps, as_function, clients_in, empty_aligned, first_of, stretches
from .stacked import Stacked, launch

CACHE = 4 << 20  # bytes of parameters that a piece may have
LARGEST = 128  # clients in a piece
GATHERED = 4 << 20  # bytes of examples that are gathered together, at least those of one step
SEVERAL = 10  # steps for which a program of their own is worth while
KEPT = 512  # programs of an executor


class Traced(Executor):
    """All clients of a block, by recorded steps that are replayed; on a GPU steps are captured instead."""

    block_bytes = 24 << 20  # a few of a block's clients are taken at a time

    def __init__(self, task: Task, split: Split) -> None:
        self.task, self.split = task, split
        self.programs = Programs(piece_for(task.width * task.dtype.itemsize))
        self.stacked = Stacked(task, split, self.programs if task.device.type == "cpu" else None)
        self.piece = self.programs.piece

    def __call__(self, learner: Learner, rows: Stacks, cohort: Cohort) -> Stacks:
        """The rows that the learner changed."""
        return self.stacked(learner, rows, cohort)

    def outputs(self, rows: Stacks, x: Tensor, part: str = "") -> Tensor:
        """Every client's model, or a part of it, on its own examples."""
        return self.stacked.outputs(rows, x, part)


class Programs:
    """The scan of replayed steps: keeps the programs of every learner that it has met."""

    def __init__(self, piece: int) -> None:
        self.piece = piece
        self.known: dict[object, Replay] = {}
        self.works = True

    def __call__(self, steps: Steps, carry: Stacks, rows: Stacks) -> Stacks:
        """All steps, a piece at a time."""
        schedule = steps.schedule
        if schedule.batch is not None:  # a learner that sees all examples may keep numbers for each of them
            schedule.widen(min(1 << (schedule.index.shape[-1] - 1).bit_length(), schedule.batch))
        elif schedule.n_steps < SEVERAL:
            return launch(steps, carry, rows)
        # Equal clients learn equal bits only where their rows begin alike.
        out = {name: empty_aligned(value) for name, value in carry.items()}
        try:
            for first in range(0, clients_in(carry), self.piece):
                some = slice(first, first + self.piece)
                here = {name: place[some].copy_(carry[name][some]) for name, place in out.items()}
                self._piece(steps, here, {name: value[some] for name, value in rows.items()}, some)
        except CannotRecord as error:  # a step of the user's own may do anything: slower, not wrong
            if self.works:
                warnings.warn(f"steps cannot be recorded ({error}); they run with the stacked executor", stacklevel=2)
            self.works = False  # said once; the next block is tried again, so that it does not depend on this one
            return launch(steps, carry, rows)
        return out

    def _piece(self, steps: Steps, carry: Stacks, rows: Stacks, some: slice) -> None:
        """All steps of some clients, in falling order of steps; what they carry is overwritten."""
        size = before = clients_in(carry)
        done: list[tuple[slice, Stacks]] = []
        for first, last, active in stretches(steps.schedule.steps[some]):
            n = min(rung(active), size)
            if active < min(n, before):
                left = slice(active, min(n, before))
                done.append((left, {name: value[left].clone() for name, value in carry.items()}))
            at = slice(some.start, some.start + n)
            self._stretch(steps, first_of(n, carry), first_of(n, rows), at, range(first, last))
            before = active
        for left, kept in done:
            for name, value in kept.items():
                carry[name][left] = value

    def _stretch(self, steps: Steps, carry: Stacks, rows: Stacks, some: slice, stretch: range) -> None:
        """Some steps of all clients given, by one program."""
        index, weight = steps.schedule.index, steps.schedule.weight
        batch = steps.gather(index[stretch.start : stretch.start + 1, some], weight[stretch.start, some][None])
        program = self._program(steps, carry, rows, batch)
        together = max(1, GATHERED // max(1, batch.x.nbytes))
        with torch.no_grad():
            begun = program.begin(*carry.values(), *rows.values())
            for first in range(stretch.start, stretch.stop, together):
                at = slice(first, min(first + together, stretch.stop))
                if together > 1 or first > stretch.start:
                    batch = steps.gather(index[at, some], weight[at, some])
                begun.along(batch.tensors)

    def _program(self, steps: Steps, carry: Stacks, rows: Stacks, batch: Batch) -> Replay:
        """The one for tensors of these shapes."""
        flat = [*carry.values(), *rows.values(), *(part[0] for part in batch.tensors)]
        key = (steps.learner, *carry, *rows, *((t.shape, t.stride(), t.dtype) for t in flat))
        if key not in self.known:
            if len(self.known) >= KEPT:
                self.known.pop(next(iter(self.known)))
            n, m = len(carry), len(carry) + len(rows)
            spare = [value.clone() for value in flat[:n]]  # a step may overwrite what it carries
            self.known[key] = Replay(as_function(steps, carry, rows), spare, flat[n:m], flat[m:])
        return self.known[key]


def piece_for(row: int) -> int:
    """Clients in a piece, for rows of so many bytes: as many as the cache holds, and one of the numbers of `rung`.

    >>> piece_for(434_936), piece_for(2_000), piece_for(40_000_000)
    (8, 128, 1)
    """
    fits = max(1, min(LARGEST, CACHE // max(row, 1)))
    return max(n for n in range(1, fits + 1) if rung(n) == n)


def rung(n: int) -> int:
    """The next number of clients for which there is a program: every one up to eight, then two of every doubling.

    >>> [rung(n) for n in (1, 7, 8, 9, 12, 13, 17, 30)]
    [1, 7, 8, 12, 12, 16, 24, 32]
    """
    if n <= 8:
        return n
    power = 1 << (n - 1).bit_length()
    return power * 3 // 4 if n <= power * 3 // 4 else power
