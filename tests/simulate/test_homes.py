"""What clients keep stays with the rank that learned it last: rows are the newest, and only those that move travel."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import given, settings, strategies as st

from polycentric.method import State
from polycentric.parts.answer import Answer
from polycentric.simulate.homes import HOME, away, brought, elsewhere, gathered, spread, stays
from polycentric.simulate.ranks import ALONE
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.stack import Draft, Stacks

N, SIZE = 7, 3
WRITTEN = ("private",)  # what answers say of what is kept; the rest stays as it was


@dataclass
class Rank:
    """One of several threads that talk as ranks do."""

    rank: int
    lines: dict[tuple[int, int], queue.Queue[Stacks]]
    size: int = SIZE
    received: list[int] = field(default_factory=list)

    def passed(self, rows: Stacks, source: int, target: int) -> Stacks:
        line = self.lines[source, target]
        if self.rank == source:
            line.put({name: stack.clone() for name, stack in rows.items()})
        if self.rank != target:
            return rows
        found = line.get(timeout=5)
        assert {n: s.shape for n, s in found.items()} == {n: s.shape for n, s in rows.items()}
        self.received.append(len(next(iter(found.values()))))
        return found

    def anybody(self, mine: bool) -> bool:
        """All want the same here."""
        return mine

    def stacks(self, parts: dict[str, Stacks], source: int) -> dict[str, Stacks]:
        for target in range(self.size):
            if source != target and self.rank == source:
                self.lines[source, target].put(parts["kept"])
        return parts if self.rank == source else {"kept": self.lines[source, self.rank].get(timeout=20)}


def at_all(do: Callable[[Any], object]) -> list[Any]:
    """What every rank makes of it, all at the same time."""
    lines: dict[tuple[int, int], queue.Queue[Stacks]] = {
        (a, b): queue.Queue() for a in range(SIZE) for b in range(SIZE)
    }
    found: list[Any] = [None] * SIZE

    def one(rank: int) -> None:
        try:
            found[rank] = do(Rank(rank, lines))
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found


def cohort(*index: int) -> Cohort:
    who = torch.tensor(index, dtype=torch.int64)
    return Cohort(who, torch.ones_like(who), torch.ones(len(who)).double(), N, 0, 0)


def begun() -> State:
    rows = torch.arange(N * 2.0).view(N, 2)
    return State({}, {"private": rows, "waits": rows[:, :1].clone()}, {})


# rounds of (blocks of clients, who learns each block, and which blocks' answers are lost)
plans = st.lists(
    st.permutations(range(N)).flatmap(
        lambda order: st.tuples(
            st.just(order),
            st.integers(1, N),
            st.integers(1, 3),
            st.lists(st.integers(0, SIZE - 1), min_size=N, max_size=N),
            st.lists(st.booleans(), min_size=N, max_size=N),
        )
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=30, deadline=None)
@given(plans)
def test_everybody_is_learned_from_the_newest_row_and_only_rows_that_move_travel(plan: Any) -> None:
    truth, home = begun().kept["private"].clone(), [-1] * N
    moves = []
    for order, many, width, owners, lost in plan:  # what one process would come to: every learned row grows by its rank
        blocks = [order[k : k + width] for k in range(0, many, width)]
        for block, owner, gone in zip(blocks, owners, lost, strict=False):
            moves += [(home[client], owner) for client in block if home[client] not in (-1, owner)]
            for client in () if gone else block:
                truth[client] += 1 + owner
                home[client] = owner

    def run(ranks: Any) -> tuple[State, list[int]]:
        state = spread(begun(), ranks)
        for order, many, width, owners, lost in plan:
            blocks = [cohort(*order[k : k + width]) for k in range(0, many, width)]
            owners = owners[: len(blocks)]
            rows, draft = iter(brought(state.kept, blocks, owners, ranks)), Draft(state.kept)
            for block, owner, gone in zip(blocks, owners, lost, strict=False):
                mine = next(rows) if owner == ranks.rank else {}
                grown = {name: stack + 1 + owner for name, stack in mine.items() if name in WRITTEN}
                answer = Answer(block[:0] if gone else block, {}, {n: s[:0] if gone else s for n, s in grown.items()})
                found = stays(answer, block, mine, owner) if mine else elsewhere(answer, state.kept, owner)
                draft.write(found.block.index, found.kept)
            state = replace(state, kept=draft.stacks)
        for client, there in enumerate(home):  # what is elsewhere is no number
            assert bool(state.kept["private"][client].isnan().all()) == (there not in (-1, ranks.rank))
        return gathered(state, ranks), ranks.received

    found = at_all(run)
    for state, _ in found:
        assert torch.equal(state.kept["private"], truth) and torch.equal(state.kept["waits"], begun().kept["waits"])
        assert not away(state)
    for rank, (_, received) in enumerate(found):
        assert sum(received) == sum(target == rank for _, target in moves)


def test_one_process_and_methods_that_keep_nothing_have_no_homes() -> None:
    state = begun()
    assert spread(state, ALONE) is state and gathered(state, ALONE) is state and not away(state)
    nothing = State({}, {}, {})
    assert spread(nothing, Rank(0, {})) is nothing  # type: ignore[arg-type]
    assert HOME in spread(state, Rank(0, {})).kept  # type: ignore[arg-type]
