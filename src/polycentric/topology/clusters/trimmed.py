"""One center becomes K under attack: Lloyd's iteration with centers that attackers cannot move."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ...errors import require
from ...stacks.cohort import Cohort
from ...stacks.draw import uniform
from ...stacks.stack import Stacks
from .distances import pieces
from .seeding import OneBecomesMany


class RowRule(Protocol):
    """What rows come to: a trimmed mean, a median."""

    def of(self, rows: Tensor) -> Tensor:
        """What rows (n, width), n > 0, come to, (width,)."""


@dataclass(frozen=True)
class TrimmedSeeding(OneBecomesMany):
    """Trimmed k-means of what all clients have learned from a common start, once (Ghosh et al.'s second stage).

        r_i  <-  argmin_k |w_i - c_k|^2               the lowest number winning ties
        c_k  <-  rule of the w_i with r_i = k         a trimmed mean in place of the mean

    `iterations` of both from K rows, `restarts` times; the partition with the smallest intra-cluster distance is kept.
    The floor(outliers n) rows farthest from all centers count neither in that distance nor as seeds, so that a few
    rows far out do not get centers of their own. A center that loses its rows stays where it was.

    With `rule` the mean, outliers = 0 and iterations to the end it is `Seeding`.
    """

    restarts: int = 10
    iterations: int = 8
    rule: RowRule = field(kw_only=True)
    outliers: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.iterations >= 1, f"TrimmedSeeding.iterations must be at least 1, got {self.iterations}")
        require(0 <= self.outliers < 0.5, f"TrimmedSeeding.outliers must be in [0, 0.5), got {self.outliers}")

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """The best of several clusterings."""
        rows = sent["model"]
        if not len(rows):
            return {"assignment": torch.zeros(0, dtype=torch.int64)}
        runs = [self.trimmed(rows, cohort, restart) for restart in range(self.restarts)]
        return {"assignment": min(runs, key=lambda run: run[0])[1]}

    def trimmed(self, rows: Tensor, cohort: Cohort, restart: int) -> tuple[float, Tensor]:
        """(intra-cluster distance, assignment) of one run."""
        distance = self._seeds(rows, uniform(*cohort.key, "seeding", restart, torch.arange(self.k)).tolist())
        nearest = distance.argmin(1)
        for _ in range(self.iterations):
            for k in torch.unique(nearest).tolist():
                distance[:, k] = squared_distance(rows, self.rule.of(rows[(nearest == k).to(rows.device)]))
            last, nearest = nearest, distance.argmin(1)
            if bool((nearest == last).all()):
                break
        return float(self._inner(distance.min(1).values).sum()), nearest

    def _seeds(self, rows: Tensor, draws: list[float]) -> Tensor:
        """Squared distances (rows, k) to k rows; infinite where there are fewer different rows than centers."""
        n = len(rows)
        out = torch.full((n, self.k), math.inf, dtype=torch.float64)
        seeds: list[int] = []
        for k, draw in enumerate(draws):
            chance = torch.ones(n, dtype=torch.float64)
            if seeds:
                far = out.min(1).values
                chance = self._inner(far) if self.seeding == "kmeans++" else (far > 0).double()
                if not bool(chance.sum() > 0):
                    break
            at = int(torch.searchsorted(chance.cumsum(0), draw * float(chance.sum())).clamp(max=n - 1))
            seeds.append(at)
            out[:, k] = squared_distance(rows, rows[at])
        return out

    def _inner(self, distance: Tensor) -> Tensor:
        """Distances (rows,) with the farthest floor(outliers n) put to zero."""
        out = distance.clone()
        cut = int(self.outliers * len(out) + 1e-9)  # 0.29 of 100 are 29
        out[distance.argsort(descending=True, stable=True)[:cut]] = 0
        return out


def squared_distance(rows: Tensor, center: Tensor) -> Tensor:
    """Squared distances (rows,) to one center, float64 on the host, over pieces of the width.

    Differences are squared as they are: an expanded square would cancel beside a row that is far out.
    """
    out = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for piece in pieces(rows.shape[1]):
        out += (rows[:, piece].double() - center[piece].double()).square().sum(1)
    return out.cpu()
