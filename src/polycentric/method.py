"""What a method is made of, and what lives from round to round.

A method is a sentence of parts. An *exchange* is one trip down and up; a round is one exchange or a few in
a row; a method is a list of *phases*, each so many rounds of the same exchanges.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, NamedTuple, ParamSpec

import torch
from torch import Tensor

from .errors import require, synonym
from .learn import Learner
from .models.around import Wrap
from .parts.accountant import Release
from .parts.aggregate import Aggregate as Aggregate, Mean as Mean, as_usual, shared_out
from .parts.optimizer import Average as Average, Center as Center, Rule
from .parts.privacy import NoPrivacy as NoPrivacy, Privacy as Privacy
from .parts.select import Everyone as Everyone, Select as Select
from .stacks import WHOLE, Cohort, Cut, Layout, Mixing, Stacks
from .topology import Star as Star, Topology


@dataclass(frozen=True, eq=False)
class State:
    """Everything that is kept from one round to the next: tensors and one integer."""

    centers: Stacks  # (centers, width)  what a center holds: `model`, its moments, sums, gradients
    kept: Stacks  # (clients, width)     what a client holds and never sends
    memory: Stacks  # what the parts remember: assignments, valuations, the data an edge heard
    round: int = 0  # rounds finished


class Held(NamedTuple):
    """Something a center holds beside its model, or instead of the first parameters where the name is theirs."""

    width: int | None  # None: as wide as the model
    value: float = 0.0  # everywhere, before the first round


@dataclass(frozen=True)
class Exchange:
    """One trip down and up: who -> receive -> learn -> keep -> protect -> mix -> step."""

    learn: tuple[Learner, ...]  # at the client, one after another
    topology: Topology = Star()
    select: Select = Everyone()
    aggregate: Aggregate = Mean()
    optimizer: Center = Average()
    privacy: Privacy = NoPrivacy()
    receives: tuple[str, ...] = ("model",)  # names that come down
    sends: tuple[str, ...] = ("model",)  # names that go up and are mixed into the centers
    sums: tuple[str, ...] = ()  # of these, names that every center adds up, with weights of one, instead of averaging
    tells: tuple[str, ...] = ()  # names that go up, are read by select and topology, and never mixed
    holds: Mapping[str, Held] = field(default_factory=dict)  # what centers hold beside the model, at the beginning
    keeps: tuple[str, ...] = ()  # of what comes down, names that are each client's own from then on
    unpack: tuple[Learner, ...] = ()  # makes a model of what was received, before training and before every score

    def __post_init__(self) -> None:
        unsent = sorted(set(self.sums) - set(self.sends))
        require(
            not unsent, f"{', '.join(unsent)} cannot be added up: only names that are sent can, {', '.join(self.sends)}"
        )
        if any(learner.hides for learner in self.chain):
            self._check_hidden()
        absent = sorted(set(self.keeps) - set(self.receives))
        require(not absent, f"{', '.join(absent)} cannot be kept: it does not come down, {', '.join(self.receives)} do")
        covered, extra = self.privacy.covers, self.privacy.extra
        for names, more in (("receives", extra.receives), ("sends", extra.sends)):
            there = getattr(self, names)
            object.__setattr__(self, names, there + tuple(name for name in more if name not in there))
        object.__setattr__(self, "holds", dict(self.holds) | {n: Held(1, v) for n, v in extra.holds.items()})
        if covered is None:
            return
        name = type(self.privacy).__name__
        bare = sorted(set(self.sends + self.told) - set(covered) - set(self.topology.sealed))
        require(
            not bare,
            f"{name} protects {', '.join(covered)}, but {', '.join(bare)} would leave the clients unprotected: choose "
            "a part that covers it, or do not send it",
        )
        why = (  # noise hides a client only where its weights, and nothing else, say how far it moves the centers
            "clients hear each other without a center that could add noise"
            if self.topology.at_home
            else f"where clients belong in {type(self.topology).__name__} is found from what they send"
            if self.topology.reads_updates and not self.topology.sealed
            else f"{type(self.aggregate).__name__} is not a sum with weights"
            if not self.aggregate.linear
            else ""
        )
        require(not why, f"{name} bounds the influence of one client on a weighted mean, but {why}: leave privacy out")
        topology = self.topology
        refused = self.privacy.refuses(topology.weighs, bool(topology.sealed))
        require(not refused, f"{name}: {refused}")

    def _check_hidden(self) -> None:
        """Where training hides examples, nothing else that has seen them may be sent, or decide what is."""
        sent = self.sends + self.told
        for learner in self.unpack + self.chain:
            bare = not learner.hides and (learner.writes is None or set(learner.writes) & set(sent))
            require(
                not bare,
                f"hide hides examples in what training sends, but {type(learner).__name__} looks at them too, without "
                "noise, for what is sent or trained: choose a method, a selection or settings without it, or leave "
                "hide out",
            )

    def example_releases(self, sizes: Tensor) -> tuple[Release, ...] | None:
        """What this exchange tells about one example of clients of these sizes, at most; None: nothing is promised.

        Learners that do not hide examples write nothing that is sent (the exchange would have been refused), and what
        they write is read by none that does, which reads only what it trains (`Train.release`).
        """
        hidden = [learner for learner in self.chain if learner.hides]
        bare = {name for learner in self.chain if not learner.hides for name in learner.writes or ()}
        mixed = bare and any(learner.writes is None or bare & set(learner.writes) for learner in hidden)
        found = [learner.release(sizes) for learner in hidden]
        told = tuple(each for each in found if each is not None)
        return told if hidden and not mixed and len(told) == len(hidden) else None

    @property
    def chain(self) -> tuple[Learner, ...]:
        """What clients do, one after another: what the selection asks of them, then the method's own work."""
        return self.select.learn + self.learn

    @property
    def told(self) -> tuple[str, ...]:
        """Names that go up to be read: the method's own and the selection's."""
        return self.tells + self.select.tells

    @property
    def whole(self) -> bool:
        """Whether mixing must see the cohort at once; if not, blocks stream."""
        return self.topology.whole or self.aggregate.whole

    @property
    def at_home(self) -> bool:
        """Whether every center lives with its client, and nothing but its neighbours' rows ever comes to it."""
        topology, kind = self.topology, type(self.topology)
        near = topology.at_home and topology.relayed and (kind.place, kind.meet) == (Topology.place, Topology.meet)
        own = as_usual(self.aggregate) and type(self.optimizer).step in (Average.step, Rule.step)
        return near and own and self.privacy.covers is None

    @property
    def shares(self) -> bool:
        """Whether it must do so for a rule alone that several processes can share out by columns."""
        return self.aggregate.whole and not self.topology.whole and shared_out(self.aggregate)

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """(centers, cohort): what every center hears of `name`; of what is added up, one of everybody it hears."""
        up = self.topology.up(memory, cohort, name)
        if name not in self.sums:
            return up
        receiver, sender, weight = up.links
        return Mixing.sparse(receiver, sender, torch.ones_like(weight), up.shape, "none")

    def release(self, able: int) -> Release | None:
        """What it tells of one of so many clients that might take part; None: all."""
        return self.privacy.release(self.select.chance(able), self.topology.weighs)

    def fitted(self, layout: Layout, like: Tensor, n_clients: int) -> Exchange:
        """The same exchange, its parts knowing the layout of `model`, a row of it, the clients, and each other."""
        topology = self.topology.fitted(layout, like, n_clients)
        learn, unpack = (tuple(each.fitted(n_clients) for each in part) for part in (self.learn, self.unpack))
        select, privacy = self.select.fitted(topology), self.privacy.fitted(layout, topology.n_centers(n_clients))
        return replace(self, learn=learn, unpack=unpack, topology=topology, select=select, privacy=privacy)

    def secured(self, key: bytes) -> Exchange:
        """The same, its noise drawn by a secret key: what is told to others does not say it."""
        learn = tuple(each.secured(key) for each in self.learn)
        return replace(self, learn=learn, privacy=self.privacy.secured(key))

    @property
    def private(self) -> bool:
        """Whether something is promised to clients."""
        return self.privacy.covers is not None

    def words(self, n_clients: int) -> str:
        """Who averages with whom, in a line."""
        added = f"; {', '.join(self.sums)} are added up, not averaged" if self.sums else ""
        rule = "" if self.aggregate.linear else f"; {type(self.aggregate).__name__} takes the place of the mean"
        return self.topology.words(n_clients) + rule + added


class Recipe(NamedTuple):
    """What a method was asked for: its name, and the arguments that were given."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Method:
    """The exchanges of every round: `phases` are (rounds, exchanges); the last phase lasts to the end."""

    name: str
    phases: tuple[tuple[int, tuple[Exchange, ...]], ...]
    cut: Cut = WHOLE  # which parameters go under which name
    around: Wrap | None = None  # what stands around the user's model, such as a private one and a gate
    recipe: Recipe | None = field(default=None, compare=False, repr=False)  # None: put together by hand

    @staticmethod
    def of(name: str, *exchanges: Exchange, cut: Cut = WHOLE) -> Method:
        """The same exchanges in every round."""
        return Method(name, ((1, exchanges),), cut)

    def __post_init__(self) -> None:
        require(bool(self.phases), f"method {self.name} has no phases")
        for rounds, exchanges in self.phases:
            require(rounds >= 1, f"a phase of method {self.name} has {rounds} rounds; it needs at least 1")
            require(bool(exchanges), f"a phase of method {self.name} has no exchange")

    def at(self, round: int) -> tuple[Exchange, ...]:
        """The exchanges of a round."""
        for rounds, exchanges in self.phases[:-1]:
            if round < rounds:
                return exchanges
            round -= rounds
        return self.phases[-1][1]

    def in_use(self, round: int) -> Exchange:
        """By which the models in use come: the last exchange but for those that hand on what clients then keep."""
        return next(exchange for exchange in reversed(self.at(round)) if not exchange.keeps)

    @property
    def at_home(self) -> bool:
        """Whether centers live with their clients in every exchange, and hear nothing but their neighbours."""
        return all(exchange.at_home for exchange in self.exchanges)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Every exchange of every phase."""
        return tuple(exchange for _, exchanges in self.phases for exchange in exchanges)

    def fitted(self, layout: Layout, like: Tensor, n_clients: int) -> Method:
        """The same method, its parts knowing the layout of `model`, a row of it (1, width), and the clients."""
        known = layout, like, n_clients
        phases = tuple((rounds, tuple(exchange.fitted(*known) for exchange in each)) for rounds, each in self.phases)
        return replace(self, phases=phases)

    def secured(self, key: bytes) -> Method:
        """The same method, its noise drawn by a secret key."""
        phases = tuple((rounds, tuple(exchange.secured(key) for exchange in each)) for rounds, each in self.phases)
        return replace(self, phases=phases)

    def starts(self, n_clients: int) -> int:
        """How many models must be drawn to begin with: one, or one for each center."""
        topology = self.at(0)[0].topology
        return topology.n_centers(n_clients) if topology.independent_init else 1

    def begin(self, start: Stacks, n_clients: int, largest: int = 1, n_outputs: int = 1) -> State:
        """The state before round 0.

        Arguments:
            start: initial parameters, {name: (1, width)}, or a row for each center. Names that some exchange receives
                or sends become centers; the others are kept, one row for each client.
            n_clients: all clients, with or without data.
            largest: examples of the client that has most; what is kept for each example is as wide.
            n_outputs: of the model.
        """
        first, topology = start["model"][:1], self.at(0)[0].topology
        topology.n_centers(n_clients)  # checked, also where no name asks for it
        travels = {name for e in self.exchanges for name in e.receives + e.sends}
        centers = {
            name: rows.repeat(topology.n_rows(n_clients, name) // len(rows), 1)
            for name, rows in start.items()
            if name in travels
        }
        own = start.keys() - travels | {name for e in self.exchanges for name in e.keeps}
        kept = {name: rows[:1].expand(n_clients, -1) for name, rows in start.items() if name in own}
        memory: Stacks = {}
        for exchange in self.exchanges:
            for name in {*exchange.sends, *exchange.holds}:  # zeros as wide as the model, unless it says otherwise
                held = exchange.holds.get(name, Held(None))
                width = start.get(name, first).shape[1] if held.width is None else held.width
                if name not in centers or (name in start and name in exchange.holds):
                    centers[name] = first.new_full((topology.n_rows(n_clients, name), width), held.value)
            for learner in exchange.unpack + exchange.chain:
                keeps = learner.keeps(first) | learner.keeps_each(first, largest, n_outputs)
                kept |= {n: row.to(first).expand(n_clients, -1) for n, row in keeps.items()}
            memory |= exchange.topology.remembers(n_clients) | exchange.select.remembers(n_clients)
        return State(centers, kept, memory)


Asked = ParamSpec("Asked")


def recipe(build: Callable[Asked, Method]) -> Callable[Asked, Method]:
    """What builds a method by name and settings; the method remembers both.

    Clients take `epochs` passes or exactly `steps` steps: where a method's own `steps` is only a default, `epochs` that
    are asked for go before it; where both are asked for, one of them would do nothing, and they are refused. (A
    method that names both itself means two things by them.)
    """
    own = inspect.signature(build).parameters

    @wraps(build)
    def asked(*args: Asked.args, **kwargs: Asked.kwargs) -> Method:
        given: dict[str, Any] = dict(kwargs)
        if "epochs" in given and "epochs" not in own:
            epochs, steps = given["epochs"], given.get("steps")
            both = (
                f"epochs={epochs} and steps={steps}: clients take so many epochs or so many steps, so drop one of them"
            )
            require(steps is None, both)
            given |= {"steps": None} if "steps" in own else {}
        try:
            method = build(*args, **given)  # type: ignore[arg-type]
        except TypeError as error:
            wrong = next((name for name in kwargs if synonym(name) and f"'{name}'" in str(error)), None)
            if wrong is None:
                raise
            raise TypeError(f"no setting is called '{wrong}': did you mean '{synonym(wrong)}'?") from error
        return replace(method, recipe=Recipe(method.name, dict(kwargs)))

    return asked
