"""TKM (Robust): trimmed k-means of models that clients learned alone, then robust rounds in every cluster.

    stage 1, once:       w_i  <-  SGD on F_i from a common start, to (near) convergence
    stage 2, once:       r_i  <-  argmin_k |w_i - c_k|^2,   c_k  <-  trim_beta { w_i : r_i = k },   8 times
    stage 3, the rest:   c_k  <-  trim_beta { E epochs of SGD on F_i, from c_k : r_i = k }

trim_beta sorts every coordinate, drops the floor(beta n) smallest and largest of n values, and averages the rest.

Symbols:     K = `k`, beta = `beta`, r_i = `assignment`, c_k = row k of the centers.
Reduces to:  unweighted `fedsgd` with k = 1, beta = 0, `warm_up=None` and one full-batch step; stage 3 at beta = 0 is
             `fesem` whose clients stay where they are. One full-batch step of rate lr is the paper's gradient step:
             trim_beta { w - lr g_i } = w - lr trim_beta { g_i }.
Beware:      a cluster with fewer than 1 / beta members is not trimmed at all, and with fewer than three cannot be.
             More than floor(beta n) attackers in a cluster can move it. Data sizes do not count.
Reference:   Ghosh et al., Robust federated learning in a heterogeneous environment, 2019,
             https://arxiv.org/abs/1906.06629
"""

from dataclasses import replace
from typing import Any, Literal

from ..learn import Train
from ..method import Aggregate, Average, Center, Everyone, Exchange, Method, Select, recipe
from ..parts.aggregate import TrimmedMean
from ..topology import Clusters, TrimmedSeeding


@recipe
def tkm(
    *,
    k: int = 4,
    beta: float = 0.05,
    warm_up: int | None = 20,
    iterations: int = 8,
    restarts: int = 10,
    seeding: Literal["kmeans++", "random"] = "kmeans++",
    moving: bool = False,
    aggregate: Aggregate | None = None,
    select: Select = Everyone(),
    center: Center = Average(),
    **training: Any,
) -> Method:
    """TKM with `k` centers, trimming the share `beta` on either side; `training` are the arguments of `Train`.

    Arguments:
        k: how many centers.
        beta: share of the values dropped at either end of every coordinate, and of the rows that are no seeds.
        warm_up: epochs of the first round, in which everybody trains alone. None: as in the other rounds.
        iterations, restarts, seeding: of the clustering in the first round.
        moving: place clients again in every later round (one more iteration each), as FeSEM's authors ran it.
        aggregate: another rule than the trimmed mean, in both stages: `Median()`, `GeometricMedian()`, `Mean()`.
        select: who takes part in the rounds after the first.
    """
    train, rule = Train(**training), aggregate or TrimmedMean(beta)
    first = train if warm_up is None else replace(train, epochs=warm_up, steps=None)
    centers = TrimmedMean(0.0) if rule.linear else rule
    trimmed = TrimmedSeeding(k, restarts, iterations, seeding, rule=centers, outliers=beta)
    alone = Exchange((first,), trimmed, aggregate=rule)
    together = Exchange((train,), Clusters(k, frozen=not moving), select, rule, center)
    return Method("tkm", ((1, (alone,)), (1, (together,))))
