"""Cells of given sizes: overlaps of three, rings, regions as you like; and every client at one edge only."""

import math
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from ...errors import UsageError, require
from ...language import register
from ...parts.select import inner
from .coverage import MOST_EDGES, MOST_LINKS, Coverage, Geometry, covered


class SizedCells(Geometry):
    """Regions of given sizes. Other numbers of clients are shared out in proportion, by largest remainder."""

    @property
    @abstractmethod
    def regions(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """(edges, clients) of every region."""

    @cached_property
    def n_edges(self) -> int:
        """One more than the largest number."""
        return 1 + max(max(edges) for edges, _ in self.regions)

    @property
    def default_n_clients(self) -> int:
        """The sum of the sizes."""
        return sum(size for _, size in self.regions)

    def cover(self, n_clients: int, seed: int, round: int) -> Coverage:
        """One region after another."""
        counts = shared(n_clients, [size for _, size in self.regions])
        edge, client, first = [], [], 0
        for (edges, _), count in zip(self.regions, counts, strict=True):
            members = torch.arange(first, first + count)
            edge += [torch.full_like(members, e) for e in edges]
            client += [members] * len(edges)
            first += count
        return Coverage.of(torch.cat(edge), torch.cat(client), self.n_edges, n_clients)


@dataclass(frozen=True)
class Overlap(SizedCells):
    """Three cells that overlap in pairs, and all three in the middle: FedMes's (u, v, w), n = 3 (u + v) + w.

    Arguments:
        u: clients in each cell alone.
        v: clients in each of the three overlaps of two cells.
        w: clients in all three cells.
    """

    u: int = 20
    v: int = 10
    w: int = 0

    def __post_init__(self) -> None:
        _check_sizes("Overlap", self.u, self.v, self.w)

    @property
    def regions(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """Alone, in pairs, in the middle."""
        alone = tuple(((i,), self.u) for i in range(3))
        pairs = tuple((pair, self.v) for pair in ((0, 1), (1, 2), (0, 2)))
        return (*alone, *pairs, ((0, 1, 2), self.w))


@dataclass(frozen=True)
class RingCells(SizedCells):
    """Cells on a ring, neighbours overlap: n = edges (u + v)."""

    edges: int = 4
    u: int = 15
    v: int = 10

    def __post_init__(self) -> None:
        require(1 <= self.edges <= MOST_EDGES, f"RingCells.edges must be from 1 to {MOST_EDGES:,}, got {self.edges}")
        _check_sizes("RingCells", self.u, self.v)

    @property
    def regions(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """Alone, then with the next."""
        n = self.edges
        alone = tuple(((i,), self.u) for i in range(n))
        return alone + tuple((tuple(sorted({i, (i + 1) % n})), self.v) for i in range(n))


@dataclass(frozen=True)
class CellRegions(SizedCells):
    """Any regions: `EDGES:CLIENTS` with EDGES such as 0 or 0+2, separated by blanks.

    >>> CellRegions("0:10 1:20 0+1:10 0+2:30 1+2:20").default_n_clients
    90
    """

    sizes: str

    def __post_init__(self) -> None:
        some = bool(self.regions) and self.default_n_clients > 0
        require(some, f"CellRegions has no clients in '{self.sizes}'; write for example '0:10 1:10 0+1:5'")
        n = self.n_edges
        require(
            n <= MOST_EDGES,
            f"CellRegions names edge {n - 1:,}; there may be at most {MOST_EDGES:,} edges, counted from 0",
        )

    @cached_property
    def regions(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """As written."""
        out = []
        for word in self.sizes.split():
            match = re.fullmatch(r"(\d{1,9}(?:\+\d{1,9})*):(\d{1,9})", word, re.ASCII)
            if not match:
                raise UsageError(f"CellRegions takes EDGES:CLIENTS such as 0:10 or 0+1:5, got '{word}'")
            out.append((tuple(sorted({int(e) for e in match[1].split("+")})), int(match[2])))
        return tuple(out)


@dataclass(frozen=True)
class Attached(Geometry):
    """Another geometry with every client at one of its edges only.

    On a map that is the nearest, so that a walker changes its edge only where another has come nearer; elsewhere
    overlaps are split evenly.
    """

    of: Geometry
    moves, drawn, n_edges = inner("moves"), inner("drawn"), inner("n_edges")
    default_n_clients, metres_to, spots = inner("default_n_clients"), inner("metres_to"), inner("spots")

    @property
    def outer(self) -> Geometry:
        """The cells before everybody went to one."""
        return self.of

    def cover(self, n_clients: int, seed: int, round: int) -> Coverage:
        """One edge for each client."""
        cells = covered(self.of, n_clients, seed, round)
        metres = self.of.metres_to(cells.edge, cells.client, n_clients, seed, round, 1.0)
        return cells.attached() if metres is None else cells.closest(metres)


def shared(n: int, sizes: Sequence[float]) -> list[int]:
    """n things in proportion to sizes, whole numbers that add up to n: the largest remainders get one more.

    >>> shared(10, [20, 10, 10])
    [5, 3, 2]
    """
    total = sum(sizes)
    exact = [n * size / total for size in sizes]
    out = [math.floor(e + 1e-9) for e in exact]
    by_rest = sorted(range(len(out)), key=lambda i: (-round(exact[i] - out[i], 9), i))
    for i in by_rest[: n - sum(out)]:
        out[i] += 1
    return out


def _check_sizes(what: str, *sizes: int) -> None:
    good = all(isinstance(s, int) and 0 <= s <= MOST_LINKS for s in sizes) and sum(sizes) > 0
    require(good, f"{what} takes numbers of clients >= 0, not all of them 0, got {', '.join(map(str, sizes))}")


register(Geometry, "overlap", Overlap)
register(Geometry, "ring", RingCells)
register(Geometry, "regions", CellRegions)
