"""Stations and clients on a map; clients may walk."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError, require, within
from ...language import register
from ...stacks.draw import uniform
from ..base import Spots
from .coverage import MOST_EDGES, Coverage, Geometry
from .tables import _lines, _numbers, _read

FASTEST = 10  # times across the map, a round


class Trace(NamedTuple):
    """Who was seen where, sorted by round."""

    n_clients: int
    round: Any  # (lines,)
    client: Any  # (lines,) int64
    place: Any  # (lines, 2)


class MapFiles(NamedTuple):
    """What the files of a map say."""

    stations: Any | None  # (edges, 3) x, y and radius, which may be NaN; None: no file says
    clients: Any | None  # (clients, 2)
    trace: Trace | None
    digest: str  # another content, another digest; empty where there are no files

    @staticmethod
    def read(places: str | None, trace: str | None) -> MapFiles:
        """Both files, checked."""
        read = [(path, _read(path)) for path in (places, trace) if path]
        digest = hashlib.sha256(repr(read).encode()).hexdigest()[:12] if read else ""
        stations, clients = _places(*read[0]) if places else (None, None)
        return MapFiles(stations, clients, _traced(*read[-1]) if trace else None, digest)


@lru_cache(maxsize=2)
def _stands(geometry: CellMap, n_clients: int, seed: int, round: int) -> Any:
    return geometry.positions(n_clients, seed, round)


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
        within(
            self,
            radius="[1e-9, inf); try 0.3",
            speed="[0, inf); try 0.05",
            pause="[0, inf); try 0",
            metres="(0, 1e12]; try 1000",
        )
        both = self.speed and self.trace
        require(not both, "CellMap takes speed (clients move at random) or trace (as a file says), not both")
        object.__setattr__(self, "digest", self.read.digest)
        object.__setattr__(self, "edges", len(self.stations))
        bare = np.isnan(self.radii)
        require(not bare.any(), f"'{self.places}': edge {int(bare.argmax())} has no radius; write one, or set radius")
        self._check_trace()
        across = float(np.hypot(*(self.box[1] - self.box[0])))
        require(
            self.speed <= FASTEST * across or across == 0,  # nobody moves where there is no way
            f"CellMap.speed must be at most {FASTEST} times across the map in a round, {FASTEST * across:.3g}, "
            f"got {self.speed:g}",
        )

    @cached_property
    def read(self) -> MapFiles:
        """What its files say, read when it is made."""
        return MapFiles.read(self.places, self.trace)

    @cached_property
    def stations(self) -> Any:
        """Where the edges stand, (edges, 2)."""
        return _grid(self.edges)[0] if self.read.stations is None else self.read.stations[:, :2]

    @cached_property
    def radii(self) -> Any:
        """How far they reach, (edges,)."""
        if self.radius is not None:
            return np.full(len(self.stations), self.radius)
        return _grid(self.edges)[1] if self.read.stations is None else self.read.stations[:, 2]

    drawn = True

    @property
    def files(self) -> tuple[str, ...]:
        """What it was read from."""
        return tuple(path for path in (self.places, self.trace) if path)

    @property
    def moves(self) -> bool:  # type: ignore[override]
        """Whether clients walk."""
        return bool(self.speed or self.trace)

    @property
    def n_edges(self) -> int:
        """Stations."""
        return self.edges

    @property
    def default_n_clients(self) -> int | None:
        """As many clients as the file has."""
        placed, trace = self.read.clients, self.read.trace
        return len(placed) if placed is not None else trace.n_clients if trace else None

    def _check_trace(self) -> None:
        """Refuse at once what would be refused in a later round: all that a trace says is known."""
        if self.read.trace is None:
            return
        n, when, who, where = self.read.trace
        placed = self.read.clients
        require(
            placed is None or len(placed) == n,
            f"'{self.places}' places {0 if placed is None else len(placed)} clients, and '{self.trace}' moves {n}: "
            "leave them out of one, or make them the same",
        )
        far = np.setdiff1d(np.arange(len(where)), self._within(where)[1])
        if len(far) and not self.nearest:
            raise UsageError(
                f"'{self.trace}': client {who[far[0]]} is in no cell in round {when[far[0]]:g}, at "
                f"({where[far[0], 0]:.3g}, {where[far[0], 1]:.3g}); raise the radius, or set nearest=true"
            )

    def _within(self, at: Any) -> tuple[Any, Any]:
        """The pairs (station, place) that are no further apart than the station reaches."""
        from scipy.spatial import cKDTree

        lists = cKDTree(at).query_ball_point(self.stations, self.radii)
        places = np.concatenate([np.asarray(found, dtype=np.int64) for found in lists])
        return np.repeat(np.arange(len(lists)), [len(found) for found in lists]), places

    def cover(self, n_clients: int, seed: int, round: int) -> Coverage:
        """Those within the radius of each station, and by the nearest rule the others."""
        from scipy.spatial import cKDTree

        at = _stands(self, n_clients, seed, round)
        edge, client = self._within(at)
        lost = np.setdiff1d(np.arange(n_clients), client)
        if len(lost) and not self.nearest:
            raise UsageError(
                f"client {lost[0]} is in no cell ({len(lost)} such clients): no station reaches it at "
                f"({at[lost[0], 0]:.3g}, {at[lost[0], 1]:.3g}) in round {round}; raise the radius, or set nearest=true"
            )
        if len(lost):
            edge = np.concatenate([edge, cKDTree(self.stations).query(at[lost])[1]])
            client = np.concatenate([client, lost])
        return Coverage.of(torch.as_tensor(edge), torch.as_tensor(client), self.edges, n_clients)

    def spots(self, n_clients: int, seed: int, round: int) -> Spots:
        """As on the map."""
        return Spots(self.stations, self.radii, self.positions(n_clients, seed, round))

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
        if (placed := self.read.clients) is not None:
            return placed.min(0), placed.max(0)
        return (self.stations - self.radii[:, None]).min(0), (self.stations + self.radii[:, None]).max(0)

    def positions(self, n_clients: int, seed: int, round: int) -> Any:
        """Where every client is in a round, (clients, 2) float64."""
        there = self.default_n_clients
        fits = there is None or there == n_clients
        require(
            fits, f"the map has places for {there} clients, but the federation has {n_clients}: take --clients {there}"
        )
        if self.read.trace is not None:
            return self._seen(self.read.trace, round)
        placed = self.read.clients
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

    def _seen(self, trace: Trace, round: int) -> Any:
        """Where the trace last saw every client."""
        n, when, who, where = trace
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


def _places(path: str, text: str) -> tuple[Any, Any | None]:
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
    small = edges[:, 2] < 1e-9
    require(not small.any(), f"'{path}': edge {int(small.argmax())} has no positive radius")
    return edges, clients[:, :2] if len(clients) else None


def _traced(path: str, text: str) -> Trace:
    head, rows = _lines(path, text)
    require(head == ["round", "client", "x", "y"], f"'{path}' must begin with the line round,client,x,y")
    table = np.array([_numbers(path, line, row, 4) for line, row in rows[1:]]).reshape(-1, 4)
    require(len(table) > 0, f"'{path}' has a heading and no other line")
    whole = (table[:, :2] == np.floor(table[:, :2])).all() and (table[:, :2] >= 0).all()
    require(bool(whole), f"'{path}': rounds and clients are whole numbers from 0")
    n = 1 + int(table[:, 1].max())
    require(n <= len(table), f"'{path}' names client {n - 1} but has only {len(table)} lines: clients count from 0")
    table = table[np.argsort(table[:, 0], kind="stable")]
    return Trace(n, table[:, 0], table[:, 1].astype(np.int64), table[:, 2:])


register(Geometry, "map", CellMap)
