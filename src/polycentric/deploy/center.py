"""The clients of a real federation, as a round sees them: nodes that are written to, and whose replies are waited for.

A center asks everybody of a cohort at once and waits until all have answered or the deadline is over. Every reply is
checked before it touches anything: whose it is and to which letter, names, shapes and types, and that every number is
finite. What is late, comes twice or was never asked for is left out. Replies are mixed in the order in which a
simulation would, block by block of one, so that the bits are those of a simulation in blocks of one.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from ..data import Split
from ..learn import Looped
from ..method import Exchange, State
from ..round import Answer, receive, visit
from ..simulate.clients import finite
from ..simulate.rehearsal import LEAST
from ..stacks.cohort import Cohort
from ..stacks.stack import Stacks
from ..tasks.task import Task
from .letters import Letter, LetterFacts, Reply, Shapes, Spoiled, digest, fits, most_bytes, shapes_of

POLL = 0.05  # seconds between two looks for replies
SILENT = 3  # misses in a row from which on a client is asked less often
LONGEST = 64  # rounds that a silent client is left alone, at most


class Post(Protocol):
    """Carries letters to clients, by their numbers, and brings replies back; it may lose, double and delay both."""

    def send(self, letters: Mapping[int, bytes]) -> None:
        """To every client its letter."""

    def fetch(self) -> list[tuple[int, bytes]]:
        """Replies that have come since, with the client that the transport says they are from."""


@dataclass(frozen=True)
class Note:
    """What became of a letter: for the record of a run."""

    round: int
    turn: int
    client: int
    what: str  # used, not finite, refused, failed, spoiled, late
    digest: str = ""  # of the reply's bytes, where one was used


@dataclass(eq=False)
class Nodes:
    """Answers for every client, from nodes elsewhere.

    Arguments:
        run: a name that a letter and its reply share.
        sizes: training examples of every client, as the nodes told when they joined.
        post: how letters travel.
        expected: what a client sends in an exchange: (exchange, turn) -> shapes.
        seed: of the draws that clients make.
        deadline: seconds that a center waits for an exchange's replies.
        bound: the longest that a row may be; a longer one is refused.
        clock, rest: for tests, which have a time of their own.
    """

    run: str
    sizes: Tensor
    post: Post
    expected: Callable[[Exchange], Shapes]
    seed: int = 0
    deadline: float = 600.0
    bound: float = math.inf
    clock: Callable[[], float] = time.monotonic
    rest: Callable[[float], None] = time.sleep
    notes: list[Note] = field(default_factory=list)
    used: dict[int, tuple[int, int]] = field(default_factory=dict)  # round and turn of every client's last used reply
    missed: dict[int, int] = field(default_factory=dict)  # letters in a row that a client did not answer

    def everyone(self, round: int, turn: int = 0) -> Cohort:
        """All clients that have examples, but for those that were silent and are left alone for a while."""
        able = [k for k in (self.sizes > 0).nonzero()[:, 0].tolist() if self._asked(k, round)]
        index = torch.tensor(able, dtype=torch.int64)
        effort = torch.ones(len(index), dtype=torch.float64)
        return Cohort(index, self.sizes[index], effort, len(self.sizes), self.seed, round, turn, len(index))

    def _asked(self, client: int, round: int) -> bool:
        """From the third miss on every second round, then every fourth, ...: a dead client costs a deadline rarely."""
        over = self.missed.get(client, 0) - SILENT
        return over < 0 or round % min(2 ** (over + 1), LONGEST) == 0

    def answers(self, exchange: Exchange, state: State, cohort: Cohort) -> Iterator[Answer]:
        """Ask everybody, wait, check, and give what is good in the order of a simulation."""
        work = cohort.sizes * cohort.effort
        blocks = list(cohort[torch.argsort(work, descending=True, stable=True)].blocks(1))
        letters = {int(block.index[0]): self._letter(exchange, state, block).packed() for block in blocks}
        replies = self._replies(exchange, cohort, letters)
        for block in blocks:
            reply = replies.get(int(block.index[0]))
            if reply is not None:
                like = next(iter(state.centers.values()))
                yield Answer(block, {name: rows.to(like.device) for name, rows in reply.sent.items()}, {})

    def _letter(self, exchange: Exchange, state: State, block: Cohort) -> Letter:
        facts = LetterFacts(
            run=self.run,
            client=int(block.index[0]),
            clients=block.n_clients,
            seed=block.seed,
            round=block.round,
            turn=block.turn,
            effort=float(block.effort[0]),
            might=block.might,
            count=None if block.count is None else float(block.count[0]),
            last=list(self.used[client]) if (client := int(block.index[0])) in self.used else None,
        )
        return Letter(facts, receive(exchange, state, block))

    def _replies(self, exchange: Exchange, cohort: Cohort, letters: Mapping[int, bytes]) -> dict[int, Reply]:
        """What came in time and is good; what is not is noted."""
        good: dict[int, Reply] = {}
        waiting = {client: digest(data) for client, data in letters.items()}
        expected = self.expected(exchange)
        self.post.send(letters)
        end = self.clock() + self.deadline
        while waiting:
            for client, data in self.post.fetch():
                if client not in waiting:
                    continue  # twice, late from another exchange, or never asked
                what, reply = self._judged(client, data, waiting[client], expected, cohort)
                if what == "another":
                    continue  # a late reply to an earlier letter: the one that was asked for may still come
                del waiting[client]
                self.missed.pop(client, None)
                if what == "used" and reply is not None:
                    good[client], self.used[client] = reply, (cohort.round, cohort.turn)
                self.notes.append(Note(cohort.round, cohort.turn, client, what, digest(data) if what == "used" else ""))
            if not waiting or self.clock() >= end:
                break
            self.rest(min(POLL, max(0.0, end - self.clock())))
        for client in waiting:
            self.missed[client] = self.missed.get(client, 0) + 1
            self.notes.append(Note(cohort.round, cohort.turn, client, "late"))
        return good

    def _judged(
        self, client: int, data: bytes, letter: str, expected: Shapes, cohort: Cohort
    ) -> tuple[str, Reply | None]:
        """What a reply is, and the reply where it can be read."""
        try:
            reply = Reply.read(data, most_bytes(expected))
        except Spoiled:
            return "spoiled", None
        facts = reply.facts
        if facts.letter != letter:
            return "another", None
        if facts.code != "ok":
            return ("refused" if facts.code == "refused" else "failed"), None
        mine = (facts.run, facts.client, facts.round, facts.turn) == (self.run, client, cohort.round, cohort.turn)
        if not mine or facts.examples != int(self.sizes[client]) or not fits(reply.sent, expected):
            return "spoiled", None
        if not bool(finite(reply.sent, 1).all()):
            return "not finite", None
        if any(float(rows.double().norm()) > self.bound for rows in reply.sent.values() if rows.is_floating_point()):
            return "too long", None
        return "used", reply


def rehearsed(exchange: Exchange, state: State, kept: Stacks, task: Task, examples: Split) -> Shapes:
    """What a client sends in an exchange, found by a visit of the first client with a step on an example or two.

    The examples need only look like the nodes' own: zeros will do.
    """
    n = len(examples.sizes)
    first, one = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64)
    few = Cohort(first, examples.sizes[:1], LEAST * one, n, 0, state.round)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said of the real ones, where they are
        sent, _ = visit(exchange, receive(exchange, state, few), kept, Looped(task, examples), few)
    return shapes_of(sent)


def without_kept(state: State) -> State:
    """A state as a center has it: what clients keep is theirs."""
    return replace(state, kept={})
