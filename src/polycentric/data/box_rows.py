"""Boxes in images: a list of them becomes one tensor, and what is wrong with them is counted and said.

    boxes       (image, class, x0, y0, x1, y1), as many as there are
    targets     (images, most, 5), rows (class, x0, y0, x1, y1); class -1 and zeros after an image's last box

Places are shares of the image's sides, from the left and from the top, so that resizing an image leaves its boxes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ..errors import require
from ..stacks import draw
from .archive import AnyArray

MOST_BOXES = 1_000  # in one image
DEVICE = re.compile(r"device\d{1,6}")
GUESS = "_guess"
Divisions = dict[str, tuple[Tensor, tuple[str, ...]]]  # names of kinds of clients: (client of each image, clients)
SAID = 3  # of the files that are wrong


def padded(
    name: str, image: AnyArray, label: AnyArray, box: AnyArray, n: int, classes: tuple[str, ...]
) -> tuple[Tensor, str]:
    """Boxes as targets, and what must be known of them: how many reached over the border, how many had no area.

    Arguments:
        name: what to call the data in a message.
        image: in which image every box is, (boxes,).
        label: its class, (boxes,).
        box: its corners x0, y0, x1, y1 in shares of the sides, (boxes, 4).
        n: how many images there are.
        classes: names.
    """
    require(bool(classes), f"{name}: boxes need classes, a row of their names")
    if len(label):
        low, high = int(label.min()), int(label.max())
        good = 0 <= low and high < len(classes)
        require(good, f"{name}: boxes are of classes {low} to {high}, but classes has {len(classes)} names, from 0")
        low, high = int(image.min()), int(image.max())
        require(0 <= low and high < n, f"{name}: boxes are in images {low} to {high}, but there are {n}, from 0")
        require(bool(np.isfinite(box).all()), f"{name}: a box has a corner that is NaN or infinite; leave it out")
    inside = np.clip(box, 0, 1).astype(np.float32)
    over = (np.abs(inside - box) > 1e-6).any(1)  # rounding is no fault
    full = np.all(inside[:, 2:] > inside[:, :2], axis=1)
    image, label, inside = image[full], label[full], inside[full]
    counts = np.bincount(image, minlength=n)
    most = int(counts.max()) if len(counts) else 0
    require(most <= MOST_BOXES, f"{name}: image {int(counts.argmax())} has {most:,} boxes, more than {MOST_BOXES:,}")
    order = np.argsort(image, kind="stable")
    rank = np.arange(len(order)) - (counts.cumsum() - counts)[image[order]]
    y = np.zeros((n, max(most, 1), 5), np.float32)
    y[..., 0] = -1
    y[image[order], rank] = np.concatenate([label[order, None], inside[order]], 1)
    said = [f"boxes cut at the border of their image: {int((over & full).sum())}"] if (over & full).any() else []
    said += [f"boxes without area left out: {int((~full).sum())}"] if not full.all() else []
    return torch.from_numpy(y), "; ".join(f"{one} of {len(full)}" for one in said)


def boxed(name: str, y: AnyArray, classes: tuple[str, ...]) -> Tensor:
    """Targets (n, most, 5) that somebody made, checked; what is cut or left out is warned of."""
    good = y.shape[2] == 5 and y.shape[1] > 0 and y.dtype.kind in "iuf"
    require(good, f"{name}: y has shape {y.shape}, but boxes are (n, most, 5): class, x0, y0, x1, y1")
    there = y[..., 0] >= 0
    image = there.nonzero()[0]
    boxes = y[there]
    good = bool(np.isfinite(y[..., 0]).all()) and bool((boxes[:, 0] == np.round(boxes[:, 0])).all())
    require(good, f"{name}: the first column of boxes is the class, a whole number, or -1 where there is no box")
    targets, said = padded(name, image, boxes[:, 0].astype(np.int64), boxes[:, 1:], len(y), classes)
    if said:
        warnings.warn(f"data '{name}': {said}", stacklevel=3)
    return targets


def rows(y: Tensor) -> AnyArray:
    """The boxes of targets, (boxes, 6): image, class, x0, y0, x1, y1."""
    at = (y[..., 0] >= 0).nonzero()
    found: AnyArray = np.concatenate([at[:, :1].numpy().astype(np.float64), y[at[:, 0], at[:, 1]].numpy()], 1)
    return found


def boxes_of(name: str, boxes: AnyArray) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Rows (image, class, x0, y0, x1, y1) as images, classes, and corners in shares.

    Corners that are whole numbers count 1/65535 of the side.
    """
    good = boxes.ndim == 2 and boxes.shape[1] == 6 and boxes.dtype.kind in "iuf"
    require(good, f"{name}: boxes is {boxes.dtype} {boxes.shape}, but must be rows (image, class, x0, y0, x1, y1)")
    good = boxes.dtype.kind != "f" or bool((boxes[:, :2] == np.round(boxes[:, :2])).all())
    require(good, f"{name}: the first two columns of boxes, image and class, must be whole numbers")
    unit = 1.0 if boxes.dtype.kind == "f" else 65535.0
    return boxes[:, 0].astype(np.int64), boxes[:, 1].astype(np.int64), boxes[:, 2:].astype(np.float64) / unit


def divided(name: str, given: Mapping[str, Tensor | None], test: Tensor) -> tuple[Divisions, str]:
    """The clients that arrays such as device20 and device20_guess name, (images,) each; and what must be known."""
    found, said = Divisions(), dict[str, None]()
    for key in sorted(filter(DEVICE.fullmatch, given), key=lambda key: int(key[6:])):
        device, guess = given[key], given.get(key + GUESS)
        assert device is not None
        found[key], told = with_devices(name, device.numpy(), None if guess is None else guess.numpy(), test.numpy())
        said[told] = None  # once
    return found, joined(*said)


def with_devices(
    name: str, device: AnyArray, guess: AnyArray | None, test: AnyArray
) -> tuple[tuple[Tensor, tuple[str, ...]], str]:
    """The device of every image, with names, where 0 is a device that is not known; and what must be known.

    Test images that nobody says the device of go by `guess`, or, without one, to devices at random, in proportion to
    their training images.
    """
    unknown = device == 0
    at = (unknown & ~test).nonzero()[0]
    require(
        not len(at), f"{name}: image {int(at[0]) if len(at) else 0} is for training and has no device: name one, from 1"
    )
    require(bool((device >= 0).all()), f"{name}: devices are numbered from 1, and 0 where it is not known")
    said = ""
    if unknown.any():
        known = np.sort(device[~unknown])
        require(len(known) > 0, f"{name}: no image has a device; leave the array out and deal them: --partition iid")
        if guess is not None:
            require(
                bool(np.isin(guess[unknown], known).all()), f"{name}: a device that was guessed has no training image"
            )
            device, how = np.where(unknown, guess, device), "is a guess, the one with the likest background"
        else:
            place = draw.uniform("device of a test image", torch.from_numpy(unknown.nonzero()[0])).numpy()
            device = device.copy()
            device[unknown] = known[(place * len(known)).astype(np.int64)]
            how = "was drawn at random, in proportion to their training images"
        said = f"the device of {int(unknown.sum())} test images is not known and {how}"
    ids, index = np.unique(device, return_inverse=True)
    return (torch.from_numpy(index.reshape(-1).astype(np.int64)), tuple(f"device {i}" for i in ids)), said


def numbers(devices: tuple[str, ...]) -> AnyArray:
    """The numbers in the names that `with_devices` gives."""
    return np.array([int(name.removeprefix("device ")) for name in devices])


def left_out(what: str, broken: dict[int, str], n: int) -> str:
    """How many pictures could not be read, and which are the first of them."""
    first = ", ".join(list(broken.values())[:SAID])
    return f"{what} left out because they cannot be read: {len(broken)} of {n} ({first})" if broken else ""


def joined(*said: str) -> str:
    """Notes as one."""
    return "; ".join(one for one in said if one)
