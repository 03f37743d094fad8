"""Compressed pictures (JPEG, PNG, BMP) become arrays of bytes, all of one size.

A picture is foreign data: it is opened only in the formats asked for, its size is checked before its
pixels are unpacked, and whatever is wrong with it becomes one line that names it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..errors import UsageError, require
from ..language.files import opened
from .archive import LIMIT

Bytes = NDArray[np.uint8]

FORMATS = ("JPEG", "PNG", "BMP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
LARGEST = 1 << 24  # pixels of one picture
_GREY = ("1", "L", "LA")


def unpacked(
    pictures: Sequence[bytes | Bytes | Path],
    names: Sequence[str],
    size: tuple[int, int] | None,
    limit: int,
    broken: dict[int, str] | None = None,
) -> Bytes:
    """Unpack pictures of one size into (n, channels, height, width), with 1 channel if all are grey.

    Arguments:
        pictures: the compressed bytes of each, or its file.
        names: what to call each in a message.
        size: height and width to resize to; None takes the first picture's size and demands it of all.
        limit: largest number of bytes the result may have.
        broken: where given, a picture that cannot be read is black, and what is wrong with it is put there by its
            place; without, it is refused.
    """
    require(len(pictures) > 0, "there are no pictures to unpack")
    whole, first = np.empty((0, 0, 0, 0), np.uint8), ""
    # One after another: the decoder spends its time in Python, where threads only wait for each other.
    for at, (picture, name) in enumerate(zip(pictures, names, strict=True)):
        try:
            pixels = _opened(picture, name, size)
        except UsageError as error:
            if broken is None:
                raise
            broken[at] = str(error)
            continue
        if not first:
            first, (height, width, channels) = name, pixels.shape
            n_bytes = 3 * len(pictures) * height * width
            require(n_bytes <= limit, f"{name}: all pictures need {n_bytes:,} bytes, more than {limit:,}; pass limit=")
            whole = np.zeros((len(pictures), channels, height, width), np.uint8)
        require(
            pixels.shape[:2] == (height, width),
            f"{name} is {pixels.shape[0]}x{pixels.shape[1]} but {first} is {height}x{width}: all pictures "
            "must have one size; pass size=(height, width) to resize them (in the command: --size 64x64)",
        )
        if pixels.shape[2] > whole.shape[1]:  # the first coloured one: all before were grey
            whole = np.repeat(whole, 3, 1)
        whole[at] = pixels.transpose(2, 0, 1)
    if not first:
        raise UsageError(next(iter((broken or {}).values())))
    return whole


def resized(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Images (n, channels, height, width) of bytes at another height and width."""
    whole = np.empty((*x.shape[:2], *size), np.uint8)
    for at, image in enumerate(x.numpy()):
        for channel, pixels in enumerate(image):
            whole[at, channel] = Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR)
    return torch.from_numpy(whole)


def size_of(text: str, what: str = "size") -> tuple[int, int]:
    """Height and width from a text such as 96x128.

    >>> size_of("96x128")
    (96, 128)
    """
    match = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text.strip())
    if match is None or not int(match[1]) * int(match[2]):
        raise UsageError(f"{what} must be HEIGHTxWIDTH in pixels, such as 64x64, got '{text}'")
    return int(match[1]), int(match[2])


def pictures_to_inputs(recipe: Mapping[str, Any], files: Sequence[str | Path]) -> tuple[Tensor, str]:
    """Pictures as x, (pictures, channels, height, width), as the recipe of a federation says; and what must be known.

    They are brought to the size that the run's were brought to. Of a picture in colour among a run's grey ones
    (19595 R + 38470 G + 7471 B + 32768) / 65536 is taken, which is what a decoder calls grey.
    """
    try:
        size, channels = recipe["pictures"]["size"], int(recipe["pictures"]["channels"])
        wanted = None if size is None else (int(size[0]), int(size[1]))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UsageError("this recipe has no pictures: the data did not come from a folder of them") from error
    x = torch.from_numpy(unpacked([Path(file) for file in files], list(map(str, files)), wanted, LIMIT))
    return made_grey(x) if channels == 1 else (x.expand(-1, channels, -1, -1), "")


def made_grey(x: Tensor) -> tuple[Tensor, str]:
    """Pictures (n, 1 or 3, height, width) as grey ones, (n, 1, height, width); and what must be known."""
    coloured = int((x != x[:, :1]).flatten(1).any(1).sum())
    said = f"{coloured} of {len(x)} pictures are in colour and were made grey, as the run's are" if coloured else ""
    if x.shape[1] == 3:
        share = torch.tensor([19595, 38470, 7471])[:, None, None]
        x = ((x.long() * share).sum(1, keepdim=True) + 32768 >> 16).to(torch.uint8)
    return x, said


def as_bytes(image: Image.Image) -> Bytes:
    """The pixels of an opened picture, (height, width, 1 or 3)."""
    pixels = np.asarray(image.convert("L" if image.mode in _GREY else "RGB"), dtype=np.uint8)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def shape_of(picture: Path, name: str) -> tuple[int, int]:
    """Height and width of a picture, by its header."""
    try:
        with opened(picture) as stream, Image.open(stream, formats=FORMATS) as image:
            return image.height, image.width
    except Exception as error:
        raise UsageError(f"{name} is not a readable JPEG, PNG or BMP picture ({_reason(error)})") from error


def _opened(picture: bytes | Bytes | Path, name: str, size: tuple[int, int] | None = None) -> Bytes:
    try:
        with (
            opened(picture) if isinstance(picture, Path) else io.BytesIO(bytes(picture)) as stream,
            Image.open(stream, formats=FORMATS) as image,
        ):
            good = image.width * image.height <= LARGEST
            require(good, f"{name} has {image.width}x{image.height} pixels, more than {LARGEST:,}; make it smaller")
            return as_bytes(image if size is None else image.resize(size[::-1], Image.Resampling.BILINEAR))
    except UsageError:
        raise
    except Exception as error:  # a decoder fed with foreign bytes may raise anything
        raise UsageError(f"{name} is not a readable JPEG, PNG or BMP picture ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    said = (str(error).splitlines() or [""])[0].partition(" <")[0]  # the stream has no name that says anything
    return said[:120] or type(error).__name__
