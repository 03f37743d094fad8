"""Dense layers of many examples, where nobody learns: by oneDNN, which torch has for its convolutions.

Torch's own products (MKL) use half of an AMD processor with AVX-512, oneDNN all of it; elsewhere both are as fast, to
rounding. Torch's compiler calls the same operator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

MANY = 64  # examples from which it is worth while


@contextlib.contextmanager
def quick_dense_layers(device: torch.device) -> Iterator[None]:
    """Within it, dense layers of many examples are oneDNN's, where it is at hand and no gradient is asked for."""
    if device.type != "cpu" or not _at_hand():
        yield
        return
    with _Quick():
        yield


@cache
def _at_hand() -> bool:
    there = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]
    return there and torch.backends.cpu.get_cpu_capability() == "AVX512"


class _Quick(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear and not kwargs and _fits(*args):
            x, weight, bias = (*args, None)[:3]
            return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return func(*args, **(kwargs or {}))


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether they are plain numbers in matrices, and many."""
    if torch.is_grad_enabled() or x.dim() != 2 or weight.dim() != 2 or len(x) < MANY or not weight.numel():
        return False
    tensors = [x, weight] if bias is None else [x, weight, bias]
    return all(t.dtype == torch.float32 and t.device.type == "cpu" and t.is_contiguous() for t in tensors)
