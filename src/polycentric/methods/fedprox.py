"""FedProx: FedAvg with a proximal term that ties clients to the model they received; it limits client drift.

    client k:   w_k  <-  a few epochs of SGD on  F_k(w) + mu/2 |w - w^t|^2,  from w^t
    center:     w    <-  sum_k (n_k / n) w_k

Symbols:     mu = `mu`, w^t = `start`, the model received.
Reduces to:  `fedavg` when mu = 0 and nobody straggles, and for every mu when clients take one step (the
             penalty has no gradient at w^t). As mu grows, w_k tends to w^t.
Adaptive:    `adaptive=True` lets the center raise mu by 0.1 when the mean loss rises and lower it by 0.1 after five
             falls in a row, from `mu`; the clients' mean loss at the model received comes up for that.
Stability:   the explicit step needs lr mu < 2; `implicit=True` is stable for every mu.
Reference:   Li et al., Federated optimization in heterogeneous networks, MLSys 2020,
             https://arxiv.org/abs/1812.06127
"""

import math
import warnings
from dataclasses import replace
from typing import Any

from ..errors import require
from ..learn import MeanLoss, Train
from ..method import Aggregate, Average, Center, Exchange, Held, Mean, Method, NoPrivacy, Privacy, Star, recipe
from ..parts.objective import AdaptiveProx, Prox, Term
from ..parts.optimizer import AdaptiveMu
from ..parts.select import Everyone, Select, Stragglers


@recipe
def fedprox(
    *,
    mu: float = 0.1,
    implicit: bool = False,
    adaptive: bool = False,
    select: Select = Everyone(),
    center: Center = Average(),
    aggregate: Aggregate = Mean(),
    privacy: Privacy = NoPrivacy(),
    stragglers: float = 0.0,
    terms: tuple[Term, ...] = (),
    **training: Any,
) -> Method:
    """FedProx with proximal weight `mu`; `training` are the arguments of `Train`.

    `stragglers` is the share of the cohort that does only part of its epochs; FedProx takes what they did.
    """
    require(not (implicit and adaptive), "adaptive mu has no implicit step: choose adaptive or implicit")
    prox: Term = AdaptiveProx() if adaptive else Prox(mu, implicit)
    train = Train(terms=(prox, *terms), **training)
    if not implicit and train.lr * mu >= 2:
        warnings.warn(
            f"lr * mu = {train.lr * mu:.3g} is not below 2, so the proximal step diverges: use implicit=True, or lr "
            f"below {2 / mu:.3g}",
            stacklevel=3,
        )
    if stragglers:
        select = Stragglers(select, stragglers)
    exchange = Exchange((train,), Star(), select, aggregate, center, privacy)
    if adaptive:
        exchange = replace(
            exchange,
            learn=(MeanLoss(), train),
            optimizer=AdaptiveMu(center),
            receives=("model", "mu"),
            sends=("model", "loss"),
            holds={"mu": Held(1, mu), "loss": Held(1, math.inf), "falls": Held(1)},
        )
    return Method.of("fedprox", exchange)
