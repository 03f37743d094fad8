"""MTL: one center averages the features, every client keeps a task of its own, one covariance relates all tasks.

    min  sum_k F_k(theta, w_k) + lambda_1/2 tr(W^T Omega^-1 W) + lambda_2/2 |W|^2 + lambda_3/2 |theta|^2,   tr Omega = 1

    client k:  E epochs of SGD, with  lambda_1 sum_i (Omega^-1)_ki w_i + lambda_2 w_k  added to the gradient of w_k
    center:    theta  <-  sum_k (n_k / n) theta_k;      Omega  <-  (W W^T)^(1/2) / tr (W W^T)^(1/2)

Symbols:     w_k = `task`, the last layer; theta = `model`, the rest; W has rows w_k; lambda_1 = `strength`,
             lambda_2 = `ridge`, lambda_3 = `weight_decay`. The others' tasks stand still while a client trains.
Reduces to:  `fedavg` with the last layer kept private where strength = ridge = 0; with one client SGD with ridge
             lambda_1 + lambda_2 on w.
Beware:      steps need lr lambda_1 (largest eigenvalue of Omega^-1) < 2, else a warning. The center learns every task.
Reference:   Zhang and Yeung, A convex formulation for learning task relationships, UAI 2010; averaged features: McMahan
             et al., AISTATS 2017.
"""

import math
from typing import Any

from ..errors import require
from ..learn import Train
from ..method import Average, Center, Everyone, Exchange, Held, Method, Select, recipe
from ..parts.objective import MultiTask, Ridge, Term
from ..stacks.stack import LastLayer
from ..topology import TaskStar


@recipe
def mtl(
    *,
    strength: float = 1e-3,
    ridge: float = 1e-4,
    weight_decay: float = 1e-4,
    eps: float = 1e-3,
    equal: bool = False,
    select: Select = Everyone(),
    center: Center = Average(),
    terms: tuple[Term, ...] = (),
    **training: Any,
) -> Method:
    """MTL with one covariance; `training` are the arguments of `Train`.

    Arguments:
        strength, ridge, weight_decay: lambda_1 to lambda_3. eps: floor of the covariance's spectrum.
        equal: count every client the same instead of by its examples.
    """
    require(0 <= weight_decay < math.inf, f"weight_decay must be >= 0, got {weight_decay}; try 1e-4")
    train = Train(terms=(MultiTask(strength), Ridge(ridge, "task"), Ridge(weight_decay), *terms), **training)
    steep = train.lr * strength
    exchange = Exchange(
        learn=(train,),
        topology=TaskStar(equal, 1.0, eps, 2 / steep if steep else math.inf),
        select=select,
        optimizer=center,
        receives=("model", "task", "pull", "stiffness"),
        sends=("model", "task"),
        holds={"stiffness": Held(1, 1.0)},
    )
    return Method.of("mtl", exchange, cut=LastLayer())
