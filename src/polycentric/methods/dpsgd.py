"""D-PSGD: no center; every client trains by itself and averages with its neighbours on a graph.

    client i:   u_i  <-  tau steps of SGD on F_i, from w_i
                w_i  <-  sum_j M_ij u_j          over its neighbours j and itself;  M_ij = 1 / (1 + max(d_i, d_j))

M is symmetric and its rows sum to one, so the mean of all models is what it would be without mixing. An absent
neighbour's weight goes to the client's own model: M stays doubly stochastic whichever clients are there.

Symbols:     tau = `steps`; M = Metropolis weights of `graph`, d_i = neighbours of client i.
Reduces to:  unweighted `fedavg` with tau steps on the complete graph; `nofed` on a graph without edges; `matcha` with
             a budget of 1 where its matrix is the same (a ring with alpha = 1/3).
Beware:      models agree only in the limit, at a rate given by zeta of the graph (`polycentric topology advise`).
Reference:   Lian et al., Can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017,
             https://arxiv.org/abs/1705.09056; tau > 1: Wang and Joshi, Cooperative SGD, https://arxiv.org/abs/1808.07576
"""

from typing import Any, Literal

from ..learn import Train
from ..method import Aggregate, Everyone, Exchange, Mean, Method, Select, recipe
from ..stacks.stack import WHOLE, Cut
from ..topology import Gossip
from ..topology.graphs.networks import Network, Ring


@recipe
def dpsgd(
    *,
    graph: Network = Ring(),
    steps: int | None = 1,
    select: Select = Everyone(),
    aggregate: Aggregate = Mean(),
    disconnected: Literal["refuse", "allow"] = "refuse",
    cut: Cut = WHOLE,
    **training: Any,
) -> Method:
    """D-PSGD; `training` are the other arguments of `Train`.

    Arguments:
        graph: who is next to whom: `Ring()`, `Torus()`, `ErdosRenyi(0.3)`, ..., or a networkx graph.
        steps: local steps between two averagings (tau). None: `epochs` passes instead.
        select: who is there in a round; `Churn(...)` lets clients go away and come back.
        aggregate: `Mean()`, or a robust rule of what a client hears and its own, without the graph's weights.
        disconnected: "allow" takes a graph in several parts, each of which agrees within itself only.
        cut: parameters that stay at home, such as `KeepPrivate("head*")`.
    """
    topology = Gossip(graph, disconnected=disconnected)
    return Method.of("dpsgd", Exchange((Train(steps=steps, **training),), topology, select, aggregate), cut=cut)
