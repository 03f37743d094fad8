"""FeSEM: K centers, learned together with the matching between clients and centers.

    E-step:     r_i   <-  argmin_k |w_i - c_k|^2                  every client goes to the nearest center
    M-step:     c_k   <-  mean of the w_i with r_i = k            every center becomes the mean of its clients
    local:      w_i   <-  E epochs of SGD on F_i (+ pull/2 |w - c_{r_i}|^2),  from c_{r_i}

The first round begins from one model: clients train, what they learned is clustered from 20 different seeds, and the
clustering with the smallest intra-cluster distance makes the K centers. (Without training first, every distance
would be zero.)

Symbols:     K = `k`, r_i = `assignment`, c_k = row k of the centers; `pull` = lambda of the paper's second version.
Reduces to:  unweighted `fedavg` with k = 1 and warm_up = None; `fedavg` if also `weighted`. The unweighted M-step is an
             orthogonal projection: the mean over all clients is kept.
Beware:      distances mean something only between models grown from a common ancestor; a center that nobody chooses
             keeps its model.
Reference:   Xie et al., Multi-center federated learning, 2020, https://arxiv.org/abs/2005.01026
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from ..aggregate import Aggregate, Mean
from ..learn import Train
from ..method import Exchange, Method
from ..objective import Prox, Term
from ..optimizer import Average, Center
from ..select import Everyone, Select
from ..topology import Clusters, Seeding


def fesem(
    *,
    k: int = 4,
    pull: float = 0.0,
    weighted: bool = False,
    restarts: int = 20,
    seeding: Literal["kmeans++", "random"] = "kmeans++",
    warm_up: int | None = 10,
    select: Select = Everyone(),
    aggregate: Aggregate = Mean(),
    center: Center = Average(),
    terms: tuple[Term, ...] = (),
    **training: Any,
) -> Method:
    """FeSEM with `k` centers; `training` are the arguments of `Train`.

    Arguments:
        k: how many centers.
        pull: ties a client to its center while it trains (0: version 1 of the paper).
        weighted: centers count examples instead of clients.
        restarts, seeding: of the clustering in the first round.
        warm_up: epochs of that round, in which everybody takes part; too few, and the groups are not yet apart.
            None: as in the other rounds.
        select: who takes part in the rounds after it.
        aggregate: `Mean()`, or a robust rule, which counts clients and not examples.
    """
    train = Train(terms=((Prox(pull),) if pull else ()) + terms, **training)
    first = train if warm_up is None else replace(train, epochs=warm_up, steps=None)
    seed = Exchange(
        learn=(first,), topology=Seeding(k, restarts, seeding=seeding, weighted=weighted), aggregate=aggregate
    )
    learn = Exchange(
        learn=(train,), topology=Clusters(k, weighted), select=select, aggregate=aggregate, optimizer=center
    )
    return Method("fesem", ((1, (seed,)), (1, (learn,))))
