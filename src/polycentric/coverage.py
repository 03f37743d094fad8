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

import csv
import hashlib
import inspect
import io
import math
import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array, eye_array, hstack
from scipy.spatial import cKDTree
from torch import Tensor

from .draw import bits, uniform
from .errors import Mistake, require, unknown

MOST_BYTES = 64 << 20  # of a file that is read
MOST_LINKS = 50_000_000
MOST_EDGES = 100_000
FASTEST = 10  # times across the map, a round
NEAR = 1e-7  # of a radius: how far into a corner one looks
TOUCH = 1e-3  # of a radius: half of what two circles share, where they do no more than touch
MOST_CROSSINGS = 4_000_000  # pairs of circles that are looked at
NODES = 1_000  # of the search for numbers that fill all edges
MANY_REGIONS = 500  # where only a part of the map is searched


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
            len(edge) <= MOST_LINKS, f"the cells have {len(edge):,} pairs of edge and client; {MOST_LINKS:,} is most"
        )
        pair = torch.unique(client.long() * n_edges + edge.long())
        made = Coverage(pair % max(n_edges, 1), pair // max(n_edges, 1), n_edges, n_clients)
        lost = (made.covers == 0).nonzero()[:, 0]
        if len(lost):
            raise Mistake(
                f"client {int(lost[0])} is in no cell ({len(lost)} such clients): every client needs an edge that "
                "covers it; give it one, for example the nearest"
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
    def natural(self) -> int | None:
        """How many clients it was written for; None: any number."""
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


@lru_cache(maxsize=2)
def _stands(geometry: CellMap, n_clients: int, seed: int, round: int) -> Any:
    return geometry.positions(n_clients, seed, round)


# -- shapes --------------------------------------------------------------------------------------------------


class Shape(Geometry):
    """Regions of given sizes. Other numbers of clients are shared out in proportion, by largest remainder."""

    @property
    @abstractmethod
    def regions(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """(edges, clients) of every region."""

    @property
    def natural(self) -> int:
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
class Overlap(Shape):
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
    def n_edges(self) -> int:
        """Three."""
        return 3

    @property
    def regions(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """Alone, in pairs, in the middle."""
        alone = tuple(((i,), self.u) for i in range(3))
        pairs = tuple((pair, self.v) for pair in ((0, 1), (1, 2), (0, 2)))
        return (*alone, *pairs, ((0, 1, 2), self.w))


@dataclass(frozen=True)
class RingCells(Shape):
    """Cells on a ring, neighbours overlap: n = edges (u + v)."""

    edges: int = 4
    u: int = 15
    v: int = 10

    def __post_init__(self) -> None:
        require(
            1 <= self.edges <= MOST_EDGES,
            f"RingCells.edges must be from 1 to {MOST_EDGES:,}, got {self.edges}",
        )
        _check_sizes("RingCells", self.u, self.v)

    @property
    def n_edges(self) -> int:
        """As many as were asked for."""
        return self.edges

    @property
    def regions(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """Alone, then with the next."""
        n = self.edges
        alone = tuple(((i,), self.u) for i in range(n))
        return alone + tuple((tuple(sorted({i, (i + 1) % n})), self.v) for i in range(n))


@dataclass(frozen=True)
class CellRegions(Shape):
    """Any regions: `EDGES:CLIENTS` with EDGES such as 0 or 0+2, separated by blanks.

    >>> CellRegions("0:10 1:20 0+1:10 0+2:30 1+2:20").natural
    90
    """

    sizes: str

    def __post_init__(self) -> None:
        require(
            bool(self.regions) and self.natural > 0,
            f"CellRegions has no clients in '{self.sizes}'; write for example '0:10 1:10 0+1:5'",
        )
        n = self.n_edges
        require(n <= MOST_EDGES, f"CellRegions names edge {n - 1:,}; there may be {MOST_EDGES:,}")

    @property
    def n_edges(self) -> int:
        """One more than the largest number."""
        return 1 + max(max(edges) for edges, _ in self.regions)

    @cached_property
    def regions(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """As written."""
        out = []
        for word in self.sizes.split():
            match = re.fullmatch(r"(\d{1,9}(?:\+\d{1,9})*):(\d{1,9})", word, re.ASCII)
            if not match:
                raise Mistake(f"CellRegions takes EDGES:CLIENTS such as 0:10 or 0+1:5, got '{word}'")
            out.append((tuple(sorted({int(e) for e in match[1].split("+")})), int(match[2])))
        return tuple(out)


@dataclass(frozen=True)
class Attached(Geometry):
    """Another geometry with every client at one of its edges only.

    On a map that is the nearest, so that a walker changes its edge only where another has come nearer; elsewhere
    overlaps are split evenly.
    """

    of: Geometry

    @property
    def moves(self) -> bool:  # type: ignore[override]
        """As the inner one."""
        return self.of.moves

    @property
    def drawn(self) -> bool:  # type: ignore[override]
        """As the inner one."""
        return self.of.drawn

    @property
    def n_edges(self) -> int:
        """As the inner one."""
        return self.of.n_edges

    @property
    def natural(self) -> int | None:
        """As the inner one."""
        return self.of.natural

    def cover(self, n_clients: int, seed: int, round: int) -> Coverage:
        """One edge for each client."""
        cells = covered(self.of, n_clients, seed, round)
        metres = self.of.metres_to(cells.edge, cells.client, n_clients, seed, round, 1.0)
        return cells.attached() if metres is None else cells.closest(metres)

    def metres_to(
        self, edge: Tensor, client: Tensor, n_clients: int, seed: int, round: int, mean: float
    ) -> Tensor | None:
        """As the inner one."""
        return self.of.metres_to(edge, client, n_clients, seed, round, mean)


# -- tables --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class GivenCells(Geometry):
    """A coverage that is at hand: a table (edges, clients) of 0/1, dense or sparse."""

    coverage: Coverage

    @staticmethod
    def of(table: Tensor) -> GivenCells:
        """From a tensor (edges, clients); a stored zero covers nobody."""
        require(table.dim() == 2, f"cells are a table of edges x clients, got a tensor of shape {tuple(table.shape)}")
        table = (table if table.is_sparse else table.to_sparse()).coalesce()
        one = table.values() == 1
        require(bool((one | (table.values() == 0)).all()), "cells are a table of edges x clients that holds 0 and 1")
        edge, client = table.indices()[:, one].cpu()
        return GivenCells(Coverage.of(edge, client, int(table.shape[0]), int(table.shape[1])))

    @cached_property
    def digest(self) -> str:
        """Of the pairs: equal cells, equal digests."""
        pairs = torch.stack([self.coverage.edge, self.coverage.client]).numpy().tobytes()
        return hashlib.sha256(pairs + str((self.n_edges, self.natural)).encode()).hexdigest()[:12]

    @property
    def n_edges(self) -> int:
        """Rows of the table."""
        return self.coverage.n_edges

    @property
    def natural(self) -> int:
        """Columns of the table."""
        return self.coverage.n_clients

    def cover(self, n_clients: int, seed: int, round: int) -> Coverage:
        """The table, for the clients it was made for."""
        require(
            n_clients == self.natural,
            f"the cells cover {self.natural} clients, but the federation has {n_clients}: take --clients "
            f"{self.natural}, or cells for any number of clients, such as overlap(u=20, v=10)",
        )
        return self.coverage

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n_edges} edges, {self.natural} clients, {self.digest})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GivenCells) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def CellTable(path: str) -> GivenCells:
    """Cells from a file, edges and clients counted from 0.

    CSV: one line a client, one column an edge, 0 or 1, with or without a line of headings; or two columns headed
    `client,edge`, one line for each pair, which suits large maps. TOML: `edges = 3` and `clients = [[0], [0, 2], ...]`,
    the edges of every client.
    """
    text = _read(path)
    edge, client, n_edges, n_clients = _toml_pairs(path, text) if path.endswith(".toml") else _csv_pairs(path, text)
    require(n_clients > 0, f"'{path}' has no clients")
    require(1 <= n_edges <= MOST_EDGES, f"'{path}' has {n_edges:,} edges; a table has 1 to {MOST_EDGES:,}")
    return GivenCells(Coverage.of(torch.tensor(edge), torch.tensor(client), n_edges, n_clients))


def _toml_pairs(path: str, text: str) -> tuple[list[int], list[int], int, int]:
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise Mistake(f"'{path}' cannot be read as TOML: {' '.join(str(error).split())}") from error
    rows, n_edges = found.get("clients"), found.get("edges")
    good = isinstance(rows, list) and isinstance(n_edges, int) and not isinstance(n_edges, bool)
    require(good, f"'{path}' must say `edges = 3` and `clients = [[0], [0, 2], ...]`, the edges of every client")
    assert isinstance(rows, list) and isinstance(n_edges, int)
    edge, client = [], []
    for k, row in enumerate(rows):
        fine = isinstance(row, list) and all(type(e) is int and 0 <= e < n_edges for e in row)
        require(fine, f"'{path}': the edges of client {k} must be numbers from 0 to {n_edges - 1}, got {row!r}"[:300])
        edge += row
        client += [k] * len(row)
    return edge, client, n_edges, len(rows)


def _csv_pairs(path: str, text: str) -> tuple[list[int], list[int], int, int]:
    head, rows = _lines(path, text)
    if sorted(head) == ["client", "edge"]:
        edge, client = [], []
        for line, row in rows[1:]:
            k, e = _numbers(path, line, row, 2)[:: 1 if head[0] == "client" else -1]
            good = k >= 0 and e >= 0 and k % 1 == 0 and e % 1 == 0 and e < MOST_EDGES and k < MOST_LINKS
            require(
                good, f"'{path}', line {line}: clients and edges are whole numbers from 0, got '{','.join(row)}'"[:300]
            )
            client.append(int(k))
            edge.append(int(e))
        return edge, client, 1 + max(edge, default=-1), 1 + max(client, default=-1)
    if head and not all(_is_number(word) for word in head):
        rows = rows[1:]
    edge, client = [], []
    width = len(rows[0][1]) if rows else 0
    for k, (line, row) in enumerate(rows):
        for e, value in enumerate(_numbers(path, line, row, width)):
            require(value in (0, 1), f"'{path}', client {k}, edge {e}: a table of cells holds 0 and 1, got {value:g}")
            if value:
                edge.append(e)
                client.append(k)
    return edge, client, width, len(rows)


# -- maps ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellMap(Geometry):
    """Stations and clients on a map: an edge covers the clients within its radius.

    Without a file, stations stand on a grid in the unit square and clients anywhere in it, drawn by the seed. Clients
    walk if they have a `speed` (random waypoint: straight to a place drawn at random, a pause, on to the next) or a
    `trace`. Where a client is in a round is a function of the seed, the round and the client, so nothing is remembered.

    Arguments:
        edges: how many stations, where no file says it.
        radius: of every station; None: what covers the whole square, and a tenth more.
        nearest: a client outside every radius goes to the nearest station, instead of being refused.
        speed: how far a client walks in a round.
        pause: rounds a client stays where it arrived.
        places: a CSV file headed `kind,x,y,radius`, one line for each `edge` and each `client`; without clients in it
            they are drawn in the box of the stations, grown by the radii.
        trace: a CSV file headed `round,client,x,y`; a client stays where it was last seen.
        seed: of the draws; None: that of the run.
        metres: of one unit of the map, for the clock; None: clients are as far away, on average in a cell of mean
            radius, as the clock's `distance` says.
    """

    edges: int = 9
    radius: float | None = None
    nearest: bool = False
    speed: float = 0.0
    pause: float = 0.0
    places: str | None = None
    trace: str | None = None
    seed: int | None = None
    metres: float | None = field(default=None, compare=False)  # who is covered does not depend on it
    digest: str = field(init=False, default="")  # of the files: another content, another map

    def __post_init__(self) -> None:
        require(1 <= self.edges <= MOST_EDGES, f"CellMap.edges must be from 1 to {MOST_EDGES:,}, got {self.edges}")
        for name in ("radius", "speed", "pause", "metres"):
            value = getattr(self, name)
            least = "a positive number" if name in ("radius", "metres") else "a number from 0 up"
            good = value is None or (0 <= value < math.inf and (value > 0 or name in ("speed", "pause")))
            require(good, f"CellMap.{name} must be {least}, got {value}")
        require(
            not (self.speed and self.trace), "CellMap takes speed or trace: clients walk at random or as the file says"
        )
        read = [(path, _read(path)) for path in (self.places, self.trace) if path]
        object.__setattr__(self, "digest", hashlib.sha256(repr(read).encode()).hexdigest()[:12] if read else "")
        stations, radii, clients = _places(*read[0]) if self.places else (*_grid(self.edges), None)
        if self.radius is not None:
            radii = np.full(len(stations), self.radius)
        bare = np.isnan(radii)
        require(not bare.any(), f"'{self.places}': edge {int(bare.argmax())} has no radius; write one, or set radius")
        object.__setattr__(self, "edges", len(stations))
        object.__setattr__(self, "stations", stations)
        object.__setattr__(self, "radii", radii)
        object.__setattr__(self, "_clients", clients)
        object.__setattr__(self, "_trace", _traced(*read[-1]) if self.trace else None)
        if self.trace:
            self._check_trace()
        if self.speed:
            self._check_walk()

    stations: Any = field(init=False, default=None, repr=False, compare=False)  # (edges, 2)
    radii: Any = field(init=False, default=None, repr=False, compare=False)  # (edges,)
    drawn = True

    @property
    def moves(self) -> bool:  # type: ignore[override]
        """Whether clients walk."""
        return bool(self.speed or self.trace)

    @property
    def n_edges(self) -> int:
        """Stations."""
        return self.edges

    @property
    def natural(self) -> int | None:
        """As many clients as the file has."""
        placed, trace = self._clients, self._trace  # type: ignore[attr-defined]
        return len(placed) if placed is not None else trace[0] if trace else None

    def _check_trace(self) -> None:
        """Refuse at once what would be refused in a later round: all that a trace says is known."""
        n, when, who, where = self._trace  # type: ignore[attr-defined]
        placed = self._clients  # type: ignore[attr-defined]
        require(
            placed is None or len(placed) == n,
            f"'{self.places}' places {0 if placed is None else len(placed)} clients, and '{self.trace}' moves {n}: "
            "leave them out of one, or make them the same",
        )
        far = np.setdiff1d(np.arange(len(where)), self._within(where)[1])
        if len(far) and not self.nearest:
            raise Mistake(
                f"'{self.trace}': client {who[far[0]]} is in no cell in round {when[far[0]]:g}, at "
                f"({where[far[0], 0]:.3g}, {where[far[0], 1]:.3g}); raise the radius, or set nearest=true"
            )

    def _within(self, at: Any) -> tuple[Any, Any]:
        """The pairs (station, place) that are no further apart than the station reaches."""
        lists = cKDTree(at).query_ball_point(self.stations, self.radii)
        places = np.concatenate([np.asarray(found, dtype=np.int64) for found in lists])
        return np.repeat(np.arange(len(lists)), [len(found) for found in lists]), places

    def _check_walk(self) -> None:
        """Refuse at once what may be refused in a later round: a walk may lead to every place of the box.

        A hole that discs leave in a box has corners: where two circles cross, or a circle and a side, or two sides. So
        it is enough to look a little way into the sector that is outside of both; see `_into_corners`.
        """
        low, high = self.box
        across = float(np.hypot(*(high - low)))
        require(
            self.speed <= FASTEST * across or across == 0,  # nobody moves where there is no way
            f"CellMap.speed must be at most {FASTEST} times across the map in a round, {FASTEST * across:.3g}, "
            f"got {self.speed:g}",
        )
        tree = cKDTree(self.stations)
        crowded = tree.count_neighbors(tree, 2 * self.radii.max()) > MOST_CROSSINGS
        if self.nearest or across == 0 or crowded:  # of so many, a hole is told of when somebody is in it
            return
        thin = NEAR * 10 * across * (high == low)  # a line is a narrow box
        at = _into_corners(self.stations, self.radii, low - thin, high + thin)
        at = at[((at >= low - thin) & (at <= high + thin)).all(1)]
        away, who = tree.query(at)
        for place in at[away > self.radii[who]]:  # nearly always the nearest reaches it
            if (np.hypot(*(self.stations - place).T) > self.radii).all():
                x, y = (place / across).round(4) * across + 0.0
                raise Mistake(
                    f"clients that walk may leave all cells, near ({x:.3g}, {y:.3g}): raise the radius, or set "
                    "nearest=true"
                )

    def cover(self, n_clients: int, seed: int, round: int) -> Coverage:
        """Those within the radius of each station, and by the nearest rule the others."""
        at = _stands(self, n_clients, seed, round)
        edge, client = self._within(at)
        lost = np.setdiff1d(np.arange(n_clients), client)
        if len(lost) and not self.nearest:
            raise Mistake(
                f"client {lost[0]} is in no cell ({len(lost)} such clients): no station reaches it at "
                f"({at[lost[0], 0]:.3g}, {at[lost[0], 1]:.3g}) in round {round}; raise the radius, or set nearest=true"
            )
        if len(lost):
            edge = np.concatenate([edge, cKDTree(self.stations).query(at[lost])[1]])
            client = np.concatenate([client, lost])
        return Coverage.of(torch.as_tensor(edge), torch.as_tensor(client), self.edges, n_clients)

    def metres_to(self, edge: Tensor, client: Tensor, n_clients: int, seed: int, round: int, mean: float) -> Tensor:
        """As far as on the map."""
        unit = self.metres or mean / (2 / 3 * float(self.radii.mean()))  # 2/3 r: the mean over a disc of radius r
        way = _stands(self, n_clients, seed, round)[client.numpy()] - self.stations[edge.numpy()]
        return torch.as_tensor(unit * np.hypot(way[:, 0], way[:, 1]))

    @property
    def box(self) -> tuple[Any, Any]:
        """Lower left and upper right corner of where clients may be."""
        if self.places is None:
            return np.zeros(2), np.ones(2)
        low = (self.stations - self.radii[:, None]).min(0)
        high = (self.stations + self.radii[:, None]).max(0)
        placed = self._clients  # type: ignore[attr-defined]
        if placed is not None:
            low, high = placed.min(0), placed.max(0)
        return low, high

    def positions(self, n_clients: int, seed: int, round: int) -> Any:
        """Where every client is in a round, (clients, 2) float64."""
        there = self.natural
        require(
            there is None or there == n_clients,
            f"the map has places for {there} clients, but the federation has {n_clients}",
        )
        if self.trace:
            return self._seen(round)
        placed = self._clients  # type: ignore[attr-defined]
        seed = seed if self.seed is None else self.seed
        at = self._drawn(n_clients, seed, 0) if placed is None else placed
        return self._walked(at, seed, round) if self.speed else at

    def _drawn(self, n_clients: int, seed: int, leg: int) -> Any:
        every, (low, high) = torch.arange(n_clients)[:, None], self.box
        return low + (high - low) * uniform(seed, "place", leg, every, torch.arange(2)).numpy()

    def _walked(self, at: Any, seed: int, round: int) -> Any:
        """Random waypoint, from the first leg on: as many passes as the busiest client has legs behind it."""
        at, left, leg = at.copy(), np.full(len(at), float(round)), 0
        if np.array_equal(*self.box):  # nowhere to go
            return at
        while (left > 0).any():
            leg += 1
            way = self._drawn(len(at), seed, leg) - at
            takes = np.hypot(way[:, 0], way[:, 1]) / self.speed
            share = np.divide(left, takes, out=np.ones_like(left), where=takes > 0).clip(0, 1)
            at += way * share[:, None]
            left = np.where(share < 1, 0.0, np.maximum(left - takes - self.pause, 0.0))
        return at

    def _seen(self, round: int) -> Any:
        """Where the trace last saw every client."""
        n, when, who, where = self._trace  # type: ignore[attr-defined]
        seen = when <= round
        at = np.full((n, 2), np.nan)
        at[who[seen]] = where[seen]  # sorted by round: the last one stays
        lost = np.isnan(at[:, 0])
        require(not lost.any(), f"'{self.trace}' does not say where client {int(lost.argmax())} is in round 0")
        return at


def _grid(n: int) -> tuple[Any, Any]:
    """n stations on a grid in the unit square, the last row spread out, and radii that reach their tiles' corners."""
    columns = math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    places, radii = [], []
    for row in range(rows):
        here = columns if row < rows - 1 else n - columns * (rows - 1)
        places += [((k + 0.5) / here, (row + 0.5) / rows) for k in range(here)]
        radii += [1.1 * math.hypot(1 / here, 1 / rows) / 2] * here
    return np.array(places), np.array(radii)


def _into_corners(at: Any, radii: Any, low: Any, high: Any) -> Any:
    """Places just inside every corner that a hole between discs in a box may have, (places, 2).

    Where two lines cross, with normals m and n that point to where the hole would be, a little way along m + n; where
    two circles touch, so that m + n = 0, along both, and so far that they have parted.
    """
    points: list[Any] = []
    first, second, scale = list[Any](), list[Any](), list[Any]()
    for x, m in ((low[0], 1.0), (high[0], -1.0)):
        for y, n in ((low[1], 1.0), (high[1], -1.0)):
            points.append([[x, y]])
            first.append([[m, 0.0]])
            second.append([[0.0, n]])
            scale.append([float(np.hypot(*(high - low)))])
    for axis in (0, 1):
        for line, inward in ((low[axis], 1.0), (high[axis], -1.0)):
            half = radii**2 - (line - at[:, axis]) ** 2
            cut = half >= 0
            for sign in (-1, 1):
                point = np.full((int(cut.sum()), 2), line)
                point[:, 1 - axis] = at[cut, 1 - axis] + sign * np.sqrt(half[cut])
                points.append(point)
                first.append((point - at[cut]) / radii[cut, None])
                second.append(np.where(np.arange(2) == axis, inward, 0.0) * np.ones_like(point))
                scale.append(radii[cut])
    i, j = cKDTree(at).query_pairs(2 * radii.max(), output_type="ndarray").reshape(-1, 2).T
    way = at[j] - at[i]
    far = np.hypot(way[:, 0], way[:, 1])
    cut = (far > 0) & (far <= radii[i] + radii[j]) & (far >= abs(radii[i] - radii[j]))
    i, j, way, far = i[cut], j[cut], way[cut] / far[cut, None], far[cut]
    along = (far**2 + radii[i] ** 2 - radii[j] ** 2) / (2 * far)
    aside, least = np.stack([-way[:, 1], way[:, 0]], 1), np.minimum(radii[i], radii[j])
    height = np.sqrt(np.maximum(radii[i] ** 2 - along**2, 0))
    touch = height < TOUCH * least
    for sign in (-1, 1):
        point = at[i] + along[:, None] * way + sign * height[:, None] * aside
        points.append(point)
        first.append((point - at[i]) / radii[i, None])
        second.append((point - at[j]) / radii[j, None])
        scale.append(least)
        cusp = (point + sign * 2 * TOUCH * least[:, None] * aside)[touch]
        points.append(cusp)
        first.append(np.zeros_like(cusp))
        second.append(np.zeros_like(cusp))
        scale.append(least[touch])
    ahead = np.concatenate(first) + np.concatenate(second)
    length = np.hypot(ahead[:, 0], ahead[:, 1])
    step = np.divide(NEAR * np.concatenate(scale), length, out=np.zeros_like(length), where=length > 0)
    return np.concatenate(points) + step[:, None] * ahead


def _places(path: str, text: str) -> tuple[Any, Any, Any]:
    head, rows = _lines(path, text)
    require(
        head in (["kind", "x", "y"], ["kind", "x", "y", "radius"]),
        f"'{path}' must begin with the line kind,x,y,radius; then edge,0.5,0.5,0.3 or client,0.1,0.2,",
    )
    found: dict[str, list[list[float]]] = {"edge": [], "client": []}
    for line, row in rows[1:]:
        kind = row[0].strip().lower()
        require(kind in found, f"'{path}', line {line}: kind must be edge or client, got '{kind}'"[:300])
        words = row[1:] if len(row) < 4 or row[3].strip() else row[1:3]
        found[kind].append([*_numbers(path, line, words, 3 if len(words) == 3 else 2), math.nan][:3])
    require(bool(found["edge"]), f"'{path}' has no line of kind edge")
    edges, clients = np.array(found["edge"]), np.array(found["client"])
    require(not (edges[:, 2] <= 0).any(), f"'{path}': edge {int((edges[:, 2] <= 0).argmax())} has no positive radius")
    return edges[:, :2], edges[:, 2], clients[:, :2] if len(clients) else None


def _traced(path: str, text: str) -> tuple[int, Any, Any, Any]:
    head, rows = _lines(path, text)
    require(head == ["round", "client", "x", "y"], f"'{path}' must begin with the line round,client,x,y")
    table = np.array([_numbers(path, line, row, 4) for line, row in rows[1:]]).reshape(-1, 4)
    require(len(table) > 0, f"'{path}' has no line but its heading")
    whole = (table[:, :2] == np.floor(table[:, :2])).all() and (table[:, :2] >= 0).all()
    require(bool(whole), f"'{path}': rounds and clients are whole numbers from 0")
    n = 1 + int(table[:, 1].max())
    require(n <= len(table), f"'{path}' names client {n - 1} but has only {len(table)} lines: clients count from 0")
    table = table[np.argsort(table[:, 0], kind="stable")]
    return n, table[:, 0], table[:, 1].astype(np.int64), table[:, 2:]


# -- from words ----------------------------------------------------------------------------------------------

GEOMETRIES: dict[str, Any] = {
    "overlap": Overlap,
    "ring": RingCells,
    "regions": CellRegions,
    "table": CellTable,
    "map": CellMap,
}


def geometry_of(text: str) -> Geometry:
    """A geometry from a text.

    >>> geometry_of("overlap(u=0, v=30)")
    Overlap(u=0, v=30, w=0)
    """
    match = re.fullmatch(r"\s*([a-z]+)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
    if not match:
        raise Mistake(f"cells must be one of {', '.join(GEOMETRIES)}, like overlap(u=20, v=10), got '{text}'")
    name = match[1]
    if name not in GEOMETRIES:
        raise unknown("cells", name, GEOMETRIES)
    known = dict(inspect.signature(GEOMETRIES[name], eval_str=True).parameters)
    given: dict[str, Any] = {}
    for place, word in enumerate(w for w in (match[2] or "").split(",") if w.strip()):
        key, equals, value = word.partition("=")
        require(
            bool(equals) or place < len(known),
            f"{name} takes {', '.join(known)}, and '{word.strip()}' is one too many; regions are separated by blanks",
        )
        key, value = (key.strip(), value) if equals else (list(known)[place], word)
        if key not in known:
            raise unknown(f"setting of {name}", key, known)
        require(key not in given, f"{name} is given {key} twice")
        given[key] = _typed(f"{name}.{key}", value.strip().strip("'\""), known[key].annotation)
    missing = [key for key, p in known.items() if p.default is p.empty and key not in given]
    require(not missing, f"{name} needs {', '.join(missing)}: write {name}({', '.join(missing)}=...)")
    made: Geometry = GEOMETRIES[name](**given)
    return made


def geometry(cells: Any) -> Geometry:
    """Cells as they may be given in Python: a geometry, its text, or a table (edges, clients) of 0/1."""
    if isinstance(cells, Geometry):
        return cells
    if isinstance(cells, str):
        return geometry_of(cells)
    try:
        table = cells if isinstance(cells, Tensor) else torch.as_tensor(np.asarray(cells, dtype=float))
    except (TypeError, ValueError) as error:
        raise Mistake(
            f"cells must be a geometry such as Overlap(u=20, v=10), or a table of edges x clients, got {cells!r}"[:300]
        ) from error
    return GivenCells.of(table)


def _typed(key: str, text: str, wanted: Any) -> Any:
    kinds = getattr(wanted, "__args__", (wanted,))
    if bool in kinds:
        require(text.lower() in ("true", "false"), f"{key} must be true or false, got '{text}'")
        return text.lower() == "true"
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                raise Mistake(f"{key} must be a {'whole ' * (kind is int)}number, got '{text}'") from None
    return text


# -- small things --------------------------------------------------------------------------------------------


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


def filled_up(edges: Sequence[Sequence[int]], most: list[int], wanted: list[int], near: list[int]) -> list[int]:
    """Clients of every region so that edges have what they want, close to given numbers, by an integer program:

        min  M sum_e s_e + sum_r |x_r - near_r|     s.t.  sum_{r in e} x_r + s_e = wanted_e,  0 <= x_r <= most_r whole

    s_e is what edge e lacks; M is so large that no closeness is worth a client that is missing. On large maps regions
    keep their numbers where no edge that lacks some is near: neither theirs nor one that shares a region with it.

    >>> filled_up([(0,), (1,), (0, 1)], [10, 100, 50], [20, 20], [7, 10, 10])
    [10, 10, 10]
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import, and seldom needed

    region = np.repeat(np.arange(len(edges)), [len(mine) for mine in edges])
    edge = np.fromiter((e for mine in edges for e in mine), dtype=np.int64, count=len(region))
    heard = coo_array((np.ones(len(region)), (edge, region)), shape=(len(wanted), len(edges))).tocsc()
    start, room = np.array(near, dtype=np.float64), np.array(most, dtype=np.float64)
    lacks = np.array(wanted) - heard @ start
    free = np.arange(len(edges))
    if len(edges) > MANY_REGIONS:
        around = heard @ (heard.T @ (lacks > 0)) > 0
        free = np.flatnonzero(heard.T @ around > 0)
    part = heard[:, free]
    n, n_edges = part.shape[1], len(wanted)
    eye, none = eye_array(n), coo_array((n, n_edges))
    aim = lacks + part @ start[free]
    found = milp(  # x, then what edges lack, then how far x is from `near`
        np.concatenate([np.zeros(n), np.full(n_edges, 1.0 + 2 * sum(wanted)), np.ones(n)]),
        integrality=np.concatenate([np.ones(n), np.zeros(n_edges + n)]),
        bounds=Bounds(0, np.concatenate([room[free], wanted, np.full(n, np.inf)])),
        constraints=[
            LinearConstraint(hstack([part, eye_array(n_edges), none.T]), aim, aim),
            LinearConstraint(hstack([eye, none, -eye]), -np.inf, start[free]),
            LinearConstraint(hstack([eye, none, eye]), start[free], np.inf),
        ],
        options={"node_limit": NODES},  # nodes, not seconds: the same answer on every machine
    )
    out = start.copy()
    if found.x is not None:
        out[free] = np.round(found.x[:n])
    better = (
        np.array(wanted) - heard @ out
    ).sum() < lacks.sum()  # a search that was cut short may end behind its start
    return [int(x) for x in (out if better else start)]


def _check_sizes(what: str, *sizes: int) -> None:
    good = all(isinstance(s, int) and 0 <= s <= MOST_LINKS for s in sizes) and sum(sizes) > 0
    require(good, f"{what} takes numbers of clients from 0 up, not all of them 0, got {', '.join(map(str, sizes))}")


def _lines(path: str, text: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The words of a CSV file's first line that has any, and all such lines with their numbers."""
    reader = csv.reader(io.StringIO(text))
    try:
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise Mistake(f"'{path}', line {reader.line_num}: {error}") from error
    return [word.strip().lower() for word in rows[0][1]] if rows else [], rows


def _numbers(path: str, line: int, row: Iterable[str], wanted: int) -> list[float]:
    words = list(row)
    try:
        out = [float(word) for word in words]
    except ValueError:
        out = []
    if len(out) != wanted or not all(map(math.isfinite, out)):
        raise Mistake(f"'{path}', line {line}: {wanted} numbers are wanted, got '{','.join(words)}'"[:300])
    return out


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _read(path: str) -> str:
    try:
        raw = Path(path).read_bytes() if Path(path).stat().st_size <= MOST_BYTES else None
        require(raw is not None, f"'{path}' is larger than {MOST_BYTES >> 20} MiB; write pairs client,edge")
        return (raw or b"").decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise Mistake(f"'{path}' cannot be read: {reason}") from error
