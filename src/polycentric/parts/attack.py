"""Attackers, to try robust rules on: a share of the clients that send what nobody should believe.

    nan           a row of NaN
    sign-flip     start - scale (w - start)         the way back
    large-norm    w + scale e,  e ~ N(0, 1)         noise in every number, drawn anew for every client and round
    same-value    value in every number             all attackers together
    label-flip    w, learned from labels C - 1 - y  honest work on poisoned data (a regression: -y)

An attacker lies in everything that is mixed into the centers, in every exchange. Who attacks is drawn by the seed; with
a larger share the attackers of a smaller one attack still. What honest clients send does not change by a bit.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..data import Split
from ..errors import LARGEST_FLOAT, require
from ..language import register
from ..stacks import Cohort, Stacks, draw


@dataclass(frozen=True)
class Attack:
    """A share of the clients that attacks. By default they train on what they have and send what they learned."""

    share: float = 0.2

    def __post_init__(self) -> None:
        name = type(self).__name__
        require(0 <= self.share < 1, f"{name}.share is a share of the clients in [0, 1), got {self.share}; try 0.2")
        for field in ("scale", "value"):
            number = getattr(self, field, 0.0)
            good = abs(number) <= LARGEST_FLOAT
            require(good, f"{name}.{field} must be a finite number, got {number}; try 10")

    def attackers(self, seed: int, able: Tensor) -> Tensor:
        """Which clients attack, (clients,) bool, of those that are `able` (clients,): round(share n) of them."""
        index = able.nonzero()[:, 0]
        order = draw.uniform(seed, "attack", index).argsort(stable=True)
        out = torch.zeros_like(able)
        out[index[order[: round(self.share * len(index))]]] = True
        return out

    def poisoned(self, train: Split, attackers: Tensor, n_classes: int) -> Split:
        """The examples clients train on."""
        return train

    def on(self, sent: Stacks, received: Stacks, attackers: Tensor, block: Cohort) -> Stacks:
        """What a block sends, once its attackers have had their way with it."""
        mine = attackers[block.index]
        if not bool(mine.any()):
            return sent
        out = {}
        for name, rows in sent.items():
            at = mine.to(rows.device)
            start = received[name][at] if name in received else torch.zeros_like(rows[at])
            out[name] = rows.clone()
            out[name][at] = self.lie(name, rows[at], start, block[mine]).to(rows.dtype)
        return out

    def lie(self, name: str, rows: Tensor, start: Tensor, block: Cohort) -> Tensor:
        """What attackers send in place of `rows` (attackers, width), having received `start` (zeros: nothing)."""
        return rows


@dataclass(frozen=True)
class NotANumber(Attack):
    """Send NaN. Such updates are dropped and counted."""

    def lie(self, name: str, rows: Tensor, start: Tensor, block: Cohort) -> Tensor:
        """NaN."""
        return torch.full_like(rows, math.nan)


@dataclass(frozen=True)
class SignFlip(Attack):
    """Send start - scale (w - start): undo what the honest clients learn, `scale` times."""

    scale: float = 1.0

    def lie(self, name: str, rows: Tensor, start: Tensor, block: Cohort) -> Tensor:
        """The way back."""
        return start - self.scale * (rows - start)


@dataclass(frozen=True)
class LargeNorm(Attack):
    """Send w + scale e with e ~ N(0, 1) in every number."""

    scale: float = 10.0

    def lie(self, name: str, rows: Tensor, start: Tensor, block: Cohort) -> Tensor:
        """Noise, keyed by client and column."""
        client = block.index.to(rows.device)[:, None]
        column = torch.arange(rows.shape[1], device=rows.device)
        return rows + self.scale * draw.normal(*block.key, "attack", name, client, column).to(rows.dtype)


@dataclass(frozen=True)
class SameValue(Attack):
    """Collude: every attacker sends `value` in every number."""

    value: float = 1.0

    def lie(self, name: str, rows: Tensor, start: Tensor, block: Cohort) -> Tensor:
        """One number."""
        return torch.full_like(rows, self.value)


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Learn honestly from poisoned labels, C - 1 - y in place of y; in a regression -y."""

    def poisoned(self, train: Split, attackers: Tensor, n_classes: int) -> Split:
        """The labels of the attackers turned round."""
        theirs = attackers.to(train.y.device)[train.owner.to(train.y.device)]
        return replace(train, y=torch.where(theirs, n_classes - 1 - train.y if n_classes else -train.y, train.y))


register(Attack, "nan", NotANumber)
register(Attack, "sign-flip", SignFlip)
register(Attack, "large-norm", LargeNorm)
register(Attack, "same-value", SameValue)
register(Attack, "label-flip", LabelFlip)
