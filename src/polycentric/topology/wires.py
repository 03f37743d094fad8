"""What only a clock asks of a topology: the messages behind a mixing, the machines they go between, and who waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..stacks.cohort import Cohort
from ..stacks.mixing import Links, Mixing
from ..stacks.stack import Stacks

Direction = Literal["down", "up"]


@dataclass(frozen=True)
class Wires:
    """By default a row on every link, one far machine with all centers, all links at once, and no cloud."""

    at_home: bool = False  # True: every center is on its client's machine
    near = False  # True: centers are edges close to their clients; False: somewhere far, in a cloud

    def messages(self, way: Direction, memory: Stacks, cohort: Cohort, name: str, mixing: Mixing, width: int) -> Links:
        """The messages a mixing of `name` needs on its way, (receiver, sender, numbers)."""
        receiver, sender, weight = mixing.links
        return Links(receiver, sender, torch.full_like(weight, width))

    def machine_of(self, center: Tensor) -> Tensor:
        """On which machine every center is: its edge, its client, or the one that has them all."""
        return center if self.near or self.at_home else torch.zeros_like(center)

    def metres(self, cohort: Cohort, client: Tensor, edge: Tensor, mean: float) -> Tensor | None:
        """How far clients are from edges in the cohort's round, pair by pair; None: nobody knows.

        `mean`: metres on average, where there is a map without metres.
        """
        return None

    def turns(self, memory: Stacks, cohort: Cohort) -> int | None:
        """How many times clients talk one after another, such as the matchings in use; None: all links at once."""
        return None

    def meets_cloud(self, round: int) -> bool:
        """Whether centers talk to a cloud above them at the end of this round."""
        return False


def nothing(mixing: Mixing) -> Links:
    """No message: what is mixed has come with something else."""
    none = mixing.links.receiver[:0]
    return Links(none, none, none.double())


def one_row_each(cohort: Cohort, width: int) -> Links:
    """A row from the center of every client to it: the center adds up before it sends."""
    every = torch.arange(len(cohort))
    return Links(every, cohort.index, torch.full((len(cohort),), float(width), dtype=torch.float64))
