"""Boxes (x0, y0, x1, y1) in shares of an image's sides, as tensors (..., 4); all functions are batched, run in vmap.

    area(b)     = max(x1 - x0, 0) max(y1 - y0, 0)
    iou(a, b)   = area(a and b) / (area(a) + area(b) - area(a and b)),        0 where both have no area
    encode      = ((x - xa) / wa, (y - ya) / ha, log(w / wa), log(h / ha))    of centres (x, y) and sides (w, h)

A box of whole pixels has area (x1 - x0)(y1 - y0): x1 and y1 are where it ends, not its last pixel.

Reference: Girshick et al., Rich feature hierarchies for accurate object detection, CVPR 2014 (encode, nms).
"""

import math

import torch
from torch import Tensor

LONGEST = math.log(1000.0)  # of log(w / wa): an untrained model's exp stays finite


def area(boxes: Tensor) -> Tensor:
    """(..., 4) -> (...); a box whose ends are exchanged has none."""
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of every pair, (..., a, 4) and (..., b, 4) -> (..., a, b)."""
    # One side at a time: all pairs of corners at once would be four times the memory, and slower.
    width = _overlap(a[..., 0], a[..., 2], b[..., 0], b[..., 2])
    both = width * _overlap(a[..., 1], a[..., 3], b[..., 1], b[..., 3])
    union = area(a)[..., :, None] + area(b)[..., None, :] - both
    return both / union.clamp(min=torch.finfo(both.dtype).tiny)


def _overlap(a0: Tensor, a1: Tensor, b0: Tensor, b1: Tensor) -> Tensor:
    """Length of what intervals (..., a) and (..., b) share, (..., a, b)."""
    ends = torch.minimum(a1[..., :, None], b1[..., None, :])
    return (ends - torch.maximum(a0[..., :, None], b0[..., None, :])).clamp(min=0)


def taken(rows: Tensor, index: Tensor) -> Tensor:
    """rows (..., p, k) at index (..., q), (..., q, k)."""
    return rows.gather(-2, index[..., None].expand(*index.shape, rows.shape[-1]))


def nms(boxes: Tensor, scores: Tensor, threshold: float, classes: Tensor | None = None) -> Tensor:
    """Which boxes stay, (..., p): the best, then the best of those that overlap no box that stays, and so on.

    Arguments:
        boxes: (..., p, 4).
        scores: (..., p); of equal scores the first comes first.
        threshold: boxes of IoU > threshold with one that stays go.
        classes: (..., p), where a box makes only those of its own class go.
    """
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    sorted_boxes = taken(boxes, order)
    goes = iou(sorted_boxes, sorted_boxes) > threshold  # (..., p, p), by whom
    if classes is not None:
        sorted_classes = classes.gather(-1, order)
        goes = goes & (sorted_classes[..., :, None] == sorted_classes[..., None, :])
    goes = goes.triu(1)  # only by a better one
    stays = torch.ones_like(order, dtype=torch.bool)
    for i in range(order.shape[-1]):
        stays = stays & ~(goes[..., i, :] & stays[..., i : i + 1])
    return stays.gather(-1, order.argsort(dim=-1))


def centred(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Centres (..., 2) and sides (..., 2)."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return (low + high) / 2, high - low


def cornered(centre: Tensor, sides: Tensor) -> Tensor:
    """(..., 4) of centres (..., 2) and sides (..., 2)."""
    return torch.cat([centre - sides / 2, centre + sides / 2], -1)


def encode(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Offsets (..., 4) that lead from anchors (..., 4) to boxes (..., 4)."""
    centre, sides = centred(boxes)
    at, of = centred(anchors)
    # Padding, and what lies outside the image, has no sides: any finite number will do, its terms have weight zero.
    tiny = torch.finfo(sides.dtype).eps
    of = of.clamp(min=tiny)
    return torch.cat([(centre - at) / of, (sides.clamp(min=tiny) / of).log()], -1)


def decode(offsets: Tensor, anchors: Tensor) -> Tensor:
    """The boxes (..., 4) to which offsets (..., 4) lead from anchors (..., 4)."""
    at, of = centred(anchors)
    return cornered(at + offsets[..., :2] * of, of * offsets[..., 2:].clamp(max=LONGEST).exp())
