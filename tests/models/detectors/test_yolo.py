"""YOLO: shapes, loss against a slow one, independence, stacks, and that it learns."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

from polycentric.models import build, n_parameters
from polycentric.models.detectors import Yolo
from polycentric.models.detectors.boxes import iou
from polycentric.tasks.average_precision import detections, mean_ap, rows_of, voc

SMALL = (3, 64, 80)


def small(seed: int = 0, ignore: float = 0.5) -> Yolo:
    torch.manual_seed(seed)
    return Yolo(SMALL, 3, width=4, ignore=ignore)


def scenes(n: int = 4, boxes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Coloured rectangles on grey, one colour a class; padding at a random place."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.full((n, *SMALL), 0.5)
    y = torch.zeros(n, boxes + 1, 5)
    for image in range(n):
        for k in range(boxes):
            kind = int(torch.randint(3, (1,), generator=generator))
            corner = torch.rand(2, generator=generator) * 0.6
            end = corner + 0.15 + 0.25 * torch.rand(2, generator=generator)
            y[image, k] = torch.tensor([kind, *corner, *end])
            x0, y0, x1, y1 = (torch.cat([corner, end]) * torch.tensor([80, 64, 80, 64])).round().int().tolist()
            x[image, :, y0:y1, x0:x1] = torch.eye(3)[kind][:, None, None]
        y[image, boxes, 0] = -1
        y[image] = y[image][torch.randperm(boxes + 1, generator=generator)]
    return x, y


def noisy(model: Yolo, n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, len(model.anchors), 8, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("shape", [(3, 144, 176), (3, 288, 352), (3, 96, 128), (1, 64, 64), (3, 65, 99)])
def test_shapes(shape: tuple[int, int, int]) -> None:
    model = Yolo(shape, 7, width=4)
    with torch.no_grad():
        outputs = model(torch.rand(2, *shape))
    assert outputs.shape == (2, len(model.anchors), 12)
    found = model.candidates(outputs)
    assert found.shape == (2, len(model.anchors), 11)
    assert bool(((found >= 0) & (found <= 1)).all())
    assert model.loss(outputs, torch.full((2, 3, 5), -1.0)).shape == (2,)


def test_size() -> None:
    model = build("yolo", (3, 144, 176), 7)
    assert 300_000 < n_parameters(model) < 800_000
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}  # anchors are not averaged


def test_a_new_model_expects_few_objects() -> None:
    model = small()
    with torch.no_grad():
        outputs = model(torch.rand(2, *SMALL))
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
    fast = model.loss(outputs, y.double()).tolist()
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


def test_an_image_without_boxes() -> None:
    model = small()
    loss = model.loss(model(torch.rand(2, *SMALL)), torch.full((2, 3, 5), -1.0))
    loss.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
    assert bool((loss > 0).all())


def test_an_image_does_not_depend_on_others_nor_on_padding() -> None:
    model, (x, y) = small().double(), scenes()
    x, y = x.double(), y.double()
    together = model.loss(model(x), y)
    alone = torch.cat([model.loss(model(x[i : i + 1]), y[i : i + 1]) for i in range(len(x))])
    assert torch.allclose(together, alone, rtol=1e-10)
    padding = torch.rand(len(y), 4, 5, dtype=torch.float64)
    padding[..., 0] = -1
    assert torch.allclose(model.loss(model(x), torch.cat([padding, y], 1)), together, rtol=1e-12)
    assert torch.allclose(model.loss(model(x), y.flip(1)), together, rtol=1e-12)


def test_stack_equals_loop() -> None:
    models = [small(seed).double() for seed in range(2)]
    stack, _ = stack_module_state(models)
    (x, y), (x2, y2) = scenes(n=2, seed=1), scenes(n=2, seed=2)
    examples, targets = torch.stack([x, x2]).double(), torch.stack([y, y2]).double()

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return models[0].loss(functional_call(models[0], params, (x,)), y).mean()

    stacked = vmap(grad(loss))({key: value.detach() for key, value in stack.items()}, examples, targets)
    for i, model in enumerate(models):
        model.loss(model(examples[i]), targets[i]).mean().backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None and bool(parameter.grad.any()), key
            assert torch.allclose(stacked[key][i], parameter.grad, rtol=1e-8, atol=1e-9), key


def test_it_learns() -> None:
    torch.manual_seed(0)
    model, (x, y) = Yolo(SMALL, 3, width=8), scenes()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def score() -> float:
        with torch.no_grad():
            return mean_ap(voc(rows_of(detections(model.candidates(model(x)))), rows_of(y), 3))

    before = score()
    for _ in range(50):
        optimizer.zero_grad()
        model.loss(model(x), y).mean().backward()
        optimizer.step()
    assert before < 0.2 and score() > 0.8
