"""One of several classes: cross-entropy, accuracy, F1.

    outputs z (n, classes)      targets y (n,)      loss  -log softmax(z)_y      answer  argmax z

For client i with n_i examples, a_i is the share that is right, and f_i the class-macro F1 over the classes present in
its labels or predictions (0/0 counts as 0). Of all clients' examples together: pooled_f1; and of two classes, auc
(the area under the ROC curve) and minority_recall (the share of the rarer class that is recognised).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .goal import Goal, Numbers
from .scores import Integers, Reals, Scores


class Classification(Goal):
    """Which of several classes an example is of."""

    leads = ("micro_accuracy",)
    outputs_are = "one number for each class: softmax gives probabilities, the largest is the answer"
    votes = "class"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy of every example."""
        return class_error(outputs, targets)

    def answers(self, outputs: Tensor) -> Tensor:
        """The class of the largest output."""
        return outputs.argmax(-1)

    def merit(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """1 where the answer is right."""
        return (outputs.argmax(-1) == targets).to(outputs.dtype)

    def room(self, n_outputs: int, target: tuple[int, ...]) -> tuple[int, ...]:
        """The answer; of two classes, also how much more class 1 is believed in."""
        return (2,) if n_outputs == 2 else ()

    def noted(self, outputs: Tensor) -> Tensor:
        """Answers; of two classes, (answer, z_1 - z_0)."""
        answers = outputs.argmax(-1).double()
        if outputs.shape[-1] != 2:
            return answers
        return torch.stack([answers, outputs[..., 1].double() - outputs[..., 0].double()], -1)

    def score(
        self, noted: Reals, targets: Numbers, losses: Reals, owner: Integers, n_clients: int, classes: tuple[str, ...]
    ) -> Scores:
        """Accuracy and F1."""
        told, margin = (noted[:, 0], noted[:, 1]) if len(classes) == 2 else (noted, None)
        return score_classes(told.astype(np.int64), targets, losses, owner, n_clients, len(classes), margin)

    def probabilities(self, outputs: Tensor) -> Tensor | None:
        """Of every class."""
        return outputs.softmax(-1)

    def right(self, answers: Tensor, targets: Tensor) -> Tensor | None:
        """Which answers are right."""
        return (answers == targets).double()

    def told(self, answer: Tensor, heads: tuple[str, ...]) -> dict[str, Any]:
        """The name of the class."""
        return {"": heads[int(answer)]}


def class_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of every example; the last axis of outputs are the classes.

    As torch's `cross_entropy`, which under `grad` loads sympy (a quarter of a second).
    """
    return -outputs.log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)


def score_classes(
    predicted: Integers,
    labels: Integers,
    losses: Reals,
    owner: Integers,
    n_clients: int,
    n_classes: int,
    margin: Reals | None = None,
) -> Scores:
    """Scores of every client, from one prediction, label, loss and owner for every example.

    `margin` is how much more class 1 is believed in than class 0, where there are two.
    """
    count = np.bincount(owner, minlength=n_clients)
    with np.errstate(invalid="ignore"):
        loss = np.bincount(owner, weights=losses, minlength=n_clients) / count
        right = predicted == labels
        accuracy = np.bincount(owner, weights=right, minlength=n_clients) / count

    there = count > 0  # of a million clients a few hundred may have examples: no table for the others
    mine = (there.cumsum() - 1)[owner]

    def by_class(values: Integers, which: Integers) -> Reals:
        flat = np.bincount(which * n_classes + values, minlength=int(there.sum()) * n_classes)
        return flat.reshape(-1, n_classes).astype(np.float64)

    true_positives = by_class(labels[right], mine[right])
    actual, claimed = by_class(labels, mine), by_class(predicted, mine)
    f1 = np.zeros(n_clients)
    f1[there] = class_macro_f1(true_positives, actual, claimed)
    pooled = class_macro_f1(true_positives.sum(0, keepdims=True), actual.sum(0)[None], claimed.sum(0)[None])
    together = {"pooled_f1": float(pooled[0])}
    if margin is None:
        return Scores(count, loss, accuracy, f1, together)
    rarer = labels == int(2 * np.count_nonzero(labels) <= len(labels))  # a tie: class 1
    recall = float(right[rarer].mean()) if rarer.any() else float("nan")
    together |= {"auc": area_under_roc(margin, labels == 1), "minority_recall": recall}
    return Scores(count, loss, accuracy, f1, together)


def area_under_roc(score: Reals, positive: npt.NDArray[np.bool_]) -> float:
    """The chance that a positive example has a higher score than a negative one, ties counted half.

    With r the ranks of the n1 positive among all n1 + n0 scores, equal scores sharing their mean rank (Mann, Whitney):
    (sum r - n1 (n1 + 1) / 2) / (n1 n0). NaN where a class, or a score, is missing.
    """
    n1, n0 = int(positive.sum()), int((~positive).sum())
    if not n1 or not n0 or np.isnan(score).any():
        return float("nan")
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = (count.cumsum() - (count - 1) / 2)[place]
    return float((rank[positive].sum() - n1 * (n1 + 1) / 2) / n1 / n0)


def class_macro_f1(true_positives: Reals, actual: Reals, claimed: Reals) -> Reals:
    """(clients, classes) counts -> (clients,): mean of 2 tp / (actual + claimed) over the classes present."""
    total = actual + claimed
    f1 = np.divide(2 * true_positives, total, out=np.zeros_like(total), where=total > 0)
    present = (total > 0).sum(1)
    mean: Reals = np.divide(f1.sum(1), present, out=np.zeros(len(f1)), where=present > 0)
    return mean
