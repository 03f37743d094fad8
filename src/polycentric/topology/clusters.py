"""Many centers: every client at one of them, found by distances between models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..cohort import Cohort
from ..draw import uniform
from ..errors import require
from ..mixing import Mixing
from ..stack import Stacks
from .verbs import Topology


@dataclass(frozen=True)
class Clusters(Topology):
    """K centers, every client at one of them: one-hot rows down, one-hot columns up (FeSEM, TKM).

    The E-step is `place`: a client goes to the center nearest to what it sent (FeSEM eq. 7), the lowest
    number winning ties. The M-step is `up`: the mean of a center's clients (eq. 8), which by the paper counts
    clients (`weighted=False`). A center without clients keeps its model. `frozen`: nobody moves any more.
    """

    k: int
    weighted: bool = False
    frozen: bool = False

    def __post_init__(self) -> None:
        require(self.k >= 1, f"Clusters.k must be at least 1, got {self.k}")

    def n_centers(self, n_clients: int) -> int:
        """K."""
        return self.k

    def remembers(self, n_clients: int) -> Stacks:
        """The center of every client; in turn, until somebody finds better places."""
        return {"assignment": torch.arange(n_clients) % self.k}

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """One-hot rows: the client's own center."""
        return Mixing.gather(memory["assignment"].cpu()[cohort.index], self.k)

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """E-step, FeSEM eq. 7."""
        if self.frozen:
            return {}
        return {"assignment": squared_distances(sent["model"], centers["model"]).argmin(1).cpu()}

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """M-step, FeSEM eq. 8: one-hot columns."""
        place = memory["assignment"].cpu()[cohort.index]
        return Mixing.scatter(place, self.k, cohort.weights if self.weighted else cohort.counts)


@dataclass(frozen=True)
class Seeding(Topology):
    """One center becomes K: what all clients have learned from a common start is clustered, once (FeSEM's round 0).

    Lloyd's iteration from `restarts` different seeds, keeping the partition of the smallest intra-cluster distance.
    Centers are means of rows, so every distance follows from the inner products of rows:

        |x_i - c_k|^2 = G_ii - 2 mean_{j in k} G_ij + mean_{j,l in k} G_jl,      G = X X^T

    G is summed over pieces of the width in float64, once; restarts then cost nothing that grows with the model.
    """

    k: int
    restarts: int = 20
    iterations: int = 100
    seeding: Literal["kmeans++", "random"] = "kmeans++"
    weighted: bool = False
    whole = True

    def __post_init__(self) -> None:
        require(self.k >= 1, f"Seeding.k must be at least 1, got {self.k}")
        require(self.restarts >= 1, f"Seeding.restarts must be at least 1, got {self.restarts}")
        require(
            self.seeding in ("kmeans++", "random"), f"Seeding.seeding must be kmeans++ or random, got {self.seeding!r}"
        )

    def n_centers(self, n_clients: int) -> int:
        """One, until it has run."""
        return 1

    def remembers(self, n_clients: int) -> Stacks:
        """The center of every client."""
        return {"assignment": torch.arange(n_clients) % self.k}

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """A column of ones: there is one center yet."""
        return Mixing.gather(torch.zeros(len(cohort), dtype=torch.int64), 1)

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """The best of many clusterings."""
        gram = inner_products(sent["model"])
        runs = [self.lloyd(gram, cohort, restart) for restart in range(self.restarts)]
        return {"assignment": min(runs, key=lambda run: run[0])[1]}

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """One-hot columns, K receivers."""
        place = memory["assignment"].cpu()[cohort.index]
        return Mixing.scatter(place, self.k, cohort.weights if self.weighted else cohort.counts)

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """Whatever else a center holds, every one of the K now has."""
        return memory, {
            name: rows.repeat(self.k, 1) if len(rows) == 1 and self.k > 1 else rows for name, rows in centers.items()
        }

    def lloyd(self, gram: Tensor, cohort: Cohort, restart: int) -> tuple[float, Tensor]:
        """(intra-cluster distance, assignment) of one run; the lowest number wins ties."""
        own, n = gram.diag(), len(gram)
        draws = uniform(*cohort.key, "seeding", restart, torch.arange(self.k))
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
            belongs = torch.nn.functional.one_hot(nearest, self.k).double()
            count = belongs.sum(0)
            mean = gram @ belongs / count.clamp(min=1)  # (clients, centers)
            within = (belongs * mean).sum(0) / count.clamp(min=1)
            distance = own[:, None] - 2 * mean + torch.where(count > 0, within, math.inf)
            if bool((distance.argmin(1) == nearest).all()):
                break
            nearest = distance.argmin(1)
        return float(distance.min(1).values.clamp(min=0).sum()), nearest


def inner_products(rows: Tensor) -> Tensor:
    """X X^T of rows moved to their mean, float64 on the host, over pieces of the width."""
    out = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for first in range(0, rows.shape[1], 1 << 16):
        part = rows[:, first : first + (1 << 16)].double()
        part = part - part.mean(0)
        out += part @ part.T
    return out.cpu()


def squared_distances(rows: Tensor, centers: Tensor) -> Tensor:
    """Squared distances (rows, centers), without ever forming rows x centers x width.

    |a - b|^2 = |a|^2 - 2 a.b + |b|^2 cancels badly when both are far from the origin and near each other, so
    everything is moved to the middle of the centers first; sums run in float64 over pieces of the width.
    """
    out = torch.zeros(len(rows), len(centers), dtype=torch.float64, device=rows.device)
    middle = centers.double().mean(0)
    for first in range(0, rows.shape[1], 1 << 16):
        part = slice(first, first + (1 << 16))
        a, b = rows[:, part].double() - middle[part], centers[:, part].double() - middle[part]
        out += a.square().sum(1)[:, None] - 2 * a @ b.T + b.square().sum(1)
    return out.clamp_(min=0)
