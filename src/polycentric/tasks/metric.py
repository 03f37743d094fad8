"""A metric of the user's own, beside the loss and what every run measures.

    def within_ten(outputs, targets):                   one number for each example: the mean over a client's examples
        return (outputs.squeeze(-1) - targets).abs() < 10

    def median_error(outputs, targets):                 one number for all of a client's examples together
        return (outputs.squeeze(-1) - targets).abs().median()

    pc.run(..., metrics=[within_ten, pc.Metric(median_error, lower_is_better=True)], monitor="macro_median_error")

Which of the two it is, is found out by trying. It stands in every table as micro_NAME (every example counts the same),
macro_NAME (every client does) and, where it is said which way is better, worst_decile_NAME (the worst tenth of the
clients). Only then may something be chosen or compared by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UsageError, require
from ..language.own_code import imported, own_function

Function = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Metric:
    """A function of outputs (n, n_outputs) and targets, and which way is better."""

    function: Function
    lower_is_better: bool | None = None  # None: nobody said, so nothing may be chosen by it
    name: str = ""  # by default the function's

    def __post_init__(self) -> None:
        require(callable(self.function), f"a metric is a function of (outputs, targets), got {self.function!r}")
        name = self.name or str(getattr(self.function, "__name__", type(self.function).__name__))
        good = re.fullmatch(r"[A-Za-z]\w*", name) is not None
        require(
            good, f"a metric's name is one word of letters, digits and _, got '{name}': use pc.Metric(f, name='...')"
        )
        object.__setattr__(self, "name", name)

    def per_example(self, outputs: Tensor, targets: Tensor) -> bool:
        """Whether it gives every example a number, tried on a few; anything but that or one number is refused."""
        found = self(outputs, targets)
        require(
            found.shape in ((len(outputs),), ()),
            f"metric {self.name} gives shape {tuple(found.shape)} for outputs {tuple(outputs.shape)} and targets "
            f"{tuple(targets.shape)}: it must give ({len(outputs)},), one number an example, or one for all of them",
        )
        return found.dim() == 1

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Numbers in float64."""
        try:
            return torch.as_tensor(self.function(outputs, targets)).detach().double()
        except Exception as error:  # the user's own code: anything can happen there
            shapes = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}"
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            raise UsageError(f"metric {self.name} fails on {shapes}: {said}") from error


def metric_of(thing: object) -> Metric:
    """A metric from `module:attribute`, a function, or what is one already."""
    if isinstance(thing, Metric):
        return thing
    if not isinstance(thing, str):
        return Metric(thing)  # type: ignore[arg-type]  # refused there if it is no function
    found = imported(thing, "metric")
    return found if isinstance(found, Metric) else Metric(own_function(thing, "metric"))


def better_of(metrics: Sequence[Metric], name: str) -> bool | None:
    """Whether less of one of a user's metrics is better, which must have been said; None: it is none of them."""
    found = next((metric for metric in metrics if metric.name == name), None)
    if found is None:
        return None
    if found.lower_is_better is None:
        raise UsageError(
            f"metric {name}: say which way is better before anything is chosen or compared by it: in its file "
            f"{name.capitalize()} = pc.Metric({name}, lower_is_better=True), or False, and name that"
        )
    return found.lower_is_better
