"""What may be learned: one of several classes, any of several labels, or numbers.

                outputs z       targets y               loss of an example                      its answer
    classes     (n, classes)    (n,) whole numbers      -log softmax(z)_y                       argmax z
    labels      (n, labels)     (n, labels) 0 and 1     mean_j log(1 + exp(-(2 y_j - 1) z_j))   z_j > 0
    numbers     (n, targets)    (n,) or (n, targets)    1/2 sum_j (z_j - y_j)^2                 z

A loss gives one number for each example; the mean over a client's examples is taken afterwards, where examples that
are not there have weight zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from ..data.federation import Kind

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> one loss for each example


@dataclass(frozen=True)
class Goal:
    """How outputs are judged."""

    loss: Loss
    answers: Callable[[Tensor], Tensor]  # outputs to what is compared with the targets
    merit: Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> how well each example is served, more is better
    placed: bool = False  # whether targets are places in an image, which move where the image does


def class_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of every example."""
    return cross_entropy(outputs, targets, reduction="none")


def label_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over labels of the binary cross-entropy, for every example."""
    return binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(-1)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error of every example, summed over the numbers to predict."""
    if outputs.dim() > targets.dim():
        return (outputs.squeeze(-1) - targets).square() / 2
    return (outputs - targets).square().sum(-1) / 2


GOALS: dict[Kind, Goal] = {
    "classes": Goal(class_error, lambda z: z.argmax(-1), lambda z, y: (z.argmax(-1) == y).to(z.dtype)),
    "labels": Goal(label_error, lambda z: (z > 0).long(), lambda z, y: ((z > 0) == (y > 0)).to(z.dtype).mean(-1)),
    "numbers": Goal(squared_error, lambda z: z.double(), lambda z, y: -squared_error(z, y)),
}
