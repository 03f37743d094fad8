"""FedDWS: FedDist with clients weighted by their data.

    client k:   w_k  <-  E epochs of SGD on F_k, from w
    center:     w    <-  w - eps sum_k p_k (w - w_k)  =  (1 - eps) w + eps sum_k p_k w_k,   p_k = n_k / n

Symbols:     eps = `eps`, p_k = share of the cohort's examples at client k.
Reduces to:  `fedavg` at eps = 1; no change at eps = 0; `feddist` where all n_k are equal.
Reference:   Xie et al., Multi-center federated learning, 2020, https://arxiv.org/abs/2005.01026
"""

from typing import Any

from ..errors import require
from ..learn import Train
from ..method import Aggregate, Everyone, Exchange, Mean, Method, NoPrivacy, Privacy, Select, Star, recipe
from ..parts.optimizer import SGD


@recipe
def feddws(
    *,
    eps: float = 0.6,
    select: Select = Everyone(),
    aggregate: Aggregate = Mean(),
    privacy: Privacy = NoPrivacy(),
    **training: Any,
) -> Method:
    """FedDWS with step `eps`; `training` are the arguments of `Train`."""
    require(0 <= eps <= 2, f"eps must be in [0, 2], got {eps}: above 2 it diverges; try 0.6")
    return Method.of("feddws", Exchange((Train(**training),), Star(), select, aggregate, SGD(eps), privacy))
