"""Nodes in this process: every client of a federation as a node, and a post that carries letters at once, or badly."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from polycentric import Federation, Method
from polycentric.data import Split
from polycentric.deploy.center import Nodes, rehearsed, without_kept
from polycentric.deploy.node import Keeper, Node
from polycentric.method import Exchange, State
from polycentric.runs.loop import Run
from polycentric.stacks.draw import uniform
from polycentric.stacks.stack import take

RUN = "a-run"


def nodes_of(run: Run, folder: Path | None = None) -> dict[int, Node]:
    """Every client of a prepared run as a node with its own examples, and what it keeps in memory or in a folder."""
    found, train = {}, run.federation.train
    for k in range(run.federation.n_clients):
        mine = train.of(k)
        begins = take(run.state.kept, torch.tensor([k]))
        keeper = Keeper(begins, None if folder is None else folder / str(k))
        found[k] = Node(run.method, run.clients.task, mine.x, mine.y, keeper)
    return found


@dataclass(eq=False)
class AtOnce:
    """A post that loses nothing: every letter is answered before anybody looks."""

    nodes: Mapping[int, Node]
    replies: list[tuple[int, bytes]] = field(default_factory=list)

    def send(self, letters: Mapping[int, bytes]) -> None:
        self.replies += [(client, self.nodes[client].answer(data)) for client, data in letters.items()]

    def fetch(self) -> list[tuple[int, bytes]]:
        found, self.replies = self.replies, []
        return found


def looks_like(federation: Federation) -> Split:
    """Zeros in the shape of a federation's examples: two for the first client."""
    x, y = federation.train.x[:2], federation.train.y[:2]
    offset = torch.full((federation.n_clients + 1,), 2)
    offset[0] = 0
    return Split(torch.zeros_like(x), torch.zeros_like(y), offset)


def center_of(run: Run, post: Any, **how: Any) -> tuple[Nodes, State]:
    """The center of a prepared run, and its state without what clients keep."""
    shapes: dict[int, Any] = {}
    examples = looks_like(run.federation)
    first = take(run.state.kept, torch.tensor([0]))

    def expected(exchange: Exchange) -> Any:
        if id(exchange) not in shapes:
            shapes[id(exchange)] = rehearsed(exchange, center.state, first, run.clients.task, examples)
        return shapes[id(exchange)]

    center = Center(RUN, run.federation.train.sizes, post, expected, run.settings.seed, **how)
    center.state = without_kept(run.state)
    return center, center.state


@dataclass(eq=False)
class Center(Nodes):
    """Knows the state it is at, for what is expected."""

    state: State = field(default_factory=lambda: State({}, {}, {}))


@dataclass(eq=False)
class Badly:
    """A post with a time of its own, which loses, doubles, delays and reorders by a seed; nodes crash and come back.

    What happens to a letter follows from (seed, how many were sent before it), so a schedule can be played again.
    """

    nodes: Callable[[int], Node]  # a node as it comes back: with what it kept, and nothing else
    seed: int
    loses: float = 0.1
    doubles: float = 0.1
    dies: float = 0.05
    slowest: float = 8.0
    now: float = 0.0
    sent: int = 0
    waiting: list[tuple[float, int, int, bytes]] = field(default_factory=list)
    old: list[tuple[int, bytes]] = field(default_factory=list)

    def send(self, letters: Mapping[int, bytes]) -> None:
        for client, data in letters.items():
            self.sent += 1
            chance = uniform(self.seed, "fault", self.sent, torch.arange(8)).tolist()
            for copy in range(2 if chance[0] < self.doubles else 1):
                if chance[1 + copy] < self.loses:
                    continue
                reply = self.nodes(client).answer(data)
                self.old.append((client, reply))
                if chance[3 + copy] < self.dies:
                    continue  # it had kept what it learned, and died before the reply left
                heapq.heappush(self.waiting, (self.now + self.slowest * chance[5 + copy], self.sent, client, reply))
            if chance[7] < self.doubles and self.old:  # an old reply comes again
                again = self.old[int(chance[0] * len(self.old))]
                heapq.heappush(self.waiting, (self.now + chance[1], self.sent, *again))

    def fetch(self) -> list[tuple[int, bytes]]:
        found = []
        while self.waiting and self.waiting[0][0] <= self.now:
            _, _, client, reply = heapq.heappop(self.waiting)
            found.append((client, reply))
        return found

    def clock(self) -> float:
        return self.now

    def rest(self, seconds: float) -> None:
        nearest = self.waiting[0][0] if self.waiting else self.now + 1.0
        self.now = max(self.now + seconds, min(nearest, self.now + 1.0))


def methods_of(names: Mapping[str, dict[str, Any]], build: Callable[..., Method]) -> dict[str, Method]:
    return {name: build(name, **how) for name, how in names.items()}
