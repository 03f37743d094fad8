"""FedAvg: clients train for a few epochs, the center averages their models.

    client k:   w_k  <-  E epochs of SGD on F_k, from w
    center:     w    <-  sum_k (n_k / n) w_k            over the clients of the cohort, n = sum n_k

Symbols:     E = `epochs`, B = `batch`, C = `Uniform(share=C)`, n_k = examples of client k.
Reduces to:  `fedsgd` with one full-batch step; plain SGD with one client; training on one machine where all
             clients have the same data and take full-batch steps.
Beware:      with more than one step and non-IID clients the fixed point is not the optimum of the mean loss.
Reference:   McMahan et al., Communication-efficient learning of deep networks from decentralized data,
             AISTATS 2017, https://arxiv.org/abs/1602.05629
"""

from typing import Any

from ..learn import Train
from ..method import Aggregate, Average, Center, Exchange, Mean, Method, NoPrivacy, Privacy, Star, recipe
from ..parts.select import Everyone, Select, Stragglers
from ..stacks.stack import WHOLE, Cut


@recipe
def fedavg(
    *,
    select: Select = Everyone(),
    center: Center = Average(),
    aggregate: Aggregate = Mean(),
    privacy: Privacy = NoPrivacy(),
    equal: bool = False,
    stragglers: float = 0.0,
    cut: Cut = WHOLE,
    **training: Any,
) -> Method:
    """FedAvg; `training` are the arguments of `Train` (lr, epochs, batch, ...).

    Arguments:
        select: who takes part in a round.
        center: what the center does with the mean: `Average()`, `SGD(lr)`, `Momentum(lr, beta)`, `Adam(lr)`.
        aggregate: `Mean()`, or a robust rule such as `TrimmedMean(0.1)`.
        privacy: `Gaussian(clip, noise)` hides what any one client sends.
        equal: count every client the same instead of by its examples.
        stragglers: share of the cohort that is too slow; FedAvg waits for nobody and drops them.
        cut: parameters that stay at home, such as `KeepPrivate("conv*")`.
    """
    if stragglers:
        select = Stragglers(select, stragglers, drop=True)
    exchange = Exchange((Train(**training),), Star(equal), select, aggregate, center, privacy)
    return Method.of("fedavg", exchange, cut=cut)
