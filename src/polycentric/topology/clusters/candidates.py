"""Many centers, and clients choose among them: all of them in every round, or newcomers once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...errors import within
from ...parts.select import Select
from ...stacks import Cohort, Layout, Links, Mixing, Stacks
from ..base import Direction, Weighs, Wires, nothing
from .assignment import ByDistance, Clustered, clipped


@dataclass(frozen=True)
class Choice(Clustered):
    """K centers, all of which come down as `candidate0` .. `candidate(K-1)`; clients tell their `choice` (IFCA).

    up: the mean of those who chose a center, by clients or (`weighted`) by examples. `over_all`: divided by all who
    take part, so that a center moves by the share of clients that chose it (the paper's gradient averaging).
    `expected`: a sum over a fixed number, that share of the clients, for a privacy part that counts by itself. There
    are never more centers than clients; candidates beyond are the last one again, never win and are not sent.
    """

    k: int
    weighted: bool = False
    over_all: bool = False
    expected: float | None = None
    independent_init = True

    def __post_init__(self) -> None:
        within(self, k=">= 1", expected="(0, 1]; try 0.1")

    @property
    def weighs(self) -> Weighs:
        """By examples, clients, or over a fixed number."""
        return "fixed" if self.expected else "examples" if self.weighted else "clients"

    @property
    def sealed(self) -> tuple[str, ...]:  # type: ignore[override]
        """Over a fixed number, a choice moves one center by one client, whichever it is."""
        return ("choice",) if self.expected else ()

    @property
    def whole(self) -> bool:  # type: ignore[override]
        """How many take part is known only when all have come."""
        return self.over_all

    def n_centers(self, n_clients: int) -> int:
        """K, or as many as there are clients."""
        return min(self.k, max(1, n_clients))

    def fitted(self, layout: Layout, like: Tensor, n_clients: int) -> Choice:
        """Has no more centers than there are clients."""
        return replace(self, k=clipped(self.k, n_clients))

    def remembers(self, n_clients: int) -> Stacks:
        """The center every client chose last; the first, until it has chosen."""
        return super().remembers(n_clients) | {"assignment": torch.zeros(n_clients, dtype=torch.int64)}

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """A column of ones for a candidate; for `model`, the center the client chose last."""
        k = self.n_centers(cohort.n_clients)
        if name.startswith("candidate"):
            return candidate(name, cohort, k)
        return Mixing.gather(memory["assignment"].cpu()[cohort.index], k)

    @property
    def wires(self) -> Wires:
        """A candidate beyond the centers is not sent."""
        return NoneTwice()

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """Where they chose to be."""
        return self.placed(memory, cohort, sent["choice"][:, 0].long().clamp(min=0).cpu())

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """One-hot columns."""
        place, k = memory["assignment"].cpu()[cohort.index], self.n_centers(cohort.n_clients)
        weight = self.weights(cohort)
        if self.expected:
            return Mixing.scatter(place, k, cohort.counts / (self.expected * cohort.able), "keep")
        if self.over_all:
            return Mixing.scatter(place, k, weight / weight.sum().clamp(min=1e-300), "keep")
        return Mixing.scatter(place, k, weight)

    def words(self, n_clients: int) -> str:
        """Everybody chooses."""
        return f"{min(self.k, n_clients)} centers; each round, every client takes the one that fits its examples best"


@dataclass(frozen=True)
class NoneTwice(Wires):
    """Candidates come down once each."""

    def messages(self, way: Direction, memory: Stacks, cohort: Cohort, name: str, mixing: Mixing, width: int) -> Links:
        """A row on every link; nothing for a candidate beyond the centers."""
        if name.startswith("candidate") and _number(name) >= mixing.shape[1]:
            return nothing(mixing)
        return super().messages(way, memory, cohort, name, mixing, width)


def candidate(name: str, cohort: Cohort, k: int) -> Mixing:
    """A column of ones: center j of k for `candidatej`, the last one again where there are fewer."""
    here = torch.full((len(cohort),), min(_number(name), k - 1))
    return Mixing.gather(here, k, of="model")


def _number(candidate: str) -> int:
    return int(candidate.removeprefix("candidate"))


@dataclass(frozen=True)
class NewcomerAssignment(ByDistance):
    """Where newcomers belong: K centers come down as `candidate0` .., they tell their `choice`; nothing is mixed."""

    greets = True

    def n_centers(self, n_clients: int) -> int:
        """K."""
        return self.k

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """A column of ones for a candidate."""
        return candidate(name, cohort, self.k)

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """Where they chose to be; -1 is no choice."""
        choice = sent["choice"][:, 0].long().cpu()
        here = memory["assignment"].cpu()[cohort.index]
        return {"assignment": torch.where(choice >= 0, choice, here), "placed": choice >= 0}

    def words(self, n_clients: int) -> str:
        """Newcomers only."""
        return f"newcomers find the nearest of {min(self.k, n_clients)} centers"


@dataclass(frozen=True)
class Newcomers(Select):
    """All clients that have data and have never been placed at a center."""

    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """Those whose place is not known."""
        return everyone[~memory["placed"].cpu()[everyone.index]]
