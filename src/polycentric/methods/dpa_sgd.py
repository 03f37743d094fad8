"""DPA-SGD: neighbours average their features, keep tasks of their own, and learn how their tasks are related.

    min  sum_k F_k(theta_k, w_k) + lambda_1/2 s_k tr(W_k^T Omega_k^-1 W_k) + lambda_2/2 |w_k|^2 + lambda_3/2 |theta_k|^2

    client k:   tau steps of SGD; the gradient of w_k gains lambda_1 (Q_kk w_k + sum_{i != k} Q_ki w_i) + lambda_2 w_k
    neighbours: theta    <-  M theta                    Metropolis weights; the tasks w_k are exchanged, not averaged
                Omega_k  <-  ((1 - beta) A_k + beta S_k^(1/2) / tr S_k^(1/2)) / tr(.)        A_k: the neighbours' mean

W_k: the tasks of the closed neighbourhood N(k), S_k = W_k W_k^T, tr Omega_k = 1; Q = sum_j s_j E_j Omega_j^-1 E_j^T.

Symbols:     w_k = `task`, the last layer; theta = `model`, the rest; lambda_1 = `strength`, lambda_2 = `ridge`,
             lambda_3 = `weight_decay`, tau = `steps`, M from `graph`, s_k = 1, or 1/n_k with reg_scale = "per_n".
Reduces to:  unweighted `fedavg` on the complete graph with strength = ridge = weight_decay = 0 and mix_task; SGD alone
             with ridge lambda_1 s_k + lambda_2 on w_k where nobody has a neighbour; `dpsgd` with mix_task and without
             penalties.
Beware:      steps need lr lambda_1 (largest eigenvalue of Q) < 2, else a warning. With mix_task all tasks tend to one
             and Omega to rank one. On dense graphs Q grows with |N|^2, and a neighbour sends |N|^2 numbers.
Reference:   averaging: Wang and Joshi, Cooperative SGD, 2018, https://arxiv.org/abs/1808.07576; the penalty: Zhang and
             Yeung, A convex formulation for learning task relationships, UAI 2010.
"""

import math
from typing import Any, Literal

from ..errors import require
from ..learn import Train
from ..method import Everyone, Exchange, Held, Method, Select, recipe
from ..parts.objective import MultiTask, Ridge, Term
from ..stacks.stack import LastLayer
from ..topology import TaskGraph
from ..topology.graphs.networks import Network, Ring


@recipe
def dpa_sgd(
    *,
    graph: Network = Ring(),
    steps: int | None = 5,
    strength: float = 1e-3,
    ridge: float = 1e-4,
    weight_decay: float = 1e-4,
    reg_scale: Literal["none", "per_n"] = "none",
    reg_terms: Literal["all", "own"] = "all",
    beta: float | None = None,
    eps: float = 1e-3,
    mix_task: bool = False,
    disconnected: Literal["refuse", "allow"] = "refuse",
    select: Select = Everyone(),
    terms: tuple[Term, ...] = (),
    **training: Any,
) -> Method:
    """DPA-SGD on a graph; `training` are the other arguments of `Train`.

    Arguments:
        steps: between two exchanges; None: epochs instead.
        reg_scale: "per_n" divides a neighbourhood's penalty by n_k, so that strength depends on the data; try 1 then.
        reg_terms: "own" keeps the terms of a client's own covariance; cheaper, and not the gradient of the objective.
        beta: weight of the fresh covariance; None: 1 / (|N(k)| + 1). eps: floor of the spectra.
        mix_task: average the tasks as well.
    """
    require(0 <= weight_decay < math.inf, f"weight_decay must be >= 0, got {weight_decay}; try 1e-4")
    terms = (MultiTask(strength), Ridge(ridge, "task"), Ridge(weight_decay), *terms)
    train = Train(steps=steps, terms=terms, **training)
    steep = train.lr * strength if reg_terms == "all" else 0.0
    limit = 2 / steep if steep else math.inf
    only_own = () if mix_task else ("task",)
    exchange = Exchange(
        learn=(train,),
        topology=TaskGraph(graph, only_own, disconnected, beta, eps, reg_scale == "per_n", reg_terms == "own", limit),
        select=select,
        receives=("model", "task", "pull", "stiffness"),
        sends=("model", "task"),
        holds={"stiffness": Held(1, 1.0)},
    )
    return Method.of("dpa-sgd", exchange, cut=LastLayer())
