"""Who hears whom: receivers x senders, and what becomes of the weight that a row lacks.

            senders  j = 0 .. S-1
           +-------------------+
      r 0  | w00 w01 ...       |      out[r] = sum_j w[r, j] * stack[j]     then, by `rest`:
      r 1  | w10 w11 ...       |
           +-------------------+      share  divide by the row's total: a mean of those heard
                                      keep   what the row lacks of one stays with the receiver
                                      none   nothing: a sum, a covariance, a fixed combination

Rows are receivers and columns are senders, always. Four forms hold the same matrix:

    Mixing.dense(weights)                any matrix
    Mixing.sparse(receiver, sender, weight, shape)       a graph: memory linear in its edges
    Mixing.gather(index, n_senders)      every receiver hears one sender (one-hot rows)
    Mixing.scatter(index, n_receivers)   every sender is heard by one receiver (one-hot columns)

Weights live on the host in float64; the product takes the type and device of the stack.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor
from torch.sparse import check_sparse_tensor_invariants

from ..errors import UsageError, require, within
from .all_rows import put
from .stack import to_device_of

Rest = Literal["share", "keep", "none"]

# Rows of this many senders are added in the stack's own type; the pieces are added in float64. So a mean over
# a million float32 models is as good as over a hundred, at the price of one matrix product.
PIECE = 64
FEW = 8  # receivers for which a loop is faster than reading and writing their rows by index


class Links(NamedTuple):
    """The non-zero entries of a mixing, one by one."""

    receiver: Tensor  # (links,)
    sender: Tensor  # (links,)
    weight: Tensor  # (links,)


class Heard(NamedTuple):
    """What every receiver heard, and which receivers heard anybody."""

    values: Tensor  # (receivers, width)
    mask: Tensor  # (receivers,) bool, on the host


@dataclass(frozen=True, eq=False)
class Mixing:
    """Weights from senders to receivers. Build one with `dense`, `sparse`, `gather` or `scatter`.

    >>> up = Mixing.dense(torch.tensor([[2.0, 1.0, 1.0]]))       # one center hears three clients
    >>> up @ torch.tensor([[0.0], [4.0], [8.0]])
    tensor([[3.]])
    """

    form: Literal["dense", "sparse", "gather", "scatter"]
    shape: tuple[int, int]  # (receivers, senders)
    weight: Tensor  # dense: (receivers, senders); otherwise one for each link
    receiver: Tensor | None = None  # (links,) where the form is not dense
    sender: Tensor | None = None
    rest: Rest = "share"
    of: str | None = None  # name of the stack it reads, when that is not its own

    @staticmethod
    def dense(weights: Tensor, rest: Rest = "share", of: str | None = None) -> Mixing:
        """Any matrix (receivers, senders)."""
        require(weights.dim() == 2, f"a Mixing is receivers x senders, got a tensor of shape {tuple(weights.shape)}")
        return Mixing("dense", (weights.shape[0], weights.shape[1]), weights.double().cpu(), rest=rest, of=of)

    @staticmethod
    def sparse(
        receiver: Tensor,
        sender: Tensor,
        weight: Tensor,
        shape: tuple[int, int],
        rest: Rest = "share",
        of: str | None = None,
    ) -> Mixing:
        """Links one by one; the same pair named twice adds up."""
        receiver, sender, weight = receiver.cpu().long(), sender.cpu().long(), weight.cpu().double()
        _check_lengths(receiver, sender, weight)
        _check_indices("receiver", receiver, shape[0])
        _check_indices("sender", sender, shape[1])
        pair = receiver * shape[1] + sender
        if bool((pair.diff() > 0).all()):  # in order, and none twice: nothing to sort
            return Mixing("sparse", shape, weight, receiver, sender, rest, of)
        pair, place = torch.unique(pair, return_inverse=True)
        merged = torch.zeros(len(pair), dtype=torch.float64).index_add_(0, place, weight)
        return Mixing("sparse", shape, merged, pair // max(shape[1], 1), pair % max(shape[1], 1), rest, of)

    @staticmethod
    def gather(index: Tensor, n_senders: int, rest: Rest = "share", of: str | None = None) -> Mixing:
        """Receiver r hears sender `index[r]`, and nobody else."""
        index, rows = index.cpu().long(), torch.arange(len(index))
        return Mixing("gather", (len(index), n_senders), torch.ones(len(index)).double(), rows, index, rest, of)

    @staticmethod
    def scatter(index: Tensor, n_receivers: int, weight: Tensor | None = None, rest: Rest = "share") -> Mixing:
        """Sender s is heard by receiver `index[s]`, with `weight[s]` (default: one)."""
        index, columns = index.cpu().long(), torch.arange(len(index))
        weight = torch.ones(len(index)) if weight is None else weight.cpu()
        _check_lengths(index, columns, weight)
        return Mixing("scatter", (n_receivers, len(index)), weight.double(), index, columns, rest)

    def __post_init__(self) -> None:
        within(self, rest=("share", "keep", "none"))
        finite = bool(self.weight.isfinite().all())
        require(finite, "a Mixing has a weight that is NaN or infinite: check the weights for a division by zero")
        if self.receiver is not None and self.sender is not None:
            _check_indices("receiver", self.receiver, self.shape[0])
            _check_indices("sender", self.sender, self.shape[1])
        if self.rest == "share" and bool((self.weight < 0).any()):
            raise UsageError(
                "a Mixing that shares has a negative weight, so its rows are not means; "
                "use rest='keep' if the weights are meant (MATCHA's are)"
            )

    @cached_property
    def total(self) -> Tensor:
        """The sum of every row, (receivers,)."""
        if self.receiver is None:
            return self.weight.sum(1)
        return self.weight.new_zeros(self.shape[0]).index_add_(0, self.receiver, self.weight)

    @cached_property
    def links(self) -> Links:
        """Every pair with a weight that is not zero."""
        if self.receiver is None or self.sender is None:
            receiver, sender = self.weight.nonzero(as_tuple=True)
            return Links(receiver, sender, self.weight[receiver, sender])
        there = self.weight != 0
        return Links(self.receiver[there], self.sender[there], self.weight[there])

    def to_dense(self) -> Tensor:
        """The matrix (receivers, senders), for looking, testing and drawing."""
        if self.receiver is None or self.sender is None:
            return self.weight
        flat = self.receiver * self.shape[1] + self.sender
        return self.weight.new_zeros(self.shape[0] * self.shape[1]).index_add_(0, flat, self.weight).view(self.shape)

    def to_csr(self) -> Any:
        """The matrix (receivers, senders) as scipy's sparse rows."""
        from scipy.sparse import coo_array

        receiver, sender, weight = self.links
        return coo_array((weight.numpy(), (receiver.numpy(), sender.numpy())), shape=self.shape).tocsr()

    def __str__(self) -> str:
        receivers, senders = self.shape
        head = f"Mixing {receivers} receivers x {senders} senders, {self.form}, rest: {self.rest}"
        if receivers > 12 or senders > 12:
            return f"{head}, {len(self.links.weight)} links"
        return "\n".join([head, *(" ".join(f"{w:7.4g}" for w in row) for row in self.to_dense().tolist())])

    @overload
    def __matmul__(self, other: Tensor) -> Tensor: ...
    @overload
    def __matmul__(self, other: Mixing) -> Mixing: ...
    def __matmul__(self, other: Tensor | Mixing) -> Tensor | Mixing:
        """Mix a stack (senders, width), or follow another mixing: `cloud @ edge`."""
        mine = self._settled()
        if isinstance(other, Tensor):
            if other.shape[0] != self.shape[1]:
                raise UsageError(f"a Mixing of {self.shape[1]} senders cannot mix a stack of {other.shape[0]} rows")
            return mine._received(other) if self.form == "gather" else mine.product(other).to(other.dtype)
        if other.shape[0] != self.shape[1]:
            raise UsageError(f"a Mixing of {self.shape[1]} senders cannot follow one of {other.shape[0]} receivers")
        rest: Rest = (
            "none" if "none" in (self.rest, other.rest) else "share" if "share" in (self.rest, other.rest) else "keep"
        )
        if rest == "share" and bool((mine.weight < 0).any() or (other.weight < 0).any()):
            rest = "keep"  # complete rows with negative entries: a product of gossip steps
        both = (mine.to_csr() @ other._settled(empty_rows=True).to_csr()).tocoo()
        index, weight = torch.as_tensor(np.stack([both.row, both.col])), torch.as_tensor(both.data)
        product = Mixing.sparse(index[0], index[1], weight, (self.shape[0], other.shape[1]), rest)
        return product if "sparse" in (self.form, other.form) else Mixing.dense(product.to_dense(), rest)

    def product(self, rows: Tensor, senders: Tensor | None = None) -> Tensor:
        """`weights @ rows` as they are, nothing done about the rest; float64 sums, (receivers, width).

        `senders`: sender s is row `senders[s]`; where a mixing scatters, all those rows are never held at once.
        """
        if senders is not None and self.form != "scatter":
            rows, senders = rows[to_device_of(rows, senders)], None
        if self.form == "sparse":
            return self._along_links(rows)
        out = torch.zeros(self.shape[0], rows.shape[1], dtype=torch.float64, device=rows.device)
        if senders is None:
            self._add_product(rows, out)
        else:
            self._add_scattered(rows, out, senders)
        return out

    def heard(self) -> tuple[Tensor | None, Mixing]:
        """Receivers that hear anybody, (heard,), and the mixing of those alone; None: all, and the mixing as it is."""
        if self.receiver is None:
            there = (self.weight != 0).any(1)
            if bool(there.all()):
                return None, self
            at = there.nonzero()[:, 0]
            return at, replace(self, shape=(len(at), self.shape[1]), weight=self.weight[at])
        at, receiver = torch.unique(self.receiver, return_inverse=True)
        if len(at) == self.shape[0]:
            return None, self
        return at, replace(self, shape=(len(at), self.shape[1]), receiver=receiver)

    def summed(self, rows: Tensor) -> Tensor:
        """`weights @ rows`; of no more senders than are added in the rows' own type, in that type, else in float64."""
        if self.shape[1] > PIECE or self.form == "sparse":
            return self.product(rows)
        out = torch.zeros(self.shape[0], rows.shape[1], dtype=rows.dtype, device=rows.device)
        self._add_product(rows, out)
        return out

    def _add_product(self, rows: Tensor, out: Tensor) -> None:
        if self.receiver is None or self.sender is None:
            weight = to_device_of(rows, self.weight).to(rows.dtype)
            for first in range(0, self.shape[1], PIECE):
                out += weight[:, first : first + PIECE] @ rows[first : first + PIECE]
        elif self.form == "gather":
            out += self._received(rows)
        else:
            self._add_scattered(rows, out)

    def _along_links(self, rows: Tensor) -> Tensor:
        """A row may hear very many: all of it in float64, some columns at a time."""
        assert self.receiver is not None and self.sender is not None
        links = to_device_of(rows, torch.stack([self.receiver, self.sender]))
        # Some versions of torch warn where it is not said by this very call that nothing is checked.
        with check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
            weight = torch.sparse_coo_tensor(links, to_device_of(rows, self.weight), self.shape, is_coalesced=True)
        out = rows.new_empty(self.shape[0], rows.shape[1], dtype=torch.float64)
        return put(out, lambda piece: torch.sparse.mm(weight, rows[:, piece].double()), rows)

    def _add_scattered(self, rows: Tensor, out: Tensor, senders: Tensor | None = None) -> None:
        assert self.receiver is not None
        order = torch.argsort(self.receiver, stable=True)
        heard, counts = torch.unique_consecutive(self.receiver[order], return_counts=True)
        if len(heard) == self.shape[1] > FEW:  # nobody shares a receiver: a permutation
            mine = rows if senders is None else rows[to_device_of(rows, senders)]
            out[to_device_of(out, self.receiver)] += to_device_of(rows, self.weight).to(rows.dtype)[:, None] * mine
            return
        # One small product for each receiver, in a fixed order: the same bits every time, also on a GPU,
        # where adding by index is not deterministic.
        for receiver, members in zip(heard.tolist(), torch.split(order, counts.tolist()), strict=True):
            for piece in torch.split(members, PIECE):
                at = piece if senders is None else senders[piece]
                mine = rows if senders is None and len(piece) == len(rows) else rows[to_device_of(rows, at)]
                out[receiver] += to_device_of(rows, self.weight[piece]).to(rows.dtype) @ mine

    def _received(self, rows: Tensor) -> Tensor:
        assert self.sender is not None
        if len(self.sender) and bool((self.sender == self.sender[0]).all()):
            return rows[int(self.sender[0])].expand(self.shape[0], -1)  # all hear the same: a view, not a copy
        return rows[to_device_of(rows, self.sender)]

    def _settled(self, empty_rows: bool = False) -> Mixing:
        """The same mixing with complete rows, as receivers without a model of their own need it."""
        total = self.total
        if self.rest == "keep" and bool((total - 1).abs().gt(1e-9).any()):
            row = int((total - 1).abs().argmax())
            raise UsageError(
                f"row {row} of a Mixing sums to {float(total[row]):.6g}, not to 1, and receiver {row} has no "
                "model of its own to keep: use rest='share' to divide by the row's sum"
            )
        if self.rest != "share":
            return self
        if not empty_rows and bool((total == 0).any()):
            raise UsageError(f"receiver {int((total == 0).nonzero()[0])} of a Mixing hears nobody")
        if self.form == "gather":
            return self
        by = torch.where(total > 0, total, 1.0)
        by = by[:, None] if self.receiver is None else by[self.receiver]
        return replace(self, weight=self.weight / by)


def _check_lengths(receiver: Tensor, sender: Tensor, weight: Tensor) -> None:
    require(
        len(receiver) == len(sender) == len(weight),
        f"a Mixing has {len(receiver)} receivers, {len(sender)} senders and {len(weight)} weights in its links; "
        "every link has one of each",
    )


def _check_indices(what: str, index: Tensor, n: int) -> None:
    if not len(index):
        return
    low, high = (int(end) for end in torch.aminmax(index))
    bad = high if high >= n else low
    require(0 <= bad < n, f"a Mixing names {what} {bad}, but there are only {n} (0 to {n - 1})")
