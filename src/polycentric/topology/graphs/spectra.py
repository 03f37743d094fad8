"""Spectra of graphs and of the weights on them: how fast neighbours agree."""

from __future__ import annotations

from typing import Any

import networkx
import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from scipy.sparse.linalg import eigsh
from torch import Tensor

from ...errors import require
from ...stacks.mixing import Mixing

DENSE = 400  # clients up to which all eigenvalues are computed; beyond, only the outermost


def zeta(weights: Mixing) -> float:
    """The second largest eigenvalue of a symmetric doubly stochastic mixing, in magnitude; 1: no consensus."""
    n = weights.shape[0]
    require(doubly_stochastic(weights), "zeta is of a symmetric mixing whose rows and columns sum to one")
    if n < 2:
        return 0.0
    matrix = _csr(weights)
    if n <= DENSE:
        values = np.linalg.eigvalsh(matrix.toarray())
        return max(abs(float(values[0])), abs(float(values[-2])), 0.0)
    start = np.cos(np.arange(n))
    top = eigsh(matrix, k=2, which="LA", v0=start, return_eigenvectors=False)
    bottom = eigsh(matrix, k=1, which="SA", v0=start, return_eigenvectors=False)
    return max(abs(float(top.min())), abs(float(bottom[0])))


def doubly_stochastic(weights: Mixing, tolerance: float = 1e-9) -> bool:
    """Whether a mixing is square and symmetric with rows (so also columns) that sum to one. Entries may be negative."""
    if weights.shape[0] != weights.shape[1]:
        return False
    matrix = _csr(weights)
    rows = np.abs(matrix.sum(1) - 1).max() if weights.shape[0] else 0.0
    skew = abs(matrix - matrix.T)
    return bool(rows <= tolerance and (skew.max() if skew.nnz else 0.0) <= tolerance)


def lambda_2(graph: networkx.Graph) -> float:
    """Algebraic connectivity: the second smallest eigenvalue of the Laplacian; 0 exactly where it is disconnected."""
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


def weight_facts(weights: Mixing) -> dict[str, Any]:
    """Links and zeta of a symmetric doubly stochastic mixing."""
    receiver, sender, _ = weights.links
    pairs = torch.stack([receiver, sender], 1)[receiver < sender]
    return link_facts(pairs, weights.shape[0]) | {"zeta": zeta(weights)}


def _csr(weights: Mixing) -> csr_array:
    receiver, sender, weight = weights.links
    index = (receiver.numpy(), sender.numpy())
    return coo_array((weight.to(torch.float64).numpy(), index), shape=weights.shape).tocsr()
