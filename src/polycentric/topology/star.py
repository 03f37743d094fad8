"""One center, or none and nobody to talk to; and sums in the place of means."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import require
from ..stacks.cohort import Cohort
from ..stacks.mixing import Mixing
from ..stacks.stack import Layout, Stacks
from .base import Topology


@dataclass(frozen=True)
class Star(Topology):
    """One center: up is a single row, so `down @ up` has rank one (FedAvg).

    `equal`: every client counts the same, instead of by its examples. `denominator`: a fixed divisor; what
    the row then lacks of one stays with the center (unbiased under Poisson sampling, and needed for client-level
    privacy where who came is a secret: a mean over those who came then has no bounded sensitivity).
    """

    equal: bool = False
    denominator: float | None = None

    def __post_init__(self) -> None:
        require(
            self.denominator is None or self.denominator > 0,
            f"Star.denominator must be positive, got {self.denominator}",
        )

    def n_centers(self, n_clients: int) -> int:
        """One."""
        return 1

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """A column of ones."""
        return Mixing.gather(torch.zeros(len(cohort), dtype=torch.int64), 1)

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """One row: by data size, equal, or over a fixed denominator."""
        center = torch.zeros(len(cohort), dtype=torch.int64)
        if self.denominator is not None:
            return Mixing.scatter(center, 1, cohort.counts / self.denominator, "keep")
        return Mixing.scatter(center, 1, cohort.counts if self.equal else cohort.weights)


@dataclass(frozen=True)
class Alone(Topology):
    """Every client is its own center and hears nobody else: training alone, `down @ up` is the identity."""

    at_home = True

    def n_centers(self, n_clients: int) -> int:
        """One for each client."""
        return n_clients

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Rows of the identity."""
        return Mixing.gather(cohort.index, cohort.n_clients)

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Columns of the identity."""
        return Mixing.scatter(cohort.index, cohort.n_clients)


@dataclass(frozen=True)
class Sums(Topology):
    """Any topology, with some names added up instead of averaged (FedCurv's Fisher sums)."""

    of: Topology
    names: tuple[str, ...]

    @property
    def whole(self) -> bool:  # type: ignore[override]
        """As the inner one."""
        return self.of.whole

    @property
    def at_home(self) -> bool:  # type: ignore[override]
        """As the inner one."""
        return self.of.at_home

    @property
    def near(self) -> bool:  # type: ignore[override]
        """As the inner one."""
        return self.of.near

    def n_centers(self, n_clients: int) -> int:
        """As the inner one."""
        return self.of.n_centers(n_clients)

    def remembers(self, n_clients: int) -> Stacks:
        """As the inner one."""
        return self.of.remembers(n_clients)

    def fitted(self, layout: Layout, like: Tensor, n_clients: int) -> Topology:
        """As the inner one."""
        return replace(self, of=self.of.fitted(layout, like, n_clients))

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """As the inner one."""
        return self.of.down(memory, cohort, name)

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """As the inner one, or one for everybody a center hears."""
        up = self.of.up(memory, cohort, name)
        if name not in self.names:
            return up
        receiver, sender, weight = up.links
        return Mixing.sparse(receiver, sender, torch.ones_like(weight), up.shape, "none")

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """As the inner one."""
        return self.of.place(memory, cohort, centers, sent)

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """As the inner one."""
        return self.of.meet(memory, arrived, centers)

    def met_cloud(self, round: int) -> bool:
        """As the inner one."""
        return self.of.met_cloud(round)

    def edge_of(self, center: Tensor) -> Tensor:
        """As the inner one."""
        return self.of.edge_of(center)

    def metres(self, cohort: Cohort, client: Tensor, edge: Tensor, mean: float) -> Tensor | None:
        """As the inner one."""
        return self.of.metres(cohort, client, edge, mean)

    def sequence(self, memory: Stacks, cohort: Cohort) -> int | None:
        """As the inner one."""
        return self.of.sequence(memory, cohort)
