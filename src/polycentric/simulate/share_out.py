"""The rule by which a run's work is shared out: whether there is enough of it, in which blocks, among how many workers.

Work is counted, and no stopwatch is read, so that a run does the same wherever it is done:

    seconds = rounds * (examples of all steps * 3 * forward / FLOPS + steps of all clients * STEP)      as on one core

`forward` are the operations of the model's forward pass on one example, as torch counts them; a gradient takes twice as
many. Where a round takes ROUND seconds or more, and all of them ENOUGH, blocks have about the same work, not the same
number of clients (`blocks_by_work`), and `workers=auto` has a process for each core. Neither the rule nor the blocks
depend on how many cores there are, so the results do not, either.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..stacks.cohort import Cohort
from . import processes
from .auto_executor import FirstRound, first_cohorts

if TYPE_CHECKING:
    from .clients import Simulation

FLOPS = 2e10  # a second, of a step of few examples on one core: a cautious estimate
STEP = 1e-4  # seconds of a step, whatever it computes
ENOUGH = 4.0  # seconds of a run that is worth more than one process
ROUND = 0.03  # seconds of such a round
PARTS = 64  # blocks of equal work in a round: enough for every core of most machines, and for unequal ones


def is_enough(clients: Simulation, first: FirstRound) -> bool:
    """Whether a run on a processor is worth sharing out."""
    if clients.task.device.type != "cpu":
        return False
    steps, examples = 0.0, 0.0
    for exchange, cohort in zip(first.exchanges, first_cohorts(clients, first), strict=True):
        for learner in exchange.chain if len(cohort) else ():
            plan = learner.plan(cohort)
            each = plan.sizes(cohort) if plan.batch is None else plan.sizes(cohort).clamp(max=plan.batch)
            steps += float(plan.steps.sum())
            examples += float((plan.steps * each).sum())
    least = examples * 6 * clients.task.width / FLOPS + steps * STEP  # every parameter is used once, at least
    seconds = least if least >= ENOUGH else examples * 3 * forward(clients) / FLOPS + steps * STEP
    return seconds >= ROUND and first.rounds * seconds >= ENOUGH


def forward(clients: Simulation) -> float:
    """Operations of a forward pass on one example; of a model that torch cannot count, as many as it has parameters."""
    from torch.utils.flop_counter import FlopCounterMode

    task, x = clients.task, clients.federation.train.x[:1]
    row = {name: rows[0] for name, rows in task.start().items()}
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counted:
            task.predict(row, task.inputs(x))
    except Exception:
        return 2.0 * task.width
    return max(float(counted.get_total_flops()), 2.0 * task.width)


def cores(beside: int = 1, ranks: int = 1) -> int:
    """Cores that a run may use, as torch was told (OMP_NUM_THREADS) and the system allows, beside other runs."""
    allowed: Any = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1) if ranks > 1 else 1
    return max(1, min(len(allowed), torch.get_num_threads()) // (beside * here))


def workers_for(clients: Simulation, first: FirstRound | None, shared: bool) -> int:
    """What `workers=auto` means: a process for each core, where a run is worth it."""
    if not shared or first is None or not processes.available():
        return 1
    largest = max(map(len, first_cohorts(clients, first)), default=1)
    return min(cores(first.beside, clients.ranks.size), largest)


def blocks_by_work(cohort: Cohort, work: Tensor, most: int) -> Iterator[Cohort]:
    """Clients in falling order of their work, in blocks of `most` at most and of one part of all the work.

    Who has more than a part is a block alone, so nobody waits for a block of several large clients.
    """
    limit, each, begin = float(work.sum()) / PARTS, work.tolist(), 0
    while begin < len(each):
        end, sum_ = begin + 1, each[begin]
        while end < len(each) and end - begin < most and sum_ + each[end] <= limit:
            sum_ += each[end]
            end += 1
        yield cohort[begin:end]
        begin = end
