"""Average precision: how well boxes are found, over all scores at which one could stop believing them.

    detections (d, 7)   rows (image, class, score, x0, y0, x1, y1)
    truths     (t, 6)   rows (image, class, x0, y0, x1, y1)

The detections of a class, best score first (of equal scores the first), are right or wrong one after another: right
when the IoU with a true box of this image and class is at least the threshold and the box was not found before.

    recall_k      = right among the first k / true boxes
    precision_k   = right among the first k / k
    envelope(r)   = max of precision_k over recall_k >= r
    AP            = integral of envelope(r) over r in [0, 1]                  VOC, from 2010 on
    AP            = mean of envelope(r) over r = 0, 0.01, ..., 1              COCO
    mAP           = mean of AP over the classes of which there are true boxes

VOC looks at the true box with the highest IoU alone, and the detection is wrong if that was found before; COCO looks at
those not found before. COCO's mAP[.5:.95] is the mean over the thresholds .5, .55, ..., .95 as well. A class without
true boxes has no AP: it is NaN, and left out of means.

Reference: Everingham et al., The PASCAL visual object classes challenge: a retrospective, IJCV 2015. Lin et al.,
Microsoft COCO: common objects in context, ECCV 2014.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..models.detectors.boxes import nms

Array = NDArray[np.float64]
COCO_IOUS = tuple(round(0.5 + 0.05 * k, 2) for k in range(10))
COCO_RECALLS = np.linspace(0, 1, 101)
COCO_MOST = 100  # detections of a class in an image
OVERLAP = 0.5  # IoU above which two detections of a class are of one object
BEFORE = 3  # times as many boxes as are wanted are compared with each other


def detections(candidates: Tensor, most: int = 100, threshold: float = 0.01, overlap: float = OVERLAP) -> Tensor:
    """The best boxes of every image after non-maximum suppression within each class, (n, most, 6).

    Arguments:
        candidates: (n, p, 4 + C) boxes, and every class's score in [0, 1].
        most: boxes of an image, of all classes together.
        threshold: the lowest score that counts.
        overlap: of two boxes of a class with a higher IoU the worse goes.

    Rows are (class, score, x0, y0, x1, y1), best score first; the class is -1 where there is no box.
    """
    n, _, width = candidates.shape
    scores = candidates[..., 4:].flatten(1)  # (n, p C)
    above = int((scores >= threshold).sum(1).max()) if n else 0
    k = min(BEFORE * most, above)
    # Which of equal scores topk takes first is its own affair: by their place, they come in one order everywhere.
    place = scores.topk(k, dim=1).indices.sort(dim=1).values
    score, order = scores.gather(1, place).sort(dim=1, descending=True, stable=True)
    place = place.gather(1, order)
    boxes = candidates[..., :4].gather(1, (place // (width - 4))[..., None].expand(n, k, 4))
    kind = place % (width - 4)
    good = nms(boxes, score, overlap, kind) & (score >= threshold)
    rows = torch.cat([kind[..., None].to(boxes), score[..., None], boxes], -1)
    nothing = torch.zeros(n, most, 6).to(rows)
    nothing[..., 0] = -1
    # Those that stay come first, in the order they have; then rows of nothing.
    first = torch.cat([good, torch.ones_like(nothing[..., 0], dtype=torch.bool)], 1)
    index = (~first).sort(dim=1, stable=True).indices[:, :most]
    return torch.cat([rows, nothing], 1).gather(1, index[..., None].expand(n, most, 6))


def rows_of(padded: Tensor, images: Tensor | None = None) -> Array:
    """Padded rows (n, m, k) of images, class first and -1 where there is nothing, as rows (d, 1 + k) of numpy.

    Arguments:
        padded: what `detections` gives, or targets (n, m, 5).
        images: (n,) the number of every image; 0, 1, ... by default.
    """
    numbers = torch.arange(len(padded)) if images is None else images
    table = padded.detach().cpu().double()
    image = numbers.cpu().double()[:, None, None].expand(*table.shape[:2], 1)
    found: Array = torch.cat([image, table], -1)[table[..., 0] >= 0].numpy()
    return found


class Curve(NamedTuple):
    """Precision over recall for one class, after every detection from the best score down."""

    recall: Array  # (k,)
    precision: Array  # (k,)
    score: Array  # (k,)
    true_boxes: int


def curves(detections: Array, truths: Array, n_classes: int, iou: float = 0.5) -> list[Curve]:
    """VOC's curve of every class."""
    found = _sorted(detections)
    return _curves(found, truths, n_classes, _right_voc(_pairs(found, truths), iou))


def voc(detections: Array, truths: Array, n_classes: int, iou: float = 0.5) -> Array:
    """VOC's AP of every class, (C,); NaN where there are no true boxes."""
    return np.array([_area(curve) for curve in curves(detections, truths, n_classes, iou)])


def coco(detections: Array, truths: Array, n_classes: int, ious: tuple[float, ...] = COCO_IOUS) -> Array:
    """COCO's AP of every IoU and class, (ious, C); NaN where there are no true boxes."""
    found = _best_of_every_image(_sorted(detections))
    right = _right_coco(_pairs(found, truths), ious)
    return np.array([[_at_recalls(curve) for curve in _curves(found, truths, n_classes, r)] for r in right])


def mean_ap(per_class: Array) -> float:
    """The mean over the classes, and IoUs, that have an AP; NaN where none has."""
    present = per_class[~np.isnan(per_class)]
    return float(present.mean()) if present.size else float("nan")


class _Pairs(NamedTuple):
    """Every detection beside the true boxes of its image and class."""

    iou: Array  # (d, most) with the true boxes; -1 where there is none
    first: NDArray[np.int64]  # (d,) the number of the first of these true boxes; true boxes of a group are neighbours
    rank: NDArray[np.int64]  # (d,) how many detections of the same image and class are better


def _sorted(detections: Array) -> Array:
    return detections[np.argsort(-detections[:, 2], kind="stable")]


def _best_of_every_image(found: Array) -> Array:
    _, group = np.unique(found[:, :2], axis=0, return_inverse=True)
    return found[_rank(group.reshape(-1)) < COCO_MOST]


def _rank(group: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many before it are of the same group, for every one."""
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group, minlength=1)
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank


def _pairs(found: Array, truths: Array) -> _Pairs:
    keys = np.concatenate([truths[:, :2], found[:, :2]])
    _, group = np.unique(keys, axis=0, return_inverse=True)
    of_truth, of_found = group.reshape(-1)[: len(truths)], group.reshape(-1)[len(truths) :]
    boxes = truths[np.argsort(of_truth, kind="stable"), 2:]
    sizes = np.bincount(of_truth, minlength=len(keys))
    start, size = (np.cumsum(sizes) - sizes)[of_found], sizes[of_found]
    slot = np.arange(max(1, sizes.max(initial=0)))
    there = slot < size[:, None]  # (d, most)
    overlap = np.full(there.shape, -1.0)
    overlap[there] = _iou(np.repeat(found[:, 3:], size, 0), boxes[(start[:, None] + slot)[there]])
    return _Pairs(overlap, start, _rank(of_found))


def _iou(a: Array, b: Array) -> Array:
    """Of pairs (k, 4) and (k, 4)."""
    sides = np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])
    both = sides.clip(0).prod(1)
    union = (a[:, 2:] - a[:, :2]).clip(0).prod(1) + (b[:, 2:] - b[:, :2]).clip(0).prod(1) - both
    found: Array = np.divide(both, union, out=np.zeros_like(both), where=union > 0)
    return found


def _right_voc(pairs: _Pairs, iou: float) -> NDArray[np.bool_]:
    """Which detections are right, (d,): the first of those that point to a true box."""
    best = pairs.iou.argmax(1)
    right: NDArray[np.bool_] = pairs.iou.max(1, initial=-1.0) >= iou
    claims = np.flatnonzero(right)
    _, first = np.unique((pairs.first + best)[claims], return_index=True)
    right[np.delete(claims, first)] = False
    return right


def _right_coco(pairs: _Pairs, ious: tuple[float, ...]) -> NDArray[np.bool_]:
    """Which detections are right at every IoU, (ious, d): each takes the best true box that is left."""
    d, most = pairs.iou.shape
    right = np.zeros((len(ious), d), bool)
    taken = np.zeros((len(ious), int(pairs.first.max(initial=0)) + most), bool)
    slot, least = np.arange(most), np.array(ious)[:, None]
    near = np.flatnonzero(pairs.iou.max(1, initial=-1.0) >= min(ious))  # few of them; no other can be right
    near = near[np.argsort(pairs.rank[near], kind="stable")]
    # Detections of different images or classes do not meet: those of one rank are looked at together.
    for one in np.split(near, np.flatnonzero(np.diff(pairs.rank[near])) + 1):
        box = pairs.first[one, None] + slot
        left = np.where(taken[:, box], -1.0, pairs.iou[one])  # (ious, ones, most)
        best = most - 1 - left[..., ::-1].argmax(-1)  # of equals the last, as pycocotools does
        hit = np.take_along_axis(left, best[..., None], -1)[..., 0] >= least
        right[:, one] = hit
        where, which = np.nonzero(hit)
        taken[where, pairs.first[one][which] + best[where, which]] = True
    return right


def _curves(found: Array, truths: Array, n_classes: int, right: NDArray[np.bool_]) -> list[Curve]:
    made = []
    for c in range(n_classes):
        own = found[:, 1] == c
        total = int((truths[:, 1] == c).sum())
        hits = np.cumsum(right[own])
        precision = hits / np.arange(1, len(hits) + 1)
        made.append(Curve(hits / max(total, 1), precision, found[own, 2], total))
    return made


def envelope(precision: Array) -> Array:
    """The highest precision at this recall or beyond, (k,)."""
    return np.maximum.accumulate(precision[::-1])[::-1]


def _area(curve: Curve) -> float:
    if not curve.true_boxes:
        return float("nan")
    return float((np.diff(curve.recall, prepend=0.0) * envelope(curve.precision)).sum())


def _at_recalls(curve: Curve) -> float:
    if not curve.true_boxes:
        return float("nan")
    at = np.searchsorted(curve.recall, COCO_RECALLS, side="left")
    return float(np.append(envelope(curve.precision), 0.0)[at].mean())
