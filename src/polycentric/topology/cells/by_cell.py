"""So many clients for every edge, each picked once for all its edges."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError, require, within
from ...language import register
from ...parts.select import Active, Around, Select, Uniform
from ...stacks import Cohort, Stacks
from ...stacks.draw import uniform
from .coverage import Geometry, covered

NODES = 1_000  # of the search for numbers that fill all edges
MANY_REGIONS = 500  # where only a part of the map is searched


@dataclass(frozen=True)
class ByCell(Around):
    """Select `n` clients for every edge; a client in several cells is selected once, for all of them (FedMes).

    Of the n clients of edge i a share |R| / |C_i| comes from every region R of its cell C_i, clients of one region
    being those that the same edges cover. With u clients alone and v in each overlap that is u n / (u + 2 v) alone and
    v n / (u + 2 v) from each overlap. Largest remainders round these numbers so that no edge gets more than n. If an
    edge is left with fewer although its cell has them, as many are moved from region to region as it takes
    (`filled_up`), so that every edge gets exactly n wherever there is a choice that gives them all n, and as few as
    possible are missing elsewhere; on maps of more than 500 regions only those near that edge are looked at.

    Arguments:
        n: clients of each edge.
        of: how clients of a region are picked, `Uniform` or `Active`; its own number is not used.
        cells: the geometry; None: that of the method it is given to.
    """

    n: int
    of: Select = Uniform(n=1)
    cells: Geometry | None = None

    def __post_init__(self) -> None:
        within(self, n=">= 1; try 20")
        name = type(self.of).__name__
        require(
            isinstance(self.of, Uniform | Active),
            f"ByCell.of must be Uniform or Active, got {name}; try ByCell(20, of=Active(1))",
        )

    def fitted(self, topology: Any) -> ByCell:
        """The same for the cells of the topology it is given to, unless it has its own."""
        return self if self.cells is not None else replace(self, cells=topology.geometry)

    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """Some of every region."""
        if self.cells is None:
            raise UsageError(
                "ByCell has no cells: use it as select of fedmes or hierarchical in `pc.run`, or write "
                "ByCell(n, cells=Overlap())"
            )
        regions = covered(self.cells, everyone.n_clients, everyone.seed, everyone.round).regions
        region = regions.of[everyone.index]
        there = torch.bincount(region, minlength=len(regions.edges))
        counts = self.counts(regions.edges, there, everyone.key)
        if isinstance(self.of, Uniform):  # all regions at once: the smallest draws of each
            order = uniform(*everyone.key, "select", everyone.index).argsort()
            order = order[region[order].argsort(stable=True)]
            rank = torch.arange(len(order)) - (there.cumsum(0) - there)[region[order]]
            return everyone[order[rank < torch.tensor(counts)[region[order]]].sort().values]
        of: Any = self.of
        members = torch.split(torch.argsort(region, stable=True), there.tolist())
        chosen = [replace(of, n=n)(memory, everyone[mine]) for mine, n in zip(members, counts, strict=True) if n]
        cohort = everyone[:0].join(chosen)
        return cohort[cohort.index.argsort()]

    def counts(self, edges: tuple[tuple[int, ...], ...], there: Tensor, key: tuple[int, int, int]) -> list[int]:
        """How many clients of every region, from how many there are."""
        most = there.tolist()

        def by_edge(counts: list[int]) -> list[int]:
            total = [0] * (1 + max((max(mine) for mine in edges), default=0))
            for mine, count in zip(edges, counts, strict=True):
                for edge in mine:
                    total[edge] += count
            return total

        cell = by_edge(most)
        # The edges of a region may want different shares of it; it gives the least, and they fill up elsewhere.
        exact = [
            self.n * size * min(1 / max(cell[e], self.n) for e in mine) if size else 0.0
            for mine, size in zip(edges, most, strict=True)
        ]
        out = [min(math.floor(x + 1e-9), size) for x, size in zip(exact, most, strict=True)]
        got = by_edge(out)
        tie = uniform(*key, "by cell", torch.arange(len(edges))).tolist()
        race = [(round(out[r] - exact[r], 9), -tie[r], r) for r in range(len(edges)) if out[r] < most[r]]
        heapq.heapify(race)
        while race:
            rest, lot, r = heapq.heappop(race)
            if any(got[e] >= self.n for e in edges[r]):
                continue  # edges that have their number have it for good
            out[r] += 1
            for edge in edges[r]:
                got[edge] += 1
            if out[r] < most[r]:
                heapq.heappush(race, (rest + 1, lot, r))
        wanted = [min(self.n, size) for size in cell]
        if got == wanted:
            return out
        order = sorted(range(len(edges)), key=tie.__getitem__)  # of choices that are equally good, another each time
        found = filled_up([edges[r] for r in order], [most[r] for r in order], wanted, [out[r] for r in order])
        return [count for _, count in sorted(zip(order, found, strict=True))]


def filled_up(edges: Sequence[Sequence[int]], most: list[int], wanted: list[int], near: list[int]) -> list[int]:
    """Clients of every region so that edges have what they want, close to given numbers, by an integer program:

        min  M sum_e s_e + sum_r |x_r - near_r|     s.t.  sum_{r in e} x_r + s_e = wanted_e,  0 <= x_r <= most_r whole

    s_e is what edge e lacks; M is so large that no closeness is worth a client that is missing. On large maps regions
    keep their numbers where no edge that lacks some is near: neither theirs nor one that shares a region with it.

    >>> filled_up([(0,), (1,), (0, 1)], [10, 100, 50], [20, 20], [7, 10, 10])
    [10, 10, 10]
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import, and seldom needed
    from scipy.sparse import coo_array, eye_array, hstack

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
    # A search that was cut short may end behind its start.
    better = (np.array(wanted) - heard @ out).sum() < lacks.sum()
    return [int(x) for x in (out if better else start)]


register(Select, "by-cell", ByCell)
