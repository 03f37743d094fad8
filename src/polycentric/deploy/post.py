"""Letters by way of the engine: which peer is which client, who is greeted, and what is sent again.

Peers are known to the engine by an id, to people by a name, and to a run by a number. Where nodes have keys the engine
says the name; without keys a node says it itself. A node that comes late, or comes back, is greeted, and what it was
not able to answer is sent again: the same letters, so it does no harm where they had arrived.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..errors import UsageError, require
from .letters import Spoiled, packed
from .roster import Hello, Present, is_here, presented

if TYPE_CHECKING:
    from .engine.link import Peer

LOOK = 1.0  # seconds between two looks at who is there
GREETING = 20.0  # seconds after which a peer that has not said who it is is asked again
AGAIN = 30.0  # seconds after which letters that were not answered are sent again


class Carrier(Protocol):
    """What the engine does: carries parcels of bytes between peers and this process."""

    def peers(self) -> Sequence[Peer]:
        """Who may be written to."""

    def send(self, parcels: Mapping[str, Sequence[bytes]], seconds: float) -> None:
        """To every peer its parcel, which nobody needs after so many seconds."""

    def fetch(self) -> list[tuple[str, list[bytes]]]:
        """What came back since."""


@dataclass(eq=False)
class Roster:
    """Who is there: peers that have said who they are, by name."""

    carrier: Carrier
    log: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    rest: Callable[[float], None] = time.sleep
    present: dict[str, Present] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)  # name: the peer's id
    online: set[str] = field(default_factory=set)  # names
    _greeted: dict[str, float] = field(default_factory=dict)  # id: when
    _looked: float = -1e9
    _refused: set[str] = field(default_factory=set)

    def look(self) -> None:
        """Who is there now; whoever is new is greeted. Now and then only, however often it is called."""
        now = self.clock()
        if now - self._looked < LOOK:
            return
        self._looked = now
        peers = [peer for peer in self.carrier.peers() if peer.online]
        known = {id: name for name, id in self.ids.items()}
        there = {known[peer.id] for peer in peers if peer.id in known}
        for name in sorted(self.online - there):
            self.log(f"{name} is gone")
        for name in sorted(there - self.online):
            self.log(f"{name} is here")
        back = {self.ids[name] for name in there - self.online}  # perhaps with other examples than before
        self.online = there
        asked = {peer.id for peer in peers if peer.id not in known} | back | (self._greeted.keys() & known.keys())
        new = [id for id in sorted(asked) if now - self._greeted.get(id, -1e9) > GREETING]
        if new:
            self._greeted |= dict.fromkeys(new, now)
            self.carrier.send({id: [packed(Hello(), {})] for id in new}, GREETING)

    def take(self, id: str, replies: Sequence[bytes]) -> str | None:
        """The name of a peer that was greeted and says who it is, empty: once more; None: it says something else."""
        if len(replies) != 1:
            return None
        if id not in self._greeted:  # it was greeted twice, say, since it was busy: this answers no letter
            return "" if is_here(replies[0]) else None
        try:
            found = presented(replies[0])
        except Spoiled:
            if id not in self._refused and id not in self.ids.values():
                self._refused.add(id)
                self.log(f"a node with id {id[:20]} does not say who it is, in words of this version: it is left out")
            return None
        del self._greeted[id]
        name = next((peer.name for peer in self.carrier.peers() if peer.id == id), "") or found.facts.name or id
        if self.ids.get(name, id) != id:
            self.log(f"{name} came back under another id")
        elif name not in self.online:
            self.log(f"{name} is here")
        self.online.add(name)
        self.ids[name], self.present[name] = id, found
        self._looked = -1e9
        return name

    def wait(self, enough: Callable[[Roster], bool], seconds: float, told: Callable[[Roster], None]) -> None:
        """Until enough nodes have said who they are; `told` is shown how far it is."""
        end = self.clock() + seconds
        while not enough(self):
            self.look()
            for id, replies in self.carrier.fetch():
                self.take(id, replies)
            told(self)
            if self.clock() > end:
                there = ", ".join(sorted(self.present)) or "nobody"
                raise UsageError(
                    f"not enough nodes came within {seconds:g} seconds; there are: {there}; look at what `polycentric "
                    "join` says there, and at `polycentric doctor`, or wait longer with --wait"
                )
            self.rest(0.1)


@dataclass(eq=False)
class Mail:
    """The post of a run: letters with the terms before them, to clients by their numbers.

    Arguments:
        roster: who is there.
        clients: names of the run's clients, in their order.
        terms: what a client is told with each parcel.
        seconds: after which nobody needs a parcel.
        joined: told when a client has come, or come back.
    """

    roster: Roster
    clients: Sequence[str]
    terms: Callable[[int], bytes]
    seconds: float
    joined: Callable[[int, Present], None] = lambda client, node: None
    _out: dict[int, tuple[float, Sequence[bytes]]] = field(default_factory=dict)  # client: when, what
    _strangers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        require(len(set(self.clients)) == len(self.clients), "two clients have the same name")
        self._number = {name: k for k, name in enumerate(self.clients)}

    def send(self, letters: Mapping[int, Sequence[bytes]]) -> None:
        """To every client its letters; whoever is away is sent them when it comes."""
        self.roster.look()
        self._out = {client: (-1e9, list(each)) for client, each in letters.items()}
        self._push()

    def fetch(self) -> list[tuple[int, bytes]]:
        """Replies since, by client."""
        self.roster.look()
        found: list[tuple[int, bytes]] = []
        for id, replies in self.roster.carrier.fetch():
            if (said := self.roster.take(id, replies)) is not None:
                self._welcome(said)
                continue
            name = next((name for name, known in self.roster.ids.items() if known == id), "")
            client = self._number.get(name)
            if client is not None and replies:
                self._out.pop(client, None)
                found += [(client, reply) for reply in replies]
        self._push()
        return found

    def _welcome(self, name: str) -> None:
        client = self._number.get(name)
        if client is None:
            if name and name not in self._strangers:
                self._strangers.add(name)
                self.roster.log(f"{name} came too late to be a client of this run: it can take part in the next one")
            return
        self.joined(client, self.roster.present[name])
        if client in self._out:
            self._out[client] = (-1e9, self._out[client][1])

    def _push(self) -> None:
        now, parcels = self.roster.clock(), {}
        for client, (then, letters) in self._out.items():
            id = self.roster.ids.get(self.clients[client])
            if id is not None and now - then > AGAIN and self.clients[client] in self.roster.online:
                parcels[id] = [self.terms(client), *letters]
                self._out[client] = (now, letters)
        if parcels:
            self.roster.carrier.send(parcels, self.seconds)
