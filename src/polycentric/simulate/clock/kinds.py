"""Clocks: a paper's round numbers, delays on a graph, and phones on a radio link."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ...errors import require
from ...language import register
from ...stacks.draw import normal, uniform
from ...topology.base import Direction
from .seconds import Clock
from .traffic import Hops, Load, Pairs

PerClient = float | tuple[float, ...] | tuple[tuple[float, ...], ...]  # for all, one a client, or clients x edges


@dataclass(frozen=True)
class Normalised(Clock):
    """Time in units of one trip to the edge: the clock of the FedMes paper.

        a round with edges  t_comp + t_edge,     with a far center, or when edges meet the cloud  t_comp + t_c t_edge

    A trip moves one model down and one up; who moves more or less needs as much more or less. A message between
    neighbours takes t_edge for a model. A straggler computes for its share of t_comp.

    Symbols:     t_edge, t_comp, t_c = t_cloud / t_edge.
    Reference:   Han et al., FedMes: speeding up federated learning with multiple edge servers, IEEE JSAC 2021.
    """

    t_edge: float = 1.0
    t_comp: float = 0.1
    t_c: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, "t_edge", "t_comp", "t_c")

    def at_client(self, load: Load) -> Tensor:
        """t_comp."""
        return self.t_comp * load.cohort.effort.double()

    def on_link(self, load: Load, way: Direction, pairs: Pairs) -> Tensor:
        """Half a trip, by the models moved."""
        near = load.exchange.topology.wires.near and not load.cloud
        return (self.t_edge if near else self.t_c * self.t_edge) / 2 * self._models(load, pairs)

    def to_peer(self, load: Load, hops: Hops) -> Tensor:
        """A trip, by the models moved."""
        return self.t_edge * self._models(load, hops)

    def _models(self, load: Load, moved: Pairs | Hops) -> Tensor:
        return moved.size / max(load.parameters * load.number, 1)


@dataclass(frozen=True)
class Delays(Clock):
    """Fixed seconds for a local step and for a link, whatever is sent: shows the effect of network delay alone.

        compute_k = steps_k c_k,      delta = `link` for all that two machines tell each other in an exchange

    Clients' c_k and the links' delays are lognormal about the given medians: `spread` is drawn once, `jitter` anew in
    every exchange. On a graph a slow machine holds up everybody in the long run, a slow moment only its neighbours.
    """

    compute: float = 0.01
    link: float = 1.0
    spread: float = 0.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, "compute", "link", "spread", "jitter")

    def at_client(self, load: Load) -> Tensor:
        """tau c_k."""
        return self.compute * self._vary(load, "clock compute", load.cohort.index) * load.steps

    def on_link(self, load: Load, way: Direction, pairs: Pairs) -> Tensor:
        """Half of it down, half of it up."""
        return self._delay(load, load.cohort.index[pairs.client], torch.full_like(pairs.edge, -1)) / 2

    def to_peer(self, load: Load, hops: Hops) -> Tensor:
        """The same in both directions."""
        return self._delay(load, hops.sender, hops.receiver)

    def at_cloud(self, load: Load) -> float:
        """One more link, where edges meet it."""
        return self.link if load.cloud else 0.0

    def _delay(self, load: Load, one: Tensor, other: Tensor) -> Tensor:
        return self.link * self._vary(load, "clock link", torch.minimum(one, other), torch.maximum(one, other))

    def _vary(self, load: Load, purpose: str, *key: Tensor) -> Tensor:
        logs = torch.zeros(key[0].shape, dtype=torch.float64)
        if self.spread:
            logs = logs + self.spread * normal(load.cohort.seed, purpose, *key)
        if self.jitter:
            logs = logs + self.jitter * normal(*load.cohort.key, f"{purpose} jitter", *key)
        return logs.exp()


@dataclass(frozen=True)
class Physical(Clock):
    """Physical model of processors (cycles) and radio links (Shannon's rate).

        compute_k = c examples_k / f_k
        rate      = B log2(1 + h p / (B N0)),     h = g / dist^eta, times an exponential draw under Rayleigh fading
        seconds   = bits / rate,                  up with the client's power, down with the station's

    A far center stands behind the client's station, one wire away: latency + bits / wire more, each way; so does the
    cloud behind its edges. With `cloud_distance` it is reached by the same radio at that distance, as in FedMes.
    A message between clients goes up to one station, over a wire, and down from the other.

    The defaults are phones in a city: 2 GHz, six cycles for every parameter and example (two forward, four back),
    0.2 W on 1 MHz up, 20 W on 5 MHz down, thermal noise, the path loss of an urban macro cell (128.1 + 37.6 log10 of
    the kilometres, in dB), half a kilometre away; speeds and distances spread by half a log unit.

    Arguments:
        cycles: c, for one gradient of one example; None: 6 for every parameter (too few where weights are shared, as in
            a convolution: then say how many).
        frequency: f in cycles a second; one number, or one for each client.
        bandwidth_up, bandwidth_down: B in Hz, a client's own.
        power_up, power_down: p in W.
        noise: N0 in W/Hz.   gain: g at one metre.   exponent: eta.
        distance: metres to the station; one number, one for each client, or clients x edges. Where edges and clients
            are on a map and one number is given, the map says who is how far away (`CellMap.metres`). To a center that
            is far away, and to other clients, a client sends by its nearest edge.
        fading: draw every link anew in every exchange.
        frequency_spread, distance_spread: of the logarithm, where one number is given for all.
        wire, latency: bits a second and seconds, between stations and what is behind them.
        cloud_distance: metres to the cloud by radio; None: by wire.
    """

    cycles: float | None = None
    frequency: PerClient = 2e9
    bandwidth_up: float = 1e6
    bandwidth_down: float = 5e6
    power_up: float = 0.2
    power_down: float = 20.0
    noise: float = 4e-21
    gain: float = 0.0295
    exponent: float = 3.76
    distance: PerClient = 500.0
    fading: bool = False
    frequency_spread: float = 0.5
    distance_spread: float = 0.5
    wire: float = 1e9
    latency: float = 0.02
    cloud_distance: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        positive = ("bandwidth_up", "bandwidth_down", "power_up", "power_down", "noise", "gain", "wire")
        _check(self, *positive, "cycles", "cloud_distance", positive=True)
        _check(self, "exponent", "frequency_spread", "distance_spread", "latency")
        for name in ("frequency", "distance"):
            value = torch.as_tensor(getattr(self, name), dtype=torch.float64)
            good = value.numel() > 0 and bool((value > 0).all() and value.isfinite().all())
            typical = getattr(Physical, name)
            require(good, f"Physical.{name} must be positive and finite, got {getattr(self, name)}; try {typical:g}")
            more = ", or clients x edges" if name == "distance" else ""
            fits = value.dim() <= (2 if more else 1)
            require(fits, f"Physical.{name} is one number, or one for each client{more}")

    def at_client(self, load: Load) -> Tensor:
        """c examples / f."""
        cycles = 6.0 * load.parameters if self.cycles is None else self.cycles
        speed = self._of("frequency", self.frequency_spread, load, load.cohort.index)
        return cycles * load.examples / speed

    def on_link(self, load: Load, way: Direction, pairs: Pairs) -> Tensor:
        """Radio, and a wire where the center is far."""
        near, client = load.exchange.topology.wires.near, load.cohort.index[pairs.client]
        beyond = not near or bool(load.cloud)
        if beyond and self.cloud_distance is not None:
            metres = torch.full((len(client),), self.cloud_distance, dtype=torch.float64)
            return 8 * pairs.size / self.rate(way, metres, self._fade(load, way, client, pairs.edge))
        radio = self._radio(load, way, client, pairs.edge if near else None, pairs.size)
        return radio if near else radio + self._by_wire(pairs.size)

    def to_peer(self, load: Load, hops: Hops) -> Tensor:
        """Up, over, and down."""
        up = self._radio(load, "up", hops.sender, None, hops.size)
        return up + self._by_wire(hops.size) + self._radio(load, "down", hops.receiver, None, hops.size)

    def at_cloud(self, load: Load) -> float:
        """Every edge's row up and down the wire."""
        if not load.cloud or self.cloud_distance is not None:
            return 0.0
        return 2 * float(self._by_wire(torch.tensor(float(load.cloud), dtype=torch.float64)))

    def rate(self, way: Direction, metres: Tensor, fade: Tensor | float = 1.0) -> Tensor:
        """Shannon's bits a second at a distance."""
        band, power = (self.bandwidth_up, self.power_up) if way == "up" else (self.bandwidth_down, self.power_down)
        heard = self.gain / metres.double() ** self.exponent * power * fade
        return band * torch.log1p(heard / (band * self.noise)) / math.log(2)

    def _radio(self, load: Load, way: Direction, client: Tensor, edge: Tensor | None, size: Tensor) -> Tensor:
        return 8 * size / self.rate(way, self._metres(load, client, edge), self._fade(load, way, client, edge))

    def _metres(self, load: Load, client: Tensor, edge: Tensor | None) -> Tensor:
        if edge is not None and isinstance(self.distance, int | float):
            on_map = load.exchange.topology.wires.metres(load.cohort, client, edge, self.distance)
            if on_map is not None:
                return on_map.clamp(min=1.0)  # the gain is that at one metre
        return self._of("distance", self.distance_spread, load, client, edge)

    def _fade(self, load: Load, way: Direction, client: Tensor, edge: Tensor | None) -> Tensor | float:
        if not self.fading:
            return 1.0
        return -uniform(*load.cohort.key, "fading", way, client, -1 if edge is None else edge).log()

    def _by_wire(self, size: Tensor) -> Tensor:
        return self.latency + 8 * size / self.wire

    def _of(self, name: str, spread: float, load: Load, client: Tensor, edge: Tensor | None = None) -> Tensor:
        """A quantity of every client: looked up, or drawn about the number that is given for all.

        `edge`: which edge it is about; None: the client's own, or its own station, which is the nearest.
        """
        table = torch.as_tensor(getattr(self, name), dtype=torch.float64)
        n = load.cohort.n_clients
        if not table.dim():
            key = load.cohort.seed, f"clock {name}"
            return table * (spread * (_own(*key, n)[client] if edge is None else normal(*key, client, edge))).exp()
        require(len(table) == n, f"Physical.{name} has {len(table)} numbers, but the federation has {n} clients")
        if table.dim() == 1:
            return table[client]
        if edge is None:
            return table.min(1).values[client]
        most = int(edge.max()) + 1 if len(edge) else 0
        require(most <= table.shape[1], f"Physical.{name} has {table.shape[1]} columns, but there are {most} edges")
        return table[client, edge]


@lru_cache(maxsize=16)
def _own(seed: int, name: str, n_clients: int) -> Tensor:
    """A draw for every client, the same in every round."""
    return normal(seed, name, torch.arange(n_clients))


def _check(clock: Clock, *names: str, positive: bool = False) -> None:
    for name in names:
        value = getattr(clock, name)
        good = value is None or (0 < value < math.inf if positive else 0 <= value < math.inf)
        wanted, typical = "positive" if positive else ">= 0", getattr(type(clock), name)
        hint = "; leave it out" if typical is None else f"; try {typical:g}"
        require(good, f"{type(clock).__name__}.{name} must be {wanted} and finite, got {value}{hint}")


register(Clock, "physical", Physical)
register(Clock, "normalised", Normalised)
register(Clock, "delays", Delays)
