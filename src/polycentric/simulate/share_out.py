"""The rule by which a run's work is shared out: whether there is enough of it, in which blocks, among how many workers.

Work is counted, and no stopwatch is read, so that a run does the same wherever it is done:

    seconds of a round = examples of all steps * 3 * forward / FLOPS + steps of all clients * STEP      as on one core

`forward` are the operations of the model's forward pass on one example, as torch counts them; a gradient takes twice as
many. Where a round takes ROUND seconds or more, and all of them ENOUGH, blocks have about the same work, not the same
number of clients (`blocks_by_work`): a 32nd of the round, or BLOCK seconds where that is more, since a few clients
together cost less than each alone; the last ones less, so that nobody waits long for the last. `workers=auto` then has
a process for each core, as far as memory goes. Neither the rule nor the blocks depend on how many there are, so the
results do not, either.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..language.files import read_text
from ..learn.execute.recording import operations
from ..learn.learner import BLOCK_BYTES
from ..stacks.all_rows import beside
from ..stacks.cohort import Cohort
from . import processes
from .auto_executor import FirstRound, first_cohorts

if TYPE_CHECKING:
    from .clients import Simulation

FLOPS = 1e11  # a second, of a step of few examples on one core
STEP = 3e-5  # seconds of a step, whatever it computes
ENOUGH = 3.0  # seconds of a run that is worth more than one process
ROUND = 0.04  # seconds of such a round
BLOCK = 0.02  # seconds of a block
WORKER = 64 << 20  # bytes that a worker needs by itself
ROWS = 4  # times a block that it holds: models, gradients, what is sent, what is sent on
MANY = 16  # parts from which the last blocks may be a quarter of one
PARTS = 32  # blocks of equal work in a round, at most: enough for the cores of most machines


def seconds_of(clients: Simulation, first: FirstRound) -> float:
    """What the first round would take on one core, by count; 0 where there is nobody to share it with."""
    cohorts = first_cohorts(clients, first)
    if clients.task.device.type != "cpu" or max(map(len, cohorts), default=0) < 2:
        return 0.0
    steps, examples = 0.0, 0.0
    for exchange, cohort in zip(first.exchanges, cohorts, strict=True):
        for learner in exchange.chain if len(cohort) else ():
            plan = learner.plan(cohort)
            each = plan.sizes(cohort) if plan.batch is None else plan.sizes(cohort).clamp(max=plan.batch)
            steps += float(plan.steps.sum())
            examples += float((plan.steps * each).sum())
    return examples * 3 * forward(clients) / FLOPS + steps * STEP


def parts_of(seconds: float) -> int:
    """In how many parts of equal work a round of so many seconds is cut, where no client is larger than one."""
    return max(1, min(PARTS, int(seconds / BLOCK)))


def is_enough(seconds: float, rounds: int) -> bool:
    """Whether a run of such rounds is worth sharing out."""
    return seconds >= ROUND and rounds * seconds >= ENOUGH


def forward(clients: Simulation) -> float:
    """Operations of a forward pass on one example; of a model that torch cannot count, as many as it has parameters."""
    task, x = clients.task, clients.federation.train.x[:1]
    row = {name: rows[0] for name, rows in task.start().items()}
    try:
        counted = operations(lambda: task.predict(row, task.inputs(x)))
    except Exception:  # it is only counted here; what is wrong with a model is said where it is first used
        counted = 0.0
    return max(counted, 2.0 * task.width)


def cores(beside: int = 1, ranks: int = 1) -> int:
    """Cores that a run may use, as torch was told (OMP_NUM_THREADS) and the system allows, beside other runs."""
    allowed: Any = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1) if ranks > 1 else 1
    return max(1, min(len(allowed), torch.get_num_threads()) // (beside * here))


@contextmanager
def one_math_thread(if_: bool, workers: int = 1) -> Iterator[None]:
    """One thread for every operator, where a run is shared out: cores have work of their own, and bits are the same.

    What must see all rows is done by as many threads as there are workers, which wait for it.
    """
    before = torch.get_num_threads()
    if not if_:
        yield
        return
    torch.set_num_threads(1)
    try:
        with beside(workers):
            yield
    finally:
        torch.set_num_threads(before)


def workers_for(clients: Simulation, first: FirstRound | None) -> int:
    """What `workers=auto` means: a process for each core, where a run is worth it."""
    if not clients.by_work or first is None or not processes.available():
        return 1
    largest = max(map(len, first_cohorts(clients, first)), default=1)
    row = clients.task.width * clients.task.dtype.itemsize
    room = free_memory() // (2 * first.beside * (WORKER + ROWS * max(row, BLOCK_BYTES["cpu"])))
    return max(1, min(cores(first.beside, clients.ranks.size), largest, room))


def free_memory() -> int:
    """Bytes that the system, or the container this process is in, still has; a great many where it does not say."""
    found = [1 << 60]
    with suppress(OSError, ValueError, IndexError):
        lines = read_text("/proc/meminfo").splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")]
    with suppress(OSError, ValueError):
        most, now = (int(read_text(f"/sys/fs/cgroup/memory.{word}")) for word in ("max", "current"))
        found.append(most - now)
    return max(0, min(found))


def blocks_by_work(cohort: Cohort, work: Tensor, most: int, parts: int) -> Iterator[Cohort]:
    """Clients in falling order of their work, in blocks of `most` at most and of one of the parts of all the work.

    Who has more than a part is a block alone, so nobody waits for a block of several large clients. Of three parts or
    more the last blocks are smaller, down to half of a part, or a quarter where there are many: while some are at a
    last large block, others do several small ones. Few clients that would be left over are no block of their own.

    >>> ten = Cohort(torch.arange(10), torch.full((10,), 5), torch.ones(10).double(), 10, 0, 0)
    >>> [len(block) for block in blocks_by_work(ten, ten.sizes.double(), 1024, 4)]
    [2, 2, 2, 2, 1, 1]
    """
    each, begin = work.tolist(), 0
    lefts = list(accumulate(reversed(each)))[::-1]  # from every client on
    part, ahead = sum(each) / parts, min(4.0, parts / 2) if parts > 2 else 2.0
    least = 2 if parts < MANY else 4
    while begin < len(each):
        left = lefts[begin]
        limit = max(part / least, min(part, ahead * left / parts)) * (1 + 1e-9)
        limit = left if left <= limit + part / 8 else limit
        end, sum_ = begin + 1, each[begin]
        while end < len(each) and end - begin < most and sum_ + each[end] <= limit:
            sum_ += each[end]
            end += 1
        yield cohort[begin:end]
        begin = end
