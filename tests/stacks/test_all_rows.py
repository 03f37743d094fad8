"""Columns beside each other: the bits of one thread, whatever the pieces; sums and orders that are what they say."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, strategies as st

from polycentric import GeometricMedian, Krum, Mean, Median, TrimmedMean
from polycentric.parts.before_rule import NearestNeighbours
from polycentric.stacks import Mixing, all_rows
from polycentric.stacks.all_rows import (
    beside,
    by_columns,
    each,
    in_order,
    inner_products,
    middle,
    pieces,
    put,
    squared_distances,
    squares_between,
)
from support import random


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pieces of a few columns."""
    monkeypatch.setattr(all_rows, "LEAST", 4)
    monkeypatch.setattr(all_rows, "LARGE", 0)
    monkeypatch.setitem(all_rows.MOST, "cpu", 8)
    monkeypatch.setattr(all_rows, "TILE", 3)
    yield


MANY = torch.empty(1).expand(all_rows.LARGE)
RING = torch.arange(9)
ALL = {
    "median": Median().of,
    "trimmed": TrimmedMean(0.2).of,
    "krum": Krum().of,
    "geometric": GeometricMedian().of,
    "neighbours": NearestNeighbours(attackers=0.3).of,
    "products": inner_products,
    "squares": squares_between,
    "distances": lambda rows: squared_distances(rows, rows[:3]),
    "graph": lambda rows: Mixing.sparse(RING, (RING + 1) % 9, torch.full((9,), 0.4), (9, 9), rest="keep").product(rows),
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.usefixtures("small")
def test_any_number_of_threads_gives_the_bits_of_one(name: str) -> None:
    rows = random(0, 9, 61).float()
    one = ALL[name](rows)
    for threads in (2, 5, 40):
        with beside(threads):
            assert torch.equal(ALL[name](rows), one)


@pytest.mark.parametrize("rest", ["keep", "share", "none"])
@pytest.mark.usefixtures("small")
def test_a_mean_is_settled_by_any_number_of_threads(rest: str) -> None:
    rows, own, rule = random(0, 9, 61).float(), random(1, 9, 61).float(), Mean()
    up = Mixing.sparse(RING[:7], RING[:7] + 1, torch.full((7,), 0.25), (9, 9), rest=rest)  # type: ignore[arg-type]
    found = []
    for threads in (1, 4):
        with beside(threads):
            total = rule.start(up, own)
            rule.add(total, rule.part(up, rows))
            rule.add(total, rule.part(up, rows))
            found.append(rule.settle(total, own))
    assert torch.equal(found[0].values, found[1].values) and torch.equal(found[0].mask, found[1].mask)
    kept = {"keep": 0.5, "share": 0.0, "none": 0.0}[rest] * own[0].double()
    heard = {"keep": 0.5, "share": 1.0, "none": 0.5}[rest] * rows[1].double()
    torch.testing.assert_close(found[0].values[0], (kept + heard).float())
    alone = torch.zeros(61) if rest == "none" else own[8]  # who heard nobody
    torch.testing.assert_close(found[0].values[8], alone)


@given(st.integers(1, 3000), st.integers(0, 40_000))
def test_pieces_are_all_columns_once_and_in_order(n: int, width: int) -> None:
    found = pieces(torch.empty(1, 1).expand(n, width))
    assert [k for piece in found for k in range(piece.start, piece.stop)] == list(range(width))


def test_pieces_of_spans_leave_out_the_rest() -> None:
    found = pieces(torch.empty(2, 30_000), ((3, 5), (100, 20_000)))
    assert [k for piece in found for k in range(piece.start, piece.stop)] == [3, 4, *range(100, 20_000)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(7, 5), (8, 5), (1, 4), (6, 1), (1, 1), (300, 40)])
def test_columns_in_order_are_sorted_and_rows_stay_as_they_were(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    rows = random(3, *shape).to(dtype)
    before = rows.clone()
    assert torch.equal(in_order(rows), before.sort(0).values) and torch.equal(rows, before)
    low, high = middle(rows)
    assert torch.equal(low, before.median(0).values) and torch.equal(high, -(-before).median(0).values)


def test_a_slice_of_rows_is_put_in_order_like_a_copy() -> None:
    rows = random(3, 20, 50).float()
    assert torch.equal(in_order(rows[::2, 7:19]), rows[::2, 7:19].clone().sort(0).values)


@pytest.mark.parametrize("together", [1, 1024])
@pytest.mark.usefixtures("small")
def test_inner_products_are_products_and_symmetric(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_rows, "TOGETHER", together)
    rows = random(1, 11, 37)
    away = rows - rows.mean(0)
    for threads in (1, 3):
        with beside(threads):
            found = inner_products(rows)
            torch.testing.assert_close(found, away @ away.T)
            assert torch.equal(found, found.T)
            some = inner_products(rows, columns=((2, 9), (20, 21)), origin=torch.ones(37))
            moved = (rows - 1)[:, [*range(2, 9), 20]]
            torch.testing.assert_close(some, moved @ moved.T)


def test_a_row_far_out_takes_no_digits_of_distances_between_others() -> None:
    rows = random(2, 30, 6) + 1e6
    rows[4] = 1e14
    found, others = squares_between(rows), [k for k in range(30) if k != 4]
    plain = torch.cdist(rows[others], rows[others], compute_mode="donot_use_mm_for_euclid_dist").square()
    torch.testing.assert_close(found[others][:, others], plain, rtol=1e-6, atol=1e-6)
    assert not found.diagonal().any() and bool((found >= 0).all())


def test_what_is_too_far_for_a_square_is_infinitely_far() -> None:
    found = squares_between(torch.tensor([[0.0, 1.0], [1e200, 0.0], [0.0, 2.0]], dtype=torch.float64))
    assert found[0, 1] == torch.inf and found[0, 2] == 1 and not found.diagonal().any()


def test_results_come_in_order_few_are_held_and_threads_end() -> None:
    held, most, lock = 0, 0, threading.Lock()
    before = threading.active_count()

    def work(k: int) -> int:
        nonlocal held, most
        with lock:
            held += 1
            most = max(most, held)
        time.sleep(0.001 * (k % 3))
        return k

    with beside(3):
        for k, found in enumerate(each(work, range(40), MANY)):
            assert found == k
            with lock:
                held -= 1
    assert 1 < most <= 6
    assert threading.active_count() == before


def test_an_error_of_a_piece_is_everybodys_and_no_thread_is_left() -> None:
    def work(k: int) -> int:
        if k == 5:
            raise ValueError("five")
        return k

    before = threading.active_count()
    with beside(3), pytest.raises(ValueError, match="five"):
        list(each(work, range(20), MANY))
    assert threading.active_count() == before


def test_threads_are_for_who_asks_for_them() -> None:
    names = set[str]()
    list(each(lambda _: names.add(threading.current_thread().name), range(3), MANY))
    with beside(2):
        list(each(lambda _: names.add(threading.current_thread().name), range(1), MANY))  # one piece needs nobody
        list(each(lambda _: names.add(threading.current_thread().name), range(3), MANY[:9]))  # nor do a few numbers
    assert names == {threading.current_thread().name}


def test_rows_without_columns() -> None:
    rows = torch.zeros(3, 0)
    assert by_columns(rows, lambda part: part.sum(0)).shape == (0,)
    assert put(torch.zeros(3, 0), lambda piece: rows[:, piece]).shape == (3, 0)
    assert torch.equal(inner_products(rows), torch.zeros(3, 3, dtype=torch.float64))
