"""How many centers: try several numbers on a sample of the clients for a few rounds, as FeSEM's authors do.

The choice is made on the validation split, or by how much tighter the clusters get; test examples have no say.
Reference: Xie et al., Multi-center federated learning, 2020, https://arxiv.org/abs/2005.01026
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from ..data import Federation, Split
from ..errors import require
from ..stacks.draw import uniform
from .guarantee import warn_choice
from .recipes import recipe_of
from .start import run


@dataclass(frozen=True)
class Trial:
    """What one number of centers came to."""

    k: int
    valid_accuracy: float | None  # over all validation examples; None where there are none
    valid_loss: float | None  # the same
    intra_cluster: float  # mean squared distance of models to their center, when they were first clustered


def choose_k(
    federation: Federation,
    ks: Sequence[int] = (1, 2, 3, 4, 6, 8),
    *,
    by: Literal["valid", "distance"] = "valid",
    clients: int = 100,
    rounds: int = 3,
    seed: int = 0,
    method: str = "fesem",
    model: Any = None,
    **settings: Any,
) -> tuple[int, list[Trial]]:
    """The best number of centers K, and the result of every candidate.

    Arguments:
        federation: with a validation split (`valid=0.2` when it is loaded) for by="valid".
        ks: the numbers to try.
        by: "valid": the highest validation accuracy, or the lowest loss where numbers are predicted, the smaller number
            winning ties. "distance": the elbow, the number whose point (k, intra-cluster distance) lies farthest below
            the line from the first to the last; one round is enough.
        clients: a sample of so many, drawn by the seed.
        rounds: of each trial.
        method, model, settings: what is tried, as in `fesem(**settings)`.
    """
    ks = sorted(set(ks))
    require(len(ks) >= 1 and ks[0] >= 1, f"ks must be >= 1, got {ks}")
    require(rounds >= 1, f"rounds must be at least 1, got {rounds}")
    require(by in ("valid", "distance"), f"by must be valid or distance, got {by!r}")
    good = by == "distance" or len(federation.valid) > 0
    require(good, "by='valid' needs a validation split: load the data with valid=0.2, or choose by='distance'")
    some = sampled(federation, clients, seed)
    warn_choice([recipe_of(method)(k=k, **settings) for k in ks], "choose_k")
    trials = []
    for k in ks:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* centers were asked for")
            tried = recipe_of(method)(k=k, **settings)
            done = run(tried, some, model=model, rounds=rounds, seed=seed, evaluate_every=1, fine_tune=0)
        seeded, last = done.history[1], done.history[-1]  # later every client is near its own center, whatever k
        valid = last.get("valid_micro_accuracy"), last.get("valid_micro_loss")
        trials.append(Trial(k, *valid, seeded.get("intra_cluster", float("nan"))))
    if by == "valid":
        return max(trials, key=lambda t: (_validated(t), -t.k)).k, trials
    known = not any(math.isnan(t.intra_cluster) for t in trials)
    require(
        known, f"by='distance' is for methods that place clients by distance, and {method} does not: use by='valid'"
    )
    return elbow([t.k for t in trials], [t.intra_cluster for t in trials]), trials


def _validated(trial: Trial) -> float:
    """More is better; what diverged is worst."""
    if trial.valid_accuracy is not None:
        return trial.valid_accuracy
    return -math.inf if trial.valid_loss is None else -trial.valid_loss


def elbow(ks: Sequence[int], distances: Sequence[float]) -> int:
    """The number after which more centers gain little: farthest below the straight line between the ends.

    >>> elbow([1, 2, 3, 4, 8], [10.0, 4.0, 1.0, 0.9, 0.5])
    3
    """
    first, last = (ks[0], distances[0]), (ks[-1], distances[-1])
    gradient = (last[1] - first[1]) / max(last[0] - first[0], 1)
    below = [first[1] + gradient * (k - first[0]) - d for k, d in zip(ks, distances, strict=True)]
    return ks[max(range(len(ks)), key=lambda i: (below[i], -ks[i]))]


def sampled(federation: Federation, clients: int, seed: int = 0) -> Federation:
    """Some of the clients, drawn by the seed, with all their examples."""
    n = federation.n_clients
    if clients >= n:
        return federation
    keep = uniform(seed, "sample", torch.arange(n)).argsort()[:clients].sort().values
    new = torch.full((n,), -1)
    new[keep] = torch.arange(clients)

    def part(split: Split) -> Split:
        owner = new[split.owner.cpu()]
        there = owner >= 0
        at = there.to(split.x.device)
        return Split.gathered(split.x[at], split.y[at], owner[there], clients)

    group, protected = (None if of is None else of[keep] for of in (federation.group, federation.protected))
    names = tuple(federation.clients[int(k)] for k in keep)
    train, test, valid = (part(split) for split in (federation.train, federation.test, federation.valid))
    return replace(
        federation, train=train, test=test, valid=valid, clients=names, group=group, protected=protected, source=None
    )
