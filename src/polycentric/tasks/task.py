"""What is learned: a module, a loss, and which of its parameters go under which name.

task.start()            the initial rows, {name: (1, width)}
task.outputs(row, x)    the module at the parameters of one row
task.losses(row, batch) the loss of every example, (batch,)
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from ..data import Federation
from ..errors import UsageError
from ..models import build
from ..stacks.stack import WHOLE, Cut, Layout, Stacks

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> one loss for each example


class Batch(NamedTuple):
    """Some examples of one client, or of every client of a block."""

    x: Tensor  # (..., batch, *shape)
    y: Tensor  # (..., batch)
    weight: Tensor  # (..., batch) sums to one; zero where there is no example


def parameter_key(parameter: str) -> str:
    """The name under which a row may hold one of the module's parameters beside the row it is part of."""
    return f"parameter {parameter}"


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error of every example."""
    return (outputs.squeeze(-1) - targets).square() / 2


@dataclass(frozen=True, eq=False)
class Task:
    """A module and its loss, as functions of a row."""

    module: nn.Module
    loss: Loss
    cut: Cut = WHOLE
    dtype: torch.dtype = torch.float32
    symbols: int = 0
    precision: str = "float32"  # "bf16": the module computes in bfloat16 where it learns; rows stay as they are

    @staticmethod
    def of(
        federation: Federation,
        model: str | nn.Module | Callable[..., nn.Module],
        *,
        cut: Cut = WHOLE,
        seed: int = 0,
        loss: Loss | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        precision: str = "float32",
    ) -> Task:
        """The task of fitting a model to a federation's data."""
        model = copy.deepcopy(model) if isinstance(model, nn.Module) else model  # the user's own stays as it is
        module = build(model, federation.shape, federation.n_outputs, seed=seed, symbols=federation.symbols)
        module = module.to(dtype=dtype, device=device).train()
        loss = loss or (partial(cross_entropy, reduction="none") if federation.classes else squared_error)
        task = Task(module, loss, cut, dtype, federation.symbols, precision)
        task.layouts  # noqa: B018 - a pattern that matches nothing is refused here
        task.try_out(federation.train.x[:2], federation.n_outputs)
        return task

    def try_out(self, x: Tensor, n_outputs: int) -> None:
        """Refuse a module that does not give one row of outputs for each example."""
        name = type(self.module).__name__
        try:
            with torch.no_grad():
                outputs = self.predict({n: row[0] for n, row in self.start().items()}, self.inputs(x.to(self.device)))
        except Exception as error:  # the user's own code: anything can happen there
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            raise UsageError(f"model {name} fails on examples of shape {tuple(x.shape[1:])}: {said}") from error
        if outputs.shape != (len(x), n_outputs):
            raise UsageError(
                f"model {name} gives outputs of shape {tuple(outputs.shape)} for {len(x)} examples; it must give "
                f"({len(x)}, {n_outputs}), one row an example"
            )

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        """The layout of every name the parameters are cut into."""
        return self.cut.layouts(Layout.of(self.module))

    @property
    def names(self) -> tuple[str, ...]:
        """The names the parameters are cut into; `model` first."""
        return tuple(self.layouts)

    @property
    def width(self) -> int:
        """Trained parameters in all."""
        return sum(layout.width for layout in self.layouts.values())

    @property
    def device(self) -> torch.device:
        """Where the module is."""
        return next(self.module.parameters()).device

    def start(self) -> Stacks:
        """The initial parameters, one row for every name."""
        tensors = dict(self.module.named_parameters())
        first = next(self.module.parameters())
        return {name: layout.row(tensors).to(first)[None] for name, layout in self.layouts.items()}

    def inputs(self, x: Tensor) -> Tensor:
        """Stored examples as the module wants them: bytes become numbers in [0, 1], symbols stay whole."""
        if self.symbols:
            return x.long()
        if x.dtype == torch.uint8:
            return x.to(self.dtype).div_(255)
        return x.to(self.dtype)

    def targets(self, y: Tensor) -> Tensor:
        """Stored targets as the loss wants them."""
        return y.to(self.dtype) if y.is_floating_point() else y

    def parameters(self, row: Stacks) -> dict[str, Tensor]:
        """The module's parameters in one row, by their own names."""
        return {k: v for name, layout in self.layouts.items() for k, v in layout.views(row[name]).items()}

    def outputs(self, row: Stacks, x: Tensor) -> Tensor:
        """The module at one row's parameters; any that `row` holds `apart` is taken from there."""
        parameters = {k: row.get(parameter_key(k), v) for k, v in self.parameters(row).items()}
        return torch.as_tensor(functional_call(self.module, parameters, (x,)))

    def predict(self, row: Stacks, x: Tensor) -> Tensor:
        """The outputs with dropout and the like switched off."""
        self.module.eval()
        try:
            return self.outputs(row, x)
        finally:
            self.module.train()

    def losses(self, row: Stacks, batch: Batch) -> Tensor:
        """The loss of every example, (batch,)."""
        if self.precision != "bf16":
            return self.loss(self.outputs(row, batch.x), batch.y)
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            outputs = self.outputs(row, batch.x)
        return self.loss(outputs.to(self.dtype), batch.y)

    def mean_loss(self, row: Stacks, batch: Batch) -> Tensor:
        """The mean loss over the examples that are there."""
        return (self.losses(row, batch) * batch.weight).sum()

    def quiet_loss(self, row: Stacks, batch: Batch) -> Tensor:
        """The mean loss with dropout and the like switched off: for looking, not for training."""
        return (self.loss(self.predict(row, batch.x), batch.y) * batch.weight).sum()

    def loaded(self, row: Stacks) -> nn.Module:
        """A module of its own with one row's parameters, ready to predict."""
        module = copy.deepcopy(self.module)
        missing = module.load_state_dict(self.parameters(row), strict=False)
        if missing.unexpected_keys:
            raise UsageError(f"the model has no parameter {missing.unexpected_keys[0]}")
        return module.eval()
