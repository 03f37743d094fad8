"""Convolutions of a stack of clients: torch's function, its gradients of any order, and no more work than asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from polycentric.learn.gpu import convolve as module
from polycentric.learn.gpu.convolve import (
    ConvShape,
    Frame,
    Tile,
    _Convolution as Convolution,
    _GradientInW as GradientInW,
    _GradientInX as GradientInX,
    convolve,
)
from polycentric.learn.gpu.launch import has_triton
from polycentric.learn.gpu.overrides import Overrides, use_gpu_kernels
from support import interpreted_kernels

# (clients, images, channels, channels of the result, height, width, kernel, stride, padding)
SHAPES = [
    (3, 2, 1, 32, 6, 5, (5, 5), (1, 1), (2, 2)),
    (2, 1, 32, 17, 4, 5, (3, 2), (2, 2), (1, 1)),
    (2, 3, 3, 6, 7, 8, (3, 3), (2, 2), (0, 0)),
    (2, 2, 6, 16, 6, 6, (5, 5), (1, 1), (0, 0)),
    (2, 2, 16, 3, 4, 4, (3, 3), (1, 1), (1, 1)),
    (2, 2, 16, 6, 5, 6, (2, 3), (1, 2), (0, 1)),
    (1, 2, 3, 1, 4, 4, (1, 1), (1, 1), (0, 0)),
]
WIDE = (2, 1, 3, 2, 3, 3, (2, 2), (1, 1), (2, 3))  # a border as wide as the kernel


class Case:
    """Images, weights, a gradient of the result, drawn for a shape."""

    def __init__(self, shape: Any, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        c, images, channels, out, height, width, kernel, stride, padding = shape
        draw = torch.Generator().manual_seed(0)
        self.how = ConvShape((height, width), kernel, stride, padding)

        def some(*size: int) -> Tensor:
            return torch.randn(*size, generator=draw, dtype=torch.float64).to(device, dtype)

        self.x, self.w, self.b = some(c, images, channels, height, width), some(c, out, channels, *kernel), some(c, out)
        self.g = some(c, images, out, *self.how.result)
        self.u, self.v = some(*self.x.shape), some(*self.w.shape)

    def by_torch(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One client after another: the result, and its gradients in x, w and b."""
        x, w, b = (t.detach().requires_grad_() for t in (self.x, self.w, self.b))
        each = [F.conv2d(*client, self.how.stride, self.how.padding) for client in zip(x, w, b, strict=True)]
        y = torch.stack(each)
        return y.detach(), *torch.autograd.grad(y, (x, w, b), self.g)


def close(a: Tensor, b: Tensor) -> bool:
    """To the rounding of sums of a few hundred terms."""
    digits = 1e-10 if a.dtype == torch.float64 else 2e-5
    return a.shape == b.shape and bool((a - b).abs().max() <= digits * max(1.0, float(b.abs().max())))


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes our functions on a CPU too."""
    monkeypatch.setattr(module, "_worth", lambda x, w: True)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our kernels, in Triton's interpreter where there is no GPU."""
    interpreted_kernels(monkeypatch)
    monkeypatch.setattr(module, "_worth", lambda x, w: True)
    monkeypatch.setattr(module, "backend", lambda a, b: "triton")


# -- the three functions, as torch does them ------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_stack_is_convolved_as_its_clients_are(shape: Any) -> None:
    case = Case(shape, torch.float64)
    y, in_x, in_w, _ = case.by_torch()
    assert close(Convolution.apply(case.x, case.w, case.b, case.how), y)
    assert close(GradientInX.apply(case.g, case.w, case.how), in_x)
    assert close(GradientInW.apply(case.x, case.g, case.how), in_w)


def test_on_a_cpu_it_is_torchs_own() -> None:
    case = Case(SHAPES[2])
    one = convolve(case.x[0], case.w[0], case.b[0], 2, 0)
    assert torch.equal(one, F.conv2d(case.x[0], case.w[0], case.b[0], 2, 0))
    stack = vmap(lambda x, w: convolve(x, w, None, 2))(case.x, case.w)
    assert torch.equal(stack, vmap(lambda x, w: F.conv2d(x, w, None, 2))(case.x, case.w))
    with use_gpu_kernels(torch.device("cpu")):
        assert torch.equal(one, F.conv2d(case.x[0], case.w[0], case.b[0], 2, 0))


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
def test_gradients_of_first_and_second_order(shape: Any) -> None:
    case = Case(shape, torch.float64)
    x, w, b = (t.detach().requires_grad_() for t in (case.x[:1, :1, :, :4, :5], case.w[:1, :3], case.b[:1, :3]))
    how = ConvShape((x.shape[3], x.shape[4]), case.how.kernel, case.how.stride, (2, 2))

    def ours(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return Convolution.apply(x, w, b, how)

    assert torch.autograd.gradcheck(ours, (x, w, b), fast_mode=True)
    assert torch.autograd.gradgradcheck(ours, (x, w, b), fast_mode=True)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("kind", ["stack", "shared weight", "shared images", "shared bias", "two axes", "inside out"])
def test_vmap_is_a_loop(kind: str) -> None:
    case = Case((4, 2, 3, 6, 6, 5, (3, 3), (2, 1), (1, 1)), torch.float64)
    x, w, b = case.x, case.w, case.b

    def ours(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return convolve(x, w, b, (2, 1), 1)

    def torchs(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.conv2d(x, w, b, (2, 1), 1)

    def over(function: Any) -> Tensor:
        if kind == "two axes":
            cut = [t.unflatten(0, (2, 2)) for t in (x, w, b)]
            return vmap(vmap(function), in_dims=(0, 0, 1))(*cut)
        if kind == "inside out":
            return vmap(function, in_dims=(1, 2, 1))(x.movedim(0, 1), w.movedim(0, 2), b.movedim(0, 1))
        axes = {"shared weight": (0, None, None), "shared images": (None, 0, 0), "shared bias": (0, 0, None)}
        whole = (0 if axis is None else slice(None) for axis in axes.get(kind, (0, 0, 0)))
        return vmap(function, in_dims=axes.get(kind, (0, 0, 0)))(*(t[k] for t, k in zip((x, w, b), whole, strict=True)))

    assert close(over(ours), over(torchs))
    for arg in range(3):
        assert close(*(over(grad(lambda *a, f=f: f(*a).sin().sum(), argnums=arg)) for f in (ours, torchs)))


@pytest.mark.usefixtures("anywhere")
def test_a_series_is_a_flat_image() -> None:
    draw = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(*size, generator=draw).double() for size in ((2, 3, 9), (5, 3, 4), (5,)))
    assert close(convolve(x, w, b, 2, 1), F.conv1d(x, w, b, 2, 1))
    ours, torchs = (grad(lambda w, f=f: f(x, w, b, 2, 1).sin().sum())(w) for f in (convolve, F.conv1d))
    assert close(ours, torchs)


def laws(case: Case) -> None:
    """Linear in each, and < y, g > = < x, gradient in x > = < w, gradient in w >."""

    def y(x: Tensor, w: Tensor) -> Tensor:
        return Convolution.apply(x, w, None, case.how)

    assert close(y(2 * case.x + case.u, case.w), 2 * y(case.x, case.w) + y(case.u, case.w))
    assert close(y(case.x, case.w - 3 * case.v), y(case.x, case.w) - 3 * y(case.x, case.v))
    in_y = (y(case.x, case.w).double() * case.g).sum()
    scale = float(y(case.x, case.w).norm() * case.g.norm())
    for a, b in (
        (case.x, GradientInX.apply(case.g, case.w, case.how)),
        (case.w, GradientInW.apply(case.x, case.g, case.how)),
    ):
        assert abs(float((a.double() * b).sum() - in_y)) <= 1e-6 * scale


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_two_linear_maps_and_their_adjoints(shape: Any) -> None:
    laws(Case(shape))


class Net(nn.Module):
    """Two convolutions, the first on images that nobody differentiates."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 2, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu()).flatten(1)


def gradients(net: Net, clients: int = 3, device: str = "cpu") -> tuple[Any, Any]:
    """A gradient and a curvature along a direction, in the parameters, of every client; as functions of its images."""
    draw = torch.Generator().manual_seed(1)
    rows = {
        name: torch.randn(clients, *p.shape, generator=draw).to(device, p.dtype) for name, p in net.named_parameters()
    }
    x = torch.randn(clients, 2, 1, 7, 7, generator=draw).to(device, next(net.parameters()).dtype)

    def loss(row: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(net, row, (x,)).tanh().sum()

    def along(row: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.stack(
            [(gradient * gradient.detach().cos()).sum() for gradient in grad(loss)(row, x).values()]
        ).sum()

    return vmap(grad(loss))(rows, x), vmap(grad(along))(rows, x)


@pytest.mark.usefixtures("anywhere")
def test_a_users_convolutions_are_ours_and_images_get_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    net, called = Net().double(), []
    plain = gradients(net)

    def counting(name: str, forward: Any) -> Any:
        return staticmethod(lambda *operands: called.append(name) or forward(*operands))

    for function in (module._Convolution, module._GradientInX, module._GradientInW):
        monkeypatch.setattr(function, "forward", counting(function.__name__, function.forward))
    with Overrides():
        ours = gradients(net)
    for a, b in zip(plain, ours, strict=True):
        assert all(close(b[name], a[name]) for name in a)
    called.clear()
    with Overrides():
        vmap(grad(lambda w, x: functional_call(net, {"first.weight": w}, (x,)).sum(), argnums=0))(
            torch.ones(3, 3, 1, 3, 3).double(), torch.ones(3, 2, 1, 7, 7).double()
        )
    assert called == ["_Convolution", "_Convolution", "_GradientInX", "_GradientInW"]  # one in x: the second layer's


@pytest.mark.usefixtures("anywhere")
def test_what_our_kernels_do_not_know_stays_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Convolution, "apply", lambda *_: pytest.fail("not ours"))
    x = torch.randn(2, 4, 6, 6)
    with Overrides():
        for net in (nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 2, 3, dilation=2), nn.Conv2d(4, 2, 3, padding="same")):
            net(x)
        nn.Conv2d(4, 2, 3)(x[0])


# -- what the models rely on ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", [nn.MaxPool1d(2), nn.MaxPool2d(2), nn.MaxPool2d(2, ceil_mode=True)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_pool_and_relu_commute_to_the_bit(pool: nn.Module, dtype: torch.dtype) -> None:
    """Values and gradients, among equal numbers and at zero as well: the models pool first, which is less work."""
    draw = torch.Generator().manual_seed(0)
    size = (3, 4, 9) if isinstance(pool, nn.MaxPool1d) else (3, 4, 9, 7)
    rough = torch.randint(-2, 3, size, generator=draw).to(dtype)  # many ties, of either sign and at zero
    fine = torch.randn(*size, generator=draw, dtype=dtype)
    negative = -torch.rand(*size, generator=draw, dtype=dtype)
    signed_zeros = torch.where(fine > 0, 0.0, -0.0).to(dtype)
    for numbers in (rough, fine, negative, signed_zeros, torch.zeros(size, dtype=dtype)):
        x = numbers.clone().requires_grad_()
        first, second = pool(x).relu(), pool(x.relu())
        g = torch.randn(first.shape, generator=draw, dtype=dtype)
        a, b = (torch.autograd.grad(y, x, g)[0] for y in (first, second))
        assert torch.equal(first, second) and torch.equal(a, b)
        assert torch.equal(a != 0, b != 0)


# -- the kernels, in Triton's interpreter ---------------------------------------------------------------------


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernels_convolve(shape: Any) -> None:
    case = Case(shape)
    y, in_x, in_w, _ = case.by_torch()
    assert close(module.product(case.x, case.w, case.b, case.how), y)
    assert close(module.gradient_in_x(case.g, case.w, case.how), in_x)
    assert close(module.gradient_in_w(case.x, case.g, case.how), in_w)
    assert close(module.gradient_in_w(case.x, case.g, case.how, Tile(16, 32, 16), parts=2), in_w)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_lies_outside_is_read_by_nobody() -> None:
    """Numbers that are none spoil what they touch and nothing else: padding, the ends of tiles, other clients."""
    case = Case((3, 2, 3, 5, 4, 5, (3, 3), (1, 1), (1, 1)))
    case.x[1], case.g[1] = torch.nan, torch.inf
    y, in_x, in_w, _ = case.by_torch()
    others = [0, 2]
    assert close(module.product(case.x, case.w, case.b, case.how)[others], y[others])
    assert close(module.gradient_in_x(case.g, case.w, case.how)[others], in_x[others])
    assert close(module.gradient_in_w(case.x, case.g, case.how)[others], in_w[others])
    case = Case((2, 1, 2, 3, 4, 4, (3, 3), (1, 1), (1, 1)))
    case.x[:, :, :, 3, 3] = torch.nan
    case.w[:, 1] = torch.inf
    case.w[0, :, 1] = torch.nan
    y = case.by_torch()[0]
    assert torch.equal(module.product(case.x, case.w, case.b, case.how).isfinite(), y.isfinite())


FRAMES = [  # channels, height and width; the frame
    (1, 4, 5, Frame((8, 9), (2, 2))),
    (3, 4, 5, Frame((8, 9), (2, 2))),
    (70, 3, 2, Frame((3, 2), (0, 0))),
    (6, 3, 4, Frame((12, 9), (2, 1), (4, 2))),
    (2, 9, 30, Frame((20, 61), (0, 1), (2, 2))),
]


def in_frames(shape: Any, last: bool, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Images in their frames: ours, and as zeros that pixels are copied into."""
    channels, height, width, frame = shape
    x = torch.randn(2, 3, channels, height, width, generator=torch.Generator().manual_seed(0)).to(device)
    expected, ((top, left), (down, right)) = x.new_zeros(2, 3, channels, *frame.size), frame[1:]
    expected[..., top : top + height * down : down, left : left + width * right : right] = x
    return module.framed(x, frame, last), expected.movedim(2, -1) if last else expected


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", FRAMES, ids=str)
def test_a_frame_is_zero_around_and_between_the_pixels(shape: Any, last: bool) -> None:
    assert torch.equal(*in_frames(shape, last))


@pytest.mark.usefixtures("interpreted")
def test_a_border_wider_than_the_kernel() -> None:
    case = Case(WIDE)
    y, in_x, in_w, _ = case.by_torch()
    assert close(Convolution.apply(case.x, case.w, case.b, case.how), y)
    assert close(GradientInX.apply(case.g, case.w, case.how), in_x)
    assert close(GradientInW.apply(case.x, case.g, case.how), in_w)


@pytest.mark.usefixtures("interpreted")
def test_the_kernels_are_adjoint() -> None:
    laws(Case(SHAPES[5]))


@pytest.mark.usefixtures("interpreted")
def test_what_all_clients_share_is_not_copied() -> None:
    case = Case(SHAPES[5])
    x, w, b = case.x[:1].expand_as(case.x), case.w[:1].expand_as(case.w), case.b[:1].expand_as(case.b)
    y = module.product(x, w, b, case.how)
    assert torch.equal(y[0], y[1])
    assert torch.equal(y, module.product(x.contiguous(), w.contiguous(), b.contiguous(), case.how))
    both = (module.gradient_in_w(seen, case.g, case.how) for seen in (x, x.contiguous()))
    assert torch.equal(*both)


@pytest.mark.usefixtures("interpreted")
def test_a_stack_of_models_through_the_kernels() -> None:
    net = Net()
    plain = gradients(net)
    with Overrides():
        ours = gradients(net)
    for a, b in zip(plain, ours, strict=True):
        assert all(close(b[name], a[name]) for name in a)


@pytest.mark.usefixtures("interpreted")
def test_no_images_no_work() -> None:
    case = Case(SHAPES[2])
    assert module.product(case.x[:, :0], case.w, case.b, case.how).shape == (2, 0, 6, *case.how.result)
    assert module.gradient_in_x(case.g[:, :0], case.w, case.how).shape == (2, 0, 3, *case.how.image)
    assert not module.gradient_in_w(case.x[:, :0], case.g[:, :0], case.how).any()


# -- on a GPU -------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> str:
    if not torch.cuda.is_available() or not has_triton():
        pytest.skip("needs a GPU and Triton")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    return "cuda"


@pytest.mark.parametrize("shape", [*SHAPES, WIDE, (2, 3, 32, 64, 14, 14, (5, 5), (1, 1), (2, 2))], ids=str)
def test_on_a_gpu_the_kernels_convolve(gpu: str, shape: Any) -> None:
    case = Case(shape, device=gpu)
    exact = [t.float() for t in Case(shape, torch.float64).by_torch()]  # on the CPU: cuDNN has roundings of its own
    assert close(Convolution.apply(case.x, case.w, case.b, case.how).cpu(), exact[0])
    assert close(GradientInX.apply(case.g, case.w, case.how).cpu(), exact[1])
    assert close(GradientInW.apply(case.x, case.g, case.how).cpu(), exact[2])
    for parts in (1, 2):
        assert close(module.gradient_in_w(case.x, case.g, case.how, parts=parts).cpu(), exact[2])


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", [*FRAMES, (64, 14, 14, Frame((18, 18), (2, 2)))], ids=str)
def test_on_a_gpu_a_frame_is_zero_around_and_between_the_pixels(gpu: str, shape: Any, last: bool) -> None:
    assert torch.equal(*in_frames(shape, last, gpu))


def test_on_a_gpu_factors_are_rounded_only_if_torch_may(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (2, 3, 32, 64, 14, 14, (5, 5), (1, 1), (2, 2))
    case, exact = Case(shape, device=gpu), Case(shape, torch.float64).by_torch()

    def far() -> list[float]:
        ours = (
            Convolution.apply(case.x, case.w, case.b, case.how),
            GradientInX.apply(case.g, case.w, case.how),
            GradientInW.apply(case.x, case.g, case.how),
        )
        return [float((a.cpu() - b).abs().max() / b.abs().max()) for a, b in zip(ours, exact, strict=False)]

    assert all(f < 5e-6 for f in far())
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert all(5e-6 < f < 3e-3 for f in far())


def test_on_a_gpu_a_stack_of_models_gives_the_same_bits_launched_and_captured(gpu: str) -> None:
    net = Net().to(gpu)
    plain = gradients(net, 5, gpu)
    with use_gpu_kernels(torch.device(gpu)):
        first, second = gradients(net, 5, gpu), gradients(net, 5, gpu)
        torch.cuda.synchronize()
        graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        rows = {n: torch.randn(5, *p.shape, device=gpu) for n, p in net.named_parameters()}
        x = torch.randn(5, 2, 1, 7, 7, device=gpu)

        def step() -> dict[str, Tensor]:
            return vmap(grad(lambda row, x: functional_call(net, row, (x,)).tanh().sum()))(rows, x)

        with torch.cuda.stream(aside):
            launched = step()
            step()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured = step()
        graph.replay()
        torch.cuda.synchronize()
    for a, b, c in zip(plain, first, second, strict=True):
        assert all(close(b[name], a[name]) and torch.equal(b[name], c[name]) for name in a)
    assert all(torch.equal(launched[name], captured[name]) for name in launched)
