"""What is measured at an evaluation, and how it is named: a list of observers, each a function of the moment.

An observer takes a `Moment` and gives numbers by name; together they are a line of `metrics.jsonl`. One of your own,

    def sparsity(now):
        return {"zeros": float((now.state.centers["model"] == 0).double().mean())}

    pc.run(method, federation, observers=[sparsity])

stands behind ours. Observers look and change nothing; what happens *because* of a number is a matter of callbacks
(`runs.loop`) and of rules that stop a run (`runs.stopping`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

from torch import Tensor

from ..method import Exchange, Method, State
from ..round import Clients, Trip
from ..simulate.clients import Simulation
from ..stacks.cohort import View
from ..stacks.stack import Stacks
from .attribute_probe import probed
from .checkpoint import Tally
from .evaluate import evaluate, histograms
from .metrics import Scores
from .models_apart import average, consensus, disagreement, dissimilarity

Part = Literal["test", "valid"]


class Remote(Clients, Protocol):
    """Clients whose examples are elsewhere: they answer, and they score themselves."""

    blind: ClassVar[bool]  # True: what they send is sealed, so nobody knows here what the centers hold

    def scores(self, state: State, part: Part, tune: int = 0) -> Scores:
        """Every client's own score, with the model in use or after so many epochs of fine-tuning."""

    def silent(self, trip: Trip) -> int:
        """How many did not answer in time, or by nothing that could be looked at."""

    def letters(self, trip: Trip) -> dict[str, str]:
        """What was asked where an answer was used, by client: how whoever answered knows it again."""


@dataclass(frozen=True, eq=False)
class Moment:
    """A run between two rounds, which is what an observer (a metric of your own) is given."""

    method: Method
    clients: Simulation
    state: State
    tally: Tally
    trips: tuple[Trip, ...] = ()  # of the round before; none before the first round
    remote: Remote | None = None  # who answers, where the examples are elsewhere

    @cached_property
    def scores(self) -> Scores:
        """Every client's score on its test examples, with the model in use."""
        return self.scores_on("test")

    def scores_on(self, part: Part) -> Scores:
        """Every client's score on its part of a split."""
        if self.remote is not None:
            return self.remote.scores(self.state, part)
        return evaluate(self.method, self.state, self.clients, getattr(self.clients.federation, part))

    def counted(self, scores: Scores) -> Scores:
        """Only of the clients whose scores count: those who train and do not attack."""
        mask = (~self.clients.held_out_mask & ~self.clients.attackers).numpy()
        return scores if mask.all() else scores.only(mask)

    def settled(self) -> Moment:
        """The same without its trips, which know the state before the round; what was found out stays."""
        kept = ("scores", "average", "histograms", "probe")
        found: dict[str, Any] = {name: self.__dict__[name] for name in kept if name in self.__dict__}
        after = replace(self, trips=())
        after.__dict__.update(found)
        return after

    @property
    def exchange(self) -> Exchange:
        """By which the models in use came."""
        return self.method.in_use(self.state.round)

    def view(self, before: Stacks | None = None) -> View:
        """What the parts are shown; `before`: the memory before the round that has just ended."""
        state, honest = self.state, ~self.clients.attackers
        group = self.clients.federation.group
        return View(state.round, state.memory, state.centers, before, self.trains, honest, group)

    @property
    def trains(self) -> Tensor:
        """Who trains, (clients,) bool."""
        return (self.clients.federation.train.sizes > 0) & ~self.clients.held_out_mask

    @cached_property
    def average(self) -> dict[str, float]:
        """The mean of all centers as one model, and how far apart clients are, where centers work towards one."""
        found = average(self.method, self.state, self.clients, self.clients.federation.test)
        return found and found | {"disagreement": disagreement(self.method, self.state, self.clients)}

    @cached_property
    def histograms(self) -> dict[str, float]:
        """How a gate, where there is one, divides the test examples."""
        return histograms(self.method, self.state, self.clients, self.clients.federation.test)

    @cached_property
    def probe(self) -> dict[str, float]:
        """What a fresh classifier reads of a protected attribute in the representation, where a method has one."""
        return probed(self.method, self.state, self.clients)


Observer = Callable[[Moment], dict[str, Any]]


def counts(now: Moment) -> dict[str, Any]:
    """Where the run stands, and what it has cost."""
    return {
        "round": now.state.round,
        "clients": sum(len(trip.arrived) for trip in now.trips),
        "dropped": now.tally.dropped,
        "bytes_up": now.tally.bytes_up,
        "bytes_down": now.tally.bytes_down,
        "simulated_seconds": now.tally.seconds,
    }


def in_use(now: Moment) -> dict[str, Any]:
    """The scores of the models in use."""
    return now.counted(now.scores).summary()


def shown(now: Moment) -> dict[str, Any]:
    """What the topology and the selection say of themselves."""
    view = now.view(now.trips[0].before.memory if now.trips else None)
    return now.exchange.topology.shows(view) | now.exchange.select.shows(view)


def divided(now: Moment) -> dict[str, Any]:
    """How a gate divides the examples, where there is one."""
    return now.histograms


def averaged(now: Moment) -> dict[str, Any]:
    """The mean of the centers, where it is a model."""
    return now.average


def attribute(now: Moment) -> dict[str, Any]:
    """What the representation tells of a protected attribute."""
    return now.probe


def held_out(now: Moment) -> dict[str, Any]:
    """The scores of clients that never train."""
    if not now.clients.held_out:
        return {}
    scores = now.scores.only(now.clients.held_out_mask.numpy())
    return {f"held_out_{name}": value for name, value in scores.summary().items()}


def consensus_of(now: Moment) -> dict[str, Any]:
    """How far apart the clients' own models are, where there is no center."""
    if now.remote is not None and now.remote.blind:
        return {}
    apart = consensus(now.method, now.state, now.clients)
    return {} if apart is None else {"consensus": apart}


def dissimilar(now: Moment) -> dict[str, Any]:
    """How unlike the clients' gradients are; only where it is asked for, since it takes a pass over all data."""
    unlike = dissimilarity(now.method, now.state, now.clients)
    return {} if unlike is None else {"dissimilarity": unlike}


def validated(now: Moment) -> dict[str, Any]:
    """The scores on the validation split, where there is one."""
    valid = now.clients.federation.valid
    found = now.counted(now.scores_on("valid")).summary() if len(valid) else {}
    return {f"valid_{name}": value for name, value in found.items()}


def observers(dissimilarity: bool = False) -> tuple[Observer, ...]:
    """What every run measures, in the order of a line of metrics.jsonl."""
    asked = (dissimilar,) if dissimilarity else ()
    return (counts, in_use, shown, divided, averaged, attribute, held_out, consensus_of, *asked, validated)
