"""Objects in images: boxes with a class and a score.

    outputs z (n, rows, width)    what the detector gives, raw: it alone knows how to read it
    targets y (n, most, 5)        rows (class, x0, y0, x1, y1) in shares of the image's sides; class -1: no box
    loss      detector.loss(z, y)
    answer    detector.candidates(z), boxes and every class's score, then non-maximum suppression within each class:
              (n, 100, 6), rows (class, score, x0, y0, x1, y1), best first; class -1: no box

    map50               of a client: the mean over classes of VOC's AP at IoU 0.5 on its own images, by its own model;
                        micro_map50 weighs it by images, as the published program does
    pooled_map50        of all clients' boxes together, each found by its own client's model; another number than that
    pooled_map          the same by COCO: the mean over IoU 0.5, 0.55, ..., 0.95
    ap50_CLASS          of one class, all clients' boxes together

A class of which there are no true boxes has no AP: it is left out of a mean, and `classes_without_boxes` counts those
of all clients together. A client whose images show nothing has no map50.

Reference: Everingham et al., The PASCAL visual object classes challenge: a retrospective, IJCV 2015. Lin et al.,
Microsoft COCO: common objects in context, ECCV 2014. Luo et al., Real-world image datasets for federated learning,
2019.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import UsageError
from .average_precision import coco, detections, mean_ap, rows_of, voc
from .goal import Goal, Numbers
from .scores import Integers, Mark, Reals, Scores, mean_by_client

MOST = 100  # boxes of an image
SURE = 0.3  # the score from which on a box is told to people
AT_ONCE = 64  # images whose boxes are compared with each other


@runtime_checkable
class Detector(Protocol):
    """A module that finds boxes: beside `forward`, two functions of its outputs that use no parameters."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every image, (n,)."""

    def candidates(self, outputs: Tensor) -> Tensor:
        """Boxes in shares of the sides, and every class's score in [0, 1], (n, p, 4 + classes)."""


@dataclass(frozen=True, eq=False)
class Detection(Goal):
    """Where objects are in an image, and of which class."""

    detector: Detector | None = None

    leads = ("pooled_map50", "micro_map50")
    outputs_are = "raw outputs of the detector: model.candidates(outputs) gives boxes and a score for each class"
    averages = False
    placed = True

    def fitted(self, module: nn.Module) -> Self:
        """For a detector; refuses other models."""
        if not isinstance(module, Detector):
            raise UsageError(
                f"the targets are boxes, and model {type(module).__name__} has no `loss` and `candidates`, which say "
                "what its outputs mean: use --model yolo or --model faster-rcnn, or write both (docs/tasks.md)"
            )
        return replace(self, detector=module)

    def wanted(self, n_outputs: int, target: tuple[int, ...]) -> tuple[int, ...] | None:
        """Any: the detector reads them."""
        return None

    @property
    def _detector(self) -> Detector:
        assert self.detector is not None, "a goal that knows no model yet"
        return self.detector

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The detector's, of every image."""
        return self._detector.loss(outputs, targets)

    def answers(self, outputs: Tensor) -> Tensor:
        """The best boxes of every image, (n, 100, 6)."""
        # A box beyond the largest number is nowhere; NaN would be sorted first.
        each = (self._detector.candidates(part).nan_to_num(0, 0, 0) for part in torch.split(outputs, AT_ONCE))
        found = [detections(part, MOST) for part in each]
        return torch.cat(found) if found else outputs.new_zeros(0, MOST, 6)

    def room(self, n_outputs: int, target: tuple[int, ...]) -> tuple[int, ...]:
        """The boxes of an image."""
        return (MOST, 6)

    def noted(self, outputs: Tensor) -> Tensor:
        """The boxes."""
        return self.answers(outputs).double()

    def score(
        self, noted: Reals, targets: Numbers, losses: Reals, owner: Integers, n_clients: int, classes: tuple[str, ...]
    ) -> Scores:
        """mAP of every client and of all together."""
        found, truth = rows_of(torch.from_numpy(noted)), rows_of(torch.from_numpy(targets))
        count, n = np.bincount(owner, minlength=n_clients), len(classes)
        mine = np.full(n_clients, np.nan)
        for k, some, true in _by_client(found, truth, owner):
            mine[k] = mean_ap(voc(some, true, n))
        each = voc(found, truth, n)
        pooled = {"pooled_map50": mean_ap(each), "pooled_map": mean_ap(coco(found, truth, n))}
        pooled |= {f"ap50_{name}": float(value) for name, value in zip(classes, each, strict=True)}
        pooled["classes_without_boxes"] = float(np.isnan(each).sum())
        return Scores(
            count, mean_by_client(losses, owner, count), pooled=pooled, marks={"map50": Mark(mine)}, serves="map50"
        )

    def off(self, answers: Tensor, targets: Tensor) -> dict[str, float]:
        """mAP of all images together."""
        n = int(max(float(targets[..., 0].max()), float(answers[..., 0].max()))) + 1 if len(answers) else 0
        found, truth = rows_of(answers), rows_of(targets)
        return {"map50": mean_ap(voc(found, truth, n)), "map": mean_ap(coco(found, truth, n))}

    def told(self, answer: Tensor, heads: tuple[str, ...]) -> dict[str, Any]:
        """How many boxes there are, and each with its class, score and corners in shares of the sides."""
        scored = answer.shape[-1] == 6
        rows = [row for row in answer.tolist() if row[0] >= 0 and (not scored or row[1] >= SURE)]
        words = [f"{heads[int(row[0])]} {' '.join(f'{value:.3f}' for value in row[1:])}" for row in rows]
        return {"boxes": len(rows), "": "; ".join(words)}


def _by_client(found: Reals, truth: Reals, owner: Integers) -> Iterator[tuple[int, Reals, Reals]]:
    """Every client's found and true boxes."""
    whose, true = owner[found[:, 0].astype(np.int64)], owner[truth[:, 0].astype(np.int64)]
    for k in np.unique(true):
        yield int(k), cast(Reals, found[whose == k]), cast(Reals, truth[true == k])
