"""The four verbs every topology speaks."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ..stacks.cohort import Cohort
from ..stacks.mixing import Links, Mixing
from ..stacks.stack import Layout, Stacks


class Topology(ABC):
    """The four verbs. By default a client's place is fixed and centers do not meet."""

    whole: bool = False  # True: `place` and `up` must see the whole cohort at once
    independent_init: bool = False  # True: every center begins from a model of its own; False: all from the same
    at_home: bool = False  # True: center k lives at client k, so talking to it costs nothing
    averages: bool = False  # True: centers work towards one model, so their mean is a model too, and is scored
    near: bool = False  # True: centers are edges close to their clients; False: somewhere far, in a cloud

    @abstractmethod
    def n_centers(self, n_clients: int) -> int:
        """How many models persist when the run begins."""

    @abstractmethod
    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """(cohort, centers): what every client receives of the stack `name`."""

    @abstractmethod
    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """(centers, cohort): what every center hears of the stack `name`."""

    def n_rows(self, n_clients: int, name: str) -> int:
        """How many rows the stack `name` has at the centers; by default one for each center."""
        return self.n_centers(n_clients)

    def carried(self, memory: Stacks, cohort: Cohort, name: str, mixing: Mixing, width: int) -> Links:
        """The messages a mixing of `name` needs, (receiver, sender, numbers): by default a row on every link."""
        receiver, sender, weight = mixing.links
        return Links(receiver, sender, torch.full_like(weight, width))

    def shows(self, memory: Stacks, centers: Stacks) -> dict[str, float]:
        """What is worth looking at beside the scores, by name."""
        return {}

    def remembers(self, n_clients: int) -> Stacks:
        """What the topology must remember from round to round, as it is at the beginning."""
        return {}

    def fitted(self, layout: Layout, like: Tensor, n_clients: int) -> Topology:
        """Itself, once the layout of a row, a row (1, width), and the number of clients are known."""
        return self

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """Rows of memory (cohort, ...): where these clients belong now."""
        return {}

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """What the centers do among themselves after they have stepped."""
        return memory, centers

    def met_cloud(self, round: int) -> bool:
        """Whether centers talk to a cloud above them at the end of this round."""
        return False

    def edge_of(self, center: Tensor) -> Tensor:
        """On which machine every center is: its edge, its client, or the one that has them all."""
        return center if self.near or self.at_home else torch.zeros_like(center)

    def metres(self, cohort: Cohort, client: Tensor, edge: Tensor, mean: float) -> Tensor | None:
        """How far clients are from edges in the cohort's round, pair by pair; None: nobody knows.

        `mean`: metres on average, where there is a map without metres.
        """
        return None

    def sequence(self, memory: Stacks, cohort: Cohort) -> int | None:
        """How many times clients talk one after another in this exchange, such as the matchings that are active.

        None: all links are used at once.
        """
        return None
