"""All rows at once, some columns at a time: what must see every row is done beside each other by several threads.

    each(work, pieces(rows), rows)         work(piece) of every piece of the columns, in their order

A median, a graph, the inner products of all clients: no block can be mixed by itself, but every piece of the width can.
Pieces depend on shapes alone, one thread does one piece, and what pieces come to is put together in their order: the
same bits, however many threads there are. There is one, unless somebody says that cores are free (`beside`); threads
end with the call that they are for, so nothing of them is left where a process is copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Spans = tuple[tuple[int, int], ...] | None  # (first, last) columns of a row; None: all
Part = TypeVar("Part")
Found = TypeVar("Found")

NUMBERS = {"cpu": 1 << 20, "cuda": 1 << 26}  # of all rows in a piece: what a core's cache holds, or fills a GPU
LEAST, MOST = 1 << 9, {"cpu": 1 << 13, "cuda": 1 << 18}  # columns in a piece
LARGE = 1 << 20  # numbers from which threads are worth starting
TOGETHER = 1024  # rows of which every piece may have its own products of every two: 8 MB each
TILE = 64  # rows whose products with others are made at once

_threads: ContextVar[int] = ContextVar("threads", default=1)


@contextmanager
def beside(threads: int) -> Iterator[None]:
    """Within it, up to so many threads do pieces beside each other; each uses one thread for its arithmetic."""
    before = _threads.set(threads)
    try:
        yield
    finally:
        _threads.reset(before)


def pieces(rows: Tensor, columns: Spans = None) -> list[slice]:
    """All columns of rows (n, width), or some spans of them, cut by the shape alone.

    >>> pieces(torch.empty(10_000, 1200))
    [slice(0, 512, None), slice(512, 1024, None), slice(1024, 1200, None)]
    """
    (n, width), kind = rows.shape, rows.device.type if rows.device.type in MOST else "cpu"
    step = max(LEAST, min(MOST[kind], NUMBERS[kind] // max(n, 1) // LEAST * LEAST))
    spans = ((0, width),) if columns is None else columns
    return [slice(at, min(at + step, last)) for first, last in spans for at in range(first, last, step)]


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
    found = list(each(lambda piece: rule(rows[:, piece]), pieces(rows), rows))
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

    def add(part: Tensor, to: Tensor, tile: slice) -> None:
        to[tile, tile.start :].addmm_(part[tile], part[tile.start :].T)

    def alone(piece: slice) -> Tensor:
        part, mine = moved(piece), torch.zeros_like(out)
        for tile in tiles:
            add(part, mine, tile)
        return mine

    every = pieces(rows, columns)
    if n <= TOGETHER:
        for mine in each(alone, every, rows):
            out += mine
    else:  # many rows: no second matrix of all pairs
        for piece in every:
            part = moved(piece)
            for _ in each(lambda tile, part=part: add(part, out, tile), tiles, rows):  # type: ignore[misc]
                pass
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
        return own[:, None] - 2 * a @ b.T + b.square().sum(1)

    out = torch.zeros(len(rows), len(centers), dtype=torch.float64, device=rows.device)
    for found in each(part, pieces(rows, columns), rows):
        out += found
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
