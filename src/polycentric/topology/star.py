"""One center, or none and nobody to talk to."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..errors import require, within
from ..parts.select import Select
from ..stacks import Cohort, Mixing, Stacks
from .base import Topology, Weighs


@dataclass(frozen=True)
class Star(Topology):
    """One center (a server): `up` is a single row, so `down @ up` has rank one (FedAvg).

    `equal`: every client counts the same, instead of by its examples. `denominator`: a fixed divisor; what
    the row then lacks of one stays with the center (unbiased under Poisson sampling, and needed for client-level
    privacy where who came is a secret: a mean over those who came then has no bounded sensitivity). `expected`: the
    same, as a share of all clients that might take part.
    """

    equal: bool = False
    denominator: float | None = None
    expected: float | None = None

    def __post_init__(self) -> None:
        within(self, denominator="> 0; try the number of clients you expect", expected="(0, 1]; try 0.1")
        one = self.denominator is None or self.expected is None
        require(one, "Star takes a denominator, or the share of clients that is expected; leave one of them out")

    @staticmethod
    def counting(select: Select) -> Star:
        """The star that counts clients, over a number that does not depend on who came: what hides one of them."""
        chance = select.chance(1 << 20)
        return Star(expected=chance.rate) if chance.kind in ("all", "poisson") else Star(equal=True)

    @property
    def weighs(self) -> Weighs:
        """By what the mean divides."""
        return "fixed" if self.denominator or self.expected else "clients" if self.equal else "examples"

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """One row: by data size, equal, or over a fixed denominator."""
        center = torch.zeros(len(cohort), dtype=torch.int64)
        if self.denominator is not None or self.expected is not None:
            fixed = self.denominator or (self.expected or 1) * cohort.able
            return Mixing.scatter(center, 1, cohort.counts / fixed, "keep")
        return Mixing.scatter(center, 1, cohort.counts if self.equal else cohort.weights)

    def words(self, n_clients: int) -> str:
        """A mean, or a sum over a number."""
        if self.denominator is not None:
            return f"one center: the sum of what clients send over {self.denominator:g}; all receive the same model"
        if self.expected is not None:
            part = f"{self.expected:.3g} of their number"
            return f"one center: the sum of what clients send over {part}; all receive the same model"
        return f"one center: the mean by {'clients' if self.equal else 'examples'}; all receive the same model"


@dataclass(frozen=True)
class Alone(Topology):
    """No center: every client trains alone and hears no other client; `down @ up` is the identity."""

    at_home = True
    relayed = True
    line = "no center: every client by itself"

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Columns of the identity."""
        return Mixing.scatter(cohort.index, cohort.n_clients)
