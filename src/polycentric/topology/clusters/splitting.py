"""Centers that split: a cluster whose members disagree becomes two."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import require, within
from ...stacks import Cohort, Mixing, Stacks
from ...stacks.all_rows import inner_products
from .assignment import NUMBERS, Clustered

Linkage = Literal["single", "complete", "average"]
SHOWN = 120  # clients, at most, whose similarities at every split are kept: more could not be seen


class Bipartition(NamedTuple):
    """Two parts of a cluster, and how alike they still are."""

    second: Tensor  # (members,) bool: who is in the second, smaller part
    cross: float  # the largest similarity between the parts
    gap: float  # the mean similarity of two of the same part, less that of two of different parts


@dataclass(frozen=True)
class Splitting(Clustered):
    """A tree of centers that begins as one (clustered FL): leaves have clients, inner centers are kept as they were.

        D_i  = w_i - c_p                                      update of client i, from the center p it received
        a_ij = <D_i, D_j> / |D_i| |D_j|                       how alike two updates are
        p splits when   |mean_i D_i| < eps1   and   max_i |D_i| > eps2         stationary, but its members are not
                  and   sqrt((1 - a_cross) / 2) > gamma,      a_cross = the largest a_ij across the two parts
                  and   mean a_ij inside the parts - mean a_ij across > gap
                  and   more than two members came, after round t_min

    `relative`: eps1 and eps2 are shares of the largest |D_i| of anybody so far, which depends on neither learning rate
    nor model; otherwise they are norms, as in the paper. The parts are those of the smallest possible a_cross, which
    single linkage finds exactly; `gap` is ours: by chance alone a few clients are less alike than the rest, so that a
    cluster without groups would be peeled. A client that has not moved follows the larger part.

    Both children begin from the model the parent has after the round. The parent stays as a row of the centers that
    nobody is averaged into: the model to fall back to, and the one a client waits at that was absent when its cluster
    split. When such a client next takes part, it trains from there, and goes to the child whose way since
    (c_child - c_p) its update is most alike.

    Of up to 120 clients every split is remembered: `splits` (round, center), and `split_alike`, the a_ij it was decided
    by: zero, on the diagonal too, for those who were not there.
    """

    eps1: float = 0.25
    eps2: float = 0.4
    relative: bool = True
    gamma: float = 0.0
    gap: float = 0.2
    t_min: int = 20
    linkage: Linkage = "single"
    weighted: bool = False
    whole = True
    line = "one center, that splits in two where its clients disagree: how often is decided during the run"

    def __post_init__(self) -> None:
        within(self, eps1=">= 0; try 0.25", eps2=">= 0; try 0.4", gamma="[0, 1]; try 0")
        within(self, t_min=">= 0; try 20", linkage=("single", "complete", "average"))

    def beware(self, rounds: int) -> str:
        """No split where the run is over before `t_min`."""
        if rounds > self.t_min + 1 or not rounds:
            return ""
        return (
            f"no center can split before round {self.t_min + 2} (t_min={self.t_min}), and the run has {rounds}: "
            f"use more rounds, or a smaller t_min such as --set t_min={rounds // 3}"
        )

    def remembers(self, n_clients: int) -> Stacks:
        """Where every client is, which child it goes to, its last |D_i| and |mean D|, every center's parent; splits."""
        alike = {
            "alike": torch.zeros(n_clients, n_clients),  # a_ij where a cluster is about to split
            "splits": torch.zeros(0, 2, dtype=torch.int64),
            "split_alike": torch.zeros(0, n_clients, n_clients),
        }
        return (alike if n_clients <= SHOWN else {}) | {
            "assignment": torch.zeros(n_clients, dtype=torch.int64),
            "child": torch.zeros(n_clients, dtype=torch.int64),  # 0: stays; 1, 2: to the first, second child
            "norm": torch.zeros(n_clients, dtype=torch.float64),
            "mean_norm": torch.zeros(n_clients, dtype=torch.float64),
            "parent": torch.full((1,), -1),
            "scale": torch.zeros(1, dtype=torch.float64),  # the largest |D_i| so far
        }

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """One-hot rows: the client's own center."""
        return Mixing.gather(memory["assignment"].cpu()[cohort.index], len(memory["parent"]))

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """One-hot columns; a center that has split hears nobody any more."""
        place = memory["assignment"].cpu()[cohort.index]
        leaf = torch.ones(len(memory["parent"]), dtype=torch.bool)
        leaf[memory["parent"][memory["parent"] >= 0].cpu()] = False
        return Mixing.scatter(place, len(leaf), self.weights(cohort) * leaf[place])

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """Who goes to which child when the centers meet."""
        at, parent = memory["assignment"].cpu()[cohort.index], memory["parent"].cpu()
        child = torch.zeros(len(cohort), dtype=torch.int64)
        norm, mean_norm = (torch.zeros(len(cohort), dtype=torch.float64) for _ in range(2))
        alike = torch.zeros(len(cohort), cohort.n_clients if "alike" in memory else 0)
        for center in sorted(set(at.tolist())):
            mine = (at == center).nonzero()[:, 0]
            rows, here = sent["model"][mine.to(sent["model"].device)], centers["model"][center]
            if bool((parent == center).any()):  # has split while they were away
                child[mine] = self.ways(rows, centers["model"][(parent == center).to(here.device)], here)
                continue
            products = inner_products(rows, origin=here)
            weight = self.weights(cohort)[mine]
            weight = weight / weight.sum()
            norm[mine] = products.diag().clamp(min=0).sqrt()
            mean_norm[mine] = (weight @ products @ weight).clamp(min=0).sqrt()
            scale = max(float(memory["scale"]), float(norm[mine].max())) if self.relative else 1.0
            if cohort.round > self.t_min and (split := self.split(products, float(mean_norm[mine[0]]), scale)):
                child[mine] = 1 + split.second.long()
                if "alike" in memory:
                    alike[mine[:, None], cohort.index[mine]] = cosines(products).float()
        seen = {"alike": alike} if "alike" in memory else {}
        return {"child": child, "norm": norm, "mean_norm": mean_norm} | seen

    def split(self, products: Tensor, mean: float, scale: float = 1.0) -> Bipartition | None:
        """The two parts of a cluster, if it is to split."""
        norm = products.diag().clamp(min=0).sqrt()
        stationary, torn = mean < self.eps1 * scale, float(norm.max()) > self.eps2 * scale
        moves = norm > 0
        if len(norm) <= 2 or int(moves.sum()) < 2 or not stationary or not torn:
            return None
        found = bipartition(cosines(products)[moves][:, moves], self.linkage)
        if not math.sqrt((1 - found.cross) / 2) > self.gamma or not found.gap > self.gap:
            return None
        second = torch.zeros(len(norm), dtype=torch.bool)  # who has not moved follows the larger part
        second[moves] = found.second
        return Bipartition(second, found.cross, found.gap)

    @staticmethod
    def ways(rows: Tensor, children: Tensor, here: Tensor) -> Tensor:
        """For each of some late rows: 1 or 2, the child that went its way since the split; 0 if that cannot be told."""
        products = inner_products(torch.cat([children, rows]), origin=here)
        alike = cosines(products)[2:, :2]
        return torch.where((alike == 0).all(1), 0, 1 + (alike[:, 1] > alike[:, 0]).long())

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """Splits happen: two rows more for each, copies of the parent; who was noted moves."""
        before, parent = memory["assignment"].cpu(), memory["parent"].cpu()
        place, child = before.clone(), torch.zeros_like(before)
        child[arrived.index] = memory["child"].cpu()[arrived.index]
        for center in sorted(set(before[child > 0].tolist())):
            moves = (before == center) & (child > 0)
            if not bool((parent == center).any()):
                parent = torch.cat([parent, torch.tensor([center, center])])
                centers = {name: torch.cat([rows, rows[[center, center]]]) for name, rows in centers.items()}
                memory = memory | self.recorded(memory, arrived.round, center, moves)
            place[moves] = (parent == center).nonzero()[:, 0][child[moves] - 1]
        norm = memory["norm"].cpu()[arrived.index]
        scale = torch.maximum(memory["scale"].cpu(), norm.max()) if len(norm) else memory["scale"]
        new = {"assignment": place, "parent": parent, "child": torch.zeros_like(child), "scale": scale}
        return memory | new, centers

    def tables(self, memory: Stacks) -> dict[str, Stacks]:
        """The splits there were, how alike clients were then, and the tree of centers."""
        if not len(memory.get("splits", ())):
            return {}
        kept = ("splits", "split_alike", "parent", "assignment")
        return {"splits.safetensors": {name: memory[name] for name in kept}}

    @staticmethod
    def recorded(memory: Stacks, round: int, center: int, moves: Tensor) -> Stacks:
        """One split more: when, of which center, and how alike its members were."""
        if "alike" not in memory:
            return {}
        alike = torch.where(moves[:, None] & moves, memory["alike"].cpu(), 0)
        return {
            "splits": torch.cat([memory["splits"].cpu(), torch.tensor([[round, center]])]),
            "split_alike": torch.cat([memory["split_alike"].cpu(), alike[None]]),
        }


def bipartition(similarity: Tensor, linkage: Linkage = "single") -> Bipartition:
    """Two parts of n >= 2 things by their similarities (n, n), the second the smaller.

    Single linkage stopped at two parts gives the smallest possible largest similarity across them (it cuts the
    lightest edge of the maximum spanning tree); complete and average linkage do not.

    >>> bipartition(torch.tensor([[1.0, 0.5, -1.0], [0.5, 1.0, -0.5], [-1.0, -0.5, 1.0]]))
    Bipartition(second=tensor([False, False,  True]), cross=-0.5, gap=1.25)
    """
    from scipy.cluster.hierarchy import linkage as merged
    from scipy.spatial.distance import squareform

    n = len(similarity)
    require(n >= 2, f"a bipartition needs at least two clients, got {n}")
    distance = (1 - similarity.double().cpu()).clamp(min=0).numpy()
    distance = (distance + distance.T) / 2
    np.fill_diagonal(distance, 0)
    tree = merged(squareform(distance, checks=False), linkage)
    second, todo = torch.zeros(n, dtype=torch.bool), [int(tree[-1, 1])]
    while todo:  # all below the last merge's second branch
        branch = todo.pop()
        if branch < n:
            second[branch] = True
        else:
            todo += [int(below) for below in tree[branch - n, :2]]
    # Which part is called the second does not depend on the order: the smaller one, then the one less alike inside.
    size = int(second.sum())
    close = [float(similarity[part][:, part].mean()) for part in (~second, second)]
    if (n - size, close[0]) < (size, close[1]):
        second = ~second
    across = similarity[~second][:, second]
    pairs = (second[:, None] == second).fill_diagonal_(False)
    inside = float(similarity[pairs].mean()) if bool(pairs.any()) else 0.0
    return Bipartition(second, float(across.max()), inside - float(across.mean()))


def similarities(updates: Tensor) -> Tensor:
    """Cosines between rows (n, width), float64 (n, n) on the host; zero for a row of zeros, one on the diagonal."""
    return cosines(inner_products(updates, origin=torch.zeros_like(updates[0])))


def cosines(products: Tensor) -> Tensor:
    """Inner products as cosines; zero with a row of zeros."""
    norm = products.diag().clamp(min=0).sqrt()
    alike, step = torch.empty_like(products), max(1, NUMBERS // max(1, len(products)))
    for here in (slice(first, first + step) for first in range(0, len(products), step)):
        by = norm[here, None] * norm
        alike[here] = torch.where(by > 0, products[here] / torch.where(by > 0, by, 1.0), 0.0).clamp_(-1, 1)
    return alike.fill_diagonal_(1.0)
