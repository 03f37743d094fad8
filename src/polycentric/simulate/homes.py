"""What clients keep, where several ranks share them: it stays with the rank that learned it last, its *home*.

    round 1    rank 0 learns a b    rank 1 learns c d        nothing travels
    round 2    rank 0 learns a c    rank 1 learns b d        c goes from 1 to 0, and b from 0 to 1

So private layers, a client's own model or its duals cost no more between ranks than they move. Where the homes are is a
column of what is kept, the same at every rank: a round that fails leaves those of the round before. At other ranks a
row is no number, so that whoever reads it there notices. Whoever is to read all of them gathers them first.

Where centers live with their clients and hear neighbours alone, they have the same homes (`neighbours`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
CENTERS = "(centers)"  # another, where centers are at home, too
EVERYWHERE = -1
Found = TypeVar("Found", bound=Answer | Part)


def spread(state: State, ranks: Ranks, centers: bool = False) -> State:
    """The same state, which all ranks have: from now on rows stay where they are learned; `centers`: theirs, too."""
    if ranks.size == 1 or HOME in state.kept or not (state.kept or centers):
        return state
    n = len(next(iter((state.kept or state.centers).values())))
    columns = {HOME: torch.full((n, 1), EVERYWHERE)} | ({CENTERS: torch.zeros(n, 1)} if centers else {})
    return replace(state, kept=state.kept | columns)


def away(state: State) -> bool:
    """Whether some of what clients keep may be at another rank only."""
    return HOME in state.kept


def centers_away(state: State) -> bool:
    """Whether some centers may be."""
    return CENTERS in state.kept


def home_of(state: State) -> Tensor:
    """(clients,) the rank that has a client's rows, or `EVERYWHERE`."""
    return state.kept[HOME][:, 0]


def kept_in(stacks: Stacks) -> Stacks:
    """What clients keep, without what is noted about it."""
    return {name: stack for name, stack in stacks.items() if name not in (HOME, CENTERS)}


def moves(
    home: Tensor, blocks: Sequence[Cohort], owners: Sequence[int], size: int
) -> Iterator[tuple[int, int, Tensor]]:
    """(from, to, clients): whose rows are to go from one rank to another that learns them."""
    to = torch.full_like(home, EVERYWHERE)
    for block, owner in zip(blocks, owners, strict=True):
        to[block.index] = owner
    for source in range(size):
        for target in range(size):
            clients = ((home == source) & (to == target)).nonzero()[:, 0]
            if source != target and len(clients):
                yield source, target, clients


def brought(kept: Stacks, blocks: Sequence[Cohort], owners: Sequence[int], ranks: Ranks) -> list[Stacks]:
    """What the clients of this rank's blocks keep, block by block; every rank gives away what others are to learn."""
    rows, ours = kept_in(kept), [block for block, owner in zip(blocks, owners, strict=True) if owner == ranks.rank]
    mine = [take(rows, block.index) for block in ours]
    for source, target, clients in moves(kept[HOME][:, 0], blocks, owners, ranks.size) if rows else ():
        parcel = ranks.passed(take(rows, clients) if ranks.rank in (source, target) else {}, source, target)
        at = torch.full((len(kept[HOME]),), -1)
        at[clients] = torch.arange(len(clients))
        for block, there in zip(ours, mine, strict=True) if ranks.rank == target else ():
            some = at[block.index] >= 0
            for name, stack in parcel.items():
                there[name][some.to(stack.device)] = stack[at[block.index][some].to(stack.device)]
    return mine


def centers_brought(state: State, blocks: Sequence[Cohort], owners: Sequence[int], ranks: Ranks) -> None:
    """Centers of clients that this rank is to learn, in their places, where there were no numbers before."""
    for source, target, clients in moves(home_of(state), blocks, owners, ranks.size):
        here = ranks.rank in (source, target)
        parcel = ranks.passed(take(state.centers, clients) if here else {}, source, target)
        for name, stack in parcel.items() if ranks.rank == target else ():
            state.centers[name][clients.to(stack.device)] = stack


def hidden(before: State, after: State, ranks: Ranks) -> None:
    """No numbers in the place of centers that were learned elsewhere."""
    gone = ((home_of(after) != ranks.rank) & (home_of(after) != EVERYWHERE)).nonzero()[:, 0]
    for name, stack in after.centers.items():
        if stack is not before.centers.get(name) and stack.is_floating_point():
            stack[gone.to(stack.device)] = torch.nan


def at_hand(state: State, ranks: Ranks, name: str = "model") -> Tensor:
    """The centers that this rank has."""
    stack = state.centers[name]
    if not centers_away(state):
        return stack
    home = home_of(state)
    return stack[((home == ranks.rank) | (home == EVERYWHERE)).to(stack.device)]


def stays(found: Found, block: Cohort, rows: Stacks, rank: int) -> Found:
    """The answer of a block that this rank has learned, from these rows; what it does not say has stayed as it was."""
    good = torch.isin(block.index, found.block.index)
    as_before = {name: stack for name, stack in rows.items() if name not in found.kept}
    return replace(found, kept=take(as_before, good) | found.kept | {HOME: torch.full((len(found.block), 1), rank)})


def elsewhere(found: Found, kept: Stacks, rank: int) -> Found:
    """The answer of a block that another rank has learned, and whose rows are there."""
    n = len(found.block)
    none = {name: stack.new_full((n, stack.shape[1]), torch.nan) for name, stack in kept_in(kept).items()}
    return replace(found, kept=none | {HOME: torch.full((n, 1), rank)})


def gathered(state: State, ranks: Ranks, wanted: bool = True) -> State:
    """The same state with all rows at every rank, where any rank wants it so."""
    if not away(state) or not ranks.anybody(wanted):
        return state
    home, parts = home_of(state), {"kept": Draft(kept_in(state.kept))}
    parts |= {"centers": Draft(state.centers)} if centers_away(state) else {}
    for source in range(ranks.size):
        theirs: Tensor = (home == source).nonzero()[:, 0]
        if not len(theirs):
            continue
        told = {part: take(draft.stacks, theirs) for part, draft in parts.items()} if ranks.rank == source else {}
        found = ranks.stacks(told, source)
        for part, draft in parts.items() if ranks.rank != source else ():
            draft.write(theirs, found[part])
    whole = {part: draft.stacks for part, draft in parts.items()}
    return replace(state, kept=whole["kept"], centers=whole.get("centers", state.centers))
