"""The terms of a run: what a center tells every node with each parcel, and what a node has agreed to.

A node makes the same run of them as the center does, with its own examples and nobody else's: the method, the model and
its first parameters follow from the settings. Terms come with every parcel, so a node that was restarted or came late
needs nothing else, and a center needs not to know who was told what.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from ..data import Federation, Split
from ..errors import require
from ..language import files_of
from ..language.files import no_files
from ..language.own_code import own_names
from ..parts.accountant import COARSE, epsilon
from ..runs.guarantee import delta_of, releases
from ..runs.loop import Run
from ..runs.predict import in_terms_of
from ..runs.settings import Settings
from ..runs.start import Given, Others, built_method, prepared
from .letters import Spoiled

SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # names of runs, which become names of folders


class Terms(BaseModel):
    """What a run is, and which client of it a node is."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Literal["terms"] = "terms"
    version: Literal[1] = 1
    run: str = Field(pattern=f"^{SAFE.pattern}$", max_length=64)  # without ^ and $ any text that holds a name would do
    client: int = Field(ge=0, lt=1 << 31)
    clients: int = Field(ge=1, le=1 << 20)  # a node has a little memory for each
    able: int = Field(ge=0, lt=1 << 31)  # clients that train
    largest: int = Field(ge=0, lt=1 << 40)  # training examples of the one that has most
    classes: list[str] = Field(max_length=1 << 16)
    settings: dict[str, Any]
    names: dict[str, str] | None = None  # clients by their numbers, where they seal what they send each other


@dataclass(frozen=True)
class Limits:
    """What a node has agreed to when it joined; None: anything. Whatever exceeds it is refused."""

    methods: tuple[str, ...] | None = None
    rounds: int | None = None
    epsilon: float | None = None
    clients: int = 1  # that take part, at least
    trust: bool = False  # run code that the terms name as module:attribute

    def check(self, terms: Terms) -> Settings:
        """The settings of terms that are within them."""
        settings = Settings.of(terms.settings, "the terms")
        own = own_names(terms.settings)
        _agreed(self.trust or not own, f"code that is named there, {', '.join(sorted(own))}: --trust allows it")
        known = self.methods is None or settings.method in self.methods
        _agreed(known, f"method {settings.method}, and {', '.join(self.methods or ())} was agreed to")
        few = self.rounds is None or settings.rounds <= self.rounds
        _agreed(few, f"{settings.rounds} rounds, and {self.rounds} were agreed to")
        _agreed(terms.able >= self.clients, f"{terms.able} clients that train, and {self.clients} were agreed to")
        return settings

    def check_promise(self, run: Run, able: int) -> None:
        """Refuse a run that promises less than was agreed to."""
        if self.epsilon is None:
            return
        told = releases(run.method, run.settings.rounds, able)
        _agreed(told is not None, f"a method without a privacy part, and epsilon {self.epsilon:g} was agreed to")
        found = epsilon(told or [], delta_of(run.settings.delta, run.federation.n_clients), grid=COARSE)
        _agreed(found <= self.epsilon, f"epsilon {found:.4g}, and {self.epsilon:g} was agreed to")


def _agreed(good: bool, what: str) -> None:
    if not good:
        raise Spoiled(f"the terms ask for {what}")


def deployable(settings: Settings) -> Settings:
    """Settings that mean something between organisations; those that need everybody's examples in one place do not."""
    simulated: Mapping[str, str] = {
        "data": "every node brings its own: `polycentric join --data ...`",
        "partition": "every node brings its own data",
        "clients": "there are as many as nodes",
        "data_seed": "every node brings its own data",
        "valid": "every node holds out its own: `polycentric join --valid 0.1`",
        "standardise": "nobody has everybody's examples: scale them before they are imported",
        "dissimilarity": "it compares gradients on everybody's examples",
        "sketch": "it keeps something of every client's model",
        "unseen": "it scores models on everybody's examples",
        "optimistic": "it scores models on everybody's examples",
        "alone": "it trains on everybody's examples in one place",
        "held_out": "who is not to train does not join",
        "held_out_seed": "who is not to train does not join",
        "attack": "attackers are simulated",
        "clock": "time is real here",
        "workers": "every node trains by itself",
        "block": "every node trains by itself",
        "executor": "every node trains by itself",
        "state": "what clients keep is on the nodes' own disks",
    }
    for name, why in simulated.items():
        field = Settings.model_fields.get(name)
        value = getattr(settings, name, None)
        require(field is None or value == field.default, f"{name}={value} is for simulations: {why}; leave it out")
    named = files_of(built_method(settings))
    require(
        not named,
        f"{', '.join(named)} is a file of this machine, which nodes cannot read: say it in words, such as "
        'cells="regions(0:10 1:10 0+1:5)"',
    )
    every = settings.checkpoint_every
    require(
        every in (None, 1),
        f"checkpoint_every={every}: nodes keep what they need for a center that goes on after its last round: leave "
        "it out",
    )
    return settings.changed(data="federation", executor="looped", block=1, checkpoint_every=1, record=True)


def seated(own: Federation, client: int, n_clients: int, classes: list[str]) -> Federation:
    """The examples of one client among others that have none here, labels by the classes of all."""
    require(own.n_clients == 1, f"a node is one client, and these data have {own.n_clients}: choose one by --client")
    like = replace(own, classes=tuple(classes)) if classes else own

    def alone(split: Split) -> Split:
        offset = torch.zeros(n_clients + 1, dtype=torch.int64)
        offset[client + 1 :] = len(split)
        return replace(split, y=in_terms_of(like, split.y, own.classes, "the node"), offset=offset, piece=None)

    parts: dict[str, Any] = {part: alone(getattr(own, part)) for part in ("train", "valid", "test")}
    names = tuple(own.clients[0] if k == client else f"client {k}" for k in range(n_clients))
    return replace(like, **parts, clients=names, group=None, group_names=(), protected=None, source=None)


def run_at_node(terms: Terms, own: Federation, limits: Limits, device: str = "auto") -> Run:
    """The run that terms describe, with the examples of the node's client."""
    require(terms.client < terms.clients, f"client {terms.client} of {terms.clients}")
    settings = limits.check(terms).changed(device=device)
    federation = seated(own, terms.client, terms.clients, terms.classes)
    with no_files():  # whatever path the terms name
        made = prepared(settings, Given(federation=federation, others=Others(terms.able, terms.largest)))
    limits.check_promise(made, terms.able)
    return made
