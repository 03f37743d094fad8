"""What a center makes of the models it hears: a mean, or something that a few attackers cannot move.

    total = aggregate.start(up, own)        an accumulator
    part  = aggregate.part(up, rows)        what a block of the cohort comes to, wherever it was learned
    aggregate.add(total, part)              one after another, in the order of the blocks
    aggregate.settle(total, own) -> Heard   what every center heard

A mean is linear: blocks add up, no cohort is ever held whole, and a part is no larger than the centers that hear it.
Median, trimmed mean, geometric median and Krum are not: they keep every row and decide at the end (`whole`). What is
done to the rows before a rule sees them is a rule around a rule (`parts.before_rule`): `nnm(median)`,
`clipping(krum)`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from ..errors import require, within
from ..language import NoWords, register, spell
from ..stacks import Cohort, Heard, Mixing
from ..stacks.all_rows import (
    EVERY,
    Columns,
    added_up,
    by_columns,
    in_order,
    inner_products,
    middle,
    put,
    shared,
    squares_between,
)
from ..stacks.mixing import Rest
from ..stacks.stack import to_device_of


@dataclass(eq=False)
class Sum:
    """A mixing under way: of all blocks so far, or of one."""

    values: Tensor  # (centers, width) float64; of a block (heard, width), in the rows' type where that loses nothing
    weight: Tensor  # (centers,) float64; of a block (heard,)
    rest: Rest = "none"  # of all blocks: what becomes of missing weight in the end
    at: Tensor | None = None  # (heard,) the centers that hear a block; None: all
    heard: Tensor | None = None  # (centers,) bool, of all blocks: to whom something was added


@dataclass(eq=False)
class Rows:
    """Every row that arrived, and who hears it."""

    values: list[Tensor] = field(default_factory=list)  # (block, width) each
    hears: list[Tensor] = field(default_factory=list)  # (centers, block) bool each
    clients: list[Tensor] = field(default_factory=list)  # (block,) each: who sent them
    key: tuple[int, ...] = ()  # of this exchange's draws
    columns: Columns = EVERY  # that are here: `values` have no others


class Known(NamedTuple):
    """What a rule may know beside the rows of a center."""

    center: Tensor | None = None  # (width,) its model so far; None: there is none yet
    client: Tensor | None = None  # (n,) who sent the rows; None: in order
    key: tuple[int, ...] = ()  # of draws


class Aggregate(Protocol):
    """What takes the place of `up @ local`."""

    whole: bool  # True: must see the cohort at once
    linear: bool  # True: a sum with weights, so that a weight says how far one client moves it

    @property
    def least(self) -> int:
        """How many rows it asks for; a center that hears fewer keeps its model."""

    def start(self, up: Mixing, own: Tensor) -> Sum | Rows:
        """An empty accumulator for the centers `own` (centers, width)."""

    def part(self, up: Mixing, rows: Tensor, block: Cohort | None = None) -> Sum | Rows:
        """What a block of rows (block, width) that these clients sent comes to by itself."""

    def add(self, total: Sum | Rows, part: Sum | Rows) -> None:
        """Take in a part, which may be used up; the same bits wherever it was made."""

    def settle(self, total: Sum | Rows, own: Tensor) -> Heard:
        """The result; a center that heard nobody gets its own model back."""

    def of(self, rows: Tensor, around: Known = Known()) -> Tensor:
        """What rows (n, width), n > 0, come to, (width,), where all count the same."""

    def stands(self, n: int) -> int:
        """How many attackers among n rows cannot move the result as far as they like."""

    def beware(self, n: int, attackers: int) -> str:
        """What so many attackers among n rows can do to it, and what to set instead; empty: nothing to say."""

    def remedy(self, n: int, attackers: int) -> str:
        """What to set so that it stands so many of n, to end a sentence with."""


Of = TypeVar("Of", bound=Callable[..., Tensor])


def by_column(of: Of) -> Of:
    """Says of a rule's `of` that it is the same column by column, but for what `stacks.all_rows` adds up over them.

    Then several processes can have some columns of the rows each. It is said of a function, not of a class: who writes
    another `of` says it anew.
    """
    of.by_column = True  # type: ignore[attr-defined]
    return of


def as_usual(rule: Aggregate) -> bool:
    """Whether rows are taken in and settled as by `Mean` or `Robust`, every center by itself."""
    names = ("start", "part", "add", "settle")
    return any(all(getattr(type(rule), n, None) is getattr(kind, n) for n in names) for kind in (Mean, Robust))


def shared_out(rule: Aggregate) -> bool:
    """Whether several processes can do a rule that sees all rows; of a rule around another one, both."""
    inner = getattr(rule, "rule", None)
    return as_usual(rule) and getattr(type(rule).of, "by_column", False) and (inner is None or shared_out(inner))


@dataclass(frozen=True)
class Mean:
    """The weighted mean, `up @ local`; the `rest` of `up` says what becomes of missing weight. Streams over blocks."""

    whole = False
    linear = True
    least = 1

    def start(self, up: Mixing, own: Tensor) -> Sum:
        """Zero, for every center."""
        # As many rows as `up` has receivers: one center may be about to become several.
        n = up.shape[0]
        zeros = torch.zeros(1, 1, dtype=torch.float64, device=own.device).expand(n, own.shape[1])
        return Sum(zeros, torch.zeros(n).double(), up.rest, heard=torch.zeros(n, dtype=torch.bool))

    def part(self, up: Mixing, rows: Tensor, block: Cohort | None = None) -> Sum:
        """`up @ rows` and the weight behind it, of the centers that hear anybody."""
        at, up = up.heard()
        return Sum(up.summed(rows), up.total, at=at)

    def add(self, total: Sum | Rows, part: Sum | Rows) -> None:
        """Add what was heard, and the weight behind it."""
        assert isinstance(total, Sum) and isinstance(part, Sum) and total.heard is not None
        values, at = part.values, slice(None) if part.at is None else part.at
        if isinstance(at, slice):
            first = not bool(total.heard.any())  # nothing to add it to
            total.values = values.double() if first else total.values.add_(values)
        else:
            total.values = total.values.contiguous()  # zeros, for the first time
            for center, heard in zip(at.tolist(), values, strict=True):  # rows by number: by a tensor they are copied
                total.values[center].add_(heard)
        total.weight[at] += part.weight
        total.heard[at] = True

    def settle(self, total: Sum | Rows, own: Tensor) -> Heard:
        """Divide, or let the center keep what is missing."""
        assert isinstance(total, Sum)
        own = own.expand(len(total.weight), -1)
        everyone = torch.ones(len(own), dtype=torch.bool)
        if total.rest == "none":
            return Heard(total.values.to(own.dtype).contiguous(), everyone)
        values, out = total.values, torch.empty_like(own, memory_format=torch.contiguous_format)
        if total.rest == "keep":
            lacks = to_device_of(own, 1 - total.weight)[:, None]
            return Heard(put(out, lambda piece: values[:, piece].addcmul(lacks, own[:, piece].double())), everyone)
        mask = total.weight > 0
        by, heard = to_device_of(own, torch.where(mask, total.weight, 1.0))[:, None], to_device_of(own, mask)[:, None]
        if bool(mask.all()):
            return Heard(put(out, lambda piece: values[:, piece] / by), mask)
        return Heard(put(out, lambda p: torch.where(heard, (values[:, p] / by).to(own.dtype), own[:, p])), mask)

    @by_column
    def of(self, rows: Tensor, around: Known = Known()) -> Tensor:
        """The mean of rows (n, width) without weights, as (width,)."""
        return by_columns(rows, lambda part: part.mean(0))

    def stands(self, n: int) -> int:
        """None: one row moves it."""
        return 0

    def beware(self, n: int, attackers: int) -> str:
        """Nothing: who takes a mean knows what it is."""
        return ""

    def remedy(self, n: int, attackers: int) -> str:
        """Another rule."""
        return ": use median in place of mean"


class Robust(ABC):
    """A rule that looks at all rows a center hears, without weights; an attacker cannot buy influence.

    A row that holds a NaN or an infinity counts as not heard. With fewer than `least` rows a center keeps its model.
    """

    whole = True
    linear = False

    @property
    def least(self) -> int:
        """One."""
        return 1

    @abstractmethod
    def of(self, rows: Tensor, around: Known = Known()) -> Tensor:
        """What rows (n, width), n > 0, come to, (width,)."""

    def stands(self, n: int) -> int:
        """Fewer than half."""
        return (n - 1) // 2

    def beware(self, n: int, attackers: int) -> str:
        """More attackers than it stands."""
        stands = self.stands(n)
        if attackers <= stands:
            return ""
        try:
            name = spell(self)
        except NoWords:
            name = type(self).__name__
        return f"{name} stands {stands} of {n} clients, and {attackers} attack{self.remedy(n, attackers)}"

    def remedy(self, n: int, attackers: int) -> str:
        """What to set instead, where that is known."""
        return ": use a larger share in it, or more clients"

    def start(self, up: Mixing, own: Tensor) -> Rows:
        """No rows yet."""
        return Rows()

    def part(self, up: Mixing, rows: Tensor, block: Cohort | None = None) -> Rows:
        """The rows, who sent them and who hears them."""
        hears = torch.zeros(up.shape, dtype=torch.bool)
        hears[up.links.receiver, up.links.sender] = True  # not zero: gossip weights may be negative
        clients, key = (torch.arange(len(rows)), ()) if block is None else (block.index, block.key)
        return Rows([rows], [hears], [clients], key)

    def add(self, total: Sum | Rows, part: Sum | Rows) -> None:
        """Keep the rows."""
        assert isinstance(total, Rows) and isinstance(part, Rows)
        before = 0 if part.key else sum(map(len, total.values))  # who has no number is numbered as they come
        total.clients += [clients + before for clients in part.clients]
        total.values += part.values
        total.hears += part.hears
        total.key, total.columns = part.key, part.columns

    def settle(self, total: Sum | Rows, own: Tensor) -> Heard:
        """The rule at every center; a center that heard nobody keeps its own."""
        assert isinstance(total, Rows)
        if not total.values:
            return Heard(own, torch.zeros(len(own), dtype=torch.bool))
        rows = total.values[0] if len(total.values) == 1 else torch.cat(total.values)
        hears, clients = torch.cat(total.hears, 1), torch.cat(total.clients)
        with shared(total.columns):
            hears &= _finite(rows)
            mask, own = hears.sum(1) >= self.least, total.columns.here(own).expand(len(hears), -1)
            heard = [
                self.of(rows if bool(who.all()) else rows[who.to(rows.device)], Known(mine, clients[who], total.key))
                if some
                else mine
                for who, some, mine in zip(hears, mask, own, strict=True)
            ]
        return Heard(total.columns.together(torch.stack(heard).to(own.dtype)), mask)


def _finite(rows: Tensor) -> Tensor:
    """Which rows are finite, (n,), on the host, whoever has their columns."""
    strange = rows.new_zeros(len(rows), dtype=torch.float64)
    if not bool(rows.sum(1).isfinite().all()):  # a sum is finite only if every number is; it may overflow, though
        strange += ~rows.isfinite().all(1)
    return added_up(torch.zeros_like(strange), iter([strange])).cpu() == 0


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

    @by_column
    def of(self, rows: Tensor, around: Known = Known()) -> Tensor:
        """The trimmed mean of rows (n, width), as (width,)."""
        n = len(rows)
        cut = min(whole_part(self.beta * n), (n - 1) // 2)
        return by_columns(rows, lambda part: in_order(part)[cut : n - cut].mean(0))

    def stands(self, n: int) -> int:
        """As many as are dropped on either side; of fewer than three rows none can be."""
        return min(whole_part(self.beta * n), (n - 1) // 2)

    def beware(self, n: int, attackers: int) -> str:
        """As of any rule; with beta = 0 it is a mean, and meant to be one."""
        return super().beware(n, attackers) if self.beta else ""

    def remedy(self, n: int, attackers: int) -> str:
        """A larger beta, where there is one."""
        return smallest_share("beta", n, attackers)


@dataclass(frozen=True)
class Median(Robust):
    """The middle value of every coordinate (the mean of the two middle ones where n is even)."""

    @by_column
    def of(self, rows: Tensor, around: Known = Known()) -> Tensor:
        """The median of rows (n, width), as (width,)."""
        return by_columns(rows, lambda part: middle(part).mean(0))


@dataclass(frozen=True)
class Krum(Robust):
    """The one row nearest to its neighbours: smallest sum of squared distances to the n - f - 2 nearest.

    f = floor(attackers * n) is the number of attackers to stand, where 2 f + 2 < n. `keep` > 1 averages that many best
    rows (Multi-Krum).
    Reference: Blanchard et al., Machine learning with adversaries, NeurIPS 2017, https://arxiv.org/abs/1703.02757
    """

    attackers: float = 0.1
    keep: int = 1

    def __post_init__(self) -> None:
        require(0 <= self.attackers < 0.5, f"Krum.attackers must be in [0, 0.5), got {self.attackers}; try 0.1")
        within(self, keep=">= 1")

    @by_column
    def of(self, rows: Tensor, around: Known = Known()) -> Tensor:
        """Krum of rows (n, width), as (width,)."""
        n = len(rows)
        near = max(1, n - whole_part(self.attackers * n) - 2)
        score = squares_between(rows).sort(1).values[:, 1 : 1 + near].sum(1)
        best = score.argsort(stable=True)[: self.keep]
        return by_columns(rows, lambda part: part[best].mean(0))

    def stands(self, n: int) -> int:
        """f; nobody where 2 f + 2 < n does not hold, or where more rows are averaged than are honest."""
        f = whole_part(self.attackers * n)
        return f if 2 * f + 2 < n and self.keep <= n - f else 0

    def beware(self, n: int, attackers: int) -> str:
        """Its condition, which also says something without attackers."""
        f = whole_part(self.attackers * n)
        if 2 * f + 2 < n or not f:
            return super().beware(n, attackers)
        return f"{spell(self)} needs 2 f + 2 < n, and of n = {n} clients it is to stand f = {f}: use geometric-median"

    def remedy(self, n: int, attackers: int) -> str:
        """A larger share, where its condition allows it."""
        if 2 * attackers + 2 >= n:
            return ": use geometric-median"
        if self.keep > n - attackers:
            return f": use keep={n - attackers}"
        return smallest_share("attackers", n, attackers)


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

    @by_column
    def of(self, rows: Tensor, around: Known = Known()) -> Tensor:
        """The geometric median of rows (n, width), as (width,)."""
        # Near the honest rows, so that nothing cancels between them.
        origin = by_columns(rows, lambda part: middle(part).double().mean(0))
        gram = inner_products(rows, origin=origin).to(rows.device)
        far = gram.diag()
        there = far.isfinite()  # a row whose square is no number any more is infinitely far: it weighs nothing
        gram = torch.where(there[:, None] & there, gram, 0)
        smooth = (self.smooth * far.median().sqrt()).square()
        if not bool(smooth > 0) or not bool(smooth.isfinite()):
            return origin.to(rows.dtype)  # more than half of the rows are the same, or beyond all numbers
        share = torch.zeros_like(far)
        square = torch.where(there, far, 0)
        for _ in range(self.iterations):
            weight = torch.where(there, (smooth + square).rsqrt(), 0)
            last, share = share, weight / weight.sum()
            if bool(((share - last).abs() <= 1e-15).all()):
                break
            heard = gram @ share
            square = (gram.diag() - 2 * heard + share @ heard).clamp(min=0)
        return by_columns(rows, lambda part: share @ torch.where(there[:, None], part, 0).double()).to(rows.dtype)


def smallest_share(name: str, n: int, attackers: int) -> str:
    """The smallest share in hundredths that stands so many of n."""
    share = math.ceil(100 * attackers / n - 1e-9) / 100
    return f": use {name}={share:g}" if share < 0.5 else ": no rule stands half of the clients"


def whole_part(x: float) -> int:
    """The whole part, forgiving the last bit: 0.29 * 100 is 29 attackers, not 28.999999999999996."""
    return int(x + 1e-9)


register(Aggregate, "mean", Mean)
register(Aggregate, "trimmed-mean", TrimmedMean)
register(Aggregate, "median", Median)
register(Aggregate, "krum", Krum)
register(Aggregate, "geometric-median", GeometricMedian)
