"""No center, and only some of the edges at a time: matchings drawn by a shared seed."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ...errors import within
from ...stacks import Cohort, Links, Mixing, Stacks
from ...stacks.draw import uniform
from ..base import Picture, Wires
from .decomposition import Activation, MatchingPlan, plan_for
from .gossip import Peers, link_facts, symmetric
from .networks import Disconnected, Network, Ring, network_of


@dataclass(frozen=True)
class Matchings(Peers):
    """Neighbours on a graph of which every round uses some matchings, drawn at random (MATCHA).

        up   W = I - alpha sum_j B_j L_j,    B_j = 1 with probability p_j, the same coins at every client

    Symmetric, rows and columns sum to one; entries may be negative, where alpha times a client's neighbours is
    above one.

    Arguments:
        graph, only_own, disconnected: as in `Gossip`.
        budget: matchings used in a round on average, as a share of all; 1 uses all of them in every round.
        schedule: "matcha" gives every matching a coin of its own, with the best probabilities under the budget;
            "periodic" throws one coin for all of them.
        alpha: how far neighbours move towards each other; None: as makes them agree fastest.
    Reference: Wang et al., MATCHA: speeding up decentralized SGD via matching decomposition sampling, 2019.
    """

    graph: Network = Ring()
    budget: float = 0.5
    schedule: Activation = "matcha"
    alpha: float | None = None
    only_own: tuple[str, ...] = ()
    disconnected: Disconnected = "refuse"
    line = "no center: neighbours average, some matchings of the graph at a time"

    def __post_init__(self) -> None:
        object.__setattr__(self, "graph", network_of(self.graph))
        within(self, budget="[0, 1]; try 0.5", schedule=("matcha", "periodic"))
        within(self, alpha="> 0; leave it out and the best one is computed")

    def plan(self, n_clients: int) -> MatchingPlan:
        """Matchings, probabilities and mixing weight on that many clients; made once."""
        return plan_for(self.graph, n_clients, self.budget, self.schedule, self.alpha, self.disconnected)

    def active(self, seed: int, round: int | Tensor, n_clients: int) -> Tensor:
        """Which matchings a round uses, (matchings,) bool: the same at every client, whoever asks.

        Several rounds (rounds,) at once give (rounds, matchings).
        """
        plan = self.plan(n_clients)
        coin = torch.zeros(len(plan.p), dtype=torch.int64) if plan.together else torch.arange(len(plan.p))
        rounds = torch.as_tensor(round)[..., None]
        return uniform(seed, rounds, "matching", coin) < torch.from_numpy(plan.p)

    @property
    def wires(self) -> Wires:
        """Matchings go one after another."""
        return InTurn(at_home=True, of=self)

    def n_centers(self, n_clients: int) -> int:
        """One for each client; the plan is made here."""
        self.plan(n_clients)
        return n_clients

    def mixing(self, memory: Stacks, cohort: Cohort) -> Mixing:
        """I - alpha L of the matchings in use."""
        return _in_use(self, cohort.seed, cohort.round, cohort.n_clients)[1]

    def picture(self, memory: Stacks, everyone: Cohort) -> Picture:
        """Links by matching, and how often the coins used them so far; before the first round, how often they will."""
        n, done = everyone.n_clients, torch.arange(everyone.round)
        (pairs, part), p = self.plan(n).edges, torch.from_numpy(self.plan(n).p)
        used = self.active(everyone.seed, done, n).double().mean(0) if len(done) else p
        return Picture(Links(pairs[:, 0], pairs[:, 1], used[part]), n, 0, part)

    def facts(self, n_clients: int, seed: int = 0) -> dict[str, Any]:
        """Links and neighbours, and what the plan says."""
        plan = self.plan(n_clients)
        found = {"matchings": len(plan.p), "matchings_a_round": plan.expected_matchings}
        return link_facts(plan.edges[0], n_clients) | found | {"alpha": plan.alpha, "rho": plan.rho}


@dataclass(frozen=True)
class InTurn(Wires):
    """Neighbours who talk matching by matching."""

    of: Matchings = field(kw_only=True)

    def turns(self, memory: Stacks, cohort: Cohort) -> int:
        """How many matchings are in use."""
        return _in_use(self.of, cohort.seed, cohort.round, cohort.n_clients)[0]


@lru_cache(maxsize=2)
def _in_use(matchings: Matchings, seed: int, round: int, n: int) -> tuple[int, Mixing]:
    """How many matchings a round uses, and I - alpha L of those; asked for several times in a round."""
    plan, active = matchings.plan(n), matchings.active(seed, round, n)
    pairs, part = plan.edges
    pairs = pairs[active[part]]
    weight = torch.full((len(pairs),), plan.alpha, dtype=torch.float64)
    return int(active.sum()), symmetric(pairs.T, weight, n)
