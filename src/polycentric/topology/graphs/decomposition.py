"""Edges in matchings, how often each is used, and how much neighbours then move: the plan behind MATCHA.

    1. matchings       sets of edges that share no client, at most Delta + 1 of them (Misra and Gries)
    2. probabilities   max_p  lambda_2( sum_j p_j L_j )    with  sum_j p_j <= C_b M,  0 <= p_j <= 1
    3. mixing weight   min_a  rho(a) = | I - J - 2 a Lbar + a^2 (Lbar^2 + 2 Lvar) |_2,   the norm of E[W^T W] - J

Symbols: L_j = Laplacian of matching j, M = number of matchings, C_b = budget, Lbar = sum p_j L_j,
Lvar = sum p_j (1 - p_j) L_j, a = alpha, W = I - a sum_j B_j L_j with B_j = 1 with probability p_j.

Both optimisations are convex: the first is concave in p and is bounded from above by planes (t <= sum_j p_j v^T L_j v
for every unit v orthogonal to 1), so a few small linear programs solve it; the second is a function of one number.
Where a graph in several parts is allowed, 1 and J stand for those of every part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...errors import require
from .networks import Disconnected, Network, Pair, graph_for

if TYPE_CHECKING:
    import networkx  # slow to import, and few methods have a graph

Reals = npt.NDArray[np.float64]
Activation = Literal["matcha", "periodic"]

LARGEST = 2048  # clients: the plan takes eigenvectors of dense matrices
CUTS = 6  # eigenvectors that become planes at once: lambda_2 is often repeated
GAP = 1e-9  # relative distance of the best p from the bound at which the search ends
LINEAR_PROGRAMS = 400


@dataclass(frozen=True, eq=False)
class MatchingPlan:
    """What neighbours do in a round, before the coins are thrown."""

    n: int
    matchings: tuple[tuple[Pair, ...], ...]
    p: Reals  # (matchings,) how often each is used
    alpha: float
    rho: float  # consensus distance shrinks by this factor in expectation, squared norms
    lambda_2: float  # of the expected Laplacian
    gap: float = 0.0  # how far lambda_2 can at most be from the best one
    together: bool = False  # one coin for all matchings (periodic)

    @cached_property
    def edges(self) -> tuple[Tensor, Tensor]:
        """All edges (edges, 2), and which matching each is of (edges,)."""
        pairs = [pair for part in self.matchings for pair in part]
        part = [k for k, part in enumerate(self.matchings) for _ in part]
        return torch.tensor(pairs, dtype=torch.int64).view(-1, 2), torch.tensor(part, dtype=torch.int64)

    @property
    def expected_matchings(self) -> float:
        """Matchings used in a round, on average: the communication delay in units of one matching."""
        return float(self.p.sum())


def coloured(graph: "networkx.Graph") -> tuple[tuple[Pair, ...], ...]:
    """The edges in at most Delta + 1 matchings, the same ones every time; Delta where the graph has two sides.

    Delta is the largest number of neighbours. Every edge takes a colour that is free at both its ends, once those in
    the way have been exchanged: along a path (Konig, where the graph is bipartite), or a path and a fan of neighbours.
    Reference: Misra, Gries, A constructive proof of Vizing's theorem, Information Processing Letters 1992.
    """
    import networkx

    largest = max((d for _, d in graph.degree), default=0)
    sides = networkx.is_bipartite(graph)
    paint = _Paint(largest if sides else largest + 1, len(graph))
    for u, v in sorted((min(e), max(e)) for e in graph.edges):
        if sides:
            c, d = paint.free(u), paint.free(v)
            paint.swap(v, d, c)  # now c is free at v too: the path cannot end at u
            paint.put(u, v, c)
        else:
            paint.add(u, v)
    classes: list[list[Pair]] = [[] for _ in range(paint.colours)]
    for (i, j), colour in sorted(paint.of.items()):
        if i < j:
            classes[colour].append((i, j))
    return tuple(tuple(part) for part in classes if part)


class _Paint:
    """Edges with colours, no two alike at a client."""

    def __init__(self, colours: int, n: int) -> None:
        self.colours = colours
        self.at: list[dict[int, int]] = [{} for _ in range(n)]  # client -> colour -> neighbour
        self.of: dict[Pair, int] = {}  # both ways round

    def free(self, i: int) -> int:
        return next(c for c in range(self.colours) if c not in self.at[i])

    def put(self, i: int, j: int, colour: int) -> None:
        self.at[i][colour], self.at[j][colour] = j, i
        self.of[i, j] = self.of[j, i] = colour

    def wipe(self, i: int, j: int) -> None:
        colour = self.of.pop((i, j))
        del self.of[j, i], self.at[i][colour], self.at[j][colour]

    def swap(self, u: int, c: int, d: int) -> None:
        """Exchange c and d along the path of these colours that begins at u, where c is free."""
        path, here, colour = [], u, d
        while colour in self.at[here]:
            path.append((here, self.at[here][colour], colour))
            here, colour = self.at[here][colour], c + d - colour
        for i, j, _ in path:
            self.wipe(i, j)
        for i, j, colour in path:
            self.put(i, j, c + d - colour)

    def add(self, u: int, v: int) -> None:
        """Colour (u, v): the step of Misra and Gries."""
        fan = [v]  # the colour of (u, fan[k + 1]) is free at fan[k]
        while (after := self._next(fan, u)) is not None:
            fan.append(after)
        c, d = self.free(u), self.free(fan[-1])
        self.swap(u, c, d)
        # What comes before the first client where d is free is still a fan: only d and c have changed places.
        last = next(k for k, w in enumerate(fan) if d not in self.at[w])
        moved = [self.of[u, w] for w in fan[1 : last + 1]]
        for w in fan[1 : last + 1]:
            self.wipe(u, w)
        for w, colour in zip(fan[: last + 1], [*moved, d], strict=True):
            self.put(u, w, colour)

    def _next(self, fan: list[int], u: int) -> int | None:
        there, end = set(fan), self.at[fan[-1]]
        return next((w for c, w in sorted(self.at[u].items()) if w not in there and c not in end), None)


def laplacian(pairs: Sequence[Pair], n: int) -> Reals:
    """The Laplacian of some edges, (n, n)."""
    out = np.zeros((n, n))
    i, j = np.array(pairs, dtype=int).reshape(-1, 2).T
    np.add.at(out, (i, j), -1.0)
    np.add.at(out, (j, i), -1.0)
    np.add.at(out, (i, i), 1.0)
    np.add.at(out, (j, j), 1.0)
    return out


def directions(matchings: Sequence[Sequence[Pair]], n: int) -> Reals:
    """An orthonormal basis (n, .) of all that the edges can bring together: orthogonal to 1 on every part."""
    values, vectors = np.linalg.eigh(sum((laplacian(part, n) for part in matchings), np.zeros((n, n))))
    out: Reals = vectors[:, values > 1e-9 * max(1.0, float(values[-1]))]
    return out


def probabilities(matchings: Sequence[Sequence[Pair]], n: int, budget: float) -> tuple[Reals, float, float]:
    """How often to use every matching: (p, lambda_2, gap), p maximising lambda_2 under the budget.

    Planes are added at the solution of the linear program and half-way back to the best p so far; `gap` is the
    bound of the last program less the best lambda_2.
    """
    from scipy.optimize import linprog

    m = len(matchings)
    basis = directions(matchings, n)
    if not m or budget == 0:
        return np.zeros(m), 0.0, 0.0
    ends = [np.array(part, dtype=int).T for part in matchings]
    small = np.stack([(basis[i] - basis[j]).T @ (basis[i] - basis[j]) for i, j in ends])  # L_j in the basis

    def look(p: Reals) -> tuple[float, Reals]:
        values, vectors = np.linalg.eigh(np.tensordot(p, small, 1))
        v = vectors[:, :CUTS]
        return float(values[0]), np.einsum("ak,jab,bk->kj", v, small, v, optimize=True)

    # In units of the budget: p = budget q, so that small budgets are solved as exactly as large ones.
    best, most = np.ones(m), 1 / budget
    value, cuts = look(best)
    bound = np.inf
    for _ in range(0 if budget == 1 else LINEAR_PROGRAMS):  # everything is allowed: use everything
        found = linprog(
            np.r_[np.zeros(m), -1.0],
            A_ub=np.vstack([np.c_[-cuts, np.ones(len(cuts))], np.r_[np.ones(m), 0.0]]),
            b_ub=np.r_[np.zeros(len(cuts)), m],
            bounds=[(0.0, most)] * m + [(0.0, None)],
            method="highs-ds",
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        bound = min(bound, -float(found.fun))
        far = found.x[:m]
        for q in (far, (far + best) / 2):
            reached, planes = look(q)
            cuts = np.vstack([cuts, planes])
            if reached > value:
                best, value = q, reached
        if bound - value <= GAP * bound:
            break
    p = np.clip(budget * best, 0.0, 1.0)
    return p, look(p)[0], budget * max(0.0, bound - value) if np.isfinite(bound) else 0.0


def spectral(alpha: float, p: Reals, matchings: Sequence[Sequence[Pair]], n: int, together: bool = False) -> float:
    """rho(alpha): the norm of E[W^T W] - J, by which squared consensus distances shrink in expectation."""
    return _rho(*_moments(p, matchings, n, together), alpha)


def mixing_weight(p: Reals, matchings: Sequence[Sequence[Pair]], n: int, together: bool = False) -> tuple[float, float]:
    """The alpha with the smallest rho, and that rho: (alpha, rho)."""
    mean, square = _moments(p, matchings, n, together)
    if not mean.size or not p.any():
        return 0.0, float(mean.size > 0)
    rho = partial(_rho, mean, square)
    if together or (p == 1).all():  # E[L^2] is a multiple of L^2: the worst are the two ends of the spectrum
        ends = np.linalg.eigvalsh(mean / p[0])[[0, -1]]
        best = 2 / float(ends.sum())
        return best, rho(best)
    values, vectors = np.linalg.eigh(square)
    v = vectors[:, -1]  # along v, rho is above 1 from here on
    return _lowest(rho, 0.0, 2 * float(v @ mean @ v) / float(values[-1]))


def _moments(p: Reals, matchings: Sequence[Sequence[Pair]], n: int, together: bool) -> tuple[Reals, Reals]:
    """E[L] and E[L^2] of the Laplacian in use, on all but consensus."""
    basis = directions(matchings, n)
    parts = [basis.T @ laplacian(part, n) @ basis for part in matchings]
    zero = np.zeros((basis.shape[1],) * 2)
    mean: Reals = sum((a * part for a, part in zip(p, parts, strict=True)), zero)
    if together:  # one coin: E[L^2] = C_b L^2
        whole = sum(parts, zero)
        return mean, float(p[0]) * whole @ whole if len(p) else zero
    spread: Reals = sum((a * (1 - a) * part for a, part in zip(p, parts, strict=True)), zero)
    return mean, mean @ mean + 2 * spread  # L_j^2 = 2 L_j


def _rho(mean: Reals, square: Reals, alpha: float) -> float:
    """The largest eigenvalue of I - 2 alpha E[L] + alpha^2 E[L^2], convex in alpha."""
    if not mean.size:
        return 0.0
    return float(np.linalg.eigvalsh(np.eye(len(mean)) - 2 * alpha * mean + alpha**2 * square)[-1])


def _lowest(curve: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Golden-section search for the minimum of a convex curve."""
    ratio = (5**0.5 - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = curve(a), curve(b)
    while high - low > 1e-10 * max(1.0, high):
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = curve(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = curve(b)
    middle = (low + high) / 2
    return middle, curve(middle)


@lru_cache(maxsize=64)
def plan_for(
    network: Network,
    n: int,
    budget: float,
    schedule: Activation = "matcha",
    alpha: float | None = None,
    disconnected: Disconnected = "refuse",
) -> MatchingPlan:
    """The plan of a network on n clients; made once."""
    require(
        n <= LARGEST,
        f"MATCHA's plan takes eigenvectors of {n} x {n} numbers: take at most {LARGEST} clients, or use dpsgd",
    )
    graph = graph_for(network, n, disconnected)
    parts = network.matchings(n) or coloured(graph)
    together = schedule == "periodic"
    if together:
        p, gap = np.full(len(parts), float(budget)), 0.0
        mean, _ = _moments(p, parts, n, together)
        lambda_2 = float(np.linalg.eigvalsh(mean)[0]) if mean.size else 0.0
    else:
        p, lambda_2, gap = probabilities(parts, n, budget)
    if alpha is None:
        alpha, rho = mixing_weight(p, parts, n, together)
    else:
        rho = spectral(alpha, p, parts, n, together)
    return MatchingPlan(n, parts, p, alpha, rho, lambda_2, gap, together)
