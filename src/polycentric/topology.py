"""Who averages with whom: every topology is a pair of matrices and two verbs beside them.

    down(memory, cohort, name)  -> Mixing (cohort x centers)    what every client receives
    place(memory, cohort, centers, sent) -> rows of memory      where these clients belong, from what they sent
    up(memory, cohort, name)    -> Mixing (centers x cohort)    what every center hears
    meet(memory, arrived, centers) -> memory, centers           what centers do among themselves, once an exchange

A client's model is always `down @ centers`; from one round to the next clients hear each other through
`down @ up`. Four clients, in every topology (n_k: examples of client k, rows of `up` before division):

    Star    up  n0 n1 n2 n3     Clusters  up  1 . 1 .      Cells  up  n0 n1 a*n2 .    Graph  up  2/3 1/3  .   .
            down 1 1 1 1 (a column)           . 1 . 1                 .  .  a*n2 n3   (path)     1/3 1/3 1/3  .
                                                                      client 2 is in both cells   .  1/3 1/3 1/3
    Alone   up  the identity, down the identity                                                   .   .  1/3 2/3
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import networkx
import torch
from torch import Tensor

from .cohort import Cohort
from .draw import uniform
from .errors import Mistake, require
from .mixing import Mixing
from .stack import Stacks


class Topology(ABC):
    """The four verbs. By default a client's place is fixed and centers do not meet."""

    whole: bool = False  # True: `place` and `up` must see the whole cohort at once
    at_home: bool = False  # True: center k lives at client k, so talking to it costs nothing

    @abstractmethod
    def n_centers(self, n_clients: int) -> int:
        """How many models persist when the run begins."""

    @abstractmethod
    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """(cohort, centers): what every client receives of the stack `name`."""

    @abstractmethod
    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """(centers, cohort): what every center hears of the stack `name`."""

    def remembers(self, n_clients: int) -> Stacks:
        """What the topology must remember from round to round, as it is at the beginning."""
        return {}

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """Rows of memory (cohort, ...): where these clients belong now."""
        return {}

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """What the centers do among themselves after they have stepped."""
        return memory, centers


@dataclass(frozen=True)
class Star(Topology):
    """One center: up is a single row, so `down @ up` has rank one (FedAvg).

    `equal`: every client counts the same, instead of by its examples. `denominator`: a fixed divisor; what
    the row then lacks of one stays with the center (unbiased under Poisson sampling, needed for client-level
    privacy, where a mean over those who came has no bounded sensitivity).
    """

    equal: bool = False
    denominator: float | None = None

    def __post_init__(self) -> None:
        require(
            self.denominator is None or self.denominator > 0,
            f"Star.denominator must be positive, got {self.denominator}",
        )

    def n_centers(self, n_clients: int) -> int:
        """One."""
        return 1

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """A column of ones."""
        return Mixing.gather(torch.zeros(len(cohort), dtype=torch.int64), 1)

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """One row: by data size, equal, or over a fixed denominator."""
        center = torch.zeros(len(cohort), dtype=torch.int64)
        if self.denominator is not None:
            return Mixing.scatter(center, 1, cohort.counts / self.denominator, "keep")
        return Mixing.scatter(center, 1, cohort.counts if self.equal else cohort.weights)


@dataclass(frozen=True)
class Alone(Topology):
    """Every client is its own center and hears nobody else: training alone, `down @ up` is the identity."""

    at_home = True

    def n_centers(self, n_clients: int) -> int:
        """One for each client."""
        return n_clients

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Rows of the identity."""
        return Mixing.gather(cohort.index, cohort.n_clients)

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Columns of the identity."""
        return Mixing.scatter(cohort.index, cohort.n_clients)


@dataclass(frozen=True)
class Clusters(Topology):
    """K centers, every client at one of them: one-hot rows down, one-hot columns up (FeSEM, TKM).

    The E-step is `place`: a client goes to the center nearest to what it sent (FeSEM eq. 7), the lowest
    number winning ties. The M-step is `up`: the mean of a center's clients (eq. 8), which by the paper counts
    clients (`weighted=False`). A center without clients keeps its model. `frozen`: nobody moves any more.
    """

    k: int
    weighted: bool = False
    frozen: bool = False

    def __post_init__(self) -> None:
        require(self.k >= 1, f"Clusters.k must be at least 1, got {self.k}")

    def n_centers(self, n_clients: int) -> int:
        """K."""
        return self.k

    def remembers(self, n_clients: int) -> Stacks:
        """The center of every client; in turn, until somebody finds better places."""
        return {"assignment": torch.arange(n_clients) % self.k}

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """One-hot rows: the client's own center."""
        return Mixing.gather(memory["assignment"].cpu()[cohort.index], self.k)

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """E-step, FeSEM eq. 7."""
        if self.frozen:
            return {}
        return {"assignment": squared_distances(sent["model"], centers["model"]).argmin(1).cpu()}

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """M-step, FeSEM eq. 8: one-hot columns."""
        place = memory["assignment"].cpu()[cohort.index]
        return Mixing.scatter(place, self.k, cohort.weights if self.weighted else cohort.counts)


@dataclass(frozen=True)
class Seeding(Topology):
    """One center becomes K: what all clients have learned from a common start is clustered, once (FeSEM's round 0).

    Lloyd's iteration from `restarts` different seeds, keeping the partition of the smallest intra-cluster distance.
    Centers are means of rows, so every distance follows from the inner products of rows:

        |x_i - c_k|^2 = G_ii - 2 mean_{j in k} G_ij + mean_{j,l in k} G_jl,      G = X X^T

    G is summed over pieces of the width in float64, once; restarts then cost nothing that grows with the model.
    """

    k: int
    restarts: int = 20
    iterations: int = 100
    seeding: Literal["kmeans++", "random"] = "kmeans++"
    weighted: bool = False
    whole = True

    def __post_init__(self) -> None:
        require(self.k >= 1, f"Seeding.k must be at least 1, got {self.k}")
        require(self.restarts >= 1, f"Seeding.restarts must be at least 1, got {self.restarts}")
        require(
            self.seeding in ("kmeans++", "random"), f"Seeding.seeding must be kmeans++ or random, got {self.seeding!r}"
        )

    def n_centers(self, n_clients: int) -> int:
        """One, until it has run."""
        return 1

    def remembers(self, n_clients: int) -> Stacks:
        """The center of every client."""
        return {"assignment": torch.arange(n_clients) % self.k}

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """A column of ones: there is one center yet."""
        return Mixing.gather(torch.zeros(len(cohort), dtype=torch.int64), 1)

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """The best of many clusterings."""
        gram = inner_products(sent["model"])
        runs = [self.lloyd(gram, cohort, restart) for restart in range(self.restarts)]
        return {"assignment": min(runs, key=lambda run: run[0])[1]}

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """One-hot columns, K receivers."""
        place = memory["assignment"].cpu()[cohort.index]
        return Mixing.scatter(place, self.k, cohort.weights if self.weighted else cohort.counts)

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """Whatever else a center holds, every one of the K now has."""
        return memory, {
            name: rows.repeat(self.k, 1) if len(rows) == 1 and self.k > 1 else rows for name, rows in centers.items()
        }

    def lloyd(self, gram: Tensor, cohort: Cohort, restart: int) -> tuple[float, Tensor]:
        """(intra-cluster distance, assignment) of one run; the lowest number wins ties."""
        own, n = gram.diag(), len(gram)
        draws = uniform(*cohort.key, "seeding", restart, torch.arange(self.k))
        seeds = [int(draws[0] * n)]
        for draw in draws[1:].tolist():
            chance = torch.ones(n, dtype=torch.float64)
            if self.seeding == "kmeans++":  # far rows are likely
                chance = (own[:, None] - 2 * gram[:, seeds] + own[seeds]).min(1).values.clamp(min=0)
            chance[seeds] = 0
            if not bool(chance.sum() > 0):  # fewer different rows than centers: the rest stay empty
                break
            seeds.append(int(torch.searchsorted(chance.cumsum(0), draw * float(chance.sum())).clamp(max=n - 1)))
        distance = own[:, None] - 2 * gram[:, seeds] + own[seeds]
        nearest = distance.argmin(1)
        for _ in range(self.iterations):
            belongs = torch.nn.functional.one_hot(nearest, self.k).double()
            count = belongs.sum(0)
            mean = gram @ belongs / count.clamp(min=1)  # (clients, centers)
            within = (belongs * mean).sum(0) / count.clamp(min=1)
            distance = own[:, None] - 2 * mean + torch.where(count > 0, within, math.inf)
            if bool((distance.argmin(1) == nearest).all()):
                break
            nearest = distance.argmin(1)
        return float(distance.min(1).values.clamp(min=0).sum()), nearest


def inner_products(rows: Tensor) -> Tensor:
    """X X^T of rows moved to their mean, float64 on the host, over pieces of the width."""
    out = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for first in range(0, rows.shape[1], 1 << 16):
        part = rows[:, first : first + (1 << 16)].double()
        part = part - part.mean(0)
        out += part @ part.T
    return out.cpu()


@dataclass(frozen=True)
class Sums(Topology):
    """Any topology, with some names added up instead of averaged (FedCurv's Fisher sums)."""

    of: Topology
    names: tuple[str, ...]

    @property
    def whole(self) -> bool:  # type: ignore[override]
        """As the inner one."""
        return self.of.whole

    def n_centers(self, n_clients: int) -> int:
        """As the inner one."""
        return self.of.n_centers(n_clients)

    def remembers(self, n_clients: int) -> Stacks:
        """As the inner one."""
        return self.of.remembers(n_clients)

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """As the inner one."""
        return self.of.down(memory, cohort, name)

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """As the inner one, or one for everybody a center hears."""
        up = self.of.up(memory, cohort, name)
        if name not in self.names:
            return up
        receiver, sender, weight = up.links
        return Mixing.sparse(receiver, sender, torch.ones_like(weight), up.shape, "none")

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """As the inner one."""
        return self.of.place(memory, cohort, centers, sent)

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """As the inner one."""
        return self.of.meet(memory, arrived, centers)


@dataclass(frozen=True, eq=False)
class Cells(Topology):
    """L edges with overlapping cells; a client in several cells is a bridge between them (FedMes).

        up    gamma_k^(i) ~ n_k in the cell alone, bridge * n_k in an overlap; every edge divides by its sum
        down  w_k = sum_i N_i w^(i) / sum_i N_i over the edges that cover k, N_i the data edge i heard last

    Symbols: bridge = alpha_v / alpha_u; cells = the coverage table, edges x clients.
    Reference: Han et al., FedMes: speeding up federated learning with multiple edge servers, IEEE JSAC 2021.
    """

    cells: Tensor  # (edges, clients) of 0/1, dense or sparse
    bridge: float = 1.0

    def __post_init__(self) -> None:
        require(self.bridge > 0, f"Cells.bridge must be positive, got {self.bridge}")
        cells = self.cells.to_sparse() if not self.cells.is_sparse else self.cells
        cells = cells.coalesce()
        there = cells.values() != 0  # a stored zero covers nobody
        cells = torch.sparse_coo_tensor(
            cells.indices()[:, there], cells.values()[there], cells.shape, check_invariants=False, is_coalesced=True
        )
        object.__setattr__(self, "cells", cells)
        covered = torch.zeros(cells.shape[1], dtype=torch.int64)
        covered.index_add_(0, cells.indices()[1], torch.ones(cells.indices().shape[1], dtype=torch.int64))
        object.__setattr__(self, "_covers", covered)
        if bool((covered == 0).any()):
            lost = (covered == 0).nonzero()[:, 0]
            raise Mistake(
                f"client {int(lost[0])} is in no cell ({len(lost)} such clients): every client needs an edge that "
                "covers it; give it one, for example the nearest"
            )

    @property
    def n_edges(self) -> int:
        """How many edges."""
        return int(self.cells.shape[0])

    def n_centers(self, n_clients: int) -> int:
        """One for each edge."""
        require(
            n_clients == self.cells.shape[1],
            f"the cells cover {self.cells.shape[1]} clients, but the federation has {n_clients}",
        )
        return self.n_edges

    def remembers(self, n_clients: int) -> Stacks:
        """The data every edge heard last: nothing yet."""
        return {"heard": torch.zeros(self.n_edges, dtype=torch.float64)}

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """The edges that cover a client, by the data they heard; equal where none of them heard any."""
        edge, client = self._links(cohort)
        heard = memory["heard"].cpu()[edge]
        total = torch.zeros(len(cohort), dtype=torch.float64).index_add_(0, client, heard)
        weight = torch.where(total[client] > 0, heard, 1.0)
        return Mixing.sparse(client, edge, weight, (len(cohort), self.n_edges))

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Cells times data size times the weight of a bridge."""
        edge, client = self._links(cohort)
        bridges: Tensor = self._covers[cohort.index] > 1  # type: ignore[attr-defined]
        weight = torch.where(bridges, self.bridge * cohort.weights, cohort.weights)
        return Mixing.sparse(edge, client, weight[client], (self.n_edges, len(cohort)))

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """Remember how much data every edge heard."""
        edge, client = self._links(arrived)
        heard = torch.zeros(self.n_edges, dtype=torch.float64).index_add_(0, edge, arrived.weights[client])
        return memory | {"heard": heard}, centers

    def _links(self, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """(edge, position in the cohort) of every pair that can talk."""
        edge, client = self.cells.indices()
        at = torch.full((self.cells.shape[1],), -1)
        at[cohort.index] = torch.arange(len(cohort))
        there = at[client] >= 0
        return edge[there], at[client[there]]


@dataclass(frozen=True, eq=False)
class TwoLevel(Topology):
    """Edges average their clients; every `every` rounds a cloud averages the edges (hierarchical).

    At such a round the mixing is the product `cloud @ edge`, the cloud counting edges by the data they heard.
    `every=1` is one star over all clients where no cells overlap (a bridge counts in each of its cells); a cloud that
    never meets (`every=0`) leaves isolated cells.
    """

    edges: Cells
    every: int = 1
    names: tuple[str, ...] = ("model",)  # stacks the cloud averages

    def __post_init__(self) -> None:
        require(self.every >= 0, f"TwoLevel.every must be 0 (never) or a number of rounds, got {self.every}")

    def n_centers(self, n_clients: int) -> int:
        """One for each edge."""
        return self.edges.n_centers(n_clients)

    def remembers(self, n_clients: int) -> Stacks:
        """What the edges remember."""
        return self.edges.remembers(n_clients)

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """As the edges."""
        return self.edges.down(memory, cohort, name)

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """As the edges; the cloud's mean follows when they meet."""
        return self.edges.up(memory, cohort, name)

    def cloud(self, memory: Stacks) -> Mixing:
        """Every edge hears all edges, by the data they heard."""
        return Mixing.dense(memory["heard"].cpu().expand(self.edges.n_edges, -1))

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """The cloud's mean, every so many rounds."""
        memory, centers = self.edges.meet(memory, arrived, centers)
        if not self.every or (arrived.round + 1) % self.every or not bool(memory["heard"].sum() > 0):
            return memory, centers
        return memory, centers | {name: self.cloud(memory) @ centers[name] for name in self.names}


@dataclass(frozen=True, eq=False)
class Graph(Topology):
    """No center: every client is its own and averages with its neighbours (D-PSGD).

    `weights` is symmetric with rows that sum to one; entries may be negative (MATCHA). What a client would
    have heard from an absent neighbour goes to its own fresh model, so mixing stays doubly stochastic
    whoever is there. `only_own`: names that are carried along but not mixed.
    """

    weights: Mixing  # (clients, clients)
    only_own: tuple[str, ...] = ()
    whole = True  # who is absent decides the diagonal
    at_home = True

    def __post_init__(self) -> None:
        n, m = self.weights.shape
        require(n == m, f"the weights of a Graph are clients x clients, got {n} x {m}")
        worst = float((self.weights.total - 1).abs().max()) if n else 0.0
        require(worst <= 1e-9, f"a row of the weights of a Graph is off one by {worst:.2g}: use metropolis(graph)")
        receiver, sender, weight = self.weights.links
        there = torch.sparse_coo_tensor(torch.stack([receiver, sender]), weight, (n, n), check_invariants=False)
        skew = (there - there.t()).coalesce().values().abs()
        require(
            not len(skew) or float(skew.max()) <= 1e-9,
            "the weights of a Graph are not symmetric, so its mean would drift: use metropolis(graph)",
        )

    def n_centers(self, n_clients: int) -> int:
        """One for each client."""
        require(
            n_clients == self.weights.shape[0],
            f"the graph has {self.weights.shape[0]} nodes, but the federation has {n_clients} clients",
        )
        return n_clients

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Rows of the identity."""
        return Mixing.gather(cohort.index, cohort.n_clients)

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Neighbours who are there, and the rest of the weight on the own fresh model."""
        if name in self.only_own:
            return Mixing.scatter(cohort.index, cohort.n_clients, rest="keep")
        return present(self.mixing(memory, cohort), cohort)

    def mixing(self, memory: Stacks, cohort: Cohort) -> Mixing:
        """(clients, clients) if everybody were there."""
        return self.weights


def present(everyone: Mixing, cohort: Cohort) -> Mixing:
    """A symmetric mixing of all clients, cut down to those who are there: (clients, cohort), rest kept."""
    receiver, sender, weight = everyone.links
    at = torch.full((cohort.n_clients,), -1)
    at[cohort.index] = torch.arange(len(cohort))
    off = (at[receiver] >= 0) & (at[sender] >= 0) & (receiver != sender)
    receiver, sender, weight = receiver[off], sender[off], weight[off]
    own = torch.ones(cohort.n_clients, dtype=torch.float64).index_add_(0, receiver, -weight)[cohort.index]
    return Mixing.sparse(
        torch.cat([receiver, cohort.index]),
        torch.cat([at[sender], torch.arange(len(cohort))]),
        torch.cat([weight, own]),
        (cohort.n_clients, len(cohort)),
        "keep",
    )


def metropolis(graph: networkx.Graph, disconnected: Literal["refuse", "allow"] = "refuse") -> Mixing:
    """Metropolis weights: M_ij = 1 / (1 + max(d_i, d_j)) on edges, the rest on the diagonal.

    Symmetric, doubly stochastic and non-negative on every graph; 1/3 each on a ring. Nodes are 0 .. n-1.
    """
    n = graph.number_of_nodes()
    require(set(graph.nodes) == set(range(n)), "the nodes of the graph must be numbered 0 .. n-1")
    require(not graph.is_directed(), "the graph is directed: neighbours must hear each other")
    if disconnected == "refuse" and n and not networkx.is_connected(graph):
        raise Mistake(
            f"the graph has {networkx.number_connected_components(graph)} parts that never hear each other, so "
            "there is no consensus; connect them, or pass disconnected='allow'"
        )
    degree = torch.tensor([graph.degree(i) for i in range(n)], dtype=torch.float64)
    pairs = torch.tensor([(i, j) for i, j in graph.edges if i != j], dtype=torch.int64).view(-1, 2)
    i, j = torch.cat([pairs, pairs.flip(1)]).T
    weight = 1 / (1 + torch.maximum(degree[i], degree[j]))
    own = torch.ones(n, dtype=torch.float64).index_add_(0, i, -weight)
    every = torch.arange(n)
    return Mixing.sparse(torch.cat([i, every]), torch.cat([j, every]), torch.cat([weight, own]), (n, n), "keep")


def squared_distances(rows: Tensor, centers: Tensor) -> Tensor:
    """Squared distances (rows, centers), without ever forming rows x centers x width.

    |a - b|^2 = |a|^2 - 2 a.b + |b|^2 cancels badly when both are far from the origin and near each other, so
    everything is moved to the middle of the centers first; sums run in float64 over pieces of the width.
    """
    out = torch.zeros(len(rows), len(centers), dtype=torch.float64, device=rows.device)
    middle = centers.double().mean(0)
    for first in range(0, rows.shape[1], 1 << 16):
        part = slice(first, first + (1 << 16))
        a, b = rows[:, part].double() - middle[part], centers[:, part].double() - middle[part]
        out += a.square().sum(1)[:, None] - 2 * a @ b.T + b.square().sum(1)
    return out.clamp_(min=0)
