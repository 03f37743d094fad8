"""Average precision by hand, by law, and beside pycocotools; boxes chosen from candidates."""

from __future__ import annotations

import contextlib
import io
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from polycentric.tasks.average_precision import (
    COCO_IOUS,
    Array,
    coco,
    curves,
    detections,
    envelope,
    mean_ap,
    rows_of,
    voc,
)

# One image, one class: true boxes at x = 0 and x = 10, each 4 x 4.
TRUTHS = np.array([[0, 0, 0, 0, 4, 4], [0, 0, 10, 0, 14, 4]], float)


def found(*rows: tuple[float, float]) -> Array:
    """Detections (score, x) of 4 x 4 boxes at (x, 0) in image 0, of class 0."""
    return np.array([[0, 0, score, x, 0, x + 4, 4] for score, x in rows], float).reshape(-1, 7)


def scenes(seed: int, n_images: int = 20, n_classes: int = 4, per_image: int = 15) -> tuple[Array, Array]:
    """Random true boxes, and detections of which many are near one; scores with ties."""
    draws = np.random.default_rng(seed)
    truths, said = [], []
    for image in range(n_images):
        for _ in range(draws.integers(0, 6)):
            corner, kind = draws.uniform(0, 60, 2), draws.integers(n_classes)
            box = np.concatenate([corner, corner + draws.uniform(4, 40, 2)])
            truths.append([image, kind, *box])
            for _ in range(draws.integers(0, 4)):
                near = box + draws.normal(0, 1.5, 4)
                said.append([image, kind, round(draws.uniform(), 1 + image % 2), *near])
        for _ in range(draws.integers(0, per_image)):
            corner = draws.uniform(0, 60, 2)
            box = np.concatenate([corner, corner + draws.uniform(4, 40, 2)])
            said.append([image, draws.integers(n_classes), round(draws.uniform(), 2), *box])
    return np.array(said, float).reshape(-1, 7), np.array(truths, float).reshape(-1, 6)


# By hand


def test_perfect_and_nothing() -> None:
    assert voc(found((0.9, 0), (0.8, 10)), TRUTHS, 1).tolist() == [1]
    assert voc(found(), TRUTHS, 1).tolist() == [0]
    assert coco(found((0.9, 0), (0.8, 10)), TRUTHS, 1).tolist() == [[1]] * 10
    assert coco(found(), TRUTHS, 1).tolist() == [[0]] * 10


def test_a_wrong_one_between_two_right_ones() -> None:
    said = found((0.9, 0), (0.8, 30), (0.7, 10))  # precision 1, 1/2, 2/3 at recall 1/2, 1/2, 1
    assert voc(said, TRUTHS, 1)[0] == pytest.approx(1 / 2 * 1 + 1 / 2 * 2 / 3)
    assert coco(said, TRUTHS, 1)[0, 0] == pytest.approx((51 * 1 + 50 * 2 / 3) / 101)  # recalls 0 to .5, then to 1


def test_a_box_is_found_once() -> None:
    assert voc(found((0.9, 0), (0.8, 0), (0.7, 10)), TRUTHS, 1)[0] == pytest.approx(1 / 2 + 1 / 2 * 2 / 3)
    assert voc(found((0.9, 0), (0.8, 0.5)), TRUTHS, 1)[0] == pytest.approx(1 / 2)


def test_iou_of_exactly_the_threshold_is_right() -> None:
    said = np.array([[0, 0, 0.9, 0, 0, 4, 2]], float)  # half of the first true box
    assert voc(said, TRUTHS, 1, iou=0.5)[0] == pytest.approx(0.5)
    assert voc(said, TRUTHS, 1, iou=0.51)[0] == 0


def test_voc_and_coco_differ_in_the_second_best_box() -> None:
    truths = np.array([[0, 0, 0, 0, 4, 4], [0, 0, 1, 0, 5, 4]], float)
    said = found((0.9, 0), (0.8, 0.2))  # both are most like the first box; the second is like the other, too: IoU 2/3
    assert voc(said, truths, 1)[0] == pytest.approx(0.5)
    assert coco(said, truths, 1, (0.5, 0.7))[:, 0] == pytest.approx([1, 51 / 101])


def test_other_images_and_classes_do_not_count() -> None:
    said = np.array([[1, 0, 0.9, 0, 0, 4, 4], [0, 1, 0.9, 10, 0, 14, 4]], float)
    both = voc(said, TRUTHS, 2)
    assert both[0] == 0 and np.isnan(both[1])  # of class 1 there is no true box
    assert mean_ap(both) == 0
    assert np.isnan(mean_ap(voc(said, TRUTHS[:0], 2)))


def test_equal_scores_count_in_their_order() -> None:
    assert voc(found((0.5, 30), (0.5, 0)), TRUTHS[:1], 1)[0] == 0.5
    assert voc(found((0.5, 0), (0.5, 30)), TRUTHS[:1], 1)[0] == 1


def test_curve_by_hand() -> None:
    (curve,) = curves(found((0.7, 10), (0.9, 0), (0.8, 30)), TRUTHS, 1)
    assert curve.recall.tolist() == [0.5, 0.5, 1]
    assert curve.precision == pytest.approx([1, 1 / 2, 2 / 3])
    assert curve.score.tolist() == [0.9, 0.8, 0.7] and curve.true_boxes == 2
    assert envelope(curve.precision) == pytest.approx([1, 2 / 3, 2 / 3])


# Laws


def _slow_voc(said: Array, truths: Array, kind: int, least: float) -> float:
    """VOC's rule, one detection after another."""
    own = [row for row in said if row[1] == kind]
    own.sort(key=lambda row: -row[2])
    total = sum(row[1] == kind for row in truths)
    used: set[int] = set()
    hits: list[bool] = []
    for row in own:
        best, which = -1.0, -1
        for j, truth in enumerate(truths):
            if truth[0] == row[0] and truth[1] == kind:
                width = min(row[5], truth[4]) - max(row[3], truth[2])
                height = min(row[6], truth[5]) - max(row[4], truth[3])
                both = max(width, 0) * max(height, 0)
                sizes = (row[5] - row[3]) * (row[6] - row[4]) + (truth[4] - truth[2]) * (truth[5] - truth[3])
                if both / (sizes - both) > best:
                    best, which = both / (sizes - both), j
        hits.append(best >= least and which not in used)
        used |= {which} if hits[-1] else set()
    precisions = [sum(hits[: k + 1]) / (k + 1) for k in range(len(hits))]
    return sum(max(precisions[k:]) / total for k in range(len(hits)) if hits[k]) if total else float("nan")


@pytest.mark.parametrize("seed", range(4))
def test_equals_the_slow_rule(seed: int) -> None:
    said, truths = scenes(seed)
    for least in (0.5, 0.75):
        slow = [_slow_voc(said, truths, kind, least) for kind in range(5)]
        assert voc(said, truths, 5, least) == pytest.approx(slow, nan_ok=True)


@given(st.integers(0, 1000))
def test_bounds_and_order(seed: int) -> None:
    said, truths = scenes(seed, n_images=6)
    if not len(truths):
        return
    perfect = np.insert(truths, 2, 0.5, axis=1)
    assert mean_ap(voc(perfect, truths, 4)) == 1 and mean_ap(coco(perfect, truths, 4)) == 1
    by_iou = coco(said, truths, 4)
    assert np.nanmin(by_iou) >= 0 and np.nanmax(by_iou) <= 1
    shuffle = np.random.default_rng(seed).permutation(6)  # images in any order, each with its own rows in theirs
    again = np.concatenate([said[said[:, 0] == image] for image in shuffle])
    if len(np.unique(said[:, 2])) == len(said):
        assert voc(again, truths, 4) == pytest.approx(voc(said, truths, 4), nan_ok=True)


def pycoco(said: Array, truths: Array, n_classes: int) -> Array:
    """pycocotools' AP, (ious, classes)."""
    with contextlib.redirect_stdout(io.StringIO()):
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        def box(row: Array) -> list[float]:
            return [float(row[0]), float(row[1]), float(row[2] - row[0]), float(row[3] - row[1])]

        images = sorted(set(truths[:, 0]) | set(said[:, 0]))
        truth: Any = COCO()
        truth.dataset = {
            "info": {},
            "images": [{"id": int(i)} for i in images],
            "categories": [{"id": k} for k in range(n_classes)],
            "annotations": [
                {"id": i + 1, "image_id": int(r[0]), "category_id": int(r[1]), "bbox": box(r[2:]), "iscrowd": 0}
                | {"area": float((r[4] - r[2]) * (r[5] - r[3]))}
                for i, r in enumerate(truths)
            ],
        }
        truth.createIndex()
        results = [
            {"image_id": int(r[0]), "category_id": int(r[1]), "score": float(r[2]), "bbox": box(r[3:])} for r in said
        ]
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    precision: Array = evaluation.eval["precision"][:, :, :, 0, -1]  # ious, recalls, classes; all areas, 100 boxes
    return np.where(precision < 0, np.nan, precision).mean(1)


@pytest.mark.parametrize("seed", range(6))
def test_equals_pycocotools(seed: int) -> None:
    pytest.importorskip("pycocotools")
    said, truths = scenes(seed, n_images=12, per_image=15 if seed else 150)
    said, truths = said[said[:, 1] != 2], truths[truths[:, 1] != 3]  # a class never said, one that is not there
    expected = pycoco(said, truths, 4)
    assert np.isnan(expected[:, 3]).all() and not np.isnan(expected[:, :3]).any()
    assert coco(said, truths, 4) == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_fast_enough_for_subsets() -> None:
    draws = np.random.default_rng(0)
    truths = scenes(0, n_images=191, n_classes=7)[1]
    n = 19_100
    image, corner, sides = np.repeat(np.arange(191), 100), draws.uniform(0, 80, (n, 2)), draws.uniform(4, 40, (n, 2))
    said = np.column_stack([image, draws.integers(7, size=n), draws.uniform(size=n), corner, corner + sides])
    begin = time.perf_counter()
    assert coco(said, truths, 7).shape == (len(COCO_IOUS), 7)
    assert time.perf_counter() - begin < 2  # a tenth of it on a machine that is not busy


# Boxes from candidates


def candidate(x: float, *scores: float) -> list[float]:
    return [x, 0, x + 0.1, 0.1, *scores]


def test_detections_by_hand() -> None:
    images = torch.tensor(
        [
            [candidate(0.0, 0.9, 0.3), candidate(0.01, 0.8, 0.0), candidate(0.5, 0.001, 0.6)],
            [candidate(0.0, 0.0, 0.0), candidate(0.2, 0.0, 0.0), candidate(0.4, 0.0, 0.0)],
        ]
    )
    rows = detections(images, most=4, threshold=0.01)
    assert rows.shape == (2, 4, 6)
    assert rows[0, :, 0].tolist() == [0, 1, 1, -1]
    assert rows[0, :3, 1].tolist() == pytest.approx([0.9, 0.6, 0.3])
    assert rows[0, :3, 2].tolist() == pytest.approx([0, 0.5, 0])
    assert rows[1, :, 0].tolist() == [-1] * 4
    assert torch.equal(detections(images, most=2, threshold=0.01), rows[:, :2])
    assert detections(images, most=4, threshold=1.0)[..., 0].eq(-1).all()


def test_detections_of_an_image_do_not_depend_on_others() -> None:
    generator = torch.Generator().manual_seed(0)
    corner = torch.rand(5, 60, 2, generator=generator) * 0.7
    boxes = torch.cat([corner, corner + 0.3 * torch.rand(5, 60, 2, generator=generator)], -1)
    scores = torch.rand(5, 60, 3, generator=generator).mul(10).round() / 10  # many ties
    images = torch.cat([boxes, scores * torch.arange(5)[:, None, None] / 4], -1)
    together = detections(images, most=20, threshold=0.3)
    alone = torch.cat([detections(image[None], most=20, threshold=0.3) for image in images])
    assert torch.equal(together, alone)
    assert detections(images[:0]).shape == (0, 100, 6)


def test_rows_of_padded() -> None:
    targets = torch.tensor([[[-1, 0, 0, 0, 0], [2, 0.1, 0.2, 0.3, 0.4]], [[0, 0, 0, 1, 1], [-1, 9, 9, 9, 9]]])
    rows: Tensor = torch.from_numpy(rows_of(targets))
    assert torch.allclose(rows, torch.tensor([[0, 2, 0.1, 0.2, 0.3, 0.4], [1, 0, 0, 0, 1, 1]]).double())
    assert rows_of(targets, torch.tensor([7, 9]))[:, 0].tolist() == [7, 9]
    assert rows_of(targets[:, :0]).shape == (0, 6)
