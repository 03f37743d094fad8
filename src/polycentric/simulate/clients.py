"""The clients of a simulation: one machine, all clients, learned block by block."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from ..data import Federation, Split
from ..errors import require
from ..learn import Executor
from ..learn.execute.stackable import check_buffers
from ..method import Exchange, State
from ..parts.attack import Attack
from ..round import Answer, Clients, Part, mixer, receive, visit
from ..stacks.cohort import Cohort
from ..stacks.draw import uniform
from ..stacks.stack import Stacks, aligned, take
from ..tasks.task import Task
from . import auto_executor
from .auto_executor import EXECUTORS, ExecutorName, FirstRound
from .homes import centers_away, centers_brought
from .neighbours import Neighbours
from .parcel import packed, smaller, unpacked
from .processes import Piece, Processes, available
from .ranks import ALONE, PassedOn, Ranks
from .share_out import PARTS, blocks_by_work, is_enough, parts_of, seconds_of, workers_for
from .shared_columns import Sharing
from .shared_memory import Parcel
from .threads import Threads, check_workers


class Stream(Protocol):
    """A job that can also be done bit by bit."""

    def __call__(self, state: State, piece: Piece) -> Parcel:
        """All of it, as `found`: index and outputs."""

    def stream(self, state: State, piece: Piece) -> Iterator[tuple[Tensor, Tensor]]:
        """The same, some (index, outputs) at a time."""


@dataclass(frozen=True, eq=False)
class Simulation(Clients):
    """Answers for every client, from a federation on this machine.

    Arguments:
        federation: everybody's data.
        task: what is learned.
        seed: of all draws.
        executor: "looped", "stacked", "traced", or "auto" to choose by model and device (see `auto`).
        block: clients learned at once; "work": as many as have a share of a round's work, "fits": as many as
            fit the cache; None: one of these, by rule.
        held_out: share of the clients that never train, drawn by the seed; they are scored all the same.
        held_out_seed: draws them by another seed, so that runs of several seeds hold out the same clients.
        attack: what a share of the clients does to the others; None: all are honest.
        workers: blocks learned beside each other, each by a process with one math thread (a thread where a process
            cannot be copied); sums are added in order, so the results are those of one. None: one for each core, where
            a run is long enough to be shared out (`share_out`).
        ranks: the processes that share the clients out among them; results are those of one with the same blocks.
        first: what is known of the first round; `auto` then also tries the method's steps, and decides how blocks are
            cut and who works beside whom.
    """

    federation: Federation
    task: Task
    seed: int = 0
    executor: ExecutorName = "auto"
    block: int | Literal["work", "fits"] | None = None
    held_out: float = 0.0
    held_out_seed: int | None = None
    attack: Attack | None = None
    workers: int | None = 1
    ranks: Ranks = ALONE
    first: InitVar[FirstRound | None] = None
    run: Executor = field(init=False, repr=False)
    parts_of_round: int = field(init=False, default=0)  # blocks of about the same work; 0: of so many clients
    begins: Stacks = field(init=False, repr=False)  # (1, width) each: what attackers may remember of round 0

    def __post_init__(self, first: FirstRound | None) -> None:
        require(0 <= self.held_out < 1, f"held_out is a share of the clients in [0, 1), got {self.held_out}; try 0.2")
        check_buffers(self.task, self.federation.train.x[:2])
        object.__setattr__(self, "executor", auto_executor.executor_for(self, first))
        begins = {} if first is None or self.attack is None else first.state.centers
        object.__setattr__(self, "begins", {name: rows[:1].clone() for name, rows in begins.items()})
        counts = first is not None and self.block in (None, "work")
        seconds = seconds_of(self, first) if first is not None and counts else 0.0
        enough = self.block is None and first is not None and is_enough(seconds, first.rounds)
        if enough or self.block == "work":
            object.__setattr__(self, "parts_of_round", PARTS if first is None else parts_of(seconds))
        if self.workers is None:
            object.__setattr__(self, "workers", workers_for(self, first))
        check_workers(self.n_workers, self.task, self.federation.train.x[:2])
        object.__setattr__(self, "run", EXECUTORS[self.executor](self.task, self._train))
        if self.block in (None, "fits"):
            fits = None if first is None else auto_executor.shared_block(self, first)
            object.__setattr__(self, "block", "work" if enough else fits)

    @cached_property
    def _train(self) -> Split:
        """The examples that are learned: with lies, where there are attackers."""
        train, attack = self.federation.train, self.attack
        return train if attack is None else attack.poisoned(train, self.attackers, len(self.federation.classes))

    @cached_property
    def block_size(self) -> int:
        """Clients learned at once, at most."""
        return self.block if isinstance(self.block, int) else auto_executor.block_size(self.run)

    @property
    def by_work(self) -> bool:
        """Whether blocks have about the same work, so that cores can share them."""
        return self.parts_of_round > 0

    @property
    def n_workers(self) -> int:
        """Blocks learned beside each other."""
        return 1 if self.workers is None else self.workers

    def blocks(self, cohort: Cohort) -> list[Cohort]:
        """Who is learned together, the longest work first."""
        work = cohort.sizes * cohort.effort
        order = torch.argsort(work, descending=True, stable=True)
        cohort, most = cohort[order], self.block_size
        if self.by_work:
            return list(blocks_by_work(cohort, work[order], most, self.parts_of_round))
        return list(cohort.blocks(most))

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
        rows = map(_unmixed, self._found(exchange, state, cohort, mixes=False))
        yield from self._colluded(exchange, state, list(rows)) if self.attack and self.attack.knows else rows

    def parts(self, exchange: Exchange, state: State, cohort: Cohort) -> Iterable[Part]:
        """The same; of several processes each mixes the blocks it learned, unless somebody must see all rows."""
        alone, knows = self.ranks.size == 1 and self._processes is None, self.attack is not None and self.attack.knows
        if alone or knows:
            return super().parts(exchange, state, cohort)
        if centers_away(state):
            near = Neighbours(self.ranks, exchange, state)
            rows = self._found(exchange, state, cohort, False, near)
            return near.mixed(list(map(_unmixed, rows)))
        shares = self.ranks.size > 1 and exchange.shares
        if exchange.whole and not shares:
            return super().parts(exchange, state, cohort)
        sharing = Sharing(self.ranks, exchange, state) if shares else None
        mix, found = mixer(exchange, state), self._found(exchange, state, cohort, not shares, sharing)
        return (each if isinstance(each, Part) else mix(each) for each in found)

    def _found(
        self, exchange: Exchange, state: State, cohort: Cohort, mixes: bool, passed_on: PassedOn | None = None
    ) -> Iterator[Answer | Part]:
        learning, blocks = Learning(self, exchange, mixes), self.blocks(cohort)
        if centers_away(state):
            centers_brought(state, blocks, self.ranks.owners(blocks), self.ranks)

        def learn(mine: Sequence[Cohort], kept: Sequence[Stacks] | None) -> Iterator[Answer | Part]:
            if self._processes is None:
                given = dict(zip(map(id, mine), kept or (), strict=False))
                found = self._learned(lambda b, run: self.answer(exchange, state, b, run, given.get(id(b))), mine)
                return (learning.sent(state, answer) for answer in found)

            def piece(k: int) -> Piece:
                return piece_of(mine[k], kept=take(state.kept, mine[k].index) if kept is None else kept[k])

            parcels = self._processes.each((exchange, str(mixes)), learning, state, len(mine), piece)
            return (unpacked(parcel, block) for parcel, block in zip(parcels, mine, strict=True))

        return self.ranks.answers(blocks, learn, state.kept, passed_on)

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
        if self.n_workers > 1:
            return self._threads.each(answer, blocks)
        return (answer(block, self.run) for block in blocks)

    @cached_property
    def _threads(self) -> Threads:
        return Threads(self.n_workers, EXECUTORS[self.executor], self.task, self._train)

    @cached_property
    def _processes(self) -> Processes | None:
        """Several workers are processes where this one can be copied, and threads elsewhere."""
        return Processes(self.n_workers) if self.n_workers > 1 and available() else None

    def each(
        self, key: tuple[object, ...], job: Stream, state: State, pieces: Sequence[Callable[[], Piece]]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """What a job streams of every piece of work, in their order, whoever does it."""
        if self._processes is None:
            for piece in pieces:
                yield from job.stream(state, piece())
            return
        for parcel in self._processes.each(key, job, state, len(pieces), lambda k: pieces[k]()):
            yield parcel["found"]["index"], parcel["found"]["outputs"]

    def close(self) -> None:
        """End what works beside this process; whoever asks again starts it anew."""
        if self._processes is not None:
            self._processes.close()

    def answer(
        self, exchange: Exchange, state: State, block: Cohort, run: Executor, kept: Stacks | None = None
    ) -> Answer:
        """What a block of clients makes of a state; `kept`: what they keep, where the state does not say it."""
        received = receive(exchange, state, block)
        kept = take(state.kept, block.index) if kept is None else kept
        mine = {name: rows.to(self.task.device) for name, rows in kept.items()}
        sent, kept = visit(exchange, received, mine, run, block)
        if self.attack is not None:
            sent = sent | self.attack.on(
                {name: sent[name] for name in exchange.sends}, received, self.attackers, block, self.begins
            )
        good = finite(sent | kept, len(block))
        if bool(good.all()):
            return Answer(block, aligned(sent), aligned(kept))
        return Answer(block[good], take(sent, good), take(kept, good))


@dataclass(eq=False)
class Learning:
    """What a process does that learns blocks for another."""

    clients: Simulation
    exchange: Exchange
    mixes: bool  # whether it may send what rows come to
    _mixer: tuple[State, Callable[[Answer], Part]] | None = None

    def __call__(self, state: State, piece: Piece) -> Parcel:
        """The answer of a block."""
        block = block_of(piece)
        answer = self.clients.answer(self.exchange, state, block, self.clients.run, piece.tensors["kept"])
        return packed(self.sent(state, answer), block)

    def sent(self, state: State, answer: Answer) -> Answer | Part:
        """What of an answer is sent."""
        if not self.mixes:
            return answer
        if self._mixer is None or self._mixer[0] is not state:
            self._mixer = state, mixer(self.exchange, state)
        return smaller(answer, self._mixer[1](answer))


def _unmixed(found: Answer | Part) -> Answer:
    assert isinstance(found, Answer), "ranks do not agree on what they send each other"
    return found


NOBODY = Cohort(torch.zeros(0).long(), torch.zeros(0).long(), torch.zeros(0).double(), 0, 0, 0)
WORDS = ("n_clients", "seed", "round", "turn", "might")


def piece_of(block: Cohort, **more: Stacks) -> Piece:
    """A block of clients as a piece of work."""
    words = {name: getattr(block, name) for name in WORDS}
    who = {"index": block.index, "sizes": block.sizes, "effort": block.effort}
    tensors = {"block": who | ({} if block.count is None else {"count": block.count}), **more}
    return Piece(words, tensors, work=float((block.sizes * block.effort).sum()))


def block_of(piece: Piece) -> Cohort:
    """The block of clients that a piece of work is about."""
    return replace(NOBODY, **{**piece.tensors["block"], **piece.words})


def finite(stacks: Stacks, n: int) -> Tensor:
    """Which rows are finite in every stack, (n,), on the host."""
    good = torch.ones(n, dtype=torch.bool)
    # A sum is finite only if every number is: one pass, and one question to a GPU. What overflows is looked at again.
    total = sum((rows.sum() for rows in stacks.values()), start=torch.zeros(()))
    if not bool(total.isfinite()):
        for rows in stacks.values():
            good &= rows.flatten(1).isfinite().all(1).cpu()
    return good
