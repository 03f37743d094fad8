"""A node: one client with its own data, which answers letters.

    reply  =  f(letter, data, what the node kept after its last reply that was used)

and nothing else: the same letter twice gives the same bits twice. What is kept is written under (round, turn) before a
reply leaves. The letter says which reply was used last, because one that was lost has changed nothing for the others,
and a center that was killed goes on from its last checkpoint: so a few versions stay.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save_file
from torch import Tensor

from ..data import Split
from ..language.files import read_bytes
from ..learn import Executor, Looped
from ..method import Method
from ..round import visit
from ..runs.checkpoint import renamed
from ..stacks.cohort import Cohort
from ..stacks.stack import Stacks, aligned
from ..tasks.task import Task
from .letters import Code, Letter, Reply, ReplyFacts, Shapes, Spoiled, digest, fits, most_bytes, shapes_of

VERSIONS = 2  # of what was kept, older than the one that was used last: for a center that has lost a round
NAME = re.compile(r"kept-(\d{10})-(\d{4})\.safetensors")


@dataclass(frozen=True)
class Limits:
    """What a node has agreed to when it joined: whatever exceeds it is refused."""

    rounds: int = 1 << 31
    run: str = ""  # the only run it takes part in; empty: any


@dataclass(eq=False)
class Keeper:
    """What a node keeps, by the exchange after which it was so: in a folder, or in memory where there is none."""

    begins: Stacks  # (1, width) each: before the first letter
    folder: Path | None = None
    _held: dict[tuple[int, int], Stacks] = field(default_factory=dict)

    def after(self, last: tuple[int, int] | None) -> Stacks:
        """As it was after an exchange; None: at the beginning."""
        if last is None or not self.begins:
            return self.begins
        if last not in self._keys():
            raise Spoiled(f"what was kept after round {last[0]} is not here any more")
        return self._load(last)

    def write(self, round: int, turn: int, rows: Stacks, last: tuple[int, int] | None) -> None:
        """After an exchange; of versions before the last one that was used, few stay."""
        if not self.begins:
            return
        if self.folder is None:
            self._held[round, turn] = {name: value.clone() for name, value in rows.items()}
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            tensors = {name: value.detach().cpu().contiguous() for name, value in rows.items()}
            renamed(self._path(round, turn), lambda temporary: save_file(tensors, str(temporary)))
        for key in [key for key in self._keys() if last is not None and key < last][:-VERSIONS]:
            self._forget(key)

    def _keys(self) -> list[tuple[int, int]]:
        if self.folder is None:
            return sorted(self._held)
        names = (NAME.fullmatch(path.name) for path in self.folder.iterdir()) if self.folder.is_dir() else ()
        return sorted((int(found[1]), int(found[2])) for found in names if found)

    def _path(self, round: int, turn: int) -> Path:
        assert self.folder is not None
        return self.folder / f"kept-{round:010d}-{turn:04d}.safetensors"

    def _load(self, key: tuple[int, int]) -> Stacks:
        if self.folder is None:
            return self._held[key]
        rows = aligned(load(read_bytes(self._path(*key), most_bytes(shapes_of(self.begins)))))
        if not fits(rows, shapes_of(self.begins)):
            raise Spoiled("what was kept is of another model")
        return rows

    def _forget(self, key: tuple[int, int]) -> None:
        self._held.pop(key, None)
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self._path(*key).unlink()


@dataclass(eq=False)
class Node:
    """Answers letters from its own examples.

    Arguments:
        method: as the center has it, fitted to model and number of clients.
        task: the model and its loss.
        x, y: the node's own training examples.
        keeper: what it keeps.
        limits: what it has agreed to.
        executor: how a step is taken; the looped one where none is said.
        log: told what goes wrong here, and nobody else is.
    """

    method: Method
    task: Task
    x: Tensor
    y: Tensor
    keeper: Keeper
    limits: Limits = Limits()
    executor: Callable[[Task, Split], Executor] = Looped
    log: Callable[[str], None] = lambda line: None

    def answer(self, data: bytes) -> bytes:
        """The reply to a letter; no exception gets out of here, and no words about one."""
        who = digest(data)
        try:
            letter = Letter.read(data, self._most)
        except Spoiled as error:
            self.log(f"a letter was refused: {error}")
            return Reply(
                ReplyFacts(run="", client=0, round=0, turn=0, letter=who, examples=0, code="refused"), {}
            ).packed()
        code: Code = "ok"
        sent: Stacks = {}
        try:
            sent = self._sent(letter)
        except Spoiled as error:
            code = "refused"
            self.log(f"round {letter.facts.round}: refused: {error}")
        except Exception as error:  # the user's model, the disk: the center is told that it failed, and no more
            code = "failed"
            self.log(f"round {letter.facts.round}: {type(error).__name__}: {error}")
        facts = letter.facts
        told: dict[str, Any] = {"run": facts.run, "client": facts.client, "round": facts.round, "turn": facts.turn}
        return Reply(ReplyFacts(**told, letter=who, examples=len(self.x), code=code), sent).packed()

    def _sent(self, letter: Letter) -> Stacks:
        facts = letter.facts
        if facts.round >= self.limits.rounds:
            raise Spoiled(f"round {facts.round}, and {self.limits.rounds} were agreed to")
        if self.limits.run and facts.run != self.limits.run:
            raise Spoiled("another run than was agreed to")
        exchanges = self.method.at(facts.round)
        if facts.turn >= len(exchanges):
            raise Spoiled(f"exchange {facts.turn} of {len(exchanges)}")
        exchange = exchanges[facts.turn]
        if set(letter.received) != set(exchange.receives):
            raise Spoiled("other names than the method sends down")
        if any(rows.dim() != 2 or len(rows) != 1 for rows in letter.received.values()):
            raise Spoiled("numbers of another shape than the method sends down")
        if any(not bool(rows.isfinite().all()) for rows in letter.received.values() if rows.is_floating_point()):
            raise Spoiled("a number that is not finite")
        cohort = self._cohort(letter)
        last = None if facts.last is None else (facts.last[0], facts.last[1])
        kept = self.keeper.after(last)
        run = self.executor(self.task, self._split(facts.client, facts.clients))
        device = self.task.device
        received = {name: rows.to(device) for name, rows in letter.received.items()}
        sent, mine = visit(exchange, received, {name: rows.to(device) for name, rows in kept.items()}, run, cohort)
        if all(bool(rows.isfinite().all()) for rows in (sent | mine).values()):
            self.keeper.write(facts.round, facts.turn, kept | mine, last)  # what is not finite is left out there, too
        return sent

    def _cohort(self, letter: Letter) -> Cohort:
        facts = letter.facts
        count = None if facts.count is None else torch.tensor([facts.count], dtype=torch.float64)
        return Cohort(
            torch.tensor([facts.client]),
            torch.tensor([len(self.x)]),
            torch.tensor([facts.effort], dtype=torch.float64),
            facts.clients,
            facts.seed,
            facts.round,
            facts.turn,
            facts.might,
            count,
        )

    def _split(self, client: int, clients: int) -> Split:
        """The node's examples as those of one client among all, the others having none."""
        offset = torch.zeros(clients + 1, dtype=torch.int64)
        offset[client + 1 :] = len(self.x)
        return Split(self.x, self.y, offset)

    @property
    def _most(self) -> int:
        """Bytes of a letter: of the exchange that sends most down."""
        width = self.task.width
        names = max((len(exchange.receives) for exchange in self.method.exchanges), default=1)
        shapes: Shapes = {str(k): ((1, 2 * width + (1 << 16)), "torch.float64") for k in range(names)}
        return most_bytes(shapes)
