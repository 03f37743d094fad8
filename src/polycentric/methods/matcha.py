"""MATCHA: no center; every round uses some matchings of a graph, drawn at random, the important ones more often.

    plan:       p      <-  argmax lambda_2(sum_j p_j L_j)   with sum_j p_j <= C_b M,  0 <= p_j <= 1
                alpha  <-  argmin | E[W^T W] - J |_2
    client i:   u_i    <-  a step of SGD on F_i, from w_i
                w      <-  W u,   W = I - alpha sum_j B_j L_j,   B_j = 1 with probability p_j, drawn by a shared seed

A matching is a set of edges that share no client, so its messages go at the same time: a round's delay is the number
of matchings in use, C_b M on average.

Symbols:     C_b = `budget`; M, L_j = number and Laplacians of the matchings of `graph` (at most one more than the
             largest number of neighbours); lambda_2 = algebraic connectivity of the expected graph.
Reduces to:  D-PSGD with W = I - alpha L for a budget of 1, and to unweighted `fedavg` if the graph is also complete;
             `dpsgd` where its matrix is the same (a ring with alpha = 1/3). Without a budget it would be `nofed`.
Beware:      weights may be negative. `schedule="periodic"` is not always worse: on a ring of 8 it agrees faster.
Reference:   Wang et al., MATCHA: speeding up decentralized SGD via matching decomposition sampling, 2019,
             https://arxiv.org/abs/1905.09435
"""

from typing import Any, Literal

from ..errors import require
from ..learn import Train
from ..method import Aggregate, Everyone, Exchange, Mean, Method, Select, recipe
from ..stacks.stack import WHOLE, Cut
from ..topology import Matchings
from ..topology.graphs.networks import Network, Ring


@recipe
def matcha(
    *,
    graph: Network = Ring(),
    budget: float = 0.5,
    schedule: Literal["matcha", "periodic"] = "matcha",
    alpha: float | None = None,
    steps: int | None = 1,
    select: Select = Everyone(),
    aggregate: Aggregate = Mean(),
    disconnected: Literal["refuse", "allow"] = "refuse",
    cut: Cut = WHOLE,
    **training: Any,
) -> Method:
    """MATCHA; `training` are the other arguments of `Train`.

    Arguments:
        graph: who may talk to whom: `Ring()`, `ErdosRenyi(0.3)`, ..., or a networkx graph.
        budget: share of the matchings that a round uses on average; 1 is plain D-PSGD.
        schedule: "periodic" uses all matchings together with probability `budget`, the baseline.
        alpha: mixing weight; None: the best for the plan.
        steps: local steps before mixing; None: `epochs` passes instead.
        select: who is there in a round.
        aggregate: `Mean()`, or a robust rule of what a client hears and its own, without the graph's weights.
        disconnected: "allow" takes a graph in several parts, each of which agrees within itself only.
        cut: parameters that stay at home.
    """
    require(0 < budget <= 1, f"budget must be in (0, 1], got {budget}; try 0.5, or use nofed for no communication")
    topology = Matchings(graph, budget, schedule, alpha, disconnected=disconnected)
    return Method.of("matcha", Exchange((Train(steps=steps, **training),), topology, select, aggregate), cut=cut)
