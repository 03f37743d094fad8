"""A look at a run between two rounds: what the parts are shown when they are asked what is worth telling."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .stack import Stacks


@dataclass(frozen=True, eq=False)
class View:
    """All that the numbers beside the scores are made of."""

    round: int  # rounds finished
    memory: Stacks  # what the parts remember
    centers: Stacks  # (centers, width)
    before: Stacks | None  # the memory before the last round; None: there was none, or it is over
    trains: Tensor  # (clients,) bool: has examples and is not held out
    honest: Tensor  # (clients,) bool: does not attack
    group: Tensor | None  # (clients,) the known groups, where there are any
