"""What an exchange asks of its clients and of the links between them, read from the same matrices that did the work.

Every link of `down` carries one row of each received name. On the way up a client sends one row of each sent
name, however many centers listen; between clients (`at_home`) every link is a message of its own, and a center
that lives at its client talks to it for nothing. Where a cloud averages the centers, each sends it a row and hears one.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ...learn import Plan
from ...method import Exchange, State
from ...round import Trip
from ...stacks.cohort import Cohort
from ...stacks.mixing import Links, Mixing
from ...topology.base import Direction


@dataclass(frozen=True)
class Traffic:
    """Bytes moved between machines: two sums, and what of them went over which kind of link."""

    down: int = 0  # to clients, and from the cloud to edges
    up: int = 0  # from clients, and from edges to the cloud
    between: int = 0  # of `up`: from client to client
    to_cloud: int = 0  # of `up`: from edges
    from_cloud: int = 0  # of `down`: to edges

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def links(self) -> dict[str, int]:
        """Every byte once, by the kind of link it crossed."""
        return {
            "client_to_center": self.up - self.between - self.to_cloud,
            "center_to_client": self.down - self.from_cloud,
            "client_to_client": self.between,
            "edge_to_cloud": self.to_cloud,
            "cloud_to_edge": self.from_cloud,
        }


class Messages(NamedTuple):
    """One name on its way: who talks with which center, and how many bytes that takes."""

    client: Tensor  # (links,) positions in the cohort
    center: Tensor  # (links,)
    size: Tensor  # (links,) bytes, float64


class Pairs(NamedTuple):
    """Everything on its way between two machines at once."""

    client: Tensor  # (pairs,) positions in the cohort
    edge: Tensor  # (pairs,) machines: edges, clients, or the one that has all centers
    size: Tensor  # (pairs,) bytes, float64


class Hops(NamedTuple):
    """Messages from client to client."""

    receiver: Tensor  # (hops,) numbers of clients
    sender: Tensor  # (hops,)
    size: Tensor  # (hops,) bytes, float64


@dataclass(frozen=True, eq=False)
class Load:
    """An exchange as a clock sees it: work for every client, and messages.

    `parameters`: of the whole model. `meets`: False to look at it as if edges did not meet the cloud after it.
    """

    exchange: Exchange
    state: State
    cohort: Cohort
    parameters: int
    meets: bool = True

    @cached_property
    def steps(self) -> Tensor:
        """Steps every client takes, all learners together, (cohort,) float64."""
        return sum((plan.steps.double() for plan, _ in self._plans), start=self._zeros)

    @cached_property
    def examples(self) -> Tensor:
        """Examples every client goes through, as often as their gradient is taken, (cohort,) float64."""
        seen = self._zeros
        for plan, passes in self._plans:
            sizes = plan.sizes(self.cohort)
            batch = sizes if plan.batch is None else torch.full_like(sizes, plan.batch)
            per_epoch = (-(-sizes // batch.clamp(min=1))).clamp(min=1)
            rest = torch.minimum(plan.steps % per_epoch * batch, sizes)  # only the last batch of an epoch is short
            seen = seen + passes * (plan.steps // per_epoch * sizes + rest)
        return seen

    @cached_property
    def fetched(self) -> list[Messages]:
        """What comes down, one for each name."""
        down, memory = self.exchange.topology.down, self.state.memory
        names = self.exchange.receives
        return [Messages(*self._messages("down", name, down(memory, self.cohort, name))) for name in names]

    @cached_property
    def sent(self) -> list[Messages]:
        """What goes up to be mixed, one for each name."""
        up, memory = self.exchange.up, self.state.memory
        links = [self._messages("up", name, up(memory, self.cohort, name)) for name in self.exchange.sends]
        return [Messages(client, center, size) for center, client, size in links]

    @cached_property
    def told(self) -> int:
        """Bytes that every client tells to be read: a number, or a row of what a center holds."""
        rows = self.state.centers
        return sum(self.row(name) if name in rows else self.number for name in self.exchange.told)

    @cached_property
    def cloud(self) -> int:
        """Bytes that every edge sends on to the cloud, and hears from it, after this exchange."""
        met = self.meets and len(self.cohort) > 0 and self.exchange.topology.wires.meets_cloud(self.cohort.round)
        return sum(self.row(name) for name in self.exchange.sends) if met else 0

    @property
    def number(self) -> int:
        """Bytes of a number."""
        return self.state.centers["model"].element_size()

    def row(self, name: str) -> int:
        """Bytes of a row."""
        stack = self.state.centers[name]
        return int(stack.shape[1]) * stack.element_size()

    def down(self) -> Pairs:
        """Every link on which something comes down to a client."""
        return self._pairs(self.fetched)

    def up(self) -> Pairs:
        """Every link up; a client sends once and all its centers listen, so each link is as long as all it sends."""
        pairs = self._pairs(self.sent)
        if self.exchange.topology.at_home:
            return pairs
        if not self.sent and self.told:  # nothing is mixed, but something is said
            every = torch.arange(len(self.cohort))
            return Pairs(every, torch.zeros_like(every), self._zeros + self.told)
        total = self._zeros + self.told
        for client, _, size in self.sent:
            total += largest(len(total), client, size)
        return pairs._replace(size=total[pairs.client])

    def hops(self, way: Direction) -> Hops:
        """Messages between different machines, where every center lives at its client."""
        client, center, size = self.down() if way == "down" else self.up()
        client = self.cohort.index[client]
        receiver, sender = (client, center) if way == "down" else (center, client)
        away = receiver != sender
        return Hops(receiver[away], sender[away], size[away])

    @cached_property
    def _plans(self) -> list[tuple[Plan, float]]:
        learners = self.exchange.unpack + self.exchange.chain
        return [(learner.work(self.cohort), learner.passes) for learner in learners] if len(self.cohort) else []

    @property
    def _zeros(self) -> Tensor:
        return torch.zeros(len(self.cohort), dtype=torch.float64)

    def _messages(self, way: Direction, name: str, mixing: Mixing) -> Links:
        """Who hears whom, and how many bytes."""
        stack, wires = self.state.centers[mixing.of or name], self.exchange.topology.wires
        links = wires.messages(way, self.state.memory, self.cohort, name, mixing, int(stack.shape[1]))
        return links._replace(weight=links.weight * stack.element_size())

    def _pairs(self, messages: list[Messages]) -> Pairs:
        wires = self.exchange.topology.wires
        pairs = [Pairs(client, wires.machine_of(center), size) for client, center, size in messages]
        if len(pairs) == 1 and len(pairs[0].client) == len(self.cohort):  # nothing to add up
            return pairs[0]
        n_edges = 1 + max((int(edge.max()) for _, edge, _ in pairs if len(edge)), default=0)
        key = torch.cat([torch.zeros(0, dtype=torch.int64), *(client * n_edges + edge for client, edge, _ in pairs)])
        pair, place = torch.unique(key, return_inverse=True)
        size = torch.zeros(len(pair), dtype=torch.float64)
        size.index_add_(0, place, torch.cat([torch.zeros(0, dtype=torch.float64), *(size for _, _, size in pairs)]))
        return Pairs(pair // n_edges, pair % n_edges, size)


def largest(n: int, place: Tensor, size: Tensor) -> Tensor:
    """The largest size, or the longest time, at every place; 0 where there is none, (n,)."""
    return torch.zeros(n, dtype=torch.float64).scatter_reduce(0, place, size, "amax")


def load_of(trip: Trip, parameters: int = 0) -> Load:
    """What was asked in a trip."""
    return Load(trip.exchange, trip.before, trip.cohort, parameters)


def traffic(trip: Trip, broadcast: bool = False, asked: Load | None = None) -> Traffic:
    """The bytes of one exchange: everyone asked receives, who arrived has sent.

    `broadcast`: what a center sends to several clients counts once. `asked`: the load of those who were asked, where
    it is known already.
    """
    asked = asked or load_of(trip)
    everybody = len(trip.arrived) == len(trip.cohort)  # in another order, perhaps
    came = asked if everybody else Load(trip.exchange, trip.before, trip.arrived, 0)
    home = trip.exchange.topology.at_home
    down = up = between = 0
    for load, messages, comes_down in ((asked, asked.fetched, True), (came, came.sent, False)):
        for client, center, size in messages:
            if home:
                between += int(size[load.cohort.index[client] != center].sum())
            elif comes_down:
                once = largest(int(center.max()) + 1, center, size) if broadcast and len(center) else size
                down += int(once.sum())
            else:  # a client in several cells sends once, and all its edges listen
                up += int(largest(len(load.cohort), client, size).sum())
    up += came.told * len(trip.arrived)
    cloud = came.cloud * len(trip.before.centers["model"])
    return Traffic(down + cloud, up + between + cloud, between, cloud, cloud)
