"""Every named model: its size, its stack, its seed, and what is refused."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from polycentric.errors import UsageError
from polycentric.models import LSTM, MODELS, CharLSTM, build, check, default, n_parameters

# name, shape of one example, outputs, symbols, parameters
SIZES = [
    ("logistic", (1, 28, 28), 10, 0, 7_850),
    ("mlp", (1, 28, 28), 10, 0, 101_770),
    ("2nn", (1, 28, 28), 10, 0, 199_210),
    ("lg-mlp", (1, 28, 28), 10, 0, 633_226),
    ("mnist-cnn", (1, 28, 28), 10, 0, 1_663_370),
    ("fmnist-cnn", (1, 28, 28), 10, 0, 83_466),
    ("femnist-cnn", (1, 28, 28), 62, 0, 845_510),
    ("lg-lenet", (3, 32, 32), 10, 0, 64_102),
    ("celeba-cnn", (3, 84, 84), 2, 0, 31_202),
    ("celeba-cnn", (3, 32, 32), 2, 0, 29_154),
    ("vgg11", (3, 32, 32), 10, 0, 9_231_114),
    ("vgg11", (3, 40, 64), 10, 0, 9_231_114),
    ("har-cnn", (6, 128), 6, 0, 33_318),
    ("char-lstm", (80,), 80, 80, 819_920),
]

DETECTORS = {"yolo", "faster-rcnn"}  # what they give is not one row of scores: tests/models/detectors
SCORERS = [name for name in MODELS if name not in DETECTORS]

# Small examples of what each model reads, for tests in which only the kind of layers matters.
SMALL = {
    "logistic": ((5,), 0),
    "mlp": ((2, 4, 4), 0),
    "2nn": ((3, 5), 0),
    "lg-mlp": ((5,), 0),
    "mnist-cnn": ((1, 8, 9), 0),
    "fmnist-cnn": ((1, 5, 6), 0),
    "femnist-cnn": ((2, 4, 4), 0),
    "lg-lenet": ((3, 16, 19), 0),
    "celeba-cnn": ((3, 21, 11), 0),
    "vgg11": ((1, 32, 32), 0),
    "har-cnn": ((6, 17), 0),
    "char-lstm": ((6,), 11),
}


def batch(shape: tuple[int, ...], symbols: int, *leading: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if symbols:
        return torch.randint(symbols, (*leading, *shape), generator=generator)
    return torch.randn(*leading, *shape, generator=generator, dtype=torch.float64)


def refused(message: str) -> pytest.RaisesExc[UsageError]:
    return pytest.raises(UsageError, match=f"^{re.escape(message)}$")


@pytest.mark.parametrize(("name", "shape", "n_outputs", "symbols", "size"), SIZES)
def test_size_and_outputs(name: str, shape: tuple[int, ...], n_outputs: int, symbols: int, size: int) -> None:
    module = build(name, shape, n_outputs, symbols=symbols)
    assert n_parameters(module) == size
    with torch.no_grad():
        examples = batch(shape, symbols, 2)
        scores = module(examples if symbols else examples.float())
    assert scores.shape == (2, n_outputs)
    assert list(module.buffers()) == []


def test_sizes_of_shared_parts() -> None:
    def size(module: nn.Module, *layers: str) -> int:
        return sum(n_parameters(module.get_submodule(layer)) for layer in layers)

    assert size(build("lg-mlp", (1, 28, 28), 10), "dense3", "dense4", "head") == 99_978
    assert size(build("lg-lenet", (3, 32, 32), 10), "conv1", "conv2") == 2_872


def test_every_model_is_listed_and_tested() -> None:
    assert set(SCORERS) == set(SMALL) == {name for name, *_ in SIZES}
    for recipe in MODELS.values():
        assert recipe.about and "\n" not in recipe.about


@pytest.mark.parametrize("name", SCORERS)
def test_stack_equals_loop(name: str) -> None:
    shape, symbols = SMALL[name]
    modules = [build(name, shape, 3, seed=seed, symbols=symbols).double() for seed in range(3)]
    stack, _ = stack_module_state(modules)
    examples, labels = batch(shape, symbols, 3, 2), torch.tensor([[0, 1], [2, 0], [1, 1]])

    def loss(params: dict[str, Tensor], examples: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(modules[0], params, (examples,)), labels)

    stacked = vmap(grad(loss))({key: value.detach() for key, value in stack.items()}, examples, labels)
    for i, module in enumerate(modules):
        nn.functional.cross_entropy(module(examples[i]), labels[i]).backward()
        for key, parameter in module.named_parameters():
            assert parameter.grad is not None
            assert torch.allclose(stacked[key][i], parameter.grad, rtol=1e-10, atol=1e-10), key
    assert any(bool(gradient.abs().max() > 1e-6) for gradient in stacked.values())


@pytest.mark.parametrize("name", SCORERS)
def test_every_parameter_is_used_and_the_last_layer_is_head(name: str) -> None:
    shape, symbols = SMALL[name]
    module = build(name, shape, 3, symbols=symbols).double()
    assert list(module.state_dict())[-2:] == ["head.weight", "head.bias"]
    module(batch(shape, symbols, 4)).square().sum().backward()
    for key, parameter in module.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.any()), key


@pytest.mark.parametrize("name", SCORERS)
def test_seed_decides_and_nothing_else(name: str) -> None:
    shape, symbols = SMALL[name]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = build(name, shape, 3, seed=5, symbols=symbols).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    same = build(name, shape, 3, seed=5, symbols=symbols).state_dict()
    other = build(name, shape, 3, seed=6, symbols=symbols).state_dict()
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])


def test_default_device_does_not_change_the_parameters() -> None:
    expected = build("mlp", (5,), 3).state_dict()
    with torch.device("meta"):
        found = build("mlp", (5,), 3).state_dict()
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_default_models_take_their_shapes() -> None:
    assert default((1, 28, 28), 10) == default((3, 32, 32), 10) == default((20,), 2) == "mlp"
    assert default((6, 128), 6) == "har-cnn"
    assert default((80,), 80, 80) == "char-lstm"
    assert default((6, 3), 6) == "mlp"  # too short for har-cnn


# LSTM


def copied(layer: LSTM, reference: nn.LSTM, index: int) -> None:
    with torch.no_grad():
        for linear, kind in ((layer.from_input, "ih"), (layer.from_hidden, "hh")):
            linear.weight.copy_(getattr(reference, f"weight_{kind}_l{index}"))
            linear.bias.copy_(getattr(reference, f"bias_{kind}_l{index}"))


def test_lstm_equals_torch() -> None:
    torch.manual_seed(0)
    module = CharLSTM(80, 80).double()
    reference = nn.LSTM(8, 256, num_layers=2, batch_first=True).double()
    copied(module.lstm1, reference, 0)
    copied(module.lstm2, reference, 1)
    assert n_parameters(module.lstm1) + n_parameters(module.lstm2) == n_parameters(reference)

    symbols = torch.randint(80, (3, 12))
    states, _ = reference(module.embedding(symbols))
    assert torch.allclose(module.lstm2(module.lstm1(module.embedding(symbols))), states, rtol=1e-10, atol=1e-12)
    assert torch.allclose(module(symbols), module.head(states[:, -1]), rtol=1e-10, atol=1e-12)


def test_lstm_starts_in_the_range_of_torch() -> None:
    layer = LSTM(8, 256)
    largest = max(float(parameter.detach().abs().max()) for parameter in layer.parameters())
    assert 0.95 / 16 < largest <= 1 / 16


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_text_of_any_integers(dtype: torch.dtype) -> None:
    module = build("char-lstm", (5,), 7, symbols=7)
    symbols = torch.randint(7, (2, 5))
    assert torch.equal(module(symbols.to(dtype)), module(symbols))


# What is refused


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_batch_norm_is_refused(norm: type[nn.Module]) -> None:
    with refused(
        f"the model has {norm.__name__} at 'body.1': its running statistics are neither parameters that can "
        "be averaged nor allowed in a stack of models; write nn.GroupNorm(groups, channels) instead, "
        "here nn.GroupNorm(8, 64)"
    ):
        check(_with_norm(norm(64)))


def _with_norm(norm: nn.Module) -> nn.Module:
    module = nn.Module()
    module.body = nn.Sequential(nn.Conv2d(3, 64, 3), norm)
    return module


def test_other_norms_with_statistics_are_refused() -> None:
    with pytest.raises(UsageError, match=r"InstanceNorm2d at 'body.1'.*here nn.GroupNorm\(6, 6\)$"):
        check(_with_norm(nn.InstanceNorm2d(6, track_running_stats=True)))
    with pytest.raises(UsageError, match=r"LazyBatchNorm2d at 'body.1'.*nn.GroupNorm\(groups, channels\) instead$"):
        check(_with_norm(nn.LazyBatchNorm2d()))
    with pytest.raises(UsageError, match=r"has BatchNorm2d: .* depends on the others in the batch.*\(2, 6\)$"):
        check(nn.BatchNorm2d(6, track_running_stats=False))


def test_norms_without_statistics_pass() -> None:
    check(_with_norm(nn.InstanceNorm2d(64)))
    check(_with_norm(nn.GroupNorm(8, 64)))
    check(_with_norm(nn.LayerNorm(64)))


def test_lazy_and_untrainable_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^the model's '0.weight' has no shape yet: .* first, or write the sizes out"):
        check(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(UsageError, match=r"^the model Flatten has no trainable parameters.*requires_grad=True$"):
        check(nn.Flatten())
    with pytest.raises(UsageError, match="no trainable parameters"):
        check(nn.Linear(2, 2).requires_grad_(False))


def test_unknown_name() -> None:
    with pytest.raises(UsageError, match=r"^unknown model 'mnist-cn': did you mean 'mnist-cnn'\? Known: 2nn, "):
        build("mnist-cn", (1, 28, 28), 10)


def test_shapes_are_refused() -> None:
    with refused(
        "model 'mnist-cnn' takes images (channels, height, width) of at least 4 x 4, not shape (784,); "
        "models that take it: logistic, mlp, 2nn, lg-mlp"
    ):
        build("mnist-cnn", (784,), 10)
    with refused(
        "model 'vgg11' takes images (channels, height, width) of at least 32 x 32, not shape (3, 8, 8); "
        "models that take it: logistic, mlp, 2nn, lg-mlp, mnist-cnn, fmnist-cnn, femnist-cnn, celeba-cnn"
    ):
        build("vgg11", (3, 8, 8), 10)
    with refused(
        "model 'mlp' takes numbers of any shape, not symbols, not shape (80,) of 90 symbols; "
        "models that take it: char-lstm"
    ):
        build("mlp", (80,), 90, symbols=90)
    with pytest.raises(UsageError, match=r"'char-lstm' takes a text .* symbols > 0, not shape \(80,\); models that"):
        build("char-lstm", (80,), 90)
    with pytest.raises(UsageError, match=r"'har-cnn' takes series .* at least 4 times, not shape \(6, 3\)"):
        build("har-cnn", (6, 3), 6)
    with refused("shape is one example's, of positive numbers such as (1, 28, 28), not (0, 3)"):
        build("mlp", (0, 3), 6)
    with refused("n_outputs is the number of classes, at least 1, not 0"):
        build("mlp", (3,), 0)


@pytest.mark.parametrize(("name", "side"), [("mnist-cnn", 4), ("lg-lenet", 16), ("celeba-cnn", 1), ("vgg11", 32)])
def test_smallest_images_work(name: str, side: int) -> None:
    assert build(name, (1, side, side), 2)(torch.zeros(2, 1, side, side)).shape == (2, 2)
    if side > 1:
        with pytest.raises(UsageError, match="models that take it"):
            build(name, (1, side, side - 1), 2)


def test_smallest_series_works() -> None:
    assert build("har-cnn", (6, 4), 2)(torch.zeros(2, 6, 4)).shape == (2, 2)


# Modules of the user

YOURS = """
from torch import nn

class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

def fitted(shape, n_outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], n_outputs))

class Box:
    inner = fitted

ready = nn.Linear(3, 2)
number = 3

def nothing():
    return None

def broken(shape, n_outputs):
    raise RuntimeError("two\\nlines")

def normed():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
"""


@pytest.fixture
def yours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "polycentric_test_net.py").write_text(YOURS)
    (tmp_path / "polycentric_test_torn.py").write_text("import no_such_thing_anywhere")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "polycentric_test_net", raising=False)
    return "polycentric_test_net"


def test_your_modules(yours: str) -> None:
    assert n_parameters(build(f"{yours}:Fixed", (7,), 3)) == 10  # takes no arguments
    assert n_parameters(build(f"{yours}:fitted", (7,), 3)) == 24
    assert n_parameters(build(f"{yours}:Box.inner", (7,), 3)) == 24
    assert n_parameters(build(f"{yours}:ready", (7,), 3)) == 8
    same = [build(f"{yours}:fitted", (7,), 3, seed=seed).state_dict()["1.weight"] for seed in (0, 0, 1)]
    assert torch.equal(same[0], same[1]) and not torch.equal(same[0], same[2])


def test_importing_does_not_change_the_parameters(yours: str) -> None:
    before = torch.get_rng_state()
    first = build(f"{yours}:fitted", (7,), 3).state_dict()  # imports, which draws the parameters of `ready`
    assert torch.equal(before, torch.get_rng_state())
    again = build(f"{yours}:fitted", (7,), 3).state_dict()
    assert torch.equal(first["1.weight"], again["1.weight"])


def test_your_classes_and_modules_as_they_are() -> None:
    ready = nn.Linear(3, 2)
    assert build(ready, (3,), 2) is ready
    made = build(lambda shape, n_outputs: nn.Linear(shape[0], n_outputs), (3,), 2)
    assert n_parameters(made) == 8
    with pytest.raises(UsageError, match=r"^model 'Linear' called with .* raised TypeError: "):
        build(nn.Linear, (3,), 2)


def test_your_modules_refused(yours: str) -> None:
    with refused(
        f"model '{yours}:number' is of type int, not a torch.nn.Module; give a name such as 'mlp', "
        "'module:attribute', a module, or a class or function that makes one"
    ):
        build(f"{yours}:number", (7,), 3)
    with refused(
        f"model '{yours}:nothing' made an object of type NoneType, not a torch.nn.Module; return the module from it"
    ):
        build(f"{yours}:nothing", (7,), 3)
    with refused(
        f"model '{yours}:broken' called with ((7,), 3) raised RuntimeError: two lines; what accepts two "
        "arguments is called with (shape, n_outputs), anything else with none"
    ):
        build(f"{yours}:broken", (7,), 3)
    with refused(
        f"model '{yours}:Fixd' cannot be imported: AttributeError: module '{yours}' has no attribute 'Fixd'; "
        f"write '{yours}:' and a name that is in it"
    ):
        build(f"{yours}:Fixd", (7,), 3)
    with refused(
        "model 'polycentric_test_torn:Net' cannot be imported: ModuleNotFoundError: No module named "
        "'no_such_thing_anywhere'; `python -c 'import polycentric_test_torn'` must work, so install it or "
        "put its folder on PYTHONPATH"
    ):
        build("polycentric_test_torn:Net", (7,), 3)
    with pytest.raises(UsageError, match="BatchNorm1d at '1'"):
        build(f"{yours}:normed", (7,), 3)
    with pytest.raises(UsageError, match="neither a known name nor 'module:attribute'; write for example 'mynet:Net'"):
        build(":Net", (7,), 3)
