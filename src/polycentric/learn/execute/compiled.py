"""Stacked steps as compiled programs: a few clients and a few steps at a time, small enough to stay in the cache.

Tracing a step for every number of clients that may be at work would never end, so clients are taken in pieces of a few
sizes (`pieces_for`) and steps in runs of 4 and 1: whatever the block, there are at most eight programs for a learner
and a width of its batches. Batches narrower than asked for are padded to a power of two, so that there are few widths;
learners that take all examples at once (`batch=None`) are not, and have programs for every largest client of a block.
A piece takes all steps of a stretch before the next one begins; a program overwrites the piece's rows where they
stand, so nothing is put together afterwards, and rows that a step does not read are not handed to it.

Of wide rows a program takes one step, and stops short of its update where that is w - lr A B, a product of matrices:
one product with the row for its sum then adds it in place (`peeled`), and no gradient is ever written or read.

Which program runs is a function of the block alone: a resumed run meets the same ones. Programs are kept by torch
between runs (its inductor cache), and by us between runs of one process: a traced step that holds no tensor of its
own is a pure function of its text and its inputs, so equal text on equal shapes is the same program, whoever asks.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import pad

from ...data import Split
from ...stacks.cohort import Cohort
from ...stacks.stack import Stacks
from ...tasks.task import Batch, Task
from ..batches import BatchSchedule, Plan
from ..learner import Learner
from .fuse_update import peeled
from .stacked import Stacked, Step, empty_aligned

CACHE = 4 << 20  # bytes of parameters that a piece may have
LARGEST = (32, 8, 2)  # clients in one program: the first of these that fits
RUNS = (4, 1)  # steps in one program
GATHERED = (4, 3, 2, 1)  # steps whose batches are gathered together, where a program takes one
WIDE = 64 << 10  # bytes of a row from which an update is worth a product of its own
KEPT = 256  # programs kept for other runs of this process

Program = Callable[..., Any]
_known: dict[object, Program] = {}
watchers: list[Callable[[int], None]] = []  # are told before a program is compiled: how many there will be


class Gate:
    """Threads run programs together; one that traces is alone, since a trace watches all modules of the process."""

    def __init__(self) -> None:
        self.change, self.running, self.tracing = threading.Condition(), 0, False

    @contextmanager
    def together(self) -> Iterator[None]:
        """With others who run programs."""
        with self.change:
            self.change.wait_for(lambda: not self.tracing)
            self.running += 1
        try:
            yield
        finally:
            with self.change:
                self.running -= 1
                self.change.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """By one who is running with others: they are waited for, and wait."""
        with self.change:
            self.running -= 1
            self.change.notify_all()
            self.change.wait_for(lambda: not self.tracing and not self.running)
            self.tracing = True
        try:
            yield
        finally:
            with self.change:
                self.tracing, self.running = False, self.running + 1
                self.change.notify_all()


_gate = Gate()


class Compiled(Stacked):
    """The stacked executor with its steps compiled for the processor; the same numbers to rounding."""

    def __init__(self, task: Task, split: Split) -> None:
        super().__init__(task, split)
        self.client = replace(self.client, descent=None)  # programs overwrite rows by themselves
        self.pieces = pieces_for(task.width * torch.empty((), dtype=task.dtype).element_size())
        self.programs: dict[object, Program] = {}
        self.peels: dict[object, bool] = {}  # learners whose programs take one step and leave its update over
        self.compile_seconds = 0.0
        self.works = True

    def __call__(self, learner: Learner, rows: Stacks, cohort: Cohort) -> Stacks:
        """As stacked, and not while another thread traces."""
        with _gate.together():
            return super().__call__(learner, rows, cohort)

    def _schedule(self, cohort: Cohort, plan: Plan) -> BatchSchedule:
        schedule = BatchSchedule(self.split, cohort, plan)
        width = schedule.index.shape[-1] if schedule.index.dim() == 3 else 0
        if plan.batch is None:  # a learner that sees all examples may keep numbers for each of them
            return schedule
        wanted = min(1 << (max(width, 1) - 1).bit_length(), plan.batch)
        if wanted > width > 0:  # places of weight 0, filled with an example of the client's own
            more = schedule.index[..., :1].expand(*schedule.index.shape[:-1], wanted - width)
            schedule.index = torch.cat([schedule.index, more], -1)
            schedule.weight = pad(schedule.weight, (0, wanted - width))
        return schedule

    def _stretch(
        self, learner: Learner, step: Step, carry: Stacks, rows: Stacks, schedule: BatchSchedule, steps: range
    ) -> Stacks:
        if not self.works:
            return super()._stretch(learner, step, carry, rows, schedule, steps)
        out = {name: empty_aligned(value) for name, value in carry.items()}
        for some in _pieces(len(next(iter(out.values()))), self.pieces):
            here = {name: out[name][some].copy_(value[some]) for name, value in carry.items()}
            held = {name: value[some] for name, value in rows.items()}  # often one row, seen many times: no copy
            runs = GATHERED if self._peels(learner, step, here, held, schedule) else RUNS
            for part in _pieces(len(steps), runs):
                at = slice(steps.start + part.start, steps.start + part.stop)
                batch = self._batch(schedule.index[at, some], schedule.weight[at, some])
                self._call(learner, step, here, held, batch)
        return out

    def _call(self, learner: Learner, step: Step, carry: Stacks, rows: Stacks, batch: Batch) -> None:
        """Some steps of some clients, batches (steps, clients, ...); what is carried is overwritten."""
        flat, key = [*carry.values(), *rows.values(), *batch], (learner, tuple(carry), tuple(rows))
        if not self.peels[key]:
            self._run(key, _several(step, carry, rows), flat)
            return
        for s in range(len(batch.x)):
            flat[-3:] = (part[s : s + 1] for part in batch)
            self._run(key, _several(step, carry, rows), flat)

    def _run(self, key: tuple[object, ...], several: Program, flat: list[Tensor]) -> None:
        key = (*key, *_forms(flat))
        if key in self.programs:
            with torch.no_grad():
                self.programs[key](*flat)
            return
        self.programs[key] = self._compile(several, flat)

    def _peels(self, learner: Learner, step: Step, carry: Stacks, rows: Stacks, schedule: BatchSchedule) -> bool:
        """Whether a program takes one step, its update peeled off: known before any is run, so always the same."""
        key = (learner, tuple(carry), tuple(rows))
        if key not in self.peels:
            self.peels[key], first = False, next(iter(carry.values()))
            if _is_wide(first):
                batch = self._batch(schedule.index[:1, : len(first)], schedule.weight[:1, : len(first)])
                flat = [*carry.values(), *rows.values(), *batch]
                with suppress(Exception), torch.no_grad(), _gate.alone():  # compiling will say what is wrong
                    self.peels[key] = bool(peeled(_traced(_several(step, carry, rows), flat)))
        return self.peels[key]

    def _compile(self, several: Program, flat: list[Tensor]) -> Program:
        """The program of some steps, which are taken in passing."""
        began = time.monotonic()
        for watch in watchers:
            watch(len(self.programs) + 1)
        program = several
        try:
            with torch.no_grad(), _gate.alone():
                if self.works:
                    program = _program(several, flat)
                program(*flat)
        except Exception as error:  # no compiler on this machine, or something it cannot take: slower, not wrong
            first = " ".join(str(error).split())[:160]
            warnings.warn(f"steps are not compiled on this machine ({first}); they run stacked", stacklevel=2)
            self.works, program = False, several
            with torch.no_grad():
                program(*flat)
        self.compile_seconds += time.monotonic() - began
        return program


def _several(step: Step, carry: Stacks, rows: Stacks) -> Program:
    """Some steps in a row as a function of tensors; it overwrites those of the carry, and returns nothing."""
    names, n = list(carry), len(carry)

    def several(*flat: Tensor) -> None:
        now, held = dict(zip(names, flat, strict=False)), dict(zip(rows, flat[n:], strict=False))
        x, y, weight = flat[-3:]
        for s in range(len(x)):
            now = step(now, held, Batch(x[s], y[s], weight[s]))
        for name, place in zip(names, flat, strict=False):
            if now[name] is not place:
                place.copy_(now[name])

    return several


def _traced(several: Program, flat: list[Tensor]) -> GraphModule:
    traced: GraphModule = make_fx(several)(*map(_spare, flat))
    return traced


def _spare(t: Tensor) -> Tensor:
    """A copy with the same strides; what is seen many times is never overwritten, and needs none."""
    return t if 0 in t.stride() else torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t)


def _is_wide(rows: Tensor) -> bool:
    return rows.dim() == 2 and rows.shape[1] * rows.element_size() >= WIDE


def _program(several: Program, flat: list[Tensor]) -> Program:
    """Traced, without the inputs nobody reads, and compiled; or one that was compiled earlier from the same text."""
    traced = _traced(several, flat)
    updates = peeled(traced) if len(flat[-1]) == 1 and _is_wide(flat[0]) else []
    inputs = [node for node in traced.graph.nodes if node.op == "placeholder"]
    used = [i for i, node in enumerate(inputs) if node.users]
    for node in inputs:
        if not node.users:
            traced.graph.erase_node(node)
    traced.recompile()
    holds = any(node.op in ("get_attr", "call_module") for node in traced.graph.nodes)
    key = (traced.code, *_forms([flat[i] for i in used]))
    compiled = _known.get(key)
    if compiled is None:
        spare: list[Any] = [_spare(flat[i]) for i in used]
        compiled = _built(traced, spare)
        compiled(*spare)
        if not holds:
            _known[key] = compiled
            if len(_known) > KEPT:
                _known.pop(next(iter(_known)))

    def program(*flat: Tensor) -> None:
        found = compiled(*[flat[i] for i in used])
        for update in updates:
            update(flat, found)

    return program


def _built(traced: GraphModule, inputs: list[Any]) -> Program:
    """Straight from the trace where torch can: nothing is to be guarded then at every call."""
    import torch._inductor as inductor  # here: it takes as long to import as all of torch

    if hasattr(inductor, "standalone_compile"):
        return inductor.standalone_compile(traced, inputs, dynamic_shapes="from_example_inputs")
    return torch.compile(traced, dynamic=False)  # before torch 2.8


def _forms(flat: list[Tensor]) -> tuple[object, ...]:
    return tuple((t.shape, t.stride(), t.dtype) for t in flat)


def pieces_for(row: int) -> tuple[int, ...]:
    """Clients in one program, for rows of so many bytes: as many as the cache holds, then fewer for what is left over.

    >>> pieces_for(434_936), pieces_for(2_000), pieces_for(40_000_000)
    ((8, 4, 2, 1), (32, 8, 2, 1), (2, 1))
    """
    largest = next((n for n in LARGEST if n * row <= CACHE), 2)
    return {32: (32, 8, 2, 1), 8: (8, 4, 2, 1), 2: (2, 1)}[largest]


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
