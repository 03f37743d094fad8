"""Several models at every edge, and who belongs to which found anew: by updates from one model of the edges' own.

    start   a_k  =  mean over the edges that cover k, and over their K models
    update  D_k  =  w_k - a_k,      w_k what client k learns from there
    at every edge, by itself:  the best K groups of the D_k of its clients, as `Anchored` finds them

There is no cloud that could hand out one model for all. Clients of one edge alone begin from the same one; a client in
an overlap begins from the mean of its edges, and its update is compared with theirs all the same.

Reduces to `Anchored(K)` with one edge.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...stacks import Cohort, Links, Mixing, Stacks
from ...stacks.all_rows import inner_products
from ...stacks.draw import uniform
from ..base import Direction, Wires
from ..clusters.anchor import best_groups
from ..clusters.splitting import cosines
from .weights import CellClusters, EdgeWires, rank_of


@dataclass(frozen=True, kw_only=True)
class MeanOfEdge(EdgeWires):
    """An edge sends the mean of its models, not the models."""

    def messages(self, way: Direction, memory: Stacks, cohort: Cohort, name: str, mixing: Mixing, width: int) -> Links:
        """A row from every edge."""
        links = super().messages(way, memory, cohort, name, mixing, width)
        once = links.sender % self.models == 0
        return Links(*(part[once] for part in links)) if way == "down" else links


@dataclass(frozen=True)
class AnchoredCells(CellClusters):
    """K models at every edge; clients train from the mean of them, and are grouped by the way they go."""

    restarts: int = 5
    iterations: int = 100
    whole = True

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """The mean of all models of a client's edges."""
        edge, client = self.cells_at(cohort).links(cohort.index)
        center = (edge[:, None] * self.k + torch.arange(self.k)).flatten()
        ones = torch.ones(len(center), dtype=torch.float64)  # shares of a mean: all the same
        return Mixing.sparse(client.repeat_interleave(self.k), center, ones, (len(cohort), self.n_edges * self.k))

    @property
    def wires(self) -> Wires:
        """A model comes down from every edge, the mean of its own."""
        return MeanOfEdge(geometry=self.geometry, models=self.k)

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """Every edge's grouping of its clients."""
        edge, client = self.cells_at(cohort).links(cohort.index)
        start = self.down(memory, cohort, "model") @ centers["model"]
        rows = sent["model"].double() - start.double()
        gram = (
            cosines(inner_products(rows, origin=torch.zeros_like(rows[0]))).nan_to_num(nan=0.0) if len(rows) else rows
        )
        here = memory["choice"].cpu()[cohort.index][client, rank_of(client)]
        draws = [uniform(*cohort.key, "anchor", restart, torch.arange(self.k)) for restart in range(self.restarts)]
        model = here.clone()
        for e in torch.unique(edge).tolist():
            mine = (edge == e).nonzero()[:, 0]
            inside = gram[client[mine]][:, client[mine]]
            model[mine] = best_groups(inside, here[mine], self.k, draws, self.iterations)[1]
        return self.chosen(memory, cohort, client, model)

    def words(self, n_clients: int) -> str:
        """Who is grouped by what."""
        return (
            f"{self.n_edges} edges with {self.k} models each; each groups its clients by their updates from their mean"
        )
