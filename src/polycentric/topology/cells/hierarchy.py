"""Edges that meet in a cloud now and then."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...errors import require
from ...stacks.cohort import Cohort
from ...stacks.mixing import Mixing
from ...stacks.stack import Stacks
from .weights import OverCells


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
        require(self.every >= 0, f"TwoLevel.every must be 0 (never) or a number of rounds, got {self.every}")

    @property
    def cloud_every(self) -> int:
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
        return f"{self.n_edges} edges, each the mean of the clients it covers; they meet in a cloud {when}"
