"""What every scan over the steps of a block has in common: what it is given, and the stretches it goes along.

Clients of unequal size take unequal numbers of steps. A block is sorted by steps, so that at step s the clients still
at work are a prefix of the rows: nobody waits, and nothing is computed to be thrown away. The steps between two
departures are a *stretch*, all of one shape.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...stacks.stack import LINE, Stacks
from ...tasks.task import Batch
from ..batches import BatchSchedule
from ..learner import Learner


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a block: whose, how one is taken, and on which examples."""

    learner: Learner  # equal learners take equal steps
    take: Callable[[Stacks, Stacks, Batch], Stacks]  # (carry, rows, batch) -> carry: one step of all clients given
    gather: Callable[[Tensor, Tensor], Batch]  # (index, weight) -> batch
    schedule: BatchSchedule  # in falling order of steps
    in_place: bool  # whether a step overwrites what it is given to carry
    few: int  # clients that are taken one after another
    take_alone: Callable[[Stacks, Stacks, Batch], Stacks]  # one step of one client, which may overwrite its carry


# (steps, carry, rows) -> carry; nothing of the caller's is overwritten
Scan = Callable[[Steps, Stacks, Stacks], Stacks]
Stretch = Callable[[Stacks, Stacks, range], Stacks]  # the same for some steps of all clients given


def as_function(steps: Steps, carry: Stacks, rows: Stacks) -> Callable[..., Sequence[Tensor]]:
    """A step as a function of tensors: what is carried, what is only read, the batch's. Gives what is carried then."""
    names, n, m = list(carry), len(carry), len(carry) + len(rows)

    def step(*flat: Tensor) -> Sequence[Tensor]:
        carried, held = dict(zip(names, flat, strict=False)), dict(zip(rows, flat[n:], strict=False))
        now = steps.take(carried, held, Batch(*flat[m:]))
        return [now[name] for name in names]

    return step


def over_stretches(stretch: Stretch, steps: list[int], carry: Stacks, rows: Stacks) -> Stacks:
    """One stretch after another; those who are done leave from the end."""
    finished = []
    for first, last, active in stretches(steps):
        if active < clients_in(carry):
            finished.append({name: value[active:] for name, value in carry.items()})
            carry, rows = first_of(active, carry), first_of(active, rows)
        carry = stretch(carry, rows, range(first, last))
    return joined([carry, *reversed(finished)])


def stretches(steps: list[int]) -> Iterator[tuple[int, int, int]]:
    """(first step, last step, clients at work), for numbers of steps in falling order.

    >>> list(stretches([5, 3, 3, 1]))
    [(0, 1, 4), (1, 3, 3), (3, 5, 1)]
    """
    first, active = 0, len(steps)
    while active:
        last = steps[active - 1]
        if last > first:
            yield first, last, active
            first = last
        active -= 1
        while active and steps[active - 1] == last:
            active -= 1


def clients_in(stacks: Stacks) -> int:
    """How many clients have rows."""
    return len(next(iter(stacks.values())))


def first_of(n: int, stacks: Stacks) -> Stacks:
    """The first n clients' rows, not copied."""
    return {name: value[:n] for name, value in stacks.items()}


def joined(parts: list[Stacks]) -> Stacks:
    """Rows end to end; of one part alone, its own."""
    parts = [part for part in parts if clients_in(part)] or parts[:1]
    return parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def copied(stacks: Stacks) -> Stacks:
    """Rows of one's own, each beginning with a line of memory."""
    return {name: empty_aligned(value).copy_(value) for name, value in stacks.items()}


def empty_aligned(like: Tensor) -> Tensor:
    """Room for rows, each beginning with a line of memory: what reads or writes many numbers at once can do so."""
    if like.dim() != 2:
        return torch.empty_like(like, memory_format=torch.contiguous_format)
    line = LINE // like.element_size()
    return like.new_empty(len(like), -(-like.shape[1] // line) * line)[:, : like.shape[1]]
