"""Every model by its name, and how a name, a class or a factory of yours becomes a module.

    build("mnist-cnn", (1, 28, 28), 10)          a name of the table below
    build("mynet:Net", (1, 28, 28), 10)          what `Net` in your own mynet.py makes
    build(Net, (1, 28, 28), 10)                  the same, already imported

One example's shape says what the data are: images (channels, height, width), series (channels, time), flat
features (features,), or a text (length,) of integer symbols, when the number of symbols is given.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn

from ..errors import UsageError, require, unknown
from ..language.own_code import imported, own_function
from ..stacks import draw
from .checks import check
from .convolutional import celeba_cnn, har_cnn, lg_lenet, two_convolutions, vgg11
from .dense import mlp
from .detectors import FasterRCNN, Yolo
from .text import CharLSTM

Factory = Callable[..., object]  # a class or function that makes a module


@dataclass(frozen=True)
class NamedModel:
    """How a named model is made, and from what shapes of examples it can be."""

    about: str  # one line for a listing
    make: Callable[..., nn.Module]  # of (shape, n_outputs); of (symbols, n_outputs) if it reads text
    reads: Literal["numbers", "images", "series", "text"] = "numbers"
    smallest: int = 1  # the shortest side of an image, or length of a series, of which its pools leave something

    def takes(self, shape: tuple[int, ...], symbols: int = 0) -> bool:
        """Whether the model can read examples of this shape."""
        sides = {"text": 1, "series": 2, "images": 3}.get(self.reads, len(shape))
        large = self.reads not in ("series", "images") or min(shape[1:], default=0) >= self.smallest
        return (symbols > 0) == (self.reads == "text") and len(shape) == sides and large

    @property
    def wants(self) -> str:
        """The shapes it can read, in words."""
        return {
            "text": "a text (length,) of integer symbols, with symbols > 0",
            "images": f"images (channels, height, width) of at least {self.smallest} x {self.smallest}",
            "series": f"series (channels, time) of at least {self.smallest} times",
            "numbers": "numbers of any shape, not symbols",
        }[self.reads]


def _two_convolutions(words: str, n_dense: int | None) -> NamedModel:
    return NamedModel(words, partial(two_convolutions, n_dense=n_dense), "images", smallest=4)


MODELS: dict[str, NamedModel] = {
    "logistic": NamedModel("logistic regression: one linear layer", partial(mlp, hidden=())),
    "mlp": NamedModel("one hidden layer of 128", mlp),
    "2nn": NamedModel("FedAvg's two hidden layers of 200", partial(mlp, hidden=(200, 200))),
    "lg-mlp": NamedModel(
        "LG-FedAvg's net for MNIST: hidden layers of 512, 256, 256, 128", partial(mlp, hidden=(512, 256, 256, 128))
    ),
    "mnist-cnn": _two_convolutions("FedAvg's net for MNIST: two 5 x 5 convolutions (32, 64), dense 512", 512),
    "fmnist-cnn": _two_convolutions("two 5 x 5 convolutions (32, 64) and one linear layer", None),
    "femnist-cnn": _two_convolutions("FeSEM's net for FEMNIST: two 5 x 5 convolutions (32, 64), dense 248", 248),
    "lg-lenet": NamedModel(
        "LG-FedAvg's net for CIFAR-10: two 5 x 5 convolutions (6, 16), dense 120, 100", lg_lenet, "images", smallest=16
    ),
    "celeba-cnn": NamedModel(
        "LEAF's net for CelebA: four 3 x 3 convolutions of 32, with GroupNorm", celeba_cnn, "images"
    ),
    "vgg11": NamedModel("VGG-11 with GroupNorm and one linear layer", vgg11, "images", smallest=32),
    "yolo": NamedModel("a one-stage detector of boxes at three scales, with GroupNorm", Yolo, "images", smallest=64),
    "faster-rcnn": NamedModel(
        "a two-stage detector: regions are proposed, then judged, with GroupNorm", FasterRCNN, "images", smallest=64
    ),
    "har-cnn": NamedModel("three 1-D convolutions (32, 64, 64) with GroupNorm", har_cnn, "series", smallest=4),
    "char-lstm": NamedModel("LEAF's net for Shakespeare: embedding 8, two LSTM layers of 256", CharLSTM, "text"),
}


def build(
    name: str | nn.Module | Factory,
    shape: tuple[int, ...] | dict[str, tuple[int, ...]],
    n_outputs: int,
    seed: int = 0,
    symbols: int = 0,
) -> nn.Module:
    """A module whose first parameters depend on the seed and on nothing else.

    Arguments:
        name: a name of `MODELS`; or 'module:attribute', your own class or factory, called with (shape,
            n_outputs) if it accepts two arguments and with none if not; or that class or factory itself; or
            a module, which is checked and given back as it is.
        shape: of one example, without the batch; of several inputs, the shape of each by its name.
        n_outputs: classes, or numbers to predict.
        seed: of the first parameters. torch's own generators are left as they were.
        symbols: how many symbols a text is written with; 0 if the data are not text.

    >>> from polycentric.models import n_parameters
    >>> n_parameters(build("2nn", (1, 28, 28), 10))
    199210
    """
    if not isinstance(shape, dict):
        shape = tuple(shape)
        good = len(shape) > 0 and min(shape) > 0
        require(good, f"shape is one example's, of positive numbers such as (1, 28, 28), not {shape}")
    require(n_outputs > 0, f"n_outputs is the number of classes, at least 1, not {n_outputs}")
    called = name if isinstance(name, str) else str(getattr(name, "__qualname__", type(name).__name__))
    host = torch.device("cpu")  # the same bits whatever device is torch's default or comes later
    # Importing may draw too, but only the first time: it must not be in front of the draws of the parameters.
    with host, draw.seeded(host, seed, "model"):
        source = _imported(name) if isinstance(name, str) and ":" in name else name
    with host, draw.seeded(host, seed, "model"):
        if isinstance(source, str) and not isinstance(shape, dict):
            module = _from_ours(source, shape, n_outputs, symbols)
        else:
            module = _from_yours(source, called, shape, n_outputs)
    check(module)
    return module


def default(shape: tuple[int, ...], n_outputs: int, symbols: int = 0, kind: str = "classes") -> str:
    """The name of a model that is quick to train on examples of this shape, for targets of this kind.

    >>> default((1, 28, 28), 10), default((6, 128), 6), default((80,), 80, symbols=80)
    ('mlp', 'har-cnn', 'char-lstm')
    >>> default((3, 144, 176), 7, kind="boxes")
    'yolo'
    """
    del n_outputs  # it changes nothing; it is taken so that the call reads as that of `build`
    if kind == "boxes":
        return "yolo"
    if symbols > 0:
        return "char-lstm"
    return "har-cnn" if MODELS["har-cnn"].takes(shape) else "mlp"


def _from_ours(name: str, shape: tuple[int, ...], n_outputs: int, symbols: int) -> nn.Module:
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    recipe = MODELS[name]
    if not recipe.takes(shape, symbols):
        others = [other for other in MODELS if MODELS[other].takes(shape, symbols)]
        remedy = f"models that take it: {', '.join(others)}" if others else "no named model takes it"
        of = f" of {symbols} symbols" if symbols else ""
        raise UsageError(f"model '{name}' takes {recipe.wants}, not shape {shape}{of}; {remedy}")
    return recipe.make(symbols if recipe.reads == "text" else shape, n_outputs)


def _imported(name: str) -> object:
    """What 'module:attribute' names; what is called must be a class or function that is written there."""
    found: object = imported(name, "model")
    return own_function(name, "model") if callable(found) and not isinstance(found, nn.Module | partial) else found


def _from_yours(source: object, called: str, shape: object, n_outputs: int) -> nn.Module:
    """The user's module: given as such, or made by the user's class or factory."""
    if isinstance(source, nn.Module):
        return source
    if not callable(source):
        raise UsageError(
            f"model '{called}' is of type {type(source).__name__}, not a torch.nn.Module; "
            "give a name such as 'mlp', 'module:attribute', a module, or a class or function that makes one"
        )
    arguments = (shape, n_outputs) if _accepts_two(source) else ()
    try:
        module = source(*arguments)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"model '{called}' called with {arguments} raised {_said(error)}; what accepts two arguments "
            "is called with (shape, n_outputs), anything else with none"
        ) from error
    if not isinstance(module, nn.Module):
        raise UsageError(
            f"model '{called}' made an object of type {type(module).__name__}, not a torch.nn.Module; "
            "return the module from it"
        )
    return module


def _accepts_two(source: Callable[..., object]) -> bool:
    try:
        inspect.signature(source).bind((), 0)
    except (TypeError, ValueError):  # ValueError: written in C, without a signature
        return False
    return True


def _said(error: BaseException) -> str:
    """An error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
