"""The numbers behind the pictures: labels matched, distances, PCA and t-SNE, all from inner products in float64.

Everything follows from the inner products of the clients' rows (clients x clients), so nothing here grows with the
square of a model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ...errors import require
from ...stacks.draw import seed_of
from ...topology import similarities

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def matched(labels: Any, reference: Any) -> Ints:
    """The labels renamed so that they agree with a reference on as many clients as possible.

    The Hungarian method on the table of overlaps: labels and colours stay with their clients from round to round and
    from run to run. A label without a partner gets the next number that the reference does not use.

    >>> matched([1, 1, 0, 0, 2], [0, 0, 1, 1, 1]).tolist()
    [0, 0, 1, 1, 2]
    """
    from scipy.optimize import linear_sum_assignment

    mine, theirs = np.asarray(labels, dtype=np.int64), np.asarray(reference, dtype=np.int64)
    require(mine.shape == theirs.shape, f"labels of {len(mine)} clients cannot be matched with those of {len(theirs)}")
    names, own = np.unique(mine, return_inverse=True)
    others, other = np.unique(theirs, return_inverse=True)
    overlap = np.zeros((len(names), len(others)), dtype=np.int64)
    np.add.at(overlap, (own, other), 1)
    rows, columns = linear_sum_assignment(-overlap)
    new = np.full(len(names), -1, dtype=np.int64)
    new[rows] = others[columns]
    free = (n for n in range(len(names) + int(others.max(initial=-1)) + 1) if n not in set(others.tolist()))
    for k in np.flatnonzero(new < 0):
        new[k] = next(free)
    return new[own]


def squared_distances(gram: Floats) -> Floats:
    """|x_i - x_j|^2 = G_ii - 2 G_ij + G_jj, never below zero."""
    own = np.diag(gram)
    out: Floats = np.clip(own[:, None] - 2 * gram + own[None], 0, None)
    np.fill_diagonal(out, 0.0)
    return out


def intra_cluster_distance(gram: Floats, place: Ints) -> float:
    """FeSEM's objective, 1/m sum_i |x_i - mean of its cluster|^2, from inner products."""
    total = 0.0
    for k in np.unique(place):
        mine = gram[np.ix_(place == k, place == k)]
        total += float(np.trace(mine) - mine.sum() / len(mine))
    return max(0.0, total) / max(1, len(place))


def principal(gram: Floats, n: int = 2) -> tuple[Floats, Floats]:
    """(coordinates (m, n), share of the variance of each): PCA of rows by their inner products.

    With J = I - 11^T/m and J G J = U S U^T, the coordinates are U S^(1/2). The largest entry of every column is
    positive, so the picture is the same every time.
    """
    m = len(gram)
    middle = gram - gram.mean(0) - gram.mean(1)[:, None] + gram.mean()
    values, vectors = np.linalg.eigh((middle + middle.T) / 2)
    order = np.argsort(values)[::-1][:n]
    values, vectors = np.clip(values, 0, None), vectors[:, order]
    total = float(values.sum())
    signs = np.sign(vectors[np.abs(vectors).argmax(0), np.arange(vectors.shape[1])])
    found = vectors * np.where(signs == 0, 1.0, signs) * np.sqrt(values[order])
    if found.shape[1] < n:  # fewer clients than axes
        found = np.hstack([found, np.zeros((m, n - found.shape[1]))])
    share = values[order] / total if total > 0 else np.zeros(len(order))
    return found, np.pad(share, (0, n - len(share)))


def neighbours(gram: Floats, seed: int = 0) -> Floats:
    """t-SNE of rows by their distances, (m, 2); begun from the PCA, so that one seed gives one picture."""
    from sklearn.manifold import TSNE

    m = len(gram)
    require(m >= 4, f"t-SNE needs at least 4 clients, got {m}")
    first = principal(gram)[0]
    first = first / max(float(first[:, 0].std()), 1e-300) * 1e-4
    perplexity = float(min(30, max(2, (m - 1) // 3)))
    tsne = TSNE(
        metric="precomputed", init=first, perplexity=perplexity, random_state=seed_of(seed, "t-sne") % (1 << 32)
    )
    found: Floats = np.asarray(tsne.fit_transform(np.sqrt(squared_distances(gram))), dtype=np.float64)
    return found


def cosines(rows: Tensor) -> Floats:
    """alpha_ij = <d_i, d_j> / |d_i| |d_j|, in float64; 0 where an update is zero."""
    found: Floats = similarities(rows).numpy()
    return found
