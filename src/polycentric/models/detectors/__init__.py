"""Detectors: images in, boxes with classes out.

A detector is a module with `forward(x) -> outputs` (n, rows, width), `loss(outputs, targets) -> (n,)` and
`candidates(outputs) -> (n, p, 4 + C)`; the latter two use no parameters.
"""

from .faster_rcnn import FasterRCNN
from .yolo import Yolo

__all__ = ["FasterRCNN", "Yolo"]
