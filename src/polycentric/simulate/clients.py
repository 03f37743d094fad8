"""The clients of a simulation: one machine, all clients, learned block by block."""

from __future__ import annotations

import copy
import os
import shutil
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from ..data import Federation, Split
from ..errors import UsageError, require, unknown
from ..learn import Compiled, Executor, Looped, Stacked
from ..method import Exchange, State
from ..models.text import LSTM
from ..parts.attack import Attack
from ..round import Answer, receive, visit
from ..stacks.cohort import Cohort
from ..stacks.draw import uniform
from ..stacks.stack import Stacks, aligned, take
from ..tasks.task import Task, draws, runs_stacked
from .ranks import ALONE, Ranks

ExecutorName = Literal["auto", "looped", "stacked", "compiled"]
EXECUTORS: dict[str, Callable[[Task, Split], Executor]] = {"looped": Looped, "stacked": Stacked, "compiled": Compiled}

ONE_BY_ONE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, LSTM)  # layers that a processor does not do faster in a stack
BLOCK_BYTES = {"cpu": 8 << 20, "cuda": 1 << 30}  # of parameters learned at once: what stays in a core's cache
COMPILED_BYTES = 12 << 20  # the same for programs, which take a few of a block's clients at a time


@dataclass(frozen=True, eq=False)
class Simulation:
    """Answers for every client, from a federation on this machine.

    Arguments:
        federation: everybody's data.
        task: what is learned.
        seed: of all draws.
        executor: "looped", "stacked", "compiled", or "auto" to choose by model and device (see `chosen`).
        block: clients learned at once; None: as many as fit the cache.
        held_out: share of the clients that never train, drawn by the seed; they are scored all the same.
        held_out_seed: draws them by another seed, so that runs of several seeds hold out the same clients.
        attack: what a share of the clients does to the others; None: all are honest.
        workers: blocks learned beside each other, each by a thread with a module of its own and one math thread; they
            are mixed in order, so the results are those of one.
        ranks: the processes that share the clients out among them; results are those of one with the same blocks.
    """

    federation: Federation
    task: Task
    seed: int = 0
    executor: ExecutorName = "auto"
    block: int | None = None
    held_out: float = 0.0
    held_out_seed: int | None = None
    attack: Attack | None = None
    workers: int = 1
    ranks: Ranks = ALONE
    run: Executor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require(0 <= self.held_out < 1, f"held_out is a share of the clients in [0, 1), got {self.held_out}")
        if self.executor not in ("auto", *EXECUTORS):
            raise unknown("executor", self.executor, ("auto", *EXECUTORS))
        name = chosen(self.task, self.federation) if self.executor == "auto" else self.executor
        if self.executor in ("stacked", "compiled") and not stackable(self.task, self.federation):
            raise UsageError(
                f"{type(self.task.module).__name__} cannot be stacked with vmap: it decides something by its numbers, "
                "or uses an operation without a batched form; use --executor looped"
            )
        object.__setattr__(self, "executor", name)
        self._check_workers()
        object.__setattr__(self, "run", self._executor(self.task))

    def _executor(self, task: Task) -> Executor:
        return EXECUTORS[self.executor](task, self._train)

    @cached_property
    def _train(self) -> Split:
        """The examples that are learned: with lies, where there are attackers."""
        train = self.federation.train
        return (
            train if self.attack is None else self.attack.poisoned(train, self.attackers, len(self.federation.classes))
        )

    def _check_workers(self) -> None:
        require(self.workers >= 1, f"workers must be at least 1, got {self.workers}")
        if self.workers == 1:
            return
        require(
            self.task.device.type == "cpu",
            f"workers are for the processor, and the device is {self.task.device}: leave them out, or use --device cpu",
        )
        require(
            not draws(self.task, self.federation.train.x[:2]),
            f"{type(self.task.module).__name__} draws random numbers by itself (dropout), from one generator that "
            "several workers would take from in any order: use --workers 1",
        )

    @cached_property
    def block_size(self) -> int:
        """Clients learned at once."""
        if self.block is not None:
            return self.block
        row = self.task.width * torch.empty((), dtype=self.task.dtype).element_size()
        compiled = isinstance(self.run, Compiled)
        bytes = COMPILED_BYTES if compiled else BLOCK_BYTES.get(self.task.device.type, 8 << 20)
        fits = max(1, min(1024, bytes // max(row, 1)))
        whole = self.run.pieces[0] if isinstance(self.run, Compiled) else 1  # no piece is left over
        return max(whole, fits // whole * whole)

    @property
    def compiled(self) -> tuple[int, float]:
        """Programs that were compiled so far, and the seconds it took."""
        ran = [run for run in (self.run, *self._others) if isinstance(run, Compiled)]
        return sum(len(run.programs) for run in ran), sum(run.compile_seconds for run in ran)

    @cached_property
    def held_out_mask(self) -> Tensor:
        """Which clients are held out of training, (clients,) bool."""
        every = torch.arange(self.federation.n_clients)
        out = torch.zeros(len(every), dtype=torch.bool)
        seed = self.seed if self.held_out_seed is None else self.held_out_seed
        out[uniform(seed, "held out", every).argsort()[: round(self.held_out * len(every))]] = True
        return out

    @cached_property
    def attackers(self) -> Tensor:
        """Which clients attack, (clients,) bool; never those that are held out or have no data."""
        able = (self.federation.train.sizes > 0) & ~self.held_out_mask
        return torch.zeros_like(able) if self.attack is None else self.attack.attackers(self.seed, able)

    @property
    def scored_mask(self) -> Tensor:
        """Whose scores count, (clients,) bool: those who are not held out, and honest."""
        return ~self.held_out_mask & ~self.attackers

    def everyone(self, round: int, turn: int = 0) -> Cohort:
        """All clients that have training data and are not held out."""
        index, sizes, effort = self._able
        return Cohort(index, sizes, effort, self.federation.n_clients, self.seed, round, turn)

    @cached_property
    def _able(self) -> tuple[Tensor, Tensor, Tensor]:
        sizes = self.federation.train.sizes
        index = ((sizes > 0) & ~self.held_out_mask).nonzero()[:, 0]
        return index, sizes[index], torch.ones(len(index), dtype=torch.float64)

    def answers(self, exchange: Exchange, state: State, cohort: Cohort) -> Iterator[Answer]:
        """Block by block, the longest work first, so that a block's clients finish at about the same time.

        Who sends a number that is not finite is left out: `0 * nan` is still `nan`, so no weight can mend it.
        """
        work = cohort.sizes * cohort.effort
        blocks = list(cohort[torch.argsort(work, descending=True, stable=True)].blocks(self.block_size))
        yield from self.ranks.answers(blocks, lambda mine: self._learned(exchange, state, mine))

    def _learned(self, exchange: Exchange, state: State, blocks: Sequence[Cohort]) -> Iterator[Answer]:
        if self.workers == 1:
            yield from (self._answer(exchange, state, block, self.run) for block in blocks)
            return
        waiting: deque[Future[Answer]] = deque()
        for block in blocks:  # a few ahead: an answer may be as large as all its block's models
            waiting.append(self._threads.submit(self._at_hand, exchange, state, block))
            if len(waiting) > self.workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _answer(self, exchange: Exchange, state: State, block: Cohort, run: Executor) -> Answer:
        received = receive(exchange, state, block)
        sent, kept = visit(exchange, received, take(state.kept, block.index, self.task.device), run, block)
        if self.attack is not None:
            sent = sent | self.attack.on({name: sent[name] for name in exchange.sends}, received, self.attackers, block)
        good = finite(sent | kept, len(block))
        if bool(good.all()):
            return Answer(block, aligned(sent), aligned(kept))
        return Answer(block[good], take(sent, good), take(kept, good))

    def _at_hand(self, exchange: Exchange, state: State, block: Cohort) -> Answer:
        """With this thread's executor: a module is no function, its parameters are put in while it is called."""
        if not hasattr(self._mine, "run"):
            torch.set_num_threads(1)
            self._mine.run = self._executor(replace(self.task, module=copy.deepcopy(self.task.module)))
            self._others.append(self._mine.run)
        return self._answer(exchange, state, block, self._mine.run)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers, thread_name_prefix="polycentric")

    @cached_property
    def _others(self) -> list[Executor]:
        """The threads' executors."""
        return []

    @cached_property
    def _mine(self) -> threading.local:
        return threading.local()


def finite(stacks: Stacks, n: int) -> Tensor:
    """Which rows are finite in every stack, (n,), on the host."""
    good = torch.ones(n, dtype=torch.bool)
    # A sum is finite only if every number is: one pass, and one question to a GPU. What overflows is looked at again.
    total = sum((rows.sum() for rows in stacks.values()), start=torch.zeros(()))
    if not bool(total.isfinite()):
        for rows in stacks.values():
            good &= rows.flatten(1).isfinite().all(1).cpu()
    return good


def stackable(task: Task, federation: Federation) -> bool:
    """Whether vmap can take the model."""
    return runs_stacked(task, federation.train.x[:1], federation.train.y[:1])


def chosen(task: Task, federation: Federation) -> str:
    """The executor for a model and a device.

    On a CPU, a stack of convolutions becomes a grouped convolution, which is slower than one model after
    another, and so is a stack of recurrences (`polycentric bench`); everything else, and everything on a GPU, is
    faster stacked. The choice depends on nothing that varies from run to run, since results agree between executors
    only to rounding. A run that is long enough has its stacked steps compiled: see `compiling_pays`.
    """
    if task.device.type == "cpu" and any(isinstance(m, ONE_BY_ONE) for m in task.module.modules()):
        return "looped"
    if not stackable(task, federation):
        warnings.warn(
            f"{type(task.module).__name__} cannot be stacked with vmap; its clients are learned one after another",
            stacklevel=2,
        )
        return "looped"
    return "stacked"


DENSE = (nn.Linear, nn.Flatten, nn.ReLU, nn.LeakyReLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Identity)
STEP_SAVED = 5e-4  # seconds that a compiled step of a block saves, whatever its size
PRODUCT_SAVED = 5e-11  # seconds it saves for a parameter and an example; both rounded down from what `bench` measured
WORTH = 30.0  # seconds a run must save before anything is compiled: eight programs take about 20


def compiling_pays(clients: Simulation, exchanges: tuple[Exchange, ...], state: State, rounds: int) -> bool:
    """Whether a run is long enough for `compiled` to save more than compiling costs.

        rounds * (STEP_SAVED * steps of all blocks + PRODUCT_SAVED * examples * parameters)  >=  WORTH

    counted in the first round. A function of method, data, seed and rounds, and of whether there is a compiler; no
    stopwatch. Only for minibatches and dense layers on a processor:
    a convolution is looped there, and a recurrence is a long program.
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
    for exchange, cohort in zip(exchanges, cohorts(clients, exchanges, state), strict=True):
        cohort = cohort[torch.argsort(cohort.sizes * cohort.effort, descending=True, stable=True)]
        for learner in exchange.chain if len(cohort) else ():
            plan = learner.plan(cohort)
            if plan.batch is None:  # a program for every largest client of a block: compiling would not end
                return False
            steps += sum(int(taken.max()) for taken in torch.split(plan.steps, clients.block_size))
            examples = cohort.sizes.clamp(max=plan.batch)
            products += float((plan.steps * examples).sum()) * clients.task.width
    return rounds * (STEP_SAVED * steps + PRODUCT_SAVED * products) >= WORTH


def cohorts(clients: Simulation, exchanges: tuple[Exchange, ...], state: State) -> list[Cohort]:
    """Who would be asked in each exchange of a round."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said when the round is run
        return [exchange.select(state.memory, clients.everyone(state.round)) for exchange in exchanges]


BLOCKS = {"cpu": 4, "cuda": 1}  # for every rank, of the first round's largest cohort


def shared_block(clients: Simulation, exchanges: tuple[Exchange, ...], state: State) -> int:
    """Clients learned at once where ranks share them: few enough that every rank has its share.

    On a processor every rank gets four blocks, so that the largest clients, who stand in the first, do not keep all but
    one waiting; on a GPU one, since a step takes about as long for many clients as for few.
    """
    largest = max(map(len, cohorts(clients, exchanges, state)), default=1)
    fits = -(-largest // (clients.ranks.size * BLOCKS.get(clients.task.device.type, 1)))
    whole = clients.run.pieces[0] if isinstance(clients.run, Compiled) else 1  # no piece is left over
    return max(1, min(clients.block_size, -(-fits // whole) * whole))
