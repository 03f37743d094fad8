"""Torch's functions that have kernels of our own on a GPU, put in their places.

with use_gpu_kernels(device):        # what calls conv1d, conv2d, max_pool2d or linear in here calls ours
    step(...)
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from .convolve import ConvCall, convolve
from .launch import has_triton
from .linear import LinearCall, dense
from .pools import PoolCall, pool

POOLS = (F.max_pool2d, torch.max_pool2d)


@contextlib.contextmanager
def use_gpu_kernels(device: torch.device) -> Iterator[None]:
    """Within it, convolutions, max pools and dense layers on a GPU are ours, where our kernels know them."""
    if device.type != "cuda" or not has_triton():
        yield
        return
    with Overrides():
        yield


class Overrides(TorchFunctionMode):
    """Puts `convolve`, `pool` and `dense` in the places of torch's own."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d or func is torch.conv1d:
            call = ConvCall(*args, **kwargs)
            if call.ours(4 if func is torch.conv2d else 3):
                return convolve(call.input, call.weight, call.bias, call.stride, call.padding)
        elif func in POOLS:
            asked = PoolCall(*args, **kwargs)
            if asked.ours():
                return pool(asked.input, asked.kernel_size)
        elif func is F.linear:
            layer = LinearCall(*args, **kwargs)
            if layer.ours():
                return dense(*layer)
        return func(*args, **kwargs)
