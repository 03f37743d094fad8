"""Two models and a gate: a general one, which others share, a private one, and how much this example asks of each.

    a(x) = sigmoid(clip(w . u + b, -10, 10)),        u = x / sqrt(d),  of images (2 x - 1) / sqrt(d),  d inputs in all

    classes   p = a softmax(G) + (1 - a) softmax(P)      given as log p, which are valid logits
    labels    p = a sigmoid(G) + (1 - a) sigmoid(P)      given as log p - log(1 - p)
    numbers   a G + (1 - a) P

Probabilities are mixed, not logits: where the gate trusts one model alone, the answer is that model's. Inputs are made
comparable by a fixed map and by nothing that is learned from data: images are numbers in [0, 1], other data had better
be standardised by the run; divided by sqrt(d) a step moves w . u as far whatever the number of inputs is. The gate
begins at w = 0, b = 0, where a = 1/2, and its logit is clipped so that neither model is ever cut off from learning.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from ..errors import require
from ..stacks.draw import seed_of
from .around import MadeFor
from .by_name import build

LIMIT = 10.0  # of a gate's logit
Answer = Callable[[Tensor, Tensor, Tensor], Tensor]


def mixed_classes(logit: Tensor, general: Tensor, private: Tensor) -> Tensor:
    """log(a softmax(general) + (1 - a) softmax(private))."""
    log_g, log_p = general.log_softmax(-1), private.log_softmax(-1)
    return torch.logaddexp(logsigmoid(logit) + log_g, logsigmoid(-logit) + log_p)


def mixed_labels(logit: Tensor, general: Tensor, private: Tensor) -> Tensor:
    """The logits of a sigmoid(general) + (1 - a) sigmoid(private), label by label."""
    log_a, log_b = logsigmoid(logit), logsigmoid(-logit)
    yes = torch.logaddexp(log_a + logsigmoid(general), log_b + logsigmoid(private))
    return yes - torch.logaddexp(log_a + logsigmoid(-general), log_b + logsigmoid(-private))


def mixed_numbers(logit: Tensor, general: Tensor, private: Tensor) -> Tensor:
    """a general + (1 - a) private."""
    a = logit.sigmoid()
    return a * general + (1 - a) * private


MIXED: dict[str, Answer] = {"classes": mixed_classes, "labels": mixed_labels, "numbers": mixed_numbers}


class InputGate(nn.Module):
    """How much of every example goes to the first of two models, (batch, 1); w and b begin at zero."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.linear = nn.Linear(math.prod(shape), 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.scale, self.shift = math.prod(shape) ** -0.5, 0.0
        if len(shape) == 3:  # images, in [0, 1]
            self.scale, self.shift = 2 * self.scale, -self.scale

    def logit(self, *inputs: Tensor) -> Tensor:
        """clip(w . z + b)."""
        x = torch.cat([part.flatten(1) for part in inputs], 1)
        found: Tensor = self.linear(x * self.scale + self.shift)
        return found.clamp(-LIMIT, LIMIT)

    def forward(self, *inputs: Tensor) -> Tensor:
        """a(x)."""
        return self.logit(*inputs).sigmoid()


class OneInput(nn.Module):
    """A model of one input, which takes several as one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        """Its answer; several inputs lie end to end."""
        found: Tensor = self.model(inputs[0] if len(inputs) == 1 else torch.cat([x.flatten(1) for x in inputs], 1))
        return found


class GatedModel(nn.Module):
    """A general model, a private one and a gate between them."""

    answers = ("general", "private")
    shares = ("gate",)

    def __init__(self, general: nn.Module, private: nn.Module, gate: InputGate, mixed: Answer) -> None:
        super().__init__()
        self.general, self.private, self.gate, self.mixed = general, private, gate, mixed

    def forward(self, *inputs: Tensor) -> Tensor:
        """The mixture."""
        return self.mixed(self.gate.logit(*inputs), self.general(*inputs), self.private(*inputs))


@dataclass(frozen=True)
class Gated:
    """Puts a private model and a gate beside the user's model, which becomes the general one.

    `private` is "same", a copy of the user's model with the same first parameters, or the name of another.
    """

    private: str = "same"

    def __call__(self, module: nn.Module, made_for: MadeFor) -> nn.Module:
        """`general.*`, `private.*` and `gate.*`."""
        shape, n_outputs, seed, symbols, kind, *_ = made_for
        require(
            not symbols, "a gate weighs inputs, and the symbols of a text are no numbers: use other data, or fedavg"
        )
        if self.private == "same":
            own = copy.deepcopy(module)
        else:
            own = OneInput(build(self.private, shape, n_outputs, seed=seed_of(seed, "private")))
        return GatedModel(module, own, InputGate(shape), MIXED[kind])
