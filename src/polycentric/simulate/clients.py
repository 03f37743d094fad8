"""The clients of a simulation: one machine, all clients, learned block by block."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from ..data import Federation, Split
from ..errors import require
from ..learn import Executor
from ..method import Exchange, State
from ..parts.attack import Attack
from ..round import Answer, receive, visit
from ..stacks.cohort import Cohort
from ..stacks.draw import uniform
from ..stacks.stack import Stacks, aligned, take
from ..tasks.task import Task
from . import auto_executor
from .auto_executor import EXECUTORS, ExecutorName, FirstRound
from .ranks import ALONE, Ranks
from .workers import Workers, check_workers


@dataclass(frozen=True, eq=False)
class Simulation:
    """Answers for every client, from a federation on this machine.

    Arguments:
        federation: everybody's data.
        task: what is learned.
        seed: of all draws.
        executor: "looped", "stacked", "traced", or "auto" to choose by model and device (see `auto`).
        block: clients learned at once; None: as many as fit the cache (see `auto`).
        held_out: share of the clients that never train, drawn by the seed; they are scored all the same.
        held_out_seed: draws them by another seed, so that runs of several seeds hold out the same clients.
        attack: what a share of the clients does to the others; None: all are honest.
        workers: blocks learned beside each other, each by a thread with a module of its own and one math thread; they
            are mixed in order, so the results are those of one.
        ranks: the processes that share the clients out among them; results are those of one with the same blocks.
        first: what is known of the first round; `auto` then also tries the method's steps, and shares out blocks.
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
    first: InitVar[FirstRound | None] = None
    run: Executor = field(init=False, repr=False)
    begins: Stacks = field(init=False, repr=False)  # (1, width) each: what attackers may remember of round 0

    def __post_init__(self, first: FirstRound | None) -> None:
        require(0 <= self.held_out < 1, f"held_out is a share of the clients in [0, 1), got {self.held_out}; try 0.2")
        object.__setattr__(self, "executor", auto_executor.executor_for(self, first))
        begins = {} if first is None or self.attack is None else first.state.centers
        object.__setattr__(self, "begins", {name: rows[:1].clone() for name, rows in begins.items()})
        check_workers(self.workers, self.task, self.federation.train.x[:2])
        object.__setattr__(self, "run", EXECUTORS[self.executor](self.task, self._train))
        if self.block is None and first is not None:
            object.__setattr__(self, "block", auto_executor.shared_block(self, first))

    @cached_property
    def _train(self) -> Split:
        """The examples that are learned: with lies, where there are attackers."""
        train, attack = self.federation.train, self.attack
        return train if attack is None else attack.poisoned(train, self.attackers, len(self.federation.classes))

    @cached_property
    def block_size(self) -> int:
        """Clients learned at once."""
        return auto_executor.block_size(self.run) if self.block is None else self.block

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

    def everyone(self, round: int, turn: int = 0) -> Cohort:
        """All clients that have training data and are not held out."""
        index, sizes, effort = self._able
        return Cohort(index, sizes, effort, self.federation.n_clients, self.seed, round, turn, len(index))

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
        found = self.ranks.answers(blocks, lambda mine: self._learned(partial(self._answer, exchange, state), mine))
        yield from self._colluded(exchange, state, list(found)) if self.attack and self.attack.knows else found

    def _colluded(self, exchange: Exchange, state: State, answers: list[Answer]) -> list[Answer]:
        """The answers once attackers have seen what the honest clients send: all of them, whoever learned it."""
        assert self.attack is not None
        lies = [self.attackers[answer.block.index] for answer in answers]
        received = [receive(exchange, state, answer.block) for answer in answers]
        sent = [dict(answer.sent) for answer in answers]
        for name in exchange.sends:
            start = [there.get(name, torch.zeros_like(rows[name])) for there, rows in zip(received, sent, strict=True)]
            moved = [(rows[name] - at).double() for rows, at in zip(sent, start, strict=True)]
            honest = torch.cat([rows[~mine.to(rows.device)] for rows, mine in zip(moved, lies, strict=True)])
            n_lies = sum(int(mine.sum()) for mine in lies)
            if not len(honest) or not n_lies:
                continue
            update = self.attack.update(name, honest, n_lies, self.seed)
            for rows, at, mine in zip(sent, start, lies, strict=True):
                here = mine.to(at.device)[:, None]
                rows[name] = torch.where(here, at + update.to(at), rows[name])
        return [replace(answer, sent=rows) for answer, rows in zip(answers, sent, strict=True)]

    def _learned(self, answer: Callable[[Cohort, Executor], Answer], blocks: Sequence[Cohort]) -> Iterator[Answer]:
        if self.workers > 1:
            return self._workers.each(answer, blocks)
        return (answer(block, self.run) for block in blocks)

    @cached_property
    def _workers(self) -> Workers:
        return Workers(self.workers, EXECUTORS[self.executor], self.task, self._train)

    def _answer(self, exchange: Exchange, state: State, block: Cohort, run: Executor) -> Answer:
        received = receive(exchange, state, block)
        sent, kept = visit(exchange, received, take(state.kept, block.index, self.task.device), run, block)
        if self.attack is not None:
            sent = sent | self.attack.on(
                {name: sent[name] for name in exchange.sends}, received, self.attackers, block, self.begins
            )
        good = finite(sent | kept, len(block))
        if bool(good.all()):
            return Answer(block, aligned(sent), aligned(kept))
        return Answer(block[good], take(sent, good), take(kept, good))


def finite(stacks: Stacks, n: int) -> Tensor:
    """Which rows are finite in every stack, (n,), on the host."""
    good = torch.ones(n, dtype=torch.bool)
    # A sum is finite only if every number is: one pass, and one question to a GPU. What overflows is looked at again.
    total = sum((rows.sum() for rows in stacks.values()), start=torch.zeros(()))
    if not bool(total.isfinite()):
        for rows in stacks.values():
            good &= rows.flatten(1).isfinite().all(1).cpu()
    return good
