"""What is done to the rows of a center before a rule sees them; each is a rule too, around another one.

    nnm(trimmed-mean(beta=0.2), attackers=0.2)        neighbours are averaged: for clients whose data differ
    bucketing(median, size=2)                         rows are averaged two by two, drawn anew in every round
    clipping                                          centered clipping: a mean of updates of bounded length
    quorum(nnm(median), least=4)                      a center that hears fewer than four clients stays as it is

They go with every rule, with each other, and with every topology.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..errors import require, within
from ..language import register
from ..stacks.all_rows import lengths, put, squares_between
from ..stacks.draw import uniform
from .aggregate import Aggregate, Known, Mean, Median, Robust, TrimmedMean, by_column, smallest_share, whole_part


class BeforeRule(Robust):
    """A rule around a rule."""

    rule: Aggregate

    @property
    def least(self) -> int:
        """What the rule asks for."""
        return self.rule.least


@dataclass(frozen=True)
class NearestNeighbours(BeforeRule):
    """Nearest-neighbour mixing (NNM): every row becomes the mean of the n - f rows nearest to it, itself among them.

        y_i = 1/(n - f) sum of the n - f rows x_j with the smallest |x_i - x_j|,        then  rule { y_1 .. y_n }

    f = floor(attackers n). Honest rows that differ because their data do come closer together, so that a rule need not
    drop those who alone have seen something; a lie is in a mean only if it is near the rows of others.
    Reduces to:  the mean, whatever the rule, with attackers = 0; the rule itself where all rows are equal.
    Reference:   Allouah et al., Fixing by mixing, AISTATS 2023, https://arxiv.org/abs/2302.01772
    """

    rule: Aggregate = TrimmedMean(0.2)
    attackers: float = 0.2

    def __post_init__(self) -> None:
        _check_share(self, self.attackers)

    @by_column
    def of(self, rows: Tensor, around: Known = Known()) -> Tensor:
        """The rule of the mixed rows."""
        near = len(rows) - whole_part(self.attackers * len(rows))
        order = squares_between(rows).argsort(dim=1, stable=True)[:, :near]
        weight = torch.zeros(len(rows), len(rows), dtype=rows.dtype, device=rows.device).scatter_(1, order, 1 / near)
        return self.rule.of(put(torch.empty_like(rows), lambda piece: weight @ rows[:, piece].contiguous()), around)

    def stands(self, n: int) -> int:
        """What both it and the rule stand."""
        return min(whole_part(self.attackers * n), self.rule.stands(n))

    def remedy(self, n: int, attackers: int) -> str:
        """A larger share, here or in the rule."""
        few = whole_part(self.attackers * n) < attackers
        return smallest_share("attackers", n, attackers) if few else self.rule.remedy(n, attackers)


@dataclass(frozen=True)
class Bucketing(BeforeRule):
    """Rows are shuffled and averaged `size` at a time; the rule sees the means of these buckets (s-resampling).

        y_b = 1/s sum_{i in bucket b} x_i,      b = 1 .. ceil(n / s),        then  rule { y_1 .. y_ceil(n/s) }

    Means of s differ s times less in square than rows do, and f attackers are in at most f buckets: the rule must stand
    s times the share. Buckets are drawn by (seed, round, exchange, client).
    Reduces to:  the rule itself with size = 1, the mean with size >= n.
    Reference:   Karimireddy et al., Byzantine-robust learning on heterogeneous datasets via bucketing, ICLR 2022,
                 https://arxiv.org/abs/2006.09365
    """

    rule: Aggregate = Median()
    size: int = 2

    def __post_init__(self) -> None:
        within(self, size=">= 1; try 2")

    @by_column
    def of(self, rows: Tensor, around: Known = Known()) -> Tensor:
        """The rule of the buckets' means."""
        client = torch.arange(len(rows)) if around.client is None else around.client
        order = uniform(*around.key, "bucket", client).argsort(stable=True).to(rows.device)
        buckets = torch.split(order, self.size)
        means = rows.new_empty(len(buckets), rows.shape[1])
        put(means, lambda piece: torch.stack([rows[bucket, piece].mean(0) for bucket in buckets]), rows)
        return self.rule.of(means, around._replace(client=None))

    def stands(self, n: int) -> int:
        """What the rule stands among the buckets: every attacker may be in another one."""
        return self.rule.stands(-(-n // self.size))

    def remedy(self, n: int, attackers: int) -> str:
        """What the rule needs among the buckets."""
        buckets = -(-n // self.size)
        if 2 * attackers >= buckets:
            return ": use size=1, or more clients"
        return self.rule.remedy(buckets, attackers)


@dataclass(frozen=True)
class Clipping(BeforeRule):
    """No row goes farther from the center's model than `radius`; then a rule, the mean unless said otherwise.

        y_i = c + (x_i - c) min(1, tau / |x_i - c|),        c <- rule { y_1 .. y_n }

    c is the center's model so far; tau = `radius`, by default the (n - f)-th smallest |x_i - c|, f = floor(attackers n)
    (then no attacker is farther than the farthest honest client). With the mean this is centered clipping,
    `iterations` times; with another rule it bounds the norms of what that rule sees. On a graph c is the client's own
    model before it trained (clipped gossip, with equal weights). Where there is no model yet, in the clustering of TKM,
    c is the median of the rows.
    Reduces to:  the rule itself with an infinite radius.
    Reference:   Karimireddy et al., Learning from history for Byzantine robust optimization, ICML 2021,
                 https://arxiv.org/abs/2012.10333; He et al., Byzantine-robust decentralized learning via ClippedGossip,
                 2022, https://arxiv.org/abs/2202.01545
    """

    rule: Aggregate = Mean()
    attackers: float = 0.2
    radius: float | None = None
    iterations: int = 1

    def __post_init__(self) -> None:
        _check_share(self, self.attackers)
        within(self, radius="> 0; try 1", iterations="[1, 1000]; try 1")

    @by_column
    def of(self, rows: Tensor, around: Known = Known()) -> Tensor:
        """The rule of the shortened rows."""
        center = Median().of(rows) if around.center is None else around.center
        for _ in range(self.iterations):
            length = lengths(rows, center)
            farthest = length.sort().values[len(rows) - whole_part(self.attackers * len(rows)) - 1]
            radius = farthest if self.radius is None else farthest.new_tensor(self.radius)
            # What is too long for a square goes nowhere.
            shorter = torch.where(length.isfinite(), (radius / length).nan_to_num(nan=1.0).clamp(max=1), 0.0)
            near = put(torch.empty_like(rows), partial(_nearer, rows, center.double(), shorter[:, None]))
            center = self.rule.of(near, around)
        return center

    def stands(self, n: int) -> int:
        """So many that the radius is that of an honest row; with a radius that is set, no row goes farther than it."""
        return whole_part(self.attackers * n) if self.radius is None else (n - 1) // 2

    def remedy(self, n: int, attackers: int) -> str:
        """A larger share."""
        return smallest_share("attackers", n, attackers)


@dataclass(frozen=True)
class Quorum(BeforeRule):
    """A rule that asks for `least` rows: a center that hears fewer keeps its model, and none is made by a few alone.

    Reduces to:  the rule itself, without weights, with least = 1.
    """

    rule: Aggregate = Median()
    least: int = 3

    def __post_init__(self) -> None:
        within(self, least=">= 1; try 3")

    @by_column
    def of(self, rows: Tensor, around: Known = Known()) -> Tensor:
        """The rule."""
        return self.rule.of(rows, around)

    def stands(self, n: int) -> int:
        """All, where they are too few to be heard; else what the rule stands."""
        return n if n < self.least else self.rule.stands(n)

    def remedy(self, n: int, attackers: int) -> str:
        """The rule's."""
        return self.rule.remedy(n, attackers)


def _nearer(rows: Tensor, center: Tensor, share: Tensor, piece: slice) -> Tensor:
    """Some columns of rows moved to a center, but for a share of the way that each is from there."""
    return center[piece] + torch.where(share > 0, share * (rows[:, piece].double() - center[piece]), 0.0)


def _check_share(rule: BeforeRule, share: float) -> None:
    require(0 <= share < 0.5, f"{type(rule).__name__}.attackers must be in [0, 0.5), got {share}; try 0.2")


register(Aggregate, "nnm", NearestNeighbours)
register(Aggregate, "bucketing", Bucketing)
register(Aggregate, "clipping", Clipping)
register(Aggregate, "quorum", Quorum)
