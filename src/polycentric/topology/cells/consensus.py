"""What the cells alone say about edges that share clients: how fast they agree, and on what.

    Gamma  (edges x clients)  what an edge hears, rows sum to one        C' = Gamma W
    D      (clients x edges)  what a client receives, rows sum to one    W  = D C'

    A = D Gamma        clients hear each other through it; its columns sum to one (doubly stochastic) iff the mean over
                       all clients stays where it is. Three equal cells, equal clients: iff alpha_u = 2 alpha_v
    zeta               the second largest modulus among the eigenvalues of the edge chain Gamma D: what is left of a
                       disagreement between edges after a round. Three equal cells: alpha_u u + alpha_v v / 2, where
                       alpha_u u + 2 alpha_v v = 1; 1 without overlaps, so that the edges never agree. The chain is
                       S^-1 M N, diagonal S and N and M = C diag(.) C^T, C the cells, so all eigenvalues are in [0, 1]
    pi                 the stationary vector of the edge chain, pi^T Gamma D = pi^T, sum pi = 1: what edges agree on is
                       the pi-weighted mean. n (pi^T Gamma)_k is how much client k counts in it, 1 on average

Reference: Han et al., FedMes: speeding up federated learning with multiple edge servers, IEEE JSAC 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from ...errors import require
from ...stacks import Cohort, Mixing
from ..base import Topology
from .coverage import covered

if TYPE_CHECKING:
    from .weights import OverCells

CLOSE = 1e-9
DENSE = 400  # edges up to which all eigenvalues are computed; beyond, those next to 1
BEYOND = 1.001  # where those next to 1 are looked for: the nearer to it, the fewer steps


@dataclass(frozen=True, eq=False)
class EdgeFacts:
    """What the matrices of a topology with edges say."""

    chain: Any  # (edges, edges) Gamma D, sparse
    columns: Tensor  # (clients,) column sums of A: how much a client counts in the long run's next step
    zeta: float
    counts: Tensor  # (clients,) n pi^T Gamma: how much a client counts in what edges agree on, 1 on average

    @property
    def doubly_stochastic(self) -> bool:
        """Whether every client counts the same in what all clients receive."""
        return bool(((self.columns - 1).abs() < CLOSE).all())


def edge_facts(topology: Topology, n_clients: int, sizes: Tensor | None = None, seed: int = 0) -> EdgeFacts:
    """Facts about edges and their cells in round 0, everybody taking part, no cloud and one model an edge.

    Arguments:
        sizes: training examples of every client, (clients,); None: equal.
    """
    every = torch.arange(n_clients)
    sizes = torch.ones(n_clients, dtype=torch.int64) if sizes is None else sizes
    known = topology.geometry is not None
    require(known, f"{type(topology).__name__} has no cells: use the topology of fedmes or hierarchical")
    cells = cast("OverCells", topology).plain
    cohort = Cohort(every, sizes, torch.ones(n_clients, dtype=torch.float64), n_clients, seed, 0)
    memory, _ = cells.meet(cells.remembers(n_clients), cohort, {})
    gamma, d = _rows(cells.up(memory, cohort, "model")), _rows(cells.down(memory, cohort, "model"))
    chain = gamma @ d
    columns = torch.as_tensor(gamma.T @ (d.T @ np.ones(n_clients)))
    counts = n_clients * torch.as_tensor(gamma.T @ stationary(chain))
    return EdgeFacts(chain, columns, chain_zeta(chain), counts)


def stationary(chain: Any) -> Any:
    """pi with pi^T chain = pi^T and sum one, (edges,); one of many where edges do not agree.

    >>> stationary([[0.5, 0.5], [0.25, 0.75]]).round(6).tolist()
    [0.333333, 0.666667]
    """
    from scipy.sparse import csc_array
    from scipy.sparse.linalg import eigs

    turned = csc_array(chain).T
    n = turned.shape[0]
    if n <= DENSE:
        values, vectors = np.linalg.eig(turned.toarray())
        leading = vectors[:, np.abs(values - 1).argmin()].real
    else:
        leading = eigs(turned.tocsc(), k=1, sigma=BEYOND, v0=np.ones(n))[1][:, 0].real
    return leading / leading.sum()


def chain_zeta(chain: Any) -> float:
    """The second largest eigenvalue of an edge chain, dense or sparse; 0 for one edge.

    >>> chain_zeta([[0.75, 0.25], [0.25, 0.75]])
    0.5
    """
    from scipy.sparse import csc_array
    from scipy.sparse.linalg import eigs

    chain = csc_array(chain)
    n = chain.shape[0]
    if n < 2:
        return 0.0
    if n <= DENSE:
        values = np.linalg.eigvals(chain.toarray())
    else:
        values = eigs(chain, k=2, sigma=BEYOND, v0=np.cos(np.arange(n)), return_eigenvectors=False)
    return round(float(np.sort(np.abs(values))[-2]), 12)


def edge_summary(topology: OverCells, n_clients: int, seed: int) -> dict[str, Any]:
    """The numbers of a topology over cells, equal clients, round 0; zeta knows of a cloud that is met every round."""
    there, facts = covered(topology.geometry, n_clients, seed), edge_facts(topology, n_clients, seed=seed)
    regions, every = there.regions, topology.cloud_every
    sizes = regions.of.bincount(minlength=len(regions.edges)).tolist()
    return {
        "edges": there.n_edges,
        "clients": n_clients,
        "pairs": len(there.edge),
        "moves": topology.geometry.moves,
        "in_cells": there.sizes.tolist(),
        "regions": dict(zip(regions.names(), sizes, strict=True)),
        "in_overlaps": int((there.covers > 1).sum()),
        "bridge": topology.bridge,
        "cloud_every": every,
        "zeta": 0.0 if every == 1 else facts.zeta,
        "column_sums": [round(float(facts.columns.min()), 6), round(float(facts.columns.max()), 6)],
        "doubly_stochastic": facts.doubly_stochastic,
        "counts": None if every or facts.zeta > 1 - CLOSE else [round(float(end), 6) for end in facts.counts.aminmax()],
    }


def _rows(mixing: Mixing) -> Any:
    """A mixing with its rows divided by their sums, sparse; an edge that hears nobody has an empty row."""
    receiver, sender, weight = mixing.links
    return Mixing.sparse(receiver, sender, weight / mixing.total[receiver], mixing.shape).to_csr()
