"""Clients that come when there are clusters already: who they are, and where they belong."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...parts.select import Select
from ...stacks.cohort import Cohort
from ...stacks.mixing import Mixing
from ...stacks.stack import Stacks
from .assignment import Clusters


@dataclass(frozen=True)
class NewcomerAssignment(Clusters):
    """Where newcomers belong: K centers come down as `candidate0` .., they tell their `choice`; nothing is mixed."""

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """A column of ones for a candidate."""
        here = torch.full((len(cohort),), min(int(name.removeprefix("candidate")), self.k - 1))
        return Mixing.gather(here, self.k, of="model")

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """Where they chose to be; -1 is no choice."""
        choice = sent["choice"][:, 0].long().cpu()
        here = memory["assignment"].cpu()[cohort.index]
        return {"assignment": torch.where(choice >= 0, choice, here), "placed": choice >= 0}

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """Nothing: they have not sent a model."""
        return memory, centers


@dataclass(frozen=True)
class Newcomers(Select):
    """All clients that have data and have never been placed at a center."""

    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """Those whose place is not known."""
        return everyone[~memory["placed"].cpu()[everyone.index]]
