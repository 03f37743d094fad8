"""The clients of a real federation, as a round sees them: nodes that are written to, and whose replies are waited for.

A center asks everybody of a cohort at once and waits until all have answered or the deadline is over. Every reply is
checked before it touches anything: whose it is and to which letter, names, shapes and types, and that every number is
finite. What is late, comes twice or was never asked for is left out. Replies are mixed in the order in which a
simulation would, block by block of one, so that the bits are those of a simulation in blocks of one.

Scores are asked for in the same parcel as the training of the next round, whose letters follow from the state alone:
what was answered ahead is found by its letter when the round asks for it.

The module is long because asking, waiting, judging and scoring share what has come and what is known of nodes.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from ..data import Split
from ..learn import Looped
from ..method import Exchange, Method, State
from ..round import Answer, Clients, Trip, receive, visit
from ..runs.evaluate import greeted, scored
from ..runs.loop import Run
from ..runs.metrics import Scores, is_share
from ..runs.observers import Part
from ..simulate.clients import Simulation, finite
from ..simulate.rehearsal import LEAST
from ..stacks.cohort import Cohort
from ..stacks.stack import Stacks
from .letters import (
    Asks,
    LastUsed,
    Letter,
    LetterFacts,
    Reply,
    Shapes,
    Spoiled,
    digest,
    fits,
    mark,
    most_bytes,
    shapes_of,
)
from .node import PARTS, as_numbers, begins_of, from_numbers
from .store import Store

POLL = 0.05  # seconds between two looks for replies
SILENT = 3  # misses in a row from which on a client is asked less often
LONGEST = 64  # rounds that a silent client is left alone, at most
DIVERGED = ("not finite", "too long")  # what a client sends whose training went wrong
ABSURD = 1e100  # no loss is as large, and sums of such ones are still numbers
BOUND = 1e12  # no model is so long; its square is a float32, so that it does not end everybody's training


class Post(Protocol):
    """Carries letters to clients, by their numbers, and brings replies back; it may lose, double and delay both."""

    def send(self, letters: Mapping[int, Sequence[bytes]]) -> None:
        """To every client its letters, in one parcel."""

    def fetch(self) -> list[tuple[int, bytes]]:
        """Replies that have come since, with the client that the transport says they are from."""


@dataclass(frozen=True)
class Note:
    """What became of a letter: for the record of a run."""

    round: int
    turn: int
    client: int
    what: str  # used, not finite, too long, refused, failed, spoiled, late
    letter: str = ""  # the beginning of its digest


@dataclass(eq=False)
class Nodes(Clients):
    """Answers for every client, from nodes elsewhere.

    Arguments:
        run: a name that a letter and its reply share.
        method: as the run has it.
        clients: the same clients as a simulation of zeros would have them: model, seed, numbers of examples.
        begins: what one client keeps at the beginning, (1, width) each.
        post: how letters travel.
        rounds: that the run has; what comes after the last one is not asked for ahead.
        deadline: seconds that a center waits for an exchange's replies.
        least: replies without which an exchange does not end: it is asked again, after the deadline, until they come.
        bound: the longest that a row may be; a longer one is refused. Unless somebody knows better, `BOUND`.
        ahead: whether scores and the training of the next round are asked for together.
        store: keeps what came of an exchange: one that was begun is ended with just that. None: it is asked again.
        draws: a seed of the center's own draws that no client knows, where who takes part is a secret; None: the run's.
        log: told who is waited for.
        clock, rest: for tests, which have a time of their own.
    """

    blind: ClassVar[bool] = False  # True: what clients send is not read here
    run: str
    method: Method
    clients: Simulation
    begins: Stacks
    post: Post
    rounds: int
    deadline: float = 600.0
    least: int = 1
    bound: float = BOUND
    ahead: bool = True  # ask for the training of the next round together with scores
    store: Store | None = None
    draws: int | None = None
    log: Callable[[str], None] = lambda line: None
    clock: Callable[[], float] = time.monotonic
    rest: Callable[[float], None] = time.sleep
    notes: list[Note] = field(default_factory=list)
    used: dict[int, LastUsed] = field(default_factory=dict)  # every client's last used reply
    missed: dict[int, int] = field(default_factory=dict)  # parcels in a row that a client did not answer
    _ahead: dict[str, bytes | None] = field(default_factory=dict)  # letter: its reply; None: it did not come in time
    _invited: Cohort | None = None  # who could be asked in the newest exchange
    _scored: tuple[State | None, int, dict[Part, Scores]] = (None, 0, {})
    _shapes: dict[tuple[int, ...], Shapes] = field(default_factory=dict)

    @classmethod
    def of(cls, made: Run, run: str, post: Post, **how: Any) -> Self:
        """The nodes of a run before its first round; `how`: deadline, least, bound, ..."""
        method, clients, rounds = made.method, made.clients, made.settings.rounds
        return cls(run, method, clients, begins_of(made, 0), post, rounds, **how)

    def __post_init__(self) -> None:
        federation = self.clients.federation  # who joins late tells how many examples it has
        self.sizes = federation.train.sizes.clone()
        self.scored_on = {part: getattr(federation, part).sizes.clone() for part in PARTS}

    def meet(self, client: int, train: int, test: int, valid: int) -> None:
        """A client has come, or come back, and says how many examples it has."""
        self.sizes[client] = train
        self.scored_on["test"][client], self.scored_on["valid"][client] = test, valid
        self.missed.pop(client, None)

    # -- who, and what they answer ---------------------------------------------------------------------------

    def everyone(self, round: int, turn: int = 0) -> Cohort:
        """All clients that have examples, but for those that were silent and are left alone for a while.

        Once letters have left, also ahead, it is the same for that exchange: letters follow from it, and who comes
        meanwhile takes part in the next one.
        """
        if self._invited is None or (self._invited.round, self._invited.turn) != (round, turn):
            self._invited = self._invitation(round, turn)
        return self._invited

    def _invitation(self, round: int, turn: int) -> Cohort:
        if self.store is not None and (told := self.store.invited((round, turn))) is not None:  # before it was killed
            sizes = torch.tensor(told["sizes"], dtype=torch.int64)
            found = self._cohort(torch.tensor(told["clients"], dtype=torch.int64), round, turn)
            return replace(found, sizes=sizes, might=int(told["might"]))
        able = (self.sizes > 0).nonzero()[:, 0].tolist()
        asked = [k for k in able if self._asked(k, round)] or able
        found = self._cohort(torch.tensor(asked, dtype=torch.int64), round, turn)
        if self.store is not None:
            told = {"clients": asked, "sizes": found.sizes.tolist(), "might": found.might}
            self.store.invite((round, turn), told)
        return found

    def _cohort(self, index: Tensor, round: int, turn: int) -> Cohort:
        n, effort = len(self.sizes), torch.ones(len(index), dtype=torch.float64)
        might, seed = int((self.sizes > 0).sum()), self.clients.seed if self.draws is None else self.draws
        return Cohort(index, self.sizes[index], effort, n, seed, round, turn, might)

    def _asked(self, client: int, round: int) -> bool:
        """From the third miss on every second round, then every fourth, ...: a dead client costs a deadline rarely."""
        over = self.missed.get(client, 0) - SILENT
        return over < 0 or round % min(2 ** (over + 1), LONGEST) == 0

    def answers(self, exchange: Exchange, state: State, cohort: Cohort) -> Iterator[Answer]:
        """Ask everybody, wait, check, and give what is good in the order of a simulation."""
        blocks, expected, key = in_order(cohort), self._expected(exchange, state), (cohort.round, cohort.turn)
        letters = {int(block.index[0]): [self._letter(exchange, state, block)] for block in blocks}
        good = None if self.store is None else self.store.read(key)
        if good is None:
            found = self._asked_for(letters, expected, cohort)
            good = {client: found[client] for block in blocks if (client := int(block.index[0])) in found}
            if self.store is not None:
                self.store.write(key, good)
        else:  # a center that was killed ends the exchange with what had come
            for client, (letter,) in letters.items():
                if client in good:
                    self._use(client, mark(digest(letter)), cohort)
                else:
                    self.notes.append(Note(*key, client, "late", mark(digest(letter))))
        if self.store is not None:
            self.store.forget({last.exchange for last in self.used.values()} if self.blind else ())
        yield from self._answers(blocks, good, expected)

    def _asked_for(self, letters: Mapping[int, Sequence[bytes]], expected: Shapes, cohort: Cohort) -> dict[int, Stacks]:
        """What comes of letters, once enough have answered."""
        good: dict[int, Stacks] = {}
        while True:  # a round that nobody answers would change nothing: it is asked again
            end = self.clock() + self.deadline
            replies = self._gathered({client: each for client, each in letters.items() if client not in good})
            for client, (letter,) in letters.items():
                if client not in good and (reply := self._noted(client, letter, replies, expected, cohort)):
                    good[client] = reply.sent
            here = {n.client: n for n in self.notes if (n.round, n.turn) == (cohort.round, cohort.turn)}
            diverged = sum(note.what in DIVERGED for note in here.values())  # they would say the same again
            if len(good) + diverged >= min(self.least, len(letters)):
                return good
            self.log(
                f"round {cohort.round}: {len(good)} of {len(letters)} answered, {self.least} are needed: asked again"
            )
            self._ahead.clear()
            self.notes = [n for n in self.notes if n is not here.get(n.client) or n.client in good]
            while (left := end - self.clock()) > 0:  # who refuses does so at once, and as often as it is asked
                self.rest(left)

    def _placed(self, exchange: Exchange, state: State, cohort: Cohort) -> Iterator[Answer]:
        """Ask where everybody belongs; nothing of it is noted, nobody keeps anything."""
        blocks, expected = in_order(cohort), self._expected(exchange, state)
        letters = {int(block.index[0]): [self._letter(exchange, state, block, "place")] for block in blocks}
        replies, good = self._gathered(letters), dict[int, Stacks]()
        for client, (letter,) in letters.items():
            what, reply = self._judged(client, replies.get(digest(letter)), expected, cohort)
            good |= {client: reply.sent} if what == "used" and reply is not None else {}
        yield from self._answers(blocks, good, expected)

    def _answers(self, blocks: Sequence[Cohort], good: Mapping[int, Stacks], expected: Shapes) -> Iterator[Answer]:
        device = self.clients.task.device
        for block in blocks:
            if (sent := good.get(int(block.index[0]))) is not None:
                yield Answer(block, {name: rows.to(device) for name, rows in sent.items()}, {})

    def silent(self, trip: Trip) -> int:
        """How many did not answer in time, or by nothing that could be looked at: whose training has not diverged."""
        key, answered = (trip.cohort.round, trip.cohort.turn), ("used", *DIVERGED)
        return sum((note.round, note.turn) == key and note.what not in answered for note in self.notes)

    def letters(self, trip: Trip) -> dict[str, str]:
        """The letters whose replies were used in an exchange, by client: nodes know by them what they kept then."""
        key = (trip.cohort.round, trip.cohort.turn)
        return {str(n.client): n.letter for n in self.notes if (n.round, n.turn) == key and n.what == "used"}

    # -- scores ------------------------------------------------------------------------------------------------

    def scores(self, state: State, part: Part, tune: int = 0) -> Scores:
        """Every client's own scores, told by itself; of those that did not answer there are none."""
        if self._scored[0] is not state or self._scored[1] != tune:
            self._scored = (state, tune, self._all_scores(state, tune))
        return self._scored[2][part]

    def _all_scores(self, state: State, tune: int) -> dict[Part, Scores]:
        every = self._cohort(torch.arange(len(self.sizes)), state.round, 0)
        state = greeted(self.method, state, every, self._placed)
        exchange, has = self.method.in_use(state.round), sum(self.scored_on.values()) + self.sizes
        asked = every[(has > 0) & torch.tensor([self._asked(k, state.round) for k in range(len(self.sizes))])]
        letters, ahead = {}, {}
        if self.ahead and not tune and state.round < self.rounds:
            ahead = self._next(state)
        for block in in_order(asked):
            client = int(block.index[0])
            letters[client] = [self._letter(exchange, state, block, "score", tune), *ahead.pop(client, [])]
        replies = self._gathered(letters | ahead)
        self._ahead = {
            letter: replies.get(letter) for each in (letters | ahead).values() for letter in map(digest, each)
        }
        expected = {
            f"{part}/{name}": ((1, 1), "torch.float64") for part in PARTS for name, _ in as_numbers(self._like, 0)
        }
        found: dict[int, Stacks] = {}
        for client, (letter, *_) in letters.items():
            what, reply = self._judged(client, replies.get(digest(letter)), expected, every)
            if what in ("used", "not finite") and reply is not None and self._believed(client, reply.sent):
                found[client] = reply.sent
        return {
            part: from_numbers(self._like, {k: _of(part, numbers) for k, numbers in found.items()}) for part in PARTS
        }

    def _next(self, state: State) -> dict[int, list[bytes]]:
        """The letters that the next round begins with."""
        exchange = self.method.at(state.round)[0]
        cohort = exchange.select(state.memory, self.everyone(state.round))
        return {int(block.index[0]): [self._letter(exchange, state, block)] for block in in_order(cohort)}

    @cached_property
    def _like(self) -> Scores:
        """Scores of nobody, with the right names."""
        train, n = self.clients.federation.train, len(self.sizes)
        like = scored(self.clients, Split(train.x[:0], train.y[:0], torch.zeros(n + 1, dtype=torch.int64)), ())
        for inside in self.clients.task.answers:
            like = like.beside(inside, like)
        return like

    def _believed(self, client: int, numbers: Stacks) -> bool:
        """Whether scores can be: of as many examples as the client said it has, shares of them, and nothing absurd."""
        if any(math.isfinite(value) and abs(value) > ABSURD for value in map(float, numbers.values())):
            return False
        own = {metric.name for metric in self.clients.task.metrics}  # of the user's: they may be anything
        for part in PARTS:
            count = float(numbers[f"{part}/count"])
            ours = [f"mark/{name}" for name in self._like.marks if is_share(name) and name not in own]
            shares = [float(numbers[f"{part}/{name}"]) for name in ("accuracy", "f1", *ours)]
            if count != int(self.scored_on[part][client]) or any(not (math.isnan(s) or 0 <= s <= 1) for s in shares):
                return False
        return True

    # -- letters -----------------------------------------------------------------------------------------------

    def _letter(self, exchange: Exchange, state: State, block: Cohort, asks: Asks = "learn", tune: int = 0) -> bytes:
        client = int(block.index[0])
        number = next(k for k, each in enumerate(self.method.at(state.round)) if each is exchange)
        facts = LetterFacts(
            asks=asks,
            exchange=number,
            tune=tune,
            run=self.run,
            client=client,
            clients=block.n_clients,
            seed=self.clients.seed,
            round=block.round,
            turn=block.turn,
            effort=float(block.effort[0]),
            might=block.might,
            count=None if block.count is None else float(block.count[0]),
            last=self.used.get(client),
            heard=self._heard(exchange, client),
        )
        return Letter(facts, self._received(exchange, state, block)).packed()

    # What differs where letters are sealed.

    def _heard(self, exchange: Exchange, client: int) -> list[int]:
        """Who came, of those beside a client, when its last reply was used: only where letters are sealed."""
        return []

    def _received(self, exchange: Exchange, state: State, block: Cohort) -> Stacks:
        """What comes down to a client."""
        return receive(exchange, state, block)

    def _fits(self, client: int, sent: Stacks, expected: Shapes, cohort: Cohort) -> bool:
        """Whether a reply has the names, shapes and types that it should have."""
        return fits(sent, expected)

    def _most(self, expected: Shapes) -> int:
        """Bytes of a reply."""
        return most_bytes(expected)

    def _gathered(self, letters: Mapping[int, Sequence[bytes]]) -> dict[str, bytes]:
        """Replies to letters, by the letters' digests: those that were answered ahead, and those that come in time."""
        found: dict[str, bytes] = {}
        waiting: dict[int, dict[str, bytes]] = {}
        for client, each in letters.items():
            for letter in each:
                name = digest(letter)
                if name not in self._ahead:
                    waiting.setdefault(client, {})[name] = letter
                elif (known := self._ahead[name]) is not None:
                    found[name] = known
        if waiting:
            self.post.send({client: list(each.values()) for client, each in waiting.items()})
        end = self.clock() + self.deadline
        while waiting:
            for client, data in self.post.fetch():
                answered = _answers(data, waiting.get(client, {}))
                for name in answered:
                    found[name] = data
                    del waiting[client][name]
                    self.missed.pop(client, None)
                if client in waiting and not waiting[client]:
                    del waiting[client]
            if not waiting or self.clock() >= end:
                break
            self.rest(min(POLL, max(0.0, end - self.clock())))
        for client in waiting:
            self.missed[client] = self.missed.get(client, 0) + 1
        return found

    def _noted(
        self, client: int, letter: bytes, replies: Mapping[str, bytes], expected: Shapes, cohort: Cohort
    ) -> Reply | None:
        """A reply that is good; what became of the letter is noted in any case."""
        what, reply = self._judged(client, replies.get(digest(letter)), expected, cohort)
        if what == "used":
            self._use(client, mark(digest(letter)), cohort)
            return reply
        self.notes.append(Note(cohort.round, cohort.turn, client, what, mark(digest(letter))))
        return None

    def _use(self, client: int, letter: str, cohort: Cohort) -> None:
        self.used[client] = LastUsed(round=cohort.round, turn=cohort.turn, letter=letter)
        self.notes.append(Note(cohort.round, cohort.turn, client, "used", letter))

    def _judged(self, client: int, data: bytes | None, expected: Shapes, cohort: Cohort) -> tuple[str, Reply | None]:
        """What a reply is, and the reply where it can be read."""
        if data is None:
            return "late", None
        try:
            reply = Reply.read(data, self._most(expected))
        except Spoiled:
            return "spoiled", None
        facts = reply.facts
        if facts.code != "ok":
            return facts.code, None
        mine = (facts.run, facts.client, facts.round, facts.turn) == (self.run, client, cohort.round, cohort.turn)
        if (
            not mine
            or facts.examples != int(self.sizes[client])
            or not self._fits(client, reply.sent, expected, cohort)
        ):
            return "spoiled", None
        if not bool(finite(reply.sent, 1).all()):
            return "not finite", reply
        if any(float(rows.double().norm()) > self.bound for rows in reply.sent.values() if rows.is_floating_point()):
            return "too long", None
        return "used", reply

    def _expected(self, exchange: Exchange, state: State) -> Shapes:
        """What a client sends in an exchange, found by a visit of the first client with a step on zeros."""
        key = (id(exchange), *(len(rows) for rows in state.centers.values()))
        if key not in self._shapes:
            self._shapes[key] = self._rehearsed(exchange, state)
        return self._shapes[key]

    def _rehearsed(self, exchange: Exchange, state: State) -> Shapes:
        train, one = self.clients.federation.train, torch.ones(1, dtype=torch.float64)
        first = int((train.sizes > 0).nonzero()[0, 0])
        few = Cohort(
            torch.tensor([first]), train.sizes[first : first + 1].clamp(max=2), LEAST * one, len(self.sizes), 0, 0
        )
        few = replace(few, round=state.round)
        device = self.clients.task.device
        kept = {name: rows.to(device) for name, rows in self.begins.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said of the real ones, where they are
            sent, _ = visit(exchange, receive(exchange, state, few), kept, self._looped, few)
        return shapes_of({name: rows.cpu() for name, rows in sent.items()})

    @cached_property
    def _looped(self) -> Looped:
        return Looped(self.clients.task, self.clients.federation.train)


def in_order(cohort: Cohort) -> list[Cohort]:
    """Blocks of one, in the order in which a simulation learns them: most work first."""
    work = cohort.sizes * cohort.effort
    return list(cohort[torch.argsort(work, descending=True, stable=True)].blocks(1))


def _answers(data: bytes, waiting: Mapping[str, bytes]) -> list[str]:
    """Which letters a reply answers: the one it names; one that cannot be read, all that its client was sent."""
    try:
        name = Reply.told(data).letter
    except Spoiled:
        return list(waiting)
    return [name] if name in waiting else []  # late from another exchange, twice, or never asked


def _of(part: Part, numbers: Stacks) -> dict[str, float]:
    return {name.removeprefix(f"{part}/"): float(value) for name, value in numbers.items() if name.startswith(part)}
