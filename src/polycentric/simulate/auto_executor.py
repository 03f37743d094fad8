"""The rule by which `auto` chooses: the executor, whether its steps are compiled, and how large a block is.

1. The executor. On a CPU, a stack of convolutions becomes a grouped convolution, which is slower than one
   model after another, and so is a stack of recurrences (`polycentric bench`): `looped`. So is a module that `vmap`
   cannot take. Everything else, and everything on a GPU, is faster `stacked`.
2. A stacked run becomes `compiled` where that saves more than compiling costs (`compiling_pays`):

       rounds * (STEP_SAVED * steps of all blocks + PRODUCT_SAVED * examples * parameters)  >=  WORTH

   counted in the first round; only for minibatches and dense layers on a processor that has a compiler.
3. A block (`block_size`) has as many clients as fit the bytes that its executor asks for, at most 1024, in whole pieces
   of those it takes at a time. Where a step holds many rows for each client, such as the gradients of single examples,
   they must fit CROWD times the bytes.
4. Where ranks share the clients, or runs a GPU (`shared_block`), it is no larger, so that everybody has their share.

The rule is a function of model, device, method, data, seed and rounds, and of whether there is a compiler, and no
stopwatch is read: results agree between executors only to rounding, so a choice that varies would change them.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from ..data import Split
from ..errors import UsageError, unknown
from ..learn import Traced, Executor, Looped, Stacked
from ..learn.execute.stackable import runs_stacked
from ..learn.execute.stacked import launch
from ..learn.learner import BLOCK_BYTES
from ..method import Exchange, State
from ..models.text import LSTM
from ..stacks.cohort import Cohort
from ..tasks.task import Task
from .rehearsal import failure

if TYPE_CHECKING:
    from .clients import Simulation

ExecutorName = Literal["auto", "looped", "stacked", "traced"]
EXECUTORS: dict[str, Callable[[Task, Split], Executor]] = {"looped": Looped, "stacked": Stacked, "traced": Traced}

ONE_BY_ONE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase, LSTM)  # layers that a CPU does not do faster in a stack
DENSE = (nn.Linear, nn.Flatten, nn.ReLU, nn.LeakyReLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Identity)
STEP_SAVED = 5e-4  # seconds that a compiled step of a block saves, whatever its size
PRODUCT_SAVED = 5e-11  # seconds it saves for a parameter and an example; both rounded down from what `bench` measured
WORTH = 30.0  # seconds a run must save before anything is compiled: eight programs take about 20
CROWD = {"cpu": 2, "cuda": 8}  # times a block's bytes that the rows held by its steps may take
BLOCKS = {"cpu": 4, "cuda": 1}  # for every rank, of the first round's largest cohort


@dataclass(frozen=True, eq=False)
class FirstRound:
    """What is known of a run before its first round."""

    exchanges: tuple[Exchange, ...]
    state: State
    rounds: int  # of the whole run
    beside: int = 1  # runs that share the device with it


def executor_for(clients: Simulation, first: FirstRound | None) -> str:
    """The executor that was asked for, if the model can be run so; what `auto` means where nothing was."""
    asked, task = clients.executor, clients.task
    if asked == "auto":
        name = _chosen(clients, first)
        return "traced" if name == "stacked" and first and compiling_pays(clients, first) else name
    if asked not in EXECUTORS:
        raise unknown("executor", asked, ("auto", *EXECUTORS))
    if asked != "looped" and not stackable(clients, first):
        raise UsageError(
            f"{type(task.module).__name__} cannot be stacked with vmap: its forward pass branches on values, "
            "or uses an operation without a batching rule; use --executor looped"
        )
    return asked if asked != "looped" else loopable(clients, first)


def _chosen(clients: Simulation, first: FirstRound | None) -> str:
    """The executor for a model, a device and a method."""
    task = clients.task
    if task.device.type == "cpu" and any(isinstance(m, ONE_BY_ONE) for m in task.module.modules()):
        return loopable(clients, first)
    if stackable(clients, first):
        return "stacked"
    looped = loopable(clients, first)
    warnings.warn(
        f"{type(task.module).__name__} cannot be stacked with vmap; clients are trained one after another", stacklevel=2
    )
    return looped


def stackable(clients: Simulation, first: FirstRound | None) -> bool:
    """Whether vmap can take the model, and every step of the method with it."""
    task, train = clients.task, clients.federation.train
    if not runs_stacked(task, train):
        return False
    return first is None or failure(clients, first, Stacked(task, train, launch, few=0)) is None


def loopable(clients: Simulation, first: FirstRound | None) -> str:
    """`looped`, for a model with which every step of the method can be taken one client after another."""
    error = first and failure(clients, first, Looped(clients.task, clients.federation.train))
    if error:
        name, said = type(clients.task.module).__name__, f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UsageError(
            f"model {name} cannot do what this method asks of it ({said[:300]}): choose another method, or change the "
            "model"
        ) from error
    return "looped"


def compiling_pays(clients: Simulation, first: FirstRound) -> bool:
    """Whether a stacked run is long enough for `compiled` to save more than compiling costs.

    A convolution is looped on a processor, and a recurrence is a long program: dense layers only.
    """
    task = clients.task
    leaves = [part for part in task.module.modules() if not list(part.children())]
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if task.device.type != "cpu" or compiler is None or not all(isinstance(part, DENSE) for part in leaves):
        return False
    block = clients.block or fitting(task, BLOCK_BYTES["cpu"])
    steps, products = 0, 0.0
    for exchange, cohort in zip(first.exchanges, _cohorts(clients, first), strict=True):
        cohort = cohort[torch.argsort(cohort.sizes * cohort.effort, descending=True, stable=True)]
        for learner in exchange.chain if len(cohort) else ():
            plan = learner.plan(cohort)
            if plan.batch is None:  # a program for every largest client of a block: compiling would not end
                return False
            steps += sum(int(taken.max()) for taken in torch.split(plan.steps, block))
            examples = plan.sizes(cohort).clamp(max=plan.batch)
            products += float((plan.steps * examples).sum()) * task.width
    return first.rounds * (STEP_SAVED * steps + PRODUCT_SAVED * products) >= WORTH


def block_size(run: Executor, held: int = 1) -> int:
    """Clients learned at once: as many as fit the executor's bytes, and no piece of them is left over.

    `held` is how many rows a step holds for each of them; a piece is broken up where its rows do not fit.
    """
    fits = fitting(run.task, run.block_bytes, run.piece)
    room = fitting(run.task, CROWD.get(run.task.device.type, 1) * run.block_bytes // held)
    return fits if held == 1 or room >= fits else max(1, room // run.piece * run.piece or room)


def rows_held(clients: Simulation, first: FirstRound) -> int:
    """Rows as wide as the model that a step holds for each client, in the exchange that holds most."""
    learners = (learner for exchange in first.exchanges for learner in exchange.chain)
    return max((learner.rows_held(clients.task) for learner in learners), default=1)


def fitting(task: Task, block_bytes: int, piece: int = 1) -> int:
    """How many rows of a task fit so many bytes: whole pieces, one at least, and at most 1024 rows."""
    row = task.width * task.dtype.itemsize
    fits = max(1, min(1024, block_bytes // max(row, 1)))
    return max(piece, fits // piece * piece)


def shared_block(clients: Simulation, first: FirstRound) -> int | None:
    """Clients learned at once where ranks share them, several runs a GPU, or steps hold much; None: as many as fit.

    Every rank has its share: on a processor four blocks, so that the largest clients, who stand in the first, do not
    keep all but one waiting; on a GPU one, since a step takes about as long for many clients as for few. Beside other
    runs a block is twice its share: runs seldom need all their room at the same time.
    """
    device, fits = clients.task.device.type, block_size(clients.run, rows_held(clients, first))
    if clients.ranks.size > 1:
        largest = max(map(len, _cohorts(clients, first)), default=1)
        share, piece = -(-largest // (clients.ranks.size * BLOCKS.get(device, 1))), clients.run.piece
        return max(1, min(fits, -(-share // piece) * piece))
    if first.beside > 2 and device == "cuda":
        return max(1, 2 * fits // first.beside)
    return fits if fits < block_size(clients.run) else None


def _cohorts(clients: Simulation, first: FirstRound) -> list[Cohort]:
    """Who would be asked in each exchange of the first round."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said when the round is run
        everyone = clients.everyone(first.state.round)
        return [exchange.select(first.state.memory, everyone) for exchange in first.exchanges]
