"""Gradients as functions, without torch's compiler.

`torch.func.grad` asks torch's compiler, every time, to stay away while it differentiates. To be asked it must be
loaded: 800 modules, half a second of every start. Nothing here compiles, so until somebody loads the compiler,
something stands in for it that says what it would say: it is not at work.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import torch
from torch.func import grad as grad, vmap as vmap

COMPILER, ITS_GRADIENTS = "torch._dynamo", "compiled_autograd"


class StandIn:
    """A module that is loaded when somebody asks for more of it than is known without."""

    def __init__(self, module: str, **known: Any) -> None:
        self.__dict__.update(known, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)


if COMPILER not in sys.modules:  # once it is loaded, torch has the module itself under this name
    gradients = StandIn(f"{COMPILER}.{ITS_GRADIENTS}", _disable=nullcontext)
    torch._dynamo = StandIn(COMPILER, **{ITS_GRADIENTS: gradients})  # type: ignore[assignment]
