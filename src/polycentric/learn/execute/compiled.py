"""Stacked steps as compiled programs: a few clients and a few steps at a time, small enough to stay in the cache.

Tracing a step for every number of clients that may be at work would never end, so clients are taken in pieces of a few
sizes (`pieces_for`) and steps in runs of 4 and 1: whatever the block, there are at most eight programs for a learner
and a width of its batches. Batches narrower than asked for are padded to a power of two, so that there are few widths;
learners that take all examples at once (`batch=None`) are not, and have programs for every largest client of a block.
A piece takes all steps of a stretch before the next one begins; a program overwrites the piece's rows where they
stand, so nothing is put together afterwards, and rows that a step does not read are not handed to it.

Of wide rows a program takes one step, and stops short of its update where that is w - lr A B, a product of matrices:
one product with the row for its sum then adds it in place (`fuse_update`), and no gradient is ever written or read.

Which program runs is a function of the block alone: a resumed run meets the same ones. Programs are kept by torch
between runs (its inductor cache), and by us between runs of one process: a traced step that holds no tensor of its
own is a pure function of its text and its inputs, so equal text on equal shapes is the same program, whoever asks.
"""

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from ...data import Split
from ...stacks.cohort import Cohort
from ...stacks.stack import Stacks
from ...tasks.task import Batch, Task
from ..learner import Executor, Learner
from .fuse_update import fused_updates
from .scan import Steps, clients_in, empty_aligned, over_stretches
from .stacked import Stacked, launch_stretch

CACHE = 4 << 20  # bytes of parameters that a piece may have
LARGEST = (32, 8, 2)  # clients in one program: the first of these that fits
RUNS = (4, 1)  # steps in one program
GATHERED = (4, 3, 2, 1)  # steps whose batches are gathered together, where a program takes one
WIDE = 64 << 10  # bytes of a row from which an update is worth a product of its own
KEPT = 256  # programs kept for other runs of this process

Program = Callable[..., Any]
_known: dict[object, Program] = {}
on_compile: list[Callable[[int], None]] = []  # callbacks before a program is compiled: how many there will be


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


class Compiled(Executor):
    """All clients of a block at once, by programs compiled for the processor; on a GPU steps are captured instead."""

    block_bytes = 12 << 20  # programs take a few of a block's clients at a time

    def __init__(self, task: Task, split: Split) -> None:
        self.task, self.split = task, split
        self.programs = Programs(pieces_for(task.width * task.dtype.itemsize))
        self.stacked = Stacked(task, split, self.programs if task.device.type == "cpu" else None)
        self.piece = self.programs.pieces[0]

    @property
    def compiled(self) -> tuple[int, float]:
        """Programs compiled so far, and the seconds it took."""
        return len(self.programs.known), self.programs.seconds

    def __call__(self, learner: Learner, rows: Stacks, cohort: Cohort) -> Stacks:
        """Not while another thread traces."""
        with _gate.together():
            return self.stacked(learner, rows, cohort)

    def outputs(self, rows: Stacks, x: Tensor, part: str = "") -> Tensor:
        """Every client's model, or a part of it, on its own examples."""
        return self.stacked.outputs(rows, x, part)


class Programs:
    """The scan of compiled steps: keeps the programs of every learner that it has met."""

    def __init__(self, pieces: tuple[int, ...]) -> None:
        self.pieces = pieces
        self.known: dict[object, Program] = {}
        self.fuses: dict[object, bool] = {}  # learners whose programs take one step and leave its update over
        self.seconds = 0.0
        self.works = True

    def __call__(self, steps: Steps, carry: Stacks, rows: Stacks) -> Stacks:
        """All steps, a stretch at a time."""
        schedule = steps.schedule
        if schedule.batch is not None:  # a learner that sees all examples may keep numbers for each of them
            schedule.widen(min(1 << (schedule.index.shape[-1] - 1).bit_length(), schedule.batch))
        return over_stretches(partial(self._stretch, steps), schedule.steps, carry, rows)

    def _stretch(self, steps: Steps, carry: Stacks, rows: Stacks, stretch: range) -> Stacks:
        if not self.works:
            return launch_stretch(steps, carry, rows, stretch)
        out = {name: empty_aligned(value) for name, value in carry.items()}
        for some in _pieces(clients_in(out), self.pieces):
            here = {name: out[name][some].copy_(value[some]) for name, value in carry.items()}
            held = {name: value[some] for name, value in rows.items()}  # often one row, seen many times: no copy
            runs = GATHERED if self._fuses(steps, here, held) else RUNS
            for part in _pieces(len(stretch), runs):
                at = slice(stretch.start + part.start, stretch.start + part.stop)
                batch = steps.gather(steps.schedule.index[at, some], steps.schedule.weight[at, some])
                self._take(steps, here, held, batch)
        return out

    def _take(self, steps: Steps, carry: Stacks, rows: Stacks, batch: Batch) -> None:
        """Some steps of some clients, batches (steps, clients, ...); what is carried is overwritten."""
        flat, key = [*carry.values(), *rows.values(), *batch.tensors], (steps.learner, tuple(carry), tuple(rows))
        if not self.fuses[key]:
            self._run(key, _several(steps, carry, rows), flat)
            return
        for s in range(len(batch.x)):
            flat[len(carry) + len(rows) :] = (part[s : s + 1] for part in batch.tensors)
            self._run(key, _several(steps, carry, rows), flat)

    def _run(self, key: tuple[object, ...], several: Program, flat: list[Tensor]) -> None:
        key = (*key, *_forms(flat))
        if key in self.known:
            with torch.no_grad():
                self.known[key](*flat)
            return
        self.known[key] = self._compile(several, flat)

    def _fuses(self, steps: Steps, carry: Stacks, rows: Stacks) -> bool:
        """Whether a program takes one step and leaves its update over: known before any is run, so always the same."""
        key = (steps.learner, tuple(carry), tuple(rows))
        if key not in self.fuses:
            self.fuses[key], first, schedule = False, next(iter(carry.values())), steps.schedule
            if _is_wide(first):
                batch = steps.gather(schedule.index[:1, : len(first)], schedule.weight[:1, : len(first)])
                flat = [*carry.values(), *rows.values(), *batch.tensors]
                with suppress(Exception), torch.no_grad(), _gate.alone():  # compiling will say what is wrong
                    self.fuses[key] = bool(fused_updates(_traced(_several(steps, carry, rows), flat)))
        return self.fuses[key]

    def _compile(self, several: Program, flat: list[Tensor]) -> Program:
        """The program of some steps, which are taken in passing."""
        began = time.monotonic()
        for callback in on_compile:
            callback(len(self.known) + 1)
        program = several
        try:
            with torch.no_grad(), _gate.alone():
                if self.works:
                    program = _program(several, flat)
                program(*flat)
        except Exception as error:  # no compiler on this machine, or something it cannot take: slower, not wrong
            first = " ".join(str(error).split())[:160]
            warnings.warn(
                f"steps cannot be compiled on this machine ({first}); they run with the stacked executor", stacklevel=2
            )
            self.works, program = False, several
            with torch.no_grad():
                program(*flat)
        self.seconds += time.monotonic() - began
        return program


def _several(steps: Steps, carry: Stacks, rows: Stacks) -> Program:
    """Some steps in a row as a function of tensors; it overwrites those of the carry, and returns nothing."""
    names, n = list(carry), len(carry)

    def several(*flat: Tensor) -> None:
        now, held = dict(zip(names, flat, strict=False)), dict(zip(rows, flat[n:], strict=False))
        batch = flat[n + len(rows) :]
        for s in range(len(batch[0])):
            now = steps.take(now, held, Batch(*(part[s] for part in batch)))
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
    updates = fused_updates(traced) if len(flat[-1]) == 1 and _is_wide(flat[0]) else []
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
