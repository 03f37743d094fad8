"""FedCurv: a penalty holds a client back where the others' losses are curved, so that it does not forget them.

    client s:   w_s  <-  SGD on  F_s(w) + lambda sum_{j != s} (w - w_j)^T diag(I_j) (w - w_j),  from w
                I_s  <-  1/n_s sum_i (grad l_i(w_s))^2                  its Fisher diagonal, example by example
    center:     w    <-  mean of the w_s;   u <- sum_j I_j;   v <- sum_j I_j w_j

The sum over the others is carried by u and v alone: client s subtracts its own I_s and I_s w_s, which it keeps.
Sums run over the participants of the round before; a client that was absent has nothing to subtract.

Symbols:     lambda = `strength`, I_j = `fisher`, I_j w_j = `pull`.
Reduces to:  unweighted `fedavg` with strength = 0, in the first round, and with one client; with a constant Fisher
             c it is a proximal term of mu = 2 lambda c (|S| - 1) at the mean of the others' models.
Bytes:       three models up and three down for each client.
Stability:   2 lr lambda max(u) < 2, and u grows with the cohort; `implicit=True` is stable always.
Reference:   Shoham et al., Overcoming forgetting in federated learning on non-IID data, 2019,
             https://arxiv.org/abs/1910.07796; the penalty is that of EWC, Kirkpatrick et al., PNAS 2017.
"""

from typing import Any, Literal

from ..learn import Fisher, Forget, Train
from ..method import Average, Center, Everyone, Exchange, Method, Select, Star, recipe
from ..parts.objective import Curvature, Term


@recipe
def fedcurv(
    *,
    strength: float = 0.1,
    implicit: bool = False,
    labels: Literal["true", "model"] = "true",
    select: Select = Everyone(),
    center: Center = Average(),
    terms: tuple[Term, ...] = (),
    **training: Any,
) -> Method:
    """FedCurv with penalty `strength`; `labels` says whose labels the Fisher takes; `training` as in `Train`."""
    names = ("model", "fisher", "pull")
    learn = (Forget(), Train(terms=(Curvature(strength, implicit), *terms), **training), Fisher(labels))
    moved: dict[str, Any] = {"receives": names, "sends": names, "sums": names[1:]}
    return Method.of("fedcurv", Exchange(learn, Star(equal=True), select, optimizer=center, **moved))
