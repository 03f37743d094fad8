"""Who takes part: a selection sees what it remembers and everyone who has data, and picks a cohort."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch

from .cohort import Cohort
from .draw import uniform
from .errors import require
from .stack import Stacks


class Select(ABC):
    """Picks the cohort of an exchange."""

    @abstractmethod
    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """Some of everyone."""

    def remembers(self, n_clients: int) -> Stacks:
        """What the selection must remember from round to round, as it is at the beginning."""
        return {}

    def note(self, sent: Stacks) -> Stacks:
        """Rows of memory (cohort, ...), from what the clients told."""
        return {}


@dataclass(frozen=True)
class Everyone(Select):
    """All clients that have data, every time."""

    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """Everyone."""
        return everyone


@dataclass(frozen=True)
class Uniform(Select):
    """`n` clients, or a `share` of them, without replacement, all equally likely."""

    n: int | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        require(
            (self.n is None) != (self.share is None),
            "Uniform takes n or share: Uniform(n=10) or Uniform(share=0.1)",
        )
        require(self.n is None or self.n >= 1, f"Uniform.n must be at least 1, got {self.n}")
        require(self.share is None or 0 < self.share <= 1, f"Uniform.share must be in (0, 1], got {self.share}")

    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """The clients with the smallest draws, in order of their numbers."""
        wanted = self.n if self.n is not None else max(1, round((self.share or 0) * len(everyone)))
        if wanted > len(everyone):
            warnings.warn(
                f"{wanted} clients a round were asked for, but only {len(everyone)} have data: all of them take part",
                stacklevel=2,
            )
        chosen = uniform(*everyone.key, "select", everyone.index).argsort()[:wanted]
        return everyone[chosen.sort().values]


@dataclass(frozen=True)
class Poisson(Select):
    """Every client takes part with probability `rate`, by itself; the cohort may be empty."""

    rate: float

    def __post_init__(self) -> None:
        require(0 < self.rate <= 1, f"Poisson.rate must be in (0, 1], got {self.rate}")

    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """A coin for every client."""
        return everyone[uniform(*everyone.key, "select", everyone.index) < self.rate]


@dataclass(frozen=True)
class Stragglers(Select):
    """A `share` of the cohort is slow: it does only part of its work, or is dropped (`drop`).

    A slow client's effort u is uniform on (0, 1], so that ceil(u E) epochs are uniform on 1 .. E. FedAvg
    waits for nobody and drops them, FedProx takes what they have done (Li et al., MLSys 2020).
    """

    of: Select
    share: float
    drop: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.share <= 1, f"Stragglers.share must be in [0, 1], got {self.share}")

    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """The inner cohort, slowed down."""
        cohort = self.of(memory, everyone)
        slow = torch.zeros(len(cohort), dtype=torch.bool)
        slow[uniform(*cohort.key, "slow", cohort.index).argsort()[: round(self.share * len(cohort))]] = True
        effort = torch.where(slow, uniform(*cohort.key, "effort", cohort.index), cohort.effort)
        return cohort[~slow] if self.drop else replace(cohort, effort=effort)

    def remembers(self, n_clients: int) -> Stacks:
        """What the inner selection remembers."""
        return self.of.remembers(n_clients)

    def note(self, sent: Stacks) -> Stacks:
        """What the inner selection notes."""
        return self.of.note(sent)
