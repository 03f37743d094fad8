"""A cohort: some clients in one exchange, and the key of everything random that happens to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor


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

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, which: Tensor | slice) -> Cohort:
        """Some of these clients: by mask, by position or by slice."""
        return replace(self, index=self.index[which], sizes=self.sizes[which], effort=self.effort[which])

    @property
    def key(self) -> tuple[int, int, int]:
        """What random draws of the center start from. (Draws of a client leave out the turn.)"""
        return self.seed, self.round, self.turn

    @property
    def weights(self) -> Tensor:
        """The sizes as float64, for means by data size."""
        return self.sizes.double()

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
        )
