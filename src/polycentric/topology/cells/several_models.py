"""Several models at every edge: clients find theirs at each edge that covers them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import require
from ...stacks.cohort import Cohort
from ...stacks.mixing import Mixing
from ...stacks.stack import Stacks
from ..base import Topology
from ..clusters.distances import inner_products, squared_distances
from ..clusters.seeding import Seeding
from .coverage import Coverage
from .weights import Cells


@dataclass(frozen=True)
class CellClusters(Topology):
    """K models at every edge of `cells`; center i K + r is model r of edge i.

        place  r_k^(i) = argmin_r |w_k - c^(i,r)|^2     at every edge i that covers k, by itself
        up     c^(i,r) <- mean of the w_k with r_k^(i) = r, weighted as in `Cells`
        down   w_k = sum_i N_{i,r} c^(i,r) / sum_i N_{i,r},  r = r_k^(i), over the edges that cover k

    Numbers of different edges name different groups: r = 0 here need not be r = 0 there. Nothing needs them to agree,
    because a bridge mixes, over its edges, the model that is nearest to its own at each; so groups find each other
    through the bridges. `seeds`: the first round, in which every edge clusters what its own clients have learned.

    Reduces to `Cells` with K = 1, and to `Clusters(K, weighted=True)` with one edge.
    """

    cells: Cells
    k: int
    seeds: bool = False
    restarts: int = 20
    near = True

    def __post_init__(self) -> None:
        require(self.k >= 1, f"CellClusters.k must be at least 1, got {self.k}")
        require(
            not self.cells.geometry.moves,
            "several models at every edge need clients that stay: a client remembers its model at each of its edges, "
            "and a walker's edges change; leave speed and trace out, or use one model",
        )

    @property
    def whole(self) -> bool:  # type: ignore[override]
        """Clustering sees everybody at once."""
        return self.seeds

    def n_centers(self, n_clients: int) -> int:
        """K for each edge."""
        return self.cells.n_centers(n_clients) * self.k

    def edge_of(self, center: Tensor) -> Tensor:
        """The K models of an edge stand at it."""
        return center // self.k

    def metres(self, cohort: Cohort, client: Tensor, edge: Tensor, mean: float) -> Tensor | None:
        """As the cells."""
        return self.cells.metres(cohort, client, edge, mean)

    def remembers(self, n_clients: int) -> Stacks:
        """The data every center heard last, and the model of every client at the first, second, ... of its edges.

        (clients, L) would be the simple table; a client's own edges, at most four or so, are all it needs.
        """
        return {
            "heard": torch.zeros(self.cells.n_edges * self.k, dtype=torch.float64),
            "choice": torch.arange(n_clients)[:, None].expand(-1, self.most).clone() % self.k,
        }

    @property
    def most(self) -> int:
        """Room for so many edges a client."""
        return min(self.cells.n_edges, MOST)

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """The client's model at each of its edges, by the data that center heard."""
        center, client = self._links(memory, cohort)
        heard = memory["heard"].cpu()[center]
        total = torch.zeros(len(cohort), dtype=torch.float64).index_add_(0, client, heard)
        weight = torch.where(total[client] > 0, heard, 1.0)
        return Mixing.sparse(client, center, weight, (len(cohort), self.cells.n_edges * self.k))

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """The nearest model at each of a client's edges; in the first round, every edge's clustering."""
        edge, client = self._covered(cohort).links(cohort.index)
        if self.seeds:
            chosen = self._clustered(edge, client, cohort, sent["model"])
        else:
            distance = (
                squared_distances(sent["model"], centers["model"]).cpu().view(len(cohort), self.cells.n_edges, self.k)
            )
            chosen = distance[client, edge].argmin(1)
        choice = memory["choice"].cpu()[cohort.index].clone()
        choice[client, _rank(client)] = chosen
        return {"choice": choice}

    def _clustered(self, edge: Tensor, client: Tensor, cohort: Cohort, rows: Tensor) -> Tensor:
        gram, out = inner_products(rows), torch.zeros_like(client)
        seeding = Seeding(self.k, self.restarts)
        for e in range(self.cells.n_edges):
            mine = (edge == e).nonzero()[:, 0]
            if len(mine):
                inside = gram[client[mine]][:, client[mine]]
                runs = [seeding.lloyd(inside, cohort, restart) for restart in range(self.restarts)]
                out[mine] = min(runs, key=lambda run: run[0])[1]
        return out

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """As the cells, to the chosen model of every edge."""
        center, client = self._links(memory, cohort)
        bridges = self._covered(cohort).covers[cohort.index] > 1
        weight = torch.where(bridges, self.cells.bridge * cohort.weights, cohort.weights)
        return Mixing.sparse(center, client, weight[client], (self.cells.n_edges * self.k, len(cohort)))

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """Remember how much data every center heard."""
        center, client = self._links(memory, arrived)
        heard = torch.zeros(self.cells.n_edges * self.k, dtype=torch.float64)
        return memory | {"heard": heard.index_add_(0, center, arrived.weights[client])}, centers

    def _covered(self, cohort: Cohort) -> Coverage:
        cells = self.cells.cells_at(cohort)
        require(
            int(cells.covers.max()) <= self.most,
            f"a client is covered by {int(cells.covers.max())} edges; several models at every edge allow {MOST}",
        )
        return cells

    def _links(self, memory: Stacks, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """(center, position in the cohort) of every pair that talks."""
        edge, client = self._covered(cohort).links(cohort.index)
        choice = memory["choice"].cpu()[cohort.index][client, _rank(client)]
        return edge * self.k + choice, client


MOST = 8  # edges of one client


def _rank(client: Tensor) -> Tensor:
    """0, 1, ... within every client; clients stand together."""
    count = torch.bincount(client)
    return torch.arange(len(client)) - (count.cumsum(0) - count)[client]
