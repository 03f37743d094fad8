"""A node: one client with its own data, which answers letters.

    reply  =  f(letter, data, what the node kept after its last reply that was used)

and nothing else: the same letter twice gives the same bits twice. What is kept is written before a reply leaves, under
(round, turn) and the letter that it answers: a center that was killed may ask for the same exchange by another letter,
and the first one may still arrive after it. The letter says which reply was used last, because one that was lost has
changed nothing for the others, and a center that was killed goes on from its last checkpoint: so a few versions stay.

Nothing that a center asks is taken for granted: what exceeds what the node agreed to is refused, and so are more than a
few different letters for one exchange, or for the scores after a round, by which a center could learn more of the
examples than the rounds tell.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save_file

from ..language.files import append, read_bytes
from ..method import Exchange
from ..round import opened, visit
from ..runs.checkpoint import renamed
from ..runs.evaluate import scored_rows, tuned
from ..runs.loop import Run, trainer_of
from ..runs.metrics import Scores
from ..runs.observers import Part
from ..stacks.cohort import Cohort
from ..stacks.stack import Stacks, aligned, take
from .letters import (
    Code,
    Letter,
    LetterFacts,
    Reply,
    ReplyFacts,
    Shapes,
    Spoiled,
    digest,
    fits,
    mark,
    most_bytes,
    shapes_of,
)
from .secret import secret_of

VERSIONS = 3  # of what was kept, older than the one that was used last: for a center that has lost a round
DIFFERENT = 8  # letters for one exchange: a center that was killed may have heard others the second time
PLACING, SCORING, TUNING = 1 << 10, 2 << 10, 3 << 10  # letters that ask for something else are counted apart
PARTS: tuple[Part, ...] = ("test", "valid")
NAME = re.compile(r"kept-(\d{10})-(\d{4})-([0-9a-f]{16})\.safetensors")
LINE = re.compile(r"(\d{1,10}) (\d{1,4}) ([0-9a-f]{64})")
Version = tuple[int, int, str]  # round, turn, and the letter that was answered


@dataclass(eq=False)
class Keeper:
    """What a node keeps, by the exchange after which it was so: in a folder, or in memory where there is none."""

    begins: Stacks  # (1, width) each: before the first letter
    folder: Path | None = None
    _held: dict[Version, Stacks] = field(default_factory=dict)
    _secret: bytes = field(default=b"", repr=False)
    _asked: dict[tuple[int, int], list[str]] | None = None  # exchange: letters that were answered; None: not read yet

    def after(self, last: Version | None) -> Stacks:
        """As it was after an exchange; None: at the beginning."""
        if last is None or not self.begins:
            return self.begins
        if last not in self._versions():
            raise Spoiled(f"what was kept after round {last[0]} is not here any more")
        return self._load(last)

    def write(self, now: Version, rows: Stacks, last: Version | None) -> None:
        """After an exchange; few versions stay of those before the last that was used, and of those unused since."""
        if not self.begins:
            return
        if self.folder is None:
            self._held[now] = {name: value.clone() for name, value in rows.items()}
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            tensors = {name: value.detach().cpu().contiguous() for name, value in rows.items()}
            renamed(self._path(now), lambda temporary: save_file(tensors, str(temporary)))
        used = (-1, -1) if last is None else last[:2]
        before = [key for key in self._versions() if key[:2] < used]
        since = [key for key in self._versions() if used < key[:2] < now[:2]]
        for key in before[:-VERSIONS] + since[:-VERSIONS]:
            self._forget(key)

    def secret(self, letter: str) -> bytes:
        """A key for the noise of one reply, that nobody else has: of another letter, another one."""
        if not self._secret:
            if self.folder is None:
                self._secret = os.urandom(32)
            else:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._secret = secret_of(self.folder / "secret")
        return hashlib.sha256(self._secret + letter.encode()).digest()

    def ask(self, round: int, what: int, letter: str, most: int = DIFFERENT) -> None:
        """Count a letter; refuse one more than a few different ones for the same exchange, place or scores."""
        if self._asked is None:
            self._asked = self._read_letters()
        known = self._asked.setdefault((round, what), [])
        if letter in known:
            return
        if len(known) >= most:
            raise Spoiled(f"more than {most} different letters for one exchange")
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            append(self.folder / "letters", f"\n{round} {what} {letter}\n")  # after one that was half written, maybe
        known.append(letter)

    def _read_letters(self) -> dict[tuple[int, int], list[str]]:
        found: dict[tuple[int, int], list[str]] = {}
        if self.folder is not None and (path := self.folder / "letters").is_file():
            for line in read_bytes(path).decode("ascii", "replace").splitlines():
                if good := LINE.fullmatch(line):  # a line that was half written when the power went is none
                    found.setdefault((int(good[1]), int(good[2])), []).append(good[3])
        return found

    def _versions(self) -> list[Version]:
        if self.folder is None:
            return sorted(self._held)
        names = (NAME.fullmatch(path.name) for path in self.folder.iterdir()) if self.folder.is_dir() else ()
        return sorted((int(found[1]), int(found[2]), found[3]) for found in names if found)

    def _path(self, version: Version) -> Path:
        assert self.folder is not None
        return self.folder / f"kept-{version[0]:010d}-{version[1]:04d}-{version[2]}.safetensors"

    def _load(self, version: Version) -> Stacks:
        if self.folder is None:
            return self._held[version]
        rows = aligned(load(read_bytes(self._path(version), most_bytes(shapes_of(self.begins)))))
        if not fits(rows, shapes_of(self.begins)):
            raise Spoiled("what was kept is of another model")
        return rows

    def _forget(self, version: Version) -> None:
        self._held.pop(version, None)
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self._path(version).unlink()


@dataclass(eq=False)
class Node:
    """Answers letters from its own examples.

    Arguments:
        run: prepared from the same settings as the center's, with this client's examples and nobody else's.
        client: its number there.
        keeper: what it keeps.
        name: of the run; a letter of another one is refused.
        shows: whether it tells its scores.
        log: told what goes wrong here, and nobody else is.
        model: a file for the model that the client ends with; None: it is not left here.
    """

    run: Run
    client: int
    keeper: Keeper
    name: str
    shows: bool = True
    log: Callable[[str], None] = lambda line: None
    model: Path | None = None  # where the model that the client ends with is left

    def answer(self, data: bytes) -> bytes:
        """The reply to a letter; no exception gets out of here, and no words about one."""
        who = digest(data)
        try:
            letter = Letter.read(data, self._most)
        except Spoiled as error:
            self.log(f"a letter was refused: {error}")
            return refusal(who)
        code: Code = "ok"
        sent: Stacks = {}
        facts = letter.facts
        try:
            exchange = self._checked(letter)
            sent = (self._scores if facts.asks == "score" else self._sent)(letter, exchange, who)
        except Spoiled as error:
            code = "refused"
            self.log(f"round {facts.round}: refused: {error}")
        except Exception as error:  # the user's model, the disk: the center is told that it failed, and no more
            code = "failed"
            self.log(f"round {facts.round}: {type(error).__name__}: {error}")
        told: dict[str, Any] = {"run": facts.run, "client": facts.client, "round": facts.round, "turn": facts.turn}
        examples = int(self.run.federation.train.sizes[self.client])
        return Reply(ReplyFacts(**told, letter=who, examples=examples, code=code), sent).packed()

    def _checked(self, letter: Letter) -> Exchange:
        """The exchange that a letter is of, where all of it is as it should be."""
        facts, method = letter.facts, self.run.method
        if (facts.run, facts.client, facts.clients) != (self.name, self.client, self.run.federation.n_clients):
            raise Spoiled("another run or client than was agreed to")
        if facts.seed != self.run.clients.seed:
            raise Spoiled("another seed than was agreed to")
        last = self.run.settings.rounds - (facts.asks == "learn")
        if facts.round > last:
            raise Spoiled(f"round {facts.round}, and {self.run.settings.rounds} were agreed to")
        exchanges = method.at(facts.round)
        if facts.exchange >= len(exchanges) or (facts.asks == "learn" and facts.turn != facts.exchange):
            raise Spoiled(f"exchange {facts.exchange} of {len(exchanges)}, turn {facts.turn}")
        exchange = exchanges[facts.exchange]
        if facts.asks == "score" and exchange is not method.in_use(facts.round):
            raise Spoiled(f"scores by exchange {facts.exchange}, which brings no models in use")
        if facts.tune not in (0, self.run.settings.fine_tune):
            raise Spoiled(f"{facts.tune} epochs of fine-tuning, and {self.run.settings.fine_tune} were agreed to")
        if set(letter.received) != self._names(exchange, facts):
            raise Spoiled("other names than the method sends down")
        if any(rows.dim() != 2 or len(rows) != 1 for rows in letter.received.values()):
            raise Spoiled("numbers of another shape than the method sends down")
        if any(not bool(rows.isfinite().all()) for rows in letter.received.values() if rows.is_floating_point()):
            raise Spoiled("a number that is not finite")
        return exchange

    def _sent(self, letter: Letter, exchange: Exchange, who: str) -> Stacks:
        facts, last = letter.facts, self._last(letter)
        kept = self.keeper.after(last)
        hides = any(learner.hides for learner in exchange.chain)  # what a round may tell is counted once
        where = facts.exchange + (PLACING if facts.asks == "place" else 0)
        self.keeper.ask(facts.round, where, who, 1 if hides else DIFFERENT)
        received = self._here(self._received(letter, exchange, kept))
        hidden = exchange.secured(self.keeper.secret(who))  # its noise, where there is any, is nobody else's
        sent, mine = visit(hidden, received, self._here(kept), self.run.clients.run, self._cohort(letter))
        if facts.asks == "learn" and all(bool(rows.isfinite().all()) for rows in (sent | mine).values()):
            now = (facts.round, facts.turn, mark(who))  # what is not finite is left out there, too
            self.keeper.write(now, self._remembered(kept | mine, received, sent), last)
        return self._outgoing(sent, letter, exchange)

    # What differs where letters are sealed.

    def _names(self, exchange: Exchange, facts: LetterFacts) -> set[str]:
        """Of what comes down."""
        return set(exchange.receives)

    def _received(self, letter: Letter, exchange: Exchange, kept: Stacks) -> Stacks:
        """What the client receives, from what came down."""
        return letter.received

    def _remembered(self, kept: Stacks, received: Stacks, sent: Stacks) -> Stacks:
        """What it keeps of an exchange."""
        return kept

    def _outgoing(self, sent: Stacks, letter: Letter, exchange: Exchange) -> Stacks:
        """What goes up."""
        return sent

    def _scores(self, letter: Letter, exchange: Exchange, who: str) -> Stacks:
        """How well the model in use does on this client's own examples: numbers for each part of them."""
        if not self.shows:
            raise Spoiled("scores are not told here")
        clients, cohort, train = self.run.clients, self._cohort(letter), trainer_of(self.run.method)
        kept = self.keeper.after(self._last(letter))
        self.keeper.ask(letter.facts.round, TUNING if letter.facts.tune else SCORING, who)
        received = self._received(letter, exchange, kept)
        rows = opened(exchange, self._here(kept) | self._here(received), clients.run, cohort)
        if letter.facts.round == self.run.settings.rounds and self.model is not None:
            self._leave(rows)
        if letter.facts.tune and train is not None:
            rows = tuned(rows, clients, cohort, train.tuning(letter.facts.tune))
        found: Stacks = {}
        for part in PARTS:
            scores = scored_rows(rows, clients, getattr(clients.federation, part), cohort)
            found |= {
                f"{part}/{name}": torch.tensor([[value]], dtype=torch.float64)
                for name, value in as_numbers(scores, self.client)
            }
        return found

    def _leave(self, rows: Stacks) -> None:
        """The client's own model, layer by layer, as a safetensors file."""
        assert self.model is not None
        task = self.run.clients.task
        tensors = {
            k: t.detach().cpu().contiguous().clone()
            for k, t in task.loaded({n: rows[n][0] for n in task.names}).state_dict().items()
        }
        self.model.parent.mkdir(parents=True, exist_ok=True)
        renamed(self.model, lambda temporary: save_file(tensors, str(temporary)))
        self.log(f"the model of run {self.name} is in {self.model}")

    def _last(self, letter: Letter) -> Version | None:
        return None if letter.facts.last is None else letter.facts.last.key

    def _here(self, stacks: Stacks) -> Stacks:
        return {name: rows.to(self.run.clients.task.device) for name, rows in stacks.items()}

    def _cohort(self, letter: Letter) -> Cohort:
        facts = letter.facts
        count = None if facts.count is None else torch.tensor([facts.count], dtype=torch.float64)
        return Cohort(
            torch.tensor([facts.client]),
            self.run.federation.train.sizes[facts.client : facts.client + 1],
            torch.tensor([facts.effort], dtype=torch.float64),
            facts.clients,
            facts.seed,
            facts.round,
            facts.turn,
            facts.might,
            count,
        )

    @property
    def _most(self) -> int:
        """Bytes of a letter: of the exchange that sends most down."""
        width = self.run.clients.task.width
        names = max((len(exchange.receives) for exchange in self.run.method.exchanges), default=1)
        rows = max(1, self.run.method.starts(self.run.federation.n_clients))
        shapes: Shapes = {str(k): ((1, 2 * rows * width + (1 << 16)), "torch.float64") for k in range(names)}
        return most_bytes(shapes)


def begins_of(run: Run, client: int) -> Stacks:
    """What a client keeps before its first letter."""
    return take(run.state.kept, torch.tensor([client]))


def refusal(letter: str) -> bytes:
    """The reply to what cannot be read."""
    return Reply(ReplyFacts(run="", client=0, round=0, turn=0, letter=letter, examples=0, code="refused"), {}).packed()


def as_numbers(scores: Scores, client: int) -> list[tuple[str, float]]:
    """One client's scores as numbers by name, float64; what is pooled over clients is none of them."""
    plain = [(name, float(getattr(scores, name)[client])) for name in ("count", "loss", "accuracy", "f1")]
    return plain + [(f"mark/{name}", float(mark.values[client])) for name, mark in scores.marks.items()]


def from_numbers(like: Scores, found: dict[int, dict[str, float]]) -> Scores:
    """Scores of all clients from what some of them told; `like` has the names, and everybody's number."""
    n = len(like.count)

    def each(name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        values = np.full(n, np.nan)
        for client, numbers in found.items():
            values[client] = numbers[name]
        return values

    count = np.nan_to_num(each("count")).astype(np.int64)
    marks = {
        name: type(mark)(each(f"mark/{name}"), mark.lower_is_better, mark.root) for name, mark in like.marks.items()
    }
    return Scores(count, each("loss"), each("accuracy"), each("f1"), {}, marks, like.serves)
