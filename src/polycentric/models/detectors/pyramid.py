"""What the detectors have in common: features of an image at strides 8, 16 and 32, the coarse ones told to the finer.

    image -> body1 (1/2) -> body2 (1/4) -> body3 (1/8) -> body4 (1/16) -> body5 (1/32)
                                              |               |               |
                                            side3           side4           side5
                                              |               |               |
                                    p3 <- neck3 (+) <- x2 - neck4 (+) <- x2 - p5          p4 behind neck4

Blocks are those of Darknet-53, fewer and narrower, with GroupNorm, whose output for an image does not depend on others.

Reference: Redmon and Farhadi, YOLOv3: an incremental improvement, 2018. Lin et al., Feature pyramid networks for
object detection, CVPR 2017, and Focal loss for dense object detection, ICCV 2017 (the first bias of a rare event). Wu
and He, Group normalization, ECCV 2018.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from .anchors import RATIOS

STRIDES = (8, 16, 32)
RARE = 0.01  # the share of anchors with an object that a new model expects
SLOPE = 0.1  # of leaky ReLU where its input is negative


class Convolution(nn.Module):
    """A convolution that keeps the size, or halves it and rounds up, with GroupNorm and leaky ReLU."""

    def __init__(self, n_inputs: int, n_outputs: int, side: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(n_inputs, n_outputs, side, stride, padding=side // 2, bias=False)
        self.norm = nn.GroupNorm(math.gcd(8, n_outputs), n_outputs)
        nn.init.kaiming_normal_(self.conv.weight, a=SLOPE)

    def forward(self, x: Tensor) -> Tensor:
        """(n, n_inputs, h, w) -> (n, n_outputs, h, w)."""
        return leaky_relu(self.norm(self.conv(x)), SLOPE)


class Residual(nn.Module):
    """x + f(x), with half the channels inside."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = Convolution(channels, channels // 2, side=1)
        self.outer = Convolution(channels // 2, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, h, w) -> the same."""
        changed: Tensor = self.outer(self.inner(x))
        return x + changed


def halved(n_inputs: int, n_outputs: int, residuals: int) -> nn.Sequential:
    """Half the size, and some residual blocks."""
    return nn.Sequential(Convolution(n_inputs, n_outputs, stride=2), *(Residual(n_outputs) for _ in range(residuals)))


def doubled(x: Tensor, like: Tensor) -> Tensor:
    """Every pixel four times, and no more of them than `like` has."""
    *first, rows, columns = x.shape
    grown = x[..., :, None, :, None].expand(*first, rows, 2, columns, 2).reshape(*first, 2 * rows, 2 * columns)
    return grown[..., : like.shape[-2], : like.shape[-1]]


class Pyramid(nn.Module):
    """Images (n, n_inputs, height, width) in [0, 1] -> features of 4 `width` channels at strides 8, 16, 32."""

    def __init__(self, n_inputs: int, width: int) -> None:
        super().__init__()
        self.channels = 4 * width
        self.body1 = halved(n_inputs, width, 0)
        self.body2 = halved(width, 2 * width, 1)
        self.body3 = halved(2 * width, 4 * width, 2)
        self.body4 = halved(4 * width, 8 * width, 2)
        self.body5 = halved(8 * width, 8 * width, 1)
        self.side3, self.side4, self.side5 = (Convolution(k * width, self.channels, side=1) for k in (4, 8, 8))
        self.neck4, self.neck3 = (Convolution(self.channels, self.channels) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Each (n, channels, ceil(height / stride), ceil(width / stride))."""
        c3 = self.body3(self.body2(self.body1(x - 0.5)))
        c4 = self.body4(c3)
        p5 = self.side5(self.body5(c4))
        p4 = self.neck4(self.side4(c4) + doubled(p5, c4))
        p3 = self.neck3(self.side3(c3) + doubled(p4, c3))
        return p3, p4, p5


def anchor_head(channels: int, k: int, objectness: int) -> nn.Conv2d:
    """k numbers of every anchor of a cell, one of which, at `objectness`, is the logit of an object being there."""
    head = nn.Conv2d(channels, len(RATIOS) * k, 1)
    nn.init.normal_(head.weight, std=0.01)
    # An object is rare: without this the first steps would do nothing but say so everywhere.
    bias = torch.zeros(len(RATIOS), k)
    bias[:, objectness] = math.log(RARE / (1 - RARE))
    head.bias = nn.Parameter(bias.flatten())
    return head


def by_anchor(said: Tensor, k: int) -> Tensor:
    """What a head says of every cell, (n, ratios k, rows, columns) -> (n, rows columns ratios, k), as anchors lie."""
    n, _, rows, columns = said.shape
    return said.reshape(n, -1, k, rows, columns).permute(0, 3, 4, 1, 2).flatten(1, 3)
