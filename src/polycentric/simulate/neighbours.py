"""Centers that live with their clients, where several ranks share them: rows go to neighbours, and nowhere else.

    rank 0   learns a b   mixes a b     a - b - c - d        b ~~> rank 1
    rank 1   learns c d   mixes c d     on a path            c ~~> rank 0

On a graph a client's center is at its home (`homes`). It hears the rows of its neighbours, so every rank is sent the
rows that its own clients hear, and mixes for them alone. Everybody knows who came and what is noted of them, and so who
hears whom. A row is mixed from the same rows in the same order as in one process: the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..errors import require
from ..method import Exchange, State
from ..parts.aggregate import Rows, Sum
from ..parts.answer import Answer, Part
from ..round import noted
from ..stacks import Mixing
from ..stacks.cohort import Cohort
from ..stacks.stack import Draft, Stacks, take, to_device_of
from .homes import EVERYWHERE, home_of
from .ranks import Ranks


class Neighbours:
    """Passes on the answers of an exchange: to everybody who came, and rows to those who hear them."""

    def __init__(self, ranks: Ranks, exchange: Exchange, state: State) -> None:
        self.ranks, self.exchange, self.state = ranks, exchange, state
        self.notes, self.names, self.like = Draft(state.memory), set[str](), Stacks()
        self.owner = torch.full_like(home_of(state), EVERYWHERE)  # (clients,) who learned those who came

    def __call__(self, answer: Answer | Part | None, block: Cohort, owner: int) -> Answer:
        """An answer; its rows are with its owner only."""
        told = dict[str, Stacks]()
        if isinstance(answer, Answer):
            good = torch.isin(block.index, answer.block.index)
            told = {"noted": noted(self.exchange, self.state, answer), "kept": answer.kept, "block": {"good": good}}
            told |= {"like": {name: answer.sent[name][:0] for name in self.exchange.sends}}
        told = self.ranks.stacks(told, owner)
        require("block" in told and "sent" not in told, f"rank {owner} does not keep what this rank keeps at home")
        arrived = block[told["block"]["good"]]
        self.notes.write(arrived.index, told["noted"])
        self.names |= set(told["noted"])
        self.like |= told["like"]
        self.owner[arrived.index] = owner
        return Answer(arrived, answer.sent if isinstance(answer, Answer) else {}, told["kept"])

    def mixed(self, answers: Sequence[Answer]) -> list[Part]:
        """What the centers of this rank's clients hear; nobody came, no part."""
        if not answers:
            return []
        arrived = answers[0].block.join(answer.block for answer in answers[1:])
        kept = {name: torch.cat([answer.kept[name] for answer in answers]) for name in answers[0].kept}
        mine = [answer for answer in answers if answer.sent]
        sent = {name: torch.cat([answer.sent[name] for answer in mine]) for name in self.exchange.sends if mine}
        sums = {name: self._sum(name, arrived, sent.get(name)) for name in self.exchange.sends}
        return [Part(arrived, take({n: self.notes.stacks[n] for n in self.names}, arrived.index), sums, kept)]

    def _sum(self, name: str, arrived: Cohort, sent: Tensor | None) -> Sum | Rows:
        up = self.exchange.up(self.notes.stacks, arrived, name)
        receiver, sender, weight = up.links
        home = torch.where(self.owner == EVERYWHERE, home_of(self.state), self.owner)[receiver]
        owner, me = self.owner[arrived.index], self.ranks.rank
        rows = self.like[name].new_empty(len(arrived), self.like[name].shape[1])
        if sent is not None:
            rows[to_device_of(rows, owner == me)] = sent
        for source in range(self.ranks.size):
            for target in range(self.ranks.size):
                hears = (home == target) | (home == EVERYWHERE)
                wanted = torch.unique(sender[hears & (owner[sender] == source)])
                if source == target or not len(wanted) or me not in (source, target):
                    continue
                there = to_device_of(rows, wanted)
                rows[there] = self.ranks.passed({name: rows[there]}, source, target)[name]
        here = (home == me) | (home == EVERYWHERE)
        heard, at = torch.unique(sender[here], return_inverse=True)
        form: Literal["scatter", "sparse"] = "scatter" if up.form == "scatter" else "sparse"
        some = Mixing(form, (up.shape[0], len(heard)), weight[here], receiver[here], at, up.rest)
        return self.exchange.aggregate.part(some, rows[to_device_of(rows, heard)], arrived[heard])
