"""What our kernels have in common: when they can be made, how a stack is handed to them, and small arithmetic."""

import contextlib
import importlib.util
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function

HeightWidth = tuple[int, int]
Backend = Literal["torch", "triton"]

NUMBERS = (torch.float32, torch.bfloat16, torch.float16)


@cache
def has_triton() -> bool:
    """Whether our kernels can be made here."""
    return importlib.util.find_spec("triton") is not None


def able(x: Tensor) -> bool:
    """Whether a tensor lies on a GPU that has tensor cores for float32."""
    return x.is_cuda and torch.cuda.get_device_capability(x.device) >= (8, 0)


def backend(a: Tensor, b: Tensor) -> Backend:
    """Ours for several models on a GPU."""
    ours = len(a) > 1 and a.dtype == b.dtype and a.dtype in NUMBERS and has_triton() and able(a)
    return "triton" if ours else "torch"


def on(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Where a kernel for x is started."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def do(function: type[Function], *operands: object) -> Tensor:
    """A function of ours, with its gradient."""
    result: Tensor = function.apply(*operands)  # type: ignore[no-untyped-call]
    return result


def longer(stack: Tensor, axis: int | None, n: int) -> Tensor:
    """A batch of n stacks as one; what all share is not copied."""
    stack = stack[None].expand(n, *stack.shape) if axis is None else stack.movedim(axis, 0)
    return stack.flatten(0, 1)


def pair(n: Any) -> HeightWidth:
    """As torch reads it: one number is for both sides, a sequence of one as well."""
    both = (n,) if isinstance(n, int) else tuple(n)
    return (both[0], both[-1])


def sides(images: Tensor) -> HeightWidth:
    """Height and width."""
    return images.shape[-2], images.shape[-1]


def power(n: int) -> int:
    """The next power of two.

    >>> [power(n) for n in (1, 5, 8)]
    [1, 8, 8]
    """
    return 1 << (n - 1).bit_length()
