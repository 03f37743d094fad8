"""Anchors: boxes of fixed sizes around the middle of every cell of grids of several scales.

    stride s      the grid has ceil(height / s) x ceil(width / s) cells of s x s pixels
    sides         w = 2 s sqrt(r),  h = 2 s / sqrt(r)        for every ratio r = w / h

The sizes follow from the strides alone. Sizes fitted to the boxes of all clients, as is the habit, would carry
knowledge of everybody's data to every client before the first round, and outside everything a method protects.

Reference: Ren et al., Faster R-CNN: towards real-time object detection with region proposal networks, 2015.
"""

import math

import torch
from torch import Tensor

from .boxes import cornered

RATIOS = (0.5, 1.0, 2.0)  # width to height
SIDE = 2.0  # of a square anchor, in strides


def cells(height: int, width: int, stride: int) -> tuple[int, int]:
    """Rows and columns of a grid: what convolutions of step 2 that round up leave of an image."""
    return math.ceil(height / stride), math.ceil(width / stride)


def anchors(
    height: int, width: int, strides: tuple[int, ...], ratios: tuple[float, ...] = RATIOS, side: float = SIDE
) -> tuple[Tensor, Tensor]:
    """Anchors (p, 4) and the sides of their cells (p, 2), in shares of the image's sides.

    In the order of scales, rows, columns, ratios. The last row and column may reach over the image's edge.
    """
    grids = [_of_one_scale(height, width, stride, ratios, side) for stride in strides]
    return torch.cat([boxes for boxes, _ in grids]), torch.cat([steps for _, steps in grids])


def _of_one_scale(
    height: int, width: int, stride: int, ratios: tuple[float, ...], side: float
) -> tuple[Tensor, Tensor]:
    rows, columns = cells(height, width, stride)
    image = torch.tensor([width, height], dtype=torch.float64)
    root = torch.tensor(ratios, dtype=torch.float64).sqrt()
    sides = side * stride * torch.stack([root, 1 / root], -1)  # (ratios, 2) in pixels
    y, x = torch.meshgrid(torch.arange(rows) + 0.5, torch.arange(columns) + 0.5, indexing="ij")
    centre = torch.stack([x, y], -1).double() * stride  # (rows, columns, 2) in pixels
    boxes = cornered(centre[:, :, None] / image, (sides / image).expand(rows, columns, -1, 2))
    return boxes.reshape(-1, 4).float(), (stride / image).expand(boxes.numel() // 4, 2).float()
