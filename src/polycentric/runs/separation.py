"""How well a score tells members from others, how sure that is, and what a stated epsilon allows.

An attacker gives everything a score, and calls a member what is above a threshold:

    TPR(t), FPR(t)      share of the members, and of the others, above t
    AUC                 area under TPR over FPR: the chance that a member scores higher than another (ties: one half)

Whatever is (epsilon, delta)-differentially private allows no attacker more than (Kairouz et al., ICML 2015)

    TPR  <=  min( e^epsilon FPR + delta,  1 - e^-epsilon (1 - delta - FPR),  1 ),
    AUC  <=  1 - (1 - delta)^2 / (1 + e^epsilon),                               the area under that

in expectation over who is a member. The other way round, a test that two worlds fail to pass bounds epsilon from below:

    epsilon  >=  log( (TPR - delta) / FPR )    and    epsilon  >=  log( (1 - FPR - delta) / (1 - TPR) )

Standard errors are those of a bootstrap that draws whole clients, whose examples are not independent of each other.

Reduces to: epsilon = delta = 0 allows AUC 1/2 and TPR = FPR, which is guessing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from ..errors import require
from ..stacks.draw import uniform

Reals = NDArray[np.float64]
AT = (0.01, 0.001)  # false positive rates that are told
REPEATS = 200  # of the bootstrap
FEW = 6  # clients below which examples are drawn by themselves
THRESHOLDS = 400  # tried, at most


@dataclass(frozen=True, eq=False)
class Separation:
    """How well members are told from others."""

    auc: float
    error: float  # standard error of the AUC
    tpr: dict[float, float]  # by the false positive rate that is allowed
    tpr_error: dict[float, float]
    members: int
    others: int
    drawn: Reals  # AUC of every repeat of the bootstrap: two attacks on the same examples have the same repeats

    @property
    def sure(self) -> int:
        """1 or -1 where the AUC is two standard errors above or below one half, else 0."""
        return (self.auc > 0.5 + 2 * self.error) - (self.auc < 0.5 - 2 * self.error)

    def above(self, other: Separation) -> tuple[float, float]:
        """By how much the AUC is above that of another attack on the same examples, and its (paired) standard error."""
        return self.auc - other.auc, float(np.nanstd(self.drawn - other.drawn, ddof=1))

    def to_json(self) -> dict[str, float | int | dict[str, float]]:
        """Its numbers."""
        tpr = {f"{at:g}": value for at, value in self.tpr.items()}
        error = {f"{at:g}": value for at, value in self.tpr_error.items()}
        counts = {"members": self.members, "others": self.others}
        return {"auc": self.auc, "auc_error": self.error, "tpr_at_fpr": tpr, "tpr_at_fpr_error": error, **counts}


def separation(
    score: ArrayLike, member: ArrayLike, client: ArrayLike | None = None, *, at: Sequence[float] = AT, seed: int = 0
) -> Separation:
    """How well a score tells members from others.

    Arguments:
        score: higher for members, if the attack is any good, (n,).
        member: who is one, (n,) bool.
        client: whose it is, (n,); the bootstrap draws clients. None, or fewer than six: it draws every one by itself.
        at: false positive rates.
        seed: of the bootstrap.
    """
    values, is_member = np.asarray(score, dtype=np.float64), np.asarray(member, dtype=bool)
    require(bool(is_member.any() and not is_member.all()), "an attack needs members and others to tell them from")
    require(not np.isnan(values).any(), "an attack's scores must be numbers, and some are NaN: has the run diverged?")
    place = np.unique(values, return_inverse=True)[1]  # ties share one
    group = np.arange(len(values)) if client is None else np.unique(np.asarray(client), return_inverse=True)[1]
    group = np.arange(len(values)) if group.max() + 1 < FEW else group
    found = _rates(place, is_member, np.ones(len(values)), at)
    n, repeats = int(group.max()) + 1, []
    for repeat in range(REPEATS):
        drawn = (uniform(seed, "bootstrap", repeat, torch.arange(n)) * n).long()
        repeats.append(_rates(place, is_member, torch.bincount(drawn, minlength=n).double().numpy()[group], at))
    spread = np.array(repeats)
    errors = np.nanstd(spread, axis=0, ddof=1).tolist()
    tprs, tpr_errors = dict(zip(at, found[1:], strict=True)), dict(zip(at, errors[1:], strict=True))
    return Separation(
        found[0], errors[0], tprs, tpr_errors, int(is_member.sum()), int((~is_member).sum()), spread[:, 0]
    )


def _rates(place: NDArray[np.int64], member: NDArray[np.bool_], weight: Reals, at: Sequence[float]) -> list[float]:
    """The AUC, and the TPR at every FPR, of weighted examples at places in the order of their scores."""
    n = int(place.max()) + 1
    true = np.bincount(place, weight * member, n)[::-1]
    false = np.bincount(place, weight * ~member, n)[::-1]
    all_true, all_false = true.sum(), false.sum()
    if not all_true or not all_false:  # a repeat that drew nobody of one kind
        return [math.nan] * (1 + len(at))
    above, wrong = true.cumsum(), false.cumsum()
    auc = float((false * (above - true / 2)).sum() / (all_true * all_false))
    return [auc, *(float(above[wrong <= rate * all_false].max(initial=0) / all_true) for rate in at)]


def of_each(score: ArrayLike, member: ArrayLike, client: ArrayLike, least: int) -> dict[int, tuple[float, float]]:
    """The AUC among every client's own, and its standard error (Hanley and McNeil, Radiology 1982).

    Clients with fewer than `least` members, or others, are left out.

        Q1 = A / (2 - A),   Q2 = 2 A^2 / (1 + A)
        error^2 = (A (1 - A) + (m - 1) (Q1 - A^2) + (n - 1) (Q2 - A^2)) / (m n)
    """
    values, is_member, owner = np.asarray(score, dtype=np.float64), np.asarray(member, dtype=bool), np.asarray(client)
    order = np.argsort(owner, kind="stable")
    names, first = np.unique(owner[order], return_index=True)
    found = {}
    for k, mine in zip(names.tolist(), np.split(order, first[1:]), strict=True):
        m, n = int(is_member[mine].sum()), int((~is_member[mine]).sum())
        if min(m, n) < least:
            continue
        place = np.unique(values[mine], return_inverse=True)[1]
        auc = _rates(place, is_member[mine], np.ones(m + n), ())[0]
        q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
        square = (auc * (1 - auc) + (m - 1) * (q1 - auc**2) + (n - 1) * (q2 - auc**2)) / (m * n)
        found[k] = auc, math.sqrt(max(square, 0.0))
    return found


# -- what an epsilon allows, and what an attack proves of it -------------------------------------------------


def most_auc(epsilon: float, delta: float = 0.0) -> float:
    """The largest AUC that any attack on something (epsilon, delta)-differentially private can have.

    >>> most_auc(0.0), round(most_auc(1.0), 3), most_auc(math.inf)
    (0.5, 0.731, 1.0)
    """
    return 1 - max(0.0, 1 - delta) ** 2 / (1 + math.exp(min(epsilon, 700.0)))


def most_tpr(epsilon: float, fpr: float, delta: float = 0.0) -> float:
    """The largest true positive rate at a false positive rate.

    >>> round(most_tpr(1.0, 0.01), 4), most_tpr(0.0, 0.25)
    (0.0272, 0.25)
    """
    factor = math.exp(min(epsilon, 700.0))
    return max(0.0, min(1.0, factor * fpr + delta, 1 - (1 - delta - fpr) / factor))


def of_a_part(epsilon: float, delta: float, neighbours: str) -> tuple[float, float]:
    """What a promise to whole clients promises for each of their examples.

    Another example makes another client of it. Where a client may be `replace`d, that is what is hidden. Where it may
    only be missing (`add`, `zero`), it takes two steps, away with the one and in with the other: (2 epsilon,
    (1 + e^epsilon) delta).
    """
    if neighbours == "replace":
        return epsilon, delta
    return 2 * epsilon, min(1.0, (1 + math.exp(min(epsilon, 700.0))) * delta)


def least_epsilon(with_it: ArrayLike, without: ArrayLike, delta: float, confidence: float = 0.95) -> float:
    """An epsilon that is exceeded, but for a chance of 1 - confidence: a test statistic in two neighbouring worlds.

    The threshold, and which way round, are chosen on the first half of the trials, and judged on the second by
    Clopper and Pearson's limits, so the bound holds whatever was chosen (Jagielski et al., NeurIPS 2020).
    """
    here, gone = np.asarray(with_it, dtype=np.float64), np.asarray(without, dtype=np.float64)
    least = min(len(here), len(gone))
    require(least >= 20, f"an epsilon is bounded by 20 trials of each world or more, got {least}")
    ends = [len(here) // 2, len(gone) // 2]
    tried = np.unique(np.concatenate([here[: ends[0]], gone[: ends[1]]]))
    tried = tried[:: -(-len(tried) // THRESHOLDS)]
    alpha = (1 - confidence) / 2  # half of the risk for each of the two rates
    chosen = _bounds(here[: ends[0]], gone[: ends[1]], tried, delta, alpha)
    way, at = np.unravel_index(int(chosen.argmax()), chosen.shape)
    judged = _bounds(here[ends[0] :], gone[ends[1] :], tried[[at]], delta, alpha)
    return max(0.0, float(judged[way, 0]))


def _bounds(here: Reals, gone: Reals, thresholds: Reals, delta: float, alpha: float) -> Reals:
    """Bounds on epsilon at every threshold, (4, thresholds): either world may be guessed, above it or below."""
    m, n = len(here), len(gone)
    true = m - np.searchsorted(np.sort(here), thresholds, side="right")
    false = n - np.searchsorted(np.sort(gone), thresholds, side="right")
    hits = ((true, m, false, n), (n - false, n, m - true, m), (false, n, true, m), (m - true, m, n - false, n))
    ratios = [(_at_least(a, of_a, alpha) - delta) / _at_most(b, of_b, alpha) for a, of_a, b, of_b in hits]
    return np.log(np.clip(np.stack(ratios), 1e-300, None))


def _at_least(hits: NDArray[np.int64], n: int, alpha: float) -> Reals:
    """Clopper and Pearson's lower limit of a rate."""
    return np.where(hits == 0, 0.0, betaincinv(np.maximum(hits, 1), n - hits + 1, alpha))


def _at_most(hits: NDArray[np.int64], n: int, alpha: float) -> Reals:
    """Clopper and Pearson's upper limit of a rate."""
    return np.where(hits == n, 1.0, betaincinv(hits + 1, np.maximum(n - hits, 1), 1 - alpha))
