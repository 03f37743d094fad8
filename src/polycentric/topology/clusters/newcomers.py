"""Clients that come when there are clusters already: who they are, and where they belong."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...parts.select import Select
from ...stacks.cohort import Cohort
from ...stacks.mixing import Mixing
from ...stacks.stack import Stacks
from .candidates import candidate
from .clustered import ByDistance


@dataclass(frozen=True)
class NewcomerAssignment(ByDistance):
    """Where newcomers belong: K centers come down as `candidate0` .., they tell their `choice`; nothing is mixed."""

    def n_centers(self, n_clients: int) -> int:
        """K."""
        return self.k

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """A column of ones for a candidate."""
        return candidate(name, cohort, self.k)

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """Where they chose to be; -1 is no choice."""
        choice = sent["choice"][:, 0].long().cpu()
        here = memory["assignment"].cpu()[cohort.index]
        return {"assignment": torch.where(choice >= 0, choice, here), "placed": choice >= 0}

    def words(self, n_clients: int) -> str:
        """Newcomers only."""
        return f"newcomers find the nearest of {min(self.k, n_clients)} centers"


@dataclass(frozen=True)
class Newcomers(Select):
    """All clients that have data and have never been placed at a center."""

    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """Those whose place is not known."""
        return everyone[~memory["placed"].cpu()[everyone.index]]
