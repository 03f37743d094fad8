"""Max pools of a stack of clients: torch's choice, torch's gradients of any order, and every pixel written once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from polycentric.learn.gpu import pools
from polycentric.learn.gpu.launch import has_triton
from polycentric.learn.gpu.overrides import Overrides, use_gpu_kernels
from polycentric.learn.gpu.pools import pool
from support import interpreted_kernels

# (images, channels, height, width), window
SHAPES = [
    ((3, 2, 4, 6), (2, 2)),
    ((2, 3, 7, 5), (2, 2)),
    ((2, 2, 9, 8), (3, 2)),
    ((1, 2, 5, 11), (1, 4)),
    ((2, 1, 3, 3), (3, 3)),
    ((5, 7, 14, 14), (2, 2)),
]
KINDS = ["fine", "ties", "zeros", "nan", "infinite"]


def numbers(size: tuple[int, ...], kind: str, dtype: torch.dtype = torch.float64) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    fine = torch.randn(size, generator=draw, dtype=torch.float64)
    rough = torch.randint(-1, 2, size, generator=draw).double()
    spoilt = torch.rand(size, generator=draw) < 0.3
    return {
        "fine": fine,
        "ties": rough,
        "zeros": torch.where(fine > 0, 0.0, -0.0),
        "nan": torch.where(spoilt, torch.nan, rough),
        "infinite": torch.where(spoilt, torch.inf, -torch.inf),
    }[kind].to(dtype)


def same(a: Tensor, b: Tensor) -> bool:
    """Number for number; what is no number in one is none in the other."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(9.25), b.nan_to_num(9.25))


def torchs(x: Tensor, window: tuple[int, int]) -> Tensor:
    return F.max_pool2d(x, window)


@pytest.fixture(params=["torch", "triton"])
def ours(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Our functions on a CPU: by what torch has, and by our kernels in Triton's interpreter."""
    monkeypatch.setattr(pools, "_worth", lambda x: True)
    if request.param == "triton":
        interpreted_kernels(monkeypatch)
        monkeypatch.setattr(pools, "_by_kernel", lambda x: True)
        monkeypatch.setattr(pools, "BLOCK", 64)  # several programs, which begin in the middle of images
    return str(request.param)


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "window"), SHAPES, ids=str)
def test_the_choice_and_its_gradient_are_torchs(size: Any, window: Any, kind: str) -> None:
    x = numbers(size, kind)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, z = pool(mine, window), torchs(theirs, window)
    assert same(y.detach(), z.detach())
    g = numbers(tuple(y.shape), "fine")
    (a,), (b,) = torch.autograd.grad(y, mine, g), torch.autograd.grad(z, theirs, g)
    assert torch.equal(a, b)


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_narrow_numbers(dtype: torch.dtype) -> None:
    x = numbers((3, 2, 5, 6), "ties", dtype)
    assert same(pool(x, 2), torchs(x, (2, 2)))
    mine, theirs = (grad(lambda x, f=f: f(x, (2, 2)).square().sum())(x) for f in (pool, torchs))
    assert same(mine, theirs)


@pytest.mark.usefixtures("ours")
def test_gradients_of_first_and_second_order() -> None:
    x = numbers((2, 2, 5, 4), "fine").requires_grad_()

    def some(x: Tensor) -> Tensor:
        return pool(x * x.sin(), (2, 2)).tanh()

    assert torch.autograd.gradcheck(some, (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(some, (x,), fast_mode=True)


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("axis", [0, 1, 4])
def test_vmap_is_a_loop_to_the_third_gradient(axis: int) -> None:
    x = numbers((3, 2, 2, 5, 4), "fine").movedim(0, axis)

    def wave(f: Any) -> Any:
        return lambda x: f((2 * x).sin(), (2, 2)).tanh().sum()

    def along(gradient: Any) -> Any:
        return lambda x: (gradient(x) * x.detach().cos()).sum()

    f, g = wave(pool), wave(torchs)
    for _ in range(3):
        mine, theirs = vmap(grad(f), in_dims=axis)(x), vmap(grad(g), in_dims=axis)(x)
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
        f, g = along(grad(f)), along(grad(g))
    twice = [vmap(vmap(lambda x, f=f: f(x, (2, 2))), in_dims=axis)(x) for f in (pool, torchs)]
    assert torch.equal(*twice)


@pytest.mark.usefixtures("ours")
def test_a_gradient_that_all_images_share() -> None:
    x, g = numbers((3, 2, 2, 4, 4), "ties"), numbers((2, 2, 2, 2), "fine")

    def gradient(f: Any) -> Tensor:
        return vmap(lambda x: torch.func.vjp(lambda x: f(x, (2, 2)), x)[1](g)[0])(x)

    assert torch.equal(gradient(pool), gradient(torchs))
    y, place = pools._Pool.forward(x[0], (2, 2))
    many = vmap(lambda u: pools._Gather.apply(u, place, (2, 2), (4, 4)))(x)
    assert torch.equal(many[0], y) and same(
        many, torch.stack([pools._Gather.forward(u, place, (2, 2), (4, 4)) for u in x])
    )


@pytest.mark.usefixtures("ours")
def test_choosing_and_spreading_are_adjoint() -> None:
    x, u = numbers((2, 3, 7, 5), "ties"), numbers((2, 3, 7, 5), "fine")
    y, place = pools._Pool.forward(x, (2, 2))
    g = numbers(tuple(y.shape), "fine")
    assert torch.equal(pools._Gather.forward(x, place, (2, 2), (7, 5)), y)
    left = (pools._Gather.forward(u, place, (2, 2), (7, 5)) * g).sum()
    torch.testing.assert_close(left, (pools._Spread.forward(g, place, (2, 2), (7, 5)) * u).sum())


@pytest.mark.usefixtures("ours")
def test_no_images_no_work() -> None:
    x = torch.empty(0, 2, 4, 4, dtype=torch.float64)
    y, place = pools._Pool.forward(x, (2, 2))
    assert y.shape == place.shape == (0, 2, 2, 2)
    assert pools._Spread.forward(y, place, (2, 2), (4, 4)).shape == x.shape
    assert pools._Gather.forward(x, place, (2, 2), (4, 4)).shape == y.shape


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls that our kernels are asked for."""
    asked: list[Any] = []
    monkeypatch.setattr(pools, "_worth", lambda x: True)
    monkeypatch.setattr("polycentric.learn.gpu.overrides.pool", lambda x, w: asked.append(w) or pool(x, w))
    return asked


def test_a_users_pools_are_ours(seen: list[Any]) -> None:
    x = numbers((3, 2, 6, 7), "ties")
    ways = [nn.MaxPool2d(2), nn.MaxPool2d((3, 2)), lambda x: F.max_pool2d(x, 2), lambda x: torch.max_pool2d(x, (2, 2))]
    ways += [nn.MaxPool2d(2, stride=(2, 2)), lambda x: F.max_pool2d(x, [2], [2]), lambda x: nn.MaxPool2d(2)(x[0])]
    for way in ways:
        with Overrides():
            mine = way(x)
        assert same(mine, way(x))
    assert len(seen) == len(ways)
    with Overrides():
        vmap(grad(lambda x: nn.MaxPool2d(2)(x).sum()))(x[:, None])
    assert len(seen) == len(ways) + 1


def test_what_our_kernels_do_not_know_stays_torchs(seen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbers((2, 2, 20, 20), "fine")
    ways = [nn.MaxPool2d(3, 2), nn.MaxPool2d(2, 1), nn.MaxPool2d(2, padding=1), nn.MaxPool2d(2, dilation=2)]
    ways += [nn.MaxPool2d(3, ceil_mode=True), nn.MaxPool2d(2, return_indices=True), nn.MaxPool2d(9)]
    ways += [nn.AvgPool2d(2), nn.AdaptiveMaxPool2d(2)]
    with Overrides():
        for way in ways:
            way(x)
        nn.MaxPool1d(2)(x[0])
        with pytest.raises(RuntimeError, match="too small"):
            nn.MaxPool2d(2)(x[:, :, :1])
        monkeypatch.undo()
        nn.MaxPool2d(2)(x)  # not on a GPU
    assert not seen


def test_on_a_cpu_it_is_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools._Pool, "apply", lambda *_: pytest.fail("not ours"))
    x = numbers((3, 2, 6, 6), "fine", torch.float32)
    with use_gpu_kernels(torch.device("cpu")):
        assert torch.equal(nn.MaxPool2d(2)(x), F.max_pool2d(x, 2))


# -- on a GPU -------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu() -> str:
    if not torch.cuda.is_available() or not has_triton():
        pytest.skip("needs a GPU and Triton")
    return "cuda"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("size", "window"), [*SHAPES, ((40, 32, 28, 28), (2, 2))], ids=str)
def test_on_a_gpu_the_choice_and_its_gradient_are_torchs(
    gpu: str, size: Any, window: Any, dtype: torch.dtype, kind: str
) -> None:
    x = numbers(size, kind, dtype)
    g = numbers(tuple(torchs(x, window).shape), "fine", dtype)
    there, here = x.to(gpu).requires_grad_(), x.requires_grad_()
    y, z = pool(there, window), torchs(here, window)
    assert same(y.detach().cpu(), z.detach())
    (a,), (b,) = torch.autograd.grad(y, there, g.to(gpu)), torch.autograd.grad(z, here, g)
    assert torch.equal(a.cpu(), b)
    place = pools.largest(there.detach(), window)[1]
    assert same(pools.gather(there.detach(), place, window), y.detach())


def test_on_a_gpu_a_stack_is_pooled_with_the_same_bits_launched_and_captured(gpu: str) -> None:
    x = numbers((5, 4, 3, 9, 8), "fine", torch.float32).to(gpu)

    def gradients() -> tuple[Tensor, Tensor]:
        def wave(x: Tensor) -> Tensor:
            return nn.MaxPool2d(2)((2 * x).sin()).tanh().sum()

        return vmap(grad(wave))(x), vmap(grad(lambda x: (grad(wave)(x) * x.detach().cos()).sum()))(x)

    plain = gradients()
    aside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with use_gpu_kernels(torch.device(gpu)):
        with torch.cuda.stream(aside):
            launched = gradients()
            again = gradients()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured = gradients()
        graph.replay()
        torch.cuda.synchronize()
    for a, b, c, d in zip(plain, launched, again, captured, strict=True):
        torch.testing.assert_close(b, a)
        assert torch.equal(b, c) and torch.equal(b, d)
