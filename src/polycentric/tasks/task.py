"""What is learned: a module, a loss, and which of its parameters go under which name.

task.start()            the initial rows, {name: (1, width)}
task.outputs(row, x)    the module at the parameters of one row
task.losses(row, batch) the loss of every example, (batch,)
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..data import Federation
from ..data.augment import Augment, check_images
from ..data.federation import Inputs
from ..errors import UsageError
from ..models import MODELS, build
from ..models.around import MadeFor, Wrap
from ..stacks.stack import WHOLE, Cut, Layout, Stacks
from .classification import Classification, class_error
from .goal import Goal, Loss
from .goals import GOALS
from .metric import Metric


class Batch(NamedTuple):
    """Some examples of one client, or of every client of a block."""

    x: Tensor  # (..., batch, *shape)
    y: Tensor  # (..., batch) or (..., batch, targets)
    weight: Tensor  # (..., batch) sums to one; zero where there is no example
    protected: Tensor | None = None  # (..., batch) a protected attribute, where the data have one

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What is there."""
        return tuple(part for part in self if part is not None)

    @property
    def axes(self) -> Batch:
        """Which axis `vmap` takes of every part: the first, of those that are there."""
        return Batch(*(None if part is None else 0 for part in self))  # type: ignore[arg-type]


def parameter_key(parameter: str) -> str:
    """The name under which a row may hold one of the module's parameters beside the row it is part of."""
    return f"parameter {parameter}"


@dataclass(frozen=True, eq=False)
class Task:
    """A module and its loss, as functions of a row."""

    module: nn.Module
    loss: Loss
    cut: Cut = WHOLE
    dtype: torch.dtype = torch.float32
    symbols: int = 0
    precision: str = "float32"  # "bf16": the module computes in bfloat16 where it learns; rows stay as they are
    metrics: tuple[Metric, ...] = ()  # of the user's own
    several: Inputs = ()  # what the module is called with, where that is not x as a whole
    augment: Augment | None = None  # what happens to images in training
    goal: Goal = Classification()
    n_outputs: int = 1  # of the module, for each row of outputs
    part: str = ""  # the submodule that answers, such as "general" of a model with a gate; empty: all of it

    @staticmethod
    def of(
        federation: Federation,
        model: str | nn.Module | Callable[..., nn.Module],
        *,
        cut: Cut = WHOLE,
        seed: int = 0,
        loss: Loss | None = None,
        goal: Goal | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        precision: str = "float32",
        metrics: Sequence[Metric] = (),
        augment: Augment | None = None,
        around: Wrap | None = None,
    ) -> Task:
        """The task of fitting a model, and whatever a method puts around it, to a federation's data."""
        check_images(augment, federation.name, federation.shape, federation.symbols)
        model = copy.deepcopy(model) if isinstance(model, nn.Module) else model  # the user's own stays as it is
        several = federation.inputs if not isinstance(model, str) or model not in MODELS else ()
        shape = dict(several) if several else federation.shape
        module = build(model, shape, federation.n_outputs, seed=seed, symbols=federation.symbols)
        if around is not None:
            facts = federation.shape, federation.n_outputs, seed, federation.symbols, federation.kind
            module = around(module, MadeFor(*facts, several, federation.n_protected))
        module = module.to(dtype=dtype, device=device).train()
        own_loss = goal is not None or loss is not None
        goal = (goal or GOALS[federation.kind]).fitted(module)
        own, n = tuple(metrics), federation.n_outputs
        task = Task(
            module, loss or goal.loss, cut, dtype, federation.symbols, precision, own, several, augment, goal, n
        )
        task.layouts  # noqa: B018 - a pattern that matches nothing is refused here
        outputs = task.try_out(federation.train.x[:2], tuple(federation.train.y.shape[1:]))
        targets = task.targets(federation.train.y[: len(outputs)].to(task.device))
        if own_loss:
            try_loss(task.loss, outputs, targets)
        for metric in metrics:
            metric.per_example(outputs, targets)
        return task

    def try_out(self, x: Tensor, target: tuple[int, ...]) -> Tensor:
        """A few outputs; a module that does not give one row of them for each example is refused."""
        name = type(self.module).__name__
        try:
            with torch.no_grad():
                outputs = self.predict({n: row[0] for n, row in self.start().items()}, self.inputs(x.to(self.device)))
        except Exception as error:  # the user's own code: anything can happen there
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            raise UsageError(f"model {name} fails on examples of shape {tuple(x.shape[1:])}: {said}") from error
        wanted = self.goal.wanted(self.n_outputs, target)
        if wanted is not None and outputs.shape != (len(x), *wanted):
            raise UsageError(
                f"model {name} gives outputs of shape {tuple(outputs.shape)} for {len(x)} examples; it must give "
                f"{(len(x), *wanted)}, one row for each example"
            )
        return outputs

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
        if not self.part:
            return side_by_side(self.called(row, x))
        parameters = {k: row.get(parameter_key(k), v) for k, v in self.parameters(row).items()}
        own = {k.removeprefix(f"{self.part}."): v for k, v in parameters.items() if k.startswith(f"{self.part}.")}
        return side_by_side(functional_call(self.module.get_submodule(self.part), own, self.arguments(x)))

    def called(self, row: Stacks, x: Tensor, **how: str) -> object:
        """What the whole module gives at one row's parameters."""
        parameters = {k: row.get(parameter_key(k), v) for k, v in self.parameters(row).items()}
        return functional_call(self.module, parameters, self.arguments(x), how)

    def inside(self, part: str) -> Task:
        """The same task answered by a part of the module alone; rows stay those of the whole."""
        if part == self.part:
            return self
        inner = replace(self, part=part)
        inner.__dict__["layouts"] = self.layouts  # found once: a step may ask for a part
        return inner

    @property
    def answers(self) -> tuple[str, ...]:
        """Parts of the module that could answer alone."""
        return tuple(getattr(self.module, "answers", ()))

    @property
    def shares(self) -> tuple[str, ...]:
        """Parts of the module that give every example a number in [0, 1]."""
        return tuple(getattr(self.module, "shares", ()))

    @property
    def reads(self) -> set[str]:
        """The names of which the part that answers has parameters."""
        begins = f"{self.part}." if self.part else ""
        return {name for name, layout in self.layouts.items() if any(k.startswith(begins) for k in layout.names)}

    def arguments(self, x: Tensor) -> tuple[Tensor, ...]:
        """What the module is called with."""
        if not self.several:
            return (x,)
        parts = torch.split(x, [math.prod(shape) for _, shape in self.several], -1)
        return tuple(
            part.reshape(*part.shape[:-1], *shape) for part, (_, shape) in zip(parts, self.several, strict=True)
        )

    def predict(self, row: Stacks, x: Tensor) -> Tensor:
        """The outputs with dropout and the like switched off."""
        self.module.eval()
        try:
            return self.outputs(row, x)
        finally:
            self.module.train()

    @property
    def auxiliary(self) -> bool:
        """Whether a second model predicts a protected attribute from a representation inside."""
        return hasattr(self.module, "auxiliary")

    def representation(self, row: Stacks, x: Tensor) -> Tensor:
        """What the second model reads, (batch, width), with dropout and the like switched off."""
        self.module.eval()
        try:
            return torch.as_tensor(self.called(row, x, want="representation"))
        finally:
            self.module.train()

    def attribute_loss(self, row: Stacks, batch: Batch) -> Tensor:
        """The mean cross-entropy of the second model over the examples that are there."""
        assert batch.protected is not None, "a batch without the protected attribute"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False):
            said = torch.as_tensor(self.called(row, batch.x, want="attribute"))
        return (class_error(said.to(self.dtype), batch.protected) * batch.weight).sum()

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
        leaves = getattr(module, "leaves", "")
        return (module.get_submodule(leaves) if leaves else module).eval()


def side_by_side(found: object) -> Tensor:
    """What a module gave, (batch, outputs); several heads one after another."""
    if isinstance(found, tuple | list):
        return torch.cat([part.flatten(1) for part in found], 1)
    return torch.as_tensor(found)


def try_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    """Refuse a loss that does not give every example a number of its own: a stack, and padding, need one."""
    name, n = getattr(loss, "__name__", type(loss).__name__), len(outputs)
    shapes = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}"
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of shapes that broadcast: said below
            together = loss(outputs, targets)
            alone = [loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(n)]
    except Exception as error:  # the user's own code: anything can happen there
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        raise UsageError(f"loss {name} fails on {shapes}: {said}") from error
    if not isinstance(together, Tensor) or together.dim() == 0:
        hint = f"nn.{name}(reduction='none')" if isinstance(loss, nn.Module) else "the losses without their mean"
        raise UsageError(f"loss {name} gives one number for {n} examples, and must give one for each: use {hint}")
    if together.shape != (n,):
        broad = together.dim() == 2 and together.shape[0] == together.shape[1] == n != outputs[0].numel()
        hint = (
            "they broadcast against each other: use outputs.squeeze(-1)"
            if broad
            else "take the mean over the last axis"
        )
        raise UsageError(f"loss {name} gives shape {tuple(together.shape)} for {shapes}, not ({n},): {hint}")
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        moves = loss(outputs.detach().requires_grad_(outputs.is_floating_point()), targets).requires_grad
    if not moves:
        raise UsageError(f"loss {name} has no gradient, so nothing would be learned: leave out detach, argmax or ==")
    if not torch.allclose(together, torch.stack([part.reshape(()) for part in alone]), rtol=1e-4, atol=1e-6):
        raise UsageError(
            f"loss {name} gives an example another number when it stands beside others: it must depend on that "
            "example's outputs and targets alone"
        )
