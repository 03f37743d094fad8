"""FedProx: FedAvg whose clients are tied to what they received.

    client k:   w_k  <-  a few epochs of SGD on  F_k(w) + mu/2 |w - w^t|^2,  from w^t
    center:     w    <-  sum_k (n_k / n) w_k

Symbols:     mu = `mu`, w^t = `start`, the model received.
Reduces to:  `fedavg` when mu = 0 and nobody straggles, and for every mu when clients take one step (the
             penalty has no gradient at w^t). As mu grows, w_k tends to w^t.
Stability:   the explicit step needs lr mu < 2; `implicit=True` is stable for every mu.
Reference:   Li et al., Federated optimization in heterogeneous networks, MLSys 2020,
             https://arxiv.org/abs/1812.06127
"""

from __future__ import annotations

import warnings
from typing import Any

from ..aggregate import Aggregate, Mean
from ..learn import Train
from ..method import Exchange, Method
from ..objective import Prox, Term
from ..optimizer import Average, Center
from ..select import Everyone, Select, Stragglers
from ..topology import Star


def fedprox(
    *,
    mu: float = 0.1,
    implicit: bool = False,
    select: Select = Everyone(),
    center: Center = Average(),
    aggregate: Aggregate = Mean(),
    stragglers: float = 0.0,
    terms: tuple[Term, ...] = (),
    **training: Any,
) -> Method:
    """FedProx with proximal weight `mu`; `training` are the arguments of `Train`.

    `stragglers` is the share of the cohort that does only part of its epochs; FedProx takes what they did.
    """
    train = Train(terms=(Prox(mu, implicit), *terms), **training)
    if not implicit and train.lr * mu >= 2:
        warnings.warn(
            f"lr * mu = {train.lr * mu:.3g} is not below 2, so the proximal step diverges: use implicit=True, "
            f"or lr below {2 / mu:.3g}",
            stacklevel=2,
        )
    if stragglers:
        select = Stragglers(select, stragglers)
    exchange = Exchange(learn=(train,), topology=Star(), select=select, aggregate=aggregate, optimizer=center)
    return Method.of("fedprox", exchange)
