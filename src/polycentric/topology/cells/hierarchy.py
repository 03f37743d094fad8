"""Edges that meet in a cloud now and then."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import require
from ...stacks.cohort import Cohort
from ...stacks.mixing import Mixing
from ...stacks.stack import Stacks
from ..base import Topology
from .weights import Cells


@dataclass(frozen=True)
class TwoLevel(Topology):
    """Edges average their clients; every `every` rounds a cloud averages the edges (hierarchical).

    At such a round the mixing is the product `cloud @ edge`, the cloud counting edges by the data they heard since they
    last met: one that heard nobody in the last round may have learned in those before. Where no edge heard anybody in
    it, they meet the next time. `every=1` is one star over all clients where no cells overlap (a bridge counts in each
    of its cells); a cloud that never meets (`every=0`) leaves isolated cells.
    """

    edges: Cells
    every: int = 1
    names: tuple[str, ...] = ("model",)  # stacks the cloud averages
    averages = True
    near = True

    def __post_init__(self) -> None:
        require(self.every >= 0, f"TwoLevel.every must be 0 (never) or a number of rounds, got {self.every}")

    def n_centers(self, n_clients: int) -> int:
        """One for each edge."""
        return self.edges.n_centers(n_clients)

    def remembers(self, n_clients: int) -> Stacks:
        """What the edges remember, and the data they heard since they met."""
        memory = self.edges.remembers(n_clients)
        return memory | {"since": memory["heard"].clone()}

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """As the edges."""
        return self.edges.down(memory, cohort, name)

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """As the edges; the cloud's mean follows when they meet."""
        return self.edges.up(memory, cohort, name)

    def metres(self, cohort: Cohort, client: Tensor, edge: Tensor, mean: float) -> Tensor | None:
        """As the edges."""
        return self.edges.metres(cohort, client, edge, mean)

    def met_cloud(self, round: int) -> bool:
        """Whether the edges talk to the cloud at the end of this round."""
        return self.every > 0 and (round + 1) % self.every == 0

    def cloud(self, memory: Stacks) -> Mixing:
        """Every edge hears all edges, by the data they heard since they met."""
        return Mixing.dense(memory["since"].cpu().expand(self.edges.n_edges, -1))

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """The cloud's mean, every so many rounds."""
        memory, centers = self.edges.meet(memory, arrived, centers)
        memory |= {"since": memory["since"].cpu() + memory["heard"]}
        if not self.met_cloud(arrived.round) or not bool(memory["heard"].sum() > 0):
            return memory, centers
        centers = centers | {name: self.cloud(memory) @ centers[name] for name in self.names}
        met = {"since": torch.zeros_like(memory["since"]), "learned": torch.ones_like(memory["learned"])}
        return memory | met, centers
