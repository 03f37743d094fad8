"""Max pools of images on a GPU: kernels of our own, in which nothing is put to zero and nothing is added.

Windows that touch but do not overlap (stride = kernel, no border) make a pool a choice of one pixel for each window.
The choice is kept as one byte, the pixel's place in its window. Given the choice, a pool is linear:

    pool(x) = gather(x, place)        <g, gather(u, place)>  =  <spread(g, place), u>

so `gather` and `spread` are each other's gradients, any number of times. A pool has no weights: `vmap` only makes more
images of it. The choice is torch's: the first of equal pixels, and the last that is no number, if there is one.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from .launch import NUMBERS, HeightWidth, able, do, in_front, on, operator, pair, sides

LARGEST = 64  # pixels in a window: a program goes over them one by one
BLOCK = 1024  # pixels that a program writes


def pool(x: Tensor, window: int | HeightWidth) -> Tensor:
    """As `torch.nn.functional.max_pool2d(x, window)`, for (..., height, width)."""
    y, _ = _Pool.apply(x, pair(window))  # type: ignore[no-untyped-call]
    return torch.as_tensor(y)


class PoolCall(NamedTuple):
    """The arguments of `torch.nn.functional.max_pool2d`."""

    input: Tensor
    kernel_size: Any
    stride: Any = None
    padding: Any = 0
    dilation: Any = 1
    ceil_mode: bool = False
    return_indices: bool = False

    def ours(self) -> bool:
        """Whether our kernels know it: windows side by side, on a GPU."""
        window = pair(self.kernel_size)
        beside = self.stride is None or self.stride == [] or pair(self.stride) == window
        plain = pair(self.padding) == (0, 0) and pair(self.dilation) == (1, 1) and not self.ceil_mode
        return (
            plain
            and beside
            and not self.return_indices
            and window[0] * window[1] <= LARGEST
            and self.input.dim() in (3, 4)
            and all(k <= n for k, n in zip(window, self.input.shape[-2:], strict=True))
            and _worth(self.input)
        )


# -- a choice, and two linear maps that are each other's gradients -----------------------------------------------


class _Pool(Function):
    """The largest of every window, and its place there."""

    @staticmethod
    def forward(x: Tensor, window: HeightWidth) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        if _by_kernel(x):
            return largest(x, window)
        (kh, kw), width = window, x.shape[-1]
        y, index = F.max_pool2d(x.flatten(0, -4) if x.dim() > 4 else x, window, return_indices=True)
        place = (index // width % kh * kw + index % width % kw).to(torch.uint8)
        return y.view(*x.shape[:-2], *y.shape[-2:]), place.view(*x.shape[:-2], *y.shape[-2:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, HeightWidth], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.window = inputs
        ctx.image = sides(x)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (place,) = ctx.saved_tensors
        return do(_Spread, g, place, ctx.window, ctx.image), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, window: HeightWidth
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return _Pool.apply(x.movedim(in_dims[0] or 0, 0), window), (0, 0)  # type: ignore[no-untyped-call]


class _Chosen(Function):
    """Linear in its first operand; the places in the second are what they are."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, HeightWidth, HeightWidth], output: Tensor) -> None:
        _, place, ctx.window, ctx.image = inputs
        ctx.save_for_backward(place)

    @classmethod
    def vmap(  # type: ignore[override]
        cls, info: Any, in_dims: tuple[int | None, ...], a: Tensor, place: Tensor, *how: HeightWidth
    ) -> tuple[Tensor, int]:
        """More images; whichever of the two all share is seen many times."""
        a, place = (in_front(t, axis, info.batch_size) for t, axis in zip((a, place), in_dims, strict=False))
        return do(cls, a, place, *how), 0


class _Spread(_Chosen):
    """The gradient of < g, gather(x) > in x: g at the chosen pixels, zero elsewhere."""

    @staticmethod
    def forward(g: Tensor, place: Tensor, window: HeightWidth, image: HeightWidth) -> Tensor:  # type: ignore[override]
        if _by_kernel(g):
            return spread(g, place, window, image)
        u, (kh, kw) = g.new_zeros(*g.shape[:-2], *image), window
        each = torch.arange(kh * kw, device=g.device).view(kh, kw)
        _windows(u, window).copy_(torch.where(place[..., None, None] == each, g[..., None, None], 0))
        return u

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return do(_Gather, u, *ctx.saved_tensors, ctx.window, ctx.image), None, None, None


class _Gather(_Chosen):
    """The chosen pixels."""

    @staticmethod
    def forward(u: Tensor, place: Tensor, window: HeightWidth, image: HeightWidth) -> Tensor:  # type: ignore[override]
        if _by_kernel(u):
            return gather(u, place, window)
        return _windows(u, window).flatten(-2).gather(-1, place[..., None].long())[..., 0]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return do(_Spread, g, *ctx.saved_tensors, ctx.window, ctx.image), None, None, None


# -- what our kernels do -----------------------------------------------------------------


@operator("largest(Tensor x, int[] window) -> (Tensor, Tensor)")
def largest(x: Tensor, window: HeightWidth) -> tuple[Tensor, Tensor]:
    """The largest of every window and its place there, by our kernel."""
    from . import kernels

    x, (kh, kw), (height, width) = x.contiguous(), window, sides(x)
    size = (height // kh, width // kw)
    y = torch.empty((*x.shape[:-2], *size), dtype=x.dtype, device=x.device)
    place = torch.empty(y.shape, dtype=torch.uint8, device=x.device)
    if y.numel():
        with on(x):
            kernels.largest[_grid(y)](x, y, place, y.numel(), height, width, *size, kh, kw, BLOCK)
    return y, place


@operator("gather(Tensor u, Tensor place, int[] window) -> Tensor")
def gather(u: Tensor, place: Tensor, window: HeightWidth) -> Tensor:
    """The chosen pixels, by our kernel."""
    from . import kernels

    u, place = u.contiguous(), place.contiguous()
    y = torch.empty(place.shape, dtype=u.dtype, device=u.device)
    if y.numel():
        with on(u):
            kernels.gather[_grid(y)](u, place, y, y.numel(), *sides(u), *sides(y), *window, BLOCK)
    return y


@operator("spread(Tensor g, Tensor place, int[] window, int[] image) -> Tensor")
def spread(g: Tensor, place: Tensor, window: HeightWidth, image: HeightWidth) -> Tensor:
    """The gradient, by our kernel: every pixel of the image is written once."""
    from . import kernels

    g, place = g.contiguous(), place.contiguous()
    u = torch.empty((*g.shape[:-2], *image), dtype=g.dtype, device=g.device)
    if u.numel():
        with on(g):
            kernels.spread[_grid(u)](g, place, u, u.numel(), *image, *sides(g), *window, BLOCK)
    return u


def _windows(x: Tensor, window: HeightWidth) -> Tensor:
    """(..., rows of windows, windows in a row, kernel height, kernel width), seen and not copied."""
    (kh, kw), (height, width) = window, sides(x)
    rows, columns = height // kh, width // kw
    inside = x[..., : rows * kh, : columns * kw]
    apart = torch.unflatten(torch.unflatten(inside, -1, (columns, kw)), -3, (rows, kh))
    return apart.transpose(-3, -2)


def _grid(written: Tensor) -> tuple[int]:
    return (-(-written.numel() // BLOCK),)


def _worth(x: Tensor) -> bool:
    return able(x) and x.dtype in NUMBERS


def _by_kernel(x: Tensor) -> bool:
    return x.is_cuda
