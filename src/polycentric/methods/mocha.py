"""MOCHA: a linear model for every client, related by a learned covariance of tasks; convex, solved in the dual.

    P(W)      =  sum_t 1/n_t sum_i max(0, 1 - y_ti x_ti^T w_t)  +  lambda/2 tr(W^T Sigma^-1 W),     tr Sigma = 1
    client t: alpha_t  <-  some coordinate steps on its own examples, from w_t = 1/lambda sum_t' Sigma_tt' b_t'
    center:   b_t      <-  1/n_t X_t^T alpha_t;     every so many rounds  Sigma <- (W W^T)^(1/2) / tr(.)

The center holds the b_t, so W follows from the duals at once whenever Sigma changes.

Symbols:     lambda = `strength`, t = a client, W has rows w_t, b_t = row t of the centers, Sigma = `covariance`.
Reduces to:  an SVM for each client with ridge lambda m if relation = "none" (Sigma = I/m); one SVM for all, every
             client counting the same, if relation = "same"; plain dual coordinate ascent with one client.
Beware:      models are linear (--model logistic), inputs should have similar scales; a client without training examples
             gets the zero model. The objective is convex for a fixed Sigma and jumps when Sigma is updated.
Reference:   Smith et al., Federated multi-task learning, NeurIPS 2017, https://arxiv.org/abs/1705.10467
"""

from typing import Literal

from ..learn import Sdca
from ..method import Everyone, Exchange, Held, Method, Select, recipe
from ..parts.select import Stragglers
from ..topology import Duals


@recipe
def mocha(
    *,
    strength: float = 1e-2,
    relation: Literal["learned", "none", "same"] = "learned",
    share: float = 0.5,
    shuffle: bool = True,
    every: int = 10,
    eps: float = 1e-3,
    select: Select = Everyone(),
    stragglers: float = 0.0,
) -> Method:
    """MOCHA with penalty `strength`.

    Arguments:
        relation: the covariance is "learned", or fixed: "none" (every task alone), "same" (one model for all).
        share: coordinate steps of a client in a round, as a share of its examples, in random order if `shuffle`.
        every: rounds between two covariances.
        eps: floor of the covariance's spectrum.
        select: who takes part; `poisson(rate=0.9)` drops a client now and then.
        stragglers: share of the cohort that is slow, and does from a tenth of its steps to all of them.
    """
    if stragglers:
        select = Stragglers(select, stragglers, least=0.1)
    exchange = Exchange(
        learn=(Sdca(share, shuffle),),
        topology=Duals(strength, relation, every, eps),
        select=select,
        receives=("model", "stiffness"),
        tells=("primal", "dual"),
        holds={"model": Held(None), "stiffness": Held(1, 1.0)},
    )
    return Method.of("mocha", exchange)
