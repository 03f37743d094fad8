"""All rows at once, some columns at a time: what must see every row is done beside each other by several threads.

    each(work, pieces(rows), rows)         work(piece) of every piece of the columns, in their order

A median, a graph, the inner products of all clients: no block can be mixed by itself, but every piece of the width can.
Pieces depend on shapes alone, one thread does one piece, and what pieces come to is put together in their order: the
same bits, however many threads there are. There is one, unless somebody says that cores are free (`beside`); threads
end with the call that they are for, so nothing of them is left where a process is copied.

Several processes may have some columns of the rows each (`shared`). What is done column by column is done to those that
are here; what is added up over the columns (inner products, lengths, distances) is added up over all of them, in their
order: in at most UNITS *units* of columns, which one process has whole. Again the same bits, however many processes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

Spans = tuple[tuple[int, int], ...] | None  # (first, last) columns of a row; None: all
Part = TypeVar("Part")
Found = TypeVar("Found")

NUMBERS = {"cpu": 1 << 20, "cuda": 1 << 26}  # of all rows in a piece: what a core's cache holds, or fills a GPU
LEAST, MOST = 1 << 9, {"cpu": 1 << 12, "cuda": 1 << 18}  # columns in a piece; a unit has so many, or a multiple
UNITS = 32  # of all columns: each may have products of every two rows of its own
LARGE = 1 << 20  # numbers from which threads are worth starting
TOGETHER = 1024  # rows of which every piece may have its own products of every two: 8 MB each
TILE = 64  # rows whose products with others are made at once
STAGE = 4  # tiles that a process finishes before the next one goes on with them


class Columns(Protocol):
    """Which columns of all rows are in this process."""

    def width(self, rows: Tensor) -> int:
        """How many columns rows have, of which these are here."""

    def here(self, rows: Tensor) -> Tensor:
        """Those columns of rows (..., width)."""

    def together(self, rows: Tensor) -> Tensor:
        """All columns of rows of which every process has its own, (..., width)."""

    def in_turn(self, total: Tensor, stages: Sequence[tuple[slice, Callable[[], None]]]) -> None:
        """Have every process add its share to a total, in the order of the columns; all have it in the end.

        `stages`: rows of the total, one after another, and what adds to them.
        """


class AllColumns(Columns):
    """All of them."""

    def width(self, rows: Tensor) -> int:
        """As many as there are."""
        return rows.shape[1]

    def here(self, rows: Tensor) -> Tensor:
        """The rows."""
        return rows

    def together(self, rows: Tensor) -> Tensor:
        """The rows."""
        return rows

    def in_turn(self, total: Tensor, stages: Sequence[tuple[slice, Callable[[], None]]]) -> None:
        """Added at once."""
        for _, add in stages:
            add()


EVERY = AllColumns()

_threads: ContextVar[int] = ContextVar("threads", default=1)
_columns: ContextVar[Columns] = ContextVar("columns", default=EVERY)


@contextmanager
def beside(threads: int) -> Iterator[None]:
    """Within it, up to so many threads do pieces beside each other; each uses one thread for its arithmetic."""
    before = _threads.set(threads)
    try:
        yield
    finally:
        _threads.reset(before)


@contextmanager
def shared(columns: Columns) -> Iterator[None]:
    """Within it, all rows that are seen have only those columns here; others are in other processes."""
    before = _columns.set(columns)
    try:
        yield
    finally:
        _columns.reset(before)


def pieces(rows: Tensor, columns: Spans = None) -> list[slice]:
    """All columns of rows (n, width), or some spans of them, cut by the shape alone: 512, 1024, ... each.

    >>> pieces(torch.empty(10_000, 1200))
    [slice(0, 512, None), slice(512, 1024, None), slice(1024, 1200, None)]
    """
    (n, width), kind = rows.shape, _kind(rows)
    most = NUMBERS[kind] // max(n, 1) // LEAST
    step = min(MOST[kind], LEAST << max(most.bit_length() - 1, 0))
    spans = ((0, width),) if columns is None else columns
    return [slice(at, min(at + step, last)) for first, last in spans for at in range(first, last, step)]


def unit_of(width: int, kind: str) -> int:
    """Columns in a unit.

    >>> unit_of(100_000, "cpu"), unit_of(10_000_000, "cpu")
    (4096, 315392)
    """
    most = MOST[kind if kind in MOST else "cpu"]
    return most * max(1, -(-width // (UNITS * most)))


def units(rows: Tensor, columns: Spans = None) -> list[list[slice]]:
    """The pieces of every unit: of some spans, each begins anew."""
    unit, found = unit_of(_columns.get().width(rows), _kind(rows)), dict[tuple[int, int], list[slice]]()
    spans = ((0, rows.shape[1]),) if columns is None else columns
    for k, span in enumerate(spans):
        for piece in pieces(rows, (span,)):
            found.setdefault((k, (piece.start - span[0]) // unit), []).append(piece)
    return list(found.values())


def _kind(rows: Tensor) -> str:
    return rows.device.type if rows.device.type in MOST else "cpu"


def each(work: Callable[[Part], Found], parts: Sequence[Part], of: Tensor) -> Iterator[Found]:
    """What a function makes of every part of some rows, in their order; few results are held at a time."""
    threads = min(_threads.get(), len(parts)) if of.numel() >= LARGE else 1
    if threads <= 1:
        yield from map(work, parts)
        return
    waiting: deque[Future[Found]] = deque()
    with ThreadPoolExecutor(threads, "columns", initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for part in parts:
            waiting.append(pool.submit(work, part))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def put(out: Tensor, work: Callable[[slice], Tensor], of: Tensor | None = None) -> Tensor:
    """Fill the columns of rows (n, width), a piece at a time; pieces are those of the rows that the work reads."""

    def fill(piece: slice) -> None:
        out[:, piece] = work(piece)

    of = out if of is None else of
    for _ in each(fill, pieces(of), of):
        pass
    return out


def by_columns(rows: Tensor, rule: Callable[[Tensor], Tensor]) -> Tensor:
    """A rule that makes one number of every column of some, (n, columns), at all columns: (width,)."""
    # In memory of their own: torch adds up a single column in another order where it has neighbours.
    found = list(each(lambda piece: rule(rows[:, piece].contiguous()), pieces(rows), rows))
    return torch.cat(found) if found else rows[0]


def in_order(rows: Tensor) -> Tensor:
    """Every column's numbers in rising order, (n, columns).

    Numpy orders short rows that lie in memory end to end by vector instructions, fifty times as fast as torch does the
    columns of a few hundred rows.
    """
    across = rows.detach().T.clone(memory_format=torch.contiguous_format)
    if across.device.type == "cpu" and across.dtype in (torch.float32, torch.float64):
        np.ndarray.sort(across.numpy(), axis=1)
        return across.T
    return across.sort(1).values.T


def middle(rows: Tensor) -> Tensor:
    """The two middle numbers of every column, (2, columns); where n is odd they are one."""
    return in_order(rows)[[(len(rows) - 1) // 2, len(rows) // 2]]


def added_up(total: Tensor, parts: Iterator[Tensor]) -> Tensor:
    """Parts of the columns added to a total, in place and in their order; where others have columns, theirs too."""
    columns = _columns.get()
    if columns is not EVERY:
        parts = iter(list(parts))  # before anybody is waited for

    def add() -> None:
        for part in parts:
            total.add_(part)

    columns.in_turn(total, [(slice(None), add)])
    return total


def lengths(rows: Tensor, origin: Tensor) -> Tensor:
    """How far every row is from an origin (width,): (n,) float64."""

    def part(piece: slice) -> Tensor:
        away = rows[:, piece].to(torch.float64, copy=True).sub_(origin[piece].double())
        return torch.linalg.vecdot(away, away)  # type: ignore[no-any-return]

    return added_up(rows.new_zeros(len(rows), dtype=torch.float64), each(part, pieces(rows), rows)).sqrt()


def inner_products(rows: Tensor, columns: Spans = None, origin: Tensor | None = None) -> Tensor:
    """X X^T of rows less an origin (width,), by default their mean; float64 on the host, over pieces of the width.

    Every two are multiplied once: (i, j) and (j, i) are the same bits.
    """
    n = len(rows)
    out = torch.zeros(n, n, dtype=torch.float64, device=rows.device)
    step = TILE if rows.device.type == "cpu" else max(n, 1)
    tiles = [slice(at, min(at + step, n)) for at in range(0, n, step)]

    def moved(piece: slice) -> Tensor:
        part = rows[:, piece].to(torch.float64, copy=True)
        part -= part.mean(0) if origin is None else origin[piece].double()
        return part

    def add(to: Tensor, part: Tensor, tile: slice) -> None:
        to[tile, tile.start :].addmm_(part[tile], part[tile.start :].T)

    def alone(unit: list[slice]) -> Tensor:
        mine = torch.zeros_like(out)
        for piece in unit:
            part = moved(piece)
            for tile in tiles:
                add(mine, part, tile)
        return mine

    def one_by_one(some: list[slice]) -> None:  # many rows: no second matrix of all pairs
        for piece in pieces(rows, columns):
            for _ in each(partial(add, out, moved(piece)), some, rows):
                pass

    if n <= TOGETHER:
        added_up(out, each(alone, units(rows, columns), rows))
    else:
        many = len(tiles) if _columns.get() is EVERY else STAGE
        stages = [tiles[at : at + many] for at in range(0, len(tiles), many)]
        _columns.get().in_turn(
            out, [(slice(some[0].start, some[-1].stop), partial(one_by_one, some)) for some in stages]
        )
    for tile in tiles:
        out[tile, tile].triu_().add_(out[tile, tile].triu(1).T)
        out[tile.stop :, tile] = out[tile, tile.stop :].T
    return out.cpu()


def squared_distances(rows: Tensor, centers: Tensor, columns: Spans = None) -> Tensor:
    """Squared distances (rows, centers), without ever forming rows x centers x width.

    |a - b|^2 = |a|^2 - 2 a.b + |b|^2 cancels badly when both are far from the origin and near each other, so
    everything is moved to the middle of the centers first; sums run in float64 over pieces of the width.
    """

    def part(piece: slice) -> Tensor:
        b = centers[:, piece].double()
        middle = b.mean(0)
        a, b = rows[:, piece].to(torch.float64, copy=True).sub_(middle), b - middle
        own: Tensor = torch.linalg.vecdot(a, a)
        return own[:, None] - a @ (2 * b).T + b.square().sum(1)  # few centers are doubled, not many rows: the same bits

    out = torch.zeros(len(rows), len(centers), dtype=torch.float64, device=rows.device)
    added_up(out, each(part, pieces(rows, columns), rows))
    return out.clamp_(min=0).nan_to_num_(nan=torch.inf, posinf=torch.inf)  # what overflows is far away


def squares_between(rows: Tensor) -> Tensor:
    """Squared distances of every two rows (n, n), float64; zero on the diagonal.

    Rows are moved to the middle of every column, where no row that is far out takes the digits of the others.
    """
    origin = by_columns(rows, lambda part: middle(part)[0])
    products = inner_products(rows, origin=origin).to(rows.device)
    own = products.diagonal()
    squares = (own[:, None] + own - 2 * products).clamp_(min=0).nan_to_num_(nan=torch.inf, posinf=torch.inf)
    return squares.fill_diagonal_(0)
