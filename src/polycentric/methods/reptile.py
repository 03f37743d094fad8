"""Reptile: K steps at each client, all with the same weight, and a step of the center towards their mean.

    client i:   theta_i  <-  K steps of SGD on L_i, from theta
    center:     theta    <-  theta - update( theta - 1/T sum_i theta_i )

Reptile(K) counts *steps* and clients; FedAvg(E) counts *epochs* and examples. The pseudo-gradient divided by the
clients' learning rate is the sum of the gradients along the way: that of FedSGD and of FOMAML(1), ..., FOMAML(K-1).

Symbols:     K = `steps`, beta = `lr`; `center` is the outer optimizer, SGD(1) unless said otherwise.
Reduces to:  `fedavg` with steps = K and equal sizes, with center SGD(1); `feddist` with center SGD(eps).
Reference:   Nichol et al., On first-order meta-learning algorithms, 2018, https://arxiv.org/abs/1803.02999
"""

from typing import Any

from ..learn import Train
from ..method import Aggregate, Center, Everyone, Exchange, Mean, Method, NoPrivacy, Privacy, Select, Star, recipe
from ..parts.optimizer import SGD


@recipe
def reptile(
    *,
    steps: int | None = 5,
    center: Center = SGD(1.0),
    select: Select = Everyone(),
    aggregate: Aggregate = Mean(),
    privacy: Privacy = NoPrivacy(),
    **training: Any,
) -> Method:
    """Reptile with `steps` local steps (None: `epochs` passes); `training` are the other arguments of `Train`."""
    train = Train(steps=steps, **training)
    return Method.of("reptile", Exchange((train,), Star(equal=True), select, aggregate, center, privacy))
