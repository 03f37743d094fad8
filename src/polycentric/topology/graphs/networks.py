"""Who is next to whom: graphs by name, made once the number of clients is known.

    Ring().of(6)                     0-1-2-3-4-5-0, as a networkx graph on clients 0 .. 5
    ErdosRenyi(p=0.3, seed=1).of(6)  every pair with probability p, drawn again until connected

A network is a small frozen part, so a method can be built, printed and compared before any data are read. Random
ones carry their own seed: all seeds of a run see the same graph. A client's neighbours are those it shares an edge
with; a graph has no direction, no loops and no repeated edges.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...errors import UsageError, require, within
from ...language import register
from ...language.files import read_text
from ...stacks.draw import seed_of

if TYPE_CHECKING:
    import networkx  # slow to import, and few methods have a graph

Pair = tuple[int, int]
Disconnected = Literal["refuse", "allow"]

DRAWS = 50  # of a random graph, until one is connected
LARGEST = 1 << 26  # bytes of an edge file


class Network(ABC):
    """A graph on any number of clients."""

    @abstractmethod
    def of(self, n: int) -> networkx.Graph:
        """The graph on clients 0 .. n-1; the same one every time."""

    def matchings(self, n: int) -> tuple[tuple[Pair, ...], ...] | None:
        """Its edges in matchings, where it was given so; None: whoever needs them colours the edges."""
        return None


@dataclass(frozen=True)
class Ring(Network):
    """Every client has two neighbours: 0-1-2- ... -0."""

    def of(self, n: int) -> networkx.Graph:
        """A cycle; two clients share one edge, one client is alone."""
        return graph_of(((i, (i + 1) % n) for i in range(n if n > 2 else n - 1)), n)


@dataclass(frozen=True)
class PathGraph(Network):
    """A ring cut open (a path): 0-1-2- ... -(n-1)."""

    def of(self, n: int) -> networkx.Graph:
        """A path."""
        return graph_of(((i, i + 1) for i in range(n - 1)), n)


@dataclass(frozen=True)
class Torus(Network):
    """A grid whose borders meet, `rows` x (n / rows); every client has four neighbours. None: as square as n allows."""

    rows: int | None = None

    def __post_init__(self) -> None:
        within(self, rows=">= 2; leave it out for a torus as square as possible")

    def of(self, n: int) -> networkx.Graph:
        """A periodic grid."""
        rows = self.rows or max(r for r in range(1, int(n**0.5) + 1) if n % r == 0)
        require(
            n % rows == 0 and min(rows, n // rows) >= 2,
            f"{n} clients do not make a torus of {rows} rows; use graph=ring, or a number of clients that is "
            "rows x columns with at least 2 of each",
        )
        across = n // rows
        right = ((i, i - i % across + (i + 1) % across) for i in range(n))
        below = ((i, (i + across) % n) for i in range(n))
        return graph_of([*right, *below], n)


@dataclass(frozen=True)
class Complete(Network):
    """Every client is a neighbour of every other."""

    def of(self, n: int) -> networkx.Graph:
        """All pairs."""
        return graph_of(((i, j) for i in range(n) for j in range(i + 1, n)), n)


@dataclass(frozen=True)
class StarGraph(Network):
    """A star: client 0 is a neighbour of all others, which have no other neighbour."""

    def of(self, n: int) -> networkx.Graph:
        """Client 0 with all others."""
        return graph_of(((0, i) for i in range(1, n)), n)


@dataclass(frozen=True)
class Exponential(Network):
    """Clients 1, 2, 4, 8, ... steps apart on a ring are neighbours: few edges, and consensus in few rounds."""

    def of(self, n: int) -> networkx.Graph:
        """A circulant graph with about 2 log2 n neighbours each."""
        steps = [1 << k for k in range(n.bit_length()) if 1 << k < n]
        return graph_of(((i, (i + step) % n) for i in range(n) for step in steps), n)


@dataclass(frozen=True)
class ErdosRenyi(Network):
    """Every pair is joined with probability `p`, independently; drawn again until connected, where possible."""

    p: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        within(self, p="[0, 1]")

    def of(self, n: int) -> networkx.Graph:
        """G(n, p)."""
        import networkx

        if self.p in (0, 1):
            return Complete().of(n) if self.p else graph_of((), n)
        return _connected(networkx.fast_gnp_random_graph, (n, self.p), self.seed, "erdos-renyi")


@dataclass(frozen=True)
class Geometric(Network):
    """Clients stand at random in the unit square and hear those within `radius`; drawn again until connected."""

    radius: float = 0.4
    seed: int = 0

    def __post_init__(self) -> None:
        within(self, radius="> 0; try 0.4")

    def of(self, n: int) -> networkx.Graph:
        """A random geometric graph."""
        import networkx

        return _connected(networkx.random_geometric_graph, (n, self.radius), self.seed, "geometric")


@dataclass(frozen=True)
class SmallWorld(Network):
    """A ring where every client has its `k` nearest as neighbours; every edge is moved with probability `p`.

    Reference: Watts, Strogatz, Collective dynamics of small-world networks, Nature 1998.
    """

    k: int = 4
    p: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.k >= 2 and self.k % 2 == 0, f"SmallWorld.k must be an even number >= 2, got {self.k}; try 4")
        within(self, p="[0, 1]")

    def of(self, n: int) -> networkx.Graph:
        """A Watts-Strogatz graph."""
        import networkx

        if n <= self.k:
            return Complete().of(n)
        return _connected(networkx.watts_strogatz_graph, (n, self.k, self.p), self.seed, "small-world")


@dataclass(frozen=True, repr=False)
class Edges(Network):
    """A graph of your own: `Edges.of_graph(graph)` from networkx, `Edges.read(path)` from a file, or pairs."""

    pairs: tuple[Pair, ...]
    n: int
    path: str | None = field(default=None, compare=False)  # the file it was read from

    @staticmethod
    def of_graph(graph: networkx.Graph, disconnected: Disconnected = "allow") -> Edges:
        """Any networkx graph on 0 .. n-1, checked."""
        checked(graph, disconnected)
        return Edges(tuple(sorted((min(e), max(e)) for e in graph.edges)), graph.number_of_nodes())

    @staticmethod
    def read(path: str) -> Edges:
        """A text file with two client numbers on a line; what follows a # is not read."""
        found, where = set(), Path(path)
        try:
            if where.stat().st_size > LARGEST:
                raise UsageError(
                    f"'{path}' has {where.stat().st_size:,} bytes; an edge file may have at most {LARGEST:,}"
                )
            lines = read_text(where, LARGEST).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise UsageError(f"the edge file '{path}' cannot be read: {reason}") from error
        for number, line in enumerate(lines, start=1):
            words = line.partition("#")[0].replace(",", " ").split()
            if not words:
                continue
            if len(words) != 2 or not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
                raise UsageError(
                    f"line {number} of '{path}' is '{line[:40]}'; an edge is two client numbers, such as 0 1"
                )
            i, j = sorted(map(int, words))
            require(i != j, f"line {number} of '{path}' joins client {i} with itself")
            found.add((i, j))
        require(bool(found), f"the edge file '{path}' has no edges")
        return Edges(tuple(sorted(found)), 1 + max(j for _, j in found), path)

    @property
    def files(self) -> tuple[str, ...]:
        """What it was read from."""
        return (self.path,) if self.path else ()

    def of(self, n: int) -> networkx.Graph:
        """The graph; it fits one number of clients only."""
        _same(self.n, n)
        return graph_of(self.pairs, n)

    def __repr__(self) -> str:
        mark = hashlib.sha256(repr(self.pairs).encode()).hexdigest()[:12]
        return f"Edges({len(self.pairs)} edges, n={self.n}, {mark})"


@dataclass(frozen=True)
class Matched(Network):
    """A graph given as matchings: sets of edges no two of which share a client."""

    parts: tuple[tuple[Pair, ...], ...]

    def __post_init__(self) -> None:
        pairs = [tuple(sorted(pair)) for part in self.parts for pair in part]
        require(len(set(pairs)) == len(pairs), "an edge is in two matchings, or in one of them twice")
        for number, part in enumerate(self.parts):
            ends = [i for pair in part for i in pair]
            require(len(set(ends)) == len(ends), f"matching {number} has two edges that share a client")

    def of(self, n: int) -> networkx.Graph:
        """All matchings together."""
        _same(1 + max(i for part in self.parts for pair in part for i in pair), n)
        return graph_of((pair for part in self.parts for pair in part), n)

    def matchings(self, n: int) -> tuple[tuple[Pair, ...], ...]:
        """As they were given."""
        return self.parts


def graph_of(pairs: Iterable[Pair], n: int) -> networkx.Graph:
    """A networkx graph on 0 .. n-1 with these edges."""
    import networkx

    graph = networkx.empty_graph(n)
    graph.add_edges_from(pairs)
    return graph


def checked(graph: networkx.Graph, disconnected: Disconnected = "refuse", n: int | None = None) -> networkx.Graph:
    """The graph itself, if neighbours on it can average: no direction, no loops, and everybody can be reached."""
    import networkx

    size = graph.number_of_nodes()
    if n is not None:
        _same(size, n)
    require(set(graph.nodes) == set(range(size)), "the clients of the graph must be numbered 0 .. n-1")
    require(not graph.is_directed(), "the graph is directed: neighbours must hear each other")
    require(not graph.is_multigraph(), "the graph may have repeated edges: make it a networkx.Graph")
    loops = list(networkx.nodes_with_selfloops(graph))
    require(not loops, f"client {[*loops, 0][0]} has an edge to itself; its own weight is what the edges leave")
    if disconnected == "refuse" and size > 1 and not networkx.is_connected(graph):
        lonely = [i for i, d in graph.degree if d == 0]
        who = f"; client {lonely[0]} has no neighbour at all" if lonely else ""
        raise UsageError(
            f"the graph has {networkx.number_connected_components(graph)} parts that never hear each other, so "
            f"there is no consensus; connect them, or pass disconnected='allow'{who}"
        )
    return graph


@lru_cache(maxsize=16)
def graph_for(network: Network, n: int, disconnected: Disconnected = "refuse") -> networkx.Graph:
    """The checked graph of a network on n clients; made once."""
    import networkx

    return networkx.freeze(checked(network.of(n), disconnected, n))


def network_of(graph: Network | networkx.Graph) -> Network:
    """A network, also from a networkx graph."""
    if isinstance(graph, Network):
        return graph
    import networkx

    if isinstance(graph, networkx.Graph):
        return Edges.of_graph(graph)
    raise UsageError(f"a graph is a network such as Ring(), or a networkx graph, got {type(graph).__name__}")


def _same(size: int, n: int) -> None:
    require(
        size == n,
        f"the graph is for {size} clients, but the federation has {n}: take --clients {size}, or a graph for "
        f"clients 0 .. {n - 1}",
    )


def _connected(draw: Callable[..., networkx.Graph], how: tuple[Any, ...], seed: int, name: str) -> networkx.Graph:
    """A graph on how[0] clients, drawn again until it is connected."""
    import networkx

    graph = networkx.empty_graph()
    for attempt in range(DRAWS):
        graph = draw(*how, seed=seed_of(seed, name, how[0], attempt) & 0xFFFFFFFF)
        if graph.number_of_nodes() < 2 or networkx.is_connected(graph):
            break
    return graph


def _read(text: str) -> tuple[tuple[Pair, ...], ...]:
    """Matchings between slashes, edges between blanks, a client a hexadecimal digit."""
    return tuple(tuple((int(e[0], 16), int(e[1], 16)) for e in part.split()) for part in text.split("/"))


# Graphs by name, as in `--set graph=erdos-renyi(p=0.3)`. The last two are drawn in Wang et al., MATCHA (figures 1a and
# 3b), with the matchings published there.
MATCHA_8 = Matched(_read("15 67 04 23/17 36/10 37 56/12 70/31"))
MATCHA_16 = Matched(
    _read("27 3f de 89 15 0a 6c 4b/cb 56 e1 9a f2 8d/c5 b6 18 93 2a/ce b9 5f 06 17/c8 52 be 16/cf db a5 3e/c9/0c")
)

register(Network, "ring", Ring)
register(Network, "path", PathGraph)
register(Network, "torus", Torus)
register(Network, "complete", Complete)
register(Network, "star", StarGraph)
register(Network, "exponential", Exponential)
register(Network, "erdos-renyi", ErdosRenyi)
register(Network, "geometric", Geometric)
register(Network, "small-world", SmallWorld)
register(Network, "file", Edges.read)
register(Network, "matcha-8", lambda: MATCHA_8)
register(Network, "matcha-16", lambda: MATCHA_16)
