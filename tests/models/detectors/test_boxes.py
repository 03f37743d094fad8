"""Boxes: areas, overlaps, suppression and offsets, by hand and by law."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torch.func import vmap

from polycentric.models.detectors.boxes import area, decode, encode, iou, nms

side = st.floats(0.01, 1.0)
place = st.floats(0.0, 1.0)


@st.composite
def boxes(draw: st.DrawFn, most: int = 8) -> Tensor:
    n = draw(st.integers(1, most))
    rows = [[draw(place), draw(place), draw(side), draw(side)] for _ in range(n)]
    corner = torch.tensor(rows, dtype=torch.float64)
    return torch.cat([corner[:, :2], corner[:, :2] + corner[:, 2:]], 1)


def box(*corners: float) -> Tensor:
    return torch.tensor([corners], dtype=torch.float64)


def test_area_by_hand() -> None:
    assert area(box(0.1, 0.2, 0.5, 0.7)).item() == pytest.approx(0.2)
    assert area(box(0.5, 0.2, 0.1, 0.7)).item() == 0  # ends exchanged
    assert area(torch.zeros(2, 3, 4)).shape == (2, 3)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((0, 0, 2, 2), (1, 1, 3, 3), 1 / 7),
        ((0, 0, 2, 2), (0, 0, 2, 1), 1 / 2),
        ((0, 0, 1, 1), (1, 0, 2, 1), 0),  # they touch
        ((0, 0, 1, 1), (2, 2, 3, 3), 0),
        ((0, 0, 4, 4), (1, 1, 2, 2), 1 / 16),
        ((1, 1, 1, 1), (1, 1, 1, 1), 0),  # of no area
    ],
)
def test_iou_by_hand(a: tuple[float, ...], b: tuple[float, ...], expected: float) -> None:
    assert iou(box(*a), box(*b)).item() == pytest.approx(expected)


@given(boxes(), boxes())
def test_iou_is_symmetric_and_one_with_itself(a: Tensor, b: Tensor) -> None:
    found = iou(a, b)
    assert found.shape == (len(a), len(b))
    assert bool(((found >= 0) & (found <= 1 + 1e-12)).all())
    assert torch.equal(found, iou(b, a).T)
    assert torch.allclose(iou(a, a).diagonal(), torch.ones(len(a), dtype=torch.float64))


def test_iou_is_batched() -> None:
    a, b = torch.rand(2, 3, 5, 4), torch.rand(2, 3, 7, 4)
    assert iou(a, b).shape == (2, 3, 5, 7)
    assert torch.equal(iou(a, b)[1, 2], iou(a[1, 2], b[1, 2]))
    assert torch.equal(vmap(iou)(a, b), iou(a, b))


# Three boxes in a row, each of IoU 1/3 with its neighbours, and one apart.
ROW = torch.tensor([[0, 0, 2, 1], [1, 0, 3, 1], [2, 0, 4, 1], [9, 9, 10, 10]], dtype=torch.float64)


def test_nms_by_hand() -> None:
    scores = torch.tensor([0.9, 0.8, 0.7, 0.1])
    # The second goes because of the first; it cannot make the third go any more.
    assert nms(ROW, scores, 0.3).tolist() == [True, False, True, True]
    assert nms(ROW, scores, 0.34).tolist() == [True] * 4
    assert nms(ROW, torch.tensor([0.7, 0.8, 0.7, 0.1]), 0.3).tolist() == [False, True, False, True]


def test_nms_exactly_at_the_threshold_stays() -> None:
    halves = torch.tensor([[0, 0, 2, 2], [0, 0, 2, 1]], dtype=torch.float64)
    assert nms(halves, torch.tensor([0.9, 0.8]), 0.5).tolist() == [True, True]


def test_nms_of_equal_scores_keeps_the_first() -> None:
    same = ROW[:1].expand(4, 4)
    assert nms(same, torch.ones(4), 0.5).tolist() == [True, False, False, False]


def test_nms_within_classes() -> None:
    same, scores = ROW[:1].expand(4, 4), torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert nms(same, scores, 0.5, torch.tensor([0, 1, 0, 1])).tolist() == [False, False, True, True]


def _slow_nms(boxes: Tensor, scores: list[float], threshold: float) -> list[bool]:
    stays: list[int] = []
    for i in sorted(range(len(boxes)), key=lambda i: (-scores[i], i)):
        if all(iou(boxes[i : i + 1], boxes[j : j + 1]).item() <= threshold for j in stays):
            stays.append(i)
    return [i in stays for i in range(len(boxes))]


@given(boxes(), st.lists(st.sampled_from([0.1, 0.2, 0.5, 0.9]), min_size=8, max_size=8), st.floats(0, 1))
def test_nms_is_greedy_and_idempotent(rows: Tensor, scores: list[float], threshold: float) -> None:
    own = torch.tensor(scores[: len(rows)])
    stays = nms(rows, own, threshold)
    assert stays.tolist() == _slow_nms(rows, scores[: len(rows)], threshold)
    assert bool(nms(rows[stays], own[stays], threshold).all())


def test_nms_is_batched() -> None:
    generator = torch.Generator().manual_seed(0)
    corner = torch.rand(6, 9, 2, generator=generator)
    rows = torch.cat([corner, corner + torch.rand(6, 9, 2, generator=generator)], -1)
    scores, classes = torch.rand(6, 9, generator=generator), torch.randint(2, (6, 9), generator=generator)
    together = nms(rows, scores, 0.2, classes)
    assert torch.equal(together, torch.stack([nms(rows[i], scores[i], 0.2, classes[i]) for i in range(6)]))
    assert torch.equal(together, vmap(lambda b, s, c: nms(b, s, 0.2, c))(rows, scores, classes))
    assert not together.all()


def test_offsets_by_hand() -> None:
    anchor, moved = box(0, 0, 2, 4), box(1, 1, 5, 3)
    expected = torch.tensor([[(3 - 1) / 2, (2 - 2) / 4, math.log(4 / 2), math.log(2 / 4)]], dtype=torch.float64)
    assert torch.allclose(encode(moved, anchor), expected)


@given(boxes(), boxes())
def test_decode_undoes_encode(a: Tensor, b: Tensor) -> None:
    n = min(len(a), len(b))
    assert torch.allclose(decode(encode(a[:n], b[:n]), b[:n]), a[:n], atol=1e-9)
    assert torch.equal(encode(b, b), torch.zeros_like(b))


def test_wild_offsets_and_empty_boxes_stay_finite() -> None:
    assert bool(decode(torch.full((1, 4), 1e4), torch.rand(1, 4)).isfinite().all())
    assert bool(encode(torch.zeros(1, 4), torch.tensor([[0.0, 0.0, 1.0, 1.0]])).isfinite().all())
