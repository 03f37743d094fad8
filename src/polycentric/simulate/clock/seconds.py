"""How long a round would take: simulated seconds, from the messages and the work of its exchanges.

A clock says four things, and the rest is the same for every topology:

    at_client    seconds of every client's own work
    on_link      seconds of a message between a client and a center, down or up
    to_peer      seconds of a message from client to client
    at_cloud     seconds that edges and the cloud need among themselves, where they meet

Where there are centers, an exchange is synchronous: it ends with the slowest client that was asked,

    t+ = t + max_k (down_k + compute_k + up_k) + cloud,

or at the deadline, and who would be later does not arrive; edges wait so long whether they meet the cloud then or not.
Where centers live at their clients, nobody waits for all: client k goes on when its neighbours N(k), itself among them,
have been heard,

    t_k+ = max_{i in N(k)} (t_i + compute_i) + max_{i in N(k)} delta_ik,

and where they talk in s turns, one after another (matchings), all of them wait: max_i (t_i + compute_i) + s max delta.
Exchanges of a round follow one another. A round for which nobody is drawn takes as long as the median client would
have needed. Nothing is measured: the numbers are a function of seed and settings.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...errors import require
from ...method import Exchange, Method, State
from ...round import Answer, Clients, Part
from ...stacks.cohort import Cohort
from ...topology.base import Direction
from .traffic import Hops, Load, Pairs, largest


@dataclass(frozen=True, kw_only=True)
class Clock(ABC):
    """Seconds of work and of messages."""

    deadline: float | None = None  # seconds a center waits in an exchange; who would need longer is left out
    broadcast: bool = False  # what a center sends to several clients is counted once in the bytes

    def __post_init__(self) -> None:
        good = self.deadline is None or self.deadline > 0
        require(
            good, f"{type(self).__name__}.deadline must be a positive number of seconds, got {self.deadline}; try 5"
        )

    @abstractmethod
    def at_client(self, load: Load) -> Tensor:
        """Seconds of every client's own work, (cohort,)."""

    @abstractmethod
    def on_link(self, load: Load, way: Direction, pairs: Pairs) -> Tensor:
        """Seconds of every message between a client and a center, (pairs,)."""

    @abstractmethod
    def to_peer(self, load: Load, hops: Hops) -> Tensor:
        """Seconds of every message from client to client, (hops,)."""

    def at_cloud(self, load: Load) -> float:
        """Seconds that edges and cloud take after their clients are done; by default they are in the clients' trip."""
        return 0.0

    def needs(self, load: Load) -> Tensor:
        """Seconds from the center's first word to the client's last, (cohort,)."""
        down, up = load.down(), load.up()
        heard = largest(len(load.cohort), down.client, self.on_link(load, "down", down))
        said = largest(len(load.cohort), up.client, self.on_link(load, "up", up))
        return heard + self.at_client(load) + said

    def late(self, load: Load) -> Tensor:
        """Who of the cohort will miss the deadline, (cohort,) bool; known beforehand."""
        if self.deadline is None or load.exchange.topology.at_home:
            return torch.zeros(len(load.cohort), dtype=torch.bool)
        return ~self._in_time(self._to_edges(load))

    def _in_time(self, seconds: Tensor) -> Tensor:
        """Who makes the deadline; whoever needs exactly so long does, whatever a sum is rounded to."""
        assert self.deadline is not None
        return seconds <= self.deadline * (1 + 1e-12)

    def _to_edges(self, load: Load) -> Tensor:
        """`needs` without the cloud: who waits for a client is its center, in every round alike."""
        return self.needs(replace(load, meets=False)) if load.cloud else self.needs(load)

    def advance(self, times: Tensor, load: Load) -> Tensor:
        """When every client is done with an exchange, (clients,), from when it was done with the one before."""
        if load.exchange.topology.at_home:
            return self._between_neighbours(times, load)
        if not len(load.cohort):
            return times
        took, met = self._slowest_in_time(load)
        last = float(times[0]) if times.stride() == (0,) else float(times.max())
        return torch.tensor(last + took + (self.at_cloud(load) if met else 0.0), dtype=times.dtype).expand(len(times))

    def pause(self, times: Tensor, loads: Sequence[Load]) -> Tensor:
        """When every client is done with a round for which nobody was drawn: it is counted, so it takes time.

        As long as the median client would have needed in the longest of its exchanges, or the deadline, where that is
        shorter; `loads` are those of everybody.
        """
        longest = max((float(self.needs(load).median()) for load in loads if len(load.cohort)), default=0.0)
        return times + min(longest, math.inf if self.deadline is None else self.deadline)

    def _slowest_in_time(self, load: Load) -> tuple[float, bool]:
        """Seconds until all have answered who will, and whether anybody does: edges that heard nobody do not meet."""
        needs = self.needs(load)
        if self.deadline is None:
            return float(needs.max()), True
        near = self._to_edges(load)
        on_time = self._in_time(near)
        if bool(on_time.all()):
            return float(needs.max()), True
        beyond = (needs - near)[on_time]  # what the cloud takes, after all have been waited for
        return self.deadline + max(0.0, float(beyond.max()) if len(beyond) else 0.0), bool(on_time.any())

    def _between_neighbours(self, times: Tensor, load: Load) -> Tensor:
        times = self._heard(times, load, load.hops("down"), None).clone()
        times[load.cohort.index] += self.at_client(load)
        turns = load.exchange.topology.wires.turns(load.state.memory, load.cohort)
        return self._heard(times, load, load.hops("up"), turns)

    def _heard(self, times: Tensor, load: Load, hops: Hops, turns: int | None) -> Tensor:
        """When everybody has heard the neighbours, all links at once or in turns."""
        if not len(hops.size):
            return times
        seconds, who = self.to_peer(load, hops), load.cohort.index
        if turns is not None:
            return times.index_fill(0, who, float(times[who].max()) + turns * float(seconds.max()))
        waits = times.scatter_reduce(0, hops.receiver, times[hops.sender], "amax")
        return waits + largest(len(times), hops.receiver, seconds)


@dataclass(frozen=True, eq=False)
class Punctual(Clients):
    """Clients of whom only those are heard who make the deadline: the others were asked, and do not arrive."""

    clients: Clients
    clock: Clock
    parameters: int

    def everyone(self, round: int, turn: int) -> Cohort:
        """All clients that have data."""
        return self.clients.everyone(round, turn)

    def answers(self, exchange: Exchange, state: State, cohort: Cohort) -> Iterable[Answer]:
        """Of those who are in time."""
        return self.clients.answers(exchange, state, self._in_time(exchange, state, cohort))

    def parts(self, exchange: Exchange, state: State, cohort: Cohort) -> Iterable[Part]:
        """Of those who are in time, mixed."""
        return self.clients.parts(exchange, state, self._in_time(exchange, state, cohort))

    def _in_time(self, exchange: Exchange, state: State, cohort: Cohort) -> Cohort:
        late = self.clock.late(Load(exchange, state, cohort, self.parameters))
        return cohort[~late] if bool(late.any()) else cohort


def check(clock: Clock, method: Method) -> None:
    """Refuse a deadline where there is nobody who waits."""
    good = clock.deadline is None or not any(exchange.topology.at_home for exchange in method.exchanges)
    require(good, f"a deadline needs a center that waits, and {method.name} has none: leave deadline out of the clock")
