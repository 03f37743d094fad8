"""Many centers, every client at one of them: distances between models, what is remembered, and FeSEM's clusters."""

import warnings
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...errors import require, within
from ...stacks import Cohort, Layout, Mixing, Stacks, View
from ...stacks.all_rows import Spans, squared_distances
from ..base import Topology


def agreement(assignment: npt.NDArray[np.int64], group: npt.NDArray[np.int64]) -> float:
    """The adjusted Rand index of a clustering with known groups: 1 is the same partition, 0 is chance.

    Of all ordered pairs of clients: together in both (tp), in neither (tn), in the clustering only (fp), in the groups
    only (fn).    ARI = 2 (tp tn - fn fp) / ((tp + fn)(fn + tn) + (tp + fp)(fp + tn)).
    Reference: Hubert and Arabie, Comparing partitions, Journal of Classification 1985.

    >>> group = np.array([5, 5, 3, 3])
    >>> agreement(np.array([0, 0, 1, 1]), group), agreement(np.array([0, 1, 0, 1]), group)
    (1.0, -0.5)
    """
    both = _counts(assignment, group)
    n, squares = int(both.sum()), int((both**2).sum())
    tp, fp, fn = squares - n, int((both.sum(1) ** 2).sum()) - squares, int((both.sum(0) ** 2).sum()) - squares
    tn = n * n - squares - fp - fn
    if fp == fn == 0:
        return 1.0
    return 2 * (tp * tn - fn * fp) / ((tp + fn) * (fn + tn) + (tp + fp) * (fp + tn))


def shared_information(assignment: npt.NDArray[np.int64], group: npt.NDArray[np.int64]) -> float:
    """The normalised mutual information of a clustering with known groups: 1 is the same partition, 0 is unrelated.

    NMI = sum_ij p_ij log(p_ij / (p_i p_j)) / ((H(p_i) + H(p_j)) / 2),        p shares of clients
    """
    both = _counts(assignment, group)
    p = both / max(1, both.sum())
    mine, theirs = p.sum(1), p.sum(0)
    if both.shape in ((0, 0), (1, 1)):
        return 1.0
    there = p > 0
    shared = float((p[there] * np.log(p[there] / np.outer(mine, theirs)[there])).sum())
    entropy = -float((mine * np.log(mine)).sum() + (theirs * np.log(theirs)).sum()) / 2
    return max(0.0, shared / entropy) if shared > np.finfo(np.float64).eps else 0.0


def _counts(assignment: npt.NDArray[np.int64], group: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many clients are in every cluster and group, (clusters, groups)."""
    (clusters, mine), (groups, theirs) = (np.unique(each, return_inverse=True) for each in (assignment, group))
    out = np.zeros((len(clusters), len(groups)), dtype=np.int64)
    np.add.at(out, (mine.reshape(-1), theirs.reshape(-1)), 1)
    return out


NUMBERS = 1 << 22  # float64 numbers of rows, of distances or of pairs at once
MOST_CENTERS = 2000  # that clients are clustered to: a clustering takes time by clients times centers, many times


Absent = Literal["out", "last"]


class Clustered(Topology):
    """Several centers, every client at one of them: `assignment` in the memory."""

    weighted: bool
    reads_updates = True

    def weights(self, cohort: Cohort) -> Tensor:
        """How much every client counts: the same, or by its examples (`weighted`)."""
        return cohort.weights if self.weighted else cohort.counts

    def remembers(self, n_clients: int) -> Stacks:
        """Whether clients were ever placed, how often they moved to another center since, and in which round last."""
        return {
            "placed": torch.zeros(n_clients, dtype=torch.bool),
            "moves": torch.zeros(n_clients, dtype=torch.int64),
            "moved_in": torch.full((n_clients,), -1),
        }

    def assignment(self, memory: Stacks) -> Tensor:
        """Every client's center."""
        return memory["assignment"]

    def placed(self, memory: Stacks, cohort: Cohort, place: Tensor) -> Stacks:
        """These clients belong there now, and some of them have moved."""
        was = {name: memory[name].cpu()[cohort.index] for name in ("assignment", "placed", "moves", "moved_in")}
        moved = was["placed"] & (was["assignment"] != place)
        return {
            "assignment": place,
            "placed": torch.ones(len(cohort), dtype=torch.bool),
            "moves": was["moves"] + moved,
            "moved_in": torch.where(moved, cohort.round, was["moved_in"]),
        }

    def shows(self, view: View) -> dict[str, float]:
        """How many clusters have clients, how tight they are, how like known groups, who moved, and who is attacked.

        `among_attackers`: honest clients at a center that attackers belong to, where there are any.
        """
        memory, trains = view.memory, view.trains
        place, placed = memory["assignment"].cpu(), memory.get("placed", trains).cpu()
        sizes = torch.bincount(place[trains])
        out = {"clusters": float((sizes > 0).sum()), "largest_cluster": float(sizes.max()) if len(sizes) else 0.0}
        if bool((attacks := trains & ~view.honest).any()):
            out["among_attackers"] = float((torch.isin(place, place[attacks]) & trains & view.honest).sum())
        if "moves" in memory:
            out["moves"] = float(memory["moves"].cpu()[trains].sum())
        if view.before is not None:
            moved = place != view.before["assignment"].cpu()
            out["reassigned"] = float((moved & trains & view.before.get("placed", trains).cpu()).sum())
        if "distance" in memory and bool(placed.any()):
            out["intra_cluster"] = float(memory["distance"].cpu()[placed].mean())
        if bool(memory.get("reseeded", place[:0]).any()):
            out["reseeded"] = float(memory["reseeded"].sum())
        for name, since in (("staleness", "last_round"), ("match_age", "way_round")):
            if since in memory and bool((known := memory[since].cpu() >= 0).any()):
                out[name] = float((view.round - 1 - memory[since].cpu()[known]).double().mean())
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
    then remember a row for everybody), or not at all ("out"). `together`: all begin at the first center, and
    there are K of them at most.
    """

    k: int
    weighted: bool = field(default=False, kw_only=True)
    features: str = field(default="all", kw_only=True)
    absent: Absent = field(default="out", kw_only=True)
    together: bool = field(default=False, kw_only=True)
    fit: Fit | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        within(self, k=">= 1", absent=("out", "last"))

    def fitted(self, layout: Layout, like: Tensor, n_clients: int) -> Self:
        """Knows where its features lie and how wide a row is, and has no more centers than there are clients."""
        fit, k = Fit(layout.spans(self.features), like.shape[1], like.dtype), self.k
        k = min(k, n_clients) if self.together else clipped(k, n_clients)
        require(
            k <= MOST_CENTERS,
            f"k={k} centers are too many to be found by clustering: take at most {MOST_CENTERS:,}, or nofed where "
            "every client is to have a model of its own",
        )
        return replace(self, k=k, fit=fit)

    @property
    def spans(self) -> Spans:
        """The columns that distances are taken of."""
        return None if self.features == "all" else self._fit(f"features={self.features!r} needs a model").spans

    def _fit(self, why: str) -> Fit:
        require(self.fit is not None, f"{why}: start it with `pc.run`")
        assert self.fit is not None
        return self.fit

    def remembers(self, n_clients: int) -> Stacks:
        """Where clients are (in turn or together, until better places are found), and whether that was ever found out.

        How far from their center they were, how often re-seeded, how often and when last they moved to another center;
        with absent="last", also what they sent last.
        """
        memory = super().remembers(n_clients) | {
            "assignment": torch.arange(n_clients) % (1 if self.together else self.k),
            "reseeded": torch.zeros(n_clients, dtype=torch.int64),
        }
        memory |= {} if self.together else {"distance": torch.zeros(n_clients, dtype=torch.float64)}
        if self.absent == "out":
            return memory
        fit = self._fit("absent='last' needs to know how wide a model is")
        return memory | {
            "last": torch.zeros(n_clients, fit.width, dtype=fit.dtype),
            "last_round": torch.full((n_clients,), -1),
            "last_weight": torch.zeros(n_clients, dtype=torch.float64),
        }

    def learned(self, memory: Stacks) -> Tensor | None:
        """Where K is a bound, the centers that have clients."""
        return in_use(memory, self.k) if self.together else None

    def noted(self, cohort: Cohort, sent: Stacks) -> Stacks:
        """With absent="last": what clients sent, when, and how much it counts."""
        if self.absent == "out":
            return {}
        when = torch.full((len(cohort),), cohort.round)
        return {"last": sent["model"], "last_round": when, "last_weight": self.weights(cohort)}

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """One-hot columns, K receivers: FeSEM's M-step, eq. 8."""
        return Mixing.scatter(memory["assignment"].cpu()[cohort.index], self.k, self.weights(cohort))


def in_use(memory: Stacks, k: int) -> Tensor:
    """Which of K centers have clients that were placed there, (k,) bool; before anybody was, that have any."""
    place, known = memory["assignment"].cpu(), memory["placed"].cpu()
    return torch.bincount(place[known] if bool(known.any()) else place, minlength=k) > 0


def turns(label: Tensor) -> Tensor:
    """How many before it have the same label, for each, (n,).

    >>> turns(torch.tensor([3, 1, 3, 3, 1]))
    tensor([0, 0, 1, 2, 1])
    """
    order = label.argsort(stable=True)
    counts = torch.unique_consecutive(label[order], return_counts=True)[1]
    first = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)) - first)


def clipped(k: int, n_clients: int) -> int:
    """K, or as many as there are clients."""
    if k > n_clients:
        there = f"there are only {n_clients} clients: using {n_clients}"
        warnings.warn(f"{k} centers were asked for, but {there}", stacklevel=2)
    return max(1, min(k, n_clients))


@dataclass(frozen=True)
class Clusters(ByDistance):
    """K centers, every client at one of them: one-hot rows down, one-hot columns up (FeSEM, TKM).

    The E-step is `place`: a client goes to the center nearest to what it sent (FeSEM eq. 7), the lowest
    number winning ties. The M-step is `up`: the mean of a center's clients (eq. 8), which by the paper counts
    clients (`weighted=False`). A center without clients keeps its model. `frozen`: nobody moves any more. `reseed`: a
    center that has lost all its clients begins again at the row that is farthest from its own center. `features` and
    `absent` are those of `ByDistance`.
    """

    weighted: bool = False
    frozen: bool = False
    reseed: bool = False

    @property
    def whole(self) -> bool:  # type: ignore[override]
        """Whether a center is empty is known only when all have come."""
        return self.reseed

    def n_centers(self, n_clients: int) -> int:
        """K."""
        return self.k

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """One-hot rows: the client's own center."""
        return Mixing.gather(memory["assignment"].cpu()[cohort.index], self.k)

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """E-step, FeSEM eq. 7."""
        if self.frozen:
            return self.noted(cohort, sent)
        distance, nearest = squared_distances(sent["model"], centers["model"], self.spans).cpu().min(1)
        note = {"distance": distance}
        if self.reseed:
            nearest, taken = self.refilled(memory, cohort, nearest, distance)
            note |= {"reseeded": memory["reseeded"].cpu()[cohort.index] + taken}
        return note | self.placed(memory, cohort, nearest) | self.noted(cohort, sent)

    def refilled(self, memory: Stacks, cohort: Cohort, nearest: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Every center without clients takes the client farthest from its own, of a center that can spare one.

        Returns where clients are then, and who was taken, (cohort,) each.
        """
        everyone, there = memory["assignment"].cpu().clone(), memory["placed"].cpu().clone()
        everyone[cohort.index], there[cohort.index] = nearest, True
        count = torch.bincount(everyone[there], minlength=self.k)
        empty, far = (count == 0).nonzero()[:, 0], distance.argsort(descending=True, stable=True)
        far = far[distance[far] > 0]
        spares = far[turns(nearest[far]) < count[nearest[far]] - 1]  # whose center keeps at least one
        who = spares[: len(empty)]
        after, taken = nearest.clone(), torch.zeros(len(cohort)).long()
        after[who], taken[who] = empty[: len(who)], 1
        return after, taken

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

    def words(self, n_clients: int) -> str:
        """Means of their clients."""
        where = (
            "clients stay where the clustering put them"
            if self.frozen
            else "every round, each client goes to the nearest"
        )
        most = "up to " * self.together
        return f"{most}{min(self.k, n_clients)} centers, the means of their clients; {where}"
