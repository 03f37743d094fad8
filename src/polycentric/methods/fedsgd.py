"""FedSGD: every client sends one gradient, the center takes one step along their mean.

    client k:   w_k  <-  w - lr grad F_k(w)             over all its examples
    center:     w    <-  sum_k (n_k / n) w_k  =  w - lr sum_k (n_k / n) grad F_k(w)

Symbols:     lr = `lr`, n_k = examples of client k.
Reduces to:  `fedavg` with `steps=1, batch=None`, which is how it is written; full-batch gradient descent on
             one machine where everybody takes part.
Reference:   McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629
"""

from ..learn import Train
from ..method import (
    Aggregate,
    Average,
    Center,
    Everyone,
    Exchange,
    Mean,
    Method,
    NoPrivacy,
    Privacy,
    Select,
    Star,
    recipe,
)


@recipe
def fedsgd(
    *,
    lr: float = 0.1,
    batch: int | None = None,
    decay: float = 1.0,
    weight_decay: float = 0.0,
    select: Select = Everyone(),
    center: Center = Average(),
    aggregate: Aggregate = Mean(),
    privacy: Privacy = NoPrivacy(),
) -> Method:
    """FedSGD with learning rate `lr`; `batch` examples make a stochastic gradient (None: all)."""
    train = Train(lr=lr, steps=1, batch=batch, decay=decay, weight_decay=weight_decay)
    return Method.of("fedsgd", Exchange((train,), Star(), select, aggregate, center, privacy))
