"""How a model moves along a gradient; the same rules serve clients and centers.

    client:   g = the gradient of its loss                      w <- w - update(g)
    center:   g = w - (what it heard), the pseudo-gradient      w <- w - update(g)

    SGD       update = lr g                     SGD(1) at a center is weighted averaging
    Momentum  v <- beta v + g;  update = lr v
    Adam      bias-corrected first and second moments

Moments of a center are stacks at the center (`velocity`, `first`, ...): they grow, resume and are
checkpointed with it. A center that heard nobody does not move, and neither do its moments.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..errors import within
from ..language import register
from ..stacks import Heard, Stacks
from ..stacks.stack import to_device_of


class Update(NamedTuple):
    """What to subtract from the model, and the moments after that."""

    step: Tensor
    moments: Stacks


class Center(Protocol):
    """What a center does with what it heard."""

    def step(self, centers: Stacks, heard: Mapping[str, Heard]) -> Stacks:
        """The centers after this exchange."""


@dataclass(frozen=True)
class Average:
    """A center takes what it heard: plain averaging, no server optimizer."""

    def step(self, centers: Stacks, heard: Mapping[str, Heard]) -> Stacks:
        """(A center that heard nobody was handed its own model.)"""
        return centers | {name: values for name, (values, _) in heard.items()}


class Rule(ABC):
    """A rule for one model (width,) or a stack of them (models, width)."""

    @abstractmethod
    def moments(self, like: Tensor) -> Stacks:
        """Moments before the first step."""

    @abstractmethod
    def update(self, gradient: Tensor, moments: Stacks) -> Update:
        """The step along `gradient`."""

    def step(self, centers: Stacks, heard: Mapping[str, Heard]) -> Stacks:
        """At a center: move along `center - heard`; names other than `model` are taken as heard."""
        new = Average().step(centers, heard)
        if "model" not in heard:
            return new
        model, moves = centers["model"], to_device_of(centers["model"], heard["model"].mask)[:, None]
        before = {name: centers.get(name, zero) for name, zero in self.moments(model).items()}
        step, after = self.update(model - heard["model"].values, before)
        new["model"] = torch.where(moves, model - step, model)
        return new | {name: torch.where(moves, after[name], before[name]) for name in after}


@dataclass(frozen=True)
class SGD(Rule):
    """w <- w - lr g."""

    lr: float = 1.0

    def __post_init__(self) -> None:
        within(self, lr=">= 0; try 1")

    def moments(self, like: Tensor) -> Stacks:
        """None."""
        return {}

    def update(self, gradient: Tensor, moments: Stacks) -> Update:
        """lr g."""
        return Update(gradient if self.lr == 1 else self.lr * gradient, {})


@dataclass(frozen=True)
class Momentum(Rule):
    """v <- beta v + g;  w <- w - lr v. beta = 0 is SGD."""

    lr: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        within(self, lr=">= 0; try 1", beta="[0, 1); try 0.9")

    def moments(self, like: Tensor) -> Stacks:
        """A velocity of zero."""
        return {"velocity": torch.zeros_like(like)}

    def update(self, gradient: Tensor, moments: Stacks) -> Update:
        """lr v."""
        velocity = torch.add(gradient, moments["velocity"], alpha=self.beta)  # one pass over the row
        return Update(velocity if self.lr == 1 else self.lr * velocity, {"velocity": velocity})


@dataclass(frozen=True)
class Adam(Rule):
    """Adam with bias correction; `eps` matters on the tiny pseudo-gradients of a center.

    Reference: Kingma and Ba, ICLR 2015, https://arxiv.org/abs/1412.6980
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        within(self, lr=">= 0; try 0.001", beta1="[0, 1); try 0.9", beta2="[0, 1); try 0.999", eps="> 0; try 1e-5")

    def moments(self, like: Tensor) -> Stacks:
        """Zero, and a count of steps for every model."""
        count = torch.zeros(*like.shape[:-1], 1, dtype=like.dtype, device=like.device)
        return {"first": torch.zeros_like(like), "second": torch.zeros_like(like), "count": count}

    def update(self, gradient: Tensor, moments: Stacks) -> Update:
        """lr m / (sqrt(v) + eps), both corrected for their start at zero."""
        count = moments["count"] + 1
        first = self.beta1 * moments["first"] + (1 - self.beta1) * gradient
        second = self.beta2 * moments["second"] + (1 - self.beta2) * gradient.square()
        scale = (second / (1 - self.beta2**count)).sqrt() + self.eps
        step = self.lr * (first / (1 - self.beta1**count)) / scale
        return Update(step, {"first": first, "second": second, "count": count})


@dataclass(frozen=True)
class AdaptiveMu:
    """FedProx's rule: mu rises by `by` when the mean loss rises, and falls by `by` after `patience` falls in a row.

    The loss comes up under the name `loss` (infinite before the first round), mu goes down under the name `mu`, and
    `falls` counts. The model moves as the inner optimizer says.
    """

    of: Center
    by: float = 0.1
    patience: int = 5

    def step(self, centers: Stacks, heard: Mapping[str, Heard]) -> Stacks:
        """The inner step, then mu."""
        new = self.of.step(centers, heard)
        rose, known = new["loss"] > centers["loss"], centers["loss"].isfinite()
        falls = torch.where(new["loss"] < centers["loss"], centers["falls"] + known, 0.0)
        enough = falls >= self.patience
        change = self.by * (rose.to(centers["mu"]) - enough.to(centers["mu"]))
        moved = {"mu": (centers["mu"] + change).clamp(min=0), "falls": torch.where(enough, 0.0, falls)}
        some = to_device_of(new["loss"], heard["loss"].mask)[:, None]  # a center that heard nobody learns nothing
        return new | {name: torch.where(some, value.to(centers[name]), centers[name]) for name, value in moved.items()}


register(Center, "average", Average)
register(Center, "sgd", SGD)
register(Center, "momentum", Momentum)
register(Center, "adam", Adam)
