"""FedDist: the center moves part of the way to the plain mean of its clients' models.

    client k:   w_k  <-  E epochs of SGD on F_k, from w
    center:     w    <-  w - eps (1/|S|) sum_k (w - w_k)  =  (1 - eps) w + eps mean_k w_k

It is a gradient step on 1/m sum_k |w_k - w|^2, the factor 2 absorbed in eps: every client counts the same.

Symbols:     eps = `eps`, S = the cohort.
Reduces to:  unweighted `fedavg` at eps = 1; no change at eps = 0; `feddws` where all n_k are equal; Reptile with
             a center that takes SGD(eps) steps.
Beware:      eps > 1 extrapolates, and eps > 2 diverges even if the clients' models are fixed.
Reference:   Xie et al., Multi-center federated learning, 2020, https://arxiv.org/abs/2005.01026
"""

from typing import Any

from ..errors import require
from ..learn import Train
from ..method import Aggregate, Everyone, Exchange, Mean, Method, NoPrivacy, Privacy, Select, Star, recipe
from ..parts.optimizer import SGD


@recipe
def feddist(
    *,
    eps: float = 0.6,
    select: Select = Everyone(),
    aggregate: Aggregate = Mean(),
    privacy: Privacy = NoPrivacy(),
    **training: Any,
) -> Method:
    """FedDist with step `eps`; `training` are the arguments of `Train`."""
    require(0 <= eps <= 2, f"eps must be in [0, 2], got {eps}: above 2 it diverges; try 0.6")
    return Method.of("feddist", Exchange((Train(**training),), Star(equal=True), select, aggregate, SGD(eps), privacy))
