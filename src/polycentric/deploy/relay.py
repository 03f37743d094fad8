"""Neighbours without a center, between organisations: the server stores and forwards, and never averages.

Where centers live at clients and a client hears only those beside it (`topology.relayed`), it can mix by itself:

    center i:   forwards to i what those beside it sent in the last exchange in which i's own reply was used
    node i:     opens it, mixes it with what it had sent, by the method's own matrix, and goes on from there

What is forwarded is sealed for the neighbour's key (`seal`). The center's own rows are zeros, and nothing is measured
of them; a node knows its own row, and has it in its folder. Mixed numbers are those of a simulation, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import require
from ..method import Exchange, Method, State
from ..round import Answer
from ..stacks.cohort import Cohort
from ..stacks.mixing import Mixing
from ..stacks.stack import Stacks
from .center import Nodes
from .letters import Letter, LetterFacts, Shapes, Spoiled, fits, most_bytes, shapes_of
from .node import PARTS, Node
from .seal import Bound, Seal
from .store import Store

CENTER, SENT = "center/", "sent/"  # before names of what a node remembers of itself
OVERHEAD = 1 << 12  # bytes that sealing adds, at most


def check_relayed(method: Method) -> None:
    """Refuse a method whose clients cannot mix by themselves."""
    for exchange in method.exchanges:
        good = exchange.topology.relayed and not exchange.tells and not exchange.unpack
        require(
            good and all(len(exchanges) == 1 for _, exchanges in method.phases),
            f"--sealed is for methods whose clients mix by themselves what their neighbours send, dpsgd and matcha; in "
            f"{method.name} somebody must see all of it: leave --sealed out",
        )


def beside(exchange: Exchange, client: int, everyone: Cohort) -> list[int]:
    """Who hears a client in an exchange, if everybody is there; itself left out."""
    found: set[int] = set()
    for name in exchange.sends:
        receiver, sender, _ = exchange.up({}, everyone, name).links
        found |= set(receiver[everyone.index[sender] == client].tolist())
    return sorted(found - {client})


def mixed(exchange: Exchange, came: Cohort, client: int, own: Stacks, rows: Stacks) -> Stacks:
    """What the center at a client's home holds, (1, width) each, after some beside it came: its row of `up @ local`."""
    heard = {}
    for name in exchange.sends:
        receiver, sender, weight = (up := exchange.up({}, came, name)).links
        mine = receiver == client
        row = Mixing.sparse(torch.zeros_like(sender[mine]), sender[mine], weight[mine], (1, len(came)), up.rest)
        total = exchange.aggregate.start(row, own[name])
        exchange.aggregate.add(total, exchange.aggregate.part(row, rows[name], came))
        heard[name] = exchange.aggregate.settle(total, own[name])
    return exchange.optimizer.step(own, heard)


def cohort_of(index: Sequence[int], n: int, seed: int, round: int, turn: int) -> Cohort:
    """Some clients in an exchange, all alike: a graph does not ask how many examples they have."""
    which = torch.tensor(list(index), dtype=torch.int64)
    return Cohort(which, torch.ones_like(which), torch.ones(len(which), dtype=torch.float64), n, seed, round, turn)


# -- at a node -----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class SealedNode(Node):
    """A node that mixes by itself.

    Arguments:
        seal: its key, and its neighbours'.
        names: of those beside it, by their numbers, and its own.
    """

    seal: Seal = field(kw_only=True)
    names: Mapping[int, str] = field(kw_only=True)

    def _names(self, exchange: Exchange, facts: LetterFacts) -> set[str]:
        others = [k for k in facts.heard if k != self.client]
        return {f"{what}/{k}" for k in others for what in ("sealed", "signature", "key")}

    def _received(self, letter: Letter, exchange: Exchange, kept: Stacks) -> Stacks:
        own = {name.removeprefix(CENTER): rows for name, rows in kept.items() if name.startswith(CENTER)}
        used, heard = letter.facts.last, letter.facts.heard
        if used is None or not heard:
            return self._centers(own)
        last = used.exchange
        before = self.run.method.at(last[0])[last[1]]
        came = cohort_of(heard, letter.facts.clients, letter.facts.seed, *last)
        rows = [self._opened(k, letter, last, kept, before) for k in heard]
        stacked = {name: torch.cat([each[name] for each in rows]) for name in before.sends}
        return self._centers(mixed(before, came, self.client, own, stacked))

    def _centers(self, own: Stacks) -> Stacks:
        self._own = own  # with the moments of its optimizer, which are not received
        return {name: own[name] for name in self.run.method.exchanges[0].receives}

    def _opened(self, client: int, letter: Letter, last: tuple[int, int], kept: Stacks, exchange: Exchange) -> Stacks:
        mine = {name: kept[f"{SENT}{name}"] for name in exchange.sends}
        if client == self.client:
            return mine
        if client not in self.names:
            raise Spoiled(f"client {client} is heard, who is not beside this one")
        sealed, signature, key = (letter.received[f"{what}/{client}"] for what in ("sealed", "signature", "key"))
        bound = Bound(self.name, last[0], last[1], self.names[client])
        found = self.seal.open(sealed, signature, key, self.names[self.client], bound)
        if not fits(found, shapes_of(mine)) or not all(bool(rows.isfinite().all()) for rows in found.values()):
            raise Spoiled(f"{self.names[client]} has sent something else than a model")
        return found

    def _remembered(self, kept: Stacks, received: Stacks, sent: Stacks) -> Stacks:
        mine = {f"{CENTER}{name}": rows.cpu() for name, rows in self._own.items()}
        return kept | mine | {f"{SENT}{name}": rows.cpu() for name, rows in sent.items()}

    def _outgoing(self, sent: Stacks, letter: Letter, exchange: Exchange) -> Stacks:
        facts = letter.facts
        everyone = cohort_of(range(facts.clients), facts.clients, facts.seed, facts.round, facts.turn)
        near = beside(exchange, self.client, everyone)
        strange = [k for k in near if k not in self.names]
        if strange:
            raise Spoiled(f"client {strange[0]} is beside this one, and its name is not known")
        bound = Bound(self.name, facts.round, facts.turn, self.names[self.client])
        return self.seal.close(sent, {k: self.names[k] for k in near}, bound)

    _own: Stacks = field(default_factory=dict, init=False)


def sealed_begins(begins: Stacks, centers: Stacks, client: int, method: Method) -> Stacks:
    """What such a node keeps before its first letter."""
    sends = {name for exchange in method.exchanges for name in exchange.sends}
    mine = {f"{CENTER}{name}": rows[client : client + 1].cpu().clone() for name, rows in centers.items()}
    return begins | mine | {f"{SENT}{name}": torch.zeros_like(mine[f"{CENTER}{name}"]) for name in sends}


# -- at the center -------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Relay(Nodes):
    """Nodes that mix by themselves: what they send is kept, forwarded, and never read."""

    blind: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.store = Store() if self.store is None else self.store  # what was sent is forwarded from there

    def _heard(self, exchange: Exchange, client: int) -> list[int]:
        if client not in self.used:
            return []
        key = self.used[client].exchange
        near = {client, *beside(self.method.at(key[0])[key[1]], client, self._everyone(key))}
        return [k for k in self._came(key) if k in near]

    def _received(self, exchange: Exchange, state: State, block: Cohort) -> Stacks:
        client = int(block.index[0])
        if client not in self.used:
            return {}
        came, found = self._came(self.used[client].exchange), dict[str, Tensor]()
        for k in self._heard(exchange, client):
            if k != client:
                theirs = came[k]
                found |= {f"{what}/{k}": theirs[what] for what in ("sealed", "signature")}
                found[f"key/{k}"] = theirs[f"key/{client}"]
        return found

    def _fits(self, client: int, sent: Stacks, expected: Shapes, cohort: Cohort) -> bool:
        if next(iter(expected)).startswith(PARTS):  # scores are not sealed
            return fits(sent, expected)
        exchange = self.method.at(cohort.round)[cohort.turn]
        near = beside(exchange, client, self._everyone((cohort.round, cohort.turn)))
        whole = all(str(rows.dtype) == "torch.uint8" and rows.dim() == 2 and len(rows) == 1 for rows in sent.values())
        return whole and {"sealed", "signature", *(f"key/{k}" for k in near)} == set(sent)

    def _most(self, expected: Shapes) -> int:
        return most_bytes(expected) + OVERHEAD * (2 + len(self.sizes))

    def _came(self, key: tuple[int, int]) -> dict[int, Stacks]:
        found = None if self.store is None else self.store.read(key)
        require(found is not None, f"what came in round {key[0]} is lost: restore the run's folder, or begin anew")
        return found or {}

    def _everyone(self, key: tuple[int, int]) -> Cohort:
        return cohort_of(range(len(self.sizes)), len(self.sizes), self.clients.seed, *key)

    def _answers(self, blocks: Sequence[Cohort], good: Mapping[int, Stacks], expected: Shapes) -> Iterator[Answer]:
        zeros = {name: torch.zeros(shape, dtype=self.clients.task.dtype) for name, (shape, _) in expected.items()}
        for block in blocks:
            if int(block.index[0]) in good:
                yield Answer(block, {name: rows.to(self.clients.task.device) for name, rows in zeros.items()}, {})
