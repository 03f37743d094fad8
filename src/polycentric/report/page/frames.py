"""Frames with boxes, and precision over recall, where objects are detected."""

from __future__ import annotations

import base64
import io

from PIL import Image

from ..boxes import draws_boxes, frames_of, recall_curves, side_by_side, stairs
from . import parts
from .parts import Part
from .seen import Sight

CLIENTS, IMAGES = 6, 3  # of a run
WHEN = {"in use": True, "before training": False}


def frames(sight: Sight) -> Part | None:
    """A few test images of some clients: what is there, and what their models see."""
    found, shown = dict[str, Part](), dict[str, list[str]]()  # of every run, the clients that are shown
    for group, run in sight.opened:
        if not sight.examples or not draws_boxes(run):
            continue
        for j, trained in enumerate(WHEN.values()):
            seen = frames_of(run, clients=CLIENTS, images=IMAGES, trained=trained)
            for k, one in enumerate(seen):
                page = side_by_side(one.images)
                alt = f"{one.client}: {one.there} objects, {one.found} boxes found"
                found[f"{len(shown)}.{j}.{k}"] = {"kind": "photo", "src": _jpeg(page), "alt": alt}
        shown[group.label] = [one.client for one in seen]
    if not found:
        return None
    longest = max(shown.values(), key=len)
    same = all(names == longest for names in shown.values())
    clients = longest if same else [f"{k + 1}" for k in range(len(longest))]
    return parts.panel(
        "frames",
        "What the cameras see",
        "Test images of a few clients, drawn by the seed. White boxes are true; coloured ones were found by the "
        "client's model, with class and score, from 0.3 on.",
        parts.switch({"run": list(shown), "when": list(WHEN), "client": clients}, found),
    )


def recall(sight: Sight) -> Part | None:
    """Precision over recall of every class at IoU 0.5."""
    found = dict[str, Part]()
    for group, run in sight.opened:
        if not draws_boxes(run):
            continue
        lines = []
        for k, (name, curve) in enumerate(recall_curves(run)):
            x, y = stairs(curve)
            at = parts.thinned(len(x), 200)
            lines.append(parts.series(f"{name} ({curve.true_boxes})", k, parts.numbers(x[at]), parts.numbers(y[at])))
        x_axis, y_axis = (
            parts.axis("recall", "recall", range=[0, 1]),
            parts.axis("precision", "recall", range=[0, 1.02]),
        )
        found[group.label] = parts.chart(x_axis, y_axis, lines, legend=True)
    if not found:
        return None
    return parts.panel(
        "recall",
        "Precision over recall",
        "All clients' test images together, a line for each class (in brackets its true boxes), at IoU 0.5: of the "
        "boxes down to some score, the share that is right, over the share of objects found.",
        parts.by_run(found),
    )


def _jpeg(page: Image.Image) -> str:
    out = io.BytesIO()
    page.save(out, "JPEG", quality=78, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"
