"""What our kernels have in common: when they can be made, how a stack is handed to them, and small arithmetic."""

import contextlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import Function

HeightWidth = tuple[int, int]
Backend = Literal["torch", "triton"]
Kernel = TypeVar("Kernel", bound=Callable[..., Any])

NUMBERS = (torch.float32, torch.bfloat16, torch.float16)
OURS = torch.library.Library("polycentric", "DEF")  # type: ignore[no-untyped-call]


def operator(schema: str) -> Callable[[Kernel], Kernel]:
    """Makes a function of tensors an operator of torch; a schema begins with its name.

    A recording notes operators alone, and a kernel that is started by hand is none: all that it would note of it is
    the empty tensor that the kernel fills.
    """

    def made(function: Kernel) -> Kernel:
        name = schema.partition("(")[0]
        OURS.define(schema)  # type: ignore[no-untyped-call]
        OURS.impl(name, function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        return cast(Kernel, getattr(torch.ops.polycentric, name).default)

    return made


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


class Moved(NamedTuple):
    """What a kernel moves along the gradient it makes: some columns w of every client's row, and their velocity."""

    w: Tensor  # (clients, columns)
    v: Tensor | None
    lr: Tensor  # (clients,)
    beta: float = 0.0
    decay: float = 0.0

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As kernels take them, after w itself."""
        v = self.w if self.v is None else self.v
        return self.w.stride(0), v, v.stride(0), self.lr, self.beta, self.decay

    @property
    def how(self) -> tuple[bool, bool]:
        """Whether there is a velocity, and whether weights decay: of each there is a kernel."""
        return self.v is not None, self.decay != 0


def on(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Where a kernel for x is started."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def do(function: type[Function], *operands: object) -> Tensor:
    """A function of ours, with its gradient."""
    result: Tensor = function.apply(*operands)  # type: ignore[no-untyped-call]
    return result


def in_front(batch: Tensor, axis: int | None, n: int) -> Tensor:
    """A batch of n with its axis first; what all share is seen n times, and not copied."""
    return batch[None].expand(n, *batch.shape) if axis is None else batch.movedim(axis, 0)


def longer(
    function: type[Function], info: Any, in_dims: tuple[int | None, ...], *operands: object
) -> tuple[Tensor, int]:
    """`vmap` of a function of stacks: a batch of n stacks is one longer stack."""
    n, each = info.batch_size, zip(operands, in_dims, strict=True)
    stacks = [in_front(t, axis, n).flatten(0, 1) if isinstance(t, Tensor) else t for t, axis in each]
    return torch.unflatten(do(function, *stacks), 0, (n, -1)), 0


def more_examples(function: Callable[[Tensor], Tensor], stack: Tensor, axis: int | None) -> tuple[Tensor, int]:
    """`vmap` where all have the same models: many batches of examples are one larger batch."""
    stack = stack.movedim(axis or 0, 1)
    return torch.unflatten(function(stack.flatten(1, 2)), 1, stack.shape[1:3]), 1


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
