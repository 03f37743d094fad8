"""Attackers, to try robust rules on: a share of the clients that send what nobody should believe.

    nan           a row of NaN
    sign-flip     start - scale (w - start)         the way back
    large-norm    w + scale e,  e ~ N(0, 1)         noise in every number, drawn anew for every client and round
    same-value    value in every number             all attackers together
    zeros         zero in every number
    stale         the model of round 0, for ever
    one-coordinate  w, and value more in one number   the same one for all attackers and rounds
    label-flip    w, learned from labels C - 1 - y  honest work on poisoned data (a regression: -y)
    honest        w                                 nothing: to score the same clients without an attack

Some know what the honest clients send, D_i = w_i - start_i, and all send start + the same D:

    alie          mean D_i - z std D_i              inside of what honest clients might send (a little is enough)
    ipm           -eps mean D_i                     so that the mean turns round (inner-product manipulation)
    collusion     scale mean |D_i| e,  |e| = 1      one direction e for all attackers and rounds

An attacker lies in everything that is mixed into the centers, in every exchange. Who attacks is drawn by the seed; with
a larger share the attackers of a smaller one attack still. What honest clients send does not change by a bit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

import torch
from torch import Tensor

from ..data import Split
from ..errors import LARGEST_FLOAT, require, within
from ..language import register
from ..stacks import Cohort, Stacks, draw


@dataclass(frozen=True)
class Attack:
    """A share of the clients that attacks. By default they train on what they have and send what they learned."""

    share: float = 0.2
    late = False  # True: what it was given is taken to be the model of round 0
    knows = False  # True: it knows what the honest clients send, and `update` says what attackers do

    def __post_init__(self) -> None:
        name = type(self).__name__
        require(0 <= self.share < 1, f"{name}.share is a share of the clients in [0, 1), got {self.share}; try 0.2")
        for field in ("scale", "value", "eps"):
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

    def on(
        self,
        sent: Stacks,
        received: Stacks,
        attackers: Tensor,
        block: Cohort,
        first: Mapping[str, Tensor] | None = None,
    ) -> Stacks:
        """What a block sends, once its attackers have had their way with it; `first` (1, width) is of round 0."""
        mine = attackers[block.index]
        if not bool(mine.any()):
            return sent
        out = {}
        for name, rows in sent.items():
            at = mine.to(rows.device)
            start = received[name][at] if name in received else torch.zeros_like(rows[at])
            start = first[name].to(start).expand_as(start) if self.late and first and name in first else start
            out[name] = rows.clone()
            out[name][at] = self.lie(name, rows[at], start, block[mine]).to(rows.dtype)
        return out

    def lie(self, name: str, rows: Tensor, start: Tensor, block: Cohort) -> Tensor:
        """What attackers send in place of `rows` (attackers, width), having received `start` (zeros: nothing)."""
        return rows

    def update(self, name: str, honest: Tensor, attackers: int, seed: int) -> Tensor:
        """Where it `knows`: what all attackers add to what they received, (width,), given honest updates (n, width)."""
        return torch.zeros_like(honest[0])


@dataclass(frozen=True)
class Honest(Attack):
    """No attack: the clients that would attack do not, but are left out of the scores, as they are under an attack."""


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
class Zeros(Attack):
    """Send zero in every number: a model that has learned nothing."""

    def lie(self, name: str, rows: Tensor, start: Tensor, block: Cohort) -> Tensor:
        """Zero."""
        return torch.zeros_like(rows)


@dataclass(frozen=True)
class Stale(Attack):
    """Send the model of round 0 in every round, as a client that never heard of another one."""

    late = True

    def lie(self, name: str, rows: Tensor, start: Tensor, block: Cohort) -> Tensor:
        """What there was at the beginning."""
        return start


@dataclass(frozen=True)
class OneCoordinate(Attack):
    """Send w, and `value` more in one number, which the seed draws: the rest of the row is honest."""

    value: float = 1e6

    def lie(self, name: str, rows: Tensor, start: Tensor, block: Cohort) -> Tensor:
        """The same number of every row."""
        out, column = rows.clone(), int(draw.uniform(block.seed, "attack", name, torch.zeros(1)) * rows.shape[1])
        out[:, column] += self.value
        return out


@dataclass(frozen=True)
class LittleIsEnough(Attack):
    """Send mean D_i - z std D_i in every number: among what honest clients send, and always on the same side (ALIE).

    z = None takes the largest z at which a majority of clients, the attackers among them, is still on the far side:
    z = Phi^-1((n - f - s) / (n - f)), s = floor(n / 2 + 1) - f, for f attackers of n clients.
    Reference: Baruch et al., A little is enough, NeurIPS 2019, https://arxiv.org/abs/1902.06156
    """

    z: float | None = None
    knows = True

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, z="(-inf, inf); try 1.5")

    def update(self, name: str, honest: Tensor, attackers: int, seed: int) -> Tensor:
        """The mean, z standard deviations off."""
        n = len(honest) + attackers
        inside = (len(honest) - (n // 2 + 1 - attackers)) / len(honest)
        z = NormalDist().inv_cdf(min(max(inside, 0.5), 0.999)) if self.z is None else self.z
        return honest.mean(0) - z * honest.std(0, correction=0)


@dataclass(frozen=True)
class InnerProduct(Attack):
    """Send -eps mean D_i: a small eps looks like a slow client, a large one turns the mean round (IPM).

    Reference: Xie et al., Fall of empires, UAI 2019, https://arxiv.org/abs/1903.03936
    """

    eps: float = 0.5
    knows = True

    def update(self, name: str, honest: Tensor, attackers: int, seed: int) -> Tensor:
        """Against the mean."""
        return -self.eps * honest.mean(0)


@dataclass(frozen=True)
class Collusion(Attack):
    """All attackers go the same way in every round, `scale` times as far as honest clients go on average."""

    scale: float = 3.0
    knows = True

    def update(self, name: str, honest: Tensor, attackers: int, seed: int) -> Tensor:
        """A direction that the seed draws."""
        way = draw.normal(seed, "attack", name, torch.arange(honest.shape[1], device=honest.device))
        out: Tensor = self.scale * honest.norm(dim=1).mean() * way / way.norm()
        return out


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
register(Attack, "zeros", Zeros)
register(Attack, "stale", Stale)
register(Attack, "one-coordinate", OneCoordinate)
register(Attack, "alie", LittleIsEnough)
register(Attack, "ipm", InnerProduct)
register(Attack, "collusion", Collusion)
register(Attack, "honest", Honest)
