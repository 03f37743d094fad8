"""Edges with cells that may overlap, and a cloud above them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import require
from ...stacks.cohort import Cohort
from ...stacks.mixing import Mixing
from ...stacks.stack import Stacks
from ..base import Topology
from .coverage import Coverage, Geometry, covered
from .geometries import geometry


@dataclass(frozen=True)
class Cells(Topology):
    """L edges with overlapping cells; a client in several cells is a bridge between them (FedMes).

        up    gamma_k^(i) ~ n_k in the cell alone, bridge * n_k in an overlap; every edge divides by its sum
        down  w_k = sum_i N_i w^(i) / sum_i N_i over the edges that cover k, N_i the data edge i heard last

    Where clients move, the cells are those of the round: who was covered by an edge uploads to it, and whoever comes
    next downloads from the edges that cover it then.

    Symbols: bridge = alpha_v / alpha_u; cells = a geometry, or a table (edges, clients) of 0/1.
    Reference: Han et al., FedMes: speeding up federated learning with multiple edge servers, IEEE JSAC 2021.
    """

    cells: Geometry | Tensor
    bridge: float = 1.0
    averages = True
    near = True

    def __post_init__(self) -> None:
        require(self.bridge > 0, f"Cells.bridge must be positive, got {self.bridge}")
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

    def cells_at(self, cohort: Cohort) -> Coverage:
        """The coverage in a cohort's round."""
        return covered(self.geometry, cohort.n_clients, cohort.seed, cohort.round)

    def metres(self, cohort: Cohort, client: Tensor, edge: Tensor, mean: float) -> Tensor | None:
        """As far as on the map, if there is one."""
        return self.geometry.metres_to(edge, client, cohort.n_clients, cohort.seed, cohort.round, mean)

    def n_centers(self, n_clients: int) -> int:
        """One for each edge."""
        if not self.geometry.drawn:
            covered(self.geometry, n_clients)  # cells that do not fit these clients are refused here
        return self.n_edges

    def remembers(self, n_clients: int) -> Stacks:
        """The data every edge heard last, and whether it has learned anything: nothing yet."""
        none = torch.zeros(self.n_edges, dtype=torch.float64)
        return {"heard": none, "learned": none.bool()}

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """The edges that cover a client, by the data they heard; equal where none of them heard any."""
        edge, client = self.cells_at(cohort).links(cohort.index)
        if len(edge) == len(cohort):  # no bridges: clients of an edge share its model
            return Mixing.gather(edge, self.n_edges)
        heard = memory["heard"].cpu()[edge]
        total = torch.zeros(len(cohort), dtype=torch.float64).index_add_(0, client, heard)
        weight = torch.where(total[client] > 0, heard, 1.0)
        return Mixing.sparse(client, edge, weight, (len(cohort), self.n_edges))

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Cells times data size times the weight of a bridge."""
        cells = self.cells_at(cohort)
        edge, client = cells.links(cohort.index)
        bridges = cells.covers[cohort.index] > 1
        weight = torch.where(bridges, self.bridge * cohort.weights, cohort.weights)
        return Mixing.sparse(edge, client, weight[client], (self.n_edges, len(cohort)))

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """Remember how much data every edge heard."""
        edge, client = self.cells_at(arrived).links(arrived.index)
        heard = torch.zeros(self.n_edges, dtype=torch.float64).index_add_(0, edge, arrived.weights[client])
        return memory | {"heard": heard, "learned": memory["learned"].cpu() | (heard > 0)}, centers
