"""A cohort: some clients in one exchange, and the key of everything random that happens to them; a look at a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .stack import Stacks


@dataclass(frozen=True, eq=False)
class Cohort:
    """Clients by number, with what a center knows of them. Lives on the host."""

    index: Tensor  # (cohort,) int64
    sizes: Tensor  # (cohort,) int64, training examples
    effort: Tensor  # (cohort,) in (0, 1], share of the local work that gets done (stragglers)
    n_clients: int  # all there are, present or not
    seed: int
    round: int
    turn: int = 0  # which exchange of the round
    might: int | None = None  # clients that have data and train, drawn or not; None: all there are
    count: Tensor | None = None  # (cohort,) how much a client counts beside its examples; None: all the same

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, which: Tensor | slice) -> Cohort:
        """Some of these clients: by mask, by position or by slice."""
        count = None if self.count is None else self.count[which]
        return replace(self, index=self.index[which], sizes=self.sizes[which], effort=self.effort[which], count=count)

    @property
    def key(self) -> tuple[int, int, int]:
        """What random draws of the center start from. (Draws of a client leave out the turn.)"""
        return self.seed, self.round, self.turn

    @property
    def able(self) -> int:
        """How many might take part."""
        return self.n_clients if self.might is None else self.might

    @property
    def counts(self) -> Tensor:
        """How much every client counts in a mean over clients, float64."""
        return torch.ones(len(self), dtype=torch.float64) if self.count is None else self.count.double()

    @property
    def weights(self) -> Tensor:
        """How much every client counts in a mean over examples, float64."""
        return self.sizes.double() * self.counts

    def without(self, some: Cohort) -> Cohort:
        """Those who are not among `some` of these clients."""
        return self[:0] if len(some) == len(self) else self[~torch.isin(self.index, some.index)]

    def blocks(self, size: int) -> Iterator[Cohort]:
        """The cohort in pieces of at most `size` clients."""
        for first in range(0, len(self), max(size, 1)):
            yield self[first : first + size]

    def join(self, others: Iterable[Cohort]) -> Cohort:
        """This cohort followed by others."""
        parts = [self, *others]
        return replace(
            self,
            index=torch.cat([part.index for part in parts]),
            sizes=torch.cat([part.sizes for part in parts]),
            effort=torch.cat([part.effort for part in parts]),
            count=None if all(part.count is None for part in parts) else torch.cat([part.counts for part in parts]),
        )


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
