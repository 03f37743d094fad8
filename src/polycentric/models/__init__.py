"""Small models named as in the papers, each of which runs as a stack of many models at once.

build("mnist-cnn", (1, 28, 28), 10)     a module with its first parameters, a function of the seed
MODELS                                  every name, with one line about it
check(module)                           refuses what cannot be stacked and averaged (BatchNorm)
"""

from .by_name import MODELS, build, default
from .checks import check, n_parameters
from .convolutional import lg_lenet
from .dense import mlp
from .text import LSTM, CharLSTM

__all__ = ["LSTM", "MODELS", "CharLSTM", "build", "check", "default", "lg_lenet", "mlp", "n_parameters"]
