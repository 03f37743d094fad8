"""FedDANE: a first exchange averages the clients' gradients, and the mean corrects their local gradients.

    ask:    g    <-  sum_{k in S} p_k grad F_k(w)                       full gradients, from a cohort S
    act:    w_k  <-  SGD on  F_k(x) + <g - grad F_k(w), x - w> + mu/2 |x - w|^2,  from w,  by a cohort S' of its own
            w    <-  sum_{k in S'} p_k w_k

Symbols:     mu = `mu`, g = `gradient`, grad F_k(w) = `own_gradient`, p_k = share of the cohort's examples.
Reduces to:  `fedsgd` with all clients and one full-batch step, for every mu; `fedprox` with one client or
             identical clients. A stationary point of the mean loss is a fixed point for any number of full-batch
             steps, which it is not for FedAvg or FedProx.
Beware:      with few clients in a round g is noisy and the correction can diverge: the paper's own finding is that
             FedDANE stays behind FedAvg and FedProx. A round moves five models a client, not two.
Reference:   Li et al., FedDANE: a federated Newton-type method, 2019, https://arxiv.org/abs/2001.01920
"""

from typing import Any

from ..learn import Gradient, Train
from ..method import Aggregate, Average, Center, Everyone, Exchange, Mean, Method, Select, Star, recipe
from ..parts.objective import Dane, Prox, Term


@recipe
def feddane(
    *,
    mu: float = 0.1,
    select: Select = Everyone(),
    aggregate: Aggregate = Mean(),
    center: Center = Average(),
    terms: tuple[Term, ...] = (),
    **training: Any,
) -> Method:
    """FedDANE with proximal weight `mu`; `select` draws both cohorts; `training` are the arguments of `Train`."""
    ask = Exchange((Gradient(),), Star(), select, aggregate, sends=("gradient",))
    learn = (Gradient("own_gradient"), Train(terms=(Dane(), Prox(mu), *terms), **training))
    act = Exchange(learn, Star(), select, aggregate, center, receives=("model", "gradient"))
    return Method.of("feddane", ask, act)
