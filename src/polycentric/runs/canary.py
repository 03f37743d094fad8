"""Canaries: clients whose updates are known, put into a private exchange or left out, many times over.

    present     client k sends a known direction v_k, far longer than the clip
    absent      it is missing (neighbours "add"), sends nothing new ("zero"), or sends the opposite ("replace")
    test        T_k = sum_i a_ik <what center i moved by, v_k>        a_ik its weight at center i; summed over rounds

Every exchange has many canaries, each present by a coin of its own. Their directions are orthogonal, and noise is the
same in all directions, so each of them is a trial by itself (Steinke et al., 2023). They go through the exchange:
its selection, weights, clip, sum and noise. Only training is left out. How well T tells the two worlds apart bounds
epsilon from below, so a bound above the stated epsilon proves that the mechanism, or the accounting, is wrong. A bound
below it proves nothing: T is one attack, and trials are few.

Reference:   Jagielski et al., Auditing differentially private machine learning: how private is private SGD?, NeurIPS
             2020, https://arxiv.org/abs/2006.07709; Steinke, Nasr and Jagielski, Privacy auditing with one (1) training
             run, NeurIPS 2023, https://arxiv.org/abs/2305.08846
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UsageError, require
from ..method import Exchange, Method, State
from ..parts.accountant import Neighbours, epsilon
from ..parts.optimizer import Average
from ..round import Answer, Clients, receive, run_exchange
from ..stacks.cohort import Cohort
from ..stacks.draw import normal, seed_of, uniform
from ..stacks.stack import Layout
from .separation import least_epsilon

MOST = 256  # canaries in an exchange
FAR = 1e6  # how long a canary's update is before it is clipped


@dataclass(frozen=True)
class Canary:
    """What trials proved of an epsilon."""

    trials: int  # of each world
    rounds: int  # of each trial
    delta: float
    stated: float  # epsilon of so many rounds
    lower: float  # epsilon is at least so much, with 95 % confidence
    neighbours: Neighbours

    @property
    def caught(self) -> bool:
        """Whether the stated epsilon is refuted."""
        return self.lower > self.stated

    @property
    def words(self) -> str:
        """The result in a line."""
        rounds = "one round" if self.rounds == 1 else f"{self.rounds} rounds"
        proved = f"canaries prove an epsilon of at least {self.lower:.3g} for {rounds}, and {self.stated:.3g} is stated"
        return f"{proved}: the statement is WRONG" if self.caught else f"{proved}: no contradiction"

    def to_json(self) -> dict[str, Any]:
        """Its numbers."""
        return asdict(self) | {"caught": self.caught}


def canary(
    exchange: Exchange, everyone: Cohort, delta: float, *, trials: int = 1000, rounds: int = 1, seed: int = 0
) -> Canary:
    """A lower bound on the epsilon of so many rounds of a private exchange.

    Arguments:
        exchange: with a privacy part that has its noise.
        everyone: who might take part; canaries are those that have most examples.
        delta: of the guarantee.
        trials: of each world, about.
        rounds: of each trial.
        seed: of all draws.
    """
    release = exchange.release(len(everyone))
    if release is None or exchange.told or exchange.unpack:
        raise UsageError(
            "a canary is for exchanges that hide clients, and whose clients send a model and nothing that is read: "
            "dp-fedavg, dp-fed-ls, or privacy=gaussian(...) in fedavg, fedprox, fedmes, hierarchical"
        )
    require(trials >= 20 and rounds >= 1, f"a canary needs trials >= 20 and rounds >= 1, got {trials} and {rounds}")
    n = min(len(everyone), MOST)
    layout, like = Layout.of(nn.Linear(n, 1, bias=False)), torch.zeros(1, n, dtype=torch.float64)
    # What a center does with a noised sum adds nothing that T needs.
    bare = replace(exchange.fitted(layout, like, everyone.n_clients), optimizer=Average())
    first = Method.of("canary", bare).begin({"model": like}, everyone.n_clients)
    here, gone = list[Tensor](), list[Tensor]()
    for number in range(-(-2 * trials // n)):
        flock = _Flock(everyone, release.neighbours, seed_of(seed, "canary", number))
        found = flock.test(bare, first, rounds)
        here.append(found[flock.present])
        gone.append(found[~flock.present])
    present, absent = torch.cat(here), torch.cat(gone)
    stated = epsilon([release._replace(times=rounds)], delta)
    lower = least_epsilon(present, absent, delta)
    return Canary(min(len(present), len(absent)), rounds, delta, stated, lower, release.neighbours)


@dataclass(frozen=True, eq=False)
class _Flock(Clients):
    """Clients of which those that count most are canaries; nobody trains."""

    cohort: Cohort
    neighbours: Neighbours
    seed: int

    @cached_property
    def numbers(self) -> Tensor:
        """The canaries, (n,)."""
        return self.cohort.index[self.cohort.sizes.argsort(descending=True, stable=True)[:MOST]]

    @cached_property
    def present(self) -> Tensor:
        """Which canaries are there, (n,) bool."""
        return uniform(self.seed, "present", self.numbers) < 0.5

    @cached_property
    def directions(self) -> Tensor:
        """v, (n, n), orthogonal rows of length one."""
        every = torch.arange(len(self.numbers))
        found: Tensor = torch.linalg.qr(normal(self.seed, "direction", every[:, None], every))[0]
        return found

    def everyone(self, round: int, turn: int = 0) -> Cohort:
        """All of them, canaries or not."""
        return replace(self.cohort, seed=self.seed, round=round, turn=turn)

    def answers(self, exchange: Exchange, state: State, cohort: Cohort) -> Iterator[Answer]:
        """Clipped directions of canaries that are there, and nothing new from everybody else."""
        away = {"add": 0.0, "zero": 0.0, "replace": -1.0}[self.neighbours]
        update = torch.zeros(cohort.n_clients, len(self.numbers), dtype=torch.float64)
        update[self.numbers] = torch.where(self.present, 1.0, away)[:, None] * self.directions
        if self.neighbours == "add":
            cohort = cohort[~torch.isin(cohort.index, self.numbers[~self.present])]
        if not len(cohort):
            return
        received = receive(exchange, state, cohort)
        moved = received["model"] + FAR * update[cohort.index]
        rows = exchange.privacy.at_clients(received | {"start": received["model"], "model": moved})
        yield Answer(cohort, {name: rows[name] for name in exchange.sends}, {})

    def test(self, exchange: Exchange, state: State, rounds: int) -> Tensor:
        """T of every canary, (n,)."""
        total = torch.zeros(self.cohort.n_clients, dtype=torch.float64)
        place = torch.zeros(self.cohort.n_clients, dtype=torch.int64)
        place[self.numbers] = torch.arange(len(self.numbers))
        for _ in range(rounds):
            before = state.centers["model"]
            receiver, sender, weight = exchange.up(state.memory, self.everyone(state.round), "model").links
            who = self.cohort.index[sender]
            state, _ = run_exchange(exchange, state, self, 0)
            moved = (state.centers["model"] - before) @ self.directions.T  # (centers, n)
            total.index_add_(0, who, weight * moved[receiver, place[who]])
            state = replace(state, round=state.round + 1)
        return total[self.numbers]
