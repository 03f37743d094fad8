"""Images changed at random while clients learn from them, and never when they are scored.

    flip            left and right exchanged, for every second example
    crop(4)         4 black pixels around it, and a piece of the old size cut out anywhere
    flip+crop(4)    one, then the other

What happens to an example is a function of its key, and a key of (seed, round, client, step, place in the batch): the
same under every executor, and drawn anew in every step. Keys travel with the positions of a schedule, in the bits
above them (`pack`), so that what moves batches, on whatever device, moves one whole number for each example as before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import require
from ..language import register
from ..stacks.cohort import Cohort
from ..stacks.draw import bits, more

PLACES = 40  # bits of a position in a split; the other 23 are an example's key


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
        n, _, height, width = x.shape
        row, in_height = self._place(key, 0, height)
        column, in_width = self._place(key, 1, width)
        image = torch.arange(n, device=x.device)[:, None, None]
        moved = x.movedim(1, -1)[image, row[:, :, None], column[:, None, :]].movedim(-1, 1)
        return moved * (in_height[:, :, None] & in_width[:, None, :])[:, None]

    def _place(self, key: Tensor, axis: int, side: int) -> tuple[Tensor, Tensor]:
        """Where every pixel along an axis comes from, and whether it comes from the image, (n, side) each."""
        by = (more(key, torch.full_like(key, axis)) >> 1) % (2 * self.pixels + 1) - self.pixels
        at = by[:, None] + torch.arange(side, device=key.device)
        return at.clamp(0, side - 1), (at >= 0) & (at < side)


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


register(Augment, "flip", Flip)
register(Augment, "crop", Crop, short="pixels")
register(Augment, "flip", Flip, then="before")
register(Augment, "crop", Crop, short="pixels", then="before")
