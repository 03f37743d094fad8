"""No center: neighbours on a graph average with each other, and how fast they agree."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...errors import require
from ...stacks import Cohort, Mixing, Stacks
from ..base import Topology
from .networks import Disconnected, Network, Ring, checked, graph_for, network_of

if TYPE_CHECKING:
    import networkx  # slow to import, and few methods have a graph

DENSE = 400  # clients up to which all eigenvalues are computed; beyond, only the outermost


def zeta(weights: Mixing) -> float:
    """The second largest eigenvalue of a symmetric doubly stochastic mixing, in magnitude; 1: no consensus."""
    n = weights.shape[0]
    require(
        doubly_stochastic(weights),
        "zeta is of a symmetric mixing whose rows and columns sum to one: use metropolis(graph)",
    )
    if n < 2:
        return 0.0
    matrix = weights.to_csr()
    if n <= DENSE:
        values = np.linalg.eigvalsh(matrix.toarray())
        return max(abs(float(values[0])), abs(float(values[-2])), 0.0)
    from scipy.sparse.linalg import eigsh

    start = np.cos(np.arange(n))
    top = eigsh(matrix, k=2, which="LA", v0=start, return_eigenvectors=False)
    bottom = eigsh(matrix, k=1, which="SA", v0=start, return_eigenvectors=False)
    return max(abs(float(top.min())), abs(float(bottom[0])))


def doubly_stochastic(weights: Mixing, tolerance: float = 1e-9) -> bool:
    """Whether a mixing is square and symmetric with rows (so also columns) that sum to one. Entries may be negative."""
    if weights.shape[0] != weights.shape[1]:
        return False
    matrix = weights.to_csr()
    rows = np.abs(matrix.sum(1) - 1).max() if weights.shape[0] else 0.0
    skew = abs(matrix - matrix.T)
    return bool(rows <= tolerance and (skew.max() if skew.nnz else 0.0) <= tolerance)


def lambda_2(graph: "networkx.Graph") -> float:
    """Algebraic connectivity: the second smallest eigenvalue of the Laplacian; 0 exactly where it is disconnected."""
    import networkx
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import eigsh

    n = graph.number_of_nodes()
    if n < 2 or not networkx.is_connected(graph):
        return 0.0
    matrix = csr_array(networkx.laplacian_matrix(graph, nodelist=range(n)).astype(float))
    if n <= DENSE:
        return float(np.linalg.eigvalsh(matrix.toarray())[1])
    found = eigsh(matrix.tocsc(), k=2, sigma=-1e-3, which="LM", v0=np.cos(np.arange(n)), return_eigenvectors=False)
    return float(found.max())


def link_facts(pairs: Tensor, n: int) -> dict[str, Any]:
    """How many links there are, and the fewest and most of a client; `pairs` (links, 2), every link once."""
    degree = pairs.flatten().bincount(minlength=n)
    return {"links": len(pairs), "neighbours": [int(degree.min()), int(degree.max())]}


class Peers(Topology):
    """No center: every client is its own and averages with those beside it.

    `mixing` is symmetric with rows that sum to one; entries may be negative (MATCHA). What a client would
    have heard from an absent neighbour goes to its own fresh model, so mixing stays doubly stochastic
    whoever is there. `only_own`: names that are carried along but not mixed.
    """

    only_own: tuple[str, ...] = ()
    whole = True  # who is absent decides the diagonal
    at_home = True
    relayed = True
    line = "no center: every client averages with its neighbours on the graph"

    @abstractmethod
    def mixing(self, memory: Stacks, cohort: Cohort) -> Mixing:
        """(clients, clients) if everybody were there."""

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Neighbours who are there, and the rest of the weight on the own fresh model."""
        if name in self.only_own:
            return Mixing.scatter(cohort.index, cohort.n_clients, rest="keep")
        return present(self.mixing(memory, cohort), cohort)

    def facts(self, n_clients: int, seed: int = 0) -> dict[str, Any]:
        """Links, neighbours and zeta, everybody there."""
        self.n_centers(n_clients)
        ones = torch.ones(n_clients, dtype=torch.int64)
        everyone = Cohort(torch.arange(n_clients), ones, ones.double(), n_clients, seed, 0)
        weights = self.mixing({}, everyone)
        receiver, sender, _ = weights.links
        pairs = torch.stack([receiver, sender], 1)[receiver < sender]
        return link_facts(pairs, n_clients) | {"zeta": zeta(weights)}


@dataclass(frozen=True)
class Gossip(Peers):
    """Neighbours on a graph, by name and for any number of clients, with Metropolis weights (D-PSGD).

        up   M_ij = 1 / (1 + max(d_i, d_j)) for neighbours, the rest on the diagonal;  d_i = neighbours of client i

    Arguments:
        graph: such as `Ring()`, `ErdosRenyi(0.3)`, or a networkx graph on 0 .. n-1.
        only_own: names that are carried along but not mixed.
        disconnected: "allow" takes a graph in several parts; each then agrees within itself only.
    Reference: Lian et al., Can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017.
    """

    graph: Network = Ring()
    only_own: tuple[str, ...] = ()
    disconnected: Disconnected = "refuse"

    def __post_init__(self) -> None:
        object.__setattr__(self, "graph", network_of(self.graph))

    def n_centers(self, n_clients: int) -> int:
        """One for each client; the graph is made and checked here."""
        weights_for(self.graph, n_clients, self.disconnected)
        return n_clients

    def mixing(self, memory: Stacks, cohort: Cohort) -> Mixing:
        """Metropolis weights of the graph on that many clients."""
        return weights_for(self.graph, cohort.n_clients, self.disconnected)


@lru_cache(maxsize=16)
def weights_for(network: Network, n: int, disconnected: Disconnected = "refuse") -> Mixing:
    """Metropolis weights of a network on n clients; made once."""
    return metropolis(graph_for(network, n, disconnected), "allow")


@dataclass(frozen=True, eq=False)
class Graph(Peers):
    """Neighbours with weights of your own: symmetric, rows that sum to one; see `Gossip` for graphs by name."""

    weights: Mixing  # (clients, clients)
    only_own: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n, m = self.weights.shape
        require(n == m, f"the weights of a Graph are clients x clients, got {n} x {m}")
        worst = float((self.weights.total - 1).abs().max()) if n else 0.0
        require(
            worst <= 1e-9,
            f"the rows of the weights of a Graph must sum to 1, and one is off by {worst:.2g}: use metropolis(graph)",
        )
        even = doubly_stochastic(self.weights)
        require(even, "the weights of a Graph are not symmetric, so its mean would drift: use metropolis(graph)")

    def n_centers(self, n_clients: int) -> int:
        """One for each client."""
        require(
            n_clients == self.weights.shape[0],
            f"the graph is for {self.weights.shape[0]} clients, but the federation has {n_clients}: give weights "
            f"for clients 0 .. {n_clients - 1}, or name one, as in dpsgd(graph=Ring())",
        )
        return n_clients

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
    every = torch.arange(len(cohort))
    links = torch.cat([receiver, cohort.index]), torch.cat([at[sender], every]), torch.cat([weight, own])
    return Mixing.sparse(*links, (cohort.n_clients, len(cohort)), "keep")


def metropolis(graph: "networkx.Graph", disconnected: Disconnected = "refuse") -> Mixing:
    """Metropolis weights: M_ij = 1 / (1 + max(d_i, d_j)) on edges, the rest on the diagonal.

    Symmetric, doubly stochastic and non-negative on every graph; 1/3 each on a ring. Clients are 0 .. n-1.
    Memory is linear in the edges.
    """
    n = checked(graph, disconnected).number_of_nodes()
    i, j = pairs = torch.from_numpy(np.array(graph.edges, dtype=np.int64).reshape(-1, 2)).T
    degree = torch.bincount(pairs.flatten(), minlength=n).double()
    return symmetric(pairs, 1 / (1 + torch.maximum(degree[i], degree[j])), n)


def symmetric(pairs: Tensor, weight: Tensor, n: int) -> Mixing:
    """The mixing of n clients with these weights on pairs (2, pairs), the rest of every row on the diagonal."""
    every = torch.arange(n)
    receiver, sender, weight = torch.cat([*pairs]), torch.cat([*pairs.flip(0)]), torch.cat([weight, weight])
    own = torch.ones(n, dtype=torch.float64).index_add_(0, receiver, -weight)
    links = torch.cat([receiver, every]), torch.cat([sender, every]), torch.cat([weight, own])
    return Mixing.sparse(*links, (n, n), "keep")
