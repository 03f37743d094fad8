"""Small models named as in the papers, each of which runs as a stack of many models at once.

build("mnist-cnn", (1, 28, 28), 10)     a module with its first parameters, a function of the seed
MODELS                                  every name, with one line about it
check(module)                           refuses what cannot be stacked and averaged (BatchNorm)
"""

from .catalog import MODELS, Recipe, build, default
from .checks import check, n_parameters
from .dense import mlp
from .image import celeba_cnn, lg_lenet, two_convolutions, vgg11
from .series import har_cnn
from .text import LSTM, CharLSTM, char_lstm

__all__ = [
    "LSTM",
    "MODELS",
    "CharLSTM",
    "Recipe",
    "build",
    "celeba_cnn",
    "char_lstm",
    "check",
    "default",
    "har_cnn",
    "lg_lenet",
    "mlp",
    "n_parameters",
    "two_convolutions",
    "vgg11",
]
