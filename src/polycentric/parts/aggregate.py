"""What a center makes of the models it hears: a mean, or something that a few attackers cannot move.

    total = aggregate.start(up, own)        an accumulator
    aggregate.add(total, up, rows)          once for every block of the cohort
    aggregate.settle(total, own) -> Heard   what every center heard

A mean is linear: blocks add up, and no cohort is ever held whole. Median, trimmed mean, geometric
median and Krum are not: they keep every row and decide at the end (`whole`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ..errors import require, within
from ..language import register
from ..stacks import Heard, Mixing
from ..stacks.mixing import Rest
from ..stacks.stack import to_device_of

COLUMNS = 1 << 16  # coordinates sorted at once: bounds the memory of coordinate-wise rules


@dataclass(eq=False)
class Sum:
    """A mixing under way."""

    values: Tensor  # (centers, width) float64
    weight: Tensor  # (centers,) float64
    rest: Rest


@dataclass(eq=False)
class Rows:
    """Every row that arrived, and who hears it."""

    values: list[Tensor] = field(default_factory=list)  # (block, width) each
    hears: list[Tensor] = field(default_factory=list)  # (centers, block) bool each


class Aggregate(Protocol):
    """What takes the place of `up @ local`."""

    whole: bool  # True: must see the cohort at once
    linear: bool  # True: a sum with weights, so that a weight says how far one client moves it

    def start(self, up: Mixing, own: Tensor) -> Sum | Rows:
        """An empty accumulator for the centers `own` (centers, width)."""

    def add(self, total: Sum | Rows, up: Mixing, rows: Tensor) -> None:
        """Take in a block of rows (block, width), in place."""

    def settle(self, total: Sum | Rows, own: Tensor) -> Heard:
        """The result; a center that heard nobody gets its own model back."""


@dataclass(frozen=True)
class Mean:
    """The weighted mean, `up @ local`; the `rest` of `up` says what becomes of missing weight. Streams over blocks."""

    whole = False
    linear = True

    def start(self, up: Mixing, own: Tensor) -> Sum:
        """Zero, for every center."""
        # As many rows as `up` has receivers: one center may be about to become several.
        zeros = torch.zeros(up.shape[0], own.shape[1], dtype=torch.float64, device=own.device)
        return Sum(zeros, torch.zeros(up.shape[0], dtype=torch.float64), up.rest)

    def add(self, total: Sum | Rows, up: Mixing, rows: Tensor) -> None:
        """Add `up @ rows` and the weight behind it."""
        assert isinstance(total, Sum)
        up.add_product(rows, total.values)
        total.weight += up.total

    def settle(self, total: Sum | Rows, own: Tensor) -> Heard:
        """Divide, or let the center keep what is missing."""
        assert isinstance(total, Sum)
        own = own.expand(len(total.weight), -1)
        everyone = torch.ones(len(own), dtype=torch.bool)
        if total.rest == "none":
            return Heard(total.values.to(own.dtype), everyone)
        if total.rest == "keep":
            lacks = to_device_of(own, 1 - total.weight)[:, None]
            return Heard(total.values.addcmul_(lacks, own.double()).to(own.dtype), everyone)
        mask = total.weight > 0
        mean = total.values.div_(to_device_of(own, torch.where(mask, total.weight, 1.0))[:, None]).to(own.dtype)
        if bool(mask.all()):
            return Heard(mean, mask)
        return Heard(torch.where(to_device_of(own, mask)[:, None], mean, own), mask)


class Robust(ABC):
    """A rule that looks at all rows a center hears, without weights; an attacker cannot buy influence.

    A row that holds a NaN or an infinity counts as not heard.
    """

    whole = True
    linear = False

    @abstractmethod
    def of(self, rows: Tensor) -> Tensor:
        """What rows (n, width), n > 0, come to, (width,)."""

    def start(self, up: Mixing, own: Tensor) -> Rows:
        """No rows yet."""
        return Rows()

    def add(self, total: Sum | Rows, up: Mixing, rows: Tensor) -> None:
        """Keep the rows, and who hears them."""
        assert isinstance(total, Rows)
        hears = torch.zeros(up.shape, dtype=torch.bool)
        hears[up.links.receiver, up.links.sender] = True  # not zero: gossip weights may be negative
        total.values.append(rows)
        total.hears.append(hears)

    def settle(self, total: Sum | Rows, own: Tensor) -> Heard:
        """The rule at every center; a center that heard nobody keeps its own."""
        assert isinstance(total, Rows)
        if not total.values:
            return Heard(own, torch.zeros(len(own), dtype=torch.bool))
        rows, hears = torch.cat(total.values), torch.cat(total.hears, 1)
        hears &= rows.isfinite().all(1).cpu()
        mask, own = hears.any(1), own.expand(len(hears), -1)
        heard = [
            self.of(rows[who.to(rows.device)]) if some else mine
            for who, some, mine in zip(hears, mask, own, strict=True)
        ]
        return Heard(torch.stack(heard).to(own.dtype), mask)


@dataclass(frozen=True)
class TrimmedMean(Robust):
    """Coordinate by coordinate, drop the floor(beta n) smallest and largest values, average the rest.

    Up to floor(beta n) attackers cannot move a coordinate out of the honest range. beta = 0 is the unweighted
    mean; as beta tends to 1/2 it is the median, and where floor(beta n) would leave nothing (n < 1 + 2 floor(beta n))
    it is the median too. Below 1 / beta rows nothing is dropped: three rows need beta of at least 1/3, and two
    cannot be told apart.
    Reference: Yin et al., Byzantine-robust distributed learning, ICML 2018, https://arxiv.org/abs/1803.01498
    """

    beta: float = 0.1

    def __post_init__(self) -> None:
        require(0 <= self.beta < 0.5, f"TrimmedMean.beta must be in [0, 0.5), got {self.beta}; try 0.1")

    def of(self, rows: Tensor) -> Tensor:
        """The trimmed mean of rows (n, width), as (width,)."""
        n = len(rows)
        cut = min(_floor(self.beta * n), (n - 1) // 2)
        return _by_columns(rows, lambda part: part.sort(0).values[cut : n - cut].mean(0))


@dataclass(frozen=True)
class Median(Robust):
    """The middle value of every coordinate (the mean of the two middle ones where n is even)."""

    def of(self, rows: Tensor) -> Tensor:
        """The median of rows (n, width), as (width,)."""
        low, high = (len(rows) - 1) // 2, len(rows) // 2
        return _by_columns(rows, lambda part: part.sort(0).values[[low, high]].mean(0))


@dataclass(frozen=True)
class Krum(Robust):
    """The one row nearest to its neighbours: smallest sum of squared distances to the n - f - 2 nearest.

    f = floor(attackers * n) is the number of attackers to stand. `keep` > 1 averages that many best rows (Multi-Krum).
    Reference: Blanchard et al., Machine learning with adversaries, NeurIPS 2017, https://arxiv.org/abs/1703.02757
    """

    attackers: float = 0.1
    keep: int = 1

    def __post_init__(self) -> None:
        require(0 <= self.attackers < 0.5, f"Krum.attackers must be in [0, 0.5), got {self.attackers}; try 0.1")
        within(self, keep=">= 1")

    def of(self, rows: Tensor) -> Tensor:
        """Krum of rows (n, width), as (width,)."""
        n = len(rows)
        near = max(1, n - _floor(self.attackers * n) - 2)
        squares = torch.zeros(n, n, dtype=torch.float64, device=rows.device)
        for part in torch.split(rows, COLUMNS, 1):
            centered = (part - part.median(0).values).double()
            squares += torch.cdist(centered, centered).square()
        score = squares.sort(1).values[:, 1 : 1 + near].sum(1)
        return rows[score.argsort(stable=True)[: self.keep]].mean(0)


@dataclass(frozen=True)
class GeometricMedian(Robust):
    """The point with the smallest sum of distances to the rows (RFA), by Weiszfeld's iteration:

        z  <-  sum_i w_i x_i / sum_i w_i,      w_i = 1 / sqrt(nu^2 + |x_i - z|^2)

    nu = `smooth` times the median distance of the rows from their coordinate-wise median, where the iteration begins.
    Fewer than half of the rows, whatever they say, cannot move z farther from a point than 2 (1 - a) / (1 - 2 a) times
    as far as the farthest honest row is from it, a their share. It turns with its rows, which
    coordinate-wise rules do not. z is always a mean of rows, so distances follow from inner products, which are
    summed once over pieces of the width in float64: an iteration costs nothing that grows with the model.
    Reference: Pillutla et al., Robust aggregation for federated learning, IEEE TSP 2022,
    https://arxiv.org/abs/1912.13445
    """

    iterations: int = 200
    smooth: float = 1e-6

    def __post_init__(self) -> None:
        within(self, iterations=">= 1; try 200")
        require(0 < self.smooth < 1, f"GeometricMedian.smooth must be in (0, 1), got {self.smooth}; try 1e-6")

    def of(self, rows: Tensor) -> Tensor:
        """The geometric median of rows (n, width), as (width,)."""
        middle = Median().of(rows.double())  # near the honest rows, so that nothing cancels between them
        gram = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
        for first in range(0, rows.shape[1], COLUMNS):
            part = rows[:, first : first + COLUMNS].double() - middle[first : first + COLUMNS]
            gram += part @ part.T
        far = gram.diag()
        there = far.isfinite()  # a row whose square is no number any more is infinitely far: it weighs nothing
        gram = torch.where(there[:, None] & there, gram, 0)
        smooth = (self.smooth * far.median().sqrt()).square()
        if not bool(smooth > 0) or not bool(smooth.isfinite()):
            return middle.to(rows.dtype)  # more than half of the rows are the same, or beyond all numbers
        share = torch.zeros_like(far)
        square = torch.where(there, far, 0)
        for _ in range(self.iterations):
            weight = torch.where(there, (smooth + square).rsqrt(), 0)
            last, share = share, weight / weight.sum()
            if bool(((share - last).abs() <= 1e-15).all()):
                break
            heard = gram @ share
            square = (gram.diag() - 2 * heard + share @ heard).clamp(min=0)
        return _by_columns(torch.where(there[:, None], rows, 0), lambda part: share @ part.double()).to(rows.dtype)


def _floor(x: float) -> int:
    """The whole part, forgiving the last bit: 0.29 * 100 is 29 attackers, not 28.999999999999996."""
    return int(x + 1e-9)


def _by_columns(rows: Tensor, rule: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.cat([rule(part) for part in torch.split(rows, COLUMNS, 1)])


register(Aggregate, "mean", Mean)
register(Aggregate, "trimmed-mean", TrimmedMean)
register(Aggregate, "median", Median)
register(Aggregate, "krum", Krum)
register(Aggregate, "geometric-median", GeometricMedian)
