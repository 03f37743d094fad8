"""One center becomes K: what all clients have learned from a common start is clustered, once."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ...errors import within
from ...parts.aggregate import Aggregate
from ...stacks import Cohort, Stacks
from ...stacks.all_rows import Spans, each, inner_products, pieces
from ...stacks.draw import uniform
from .assignment import NUMBERS, ByDistance

MANY = 10_000  # rows whose inner products are all computed: 800 MB; of more, only those of some
SAMPLE = 4096  # rows that seeds are tried on, where there are MANY
FEW = 64  # centers up to which sums over clusters are a matrix product


@dataclass(frozen=True)
class OneBecomesMany(ByDistance):
    """One center becomes K: what all clients have learned from a common start is clustered, once.

    The best of `restarts` clusterings, of at most so many `iterations` each, from seeds that are drawn far apart
    ("kmeans++") or at "random".
    """

    restarts: int
    iterations: int
    seeding: Literal["kmeans++", "random"] = "kmeans++"
    whole = True

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, restarts="[1, 10000]; try 20", seeding=("kmeans++", "random"))

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """Whatever else a center holds, every one of the K now has."""
        k = self.k
        return memory, {name: rows.repeat(k, 1) if len(rows) == 1 and k > 1 else rows for name, rows in centers.items()}

    def words(self, n_clients: int) -> str:
        """Once."""
        return f"one center becomes {min(self.k, n_clients)}: the models that clients have trained are clustered"


@dataclass(frozen=True)
class Seeding(OneBecomesMany):
    """One center becomes K: what all clients have learned from a common start is clustered, once (FeSEM's round 0).

    Lloyd's iteration from `restarts` different seeds, keeping the partition of the smallest intra-cluster distance.
    Centers are means of rows, so every distance follows from the inner products of rows:

        |x_i - c_k|^2 = G_ii - 2 mean_{j in k} G_ij + mean_{j,l in k} G_jl,      G = X X^T

    G is summed over pieces of the width in float64, once; restarts then cost nothing that grows with the model. Of more
    than 10,000 clients G would have a number for every two: seeds are then tried on 4,096 of them drawn at random (or
    four times K), and Lloyd's iteration goes on over all rows from the means of the best partition.
    """

    restarts: int = 20
    iterations: int = 100

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """The best of many clusterings."""
        if not len(cohort):  # nobody's answer was finite
            return {}
        rows, some = sent["model"], sampled(cohort, self.k)
        gram = inner_products(rows if some is None else rows[some.to(rows.device)], self.spans)
        if self.k > 1 and len(cohort) > 1 and not float(gram.diag().max()) > 0:
            warnings.warn(
                "all clients sent the same model, so clustering them means nothing and all go to the first center: "
                "let them train first, with a learning rate above 0 and a longer warm_up",
                stacklevel=2,
            )
        runs = [self.lloyd(gram, cohort, restart) for restart in range(self.restarts)]
        total, assignment = min(runs, key=lambda run: run[0])
        if some is not None:
            total, assignment = ManyRows(rows, self.spans).lloyd(some, assignment, self.k, self.iterations)
        distance = torch.full((len(cohort),), total / max(1, len(cohort)), dtype=torch.float64)
        placed = torch.ones(len(cohort), dtype=torch.bool)
        return {"assignment": assignment, "distance": distance, "placed": placed} | self.noted(cohort, sent)

    def lloyd(self, gram: Tensor, cohort: Cohort, restart: int) -> tuple[float, Tensor]:
        """(intra-cluster distance, assignment) of one run from seeds of its own."""
        draws = uniform(*cohort.key, "seeding", restart, torch.arange(self.k))
        return lloyd(gram, seeded(gram, draws, self.seeding), self.k, self.iterations)


def seeded(gram: Tensor, draws: Tensor, seeding: str) -> Tensor:
    """The nearest of K rows for every row, (rows,); the rows are drawn far apart ("kmeans++") or at "random"."""
    own, n = gram.diag(), len(gram)
    lying = gram if len(draws) > FEW else gram.T  # the same to rounding, and a row is read as a whole
    nearest, taken = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.bool)
    far = torch.full((n,), math.inf, dtype=torch.float64)  # from the nearest seed so far
    chance = torch.ones(n, dtype=torch.float64)
    for at, draw in enumerate(draws.tolist()):
        if not bool(chance.sum() > 0):  # fewer different rows than centers: the rest stay empty
            break
        seed = drawn(chance, draw) if at else int(draw * n)
        square = own - 2 * lying[seed] + own[seed]
        nearest.masked_fill_(square < far, at)
        far, taken[seed] = torch.minimum(far, square), True
        chance = far.clamp(min=0) if seeding == "kmeans++" else torch.ones_like(far)  # far rows are likely
        chance[taken] = 0
    return nearest


def drawn(chance: Tensor, draw: float) -> int:
    """One of the rows, as likely as its chance, by a number in [0, 1)."""
    return int(torch.searchsorted(chance.cumsum(0), draw * float(chance.sum())).clamp(max=len(chance) - 1))


def lloyd(gram: Tensor, nearest: Tensor, k: int, iterations: int) -> tuple[float, Tensor]:
    """(intra-cluster distance, assignment) of Lloyd's iteration from an assignment; the lowest number wins ties."""
    distance, changed = gram.new_empty(k, len(gram)), torch.ones(k, dtype=torch.bool)
    for _ in range(max(1, iterations)):
        renew_distances(distance, gram, nearest, changed)
        last, (least, nearest) = nearest, distance.min(0)
        if not bool((moved := nearest != last).any()):
            break
        changed = between(last[moved], nearest[moved], k)
    return float(least.clamp(min=0).sum()), nearest


def renew_distances(distance: Tensor, gram: Tensor, nearest: Tensor, changed: Tensor) -> None:
    """Squared distances (centers, rows) from the means of a partition, in place, where it has changed.

    `changed`: the centers, (centers,) bool, that have won or lost rows since; what is known of the others stays.
    """
    k, n, own = len(distance), len(gram), gram.diag()
    if k <= FEW:
        belongs = torch.nn.functional.one_hot(nearest, k).double()
        count = belongs.sum(0)
        mean = gram @ belongs / count.clamp(min=1)
        within = torch.where(count > 0, (belongs * mean).sum(0) / count.clamp(min=1), math.inf)
        distance.copy_(mean.mul_(-2).add_(own[:, None]).add_(within).T)
        return
    # A product with so many columns of zeros would take K times as long as adding up rows.
    at, who = changed.nonzero()[:, 0], changed[nearest].nonzero()[:, 0]
    who = who[nearest[who].argsort(stable=True)]  # center by center, whose sum then stays in the cache
    step = max(1, NUMBERS // (4 * n))
    distance.index_fill_(0, at, 0)
    for some in torch.split(who, step):
        distance.index_add_(0, nearest[some], gram.index_select(0, some))
    here, size = nearest[who], torch.bincount(nearest, minlength=k).double()
    count = size.clamp(min=1)
    within = torch.zeros(k, dtype=torch.float64).index_add_(0, here, distance[here, who] / count[here]) / count
    within = torch.where(size > 0, within, math.inf)
    for some in torch.split(at, step):
        part = distance.index_select(0, some).div_(count[some, None])
        distance.index_copy_(0, some, part.mul_(-2).add_(own).add_(within[some, None]))


def sampled(cohort: Cohort, k: int) -> Tensor | None:
    """The rows that seeds are tried on, in rising order; None: all of them."""
    if len(cohort) <= MANY:
        return None
    order = uniform(*cohort.key, "sample", cohort.index).argsort(stable=True)
    return order[: min(MANY, max(SAMPLE, 4 * k))].sort().values


@dataclass(frozen=True, eq=False)
class ManyRows:
    """Rows too many for their inner products: clustered by passes over them, some at a time in float64."""

    rows: Tensor  # (rows, width)
    columns: Spans = None
    origin: Tensor | None = None  # (width,), what they are taken from
    unit: bool = False  # of length one: only directions count

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """All rows once, on the host."""
        width = self.rows.shape[1]
        at = None if self.columns is None else torch.cat([torch.arange(*span) for span in self.columns])
        step = max(1, NUMBERS // max(1, width))
        for first in range(0, len(self.rows), step):
            part = self.rows[first : first + step].double()
            part = part if self.origin is None else part - self.origin.double()
            part = (part if at is None else part[:, at.to(part.device)]).cpu()
            norm = part.norm(dim=1, keepdim=True) if self.unit else torch.ones(1, 1)
            yield slice(first, first + len(part)), part / torch.where(norm > 0, norm, 1.0).to(part)

    def means(self, place: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(rows of every center, their mean) of a partition; a place of -1 is nowhere."""
        sums = None
        for here, part in self.parts():
            sums = part.new_zeros(k + 1, part.shape[1]) if sums is None else sums
            sums.index_add_(0, place[here].remainder(k + 1), part)
        assert sums is not None
        count = torch.bincount(place[place >= 0], minlength=k).double()
        return count, sums[:k] / count.clamp(min=1)[:, None]

    def spread(self, place: Tensor, k: int) -> float:
        """The intra-cluster distance of a partition: sum_i |x_i|^2 - sum_k n_k |mean_k|^2."""
        count, mean = self.means(place, k)
        own = sum(float(part.square().sum()) for _, part in self.parts())
        return max(0.0, own - float((count * mean.square().sum(1)).sum()))

    def lloyd(self, some: Tensor, place: Tensor, k: int, iterations: int) -> tuple[float, Tensor]:
        """(intra-cluster distance, assignment) of all rows, from the places of some; the lowest number wins ties."""
        nearest = torch.full((len(self.rows),), -1)
        nearest[some] = place
        total = math.inf
        for _ in range(max(1, iterations)):
            count, mean = self.means(nearest, k)
            own = torch.where(count > 0, mean.square().sum(1), math.inf)
            last, nearest, total = nearest, torch.empty_like(nearest), 0.0
            for here, part in self.parts():
                for first in range(0, len(part), step := max(1, NUMBERS // k)):
                    x = part[first : first + step]
                    least, to = (own - 2 * x @ mean.T).min(1)
                    nearest[here.start + first : here.start + first + len(x)] = to
                    total += float((x.square().sum(1) + least).clamp(min=0).sum())
            if bool((nearest == last).all()):
                break
        return total, nearest


@dataclass(frozen=True)
class TrimmedSeeding(OneBecomesMany):
    """Trimmed k-means of what all clients have learned from a common start, once (Ghosh et al.'s second stage).

        r_i  <-  argmin_k |w_i - c_k|^2               the lowest number winning ties
        c_k  <-  rule of the w_i with r_i = k         a trimmed mean in place of the mean

    `iterations` of both from K rows, `restarts` times; the partition with the smallest intra-cluster distance is kept.
    The floor(outliers n) rows farthest from all centers count neither in that distance nor as seeds, so that a few
    rows far out do not get centers of their own. A center that loses its rows stays where it was.

    With `rule` the mean, outliers = 0 and iterations to the end it is `Seeding`.
    """

    restarts: int = 10
    iterations: int = 8
    rule: Aggregate = field(kw_only=True)
    outliers: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, iterations="[1, 10000]; try 8", outliers="[0, 0.5); try 0.1")

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """The best of several clusterings."""
        rows = sent["model"]
        if not len(rows):
            return {"assignment": torch.zeros(0, dtype=torch.int64)}
        runs = [self.trimmed(rows, cohort, restart) for restart in range(self.restarts)]
        return {"assignment": min(runs, key=lambda run: run[0])[1]}

    def trimmed(self, rows: Tensor, cohort: Cohort, restart: int) -> tuple[float, Tensor]:
        """(intra-cluster distance, assignment) of one run."""
        distance = self._seeds(rows, uniform(*cohort.key, "seeding", restart, torch.arange(self.k)).tolist())
        (least, nearest), changed = distance.min(0), torch.ones(self.k, dtype=torch.bool)
        for _ in range(self.iterations):
            size, order = torch.bincount(nearest, minlength=self.k), nearest.argsort(stable=True).to(rows.device)
            members, at_once = torch.split(order, size.tolist()), max(1, NUMBERS // max(rows.shape))
            for some in torch.split((changed & (size > 0)).nonzero()[:, 0], at_once):  # the others are where they were
                means = torch.stack([self.rule.of(rows[members[center]]) for center in some.tolist()])
                distance[some] = distances_as_they_are(rows, means)
            last, (least, nearest) = nearest, distance.min(0)
            if not bool((moved := nearest != last).any()):
                break
            changed = between(last[moved], nearest[moved], self.k)
        return float(self._inner(least).sum()), nearest

    def _seeds(self, rows: Tensor, draws: list[float]) -> Tensor:
        """Squared distances (k, rows) to k rows; infinite where there are fewer different rows than centers."""
        out = torch.full((self.k, len(rows)), math.inf, dtype=torch.float64)
        far, chance = out.new_full((len(rows),), math.inf), out.new_ones(len(rows))
        for center, draw in enumerate(draws):
            if center:
                chance = self._inner(far) if self.seeding == "kmeans++" else (far > 0).double()
                if not bool(chance.sum() > 0):
                    break
            at = drawn(chance, draw)
            out[center] = distances_as_they_are(rows, rows[at : at + 1])[0]
            far = torch.minimum(far, out[center])
        return out

    def _inner(self, distance: Tensor) -> Tensor:
        """Distances (rows,) with the farthest floor(outliers n) put to zero, of equal ones the first."""
        out, n = distance.clone(), len(distance)
        cut = int(self.outliers * n + 1e-9)  # 0.29 of 100 are 29
        if not cut:
            return out
        last = distance.kthvalue(n - cut + 1).values  # the nearest of the farthest
        equal = (distance == last).nonzero()[:, 0]
        out[distance > last] = 0
        out[equal[: cut - int((distance > last).sum())]] = 0
        return out


def between(before: Tensor, after: Tensor, k: int) -> Tensor:
    """Which of K centers have lost or won a row, (k,) bool, where rows moved from these centers to those."""
    out = torch.zeros(k, dtype=torch.bool)
    out[before] = out[after] = True
    return out


def distances_as_they_are(rows: Tensor, centers: Tensor) -> Tensor:
    """Squared distances (centers, rows), float64 on the host, over pieces of the width.

    Differences are squared as they are: an expanded square would cancel beside a row that is far out.
    """

    def part(piece: slice) -> Tensor:
        a, b = centers[:, piece].double(), rows[:, piece].double()
        return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square_()

    out = torch.zeros(len(centers), len(rows), dtype=torch.float64, device=rows.device)
    for found in each(part, pieces(rows), rows):
        out += found
    return out.cpu()
