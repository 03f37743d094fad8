"""Frames with boxes drawn into them, and precision over recall: what a detector sees, beside what is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ..errors import require
from ..runs.evaluate import answered
from ..runs.loop import Run
from ..stacks.draw import uniform
from ..tasks.average_precision import Curve, curves, envelope, rows_of
from ..tasks.detection import SURE
from .figure import colour, line_style, panels

DARK, BRIGHT = "#111111", "#ffffff"


def draws_boxes(run: Run) -> bool:
    """Whether the targets of a run are boxes in images that are here."""
    return run.clients.task.goal.placed and not run.federation.absent


def drawn(
    image: Image.Image, found: Tensor, classes: Sequence[str], truth: Tensor | None = None, least: float = SURE
) -> Image.Image:
    """The image with boxes in it: found ones in the colour of their class with name and score, true ones in white.

    Arguments:
        image: of any size; boxes are in shares of its sides.
        found: rows (class, score, x0, y0, x1, y1); class -1: no box.
        classes: their names.
        truth: rows (class, x0, y0, x1, y1), where they are known.
        least: the lowest score that is drawn.
    """
    page = image.convert("RGB")
    pen, sides = ImageDraw.Draw(page), np.array([page.width, page.height] * 2)
    size = max(9, page.height // 24)
    line, font = max(1, page.height // 140), ImageFont.load_default(size)
    for row in [] if truth is None else truth[truth[:, 0] >= 0].tolist():
        corners = _ordered(row[1:] * sides)
        pen.rectangle(corners, outline=DARK, width=line + 2)
        pen.rectangle(corners, outline=BRIGHT, width=line + 1)
    shown = found[(found[:, 0] >= 0) & (found[:, 1] >= least)]
    for row in shown.flip(0).tolist():  # the best on top
        corners, tone = _ordered(row[2:] * sides), colour(int(row[0]))
        pen.rectangle(corners, outline=tone, width=line + 1)
        words = f"{classes[int(row[0])]} {row[1]:.2f}"
        left, top = corners[0], max(0.0, corners[1] - size - 3)
        pen.rectangle((left, top, left + pen.textlength(words, font=font) + 4, top + size + 3), fill=tone)
        pen.text((left + 2, top), words, fill=BRIGHT, font=font)
    return page


def _ordered(corners: np.ndarray) -> tuple[float, float, float, float]:  # type: ignore[type-arg]
    """Corners that a pen takes, whatever a model says."""
    x0, y0, x1, y1 = (float(value) for value in corners)
    return min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)


def as_image(x: Tensor, scale: int = 1) -> Image.Image:
    """A stored image, (channels, height, width), of bytes or of numbers from 0 to 1, so many times as large."""
    bytes_ = x if x.dtype == torch.uint8 else (255 * x.clamp(0, 1)).round().to(torch.uint8)
    page = Image.fromarray(bytes_.expand(3, -1, -1).permute(1, 2, 0).contiguous().cpu().numpy())
    return page.resize((scale * page.width, scale * page.height), Image.Resampling.BICUBIC)


@dataclass(frozen=True)
class Frames:
    """A few test images of one client."""

    client: str
    images: list[Image.Image]  # with boxes drawn
    found: int  # boxes that are shown
    there: int  # true boxes


def frames_of(run: Run, *, clients: int = 6, images: int = 4, trained: bool = True, scale: int = 2) -> list[Frames]:
    """Test images of the clients that have most, drawn by the seed, with true boxes and what their models see.

    Arguments:
        clients: how many.
        images: of each.
        trained: False: what the model saw before it was trained.
        scale: how many times as large as they are stored.
    """
    test, task = run.federation.test, run.clients.task
    who = torch.argsort(test.sizes, descending=True, stable=True)[:clients]
    seen, out = answered(run.method, run.state, run.clients, test) if trained else None, []
    start = {name: row[0] for name, row in task.start().items()}
    for k in (int(k) for k in who.sort().values if test.sizes[k]):
        first, n = int(test.first[k]), int(test.sizes[k])
        order = uniform(run.clients.seed, "frames", torch.arange(first, first + n)).argsort()
        some = (first + order[:images]).sort().values
        if seen is None:
            with torch.no_grad():
                found = task.goal.answers(task.predict(start, task.inputs(test.x[some.to(test.x.device)]))).cpu()
        else:
            found = seen[some]
        truth = test.y[some.to(test.y.device)].cpu()
        pages = [
            drawn(as_image(test.x[i], scale), boxes, run.federation.classes, true)
            for i, boxes, true in zip(some.tolist(), found, truth, strict=True)
        ]
        sure = int(((found[..., 0] >= 0) & (found[..., 1] >= SURE)).sum())
        out.append(Frames(run.federation.clients[k], pages, sure, int((truth[..., 0] >= 0).sum())))
    return out


def side_by_side(images: Iterable[Image.Image], gap: int = 4) -> Image.Image:
    """Images of one size in a row."""
    every = list(images)
    page = Image.new("RGB", (sum(i.width for i in every) + gap * (len(every) - 1), every[0].height), BRIGHT)
    at = 0
    for image in every:
        page.paste(image, (at, 0))
        at += image.width + gap
    return page


def draw_frames(run: Run, path: Path, clients: int = 6, images: int = 3) -> bool:
    """A page of frames, a line for each client: before training on the left, in use on the right."""
    if not draws_boxes(run):
        return False
    require(path.suffix == ".png", f"frames are pixels: write a .png (--format png), not '{path}'")
    after = frames_of(run, images=images, clients=clients)
    before = frames_of(run, images=images, clients=clients, trained=False)
    lines = [side_by_side([*b.images[:1], *a.images]) for a, b in zip(after, before, strict=True)]
    width, gap, head = max(line.width for line in lines), 4, 26
    page = Image.new("RGB", (width, sum(line.height + gap + head for line in lines)), BRIGHT)
    pen, font, at = ImageDraw.Draw(page), ImageFont.load_default(17), 0
    for line, one in zip(lines, after, strict=True):
        words = f"{one.client}: before training | in use ({one.there} objects in white, {one.found} boxes found)"
        pen.text((4, at + 3), words, fill=DARK, font=font)
        page.paste(line, (0, at + head))
        at += line.height + gap + head
    path.parent.mkdir(parents=True, exist_ok=True)
    page.save(path)
    return True


def recall_curves(run: Run) -> list[tuple[str, Curve]]:
    """Precision over recall of every class of which there are true boxes, all clients' together."""
    names, test = run.federation.classes, run.federation.test
    every = curves(rows_of(answered(run.method, run.state, run.clients, test)), rows_of(test.y), len(names))
    return [(name, curve) for name, curve in zip(names, every, strict=True) if curve.true_boxes]


def draw_recall(run: Run, path: Path) -> bool:
    """Precision over recall at IoU 0.5, a line for each class; False where a run finds no boxes."""
    if not draws_boxes(run):
        return False
    with panels(path, size=(4.8, 3.4)) as axes:
        for k, (name, curve) in enumerate(recall_curves(run)):
            x, y = stairs(curve)
            axes[0, 0].plot(100 * x, 100 * y, color=colour(k), label=f"{name} ({curve.true_boxes})", **line_style(k))
        axes[0, 0].set(xlabel="recall in %", ylabel="precision in %", xlim=(0, 100), ylim=(0, 102))
        axes[0, 0].legend(title="class (true boxes)")
    return True


def stairs(curve: Curve) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Recall and the envelope of precision as steps, one for each object found; down to 0 where no more are."""
    hits = np.flatnonzero(np.diff(curve.recall, prepend=0.0) > 0)
    if not len(hits):
        return np.zeros(1), np.zeros(1)
    recall, height = curve.recall[hits], envelope(curve.precision)[hits]
    ends = np.append(0.0, np.repeat(recall, 2))
    return ends, np.append(np.repeat(height, 2), 0.0)
