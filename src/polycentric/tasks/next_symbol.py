"""The next symbol at every place of a text: several rows of outputs an example.

    outputs z (n, length, symbols)   targets y (n, length), -1 where nothing is asked
    loss  1/|T| sum_{t in T} -log softmax(z_t)_{y_t},   T the places where something is asked;   answer  argmax z_t

The accuracy of a client is the share of its places that are right. A text of which only the symbol after the last one
is asked (LEAF's Shakespeare) has one target an example and is a classification.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from .classification import class_error, score_classes
from .goal import Goal, Numbers
from .scores import Integers, Reals, Scores, mean_by_client


class NextSymbol(Goal):
    """Which symbol follows, at every place."""

    leads = ("micro_accuracy",)
    outputs_are = "at every place one number for each symbol: softmax gives probabilities, the largest is the answer"

    def wanted(self, n_outputs: int, target: tuple[int, ...]) -> tuple[int, ...] | None:
        """A row for each place."""
        return (*target, n_outputs)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy over the places where something is asked."""
        asked = targets >= 0
        each = class_error(outputs, targets.clamp(min=0))
        return (each * asked).sum(-1) / asked.sum(-1).clamp(min=1)

    def answers(self, outputs: Tensor) -> Tensor:
        """The symbol of the largest output, (n, length)."""
        return outputs.argmax(-1)

    def merit(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The share of places that are right."""
        asked = targets >= 0
        right = (outputs.argmax(-1) == targets) & asked
        return right.sum(-1).to(outputs.dtype) / asked.sum(-1).clamp(min=1)

    def room(self, n_outputs: int, target: tuple[int, ...]) -> tuple[int, ...]:
        """An answer for each place."""
        return target

    def noted(self, outputs: Tensor) -> Tensor:
        """The answers."""
        return self.answers(outputs).double()

    def score(
        self, noted: Reals, targets: Numbers, losses: Reals, owner: Integers, n_clients: int, classes: tuple[str, ...]
    ) -> Scores:
        """Accuracy and F1 over places; every example counts once, however long it is."""
        asked = targets >= 0
        whose = np.broadcast_to(owner[:, None], targets.shape)[asked]
        told, none = noted.astype(np.int64)[asked], np.zeros(int(asked.sum()))
        places = score_classes(told, targets[asked], none, whose, n_clients, len(classes))
        count = np.bincount(owner, minlength=n_clients)
        return replace(places, count=count, loss=mean_by_client(losses, owner, count))

    def probabilities(self, outputs: Tensor) -> Tensor | None:
        """None: a table has no room for all places."""
        return None

    def right(self, answers: Tensor, targets: Tensor) -> Tensor | None:
        """The share of places that are right."""
        asked = targets >= 0
        return ((answers == targets) & asked).sum(-1).double() / asked.sum(-1).clamp(min=1)

    def told(self, answer: Tensor, heads: tuple[str, ...]) -> dict[str, Any]:
        """The text."""
        return {"": "".join(heads[int(symbol)] if symbol >= 0 else "" for symbol in answer)}
