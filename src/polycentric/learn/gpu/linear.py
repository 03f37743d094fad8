"""Dense layers of a stack of clients that see a few examples each: on a GPU they run as a kernel of our own.

A client's weight is read for the sake of some ten or twenty examples, so a product should take the time it takes to
read the weight; a product for large matrices takes several times that. All products are linear in both factors:

    y = a w^T  or  a w       <u, a w^T> = <u w, a> = <u^T a, w>         <u, a w> = <u w^T, a> = <a^T u, w>

so `times` (with the weight turned or not) and `outer` are each other's gradients, any number of times. Float32 factors
are multiplied on tensor cores, as the sum of three products of TF32, which keeps float32's digits but for the last;
as one such product where torch may do so (`--precision tf32`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from .launch import Moved, able, backend, do, longer, more_examples, on, operator, power

FEW = 64  # examples up to which a weight is worth more than they are
LARGE = 1 << 16  # numbers in a weight from which it matters


class LinearCall(NamedTuple):
    """The arguments of `torch.nn.functional.linear`."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None = None

    def ours(self) -> bool:
        """Whether our kernel had better do it."""
        x, w = self.input, self.weight
        shaped = x.dim() == 2 and w.dim() == 2 and 0 < len(x) <= FEW and w.numel() >= LARGE
        return shaped and _worth(x, w)


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As `torch.nn.functional.linear`, of (examples, inputs) and (outputs, inputs); made for `vmap` over models."""
    y = do(_Times, x[None], weight[None], True).squeeze(0)  # whose gradient is a view
    return y if bias is None else y + bias


class _Times(Function):
    """a[c] w[c]^T if `turned`, otherwise a[c] w[c], for every client c."""

    @staticmethod
    def forward(a: Tensor, w: Tensor, turned: bool) -> Tensor:  # type: ignore[override]
        if backend(a, w) == "triton":
            return times(a, w, turned)
        return torch.bmm(a, w.mT if turned else w)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
        a, w, ctx.turned = inputs
        ctx.save_for_backward(a, w)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        a, w = ctx.saved_tensors
        in_a, in_w, _ = ctx.needs_input_grad
        factors = (u, a) if ctx.turned else (a, u)
        return do(_Times, u, w, not ctx.turned) if in_a else None, do(_Outer, *factors) if in_w else None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], a: Tensor, w: Tensor, turned: bool) -> tuple[Tensor, int]:
        if in_dims[1] is None:
            return more_examples(lambda a: do(_Times, a, w, turned), a, in_dims[0])
        return longer(_Times, info, in_dims, a, w, turned)


class _Outer(Function):
    """g[c]^T x[c]."""

    @staticmethod
    def forward(g: Tensor, x: Tensor) -> Tensor:  # type: ignore[override]
        if backend(g, x) == "triton":
            return outer(g, x)
        return torch.bmm(g.mT, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        g, x = ctx.saved_tensors
        in_g, in_x = ctx.needs_input_grad
        return do(_Times, x, v, True) if in_g else None, do(_Times, g, v, False) if in_x else None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], g: Tensor, x: Tensor) -> tuple[Tensor, int]:
        return longer(_Outer, info, in_dims, g, x)


@operator("times(Tensor a, Tensor w, bool turned) -> Tensor")
def times(a: Tensor, w: Tensor, turned: bool) -> Tensor:
    """By our kernel: a program goes along some rows or columns of a weight, for all examples."""
    a, w = _lines(a), _lines(w)
    rows, inner = a.shape[1:]
    columns = w.shape[1] if turned else w.shape[2]
    steps = (1, w.stride(1)) if turned else (w.stride(1), 1)
    return _multiply((a, a.stride(1), 1), (w, *steps), (rows, columns, inner), (min(64, power(rows)), 64, 64, 3))


@operator("outer(Tensor g, Tensor x) -> Tensor")
def outer(g: Tensor, x: Tensor) -> Tensor:
    """By our kernel: a program makes a tile of a weight's gradient at once."""
    return _outer(g, x)


@operator("outer_moves_(Tensor(a!) w, Tensor(b!)? v, Tensor lr, Tensor g, Tensor x, float beta, float decay) -> ()")
def outer_moves_(w: Tensor, v: Tensor | None, lr: Tensor, g: Tensor, x: Tensor, beta: float, decay: float) -> None:
    """Weights (clients, outputs * inputs) move along `outer(g, x)`, which is not written; v: their velocity."""
    _outer(g, x, Moved(w, v, lr.contiguous(), beta, decay))


def _outer(g: Tensor, x: Tensor, moved: Moved | None = None) -> Tensor:
    g, x = _lines(g), _lines(x)
    size = (g.shape[2], x.shape[2], g.shape[1])
    return _multiply((g, 1, g.stride(1)), (x, x.stride(1), 1), size, (64, 64, min(64, power(size[2])), 2), moved)


def _multiply(
    left: tuple[Tensor, int, int],
    right: tuple[Tensor, int, int],
    size: tuple[int, int, int],
    tile: tuple[int, ...],
    moved: Moved | None = None,
) -> Tensor:
    """(clients, rows, inner) times (clients, inner, columns), each with the steps of its last two axes."""
    from . import kernels

    (a, *a_steps), (b, *b_steps), (rows, columns, inner) = left, right, size
    if moved is None:
        y = torch.empty((len(a), rows, columns), dtype=a.dtype, device=a.device)
        if y.numel() == 0 or inner == 0:
            return y.zero_()
        moved = Moved(y.view(len(a), -1), None, y)
        moves = False
    else:
        y, moves = moved.w, True
    bm, bn, bk = (max(16, n) for n in tile[:3])
    tiles = -(-rows // bm) * -(-columns // bn)
    with on(a):
        kernels.multiply[(tiles * len(a),)](
            *(a, b, y, tiles, a.stride(0), b.stride(0), *size, *a_steps, *b_steps),
            *(*moved.arguments, moves, *moved.how, precision(), bm, bn, bk),
            num_warps=4,
            num_stages=tile[3],
        )
    return y


def precision() -> str:
    """How float32 factors are read."""
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _lines(stack: Tensor) -> Tensor:
    """Rows whose numbers lie together, at whatever steps."""
    return stack if stack.stride(2) == 1 else stack.contiguous()


def _worth(x: Tensor, w: Tensor) -> bool:
    return able(x) and x.dtype == w.dtype == torch.float32 and not torch.is_autocast_enabled("cuda")
