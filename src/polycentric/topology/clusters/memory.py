"""What clusters remember of their clients: who is where, how far from its center, and what it sent last."""

from __future__ import annotations

import warnings
from typing import Literal, NamedTuple, Protocol

import torch

from ...errors import require
from ...stacks.cohort import Cohort
from ...stacks.stack import Stacks
from .distances import Spans

Absent = Literal["out", "last"]


class Fit(NamedTuple):
    """What a part knows of the model."""

    spans: tuple[tuple[int, int], ...]  # where its features lie
    width: int
    dtype: torch.dtype


class Clustered(Protocol):
    """A part that places clients at K centers by what they sent."""

    @property
    def k(self) -> int:
        """How many centers."""

    @property
    def weighted(self) -> bool:
        """Whether centers count examples instead of clients."""

    @property
    def features(self) -> str:
        """What distances are taken of."""

    @property
    def absent(self) -> Absent:
        """Whether clients that are away count by the row they sent last."""

    @property
    def fit(self) -> Fit | None:
        """What it knows of the model."""


def check(name: str, k: int, absent: str) -> None:
    """Refuse what cannot be."""
    require(k >= 1, f"{name}.k must be at least 1, got {k}")
    require(absent in ("out", "last"), f"absent must be out or last, got {absent!r}")


def clipped(k: int, n_clients: int) -> int:
    """K, or as many as there are clients."""
    if k > n_clients:
        warnings.warn(
            f"{k} centers were asked for, but there are only {n_clients} clients: as many it is", stacklevel=2
        )
    return max(1, min(k, n_clients))


def spans(part: Clustered) -> Spans:
    """The columns that distances are taken of."""
    if part.features == "all":
        return None
    require(part.fit is not None, f"features={part.features!r} needs a model: begin with `prepare` or `run`")
    assert part.fit is not None
    return part.fit.spans


def remembered(part: Clustered, n_clients: int) -> Stacks:
    """Where clients are, whether that was ever found out, how far from their center they were, how often re-seeded."""
    memory = {
        "assignment": torch.arange(n_clients) % part.k,
        "placed": torch.zeros(n_clients, dtype=torch.bool),
        "distance": torch.zeros(n_clients, dtype=torch.float64),
        "reseeded": torch.zeros(n_clients, dtype=torch.int64),
    }
    if part.absent == "out":
        return memory
    require(part.fit is not None, "absent='last' needs to know how wide a model is: begin with `prepare` or `run`")
    assert part.fit is not None
    return memory | {
        "last": torch.zeros(n_clients, part.fit.width, dtype=part.fit.dtype),
        "last_round": torch.full((n_clients,), -1),
        "last_weight": torch.zeros(n_clients, dtype=torch.float64),
    }


def noted(part: Clustered, cohort: Cohort, sent: Stacks) -> Stacks:
    """These clients have been placed; with absent="last", also what they sent, when, and how much it counts."""
    note: Stacks = {"placed": torch.ones(len(cohort), dtype=torch.bool)}
    if part.absent == "out":
        return note
    weight = cohort.weights if part.weighted else cohort.counts
    when = torch.full((len(cohort),), cohort.round)
    return note | {"last": sent["model"], "last_round": when, "last_weight": weight}
