"""Dense layers of a stack of clients: torch's function, its gradients of any order, and who is asked for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from polycentric.learn.gpu import linear as dense
from polycentric.learn.gpu.launch import has_triton
from polycentric.learn.gpu.overrides import Overrides, use_gpu_kernels
from support import interpreted_kernels

# (clients, examples, inputs, outputs)
SHAPES = [(3, 2, 5, 7), (2, 20, 70, 65), (2, 33, 64, 3), (3, 1, 130, 16), (2, 70, 9, 4)]


def some(*size: int, dtype: torch.dtype = torch.float64, device: str = "cpu", seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device, dtype)


@pytest.fixture(params=["torch", "triton"])
def ours(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Our functions on a CPU: by what torch has, and by our kernel in Triton's interpreter."""
    monkeypatch.setattr(dense, "_worth", lambda x, w: True)
    if request.param == "triton":
        interpreted_kernels(monkeypatch)
        monkeypatch.setattr(dense, "backend", lambda a, b: "triton")
    return str(request.param)


def close(a: Tensor, b: Tensor, digits: float = 2e-5) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= digits * max(1.0, float(b.abs().max())))


def products(shape: Any, device: str = "cpu") -> None:
    """The three products, of weights that are views of rows as well."""
    c, rows, inputs, outputs = shape
    x, g = some(c, rows, inputs, dtype=torch.float32), some(c, rows, outputs, dtype=torch.float32, seed=1)
    whole = some(c, inputs * outputs + 5, dtype=torch.float32, seed=2).to(device)
    w = whole[:, 3 : 3 + inputs * outputs].unflatten(1, (outputs, inputs))
    exact = [t.double() for t in (x, g, w.cpu())]
    x, g = x.to(device), g.to(device)
    assert close(dense.times(x, w, True).cpu(), (exact[0] @ exact[2].mT).float())
    assert close(dense.times(g, w, False).cpu(), (exact[1] @ exact[2]).float())
    assert close(dense.outer(g, x).cpu(), (exact[1].mT @ exact[0]).float())
    shared = x[:1].expand_as(x)
    assert torch.equal(dense.times(shared, w, True), dense.times(shared.contiguous(), w, True))
    turned = x.mT.contiguous().mT
    assert torch.equal(dense.times(turned, w, True), dense.times(x, w, True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_multiplies(shape: Any, ours: str) -> None:
    if ours == "torch":
        pytest.skip("torch's own")
    products(shape)


@pytest.mark.usefixtures("ours")
@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_client_that_is_lost_spoils_no_other() -> None:
    x, w = some(3, 4, 9, dtype=torch.float32), some(3, 7, 9, dtype=torch.float32, seed=1)
    x[1], w[1] = torch.nan, torch.inf
    y = vmap(dense.dense)(x, w)
    for k in (0, 2):
        assert close(y[k], F.linear(x[k], w[k]))


@pytest.mark.parametrize("kind", ["stack", "shared weight", "shared examples", "shared bias", "two axes", "inside out"])
def test_vmap_is_a_loop_to_the_second_gradient(kind: str, ours: str) -> None:
    dtype, digits = (torch.float64, 1e-10) if ours == "torch" else (torch.float32, 2e-5)
    x, w, b = (some(*size, dtype=dtype, seed=len(size) + size[1]) for size in ((4, 3, 5), (4, 6, 5), (4, 6)))

    def over(function: Any) -> Tensor:
        if kind == "two axes":
            return vmap(vmap(function), in_dims=(0, 0, 1))(*(t.unflatten(0, (2, 2)) for t in (x, w, b)))
        if kind == "inside out":
            return vmap(function, in_dims=(1, 2, 1))(x.movedim(0, 1), w.movedim(0, 2), b.movedim(0, 1))
        axes = {"shared weight": (0, None, None), "shared examples": (None, 0, 0), "shared bias": (0, 0, None)}
        whole = (0 if axis is None else slice(None) for axis in axes.get(kind, (0, 0, 0)))
        return vmap(function, in_dims=axes.get(kind, (0, 0, 0)))(*(t[k] for t, k in zip((x, w, b), whole, strict=True)))

    def wave(f: Any) -> Any:
        return lambda *a: f(*a).sin().sum()

    def along(f: Any, arg: int) -> Any:
        return lambda *a: (grad(wave(f), argnums=arg)(*a) * a[arg].detach().cos()).sum()

    assert close(over(dense.dense), over(F.linear), digits)
    for arg in range(3):
        assert close(*(over(grad(wave(f), argnums=arg)) for f in (dense.dense, F.linear)), digits)
        for other in range(2):
            assert close(*(over(grad(along(f, arg), argnums=other)) for f in (dense.dense, F.linear)), digits)


def test_gradients_of_first_and_second_order() -> None:
    x, w, b = (t.requires_grad_() for t in (some(3, 5), some(4, 5, seed=1), some(4, seed=2)))
    assert torch.autograd.gradcheck(dense.dense, (x, w, b), fast_mode=True)
    assert torch.autograd.gradgradcheck(dense.dense, (x, w, b), fast_mode=True)


def test_large_weights_for_few_examples_are_ours_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(dense, "_worth", lambda x, w: True)
    real = dense.dense
    monkeypatch.setattr("polycentric.learn.gpu.overrides.dense", lambda *a: asked.append(a[1].shape) or real(*a))
    large, x = nn.Linear(256, 256), torch.randn(20, 256)
    with Overrides():
        assert torch.allclose(large(x), F.linear(x, large.weight, large.bias), atol=1e-5)
        nn.Linear(256, 256, bias=False)(x)
        assert len(asked) == 3
        nn.Linear(255, 256)(x[:, :255])  # small
        large(torch.randn(65, 256))  # many
        large(x[0])
        large(x[None])
        monkeypatch.undo()
        large(x)  # not on a GPU
    assert len(asked) == 3
    with use_gpu_kernels(torch.device("cpu")):
        assert torch.equal(large(x), F.linear(x, large.weight, large.bias))


# -- on a GPU -------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu() -> Any:
    if not torch.cuda.is_available() or not has_triton():
        pytest.skip("needs a GPU and Triton")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield "cuda"
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("shape", [*SHAPES, (4, 20, 3136, 512)], ids=str)
def test_on_a_gpu_the_kernel_multiplies(gpu: str, shape: Any) -> None:
    products(shape, gpu)


def test_on_a_gpu_float32_keeps_its_digits_unless_torch_may_round(gpu: str) -> None:
    x, w = some(3, 20, 3136, dtype=torch.float32), some(3, 512, 3136, dtype=torch.float32, seed=1)
    exact = x.double() @ w.double().mT

    def off() -> float:
        return float((dense.times(x.to(gpu), w.to(gpu), True).cpu() - exact).abs().max() / exact.abs().max())

    assert off() < 3e-6
    torch.set_float32_matmul_precision("high")
    assert 1e-5 < off() < 3e-3


def test_on_a_gpu_a_stack_gives_the_same_bits_launched_and_captured(gpu: str) -> None:
    x, w, b = (t.to(gpu) for t in (some(5, 20, 300), some(5, 256, 300, seed=1), some(5, 256, seed=2)))
    x, w, b = x.float(), w.float(), b.float()

    def gradients() -> tuple[Tensor, ...]:
        return vmap(grad(lambda x, w, b: F.linear(x, w, b).tanh().sum(), argnums=(0, 1, 2)))(x, w, b)

    plain = gradients()
    aside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with use_gpu_kernels(torch.device(gpu)):
        with torch.cuda.stream(aside):
            launched, again = gradients(), gradients()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured = gradients()
        graph.replay()
        torch.cuda.synchronize()
    for p, a, c, d in zip(plain, launched, again, captured, strict=True):
        assert close(a, p, 1e-4) and torch.equal(a, c) and torch.equal(a, d)
