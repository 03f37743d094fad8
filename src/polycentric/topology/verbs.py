"""The four verbs every topology speaks."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..cohort import Cohort
from ..mixing import Mixing
from ..stack import Stacks


class Topology(ABC):
    """The four verbs. By default a client's place is fixed and centers do not meet."""

    whole: bool = False  # True: `place` and `up` must see the whole cohort at once
    at_home: bool = False  # True: center k lives at client k, so talking to it costs nothing

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

    def numbers(self, memory: Stacks, cohort: Cohort, name: str, width: int, down: bool) -> int | None:
        """How many numbers of the stack `name` travel; None: a row for every link, as the mixing says."""
        return None

    def shows(self, memory: Stacks, centers: Stacks) -> dict[str, float]:
        """What is worth looking at beside the scores, by name."""
        return {}

    def remembers(self, n_clients: int) -> Stacks:
        """What the topology must remember from round to round, as it is at the beginning."""
        return {}

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """Rows of memory (cohort, ...): where these clients belong now."""
        return {}

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """What the centers do among themselves after they have stepped."""
        return memory, centers
