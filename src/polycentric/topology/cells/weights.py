"""Edges with cells that may overlap: what every topology over cells has in common, and FedMes's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import require
from ...stacks.cohort import Cohort
from ...stacks.mixing import Mixing
from ...stacks.stack import Stacks
from ..base import Topology
from ..wires import Wires
from .coverage import Coverage, Geometry, covered
from .geometries import geometry
from .theory import edge_summary


@dataclass(frozen=True)
class OverCells(Topology):
    """Centers stand at edges, and a client talks to the edges that cover it in the round.

        up    gamma_k^(i) ~ n_k in the cell alone, bridge * n_k in an overlap; every center divides by its sum
        down  w_k = sum_i N_i w^(i) / sum_i N_i over the edges that cover k, N_i the data its center there heard last

    Symbols: bridge = alpha_v / alpha_u; cells = a geometry, or a table (edges, clients) of 0/1.
    """

    cells: Geometry | Tensor
    bridge: float = 1.0

    def __post_init__(self) -> None:
        require(self.bridge > 0, f"{type(self).__name__}.bridge must be positive, got {self.bridge}")
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
    def models(self) -> int:
        """Models of every edge: center i K + r is model r of edge i."""
        return 1

    @property
    def cloud_every(self) -> int | None:
        """Rounds between meetings in a cloud above the edges; 0: never; None: there is no cloud."""
        return None

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
        if len(center) == len(cohort) and self.models == 1:  # no bridges: clients of an edge share its model
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
        return f"{self.n_edges} edges, each the mean of the clients it covers; who is in several cells hears them all"


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
