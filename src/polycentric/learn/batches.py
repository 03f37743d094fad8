"""Which examples every client sees at every step: a shuffle per epoch, nothing dropped, nothing twice.

    step s of client k  =  epoch s // p_k, batch s % p_k,   p_k = ceil(n_k / B) batches an epoch

The last batch of an epoch may be short. A shuffle is keyed by (seed, round, client, epoch): it depends
neither on the method nor on who else takes part. Storage is ragged; only the rectangle of one block's steps
is ever padded, and there each row says how many of its places are real.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..cohort import Cohort
from ..data import Split
from ..draw import bits, shuffled
from ..errors import require


@dataclass(frozen=True, eq=False)
class Plan:
    """How many steps, on how many examples each."""

    steps: Tensor  # (cohort,) int64
    batch: int | None  # None: all of a client's examples at once
    shuffle: bool = True


def plan_of(cohort: Cohort, epochs: int, steps: int | None, batch: int | None) -> Plan:
    """`epochs` passes, or exactly `steps` steps; a straggler does its share, at least one of them."""
    per_epoch = _per_epoch(cohort, batch)
    whole = torch.full_like(cohort.sizes, epochs if steps is None else steps)
    done = (cohort.effort.double() * whole).ceil().long().clamp(min=1)
    done = torch.where(cohort.effort == 1, whole, done)
    return Plan(done * per_epoch if steps is None else done, batch)


def rows_at(x: Tensor, index: Tensor) -> Tensor:
    """`x[index]`, copied row by row; on a processor several times as fast as one number after another."""
    return x.index_select(0, index.reshape(-1)).view(*index.shape, *x.shape[1:])


class Schedule:
    """Every batch of every client of a block, as positions in the split's tensors."""

    def __init__(self, split: Split, cohort: Cohort, plan: Plan) -> None:
        require(bool(((cohort.sizes > 0) | (plan.steps == 0)).all()), "a client without examples cannot take a step")
        sizes, steps = cohort.sizes, plan.steps
        per_epoch = _per_epoch(cohort, plan.batch).clamp(min=1)  # a client without examples takes no step
        epochs = -(-steps // per_epoch)
        self.steps: list[int] = steps.tolist()
        self.n_steps = max(self.steps, default=0)
        width = int(sizes.max()) if plan.batch is None else min(plan.batch, int(sizes.max()))

        stream, base = _stream(split, cohort, epochs, plan.shuffle and plan.batch is not None)
        s = torch.arange(self.n_steps)[:, None]  # (steps, 1) against (clients,)
        epoch, at = s // per_epoch, s % per_epoch
        first = base + epoch * sizes + at * width  # (steps, clients)
        self.counts = (sizes - at * width).clamp(max=width)  # (steps, clients)
        place = torch.arange(width)
        valid = place < self.counts[:, :, None]
        index = (first[:, :, None] + place).clamp(max=max(len(stream) - 1, 0))
        device = split.x.device
        own = split.first[cohort.index][:, None]  # padding is the client's own: 0 * inf of another's is nan
        self.index = torch.where(valid, stream[index], own).to(device, non_blocking=True)  # (steps, clients, width)
        self.weight = (valid.double() / self.counts[:, :, None].clamp(min=1)).to(device, non_blocking=True)


def _per_epoch(cohort: Cohort, batch: int | None) -> Tensor:
    return torch.ones_like(cohort.sizes) if batch is None else -(-cohort.sizes // batch)


def _stream(split: Split, cohort: Cohort, epochs: Tensor, shuffle: bool) -> tuple[Tensor, Tensor]:
    """Every client's epochs end to end: positions in the split, and where each client's stream begins."""
    sizes = cohort.sizes
    base = (epochs * sizes).cumsum(0) - epochs * sizes
    n_segments = int(epochs.sum())  # a segment is one epoch of one client
    owner = torch.repeat_interleave(torch.arange(len(sizes)), epochs)
    epoch = torch.arange(n_segments) - (epochs.cumsum(0) - epochs)[owner]
    lengths = sizes[owner]
    segment = torch.repeat_interleave(torch.arange(n_segments), lengths)
    position = torch.arange(len(segment)) - (lengths.cumsum(0) - lengths)[segment]
    if shuffle:
        key = bits(cohort.seed, cohort.round, "shuffle", cohort.index[owner], epoch)
        position = position[shuffled(segment, key[segment], position)]
    return split.first[cohort.index][owner][segment] + position, base
