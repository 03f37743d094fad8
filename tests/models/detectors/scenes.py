"""Small images with coloured rectangles, for the tests of detectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polycentric.tasks.average_precision import detections, mean_ap, rows_of, voc

SHAPE = (3, 64, 80)
CLASSES = 3


def scenes(n: int = 4, boxes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rectangles on grey, one colour a class, and their targets; a row of padding at a random place."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.full((n, *SHAPE), 0.5), torch.zeros(n, boxes + 1, 5)
    for image in range(n):
        for k in range(boxes):
            kind = int(torch.randint(CLASSES, (1,), generator=generator))
            corner = torch.rand(2, generator=generator) * 0.6
            end = corner + 0.15 + 0.25 * torch.rand(2, generator=generator)
            y[image, k] = torch.tensor([kind, *corner, *end])
            x0, y0, x1, y1 = (torch.cat([corner, end]) * torch.tensor([80, 64, 80, 64])).round().int().tolist()
            x[image, :, y0:y1, x0:x1] = torch.eye(3)[kind][:, None, None]
        y[image, boxes, 0] = -1
        y[image] = y[image][torch.randperm(boxes + 1, generator=generator)]
    return x, y


def mean_precision(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """mAP at IoU .5."""
    with torch.no_grad():
        found = detections(model.candidates(model(x)))  # type: ignore[operator]
    return mean_ap(voc(rows_of(found), rows_of(y), CLASSES))


def learn(model: nn.Module, x: Tensor, y: Tensor, steps: int, lr: float) -> None:
    """Adam on all images at once."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        model.loss(model(x), y).mean().backward()  # type: ignore[operator]
        optimizer.step()
