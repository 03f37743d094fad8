"""What a round costs, read from the same matrices that did the work: bytes by direction.

Every link of `down` carries one row of each received name. On the way up a client sends one row of each sent
name, however many centers listen; between clients (`at_home`) every link is a message of its own, and a center
that lives at its client talks to it for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .cohort import Cohort
from .method import Exchange
from .mixing import Mixing
from .round import Trip


@dataclass(frozen=True)
class Traffic:
    """Bytes moved between machines."""

    down: int = 0
    up: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.down + other.down, self.up + other.up)


def traffic(trip: Trip) -> Traffic:
    """The bytes of one exchange: everyone asked receives, who arrived has sent."""
    exchange, topology, before, centers = trip.exchange, trip.exchange.topology, trip.before, trip.before.centers
    down = up = 0
    for name in exchange.receives:
        mixing = topology.down(before.memory, trip.cohort, name)
        stack = centers[mixing.of or name]
        numbers = topology.numbers(before.memory, trip.cohort, name, stack.shape[1], True)
        if numbers is None:
            numbers = _links(exchange, mixing, trip.cohort, clients_receive=True) * stack.shape[1]
        down += numbers * stack.element_size()
    for name in exchange.sends:
        mixing = topology.up(before.memory, trip.arrived, name)
        stack = centers[name]
        numbers = topology.numbers(before.memory, trip.arrived, name, stack.shape[1], False)
        if numbers is None:
            numbers = _links(exchange, mixing, trip.arrived, clients_receive=False) * stack.shape[1]
        up += numbers * stack.element_size()
    told = sum(exchange.holds[name].width or 1 if name in exchange.holds else 1 for name in exchange.told)
    return Traffic(down, up + told * len(trip.arrived) * centers["model"].element_size())


def _links(exchange: Exchange, mixing: Mixing, cohort: Cohort, clients_receive: bool) -> int:
    receiver, sender, _ = mixing.links
    client, center = (receiver, sender) if clients_receive else (sender, receiver)
    if exchange.topology.at_home:
        return int((cohort.index[client] != center).sum())
    # A client in several cells sends once, and all its edges listen.
    return len(client) if clients_receive else len(torch.unique(client))
