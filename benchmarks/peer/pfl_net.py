"""A module as pfl-research wants it."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy


class Net(torch.nn.Module):
    """The module with the two functions that pfl asks for."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x)

    def loss(self, x: Any, y: Any, is_eval: bool = False) -> Any:
        return cross_entropy(self.inner(x), y)

    def metrics(self, x: Any, y: Any) -> dict[str, Any]:
        return {}
