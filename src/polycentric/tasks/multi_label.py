"""Any of several labels: a binary cross-entropy for each.

    outputs z (n, labels)   targets y (n, labels) 0 or 1   loss  mean_j log(1 + exp(-(2 y_j - 1) z_j))   answer  z_j > 0

For client i, a_i is the share of labels that are right, f_i the mean F1 over labels, and `exact` the share of examples
with all labels right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from .classification import class_macro_f1
from .goal import Goal, Numbers
from .scores import Integers, Mark, Reals, Scores, mean_by_client


class MultiLabel(Goal):
    """Which of several labels an example has."""

    leads = ("micro_accuracy",)
    outputs_are = "one number for each label: sigmoid gives probabilities, a label with a positive number is told"
    votes = "labels"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over labels of the binary cross-entropy."""
        return label_error(outputs, targets)

    def answers(self, outputs: Tensor) -> Tensor:
        """0 and 1 for each label."""
        return (outputs > 0).long()

    def merit(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The share of labels that are right."""
        return ((outputs > 0) == (targets > 0)).to(outputs.dtype).mean(-1)

    def room(self, n_outputs: int, target: tuple[int, ...]) -> tuple[int, ...]:
        """An answer for each label."""
        return (n_outputs,)

    def noted(self, outputs: Tensor) -> Tensor:
        """The answers."""
        return self.answers(outputs).double()

    def score(
        self, noted: Reals, targets: Numbers, losses: Reals, owner: Integers, n_clients: int, classes: tuple[str, ...]
    ) -> Scores:
        """Accuracy and F1 over labels."""
        return score_labels(noted.astype(np.int64), targets, losses, owner, n_clients)

    def probabilities(self, outputs: Tensor) -> Tensor | None:
        """Of every label."""
        return outputs.sigmoid()

    def right(self, answers: Tensor, targets: Tensor) -> Tensor | None:
        """The share of labels that are right."""
        return (answers == targets).double().mean(-1)

    def told(self, answer: Tensor, heads: tuple[str, ...]) -> dict[str, Any]:
        """0 or 1 for each label."""
        return {name: int(value) for name, value in zip(heads, answer.tolist(), strict=True)}


def label_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over labels of the binary cross-entropy, for every example."""
    return binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(-1)


def score_labels(answers: Integers, y: Integers, losses: Reals, owner: Integers, n_clients: int) -> Scores:
    """Scores of every client from 0 and 1 for each label, (examples, labels), told and true."""
    count = np.bincount(owner, minlength=n_clients)
    right = answers == y
    accuracy = mean_by_client(right.mean(1), owner, count)
    exact = Mark(mean_by_client(right.all(1).astype(np.float64), owner, count))

    def by_label(values: npt.NDArray[Any]) -> Reals:
        out = np.zeros((n_clients, y.shape[1]))
        np.add.at(out, owner, values)
        return out

    counts = [by_label(values) for values in (answers * y, y, answers)]
    f1, pooled = class_macro_f1(*counts), class_macro_f1(*(c.sum(0, keepdims=True) for c in counts))
    loss = mean_by_client(losses, owner, count)
    return Scores(count, loss, accuracy, f1, {"pooled_f1": float(pooled[0])}, {"exact": exact})
