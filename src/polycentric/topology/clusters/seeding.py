"""One center becomes K: what all clients have learned from a common start is clustered, once."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...errors import require
from ...stacks.cohort import Cohort
from ...stacks.draw import uniform
from ...stacks.mixing import Mixing
from ...stacks.stack import Stacks
from .clustered import ByDistance
from .distances import inner_products


@dataclass(frozen=True)
class OneBecomesMany(ByDistance):
    """One center becomes K: what all clients have learned from a common start is clustered, once.

    The best of `restarts` clusterings, of at most so many `iterations` each, from seeds that are drawn far apart
    ("kmeans++") or at "random".
    """

    restarts: int
    iterations: int
    seeding: Literal["kmeans++", "random"] = "kmeans++"
    whole = True

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        require(self.restarts >= 1, f"{name}.restarts must be at least 1, got {self.restarts}")
        require(
            self.seeding in ("kmeans++", "random"), f"{name}.seeding must be kmeans++ or random, got {self.seeding!r}"
        )

    def n_centers(self, n_clients: int) -> int:
        """One, until it has run."""
        return 1

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """A column of ones: there is one center yet."""
        return Mixing.gather(torch.zeros(len(cohort), dtype=torch.int64), 1)

    @abstractmethod
    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """The best of several clusterings."""

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """Whatever else a center holds, every one of the K now has."""
        k = self.k
        return memory, {name: rows.repeat(k, 1) if len(rows) == 1 and k > 1 else rows for name, rows in centers.items()}

    def words(self, n_clients: int) -> str:
        """Once."""
        return f"one center becomes {min(self.k, n_clients)}: what clients have learned is clustered then"


@dataclass(frozen=True)
class Seeding(OneBecomesMany):
    """One center becomes K: what all clients have learned from a common start is clustered, once (FeSEM's round 0).

    Lloyd's iteration from `restarts` different seeds, keeping the partition of the smallest intra-cluster distance.
    Centers are means of rows, so every distance follows from the inner products of rows:

        |x_i - c_k|^2 = G_ii - 2 mean_{j in k} G_ij + mean_{j,l in k} G_jl,      G = X X^T

    G is summed over pieces of the width in float64, once; restarts then cost nothing that grows with the model.
    """

    restarts: int = 20
    iterations: int = 100

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """The best of many clusterings."""
        gram = inner_products(sent["model"], self.spans)
        if self.k > 1 and len(cohort) > 1 and not float(gram.diag().max()) > 0:
            warnings.warn(
                "all clients sent the same model, so clustering them means nothing and all go to the first center: "
                "let them train before they are clustered (a learning rate above 0, a longer warm_up)",
                stacklevel=2,
            )
        runs = [self.lloyd(gram, cohort, restart) for restart in range(self.restarts)]
        total, assignment = min(runs, key=lambda run: run[0])
        distance = torch.full((len(cohort),), total / max(1, len(cohort)), dtype=torch.float64)
        return {"assignment": assignment, "distance": distance} | self.noted(cohort, sent)

    def lloyd(self, gram: Tensor, cohort: Cohort, restart: int) -> tuple[float, Tensor]:
        """(intra-cluster distance, assignment) of one run; the lowest number wins ties."""
        own, n, k = gram.diag(), len(gram), self.k
        draws = uniform(*cohort.key, "seeding", restart, torch.arange(k))
        seeds = [int(draws[0] * n)]
        for draw in draws[1:].tolist():
            chance = torch.ones(n, dtype=torch.float64)
            if self.seeding == "kmeans++":  # far rows are likely
                chance = (own[:, None] - 2 * gram[:, seeds] + own[seeds]).min(1).values.clamp(min=0)
            chance[seeds] = 0
            if not bool(chance.sum() > 0):  # fewer different rows than centers: the rest stay empty
                break
            seeds.append(int(torch.searchsorted(chance.cumsum(0), draw * float(chance.sum())).clamp(max=n - 1)))
        distance = own[:, None] - 2 * gram[:, seeds] + own[seeds]
        nearest = distance.argmin(1)
        for _ in range(self.iterations):
            belongs = torch.nn.functional.one_hot(nearest, k).double()
            count = belongs.sum(0)
            mean = gram @ belongs / count.clamp(min=1)  # (clients, centers)
            within = (belongs * mean).sum(0) / count.clamp(min=1)
            distance = own[:, None] - 2 * mean + torch.where(count > 0, within, math.inf)
            if bool((distance.argmin(1) == nearest).all()):
                break
            nearest = distance.argmin(1)
        return float(distance.min(1).values.clamp(min=0).sum()), nearest
