"""What clients keep, where several ranks share them: it stays with the rank that learned it last, its *home*.

    round 1    rank 0 learns a b    rank 1 learns c d        nothing travels
    round 2    rank 0 learns a c    rank 1 learns b d        c goes from 1 to 0, and b from 0 to 1

So private layers, a client's own model or its duals cost no more between ranks than they move. Where the homes are is a
column of what is kept, the same at every rank: a round that fails leaves those of the round before. At other ranks a
row is no number, so that whoever reads it there notices. Whoever is to read all of them gathers them first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from ..method import State
from ..parts.answer import Answer, Part
from ..stacks.cohort import Cohort
from ..stacks.stack import Draft, Stacks, take

if TYPE_CHECKING:
    from .ranks import Ranks

HOME = "(home)"  # a column of what clients keep; no parameter is called so
EVERYWHERE = -1
Found = TypeVar("Found", bound=Answer | Part)


def spread(state: State, ranks: Ranks) -> State:
    """The same state, which all ranks have: from now on rows stay where they are learned."""
    if ranks.size == 1 or not state.kept or HOME in state.kept:
        return state
    rows = next(iter(state.kept.values()))
    return replace(state, kept=state.kept | {HOME: torch.full((len(rows), 1), EVERYWHERE)})


def away(state: State) -> bool:
    """Whether some of what clients keep may be at another rank only."""
    return HOME in state.kept


def brought(kept: Stacks, blocks: Sequence[Cohort], owners: Sequence[int], ranks: Ranks) -> list[Stacks]:
    """What the clients of this rank's blocks keep, block by block; every rank gives away what others are to learn."""
    home = kept[HOME][:, 0]
    rows = {name: stack for name, stack in kept.items() if name != HOME}
    mine = [take(rows, block.index) for block, owner in zip(blocks, owners, strict=True) if owner == ranks.rank]
    for source in range(ranks.size):
        for target in range(ranks.size):
            theirs = [block.index for block, owner in zip(blocks, owners, strict=True) if owner == target]
            there = [home[index] == source for index in theirs]
            if source == target or not any(bool(some.any()) for some in there):
                continue
            wanted = torch.cat([index[some] for index, some in zip(theirs, there, strict=True)])
            parcel = ranks.passed(take(rows, wanted) if ranks.rank in (source, target) else {}, source, target)
            if ranks.rank == target:
                count = [int(some.sum()) for some in there]
                for name, stack in parcel.items():
                    for block, some, part in zip(mine, there, torch.split(stack, count), strict=True):
                        block[name][some.to(stack.device)] = part
    return mine


def stays(found: Found, block: Cohort, rows: Stacks, rank: int) -> Found:
    """The answer of a block that this rank has learned, from these rows; what it does not say has stayed as it was."""
    good = torch.isin(block.index, found.block.index)
    as_before = {name: stack for name, stack in rows.items() if name not in found.kept}
    return replace(found, kept=take(as_before, good) | found.kept | {HOME: torch.full((len(found.block), 1), rank)})


def elsewhere(found: Found, kept: Stacks, rank: int) -> Found:
    """The answer of a block that another rank has learned, and whose rows are there."""
    n, rows = len(found.block), {name: stack for name, stack in kept.items() if name != HOME}
    none = {name: stack.new_full((n, stack.shape[1]), torch.nan) for name, stack in rows.items()}
    return replace(found, kept=none | {HOME: torch.full((n, 1), rank)})


def gathered(state: State, ranks: Ranks, wanted: bool = True) -> State:
    """The same state with all rows at every rank, where any rank wants it so."""
    if not away(state):
        return state
    asked = torch.tensor([int(wanted)])
    ranks.add(asked)
    if not int(asked):
        return state
    rows, home = {name: stack for name, stack in state.kept.items() if name != HOME}, state.kept[HOME][:, 0]
    whole = Draft(rows)
    for source in range(ranks.size):
        theirs: Tensor = (home == source).nonzero()[:, 0]
        if len(theirs):
            found = ranks.stacks({"kept": take(rows, theirs)} if ranks.rank == source else {}, source)["kept"]
            if ranks.rank != source:
                whole.write(theirs, found)
    return replace(state, kept=whole.stacks)
