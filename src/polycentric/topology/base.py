"""What every topology says: four verbs, what it remembers, what is worth telling of it, and what a clock asks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..parts.privacy import Weighs as Weighs
from ..stacks import Cohort, Layout, Links, Mixing, Stacks, View

if TYPE_CHECKING:
    from .cells.coverage import Geometry

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


class Spots(NamedTuple):
    """Where things stand on a map."""

    centers: Any  # (centers, 2)
    radii: Any  # (centers,) how far they reach
    clients: Any  # (clients, 2)


@dataclass(frozen=True, eq=False)
class Picture:
    """What a drawing of a topology shows: who talks to whom, and in which share of the rounds."""

    links: Links  # (center, client, share of the rounds); without centers of two clients, every pair once
    n_clients: int
    n_centers: int  # that stand apart from clients; 0: every client is its own
    part: Tensor | None = None  # (links,) links that are used together, as a matching, have one number
    spots: Spots | None = None  # None: there is no map, and whoever draws finds places
    cloud: bool = False  # whether the centers meet in a cloud

    @property
    def several(self) -> bool:
        """Whether some client hears several centers."""
        return self.n_centers > 0 and bool((self.links.sender.bincount() > 1).any())


def nothing(mixing: Mixing) -> Links:
    """No message: what is mixed has come with something else."""
    none = mixing.links.receiver[:0]
    return Links(none, none, none.double())


class Topology(ABC):
    """The four verbs. By default a client's place is fixed and centers do not meet."""

    whole: bool = False  # True: `place` and `up` must see the whole cohort at once
    independent_init: bool = False  # True: every center begins from a model of its own; False: all from the same
    at_home: bool = False  # True: center k lives at client k, so talking to it costs nothing
    relayed: bool = False  # True: what a client hears follows from its neighbours' rows and from who came, nothing else
    averages: bool = False  # True: centers work towards one model, so their mean is a model too, and is scored
    greets: bool = False  # True: the exchange only finds a place for newcomers, so whoever is scored takes part too
    reads_updates: bool = False  # True: who belongs where is found from what clients send
    sealed: tuple[str, ...] = ()  # names that tell which one center hears a client, and move nothing else
    line: str = ""  # who averages with whom, where that can be said without knowing the clients

    @property
    def weighs(self) -> Weighs:
        """What clients count by in a mean: their examples, one each, or one each over a fixed number."""
        return "examples"

    @property
    def geometry(self) -> Geometry | None:
        """Who is covered by whom, where centers are edges with cells; None: they are not."""
        return None

    @property
    def wires(self) -> Wires:
        """What a clock asks."""
        return Wires(self.at_home)

    def n_centers(self, n_clients: int) -> int:
        """How many models persist when the run begins; by default one, or one at the home of each client."""
        return n_clients if self.at_home else 1

    def n_rows(self, n_clients: int, name: str) -> int:
        """How many rows the stack `name` has at the centers; by default one for each center."""
        return self.n_centers(n_clients)

    def fitted(self, layout: Layout, like: Tensor, n_clients: int) -> Topology:
        """Itself, once the layout of a row, a row (1, width), and the number of clients are known."""
        return self

    def remembers(self, n_clients: int) -> Stacks:
        """What the topology must remember from round to round, as it is at the beginning; nobody else reads it."""
        return {}

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """(cohort, centers): what every client receives of `name`; by default from its home, or the one center.

        Rows of the identity, or a column of ones.
        """
        if self.at_home:
            return Mixing.gather(cohort.index, cohort.n_clients)
        return Mixing.gather(torch.zeros(len(cohort), dtype=torch.int64), 1)

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """Rows of memory (cohort, ...): where these clients belong now. Who looks at `sent` says `reads_updates`."""
        return {}

    @abstractmethod
    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """(centers, cohort): what every center hears of the stack `name`."""

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """What the centers do among themselves after they have stepped."""
        return memory, centers

    def shows(self, view: View) -> dict[str, float]:
        """What is worth looking at beside the scores, by name."""
        return {}

    def assignment(self, memory: Stacks) -> Tensor | None:
        """Every client's center, (clients,), where it has one; None: clients hear all, or several."""
        return None

    def learned(self, memory: Stacks) -> Tensor | None:
        """Which centers have ever heard anybody, (centers,) bool; None: nobody asks."""
        return None

    def relations(self, memory: Stacks) -> Tensor | None:
        """Correlations of clients' tasks, (clients, clients), NaN where none is kept; None: they are not learned."""
        return None

    def picture(self, memory: Stacks, everyone: Cohort) -> Picture:
        """What a drawing shows after `everyone.round` rounds; by default the links of `up`."""
        receiver, sender, weight = self.up(memory, everyone, "model").links
        client, centers = everyone.index[sender], 0 if self.at_home else self.n_centers(everyone.n_clients)
        there = (receiver < client) if self.at_home else (weight != 0)
        links = Links(receiver[there], client[there], torch.ones(int(there.sum()), dtype=torch.float64))
        return Picture(links, everyone.n_clients, centers and max([centers, *(receiver + 1).tolist()]))

    def tables(self, memory: Stacks) -> dict[str, Stacks]:
        """Tensors to be left behind when a run ends, by the name of their file."""
        return {}

    def words(self, n_clients: int) -> str:
        """Who averages with whom, in a line."""
        return self.line or type(self).__name__

    def beware(self, rounds: int) -> str:
        """What it will not do in a run of so many rounds, and what to set instead; empty: nothing to say."""
        return ""

    def facts(self, n_clients: int, seed: int = 0) -> dict[str, Any]:
        """What is known of so many clients before anything is learned: of a graph, or of edges and their cells."""
        return {}
