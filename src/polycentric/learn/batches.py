"""Which examples every client sees at every step: a shuffle per epoch, nothing dropped, nothing twice.

    step s of client k  =  epoch s // p_k, batch s % p_k,   p_k = ceil(n_k / B) batches an epoch

The last batch of an epoch may be short. A shuffle is keyed by (seed, round, client, epoch): it depends
neither on the method nor on who else takes part. Storage is ragged; only the rectangle of one block's steps
is ever padded, and there each row says how many of its places are real.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..data import Split
from ..data.augment import Augment, pack, unpack
from ..errors import require
from ..stacks.cohort import Cohort
from ..stacks.draw import begins, bits
from ..tasks.task import Batch, Task

MOST_STEPS = 1 << 20  # epochs or steps of a client in one round: more would take days, and is a slip of the finger
MOST_PLACES = 1 << 31  # examples in all steps of a block: 16 GiB of positions
PADDING = {"cpu": 1 << 16, "cuda": 1 << 20}  # places drawn for nothing before clients are told apart by size


@dataclass(frozen=True, eq=False)
class Plan:
    """How many steps, on how many examples each."""

    steps: Tensor  # (cohort,) int64
    batch: int | None  # None: all of a client's examples at once
    shuffle: bool = True
    half: int | None = None  # 0 or 1: on one half of a client's examples, the same in every round; None: on all

    def sizes(self, cohort: Cohort) -> Tensor:
        """How many examples of every client it is for, (cohort,); of an odd number the first half has one more."""
        return cohort.sizes if self.half is None else (cohort.sizes + 1 - self.half) // 2


def plan_of(cohort: Cohort, epochs: int, steps: int | None, batch: int | None) -> Plan:
    """`epochs` passes, or exactly `steps` steps; a straggler does its share, at least one of them."""
    per_epoch = _per_epoch(cohort, batch)
    whole = torch.full_like(cohort.sizes, epochs if steps is None else steps)
    done = (cohort.effort.double() * whole).ceil().long().clamp(min=1)
    done = torch.where(cohort.effort == 1, whole, done)
    return Plan(done * per_epoch if steps is None else done, batch)


def appearances(plan: Plan, cohort: Cohort) -> Tensor:
    """How often every client uses any one of its examples in a round, at most, (cohort,).

    An epoch uses every example once, in one of its p_k batches, so s steps use each at most ceil(s / p_k) times: E
    epochs E times; with `batch=None` every step. Fewest batches, most appearances: the smallest client's.
    """
    per_epoch = _per_epoch(replace(cohort, sizes=plan.sizes(cohort)), plan.batch).clamp(min=1)
    return -(-plan.steps // per_epoch)


def rows_at(x: Tensor, index: Tensor) -> Tensor:
    """`x[index]`, copied row by row; on a processor several times as fast as one number after another."""
    return x.index_select(0, index.reshape(-1)).view(*index.shape, *x.shape[1:])


def batch_at(task: Task, split: Split, augment: Augment | None, index: Tensor, weight: Tensor) -> Batch:
    """The examples at some positions of a schedule, as a task wants them."""
    if augment is None:
        x, y = rows_at(split.x, index), rows_at(split.y, index)
    else:
        index, key = unpack(index)
        x, y = augment(rows_at(split.x, index), key), rows_at(split.y, index)
        if task.goal.placed:
            y = augment.moved(y, key, (x.shape[-2], x.shape[-1]))
    protected = None if split.protected is None or not task.auxiliary else rows_at(split.protected, index)
    return Batch(task.inputs(x), task.targets(y), weight.to(task.dtype), protected)


class BatchSchedule:
    """Every batch of every client of a block, as positions in the split's tensors, made where those are.

    What Python must know of it is known from the cohort, so that nobody waits for a GPU. Where images are augmented,
    their keys stand above the positions; who only looks at examples (`shuffle=False`) sees them as they are.
    """

    def __init__(self, split: Split, cohort: Cohort, plan: Plan, augment: Augment | None = None) -> None:
        everything, cohort = cohort, replace(cohort, sizes=plan.sizes(cohort))
        require(bool(((cohort.sizes > 0) | (plan.steps == 0)).all()), "a client without examples cannot take a step")
        device, sizes, steps = split.x.device, cohort.sizes, plan.steps
        room = (
            float((steps.double() * sizes.clamp(max=plan.batch or 1 << 40)).max()) * len(cohort) if len(cohort) else 0.0
        )
        require(
            room <= MOST_PLACES,
            f"{len(cohort)} clients that take up to {int(steps.max()) if room else 0:,} steps at once are too many to "
            "plan: use fewer epochs or steps and more rounds, or fewer clients at once (--block 1)",
        )
        per_epoch = _per_epoch(cohort, plan.batch).clamp(min=1)  # a client without examples takes no step
        self.batch = plan.batch
        self.steps: list[int] = steps.tolist()
        self.n_steps = max(self.steps, default=0)
        width = int(sizes.max()) if plan.batch is None else min(plan.batch, int(sizes.max()))

        stream, base, length = None, torch.zeros_like(sizes), torch.zeros_like(sizes)
        if plan.shuffle and plan.batch is not None:
            stream, base, length = _stream(cohort, -(-steps // per_epoch), (steps * width).minimum(sizes), device)
        sizes, steps, per_epoch, base, length, own = moved(
            device, sizes, steps, per_epoch, base, length, split.first[cohort.index]
        )
        s = torch.arange(self.n_steps, device=device)[:, None]  # (steps, 1) against (clients,)
        epoch = s // per_epoch
        at = (s - epoch * per_epoch) * width
        counts = torch.where(s < steps, (sizes - at).clamp(max=width), 0)  # (steps, clients)
        place = torch.arange(width, device=device)
        real = place < counts[:, :, None]
        index = (at + base + epoch * length)[:, :, None] + place
        if stream is not None:
            index = rows_at(stream, index.clamp_(max=len(stream) - 1))
        if plan.half is not None:
            index = _in_half(everything, plan.half, index.mul_(real))
        self.index = index.mul_(real).add_(own[:, None])  # padding is the client's own: 0 * inf of another's is nan
        self.augment = augment if plan.shuffle else None
        if self.augment is not None:
            self.index = pack(self.index, cohort)
        self.weight = real / counts.clamp(min=1).double()[:, :, None]  # both (steps, clients, width)
        self._counts = counts

    def widen(self, width: int) -> None:
        """At least so many places in every batch: new ones have weight 0, and an example of the client's own."""
        more = width - self.index.shape[-1]
        if more > 0 and self.index.shape[-1]:
            self.index = torch.cat([self.index, self.index[..., :1].expand(*self.index.shape[:-1], more)], -1)
            self.weight = pad(self.weight, (0, more))

    @cached_property
    def counts(self) -> Tensor:
        """How many places of every batch are real, (steps, clients), on the host."""
        return self._counts.cpu()


def _per_epoch(cohort: Cohort, batch: int | None) -> Tensor:
    return torch.ones_like(cohort.sizes) if batch is None else -(-cohort.sizes // batch)


def _in_half(cohort: Cohort, half: int, place: Tensor) -> Tensor:
    """Places in one half of every client's examples, (steps, clients, width), as places among all of them."""
    longest = int(cohort.sizes.max())
    order = begins(cohort.sizes, bits(bits(cohort.seed, "halves", cohort.index)), longest, longest).to(place.device)
    first = (half * ((cohort.sizes + 1) // 2)).to(place.device)
    at = (place + first[:, None]).clamp_(max=longest - 1)  # a half without examples has no place that is real
    return order[torch.arange(len(order), device=place.device)[:, None], at]


def _stream(cohort: Cohort, epochs: Tensor, wanted: Tensor, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Every client's epochs as far as they are wanted, end to end: positions in its own examples.

    Returns:
        The positions, on the device; where every client's begin; and how far it is from one epoch to the next.

    Shuffles lie in rectangles: clients of very different sizes in several, where padding would cost more.
    """
    sizes = cohort.sizes
    groups = [torch.arange(len(sizes))]
    if int((epochs * (sizes.max() - sizes)).sum()) > PADDING.get(device.type, 0):
        scale = sizes.clamp(min=1).double().log2().ceil()
        groups = [(scale == some).nonzero()[:, 0] for some in torch.unique(scale)]
    order = torch.cat(groups)
    n = epochs[order]
    at = torch.repeat_interleave(n)  # whose every shuffle is, in this order
    owner, epoch = order[at], torch.arange(len(at)) - (n.cumsum(0) - n)[at]
    state = bits(bits(cohort.seed, cohort.round, "shuffle", cohort.index[owner], epoch))
    size, state = moved(device, sizes[owner], state)
    stream, length, row = [], torch.zeros_like(sizes), 0
    for group in groups:
        rows, count = slice(row, row + int(epochs[group].sum())), int(wanted[group].max())
        stream.append(begins(size[rows], state[rows], int(sizes[group].max()), count).flatten())
        length[group], row = count, rows.stop
    taken = n * length[order]
    return torch.cat(stream), torch.zeros_like(sizes).index_copy(0, order, taken.cumsum(0) - taken), length


def moved(device: torch.device, *parts: Tensor) -> tuple[Tensor, ...]:
    """Whole numbers of the host, (n,) each, on a device: in one copy that nobody waits for."""
    if device.type == "cpu":
        return parts
    together = torch.cat(parts)
    together = (together.pin_memory() if device.type == "cuda" else together).to(device, non_blocking=True)
    return torch.split(together, [len(part) for part in parts])
