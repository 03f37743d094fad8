"""What clusters have in common: every client at one center, what is remembered of it, and what is worth telling."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from ...errors import require
from ...stacks.cohort import Cohort
from ...stacks.mixing import Mixing
from ...stacks.stack import Layout, Stacks
from ...stacks.view import View
from ..base import Topology
from .agreement import agreement, shared_information
from .distances import Spans

Absent = Literal["out", "last"]


class Clustered(Topology):
    """Several centers, every client at one of them: `assignment` in the memory."""

    reads_updates = True

    def assignment(self, memory: Stacks) -> Tensor:
        """Every client's center."""
        return memory["assignment"]

    def shows(self, view: View) -> dict[str, float]:
        """How many clusters have clients, how tight they are, how like known groups, and who moved."""
        memory, trains = view.memory, view.trains
        place, placed = memory["assignment"].cpu(), memory.get("placed", trains).cpu()
        sizes = torch.bincount(place[trains])
        out = {"clusters": float((sizes > 0).sum()), "largest_cluster": float(sizes.max()) if len(sizes) else 0.0}
        if view.before is not None:
            moved = place != view.before["assignment"].cpu()
            out["reassigned"] = float((moved & trains & view.before.get("placed", trains).cpu()).sum())
        if "distance" in memory and bool(placed.any()):
            out["intra_cluster"] = float(memory["distance"].cpu()[placed].mean())
        if bool(memory.get("reseeded", place[:0]).any()):
            out["reseeded"] = float(memory["reseeded"].sum())
        if "last_round" in memory and bool((known := memory["last_round"].cpu() >= 0).any()):
            out["staleness"] = float((view.round - 1 - memory["last_round"].cpu()[known]).double().mean())
        if view.group is not None and view.round:  # before the first round nobody has found a place
            honest = trains & view.honest
            there = honest & placed if bool((honest & placed).any()) else honest
            both = place[there].numpy(), view.group[there].numpy()
            out |= {"ari": agreement(*both), "nmi": shared_information(*both)}
        return out


class Fit(NamedTuple):
    """What a part knows of the model."""

    spans: tuple[tuple[int, int], ...]  # where its features lie
    width: int
    dtype: torch.dtype


@dataclass(frozen=True)
class ByDistance(Clustered):
    """K centers, and clients placed by what they sent; a mean counts clients, or examples (`weighted`).

    `features`: what distances are taken of: "all" parameters, those of the "last_layer", or patterns of names.
    `absent`: clients that are away count in the mean of their center by the row they sent last ("last": the centers
    then remember a row for everybody), or not at all ("out").
    """

    k: int
    weighted: bool = field(default=False, kw_only=True)
    features: str = field(default="all", kw_only=True)
    absent: Absent = field(default="out", kw_only=True)
    fit: Fit | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        require(self.k >= 1, f"{type(self).__name__}.k must be at least 1, got {self.k}")
        require(self.absent in ("out", "last"), f"absent must be out or last, got {self.absent!r}")

    def fitted(self, layout: Layout, like: Tensor, n_clients: int) -> Self:
        """Knows where its features lie and how wide a row is, and has no more centers than there are clients."""
        fit = Fit(layout.spans(self.features), like.shape[1], like.dtype)
        return replace(self, k=clipped(self.k, n_clients), fit=fit)

    @property
    def spans(self) -> Spans:
        """The columns that distances are taken of."""
        return None if self.features == "all" else self._fit(f"features={self.features!r} needs a model").spans

    def _fit(self, why: str) -> Fit:
        require(self.fit is not None, f"{why}: begin with `prepare` or `run`")
        assert self.fit is not None
        return self.fit

    def remembers(self, n_clients: int) -> Stacks:
        """Where clients are (in turn, until somebody finds better places), and whether that was ever found out.

        How far from their center they were, how often re-seeded; with absent="last", also what they sent last.
        """
        memory = {
            "assignment": torch.arange(n_clients) % self.k,
            "placed": torch.zeros(n_clients, dtype=torch.bool),
            "distance": torch.zeros(n_clients, dtype=torch.float64),
            "reseeded": torch.zeros(n_clients, dtype=torch.int64),
        }
        if self.absent == "out":
            return memory
        fit = self._fit("absent='last' needs to know how wide a model is")
        return memory | {
            "last": torch.zeros(n_clients, fit.width, dtype=fit.dtype),
            "last_round": torch.full((n_clients,), -1),
            "last_weight": torch.zeros(n_clients, dtype=torch.float64),
        }

    def noted(self, cohort: Cohort, sent: Stacks) -> Stacks:
        """These clients have been placed; with absent="last", also what they sent, when, and how much it counts."""
        note: Stacks = {"placed": torch.ones(len(cohort), dtype=torch.bool)}
        if self.absent == "out":
            return note
        when = torch.full((len(cohort),), cohort.round)
        return note | {"last": sent["model"], "last_round": when, "last_weight": self.weights(cohort)}

    def weights(self, cohort: Cohort) -> Tensor:
        """How much every client counts."""
        return cohort.weights if self.weighted else cohort.counts

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """One-hot columns, K receivers: FeSEM's M-step, eq. 8."""
        return Mixing.scatter(memory["assignment"].cpu()[cohort.index], self.k, self.weights(cohort))


def clipped(k: int, n_clients: int) -> int:
    """K, or as many as there are clients."""
    if k > n_clients:
        warnings.warn(
            f"{k} centers were asked for, but there are only {n_clients} clients: as many it is", stacklevel=2
        )
    return max(1, min(k, n_clients))
