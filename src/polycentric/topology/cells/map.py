"""Stations and clients on a map; clients may walk."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from ...errors import UsageError, require
from ...language import register
from ...stacks.draw import uniform
from .coverage import MOST_EDGES, Coverage, Geometry
from .files import _lines, _numbers, _read

FASTEST = 10  # times across the map, a round
NEAR = 1e-7  # of a radius: how far into a corner one looks
TOUCH = 1e-3  # of a radius: half of what two circles share, where they do no more than touch
MOST_CROSSINGS = 4_000_000  # pairs of circles that are looked at


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
            raise UsageError(
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
                raise UsageError(
                    f"clients that walk may leave all cells, near ({x:.3g}, {y:.3g}): raise the radius, or set "
                    "nearest=true"
                )

    def cover(self, n_clients: int, seed: int, round: int) -> Coverage:
        """Those within the radius of each station, and by the nearest rule the others."""
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
        there = self.default_n_clients
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


register(Geometry, "map", CellMap)
