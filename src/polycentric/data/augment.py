"""Images changed at random while clients learn from them, and never when they are scored.

    flip            left and right exchanged, for every second example
    crop(4)         4 black pixels around it, and a piece of the old size cut out anywhere
    scale(1.5)      up to 1.5 times larger or smaller, about the middle
    colour(0.3)     brightness, contrast and saturation times 0.7 to 1.3 each
    flip+crop(4)    one, then the other

What happens to an example is a function of its key, and a key of (seed, round, client, step, place in the batch): the
same under every executor, and drawn anew in every step. Keys travel with the positions of a schedule, in the bits
above them (`pack`), so that what moves batches, on whatever device, moves one whole number for each example as before.

Where targets are boxes, the same key moves them as it moves the image. A box that the border then cuts is as large as
what is left of it; one of which less than a quarter is left is no box any more.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import require
from ..language import register
from ..stacks.cohort import Cohort
from ..stacks.draw import bits, more, uniform

PLACES = 40  # bits of a position in a split; the other 23 are an example's key
KEPT = 0.25  # of a box's area that must stay in the image
GREY = (0.299, 0.587, 0.114)  # what red, green and blue count in brightness


class Augment(ABC):
    """Something that happens to images in training."""

    pixels: int = 0  # by how many an image may be moved
    before: Augment | None = None  # what happens first

    @abstractmethod
    def changed(self, x: Tensor, key: Tensor) -> Tensor:
        """Images (n, channels, height, width) as their keys (n,) say; the type stays."""

    def __call__(self, x: Tensor, key: Tensor) -> Tensor:
        """The same for batches of any number of axes, (..., channels, height, width) and (...)."""
        return self.changed(x.reshape(-1, *x.shape[-3:]), key.reshape(-1)).reshape(x.shape)

    def moved(self, boxes: Tensor, key: Tensor, shape: tuple[int, int]) -> Tensor:
        """Boxes (..., most, 5) in images of (height, width) that are changed by the keys (...), where they are then."""
        if self.before is not None:
            boxes = self.before.moved(boxes, more(key, torch.ones_like(key)), shape)
        whole = self.corners(boxes[..., 1:], more(key, torch.zeros_like(key))[..., None], shape)
        inside = whole.clamp(0, 1)
        kept = (_area(inside) >= KEPT * _area(whole)) & (boxes[..., 0] >= 0)
        inside = torch.where(kept[..., None], inside, 0.0)
        return torch.cat([torch.where(kept, boxes[..., 0], -1.0)[..., None], inside], -1)

    def corners(self, box: Tensor, key: Tensor, shape: tuple[int, int]) -> Tensor:
        """Corners (..., most, 4) where they are after this alone, in the image or not; key (..., 1)."""
        return box


def _from(x: Tensor, down: tuple[Tensor, Tensor], across: tuple[Tensor, Tensor]) -> Tensor:
    """Images whose pixels come from other rows and columns, (n, side) each, or are black where those lie outside."""
    (row, in_height), (column, in_width) = down, across
    image = torch.arange(len(x), device=x.device)[:, None, None]
    moved = x.movedim(1, -1)[image, row[:, :, None], column[:, None, :]].movedim(-1, 1)
    return moved * (in_height[:, :, None] & in_width[:, None, :])[:, None]


def _area(box: Tensor) -> Tensor:
    return (box[..., 2:] - box[..., :2]).prod(-1)


def _first(before: Augment | None, x: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """What stands before, done; and a key of one's own."""
    return (x if before is None else before.changed(x, more(key, torch.ones_like(key)))), more(
        key, torch.zeros_like(key)
    )


@dataclass(frozen=True)
class Flip(Augment):
    """Left and right exchanged, with probability 1/2."""

    before: Augment | None = None

    def changed(self, x: Tensor, key: Tensor) -> Tensor:
        """Every second image."""
        x, key = _first(self.before, x, key)
        return torch.where((key & 1 == 1)[:, None, None, None], x.flip(-1), x)

    def corners(self, box: Tensor, key: Tensor, shape: tuple[int, int]) -> Tensor:
        """Left and right exchanged."""
        x0, y0, x1, y1 = box.unbind(-1)
        return torch.where((key & 1 == 1)[..., None], torch.stack([1 - x1, y0, 1 - x0, y1], -1), box)


@dataclass(frozen=True)
class Crop(Augment):
    """A piece of the image's own size, cut out of the image with so many black pixels on every side."""

    pixels: int = 4
    before: Augment | None = None

    def __post_init__(self) -> None:
        require(1 <= self.pixels <= 1024, f"crop takes 1 to 1024 pixels, got {self.pixels}; try crop(4)")

    def changed(self, x: Tensor, key: Tensor) -> Tensor:
        """Moved by up to so many pixels each way."""
        x, key = _first(self.before, x, key)
        return _from(x, self._place(key, 0, x.shape[2]), self._place(key, 1, x.shape[3]))

    def corners(self, box: Tensor, key: Tensor, shape: tuple[int, int]) -> Tensor:
        """Moved the other way than the piece that is cut out."""
        y, x = (self._by(key, axis) / side for axis, side in enumerate(shape))
        return box - torch.stack([x, y, x, y], -1).to(box.dtype)

    def _by(self, key: Tensor, axis: int) -> Tensor:
        """By how many pixels along an axis."""
        return (more(key, torch.full_like(key, axis)) >> 1) % (2 * self.pixels + 1) - self.pixels

    def _place(self, key: Tensor, axis: int, side: int) -> tuple[Tensor, Tensor]:
        """Where every pixel along an axis comes from, and whether it comes from the image, (n, side) each."""
        at = self._by(key, axis)[:, None] + torch.arange(side, device=key.device)
        return at.clamp(0, side - 1), (at >= 0) & (at < side)


@dataclass(frozen=True)
class Scale(Augment):
    """The image up to so many times larger or smaller, about its middle; black comes in at the border.

    factor = most^(2 u - 1),  u uniform in (0, 1)         pixel p  <-  the one at (p - middle) / factor + middle
    """

    most: float = 1.5
    before: Augment | None = None

    def __post_init__(self) -> None:
        require(1 < self.most <= 4, f"scale takes a factor above 1, at most 4, got {self.most:g}; try scale(1.5)")

    def changed(self, x: Tensor, key: Tensor) -> Tensor:
        """Every pixel from the nearest one."""
        x, key = _first(self.before, x, key)
        return _from(x, self._place(key, x.shape[2]), self._place(key, x.shape[3]))

    def corners(self, box: Tensor, key: Tensor, shape: tuple[int, int]) -> Tensor:
        """Farther from the middle, or nearer to it."""
        return (box - 0.5) * self._factor(key)[..., None].to(box.dtype) + 0.5

    def _factor(self, key: Tensor) -> Tensor:
        return self.most ** (2 * uniform(key) - 1)

    def _place(self, key: Tensor, side: int) -> tuple[Tensor, Tensor]:
        """Where every pixel along an axis comes from, and whether it comes from the image, (n, side) each."""
        middle = side / 2
        pixel = torch.arange(side, device=key.device) + 0.5
        at = ((pixel - middle) / self._factor(key)[:, None] + middle).floor().long()
        return at.clamp(0, side - 1), (at >= 0) & (at < side)


@dataclass(frozen=True)
class Colour(Augment):
    """Brightness, contrast and saturation, each times a number from 1 - by to 1 + by; boxes stay where they are."""

    by: float = 0.3
    before: Augment | None = None

    def __post_init__(self) -> None:
        require(0 < self.by <= 1, f"colour takes a number above 0, at most 1, got {self.by:g}; try colour(0.3)")

    def changed(self, x: Tensor, key: Tensor) -> Tensor:
        """Saturation is of images in three colours only."""
        x, key = _first(self.before, x, key)
        bright, contrast, colourful = (
            (1 + self.by * (2 * uniform(key, what) - 1))[:, None, None, None] for what in range(3)
        )
        as_bytes = x.dtype == torch.uint8
        mean = (x.long() if as_bytes else x.double()).sum((1, 2, 3), keepdim=True).double() / math.prod(x.shape[1:])
        seen = ((x.double() - mean) * contrast + mean) * bright
        if x.shape[1] == 3:
            share = torch.tensor(GREY, dtype=seen.dtype, device=x.device)[:, None, None]
            grey = (seen * share).sum(1, keepdim=True)
            seen = grey + (seen - grey) * colourful
        return seen.round().clamp(0, 255).to(torch.uint8) if as_bytes else seen.to(x.dtype)


def pack(index: Tensor, cohort: Cohort) -> Tensor:
    """Positions (steps, clients, places) with the keys of their examples above them."""
    axes = [torch.arange(n, device=index.device) for n in index.shape]
    client = cohort.index.to(index.device)
    step, place = axes[0][:, None, None], axes[2]
    drawn = bits(cohort.seed, cohort.round, "augment", client[:, None], step, place)
    return index | ((drawn >> (PLACES + 1)) & ((1 << (63 - PLACES)) - 1)) << PLACES


def unpack(index: Tensor) -> tuple[Tensor, Tensor]:
    """Positions and keys."""
    return index & ((1 << PLACES) - 1), index >> PLACES


def check_images(augment: Augment | None, name: str, shape: tuple[int, ...], symbols: int) -> None:
    """Refuse what has no left and right, and a crop that may miss the image."""
    while augment is not None:
        good = len(shape) == 3 and not symbols
        what = "symbols" if symbols else f"examples of shape {shape}"
        require(good, f"augment is for images (channels, height, width), and '{name}' has {what}: leave it out")
        good = augment.pixels < min(shape[1:])
        require(
            good,
            f"crop({augment.pixels}) may leave nothing of the images of '{name}', {shape[1]}x{shape[2]}: crop less",
        )
        augment = augment.before


for _then in ({}, {"then": "before"}):
    register(Augment, "flip", Flip, **_then)
    register(Augment, "crop", Crop, short="pixels", **_then)
    register(Augment, "scale", Scale, short="most", **_then)
    register(Augment, "colour", Colour, short="by", **_then)
