"""Every client of a federation by itself, in this process, and a post that carries letters at once, or badly."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from polycentric import Federation
from polycentric.deploy.center import Nodes
from polycentric.deploy.joining import one_of
from polycentric.deploy.letters import packed
from polycentric.deploy.participant import Participant
from polycentric.deploy.roster import Hello, Present, federation_of, presented
from polycentric.deploy.serve import terms_of
from polycentric.deploy.terms import Limits
from polycentric.runs.loop import Run
from polycentric.runs.start import prepared
from polycentric.stacks.draw import uniform

RUN = "a-run"
trusting = Limits(trust=True)


def clients_of(federation: Federation, folder: Path | None = None, **how: Any) -> dict[int, Participant]:
    """Every client by itself, keeping things in memory or in a folder."""
    names = federation.clients
    return {
        k: Participant(one_of(federation, k), None if folder is None else folder / str(k), name=names[k], **how)
        for k in range(federation.n_clients)
    }


def restarted(client: Participant, **changes: Any) -> Participant:
    """The same client in a new process: with what is in its folder, and nothing else."""
    return replace(client, _node=None, _replied={}, _lock=threading.Lock(), **changes)


def roster_of(clients: Mapping[int, Participant]) -> dict[str, Present | None]:
    return {c.name: presented(c.answer([packed(Hello(), {})])[0]) for c in clients.values()}


def deployed(
    run: Run, clients: Mapping[int, Participant], post: Callable[[Callable[[int], bytes]], Any], **how: Any
) -> Run:
    """The center's run of the same settings as a simulated one, which knows its clients by what they told only."""
    federation = federation_of(roster_of(clients))
    objects = replace(run.objects, federation=federation)

    def nodes(made: Run) -> Nodes:
        terms = terms_of(made, RUN, made.settings)
        return Nodes.of(made, RUN, post(lambda k: packed(terms(k), {})), **how)

    settings = run.settings.changed(executor="looped", block=1)
    return prepared(settings, replace(objects, nodes=nodes), needs=("federation", "nodes"))


@dataclass(eq=False)
class AtOnce:
    """A post that loses nothing: every letter is answered before anybody looks."""

    clients: Mapping[int, Participant]
    terms: Callable[[int], bytes]
    replies: list[tuple[int, bytes]] = field(default_factory=list)

    def send(self, letters: Mapping[int, Sequence[bytes]]) -> None:
        for client, each in letters.items():
            found = self.clients[client].answer([self.terms(client), *each])
            self.replies += [(client, reply) for reply in found]

    def fetch(self) -> list[tuple[int, bytes]]:
        found, self.replies = self.replies, []
        return found


@dataclass(eq=False)
class Badly:
    """A post with a time of its own, which loses, doubles, delays and reorders by a seed; nodes crash and come back.

    What happens to a letter follows from (seed, how many were sent before it), so a schedule can be played again.
    """

    clients: Callable[[int], Participant]  # a client as it comes back: with what it kept, and nothing else
    terms: Callable[[int], bytes]
    seed: int
    loses: float = 0.1
    doubles: float = 0.1
    dies: float = 0.05
    slowest: float = 8.0
    now: float = 0.0
    sent: int = 0
    waiting: list[tuple[float, int, int, list[bytes]]] = field(default_factory=list)
    old: list[tuple[int, list[bytes]]] = field(default_factory=list)

    def send(self, letters: Mapping[int, Sequence[bytes]]) -> None:
        for client, each in letters.items():
            self.sent += 1
            chance = uniform(self.seed, "fault", self.sent, torch.arange(8)).tolist()
            for copy in range(2 if chance[0] < self.doubles else 1):
                if chance[1 + copy] < self.loses:
                    continue
                replies = self.clients(client).answer([self.terms(client), *each])
                self.old.append((client, replies))
                if chance[3 + copy] < self.dies:
                    continue  # it had kept what it learned, and died before the reply left
                heapq.heappush(self.waiting, (self.now + self.slowest * chance[5 + copy], self.sent, client, replies))
            if chance[7] < self.doubles and self.old:  # an old reply comes again
                again = self.old[int(chance[0] * len(self.old))]
                heapq.heappush(self.waiting, (self.now + chance[1], self.sent, *again))

    def fetch(self) -> list[tuple[int, bytes]]:
        found = []
        while self.waiting and self.waiting[0][0] <= self.now:
            _, _, client, replies = heapq.heappop(self.waiting)
            found += [(client, reply) for reply in replies]
        return found

    def clock(self) -> float:
        return self.now

    def rest(self, seconds: float) -> None:
        nearest = self.waiting[0][0] if self.waiting else self.now + 1.0
        self.now = max(self.now + seconds, min(nearest, self.now + 1.0))
