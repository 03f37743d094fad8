"""Several models at every edge: clients find theirs at each edge that covers them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import require
from ...stacks.cohort import Cohort
from ...stacks.stack import Stacks
from ..clusters.distances import inner_products, squared_distances
from ..clusters.seeding import Seeding
from .coverage import Coverage
from .weights import OverCells


@dataclass(frozen=True)
class CellClusters(OverCells):
    """K models at every edge; center i K + r is model r of edge i.

        place  r_k^(i) = argmin_r |w_k - c^(i,r)|^2     at every edge i that covers k, by itself
        up     c^(i,r) <- mean of the w_k with r_k^(i) = r, weighted as in `Cells`
        down   w_k = sum_i N_{i,r} c^(i,r) / sum_i N_{i,r},  r = r_k^(i), over the edges that cover k

    Numbers of different edges name different groups: r = 0 here need not be r = 0 there. Nothing needs them to agree,
    because a bridge mixes, over its edges, the model that is nearest to its own at each; so groups find each other
    through the bridges. `seeds`: the first round, in which every edge clusters what its own clients have learned.

    Reduces to `Cells` with K = 1, and to `Clusters(K, weighted=True)` with one edge.
    """

    k: int = 2
    seeds: bool = False
    restarts: int = 20
    reads_updates = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.k >= 1, f"CellClusters.k must be at least 1, got {self.k}")
        require(
            not self.geometry.moves,
            "several models at every edge need clients that stay: a client remembers its model at each of its edges, "
            "and a walker's edges change; leave speed and trace out, or use one model",
        )

    @property
    def whole(self) -> bool:  # type: ignore[override]
        """Clustering sees everybody at once."""
        return self.seeds

    @property
    def models(self) -> int:
        """K."""
        return self.k

    def remembers(self, n_clients: int) -> Stacks:
        """The data every center heard last, and the model of every client at the first, second, ... of its edges.

        (clients, L) would be the simple table; a client's own edges, at most four or so, are all it needs.
        """
        choice = torch.arange(n_clients)[:, None].expand(-1, self.most).clone() % self.k
        return super().remembers(n_clients) | {"choice": choice}

    @property
    def most(self) -> int:
        """Room for so many edges a client."""
        return min(self.n_edges, MOST)

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """The nearest model at each of a client's edges; in the first round, every edge's clustering."""
        edge, client = self.cells_at(cohort).links(cohort.index)
        if self.seeds:
            chosen = self._clustered(edge, client, cohort, sent["model"])
        else:
            distance = squared_distances(sent["model"], centers["model"]).cpu()
            distance = distance.view(len(cohort), self.n_edges, self.k)
            chosen = distance[client, edge].argmin(1)
        choice = memory["choice"].cpu()[cohort.index].clone()
        choice[client, _rank(client)] = chosen
        return {"choice": choice}

    def _clustered(self, edge: Tensor, client: Tensor, cohort: Cohort, rows: Tensor) -> Tensor:
        gram, out = inner_products(rows), torch.zeros_like(client)
        seeding = Seeding(self.k, self.restarts)
        for e in range(self.n_edges):
            mine = (edge == e).nonzero()[:, 0]
            if len(mine):
                inside = gram[client[mine]][:, client[mine]]
                runs = [seeding.lloyd(inside, cohort, restart) for restart in range(self.restarts)]
                out[mine] = min(runs, key=lambda run: run[0])[1]
        return out

    def cells_at(self, cohort: Cohort) -> Coverage:
        """The coverage, where no client has more edges than there is room for."""
        cells = super().cells_at(cohort)
        require(
            int(cells.covers.max()) <= self.most,
            f"a client is covered by {int(cells.covers.max())} edges; several models at every edge allow {MOST}",
        )
        return cells

    def links(self, memory: Stacks, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """A client and its model at each of its edges."""
        edge, client = super().links(memory, cohort)
        choice = memory["choice"].cpu()[cohort.index][client, _rank(client)]
        return edge * self.k + choice, client

    def words(self, n_clients: int) -> str:
        """Several models an edge."""
        return (
            f"{self.n_edges} edges with {self.k} models each; a client takes the nearest at every edge that covers it"
        )


MOST = 8  # edges of one client


def _rank(client: Tensor) -> Tensor:
    """0, 1, ... within every client; clients stand together."""
    count = torch.bincount(client)
    return torch.arange(len(client)) - (count.cumsum(0) - count)[client]
