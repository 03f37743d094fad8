"""YOLO: where its boxes are, which anchors are responsible, and its loss against a slow one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from polycentric.models.detectors import Yolo
from polycentric.models.detectors.boxes import iou
from polycentric.models.detectors.yolo import UNIT

from .scenes import CLASSES, SHAPE, scenes


def small(seed: int = 0, ignore: float = 0.5) -> Yolo:
    torch.manual_seed(seed)
    return Yolo(SHAPE, CLASSES, width=4, ignore=ignore)


def noisy(model: Yolo, n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, len(model.anchors), 8, generator=torch.Generator().manual_seed(seed)).double()


def test_a_new_model_expects_few_objects() -> None:
    model = small()
    with torch.no_grad():
        outputs = model(torch.rand(2, *SHAPE))
    assert bool((outputs[..., 4].sigmoid() < 0.05).all())


def test_boxes_begin_as_their_anchors_and_stay_in_their_cell() -> None:
    model = small().double()
    begin = model.boxes(torch.zeros(1, len(model.anchors), 8).double())
    assert torch.allclose(begin[0], model.anchors)
    wild = model.boxes(noisy(model, 1) * 50)
    centre = (wild[..., :2] + wild[..., 2:]) / 2
    at = (model.anchors[:, :2] + model.anchors[:, 2:]) / 2
    assert bool(((centre - at).abs() <= model.steps / 2 + 1e-9).all())


def _bce(logit: float, yes: bool) -> float:
    return math.log1p(math.exp(-logit if yes else logit))


def _slow_loss(model: Yolo, said: list[list[float]], targets: list[list[float]]) -> float:
    """The equation, anchor by anchor."""
    truths = [row for row in targets if row[0] >= 0]
    anchors, steps = model.anchors.tolist(), model.steps.tolist()
    claims: list[list[tuple[float, int]]] = [[] for _ in anchors]  # of every anchor: (how alike, true box)
    for m, (_, x0, y0, x1, y1) in enumerate(truths):
        alike = []
        for (a0, b0, a1, b1), (sx, sy) in zip(anchors, steps, strict=True):
            left, top = (a0 + a1) / 2 - sx / 2, (b0 + b1) / 2 - sy / 2
            holds = left <= (x0 + x1) / 2 < left + sx and top <= (y0 + y1) / 2 < top + sy
            both = min(a1 - a0, x1 - x0) * min(b1 - b0, y1 - y0)
            sizes = (a1 - a0) * (b1 - b0) + (x1 - x0) * (y1 - y0)
            alike.append(both / (sizes - both) if holds else 0.0)
        for p, share in enumerate(alike):
            if p == alike.index(max(alike)) or share > model.alike:
                claims[p].append((share, m))
    total = 0.0
    for p, row in enumerate(said):
        tx, ty, tw, th, to, *kinds = row
        (a0, b0, a1, b1), (sx, sy) = anchors[p], steps[p]
        if claims[p]:
            kind, x0, y0, x1, y1 = truths[max(claims[p])[1]]
            inside_x = ((x0 + x1) / 2 - ((a0 + a1) / 2 - sx / 2)) / sx
            inside_y = ((y0 + y1) / 2 - ((b0 + b1) / 2 - sy / 2)) / sy
            error = (1 / (1 + math.exp(-tx)) - inside_x) ** 2 + (1 / (1 + math.exp(-ty)) - inside_y) ** 2
            error += (tw - math.log((x1 - x0) / (a1 - a0))) ** 2 + (th - math.log((y1 - y0) / (b1 - b0))) ** 2
            total += model.coordinate * (2 - (x1 - x0) * (y1 - y0)) * error / 2 + _bce(to, True)
            total += sum(_bce(z, c == kind) for c, z in enumerate(kinds))
            continue
        mine = model.boxes(torch.tensor(said, dtype=torch.float64))[p : p + 1]
        truth = torch.tensor([row[1:] for row in truths], dtype=torch.float64).reshape(-1, 4)
        if not truths or float(iou(mine, truth).max()) <= model.ignore:
            total += model.no_object * _bce(to, False)
    return total


def test_loss_equals_the_slow_one() -> None:
    model, (_, y) = small().double(), scenes(n=3, boxes=4)
    outputs = noisy(model, 3) / 2
    fast = (UNIT * model.loss(outputs, y.double())).tolist()
    slow = [_slow_loss(model, said.tolist(), rows.tolist()) for said, rows in zip(outputs, y.double(), strict=True)]
    assert fast == pytest.approx(slow, rel=1e-9)


def test_ignored_where_it_sees_the_box_of_another_anchor() -> None:
    model = small(ignore=0.2).double()  # neighbours of one size have IoU 1/3
    outputs = torch.zeros(1, len(model.anchors), 8).double().requires_grad_()  # boxes are the anchors
    truth = model.anchors[[76]] + 0.01  # the square anchor of a cell in the middle, moved a little
    y = torch.cat([torch.ones(1, 1).double(), truth], -1)[None]
    model.loss(outputs, y).sum().backward()
    assert outputs.grad is not None
    pushed = outputs.grad[0, :, 4]
    responsible = model.responsible(y[..., 1:], y[..., 0] >= 0)[0, :, 0] > 0
    ignored = ~responsible & (iou(model.anchors, truth)[:, 0] > 0.2)
    assert responsible[76] and bool(ignored.any())
    assert bool((pushed[responsible] < 0).all()) and bool((pushed[ignored] == 0).all())
    assert bool((pushed[~responsible & ~ignored] > 0).all())


def test_a_box_on_the_edge_has_a_responsible_anchor() -> None:
    model = small()
    y = torch.tensor([[[0, 0.9, 0.9, 1.1, 1.1], [-1, 0, 0, 0, 0], [2, 0, 0, 1, 1]]])
    claims = model.responsible(y[..., 1:], y[..., 0] >= 0)
    assert (claims > 0).sum(1)[0].tolist()[1] == 0
    assert bool(((claims > 0).sum(1)[0][[0, 2]] >= 1).all())


def test_a_centre_on_a_line_between_cells_is_in_one_cell() -> None:
    model = small()
    for k in range(1, 10):
        x, y = k / 10, min(k, 7) / 8  # lines of the finest grid, 8 x 10 cells
        truth = torch.tensor([[[x - 0.1, y - 0.1, x + 0.1, y + 0.1]]])
        assert 1 <= int((model.responsible(truth, torch.ones(1, 1, dtype=torch.bool)) > 0).sum()) <= 3
