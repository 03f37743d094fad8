"""Models of dense layers only: they read the numbers of an example in a row, whatever its shape was.

    (1, 28, 28) -> flatten -> 784 -> [dense, ReLU] x hidden -> head -> n_outputs

The hidden layers are `dense1`, `dense2`, ...; the last layer is `head`, as in every model here.

Reference: McMahan et al., Communication-efficient learning of deep networks from decentralized data,
AISTATS 2017 (2nn). Liang et al., Think locally, act globally, 2020 (lg-mlp).
"""

import math
from collections import OrderedDict

from torch import nn


def mlp(shape: tuple[int, ...], n_outputs: int, hidden: tuple[int, ...] = (128,)) -> nn.Sequential:
    """Dense layers with ReLU between them; no hidden layer makes it logistic regression.

    On 1 x 28 x 28 with 10 outputs:

        hidden                   name        parameters
        ()                       logistic         7,850
        (128,)                   mlp            101,770
        (200, 200)               2nn            199,210
        (512, 256, 256, 128)     lg-mlp         633,226   of which dense3, dense4 and head 99,978

    >>> mlp((28, 28), 10, hidden=())
    Sequential(
      (flatten): Flatten(start_dim=1, end_dim=-1)
      (head): Linear(in_features=784, out_features=10, bias=True)
    )
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    n_inputs = math.prod(shape)
    for i, width in enumerate(hidden, start=1):
        layers[f"dense{i}"] = nn.Linear(n_inputs, width)
        layers[f"relu{i}"] = nn.ReLU()
        n_inputs = width
    layers["head"] = nn.Linear(n_inputs, n_outputs)
    return nn.Sequential(layers)
