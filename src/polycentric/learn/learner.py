"""The two interfaces of local work: what a client does (`Learner`), and who runs it (`Executor`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from ..parts.accountant import Release
from ..parts.optimizer import Rule
from ..stacks.cohort import Cohort
from ..stacks.stack import Stacks
from ..tasks.task import Batch, Task
from .batches import Plan
from .gradient import grad, vmap

LossOfOne = Callable[[Tensor, Tensor, Tensor], Tensor]  # of a model, and one example's x and y
Objective = Callable[[Stacks], Tensor]  # of params; reads them through the task, or by their names
GradientFunction = Callable[[Objective, Stacks], Stacks]
BLOCK_BYTES = {"cpu": 8 << 20, "cuda": 1 << 30}  # of parameters learned at once


class UpdateSpec(NamedTuple):
    """How to go down an objective: w <- w - lr update(gradient + weight_decay w), by a rule of rate one."""

    rule: Rule
    weight_decay: float = 0.0
    through_task: bool = False  # the objective reads params through the task only, and never a row as such
    rates: tuple[tuple[str, float], ...] = ()  # (name, what the step of this name is multiplied by); others: 1

    def rate(self, name: str) -> float:
        """Of a name."""
        return dict(self.rates).get(name, 1.0)


Descent = Callable[[Objective, Stacks, Stacks, Tensor, UpdateSpec], Stacks]


def gradients_at_once(loss: LossOfOne, model: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the loss of every example, (batch, width), batched; modules that draw do so for each example."""
    each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
    found: Tensor = each(model, x, y)
    return found


@dataclass(frozen=True, eq=False)
class Client:
    """What a learner may use while it is at one client."""

    task: Task
    gradient: GradientFunction  # (objective, params) -> the gradient of objective at params
    descent: Descent | None = None  # a faster way to `descend`, which may overwrite what it is given
    gradients: Callable[[LossOfOne, Tensor, Tensor, Tensor], Tensor] = gradients_at_once  # of each example's loss

    def descend(self, objective: Objective, params: Stacks, moments: Stacks, lr: Tensor, spec: UpdateSpec) -> Stacks:
        """Params and moments ({name.moment}) after a step. Carried ones only: they may be overwritten."""
        if self.descent is not None:
            return self.descent(objective, params, moments, lr, spec)
        return stepped(self.gradient(objective, params), params, moments, lr, spec)


def stepped(gradient: Stacks, params: Stacks, moments: Stacks, lr: Tensor, spec: UpdateSpec) -> Stacks:
    """Params and moments after a step along the gradient; nothing is overwritten."""
    new: Stacks = {}
    for name, w in params.items():
        g = gradient[name] + spec.weight_decay * w if spec.weight_decay else gradient[name]
        step, after = spec.rule.update(g, moments_of(name, moments))
        new[name] = torch.addcmul(w, step, lr, value=-spec.rate(name))  # one pass over the row
        new |= {f"{name}.{moment}": value for moment, value in after.items()}
    return new


def moments_of(name: str, moments: Stacks) -> Stacks:
    """The moments of one name."""
    return {key.removeprefix(f"{name}."): v for key, v in moments.items() if key.startswith(f"{name}.")}


class Learner(ABC):
    """A scan over a client's batches. `begin` and `end` see the whole block, `step` sees one client."""

    passes: float = 1.0  # what an example costs, in gradients of its loss
    hides: bool = False  # whether what it writes hides every single example, as far as `release` says
    writes: tuple[str, ...] | None = None  # the names it changes; None: whatever it likes

    def fitted(self, n_clients: int) -> Self:
        """The same learner, knowing how many clients there are."""
        return self

    def secured(self, key: bytes) -> Self:
        """Itself, with noise that only who has a secret key can draw, where it adds any."""
        return self

    def keeps(self, like: Tensor) -> Stacks:
        """Names the client keeps for this learner, {name: (1, width)}, as they are at the beginning."""
        return {}

    def keeps_each(self, like: Tensor, largest: int, n_outputs: int) -> Stacks:
        """Names the client keeps with numbers for each example and output, {name: (1, largest * n_outputs)}."""
        return {}

    @abstractmethod
    def plan(self, cohort: Cohort) -> Plan:
        """How many steps every client takes, and on how many examples each."""

    @property
    def trains_like(self) -> Learner | None:
        """The plain training that is nearest to it, for fine-tuning in the same way; None: there is none."""
        return None

    def work(self, cohort: Cohort) -> Plan:
        """What the steps cost, for a clock: the plan, where a step is a step."""
        return self.plan(cohort)

    def release(self, sizes: Tensor) -> Release | None:
        """What a round of it tells about one example of clients of these sizes, at most; None: nothing is promised."""
        return None

    def rows_held(self, task: Task) -> int:
        """Rows as wide as the model that a client's step holds at once: a block had better have fewer clients then."""
        return 1

    @abstractmethod
    def begin(self, rows: Stacks, cohort: Cohort, task: Task) -> Stacks:
        """What is carried from step to step, (block, ...)."""

    @abstractmethod
    def step(self, carry: Stacks, row: Stacks, batch: Batch, client: Client) -> Stacks:
        """One step of one client: everything without the client axis. `carry` is its own, `row` is not."""

    @abstractmethod
    def end(self, carry: Stacks, rows: Stacks, cohort: Cohort) -> Stacks:
        """The rows this learner has changed, (block, width)."""


class Executor(ABC):
    """Runs learners, and predicts, at every client of a block; and says what a block should be for it."""

    task: Task
    piece: int = 1  # clients it takes at a time: a block had better be a multiple of it

    @property
    def block_bytes(self) -> int:
        """Of parameters that a block should have: what stays in a core's cache, or is enough for a GPU."""
        return BLOCK_BYTES.get(self.task.device.type, BLOCK_BYTES["cpu"])

    @abstractmethod
    def __call__(self, learner: Learner, rows: Stacks, cohort: Cohort) -> Stacks:
        """The rows that the learner changed, (block, width)."""

    @abstractmethod
    def outputs(self, rows: Stacks, x: Tensor, part: str = "") -> Tensor:
        """Every client's model, or a part of it, on its own examples (block, batch, ...): (block, batch, outputs)."""
