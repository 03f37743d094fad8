"""The rule by which `auto` chooses: the executor, and how large a block is.

1. The executor. On a CPU, a stack of convolutions becomes a grouped convolution, which is slower than one
   model after another, and so is a stack of recurrences (`polycentric bench`): `looped`. So is a module that `vmap`
   cannot take. Everything else, and everything on a GPU, is faster `stacked`.
2. On a CPU a stacked run is `traced`: recording takes ten milliseconds for each number of clients, and is made good
   in as many steps. How many rounds are asked for plays no part: a longer run begins as a shorter one does.
3. A block (`block_size`) has as many clients as fit the bytes that its executor asks for, at most 1024, in whole pieces
   of those it takes at a time. Where a step holds many rows for each client, such as the gradients of single examples,
   they must fit CROWD times the bytes.
4. Where ranks or runs share GPUs (`shared_block`), it is no larger, so that everybody has their share; on processors
   blocks have about the same work where a run is long enough (`share_out`).

The rule is a function of model, device, method, data and seed, and no stopwatch is read: results agree between
executors only to rounding, so a choice that varies would change them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import nn

from ..data import Split
from ..errors import UsageError, unknown
from ..learn import Executor, Looped, Stacked, Traced
from ..learn.execute.stackable import runs_stacked
from ..learn.execute.stacked import launch
from ..method import Exchange, State
from ..models.text import LSTM
from ..stacks.cohort import Cohort
from ..tasks.task import Task
from .rehearsal import failure

if TYPE_CHECKING:
    from .clients import Simulation

ExecutorName = Literal["auto", "looped", "stacked", "traced", "compiled"]
EXECUTORS: dict[str, Callable[[Task, Split], Executor]] = {"looped": Looped, "stacked": Stacked, "traced": Traced}
FORMER = {"compiled": "traced"}  # runs that were begun with what is no longer there go on with what replaced it

ONE_BY_ONE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase, LSTM)  # layers that a CPU does not do faster in a stack
CROWD = {"cpu": 2, "cuda": 8}  # times a block's bytes that the rows held by its steps may take


@dataclass(frozen=True, eq=False)
class FirstRound:
    """What is known of a run before its first round."""

    exchanges: tuple[Exchange, ...]
    state: State
    rounds: int  # of the whole run
    beside: int = 1  # runs that share the device with it


def executor_for(clients: Simulation, first: FirstRound | None) -> str:
    """The executor that was asked for, if the model can be run so; what `auto` means where nothing was."""
    asked, task = FORMER.get(clients.executor, clients.executor), clients.task
    if asked == "auto":
        name = _chosen(clients, first)
        return "traced" if name == "stacked" and task.device.type == "cpu" else name
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
    """Clients learned at once where ranks share a GPU's, several runs a GPU, or steps hold much; None: as many as fit.

    On GPUs every rank has one block: a step takes about as long for many clients as for few. (On processors blocks do
    not depend on who shares them: `share_out`.) Beside other runs a block is twice its share: runs seldom need all
    their room at the same time.
    """
    device, fits = clients.task.device.type, block_size(clients.run, rows_held(clients, first))
    if clients.ranks.size > 1 and device == "cuda":
        largest = max(map(len, first_cohorts(clients, first)), default=1)
        share, piece = -(-largest // clients.ranks.size), clients.run.piece
        return max(1, min(fits, -(-share // piece) * piece))
    if first.beside > 2 and device == "cuda":
        return max(1, 2 * fits // first.beside)
    return fits if fits < block_size(clients.run) else None


def first_cohorts(clients: Simulation, first: FirstRound) -> list[Cohort]:
    """Who would be asked in each exchange of the first round."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said when the round is run
        everyone = clients.everyone(first.state.round)
        return [exchange.select(first.state.memory, everyone) for exchange in first.exchanges]
