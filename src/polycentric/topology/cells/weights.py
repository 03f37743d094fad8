"""Edges with cells that may overlap: FedMes's, those that meet in a cloud, and those with several models each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...errors import require, within
from ...stacks import Cohort, Links, Mixing, Stacks
from ...stacks.all_rows import inner_products, squared_distances
from ..base import Picture, Topology, Wires
from ..clusters.seeding import Seeding
from .consensus import edge_summary
from .coverage import Coverage, Geometry, covered
from .tables import geometry


@dataclass(frozen=True)
class OverCells(Topology):
    """Centers stand at edges, and a client talks to the edges that cover it in the round.

        up    gamma_k^(i) ~ n_k in the cell alone, bridge * n_k in an overlap; every center divides by its sum
        down  w_k = sum_i N_i w^(i) / sum_i N_i over the edges that cover k, N_i the data its center there heard last

    Symbols: bridge = alpha_v / alpha_u; cells = a geometry, or a table (edges, clients) of 0/1.
    """

    cells: Geometry | Tensor
    bridge: float = 1.0
    models: ClassVar[int] = 1  # of every edge: center i K + r is model r of edge i
    cloud_every: ClassVar[int | None] = None  # rounds between meetings in a cloud; 0: never; None: there is no cloud

    def __post_init__(self) -> None:
        within(self, bridge="> 0; try 1")
        object.__setattr__(self, "cells", geometry(self.cells))

    @property
    def geometry(self) -> Geometry:
        """Who is covered by whom, in every round."""
        assert isinstance(self.cells, Geometry)
        return self.cells

    @property
    def n_edges(self) -> int:
        """How many edges."""
        return self.geometry.n_edges

    @property
    def wires(self) -> Wires:
        """Edges are near, as far as the map says, and may meet a cloud."""
        return EdgeWires(geometry=self.geometry, models=self.models, every=self.cloud_every or 0)

    def cells_at(self, cohort: Cohort) -> Coverage:
        """The coverage in a cohort's round."""
        return covered(self.geometry, cohort.n_clients, cohort.seed, cohort.round)

    def links(self, memory: Stacks, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """(center, position in the cohort) of every pair that talks."""
        return self.cells_at(cohort).links(cohort.index)

    def n_centers(self, n_clients: int) -> int:
        """One for each edge, or K."""
        if not self.geometry.drawn:
            covered(self.geometry, n_clients)  # cells that do not fit these clients are refused here
        return self.n_edges * self.models

    def remembers(self, n_clients: int) -> Stacks:
        """The data every center heard last, and, where all work towards one model, whether it has learned anything."""
        none = torch.zeros(self.n_edges * self.models, dtype=torch.float64)
        return {"heard": none, "learned": none.bool()} if self.averages else {"heard": none}

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """The centers a client hears, by the data they heard; equal where none of them heard any."""
        center, client = self.links(memory, cohort)
        n = self.n_edges * self.models
        if len(center) == len(cohort):  # no bridges: everybody hears one center
            return Mixing.gather(center, n)
        heard = memory["heard"].cpu()[center]
        total = torch.zeros(len(cohort), dtype=torch.float64).index_add_(0, client, heard)
        weight = torch.where(total[client] > 0, heard, 1.0)
        return Mixing.sparse(client, center, weight, (len(cohort), n))

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Cells times data size times the weight of a bridge."""
        center, client = self.links(memory, cohort)
        bridges = self.cells_at(cohort).covers[cohort.index] > 1
        weight = torch.where(bridges, self.bridge * cohort.weights, cohort.weights)
        return Mixing.sparse(center, client, weight[client], (self.n_edges * self.models, len(cohort)))

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """Remember how much data every center heard."""
        center, client = self.links(memory, arrived)
        heard = torch.zeros(self.n_edges * self.models, dtype=torch.float64)
        heard.index_add_(0, center, arrived.weights[client])
        learned = {"learned": memory["learned"].cpu() | (heard > 0)} if self.averages else {}
        return memory | {"heard": heard} | learned, centers

    def learned(self, memory: Stacks) -> Tensor | None:
        """Which edges have ever heard anybody."""
        return memory["learned"] if self.averages else None

    def picture(self, memory: Stacks, everyone: Cohort) -> Picture:
        """The cells of the round."""
        cells, n = self.cells_at(everyone), everyone.n_clients
        edge, client = cells.links(everyone.index)
        links = Links(edge, everyone.index[client], torch.ones(len(edge), dtype=torch.float64))
        spots = self.geometry.spots(n, everyone.seed, everyone.round)
        return Picture(links, n, self.n_edges, spots=spots, cloud=bool(self.cloud_every))

    def facts(self, n_clients: int, seed: int = 0) -> dict[str, Any]:
        """Cells, overlaps, and how fast edges agree."""
        return edge_summary(self, n_clients, seed)

    @property
    def plain(self) -> Cells:
        """The same edges with one model each, and nobody above them."""
        return Cells(self.cells, self.bridge)


@dataclass(frozen=True)
class Cells(OverCells):
    """L edges with overlapping cells; a client in several cells is a bridge between them (FedMes).

    Where clients move, the cells are those of the round: who was covered by an edge uploads to it, and whoever comes
    next downloads from the edges that cover it then.

    Reference: Han et al., FedMes: speeding up federated learning with multiple edge servers, IEEE JSAC 2021.
    """

    averages = True

    def words(self, n_clients: int) -> str:
        """Bridges."""
        return f"{self.n_edges} edges, each the mean of the clients it covers; a client in several hears all of them"


@dataclass(frozen=True, kw_only=True)
class EdgeWires(Wires):
    """Edges close to their clients, and perhaps a cloud that they meet every so many rounds."""

    geometry: Geometry
    models: int = 1
    every: int = 0
    near = True

    def machine_of(self, center: Tensor) -> Tensor:
        """All models of an edge stand at it."""
        return center // self.models

    def metres(self, cohort: Cohort, client: Tensor, edge: Tensor, mean: float) -> Tensor | None:
        """As far as on the map, if there is one."""
        return self.geometry.metres_to(edge, client, cohort.n_clients, cohort.seed, cohort.round, mean)

    def meets_cloud(self, round: int) -> bool:
        """At the end of every so many rounds."""
        return self.every > 0 and (round + 1) % self.every == 0


@dataclass(frozen=True)
class TwoLevel(OverCells):
    """Edges average their clients; every `every` rounds a cloud averages the edges (hierarchical).

    At such a round the mixing is the product `cloud @ edge`, the cloud counting edges by the data they heard since they
    last met: one that heard nobody in the last round may have learned in those before. Where no edge heard anybody in
    it, they meet the next time. `every=1` is one star over all clients where no cells overlap (a bridge counts in each
    of its cells); a cloud that never meets (`every=0`) leaves isolated cells.
    """

    every: int = 1
    names: tuple[str, ...] = ("model",)  # stacks the cloud averages
    averages = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.every >= 0, f"TwoLevel.every must be 0 (never) or a number of rounds, got {self.every}; try 5")

    @property
    def cloud_every(self) -> int:  # type: ignore[override]
        """As said."""
        return self.every

    def remembers(self, n_clients: int) -> Stacks:
        """What edges remember, and the data they heard since they met."""
        memory = super().remembers(n_clients)
        return memory | {"since": memory["heard"].clone()}

    def cloud(self, memory: Stacks) -> Mixing:
        """Every edge hears all edges, by the data they heard since they met."""
        return Mixing.dense(memory["since"].cpu().expand(self.n_edges, -1))

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """The cloud's mean, every so many rounds."""
        memory, centers = super().meet(memory, arrived, centers)
        memory |= {"since": memory["since"].cpu() + memory["heard"]}
        if not self.wires.meets_cloud(arrived.round) or not bool(memory["heard"].sum() > 0):
            return memory, centers
        centers = centers | {name: self.cloud(memory) @ centers[name] for name in self.names}
        met = {"since": torch.zeros_like(memory["since"]), "learned": torch.ones_like(memory["learned"])}
        return memory | met, centers

    def words(self, n_clients: int) -> str:
        """Edges, and a cloud."""
        when = f"every {self.every} rounds" if self.every > 1 else "every round" if self.every else "never"
        return f"{self.n_edges} edges, each the mean of the clients it covers; a cloud averages the edges {when}"


@dataclass(frozen=True)
class CellClusters(OverCells):
    """K models at every edge; center i K + r is model r of edge i.

        place  r_k^(i) = argmin_r |w_k - c^(i,r)|^2     at every edge i that covers k, by itself
        up     c^(i,r) <- mean of the w_k with r_k^(i) = r, weighted as in `Cells`
        down   w_k = sum_i N_{i,r} c^(i,r) / sum_i N_{i,r},  r = r_k^(i), over the edges that cover k

    Numbers of different edges name different groups: r = 0 here need not be r = 0 there. Nothing needs them to agree,
    because a bridge mixes, over its edges, the model that is nearest to its own at each; so groups find each other
    through the bridges. `seeds`: the first round, in which every edge clusters what its own clients have learned.
    `frozen`: nobody goes to another model (`AnchoredCells` finds who should).

    Reduces to `Cells` with K = 1, and to `Clusters(K, weighted=True)` with one edge.
    """

    k: int = 2
    seeds: bool = False
    restarts: int = 20
    frozen: bool = False
    reads_updates = True

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, k=">= 1")
        require(
            not self.geometry.moves,
            "several models at every edge need clients that stay: a client remembers its model at each of its edges, "
            "and a moving client's edges change; leave speed and trace out, or use models=1",
        )

    @property
    def whole(self) -> bool:  # type: ignore[override]
        """Clustering sees everybody at once."""
        return self.seeds

    @property
    def models(self) -> int:  # type: ignore[override]
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
        if self.frozen:
            return {}
        edge, client = self.cells_at(cohort).links(cohort.index)
        if self.seeds:
            chosen = self._clustered(edge, client, cohort, sent["model"])
        else:
            distance = squared_distances(sent["model"], centers["model"]).cpu()
            distance = distance.view(len(cohort), self.n_edges, self.k)
            chosen = distance[client, edge].argmin(1)
        return self.chosen(memory, cohort, client, chosen)

    def chosen(self, memory: Stacks, cohort: Cohort, client: Tensor, model: Tensor) -> Stacks:
        """A model for every pair of an edge and a client, in the order of `links`."""
        choice = memory["choice"].cpu()[cohort.index].clone()
        choice[client, rank_of(client)] = model
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
            f"a client is covered by {int(cells.covers.max())} edges; several models at every edge allow {MOST}: "
            "use models=1 or smaller cells",
        )
        return cells

    def links(self, memory: Stacks, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """A client and its model at each of its edges."""
        edge, client = super().links(memory, cohort)
        choice = memory["choice"].cpu()[cohort.index][client, rank_of(client)]
        return edge * self.k + choice, client

    def words(self, n_clients: int) -> str:
        """Several models an edge."""
        how = "stays with one" if self.frozen else "takes the nearest"
        return f"{self.n_edges} edges with {self.k} models each; a client {how} wherever it is covered"


MOST = 8  # edges of one client


def rank_of(client: Tensor) -> Tensor:
    """0, 1, ... within every client; clients stand together."""
    count = torch.bincount(client)
    return torch.arange(len(client)) - (count.cumsum(0) - count)[client]
