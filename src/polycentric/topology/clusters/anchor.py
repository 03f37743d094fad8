"""Who belongs together, found anew while centers learn: by updates of all clients from one common model.

    anchor:   a    =  mean of the centers                                     one model comes down, one goes up
    update:   D_i  =  w_i - a,        w_i what client i learns from a
    E-step:   r    <- the partition of the D_i into K groups with the smallest intra-cluster distance, among Lloyd's
                      iterations from the present groups and from `restarts` seeds
    labels:   of the new groups, those under which most clients stay where they are

A client that trains from its own center stays nearest to it, whatever the others are like: distances to centers cannot
mend a wrong group. Updates from one model can: they are apart where clients want different things, wherever each of
them is now. With cosines only directions count, not how much data a client has.

Where only some clients come to a matching, the others may count by the update they sent last (`absent="last"`), from
whatever model it was; they stay where they are until they come. `match_age` is how many rounds ago those were.

Reduces to:  FeSEM's clustering of round 0 (`Seeding`) where there are no groups yet and all centers are one model.
Near it:     updates from one model also split clusters in Clustered FL (Sattler et al. 2019), and place a client once
             in FedGroup and FlexCFL (Duan et al. 2021), whose clients migrate by the shift of their own data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...errors import within
from ...stacks import Cohort, Links, Mixing, Stacks
from ...stacks.all_rows import inner_products
from ...stacks.draw import uniform
from ..base import Direction, Wires
from .assignment import ByDistance
from .seeding import FEW, MANY, ManyRows, lloyd, renew_distances, sampled, seeded
from .splitting import cosines

CLEARLY = 1e-6  # of the sum of squares, by which another grouping must be better than the present one


@dataclass(frozen=True)
class Anchored(ByDistance):
    """K centers; clients train from the mean of all, and are grouped by the way they go. Nothing is mixed."""

    restarts: int = 5
    by: Literal["cosine", "distance"] = "cosine"
    iterations: int = 100
    whole = True

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, restarts=">= 0; try 5", by=("cosine", "distance"))

    def n_centers(self, n_clients: int) -> int:
        """K."""
        return self.k

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """The mean of the centers, for everybody."""
        n, k = len(cohort), self.k
        client, center = torch.arange(n).repeat_interleave(k), torch.arange(k).repeat(n)
        return Mixing.sparse(client, center, torch.full((n * k,), 1 / k, dtype=torch.float64), (n, k))

    @property
    def wires(self) -> Wires:
        """The centers are on one machine, which sends one model."""
        return OneModel()

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """The best grouping of the updates, under the labels that the fewest clients must change."""
        if len(cohort) > MANY:
            return self.place_many(memory, cohort, centers, sent)
        n, anchor = len(cohort), centers["model"].mean(0, dtype=torch.float64)
        if not n:  # nobody's answer was finite
            return {}
        rows, who, note = sent["model"], cohort.index, dict[str, Tensor]()
        if self.absent == "last":
            away = memory["way_round"].cpu() >= 0
            away[who] = False
            note = {"way": (rows.double() - anchor).to(rows), "way_round": torch.full((n,), cohort.round)}
            old = memory["way"][away.to(memory["way"].device)].to(rows)
            rows, who = torch.cat([note["way"], old]), torch.cat([who, away.nonzero()[:, 0]])
            anchor = torch.zeros_like(anchor)
        gram = self.alike(rows, anchor)
        here = memory["assignment"].cpu()[who]
        draws = [uniform(*cohort.key, "anchor", restart, torch.arange(self.k)) for restart in range(self.restarts)]
        total, found = best_groups(gram, here, self.k, draws, self.iterations)
        each = torch.full((n,), total / len(who), dtype=torch.float64)
        return {"distance": each} | note | self.placed(memory, cohort, found[:n])

    def alike(self, rows: Tensor, anchor: Tensor) -> Tensor:
        """Inner products of updates from the anchor, or their cosines; what overflows has no direction."""
        products = inner_products(rows, self.spans, origin=anchor)
        return (cosines(products) if self.by == "cosine" else products).nan_to_num_(nan=0.0)

    def remembers(self, n_clients: int) -> Stacks:
        """With absent="last", also everybody's last update, and when it was."""
        memory = super().remembers(n_clients)
        if self.absent == "out":
            return memory
        fit = self._fit("absent='last' needs to know how wide a model is")
        way = torch.zeros(n_clients, fit.width, dtype=fit.dtype)
        return memory | {"way": way, "way_round": torch.full((n_clients,), -1)}

    def place_many(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """The same where there are too many for their inner products: seeds are tried on some, as in `Seeding`."""
        anchor, here = centers["model"].mean(0, dtype=torch.float64), memory["assignment"].cpu()[cohort.index]
        some = sampled(cohort, self.k)
        assert some is not None
        gram = self.alike(sent["model"][some.to(sent["model"].device)], anchor)
        draws = [uniform(*cohort.key, "anchor", restart, torch.arange(self.k)) for restart in range(self.restarts)]
        starts = [here[some], *(seeded(gram, each, "kmeans++") for each in draws)]
        _, best = min((lloyd(gram, start, self.k, self.iterations) for start in starts), key=lambda run: run[0])
        rows = ManyRows(sent["model"], self.spans, anchor, unit=self.by == "cosine")
        total, found = rows.lloyd(some, best, self.k, self.iterations)
        before = rows.spread(here, self.k)
        if not total < before - CLEARLY * sum(float(part.square().sum()) for _, part in rows.parts()):
            total, found = before, here
        each = torch.full((len(cohort),), total / len(cohort), dtype=torch.float64)
        return {"distance": each} | self.placed(memory, cohort, relabelled(found, here, self.k))

    def words(self, n_clients: int) -> str:
        """Who is grouped by what."""
        return f"{min(self.k, n_clients)} centers; clients are grouped by their updates from the mean of all centers"


def best_groups(gram: Tensor, here: Tensor, k: int, draws: Sequence[Tensor], iterations: int) -> tuple[float, Tensor]:
    """(intra-cluster distance, groups) of the best clustering of rows with these inner products (n, n).

    Lloyd's iterations from the present groups `here` and from seeds by every one of `draws`. The present ones stay
    unless others are clearly better; those have the labels that most agree with them.
    """
    starts = [here, *(seeded(gram, each, "kmeans++") for each in draws)]
    total, found = min((lloyd(gram, start, k, iterations) for start in starts), key=lambda run: run[0])
    if not total < (now := spread(gram, here, k)) - CLEARLY * float(gram.diag().sum()):
        return now, here  # nobody moves for a rounding
    return total, relabelled(found, here, k)


def spread(gram: Tensor, place: Tensor, k: int) -> float:
    """The intra-cluster distance of a partition: sum_i G_ii - sum_k 1/n_k sum_{i,j in k} G_ij."""
    if k > FEW:
        distance = gram.new_empty(k, len(gram))
        renew_distances(distance, gram, place, torch.ones(k, dtype=torch.bool))
        return float(distance[place, torch.arange(len(gram))].clamp(min=0).sum())
    belongs = torch.nn.functional.one_hot(place, k).double()
    within = (belongs * (gram @ belongs)).sum(0) / belongs.sum(0).clamp(min=1)
    return float((gram.diag().sum() - within.sum()).clamp(min=0))


@dataclass(frozen=True)
class OneModel(Wires):
    """The mean of all centers is sent, not the centers."""

    def messages(self, way: Direction, memory: Stacks, cohort: Cohort, name: str, mixing: Mixing, width: int) -> Links:
        """A row for every client; up, a row on every link."""
        if way == "up":
            return super().messages(way, memory, cohort, name, mixing, width)
        every = torch.arange(len(cohort))
        return Links(every, torch.zeros_like(every), torch.full((len(every),), width, dtype=torch.float64))


def relabelled(found: Tensor, before: Tensor, k: int) -> Tensor:
    """A partition under the labels of another that most agree with it.

    >>> relabelled(torch.tensor([0, 0, 1, 1, 2]), torch.tensor([2, 2, 0, 1, 1]), 3)
    tensor([2, 2, 0, 0, 1])
    """
    from scipy.optimize import linear_sum_assignment

    both = torch.zeros(k, k, dtype=torch.int64).index_put_((found, before), torch.ones_like(found), accumulate=True)
    old, new = linear_sum_assignment(-both.numpy())
    label = torch.empty(k, dtype=torch.int64)
    label[torch.from_numpy(old)] = torch.from_numpy(new)
    return label[found]
