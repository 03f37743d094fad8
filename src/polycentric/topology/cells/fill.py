"""Whole numbers of clients for regions and edges: by largest remainder, and by an integer program."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array, eye_array, hstack

NODES = 1_000  # of the search for numbers that fill all edges
MANY_REGIONS = 500  # where only a part of the map is searched


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
