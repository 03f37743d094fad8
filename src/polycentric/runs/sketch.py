"""Sketches of the models that clients send: enough to see them on a map over the rounds, and small enough to keep.

    s_b(w)  =  sum of  sign_j w_j  over the columns j with  j mod B = b          B numbers of a model w

Signs are drawn once for all. Inner products are kept on average, E <s(u), s(v)> = <u, v>, with a variance of at most
2 |u|^2 |v|^2 / B where no column is much larger than the others; and s is linear, so that this is true of differences.

Reference: Charikar, Chen, Farach-Colton, Finding frequent items in data streams, ICALP 2002 (the count sketch).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..method import Exchange, State
from ..round import Answer, Clients
from ..stacks import Cohort, Stacks
from ..stacks.draw import bits, uniform

NUMBERS = 128  # of a sketch
MOST = 300  # clients, drawn by the run's seed: more could not be told apart on a map


def sketch(rows: Tensor) -> Tensor:
    """Models (n, width) in NUMBERS numbers each, float32 on the host."""
    signed = rows.float() * _signs(rows.shape[1]).to(rows.device)
    return pad(signed, (0, -rows.shape[1] % NUMBERS)).view(len(rows), -1, NUMBERS).sum(1).cpu()


@lru_cache(maxsize=2)
def _signs(width: int) -> Tensor:
    return 1.0 - 2.0 * (bits("sketch", torch.arange(width)) & 1).float()


@dataclass(eq=False)
class Sketched(Clients):
    """Clients whose models are sketched as they come; of several exchanges of a round, the last that has any."""

    clients: Clients
    found: Stacks = field(default_factory=dict)  # index (n,), model (n, NUMBERS)

    def everyone(self, round: int, turn: int) -> Cohort:
        """All clients that have data."""
        return self.clients.everyone(round, turn)

    def answers(self, exchange: Exchange, state: State, cohort: Cohort) -> Iterator[Answer]:
        """The same answers."""
        parts = []
        shown = torch.zeros(cohort.n_clients, dtype=torch.bool)
        shown[uniform(cohort.seed, "shown", torch.arange(cohort.n_clients)).argsort()[:MOST]] = True
        for answer in self.clients.answers(exchange, state, cohort):
            mine = shown[answer.block.index]
            if "model" in answer.sent and bool(mine.any()):
                parts.append(
                    (answer.block.index[mine], sketch(answer.sent["model"][mine.to(answer.sent["model"].device)]))
                )
            yield answer
        if parts:
            index, rows = (torch.cat(part) for part in zip(*parts, strict=True))
            order = index.argsort()
            self.found = {"index": index[order], "model": rows[order]}
