"""What every detector must do: shapes, independence of images, stacks, and that it learns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

from polycentric.models import MODELS, build, n_parameters
from polycentric.models.detectors import FasterRCNN, Yolo

from .scenes import CLASSES, SHAPE, learn, mean_precision, scenes

DETECTORS = {"yolo": Yolo, "faster-rcnn": FasterRCNN}
Detector = Yolo | FasterRCNN


def small(name: str, seed: int = 0, width: int = 4) -> Detector:
    torch.manual_seed(seed)
    return DETECTORS[name](SHAPE, CLASSES, width=width)


def about_to_learn(name: str, seed: int = 0) -> Detector:
    """With heads that are not near zero: every parameter then matters at once."""
    model = small(name, seed).double()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.startswith("head") and key.endswith("weight"):
                parameter.normal_(std=0.2)
    return model


@pytest.mark.parametrize("name", DETECTORS)
def test_named(name: str) -> None:
    assert MODELS[name].make is DETECTORS[name]
    assert not MODELS[name].takes((3, 63, 80)) and MODELS[name].takes((3, 64, 80))
    model = build(name, (3, 144, 176), 7)
    assert 300_000 < n_parameters(model) < 1_000_000
    assert set(model.state_dict()) == {key for key, _ in model.named_parameters()}  # anchors are not averaged
    assert [key for key in model.state_dict() if key.startswith("head")]


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize("shape", [(3, 144, 176), (3, 288, 352), (3, 96, 128), (1, 64, 64), (3, 65, 99)])
def test_shapes(name: str, shape: tuple[int, int, int]) -> None:
    model = DETECTORS[name](shape, 7, width=4)
    with torch.no_grad():
        outputs = model(torch.rand(2, *shape))
        found = model.candidates(outputs)
    assert outputs.dim() == 3 and len(outputs) == 2
    assert found.shape[0] == 2 and found.shape[2] == 4 + 7
    assert bool(((found >= 0) & (found <= 1)).all())
    assert model.loss(outputs, torch.full((2, 3, 5), -1.0)).shape == (2,)


@pytest.mark.parametrize("name", DETECTORS)
def test_images_without_boxes(name: str) -> None:
    model = small(name)
    loss = model.loss(model(torch.rand(2, *SHAPE)), torch.full((2, 3, 5), -1.0))
    loss.sum().backward()
    assert bool((loss > 0).all())
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("name", DETECTORS)
def test_an_image_does_not_depend_on_others_nor_on_padding(name: str) -> None:
    model, (x, y) = about_to_learn(name), scenes()
    x, y = x.double(), y.double()
    outputs = model(x)
    together = model.loss(outputs, y)
    alone = torch.cat([model.loss(model(x[i : i + 1]), y[i : i + 1]) for i in range(len(x))])
    assert torch.allclose(together, alone, rtol=1e-9)
    padding = torch.rand(len(y), 4, 5, dtype=torch.float64)
    padding[..., 0] = -1
    assert torch.allclose(model.loss(outputs, torch.cat([padding, y], 1)), together, rtol=1e-12)
    assert torch.allclose(model.loss(outputs, y.flip(1)), together, rtol=1e-12)


@pytest.mark.parametrize("name", DETECTORS)
def test_stack_equals_loop_and_every_parameter_is_used(name: str) -> None:
    models = [about_to_learn(name, seed) for seed in range(2)]
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


@pytest.mark.parametrize(("name", "lr"), [("yolo", 5e-3), ("faster-rcnn", 3e-3)])
def test_it_learns(name: str, lr: float) -> None:
    model, (x, y) = small(name, width=8), scenes()
    before = mean_precision(model, x, y)
    learn(model, x, y, 60, lr)
    assert before < 0.2 and mean_precision(model, x, y) > 0.7
