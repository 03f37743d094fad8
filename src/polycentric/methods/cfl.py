"""Clustered FL: one center that splits in two whenever its clients pull in different directions.

    local:      w_i   <-  E epochs of SGD on F_i, from c_{r_i};           D_i = w_i - c_{r_i}
    center:     c_p   <-  mean of the w_i with r_i = p
    split p:    r_i   <-  one of two children of p, which begin from c_p,   when  |mean_i D_i| < eps1,
                          max_i |D_i| > eps2,  sqrt((1 - a_cross) / 2) > gamma,  round > t_min,  > 2 members came

a_ij is the cosine between D_i and D_j, and the two parts are those with the smallest largest a_ij across.

Symbols:     r_i = `assignment`, a_cross = max a_ij across the parts, tree of centers = `parent`.
Reduces to:  unweighted `fedavg` while nothing splits: with eps1 = 0, or t_min beyond the last round; `fedavg` if also
             `weighted`.
Beware:      in the paper eps1 and eps2 are norms of updates, which depend on learning rate and model; here they are
             shares of the largest update so far, unless `relative=False`.
Reference:   Sattler et al., Clustered federated learning, 2019, https://arxiv.org/abs/1910.01991
"""

from typing import Any, Literal

from ..learn import Train
from ..method import Aggregate, Average, Center, Everyone, Exchange, Mean, Method, Select, recipe
from ..topology import Splitting


@recipe
def cfl(
    *,
    eps1: float = 0.25,
    eps2: float = 0.4,
    relative: bool = True,
    gamma: float = 0.0,
    gap: float = 0.2,
    t_min: int = 20,
    linkage: Literal["single", "complete", "average"] = "single",
    weighted: bool = False,
    select: Select = Everyone(),
    aggregate: Aggregate = Mean(),
    center: Center = Average(),
    **training: Any,
) -> Method:
    """Clustered FL; `training` are the arguments of `Train`.

    Arguments:
        eps1: a cluster is stationary when its mean update is below this (the authors' code: a norm of 0.4).
        eps2: and torn when its largest update is above this (1.6).
        relative: both are shares of the largest update of any client so far, instead of norms.
        gamma: how far apart the two parts must be, 0 to 1; 0.7 is a right angle.
        gap: how much more alike members of one part must be than those of two, on average; 0 asks for nothing.
        t_min: no split before this round has passed.
        linkage: "single" finds the best split; "complete" and "average" are other codes' choices.
        weighted: centers count examples instead of clients.
        select: who takes part in a round.
        aggregate: `Mean()`, or a robust rule, which counts clients; when to split is decided by all updates.
    """
    topology = Splitting(eps1, eps2, relative, gamma, gap, t_min, linkage, weighted)
    return Method.of("cfl", Exchange((Train(**training),), topology, select, aggregate, center))
