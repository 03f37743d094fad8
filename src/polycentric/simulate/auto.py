"""The rule by which `auto` chooses: the executor, whether its steps are compiled, and how large a block is.

1. The executor (`chosen`). On a CPU, a stack of convolutions becomes a grouped convolution, which is slower than one
   model after another, and so is a stack of recurrences (`polycentric bench`): `looped`. So is a module that `vmap`
   cannot take. Everything else, and everything on a GPU, is faster `stacked`.
2. A stacked run becomes `compiled` where that saves more than compiling costs (`compiling_pays`):

       rounds * (STEP_SAVED * steps of all blocks + PRODUCT_SAVED * examples * parameters)  >=  WORTH

   counted in the first round; only for minibatches and dense layers on a processor that has a compiler.
3. A block (`block_size`) has as many clients as fit the bytes that its executor asks for, at most 1024, in whole pieces
   of those it takes at a time.
4. Where ranks share the clients (`shared_block`) it is no larger than that, and so small that every rank has its share.

The rule is a function of model, device, method, data, seed and rounds, and of whether there is a compiler, and no
stopwatch is read: results agree between executors only to rounding, so a choice that varies would change them.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from ..data import Federation, Split
from ..learn import Compiled, Executor, Looped, Stacked
from ..learn.execute.probe import runs_stacked
from ..method import Exchange, State
from ..models.text import LSTM
from ..stacks.cohort import Cohort
from ..tasks.task import Task

if TYPE_CHECKING:
    from .clients import Simulation

ExecutorName = Literal["auto", "looped", "stacked", "compiled"]
EXECUTORS: dict[str, Callable[[Task, Split], Executor]] = {"looped": Looped, "stacked": Stacked, "compiled": Compiled}

ONE_BY_ONE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, LSTM)  # layers that a processor does not do faster in a stack
DENSE = (nn.Linear, nn.Flatten, nn.ReLU, nn.LeakyReLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Identity)
STEP_SAVED = 5e-4  # seconds that a compiled step of a block saves, whatever its size
PRODUCT_SAVED = 5e-11  # seconds it saves for a parameter and an example; both rounded down from what `bench` measured
WORTH = 30.0  # seconds a run must save before anything is compiled: eight programs take about 20
BLOCKS = {"cpu": 4, "cuda": 1}  # for every rank, of the first round's largest cohort


def stackable(task: Task, federation: Federation) -> bool:
    """Whether vmap can take the model."""
    return runs_stacked(task, federation.train.x[:1], federation.train.y[:1])


def chosen(task: Task, federation: Federation) -> str:
    """The executor for a model and a device."""
    if task.device.type == "cpu" and any(isinstance(m, ONE_BY_ONE) for m in task.module.modules()):
        return "looped"
    if not stackable(task, federation):
        warnings.warn(
            f"{type(task.module).__name__} cannot be stacked with vmap; its clients are learned one after another",
            stacklevel=2,
        )
        return "looped"
    return "stacked"


def compiling_pays(clients: Simulation, exchanges: tuple[Exchange, ...], state: State, rounds: int) -> bool:
    """Whether a run is long enough for `compiled` to save more than compiling costs.

    A convolution is looped on a processor, and a recurrence is a long program: dense layers only.
    """
    leaves = [part for part in clients.task.module.modules() if not list(part.children())]
    if (
        clients.executor != "stacked"
        or clients.task.device.type != "cpu"
        or not all(isinstance(part, DENSE) for part in leaves)
        or shutil.which(os.environ.get("CXX", "g++")) is None
    ):
        return False
    steps, products = 0, 0.0
    for exchange, cohort in zip(exchanges, _cohorts(clients, exchanges, state), strict=True):
        cohort = cohort[torch.argsort(cohort.sizes * cohort.effort, descending=True, stable=True)]
        for learner in exchange.chain if len(cohort) else ():
            plan = learner.plan(cohort)
            if plan.batch is None:  # a program for every largest client of a block: compiling would not end
                return False
            steps += sum(int(taken.max()) for taken in torch.split(plan.steps, clients.block_size))
            examples = cohort.sizes.clamp(max=plan.batch)
            products += float((plan.steps * examples).sum()) * clients.task.width
    return rounds * (STEP_SAVED * steps + PRODUCT_SAVED * products) >= WORTH


def block_size(run: Executor) -> int:
    """Clients learned at once: as many as fit the executor's bytes, and no piece of them is left over."""
    row = run.task.width * run.task.dtype.itemsize
    fits = max(1, min(1024, run.block_bytes // max(row, 1)))
    return max(run.piece, fits // run.piece * run.piece)


def shared_block(clients: Simulation, exchanges: tuple[Exchange, ...], state: State) -> int:
    """Clients learned at once where ranks share them: few enough that every rank has its share.

    On a processor every rank gets four blocks, so that the largest clients, who stand in the first, do not keep all but
    one waiting; on a GPU one, since a step takes about as long for many clients as for few.
    """
    largest = max(map(len, _cohorts(clients, exchanges, state)), default=1)
    fits = -(-largest // (clients.ranks.size * BLOCKS.get(clients.task.device.type, 1)))
    whole = -(-fits // clients.run.piece) * clients.run.piece
    return max(1, min(clients.block_size, whole))


def _cohorts(clients: Simulation, exchanges: tuple[Exchange, ...], state: State) -> list[Cohort]:
    """Who would be asked in each exchange of a round."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said when the round is run
        return [exchange.select(state.memory, clients.everyone(state.round)) for exchange in exchanges]
