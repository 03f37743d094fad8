"""A convolutional model for series of shape (channels, time), such as the sensors of a telephone.

(6, 128) -> [convolution, GroupNorm, pool, ReLU] x 2 -> convolution, GroupNorm, ReLU -> mean over time -> head
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def har_cnn(shape: tuple[int, ...], n_outputs: int) -> nn.Sequential:
    """Three 1-D convolutions and a mean over time: 33,318 parameters on 6 x 128 with 6 outputs.

    The mean makes the number of parameters independent of the length.
    """
    channels, _ = shape
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv1d(channels, 32, 9, padding=4),
            norm1=nn.GroupNorm(4, 32),
            pool1=nn.MaxPool1d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv1d(32, 64, 5, padding=2),
            norm2=nn.GroupNorm(4, 64),
            pool2=nn.MaxPool1d(2),
            relu2=nn.ReLU(),
            conv3=nn.Conv1d(64, 64, 5, padding=2),
            norm3=nn.GroupNorm(4, 64),
            relu3=nn.ReLU(),
            mean=nn.AdaptiveAvgPool1d(1),
            flatten=nn.Flatten(),
            head=nn.Linear(64, n_outputs),
        )
    )
