"""How tasks are related: covariances over sets of tasks, and the penalty they make.

    S_j      =  W_j W_j^T                    the Gram matrix of the tasks of set j, W_j (tasks of j, numbers)
    Omega_j  =  S_j^(1/2) / tr S_j^(1/2)     what minimises tr(W_j^T Omega_j^-1 W_j) under tr Omega_j = 1
    Q        =  sum_j s_j E_j Omega_j^-1 E_j^T       so that sum_j s_j tr(W_j^T Omega_j^-1 W_j) = tr(W^T Q W)

E_j (tasks x tasks of j) selects. A set is the closed neighbourhood of a client, or all tasks at once. Matrices of all
sets lie end to end in one flat float64 tensor, so memory is linear in sum_j |set j|^2. A covariance is never inverted
as it is: one symmetric eigendecomposition, its spectrum floored, gives the covariance and the precision together.

Reference: Zhang and Yeung, A convex formulation for learning task relationships, UAI 2010.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import require
from ...stacks.all_rows import each

NUMBERS = 1 << 22  # float64 numbers gathered at once
SMALL = 128  # an eigenvalue of a smaller matrix is found densely


class Related(NamedTuple):
    """Covariances and precisions, in the same form, and the worst condition number among them."""

    cov: Tensor
    prec: Tensor
    condition: float


def cov_and_prec(gram: Tensor, eps: float = 1e-3) -> Related:
    """Omega = S^(1/2) / tr S^(1/2) and its inverse, for Gram matrices (..., m, m).

    The eigenvalues of S are raised by eps times their mean, so W = 0 gives I/m and tasks that are equal give a
    matrix that can be inverted.
    """
    values, vectors = torch.linalg.eigh((gram + gram.mT).double() / 2)
    tiny = torch.finfo(torch.float64).tiny
    floor = eps * values.mean(-1, keepdim=True).clamp(min=tiny)
    root = (values.clamp(min=0) + floor).sqrt()
    return _rebuilt(root / root.sum(-1, keepdim=True), vectors)


def cov_and_prec_of(tasks: Tensor, eps: float = 1e-3) -> Related:
    """`cov_and_prec` of W W^T from the tasks W (m, q) themselves, whichever way is shorter.

    Many tasks of few numbers need the eigenvectors of q x q numbers only: W^T W = V L V^T, and for any f

        f(W W^T)  =  f(0) I + W V g(L) V^T W^T,     g(x) = (f(x) - f(0)) / x

    With f(x) = (x + floor)^(1/2), g is 1 / (f(x) + f(0)); with its inverse, -1 / (f(x) f(0) (f(x) + f(0))).
    """
    w = tasks.double() / tasks.abs().max().clamp(min=1e-300).double()  # a scale does not matter, and squares overflow
    m, q = w.shape
    if m <= SMALL or m < 2 * q:
        return cov_and_prec(TaskSets.everyone(m).gram(w).view(m, m), eps)
    mean = w.square().sum() / m  # of the eigenvalues
    w /= torch.where(mean > 0, mean.sqrt(), 1.0)
    values, vectors = torch.linalg.eigh(w.T @ w)
    root, base, along = (values.clamp(min=0) + eps).sqrt(), math.sqrt(eps), w @ vectors
    trace = root.sum() + (m - q) * base
    cov = (along * (1 / (root + base) / trace)) @ along.T
    prec = (along * (-trace / (root * base * (root + base)))) @ along.T
    cov.diagonal().add_(base / trace)
    prec.diagonal().add_(trace / base)
    return Related((cov + cov.T) / 2, (prec + prec.T) / 2, float(root.max()) / base)


def floored(cov: Tensor, eps: float = 1e-3) -> Related:
    """A covariance (..., m, m) with eigenvalues of at least eps times their mean and trace one, and its inverse."""
    values, vectors = torch.linalg.eigh((cov + cov.mT).double() / 2)
    mean = values.clamp(min=0).mean(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    values = torch.maximum(values / mean, torch.full_like(mean, eps))
    return _rebuilt(values / values.sum(-1, keepdim=True), vectors)


def _rebuilt(values: Tensor, vectors: Tensor) -> Related:
    cov, prec = ((vectors * v[..., None, :]) @ vectors.mT for v in (values, 1 / values))
    worst = float((values.amax(-1) / values.amin(-1)).max()) if values.numel() else 1.0
    return Related((cov + cov.mT) / 2, (prec + prec.mT) / 2, worst)


@dataclass(frozen=True, eq=False)
class TaskSets:
    """TaskSets of tasks, ragged: the members of set j are `members[offset[j]:offset[j + 1]]`, in rising order."""

    n: int  # tasks
    members: Tensor  # (sum of sizes,) int64
    sizes: Tensor  # (sets,) int64

    @staticmethod
    def closed(receiver: Tensor, sender: Tensor, n: int) -> TaskSets:
        """The closed neighbourhood of every one of n tasks, from directed links."""
        every = torch.arange(n)
        pair = torch.unique(torch.cat([receiver * n + sender, every * n + every]))
        return TaskSets(n, pair % max(n, 1), torch.bincount(pair // max(n, 1), minlength=n))

    @staticmethod
    def everyone(n: int) -> TaskSets:
        """One set, of all tasks."""
        return TaskSets(n, torch.arange(n), torch.tensor([n]))

    @cached_property
    def offset(self) -> Tensor:
        """Where every set begins in `members`, (sets + 1,)."""
        return torch.cat([self.sizes.new_zeros(1), self.sizes.cumsum(0)])

    @cached_property
    def place(self) -> Tensor:
        """Where every set's matrix begins in a flat tensor, (sets + 1,)."""
        return torch.cat([self.sizes.new_zeros(1), self.sizes.square().cumsum(0)])

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """(set, row task, column task) of every number of a flat tensor."""
        if len(self.sizes) == 1:
            n = len(self.members)
            return (
                torch.zeros(1, dtype=torch.int64).expand(n * n),
                self.members.repeat_interleave(n),
                self.members.repeat(n),
            )
        squares = self.sizes.square()
        owner = torch.repeat_interleave(torch.arange(len(self.sizes)), squares)
        at = torch.arange(int(squares.sum())) - self.place[:-1][owner]
        row = self.members[self.offset[:-1][owner] + at // self.sizes[owner]]
        return owner, row, self.members[self.offset[:-1][owner] + at % self.sizes[owner]]

    def alone(self) -> Tensor:
        """Where set j is all that task j knows: one at (j, j), zero elsewhere, flat."""
        owner, row, column = self.pairs
        return ((owner == row) & (owner == column)).double()

    def within(self, some: Tensor) -> tuple[TaskSets, Tensor]:
        """The same sets of some tasks only ((tasks,) bool), and which numbers of a flat tensor are theirs."""
        _, row, column = self.pairs
        kept = some[self.members]
        owner = torch.repeat_interleave(torch.arange(len(self.sizes)), self.sizes)[kept]
        fewer = TaskSets(self.n, self.members[kept], torch.bincount(owner, minlength=len(self.sizes)))
        return fewer, some[row] & some[column]

    def batches(self, width: int = 0) -> Iterator[tuple[Tensor, int]]:
        """(some sets of one size, that size), as many as bounded memory allows; empty sets are passed over."""
        for size in torch.unique(self.sizes).tolist():
            if size:
                these = (self.sizes == size).nonzero()[:, 0]
                for chunk in torch.split(these, max(1, NUMBERS // (size * max(size, width)))):
                    yield chunk, size

    def matrices(self, flat: Tensor, chunk: Tensor, size: int) -> Tensor:
        """The matrices of some sets of one size, (chunk, size, size)."""
        return flat[self._at(chunk, size)].view(-1, size, size)

    def _at(self, chunk: Tensor, size: int) -> Tensor:
        return self.place[chunk][:, None] + torch.arange(size * size)

    def each(self, flat: Tensor, rule: Callable[[Tensor], Related]) -> Related:
        """A rule at every set's matrix, sets of one size together."""
        cov, prec, worst = torch.zeros_like(flat), torch.zeros_like(flat), 1.0
        for chunk, size in self.batches():
            found, at = rule(self.matrices(flat, chunk, size)), self._at(chunk, size)
            cov[at], prec[at] = found.cov.flatten(1), found.prec.flatten(1)
            worst = max(worst, found.condition)
        return Related(cov, prec, worst)

    def gram(self, tasks: Tensor) -> Tensor:
        """W_j W_j^T for every set, flat; float64 sums, bounded pieces of sets and of columns."""
        flat = torch.zeros(int(self.place[-1]), dtype=torch.float64)
        columns = 1 << 12
        for chunk, size in self.batches(min(columns, tasks.shape[1])):
            who = self.members[self.offset[chunk][:, None] + torch.arange(size)]
            total = torch.zeros(len(chunk), size, size, dtype=torch.float64)

            def products(part: Tensor, who: Tensor = who) -> Tensor:
                rows = part.cpu().double()[who]
                return rows @ rows.mT

            for found in each(products, torch.split(tasks, columns, 1), tasks):
                total += found
            flat[self._at(chunk, size)] = total.flatten(1)
        return flat

    def normalised(self, flat: Tensor) -> Tensor:
        """Every matrix divided by its trace; one without a trace becomes I/m."""
        owner, row, column = self.pairs
        diagonal = (row == column).double()
        trace = torch.zeros(len(self.sizes), dtype=torch.float64).index_add_(0, owner, diagonal * flat)[owner]
        by = torch.where(trace > 0, trace, 1.0)
        return torch.where(trace > 0, flat / by, diagonal / self.sizes[owner])

    def aligned(self, flat: Tensor, receiver: Tensor, sender: Tensor, weight: Tensor) -> Tensor:
        """B_k = E_k^T [ sum_i a_ki E_i Omega_i E_i^T ] E_k for every set k, flat, from links a_ki.

        Matrices over different tasks are lifted with zeros ("unrelated"), added and restricted: sums and principal
        submatrices of positive semidefinite matrices stay so.
        """
        out = torch.zeros_like(flat)
        shape = self.sizes[receiver] * (self.n + 1) + self.sizes[sender]
        for code in torch.unique(shape).tolist():
            mine, theirs = divmod(code, self.n + 1)
            if not mine or not theirs:
                continue
            links = (shape == code).nonzero()[:, 0]
            for some in torch.split(links, max(1, NUMBERS // (mine * theirs + theirs * theirs + mine * mine))):
                k, i = receiver[some], sender[some]
                here = self.members[self.offset[k][:, None] + torch.arange(mine)]
                there = self.members[self.offset[i][:, None] + torch.arange(theirs)]
                common = (here[:, :, None] == there[:, None, :]).double()  # E_k^T E_i
                moved = common @ self.matrices(flat, i, theirs) @ common.mT
                out.index_add_(0, self._at(k, mine).flatten(), (weight[some, None, None] * moved).flatten())
        return out

    def combined(
        self, flat: Tensor, gram: Tensor, links: tuple[Tensor, Tensor, Tensor], beta: Tensor, eps: float = 1e-3
    ) -> Tensor:
        """((1 - beta) A_k + beta Omega^_k) / tr(.): neighbours' covariances, and that of the tasks as they are now.

        beta is one number a set. The result has trace one and is positive semidefinite; floor it before inverting.
        """
        fresh = self.each(gram, lambda gram: cov_and_prec(gram, eps)).cov
        share = beta[self.pairs[0]]
        return self.normalised((1 - share) * self.normalised(self.aligned(flat, *links)) + share * fresh)

    def renewed(
        self, flat: Tensor, tasks: Tensor, links: tuple[Tensor, Tensor, Tensor], beta: Tensor, eps: float = 1e-3
    ) -> Related:
        """Covariances from the present ones and the tasks as they are now (`combined`), floored, and their inverses.

        With beta = 1 nothing is left to floor: eigenvalues are at least (eps / (1 + eps))^(1/2) > eps of their mean.
        """
        if len(self.sizes) == 1 and bool((beta == 1).all()):
            cov, prec, worst = cov_and_prec_of(tasks[self.members], eps)
            return Related(cov.flatten(), prec.flatten(), worst)
        return self.each(self.combined(flat, self.gram(tasks), links, beta, eps), lambda cov: floored(cov, eps))

    def penalty(self, prec: Tensor, scale: Tensor, own: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Q = sum_j scale_j E_j Omega_j^-1 E_j^T as links (row task, column task, weight), pairs not yet added up.

        `own`: row k has the terms of set k only, which is cheaper and not the gradient of the objective.
        """
        owner, row, column = self.pairs
        there = (scale[owner] != 0) & (prec != 0)
        if own:
            there &= owner == row
        return row[there], column[there], (scale[owner] * prec)[there]


def steepest(row: Tensor, column: Tensor, weight: Tensor, n: int) -> float:
    """The largest eigenvalue of a symmetric matrix given by its entries; entries of one place add up."""
    from scipy.sparse import coo_array
    from scipy.sparse.linalg import eigsh

    require(n > 0, "a matrix without rows has no eigenvalues")
    matrix = coo_array((weight.numpy(), (row.numpy(), column.numpy())), shape=(n, n)).tocsr()
    if n <= SMALL:
        return float(torch.linalg.eigvalsh(torch.from_numpy(matrix.toarray()))[-1])
    begin = torch.ones(n, dtype=torch.float64).numpy()  # a fixed start: the same number every time
    return float(eigsh(matrix, k=1, which="LA", v0=begin, tol=1e-4, return_eigenvectors=False)[0])


def correlations(covariance: Tensor) -> Tensor:
    """C_ij / (C_ii C_jj)^(1/2)."""
    scale = covariance.diagonal().clamp(min=1e-300).sqrt()
    return covariance / scale / scale[:, None]
