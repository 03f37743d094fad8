"""A second, small model on a representation inside the user's: it predicts a protected attribute.

    h  =  the input of the layer at which a model passes from one of its two parts to the other
    z  =  a(h),   dense, ReLU, dense

An adversary is one, trained to find the attribute while the model is trained to hide it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import require, within
from ..stacks.draw import seeded
from ..stacks.stack import Cut, Layout
from .around import MadeFor


class WithAuxiliary(nn.Module):
    """A model whose answer is its own; asked for it, what the second one says of the input h of the layer `at`."""

    leaves = "model"  # the second model stays at home

    def __init__(self, model: nn.Module, at: str) -> None:
        super().__init__()
        self.model, self.at = model, at
        self.auxiliary: nn.Module = nn.Identity()

    def forward(self, *x: Tensor, want: Literal["answer", "attribute", "representation"] = "answer") -> Tensor:
        """What is wanted: (batch, outputs), (batch, values of the attribute), or (batch, width of h)."""
        if want == "answer":
            answer: Tensor = self.model(*x)
            return answer
        seen: list[Tensor] = []
        with self.model.get_submodule(self.at).register_forward_pre_hook(_noting(seen)):
            self.model(*x)
        require(bool(seen), f"layer {self.at} of the model is not called with what it reads: name another split")
        h = seen[-1].flatten(1)
        found: Tensor = h if want == "representation" else self.auxiliary(h)
        return found


def _noting(seen: list[Tensor]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def note(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        seen.extend(given[:1])

    return note


@dataclass(frozen=True)
class Auxiliary:
    """Puts a second model beside the user's, where that passes from one part of a cut to another.

    Arguments:
        cut: of the user's model; h is the input of the first layer of the part that comes second.
        hidden: width of its hidden layer.
    """

    cut: Cut
    hidden: int = 32

    def __post_init__(self) -> None:
        within(self, hidden=">= 1; try 32")

    def __call__(self, module: nn.Module, made_for: MadeFor) -> nn.Module:
        """The user's model and the second one; the first parameters of the former are what they were."""
        n_values = made_for.n_protected
        require(
            n_values > 1,
            "the data have no protected attribute of two values or more, which an auxiliary model is to predict: give "
            "one for each example (array `protected` of an .npz file), or leave out adversary and auxiliary",
        )
        whole = Layout.of(module)
        first, second, *_ = self.cut.layouts(whole).values()
        begins = first if whole.names[0] in second.names else second
        at = begins.names[0].rpartition(".")[0]
        require(bool(at), f"parameter {begins.names[0]} belongs to no layer of its own: name another split")
        made = WithAuxiliary(module, at)
        shapes = [shape for _, shape in made_for.inputs] or [made_for.shape]
        whole_numbers = torch.int64 if made_for.symbols else next(module.parameters()).dtype
        with torch.no_grad(), seeded(torch.device("cpu"), made_for.seed, "auxiliary"):
            x = (torch.zeros(2, *shape, dtype=whole_numbers) for shape in shapes)
            width = made.eval()(*x, want="representation").shape[1]
            made.auxiliary = nn.Sequential(nn.Linear(width, self.hidden), nn.ReLU(), nn.Linear(self.hidden, n_values))
        return made
