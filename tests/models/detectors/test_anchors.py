"""Anchors: how many, where, in which order, of which size."""

from __future__ import annotations

import pytest
import torch

from polycentric.models.detectors.anchors import anchors, cells
from polycentric.models.detectors.boxes import centred


@pytest.mark.parametrize(("height", "width", "n"), [(144, 176, 1575), (288, 352, 6237), (96, 128, 756), (64, 64, 252)])
def test_number(height: int, width: int, n: int) -> None:
    boxes, steps = anchors(height, width, (8, 16, 32))
    assert boxes.shape == (n, 4) and steps.shape == (n, 2)


def test_cells_round_up() -> None:
    assert cells(144, 176, 32) == (5, 6)
    assert cells(65, 64, 8) == (9, 8)


def test_places_and_sizes_by_hand() -> None:
    boxes, steps = anchors(64, 128, (32,), ratios=(1.0, 4.0))
    centre, sides = centred(boxes * torch.tensor([128, 64, 128, 64]))  # in pixels
    assert centre[:4].tolist() == [[16, 16], [16, 16], [48, 16], [48, 16]]  # columns, then ratios
    assert centre[8].tolist() == [16, 48]  # the second row of four columns with two ratios
    assert sides[:2].tolist() == [[64, 64], [128, 32]]
    assert steps[0].tolist() == [32 / 128, 32 / 64]


def test_every_point_of_an_image_is_in_one_cell_of_every_scale() -> None:
    boxes, steps = anchors(100, 70, (8, 16, 32), ratios=(1.0,))
    at, _ = centred(boxes)
    for point in torch.rand(50, 2, generator=torch.Generator().manual_seed(0)):
        inside = (((point - at) / steps >= -0.5) & ((point - at) / steps < 0.5)).all(-1)
        assert int(inside.sum()) == 3
