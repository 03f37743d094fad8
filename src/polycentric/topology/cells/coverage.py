"""Which edges cover which clients: shapes of cells, tables, maps, and clients that move.

    Overlap(u=20, v=10, w=0)      three cells: u clients in each alone, v in each overlap of two, w in all three
    RingCells(edges=4, u=15, v=10)      neighbours on a ring overlap
    CellRegions("0:10 1:20 0+1:10 0+2:30 1+2:20")      so many clients in every region, as you like
    CellTable("cells.csv")        your own table
    CellMap(edges=9, radius=0.3)  stations and clients on a map; clients may walk

A geometry is a setting and knows no number of clients; `covered(geometry, n_clients, seed, round)` is the coverage it
gives them: the pairs (edge, client) that can talk, in memory linear in their number. Edges and clients count from 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError, require
from ...stacks.draw import bits
from ..base import Spots

MOST_LINKS = 50_000_000
MOST_EDGES = 100_000


@dataclass(frozen=True, eq=False)
class Coverage:
    """The pairs (edge, client) that can talk, sorted by client, then by edge."""

    edge: Tensor  # (links,) int64
    client: Tensor  # (links,) int64
    n_edges: int
    n_clients: int

    @staticmethod
    def of(edge: Tensor, client: Tensor, n_edges: int, n_clients: int) -> Coverage:
        """Pairs in any order, every one once; a client that nobody covers is refused."""
        require(
            len(edge) <= MOST_LINKS,
            f"the cells have {len(edge):,} pairs of edge and client, above {MOST_LINKS:,}: use fewer edges or clients",
        )
        pair = torch.unique(client.long() * n_edges + edge.long())
        made = Coverage(pair % max(n_edges, 1), pair // max(n_edges, 1), n_edges, n_clients)
        lost = (made.covers == 0).nonzero()[:, 0]
        if len(lost):
            raise UsageError(
                f"client {int(lost[0])} is in no cell ({len(lost)} such clients): every client needs an edge that "
                "covers it; put it into a cell, for example that of the nearest edge"
            )
        return made

    @cached_property
    def covers(self) -> Tensor:
        """How many edges cover every client, (clients,)."""
        return torch.bincount(self.client, minlength=self.n_clients)

    @cached_property
    def sizes(self) -> Tensor:
        """How many clients every edge covers, (edges,)."""
        return torch.bincount(self.edge, minlength=self.n_edges)

    @cached_property
    def first(self) -> Tensor:
        """Where the pairs of every client begin, (clients,)."""
        return self.covers.cumsum(0) - self.covers

    def links(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """(edge, position in `index`) of every pair of these clients; costs what they have, not what there is."""
        count = self.covers[index]
        position = torch.repeat_interleave(torch.arange(len(index)), count)
        rank = torch.arange(len(position)) - (count.cumsum(0) - count)[position]
        return self.edge[self.first[index][position] + rank], position

    @cached_property
    def regions(self) -> Regions:
        """Clients that are in the same cells, together."""
        code = torch.zeros(self.n_clients, dtype=torch.int64)
        code.index_add_(0, self.client, bits("region", self.edge))  # equal sets of edges, equal sums
        found, region = torch.unique(code, return_inverse=True)
        member = torch.zeros(len(found), dtype=torch.int64)
        member[region.flip(0)] = torch.arange(self.n_clients).flip(0)  # the first of every region
        edge, place = self.links(member)
        edges = [tuple(part.tolist()) for part in torch.split(edge, torch.bincount(place).tolist())]
        order = sorted(range(len(edges)), key=lambda r: (len(edges[r]), edges[r]))
        rank = torch.empty(len(order), dtype=torch.int64)
        rank[torch.tensor(order, dtype=torch.int64)] = torch.arange(len(order))
        return Regions(rank[region], tuple(edges[r] for r in order))

    def attached(self) -> Coverage:
        """Every client at one of its edges: every region is split evenly over the edges that cover it.

        Who is left over goes to the edges that have fewest so far.
        """
        region = self.regions.of
        order = torch.argsort(region, stable=True)
        count = torch.bincount(region, minlength=len(self.regions.edges))
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order)) - (count.cumsum(0) - count)[region[order]]
        begin = torch.tensor(_turns(self.regions.edges, count.tolist(), self.n_edges))
        return self.only(self.first + (rank + begin[region]) % self.covers)

    def closest(self, metres: Tensor) -> Coverage:
        """Every client at the nearest of its edges; `metres` of every pair."""
        least = torch.full((self.n_clients,), math.inf, dtype=metres.dtype)
        least.scatter_reduce_(0, self.client, metres, "amin")
        pairs = (metres == least[self.client]).nonzero()[:, 0].flip(0)
        chosen = torch.empty(self.n_clients, dtype=torch.int64)
        chosen[self.client[pairs]] = pairs  # the first of those that are equally near
        return self.only(chosen)

    def only(self, pairs: Tensor) -> Coverage:
        """One of its pairs for every client, (clients,)."""
        return Coverage(self.edge[pairs], torch.arange(self.n_clients), self.n_edges, self.n_clients)

    @property
    def table(self) -> Any:
        """The table (edges, clients) of zeros and ones, sparse."""
        from scipy.sparse import coo_array

        ones = np.ones(len(self.edge))
        return coo_array((ones, (self.edge.numpy(), self.client.numpy())), shape=(self.n_edges, self.n_clients)).tocsr()


@dataclass(frozen=True, eq=False)
class Regions:
    """The pieces a map is cut into by its cells."""

    of: Tensor  # (clients,) the region of every client
    edges: tuple[tuple[int, ...], ...]  # the edges that cover it; regions of one cell first

    def names(self) -> tuple[str, ...]:
        """`0`, `0+1`, ..."""
        return tuple("+".join(map(str, edges)) for edges in self.edges)


class Geometry(ABC):
    """How edges cover clients, whatever their number."""

    moves: bool = False  # True: the coverage depends on the round
    drawn: bool = False  # True: it depends on the seed

    @property
    @abstractmethod
    def n_edges(self) -> int:
        """How many edges."""

    @abstractmethod
    def cover(self, n_clients: int, seed: int, round: int) -> Coverage:
        """The coverage of so many clients in a round; see `covered`."""

    @property
    def default_n_clients(self) -> int | None:
        """How many clients it was written for; None: any number."""
        return None

    @property
    def outer(self) -> Geometry:
        """Whose cells a drawing shows: its own, unless clients are held to some of them."""
        return self

    def spots(self, n_clients: int, seed: int, round: int) -> Spots | None:
        """Where edges and clients stand in a round; None: cells have a shape, and no places."""
        return None

    def metres_to(
        self, edge: Tensor, client: Tensor, n_clients: int, seed: int, round: int, mean: float
    ) -> Tensor | None:
        """How far clients are from edges in a round, pair by pair; None: nobody knows.

        `mean`: metres to an edge on average, where a map has a scale but no metres.
        """
        return None


def covered(geometry: Geometry, n_clients: int, seed: int = 0, round: int = 0) -> Coverage:
    """Who is covered by whom in a round; the same for the same arguments, and remembered for a while."""
    return _covered(geometry, n_clients, seed if geometry.drawn else 0, round if geometry.moves else 0)


@lru_cache(maxsize=8)
def _covered(geometry: Geometry, n_clients: int, seed: int, round: int) -> Coverage:
    return geometry.cover(n_clients, seed, round)


def _turns(edges: Sequence[Sequence[int]], count: list[int], n_edges: int) -> list[int]:
    """At which of its edges every region begins to deal its clients out in turn, so that edges end nearly equal.

    >>> _turns([(0, 1), (0, 2), (1, 2)], [3, 3, 3], 3)
    [0, 1, 0]
    """
    size = [0] * n_edges
    for mine, n in zip(edges, count, strict=True):
        for e in mine:
            size[e] += n // len(mine)
    out = []
    for region, (mine, n) in enumerate(zip(edges, count, strict=True)):
        turns = [[mine[(turn + k) % len(mine)] for k in range(n % len(mine))] for turn in range(len(mine))]
        best = min(range(len(mine)), key=lambda turn: sum(size[e] for e in turns[turn]))
        out.append(best if turns[0] else region)
        for e in turns[best]:
            size[e] += 1
    return out
