"""Faster R-CNN: RoIAlign and the loss against slow ones, and proposals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from polycentric.models.detectors import FasterRCNN
from polycentric.models.detectors.boxes import encode, iou
from polycentric.models.detectors.faster_rcnn import roi_align, smooth_l1

from .scenes import CLASSES, SHAPE, scenes


def small() -> FasterRCNN:
    torch.manual_seed(0)
    return FasterRCNN(SHAPE, CLASSES, width=4).double()


def _between(grid: list[list[float]], row: float, column: float) -> float:
    """The value of a grid at a place measured in cells, whose middles are at .5, 1.5, ..."""
    y = min(max(row - 0.5, 0), len(grid) - 1)
    x = min(max(column - 0.5, 0), len(grid[0]) - 1)
    top, left = math.floor(y), math.floor(x)
    below, right = min(top + 1, len(grid) - 1), min(left + 1, len(grid[0]) - 1)
    upper = grid[top][left] * (1 - (x - left)) + grid[top][right] * (x - left)
    lower = grid[below][left] * (1 - (x - left)) + grid[below][right] * (x - left)
    return upper * (1 - (y - top)) + lower * (y - top)


@pytest.mark.parametrize("extent", [(1.0, 1.0), (1.1, 1.2)])
def test_roi_align_equals_the_slow_one(extent: tuple[float, float]) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 3, 5, 6, generator=generator).double()
    corner = torch.rand(2, 4, 2, generator=generator).double() * 0.8
    boxes = torch.cat([corner, (corner + 0.5).clamp(max=1)], -1)
    boxes[0, 0] = torch.tensor([0, 0, 1, 1])
    boxes[1, 1] = torch.tensor([0.3, 0.3, 0.3, 0.3])  # of no area
    found = roi_align(features, boxes, torch.tensor(extent).double(), bins=3, samples=2)
    assert found.shape == (2, 4, 3, 3, 3)
    for n in range(2):
        for r, (x0, y0, x1, y1) in enumerate(boxes[n].tolist()):
            for channel in range(3):
                grid = features[n, channel].tolist()
                for i in range(3):
                    for j in range(3):
                        places = [
                            (y0 + (2 * i + a + 0.5) / 6 * (y1 - y0), x0 + (2 * j + b + 0.5) / 6 * (x1 - x0))
                            for a in range(2)
                            for b in range(2)
                        ]
                        values = [_between(grid, y / extent[1] * 5, x / extent[0] * 6) for y, x in places]
                        assert found[n, r, channel, i, j].item() == pytest.approx(sum(values) / 4, abs=1e-6)


def test_roi_align_of_a_slope_is_the_place() -> None:
    columns = torch.arange(8).double().expand(1, 1, 8, 8) + 0.5  # the value of a cell is where its middle is
    boxes = torch.tensor([[[0.25, 0.25, 0.75, 0.5]]]).double()
    found = roi_align(columns, boxes, torch.ones(2).double(), bins=2)
    assert found[0, 0, 0].tolist() == [pytest.approx([3, 5]), pytest.approx([3, 5])]


def test_smooth_l1_by_hand() -> None:
    assert smooth_l1(torch.tensor([0.5, -2.0, 0.0, 0.0]), 1.0).item() == pytest.approx(0.125 + 1.5)
    assert smooth_l1(torch.tensor([0.1, -2.0, 0.0, 0.0]), 3.0).item() == pytest.approx(0.045 + 2 - 1 / 18)


def test_proposals_are_the_best_that_do_not_overlap() -> None:
    model = small()
    first = torch.zeros(1, len(model.anchors), 5).double()
    first[0, :, 0] = -5
    first[0, 76, 0], first[0, 200, 0] = 3, 4  # boxes are the anchors
    regions, present = model.proposals(first)
    assert regions.shape == (1, 48, 4) and present.shape == (1, 48)
    assert torch.allclose(regions[0, :2], model.anchors[[200, 76]].clamp(0, 1))
    kept = regions[0][present[0] > 0]
    assert bool((iou(kept, kept).fill_diagonal_(0) <= 0.7).all())


def test_proposals_that_overlap_are_not_there() -> None:
    model = small()
    first = torch.zeros(1, len(model.anchors), 5).double()
    first[..., 1:] = encode(torch.tensor([0.2, 0.2, 0.6, 0.6]).double(), model.anchors)  # all see one box
    regions, present = model.proposals(first)
    assert present[0].tolist() == [1] + [0] * 47
    outputs = torch.zeros(1, len(model.anchors) + 48, 10 + CLASSES).double()
    outputs[:, len(model.anchors) :, :4], outputs[:, len(model.anchors) :, 4] = regions, present
    assert bool((model.candidates(outputs)[0, 1:, 4:] == 0).all())
    assert torch.allclose(model.candidates(outputs)[0, 0, 4:], torch.full((CLASSES,), 1 / (CLASSES + 1)).double())


def _slow_loss(model: FasterRCNN, said: Tensor, targets: Tensor) -> float:
    """The equation, row by row."""
    truths = [row for row in targets if row[0] >= 0]
    n_anchors, (n, r) = len(model.anchors), model.drawn
    overlaps = [[float(iou(a[None], row[None, 1:])) for row in truths] for a in model.anchors]
    nearest = [max(column) for column in zip(*overlaps, strict=True)] if truths else []
    positive, negative, found, absent = 0, 0, 0.0, 0.0
    for p, own in enumerate(overlaps):
        logit = float(said[p, 0])
        if truths and (max(own) >= model.positive or any(v == best > 0 for v, best in zip(own, nearest, strict=True))):
            aim = encode(truths[own.index(max(own))][1:], model.anchors[p])
            positive += 1
            found += math.log1p(math.exp(-logit)) + float(smooth_l1(said[p, 1:5] - aim, 3.0))
        elif not truths or max(own) < 0.3:
            negative += 1
            absent += math.log1p(math.exp(logit))
    first = (found + max(n - positive, n / 2) / negative * absent) / n
    positive, negative, found, absent = 0, 0, 0.0, 0.0
    for row in said[n_anchors:]:
        if row[4] == 0:
            continue
        own = [float(iou(row[None, :4], truth[None, 1:])) for truth in truths]
        if truths and max(own) >= 0.5:
            truth = truths[own.index(max(own))]
            positive += 1
            found += float(smooth_l1(row[5:9] - encode(truth[1:], row[:4]) / model.scales, 1.0))
            found += float(torch.logsumexp(row[9:], 0) - row[9 + int(truth[0])])
        else:
            negative += 1
            absent += float(torch.logsumexp(row[9:], 0) - row[9 + CLASSES])
    return first + (found + max(r - positive, 3 * r / 4) / negative * absent) / r


def test_loss_equals_the_slow_one() -> None:
    model, (_, y) = small(), scenes(n=2)
    y = y.double()
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(2, len(model.anchors) + 48, 10 + CLASSES, generator=generator).double() / 4
    near = y[:, torch.arange(48) % 4, 1:] + torch.randn(2, 48, 4, generator=generator) * 0.03
    outputs[:, len(model.anchors) :, :4] = near.clamp(0, 1)
    outputs[:, len(model.anchors) :, 4] = (torch.arange(48) % 5 > 0).double()
    y[1, :, 0] = -1  # an image without boxes
    slow = [_slow_loss(model, said, rows) for said, rows in zip(outputs, y, strict=True)]
    assert model.loss(outputs, y).tolist() == pytest.approx(slow, rel=1e-9)


def test_places_of_proposals_have_no_gradient() -> None:
    model, (x, y) = small(), scenes(n=1)
    outputs = model(x.double()).detach().requires_grad_()
    model.loss(outputs, y.double()).sum().backward()
    assert outputs.grad is not None
    assert not outputs.grad[:, len(model.anchors) :, :5].any()
    assert bool(outputs.grad[:, len(model.anchors) :, 9:].any())
