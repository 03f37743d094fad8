"""Convolutions of a whole stack of clients: under `vmap` on a GPU they run as kernels of our own.

`vmap` makes one grouped convolution of a stack's convolutions, whose gradients are slow on a GPU. A convolution is
linear in the image and in the weight, so three functions are all there is, each the gradient of the other two:

    y = convolve(x, w)        <g, convolve(x, w)>  =  <gradient_in_x(g, w), x>  =  <gradient_in_w(x, g), w>

All three take a stack (client, ...) and are differentiated by one another, any number of times. `vmap` over them only
makes the stack longer. Where there is no Triton, no GPU, or one model only, they are what torch does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.nn.grad import conv2d_input, conv2d_weight

from .in_place import move_
from .launch import NUMBERS, HeightWidth, Moved, backend, do, longer, more_examples, on, operator, pair, power, sides

FRAMED = 64  # pixels of a frame that a program writes, with up to as many channels
BUSY = 528  # programs that keep a large GPU at work: four for each of its processors


@dataclass(frozen=True)
class ConvShape:
    """How pixels of the image and of the result belong together."""

    image: HeightWidth  # height and width of x
    kernel: HeightWidth
    stride: HeightWidth = (1, 1)
    padding: HeightWidth = (0, 0)

    @property
    def result(self) -> HeightWidth:
        """Height and width of y."""
        sides = zip(self.image, self.kernel, self.stride, self.padding, strict=True)
        height, width = ((n + 2 * p - k) // s + 1 for n, k, s, p in sides)
        return height, width

    @property
    def numbers(self) -> list[int]:
        """All of it, as an operator is given it."""
        return [*self.image, *self.kernel, *self.stride, *self.padding]

    @staticmethod
    def of(numbers: list[int]) -> ConvShape:
        """The same."""
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        return ConvShape(*pairs)


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | HeightWidth = 1, padding: int | HeightWidth = 0
) -> Tensor:
    """As `torch.nn.functional.conv2d`, or `conv1d` for three axes: (images, channels, height, width), one model.

    On a CPU it is that very function; on a GPU it may be put under `vmap` for a stack of models.
    """
    stride, padding = pair(stride), pair(padding)
    flat = x.dim() == 3
    if not _worth(x, weight):
        if flat:
            return F.conv1d(x, weight, bias, stride[-1], padding[-1])
        return F.conv2d(x, weight, bias, stride, padding)
    if torch.is_autocast_enabled("cuda"):
        narrow = torch.get_autocast_dtype("cuda")
        x, weight, bias = x.to(narrow), weight.to(narrow), None if bias is None else bias.to(narrow)
    if flat:
        x, weight, stride, padding = x[:, :, None], weight[:, :, None], (1, stride[-1]), (0, padding[-1])
    how = ConvShape(sides(x), sides(weight), stride, padding)
    y = do(_Convolution, x[None], weight[None], None if bias is None else bias[None], how).squeeze(0)  # back: a view
    return y[:, :, 0] if flat else y


class ConvCall(NamedTuple):
    """The arguments of `torch.conv2d`."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None = None
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1

    def ours(self, axes: int) -> bool:
        """Whether `convolve` knows it."""
        plain = self.groups == 1 and pair(self.dilation) == (1, 1) and not isinstance(self.padding, str)
        return plain and self.input.dim() == axes


# -- three functions that are each other's gradients ------------------------------------------------------------


class _Convolution(Function):
    """y[c] = x[c] * w[c] + b[c], for every client c of a stack."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None, how: ConvShape) -> Tensor:  # type: ignore[override]
        if backend(x, w) == "triton":
            return convolution(x, w, b, how.numbers)
        c, bias = len(x), None if b is None else b.flatten()
        y = F.conv2d(_side_by_side(x), w.flatten(0, 1), bias, how.stride, how.padding, groups=c)
        return _apart(y, c)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, ConvShape], output: Tensor) -> None:
        x, w, _, ctx.how = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, w = ctx.saved_tensors
        in_x, in_w, in_b, _ = ctx.needs_input_grad
        return (
            do(_GradientInX, g, w, ctx.how) if in_x else None,
            do(_GradientInW, x, g, ctx.how) if in_w else None,
            g.sum((1, 3, 4)) if in_b else None,
            None,
        )

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor, b: Tensor | None, how: ConvShape
    ) -> tuple[Tensor, int]:
        if in_dims[1] is None and in_dims[2] is None:
            return more_examples(lambda x: do(_Convolution, x, w, b, how), x, in_dims[0])
        return longer(_Convolution, info, in_dims, x, w, b, how)


class _Gradient(Function):
    """Linear in both of its factors, so both are all that its own gradients need."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, ConvShape], output: Tensor) -> None:
        *factors, ctx.how = inputs
        ctx.save_for_backward(*factors)


class _GradientInX(_Gradient):
    """The gradient of < g, x * w > in x."""

    @staticmethod
    def forward(g: Tensor, w: Tensor, how: ConvShape) -> Tensor:  # type: ignore[override]
        within = all(p < k for p, k in zip(how.padding, how.kernel, strict=True))  # no pixel of g sees zeros only
        if within and backend(g, w) == "triton":
            return convolution_in_x(g, w, how.numbers)
        c, images = g.shape[:2]
        size = (images, c * w.shape[2], *how.image)
        u = conv2d_input(size, w.flatten(0, 1), _side_by_side(g), how.stride, how.padding, groups=c)  # type: ignore[no-untyped-call]
        return _apart(u, c)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        g, w = ctx.saved_tensors
        in_g, in_w, _ = ctx.needs_input_grad
        return (
            do(_Convolution, u, w, None, ctx.how) if in_g else None,
            do(_GradientInW, u, g, ctx.how) if in_w else None,
            None,
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], g: Tensor, w: Tensor, how: ConvShape) -> tuple[Tensor, int]:
        if in_dims[1] is None:
            return more_examples(lambda g: do(_GradientInX, g, w, how), g, in_dims[0])
        return longer(_GradientInX, info, in_dims, g, w, how)


class _GradientInW(_Gradient):
    """The gradient of < g, x * w > in w."""

    @staticmethod
    def forward(x: Tensor, g: Tensor, how: ConvShape) -> Tensor:  # type: ignore[override]
        if backend(x, g) == "triton":
            return convolution_in_w(x, g, how.numbers)
        c = len(x)
        size = (c * g.shape[2], x.shape[2], *how.kernel)
        v = conv2d_weight(_side_by_side(x), size, _side_by_side(g), how.stride, how.padding, groups=c)  # type: ignore[no-untyped-call]
        return torch.unflatten(v, 0, (c, -1))

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, g = ctx.saved_tensors
        in_x, in_g, _ = ctx.needs_input_grad
        return (
            do(_GradientInX, g, v, ctx.how) if in_x else None,
            do(_Convolution, x, v, None, ctx.how) if in_g else None,
            None,
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, g: Tensor, how: ConvShape) -> tuple[Tensor, int]:
        return longer(_GradientInW, info, in_dims, x, g, how)


# -- what our kernels do -----------------------------------------------------------------


class Tile(NamedTuple):
    """What one program of a kernel computes: rows x columns, `inner` summands at a time."""

    rows: int
    columns: int
    inner: int
    warps: int = 4
    stages: int = 3


class Frame(NamedTuple):
    """Zeros around images: its height and width, where the first pixel lies, and how far it is to the next."""

    size: HeightWidth
    first: HeightWidth
    step: HeightWidth = (1, 1)


@operator("convolution(Tensor x, Tensor w, Tensor? b, int[] how) -> Tensor")
def convolution(x: Tensor, w: Tensor, b: Tensor | None, how: list[int]) -> Tensor:
    """Every client's convolution."""
    return product(x, w, b, ConvShape.of(how))


@operator("convolution_in_x(Tensor g, Tensor w, int[] how) -> Tensor")
def convolution_in_x(g: Tensor, w: Tensor, how: list[int]) -> Tensor:
    """Its gradient in the images."""
    return gradient_in_x(g, w, ConvShape.of(how))


@operator("convolution_in_w(Tensor x, Tensor g, int[] how) -> Tensor")
def convolution_in_w(x: Tensor, g: Tensor, how: list[int]) -> Tensor:
    """Its gradient in the weights."""
    return gradient_in_w(x, g, ConvShape.of(how))


@operator(
    "convolution_in_w_moves_(Tensor(a!) w, Tensor(b!)? v, Tensor lr, Tensor x, Tensor g, int[] how, float beta, "
    "float decay) -> ()"
)
def convolution_in_w_moves_(
    w: Tensor, v: Tensor | None, lr: Tensor, x: Tensor, g: Tensor, how: list[int], beta: float, decay: float
) -> None:
    """Weights (clients, numbers) move along `convolution_in_w(x, g)`; v: their velocity.

    Where one program adds up a number of it, it is not written.
    """
    shape, moved = ConvShape.of(how), Moved(w, v, lr.contiguous(), beta, decay)
    tile, parts, part = _shares(x, g, shape, None, None)
    if parts == 1:
        return _weigh(x, g, shape, tile, part, w, moved)
    move_(w, v, lr, [gradient_in_w(x, g, shape).view(len(w), -1)], beta, decay)


def _side_by_side(stack: Tensor) -> Tensor:
    """(clients, images, channels, ...) as images whose channels are those of all clients."""
    return stack.transpose(0, 1).flatten(1, 2)


def _apart(images: Tensor, clients: int) -> Tensor:
    return torch.unflatten(images, 1, (clients, -1)).transpose(0, 1)


def product(x: Tensor, w: Tensor, b: Tensor | None, how: ConvShape, tile: Tile | None = None) -> Tensor:
    """Every client's convolution, by our kernel."""
    (height, width), (ph, pw) = how.image, how.padding
    frame = Frame((height + 2 * ph, width + 2 * pw), how.padding)
    return _multiply(x, frame, w.permute(0, 1, 3, 4, 2), b, how.result, how.stride, tile)


def gradient_in_x(g: Tensor, w: Tensor, how: ConvShape, tile: Tile | None = None) -> Tensor:
    """The gradient in the images: a convolution too, of g with zeros between its pixels, the weight turned round."""
    (height, width), (kh, kw), (ph, pw) = how.image, how.kernel, how.padding
    frame = Frame((height + kh - 1, width + kw - 1), (kh - 1 - ph, kw - 1 - pw), how.stride)
    return _multiply(g, frame, w.flip(3, 4).permute(0, 2, 3, 4, 1), None, how.image, (1, 1), tile)


def _multiply(
    x: Tensor, frame: Frame, w: Tensor, b: Tensor | None, size: HeightWidth, stride: HeightWidth, tile: Tile | None
) -> Tensor:
    from . import kernels

    (c, images, channels), (out, *kernel) = x.shape[:3], w.shape[1:4]
    rows = images * size[0] * size[1]
    y = torch.empty((c, images, out, *size), dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    tile = tile or product_tile(kernel[1] * channels, out, c * rows)
    x, x_client = _laid(x, frame, last=True)
    w, w_client = _laid(w)
    (bias, b_client), biased = (x, 0) if b is None else _laid(b), b is not None
    grid = (-(-rows // tile.rows) * -(-out // tile.columns), c)
    with on(x):
        kernels.product[grid](
            *(x, w, bias, y, rows, x_client, w_client, b_client),
            *(channels, *frame.size, out, *size, *kernel, *stride),
            *(biased, precision(), tile.rows, tile.columns, tile.inner),
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return y


def gradient_in_w(x: Tensor, g: Tensor, how: ConvShape, tile: Tile | None = None, parts: int | None = None) -> Tensor:
    """The gradient in the weights, by our kernel: sums over some pixels each, then the sum of those sums."""
    tile, parts, part = _shares(x, g, how, tile, parts)
    v = torch.empty((parts, len(x), g.shape[2], x.shape[2], *how.kernel), dtype=torch.float32, device=x.device)
    if v.numel():
        _weigh(x, g, how, tile, part, v)
    return (v[0] if parts == 1 else v.sum(0)).to(x.dtype)


def _shares(x: Tensor, g: Tensor, how: ConvShape, tile: Tile | None, parts: int | None) -> tuple[Tile, int, int]:
    """The tile of a gradient in weights, in how many parts its pixels are added up, and how many are in a part."""
    c, out, inner = len(x), g.shape[2], x.shape[2] * how.kernel[0] * how.kernel[1]
    rows = x.shape[1] * how.result[0] * how.result[1]
    tile = tile or weigh_tile(inner, out)
    tiles = -(-out // tile.rows) * -(-inner // tile.columns)
    parts = parts or max(1, min(-(-BUSY // max(1, c * tiles)), rows // (8 * tile.inner)))
    part = max(1, -(-rows // (parts * tile.inner))) * tile.inner  # a whole number of times round the kernel's loop
    return tile, max(1, -(-rows // part)), part


def _weigh(x: Tensor, g: Tensor, how: ConvShape, tile: Tile, part: int, v: Tensor, moved: Moved | None = None) -> None:
    from . import kernels

    (height, width), (ph, pw) = how.image, how.padding
    frame = Frame((height + 2 * ph, width + 2 * pw), how.padding)
    (c, images, channels), out = x.shape[:3], g.shape[2]
    (x, x_client), (g, g_client) = _laid(x, frame), _laid(g)
    inner, rows = channels * how.kernel[0] * how.kernel[1], images * how.result[0] * how.result[1]
    tiles = -(-out // tile.rows) * -(-inner // tile.columns)
    to = moved or Moved(v.view(-1, out * inner), None, v)
    with on(x):
        kernels.weigh[(tiles, c, max(1, -(-rows // part)))](
            *(x, g, v, rows, part, c, x_client, g_client),
            *(*to.arguments, moved is not None, *to.how),
            *(channels, *frame.size, out, *how.result, *how.kernel, *how.stride),
            *(precision(), tile.rows, tile.columns, tile.inner),
            num_warps=tile.warps,
            num_stages=tile.stages,
        )


def product_tile(line: int, out: int, rows: int) -> Tile:
    """The tile for a product, with so many numbers under a row of the kernel: by shape, never by a stopwatch."""
    columns = min(128, max(16, power(out)))
    few = rows * -(-out // columns) < 64 * BUSY  # smaller tiles, so that there are programs enough
    return Tile(64 if few else 128, columns, 16 if line % 32 == 16 else 32)


def weigh_tile(inner: int, out: int) -> Tile:
    """The tile for a gradient in weights."""
    rows, columns = min(64, max(16, power(out))), min(128, max(16, power(inner)))
    return Tile(rows, columns, 32, 8 if rows * columns == 8192 else 4)


def precision() -> str:
    """How float32 factors are read: as torch's own convolutions would."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def _worth(x: Tensor, weight: Tensor) -> bool:
    return x.is_cuda and x.dtype == weight.dtype and x.dtype in NUMBERS


def _laid(stack: Tensor, frame: Frame | None = None, last: bool = False) -> tuple[Tensor, int]:
    """A stack as kernels read it, and how far it is from client to client: 0 if all have the same.

    With a frame it has zeros around its images; with `last` their channels lie together, otherwise their pixels do.
    """
    shared = stack.stride(0) == 0
    stack = (stack[:1] if shared else stack).contiguous()
    if frame is not None and (frame.size != sides(stack) or (last and stack.shape[2] > 1)):
        stack = framed(stack, frame, last)
    return stack, 0 if shared else stack.stride(0)


def framed(stack: Tensor, frame: Frame, last: bool) -> Tensor:
    """Images in their frames, by our kernel: zeros and pixels in one pass."""
    from . import kernels

    (c, images, channels, *image), (height, width) = stack.shape, frame.size
    if last and channels > 1:
        out = stack.new_empty(c, images, height, width, channels)
        together, pixels = min(64, power(channels)), FRAMED
    else:  # one channel lies with itself
        out = stack.new_empty((c, images, height, width, 1) if last else (c, images, channels, height, width))
        images, channels, together = images * channels, 1, 1
        pixels = min(16 * FRAMED, max(FRAMED, power(height * width)))
    if out.numel():
        tiles = -(-height * width // pixels) * -(-channels // together)
        with on(stack):
            kernels.frame[(c * images * tiles,)](
                *(stack, out, tiles, channels, *image, height, width, *frame.first, *frame.step, together, pixels)
            )
    return out
