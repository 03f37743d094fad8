"""Many centers: every client at one of them, found by distances between models."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..cohort import Cohort
from ..draw import uniform
from ..errors import require
from ..mixing import Mixing
from ..stack import Layout, Stacks
from .verbs import Topology

COLUMNS = 1 << 13  # numbers of a row widened to float64 at once: for some hundred rows that stays in the cache
Absent = Literal["out", "last"]
Spans = tuple[tuple[int, int], ...] | None  # (first, last) columns of a row; None: all


class Fit(NamedTuple):
    """What a part knows of the model."""

    spans: tuple[tuple[int, int], ...]  # where its features lie
    width: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Clusters(Topology):
    """K centers, every client at one of them: one-hot rows down, one-hot columns up (FeSEM, TKM).

    The E-step is `place`: a client goes to the center nearest to what it sent (FeSEM eq. 7), the lowest
    number winning ties. The M-step is `up`: the mean of a center's clients (eq. 8), which by the paper counts
    clients (`weighted=False`). A center without clients keeps its model. `frozen`: nobody moves any more.

    `features`: what distances are taken of: "all" parameters, those of the "last_layer", or patterns of names.
    `absent`: clients that are away count in the mean of their center by the row they sent last ("last": the centers
    then remember a row for everybody), or not at all ("out"). `reseed`: a center that has lost all its clients begins
    again at the row that is farthest from its own center.
    """

    k: int
    weighted: bool = False
    frozen: bool = False
    features: str = "all"
    absent: Absent = "out"
    reseed: bool = False
    fit: Fit | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check("Clusters", self.k, self.absent)

    @property
    def whole(self) -> bool:  # type: ignore[override]
        """Whether a center is empty is known only when all have come."""
        return self.reseed

    def n_centers(self, n_clients: int) -> int:
        """K."""
        return self.k

    def fitted(self, layout: Layout, like: Tensor, n_clients: int) -> Topology:
        """Knows where its features lie and how wide a row is, and has no more centers than there are clients."""
        fit = Fit(layout.spans(self.features), like.shape[1], like.dtype)
        return replace(self, k=clipped(self.k, n_clients), fit=fit)

    def remembers(self, n_clients: int) -> Stacks:
        """The center of every client; in turn, until somebody finds better places."""
        return remembered(self, n_clients)

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """One-hot rows: the client's own center."""
        return Mixing.gather(memory["assignment"].cpu()[cohort.index], self.k)

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """E-step, FeSEM eq. 7."""
        if self.frozen:
            return {} if self.absent == "out" else noted(self, cohort, sent)
        distance, nearest = squared_distances(sent["model"], centers["model"], spans(self)).cpu().min(1)
        note = {"assignment": nearest, "distance": distance}
        if self.reseed:
            note |= self.refilled(memory, cohort, nearest, distance)
        return note | noted(self, cohort, sent)

    def refilled(self, memory: Stacks, cohort: Cohort, nearest: Tensor, distance: Tensor) -> Stacks:
        """Every center without clients takes the client farthest from its own, of a center that can spare one."""
        everyone, there = memory["assignment"].cpu().clone(), memory["placed"].cpu().clone()
        everyone[cohort.index], there[cohort.index] = nearest, True
        k, nearest, taken = self.k, nearest.clone(), torch.zeros(len(cohort)).long()
        count = torch.bincount(everyone[there], minlength=k)
        for empty in (count == 0).nonzero()[:, 0].tolist():
            far = torch.where((count[nearest] > 1) & (taken == 0), distance, 0.0)
            if len(far) and float(far.max()) > 0:
                who = int(far.argmax())
                count[nearest[who]] -= 1
                count[empty], nearest[who], taken[who] = 1, empty, 1
        return {"assignment": nearest, "reseeded": memory["reseeded"].cpu()[cohort.index] + taken}

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """M-step, FeSEM eq. 8: one-hot columns."""
        place = memory["assignment"].cpu()[cohort.index]
        return Mixing.scatter(place, self.k, cohort.weights if self.weighted else cohort.counts)

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """With absent="last", the M-step over the last known row of everybody."""
        if self.absent == "out":
            return memory, centers
        known = (memory["last_round"].cpu() >= 0).nonzero()[:, 0]
        place = memory["assignment"].cpu()[known]
        up = Mixing.scatter(place, len(centers["model"]), memory["last_weight"].cpu()[known])
        heard = up.total > 0
        new = centers["model"].clone()
        means = up.product(memory["last"], known)[heard] / up.total[heard, None]
        new[heard.to(new.device)] = means.to(new)
        return memory, centers | {"model": new}


@dataclass(frozen=True)
class Greeting(Clusters):
    """Where newcomers belong: K centers come down as `candidate0` .., they tell their `choice`; nothing is mixed."""

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """A column of ones for a candidate."""
        here = torch.full((len(cohort),), min(int(name.removeprefix("candidate")), self.k - 1))
        return Mixing.gather(here, self.k, of="model")

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """Where they chose to be; -1 is no choice."""
        choice = sent["choice"][:, 0].long().cpu()
        here = memory["assignment"].cpu()[cohort.index]
        return {"assignment": torch.where(choice >= 0, choice, here), "placed": choice >= 0}

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """Nothing: they have not sent a model."""
        return memory, centers


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
    features: str = "all"
    absent: Absent = "out"
    fit: Fit | None = field(default=None, repr=False)
    whole = True

    def __post_init__(self) -> None:
        check("Seeding", self.k, self.absent)
        require(self.restarts >= 1, f"Seeding.restarts must be at least 1, got {self.restarts}")
        require(
            self.seeding in ("kmeans++", "random"), f"Seeding.seeding must be kmeans++ or random, got {self.seeding!r}"
        )

    def n_centers(self, n_clients: int) -> int:
        """One, until it has run."""
        return 1

    def fitted(self, layout: Layout, like: Tensor, n_clients: int) -> Topology:
        """Knows where its features lie and how wide a row is, and has no more centers than there are clients."""
        fit = Fit(layout.spans(self.features), like.shape[1], like.dtype)
        return replace(self, k=clipped(self.k, n_clients), fit=fit)

    def remembers(self, n_clients: int) -> Stacks:
        """The center of every client."""
        return remembered(self, n_clients)

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """A column of ones: there is one center yet."""
        return Mixing.gather(torch.zeros(len(cohort), dtype=torch.int64), 1)

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """The best of many clusterings."""
        gram = inner_products(sent["model"], spans(self))
        if self.k > 1 and len(cohort) > 1 and not float(gram.diag().max()) > 0:
            warnings.warn(
                "all clients sent the same model, so clustering them means nothing and all go to the first center: "
                "let them train before they are clustered (a learning rate above 0, a longer warm_up)",
                stacklevel=2,
            )
        runs = [self.lloyd(gram, cohort, restart) for restart in range(self.restarts)]
        total, assignment = min(runs, key=lambda run: run[0])
        distance = torch.full((len(cohort),), total / max(1, len(cohort)), dtype=torch.float64)
        return {"assignment": assignment, "distance": distance} | noted(self, cohort, sent)

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """One-hot columns, K receivers."""
        place, k = memory["assignment"].cpu()[cohort.index], self.k
        return Mixing.scatter(place, k, cohort.weights if self.weighted else cohort.counts)

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """Whatever else a center holds, every one of the K now has."""
        k = self.k
        return memory, {name: rows.repeat(k, 1) if len(rows) == 1 and k > 1 else rows for name, rows in centers.items()}

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


def inner_products(rows: Tensor, columns: Spans = None, origin: Tensor | None = None) -> Tensor:
    """X X^T of rows less an origin (width,), by default their mean; float64 on the host, over pieces of the width."""
    out = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for piece in pieces(rows.shape[1], columns):
        part = rows[:, piece].to(torch.float64, copy=True)
        part -= part.mean(0) if origin is None else origin[piece].double()
        out += part @ part.T
    return out.cpu()


def squared_distances(rows: Tensor, centers: Tensor, columns: Spans = None) -> Tensor:
    """Squared distances (rows, centers), without ever forming rows x centers x width.

    |a - b|^2 = |a|^2 - 2 a.b + |b|^2 cancels badly when both are far from the origin and near each other, so
    everything is moved to the middle of the centers first; sums run in float64 over pieces of the width.
    """
    out = torch.zeros(len(rows), len(centers), dtype=torch.float64, device=rows.device)
    for piece in pieces(rows.shape[1], columns):
        b = centers[:, piece].double()
        middle = b.mean(0)
        a, b = rows[:, piece].to(torch.float64, copy=True).sub_(middle), b - middle
        out += torch.einsum("ij,ij->i", a, a)[:, None] - 2 * a @ b.T + b.square().sum(1)
    return out.clamp_(min=0).nan_to_num_(nan=math.inf, posinf=math.inf)  # what overflows is far away


def pieces(width: int, columns: Spans = None) -> Iterator[slice]:
    """All columns of a row, or some spans of them, at most COLUMNS at once."""
    for first, last in ((0, width),) if columns is None else columns:
        for begin in range(first, last, COLUMNS):
            yield slice(begin, min(begin + COLUMNS, last))


# -- what the parts above have in common --------------------------------------------------------------------


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


def spans(part: Clusters | Seeding) -> Spans:
    """The columns that distances are taken of."""
    if part.features == "all":
        return None
    require(part.fit is not None, f"features={part.features!r} needs a model: begin with `prepare` or `run`")
    assert part.fit is not None
    return part.fit.spans


def remembered(part: Clusters | Seeding, n_clients: int) -> Stacks:
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


def noted(part: Clusters | Seeding, cohort: Cohort, sent: Stacks) -> Stacks:
    """These clients have been placed; with absent="last", also what they sent, when, and how much it counts."""
    note: Stacks = {"placed": torch.ones(len(cohort), dtype=torch.bool)}
    if part.absent == "out":
        return note
    weight = cohort.weights if part.weighted else cohort.counts
    when = torch.full((len(cohort),), cohort.round)
    return note | {"last": sent["model"], "last_round": when, "last_weight": weight}
