"""Dense layers by oneDNN: torch's own to rounding, and left to torch wherever something else is asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polycentric.learn.cpu import quick_dense
from polycentric.learn.cpu.quick_dense import MANY, quick_dense_layers

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not quick_dense._at_hand(), reason="no AVX-512, or no oneDNN in this torch")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call was oneDNN's."""
    seen: list[bool] = []
    fits = quick_dense._fits
    monkeypatch.setattr(quick_dense, "_fits", lambda *given: seen.append(fits(*given)) or seen[-1])
    return seen


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("n", "inputs", "outputs"), [(MANY, 1, 1), (100, 7, 3), (300, 784, 62)])
def test_a_network_answers_as_it_would(n: int, inputs: int, outputs: int, bias: bool, counted: list[bool]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(inputs, 20, bias=bias), nn.ReLU(), nn.Linear(20, outputs, bias=bias))
    x = torch.rand(n, inputs)
    with torch.no_grad():
        exact = net.double()(x.double())
        plain = net.float()(x)
        with quick_dense_layers(CPU):
            quick = net(x)
    assert counted == [True, True]
    assert float((quick - exact).abs().max()) <= 4 * float((plain - exact).abs().max()) + 1e-7


OTHERS: dict[str, Any] = {
    "few examples": lambda x, w: F.linear(x[: MANY - 1], w),
    "other numbers": lambda x, w: F.linear(x.double(), w.double()),
    "more axes": lambda x, w: F.linear(x.view(10, 10, 8), w),
    "rows that lie apart": lambda x, w: F.linear(torch.cat([x, x], 1)[:, :8], w),
    "a vector": lambda x, w: F.linear(x, w[0]),
    "no inputs": lambda x, w: F.linear(x[:, :0], w[:, :0]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_whatever_else_is_asked_for_is_torchs(name: str, counted: list[bool]) -> None:
    x, w = torch.rand(100, 8), torch.rand(3, 8)
    with torch.no_grad():
        expected = OTHERS[name](x, w)
        with quick_dense_layers(CPU):
            assert torch.equal(OTHERS[name](x, w), expected)
    assert counted == [False]


def test_gradients_are_torchs(counted: list[bool]) -> None:
    layer, x = nn.Linear(8, 3), torch.rand(100, 8)
    with quick_dense_layers(CPU):
        layer(x).sum().backward()
    assert counted == [False] and layer.weight.grad is not None
