"""Streets that are drawn: what fixed cameras see, with seven kinds of things in it, and where those are.

    find("streets")                     400 images of 96 x 128, 20 devices
    find("streets(2000,288x352)")       more and larger ones; natural=device5 (a partition): 5 devices

26 cameras each look at a background of their own, which is the same for every seed. Camera c belongs to device c mod
20, and device d to place d mod 5; the places are the 5 devices of the coarser division. Camera c = 0 .. 25 has a share
of the images that falls as (c + 1)^-0.9, and at least four. In every image

    n_boxes      0 with probability 0.04, else 1 + Binomial(6, 0.3)
    class        ~ softmax(1.2 N(place) + 0.8 N(camera)), its seven normal numbers drawn once
    height       log-uniform from 0.14 to 0.42 of the image's, times the camera's zoom; larger, the lower it stands
    colour       that of the class, and as much by chance
    light        the camera's brightness, tint and noise, times the hour's brightness

Later things hide earlier ones, a post of some cameras hides both, and the border cuts. A thing that is hidden for more
than 60 % is not there at all. A box holds all of a thing that lies in the image, hidden or not.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import require
from ..language import register
from ..stacks import draw
from .box_rows import padded
from .federation import Pool
from .pictures import size_of

CLASSES = ("disc", "ring", "square", "triangle", "cross", "diamond", "bar")
CAMERAS, DEVICES, PLACES = 26, 20, 5
MOST = 7  # things in an image
HIDDEN = 0.6  # of a thing, beyond which it is not there
LARGEST = 1 << 31  # bytes of all images
HUE = np.array(
    [[220, 60, 50], [240, 170, 40], [60, 90, 210], [70, 180, 80], [230, 230, 220], [170, 70, 190], [60, 190, 200]],
    np.float64,
)
Reals = NDArray[np.float64]


def streets(frames: int = 400, size: str = "96x128", seed: int = 0) -> Pool:
    """Images of 26 cameras at 20 or 5 devices, and boxes of seven classes in them.

    Arguments:
        frames: how many images, of which every fifth of a camera is for testing.
        size: HEIGHTxWIDTH.
        seed: of what is in the images; the backgrounds are always the same.
    """
    height, width = size_of(size, "streets size")
    require(104 <= frames <= 1_000_000, f"streets frames must be 104 to 1,000,000 (4 a camera), got {frames}")
    require(min(height, width) >= 32, f"streets size must be at least 32x32, got {size}")
    good = 3 * frames * height * width <= LARGEST
    require(good, f"streets: {frames:,} images of {size} need more than {LARGEST:,} bytes; ask for fewer or smaller")
    share = np.arange(1, CAMERAS + 1) ** -0.9
    share = 4 / frames + (1 - 4 * CAMERAS / frames) * share / share.sum()  # at least four each
    ends = np.round(frames * share.cumsum()).astype(np.int64)
    camera = np.searchsorted(ends, np.arange(frames), side="right")
    rank = np.arange(frames) - np.concatenate([[0], ends])[camera]
    scene = [_background(c, height, width) for c in range(CAMERAS)]
    frame, place = torch.arange(frames)[:, None, None], torch.arange(MOST)[None, :, None]
    drawn = draw.uniform(seed, "street thing", frame, place, torch.arange(12)).numpy()
    light = draw.uniform(seed, "street light", frame[:, :, 0], torch.arange(2)).numpy()
    chances = _chances(seed).cumsum(1)
    x = np.empty((frames, 3, height, width), np.uint8)
    marked: list[tuple[float, ...]] = []
    for at, c in enumerate(camera.tolist()):
        things = _things(drawn[at], chances[c], float(light[at, 0]), c)
        image, kept = _drawn(scene[c], things, c, height, width)
        marked += [(at, thing[0], *thing[1:5]) for thing in kept]
        grain = draw.normals(draw.bits(seed, "street grain", at), height * width).numpy().reshape(height, width, 1)
        image = _lit(image, c, float(light[at, 1])) + (3 + 5 * _of_camera(c, 9)) * grain
        x[at] = image.clip(0, 255).round().astype(np.uint8).transpose(2, 0, 1)
    rows = np.array(marked).reshape(-1, 6)
    corners = rows[:, 2:].clip(0, 1)  # what the border cuts is meant to be cut, and needs no word
    y, _ = padded("streets", rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64), corners, frames, CLASSES)
    device = torch.from_numpy(camera % DEVICES)
    where = device % PLACES
    fine = device, tuple(f"device {d + 1}" for d in range(DEVICES))
    coarse = where, tuple(f"device {d + 1}" for d in range(PLACES))
    return Pool(
        "streets",
        torch.from_numpy(x),
        y,
        CLASSES,
        client=fine[0],
        clients=fine[1],
        divisions={"device20": fine, "device5": coarse},
        test=torch.from_numpy(rank % 5 == 2),
        group=where,
        group_names=tuple(f"place {g + 1}" for g in range(PLACES)),
        recipe={"pictures": {"size": [height, width], "channels": 3}},
    )


def _of_camera(camera: int, what: int) -> float:
    """A number in (0, 1) that a camera has, whatever the seed."""
    return float(draw.uniform("street camera", camera, what))


def _chances(seed: int) -> Reals:
    """How likely every class is at every camera, (cameras, classes)."""
    camera, label = torch.arange(CAMERAS)[:, None], torch.arange(len(CLASSES))
    of_place = draw.normal(seed, "street place", camera % DEVICES % PLACES, label)
    logits = 1.2 * of_place + 0.8 * draw.normal(seed, "street classes", camera, label)
    found: Reals = logits.softmax(1).numpy()
    return found


def _things(drawn: Reals, chances: Reals, empty: float, camera: int) -> list[tuple[float, ...]]:
    """What might be in an image, the farthest first: class, corners, colour; drawn (MOST, 12)."""
    n = 0 if empty < 0.04 else 1 + int((drawn[: MOST - 1, 0] < 0.3).sum())
    zoom = 0.8 + 0.5 * _of_camera(camera, 0)
    found = []
    for u in drawn[:n]:
        label = min(int(np.searchsorted(chances, u[1])), len(CLASSES) - 1)
        high = zoom * 0.14 * 3 ** float(u[2])
        wide = high * (2.0 if CLASSES[label] == "bar" else 1.0) * (0.8 + 0.45 * u[3]) * 0.75
        high = high * (0.55 if CLASSES[label] == "bar" else 1.0)
        foot = min(0.42 + 0.5 * u[2] + 0.22 * (u[4] - 0.5), 1.04)
        middle = 0.02 + 0.96 * u[5]
        colour = 0.55 * HUE[label] + 0.45 * (30 + 210 * u[6:9])
        found.append((label, middle - wide / 2, foot - high, middle + wide / 2, foot, *colour.tolist(), float(u[9])))
    return sorted(found, key=lambda thing: thing[4])


def _drawn(
    scene: tuple[Reals, Reals], things: list[tuple[float, ...]], camera: int, height: int, width: int
) -> tuple[Reals, list[tuple[float, ...]]]:
    """A background with things in it, and those that can be seen."""
    background, post = scene
    across, down = (np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height
    masks = [_mask(thing, across, down) for thing in things]
    free, kept = 1 - post, []
    for thing, mask in reversed(list(zip(things, masks, strict=True))):  # the nearest first
        inside = (min(thing[3], 1) - max(thing[1], 0)) * (min(thing[4], 1) - max(thing[2], 0))
        whole = (thing[3] - thing[1]) * (thing[4] - thing[2])
        seen = float((mask * free).sum()) / max(float(mask.sum()), 1e-9)
        if seen < 1 - HIDDEN or inside < 0.4 * whole:
            continue
        kept.append((thing, mask))
        free = free * (1 - mask)
    image = background.copy()
    for thing, mask in reversed(kept):
        shade = 1.0 - 0.35 * ((down - thing[2]) / (thing[4] - thing[2])).clip(0, 1)[:, None, None] * thing[8]
        image += mask[:, :, None] * (np.array(thing[5:8]) * shade - image)
    image += post[:, :, None] * (55.0 + 30 * _of_camera(camera, 8) - image)
    return image, [thing for thing, _ in kept[::-1]]


def _mask(thing: tuple[float, ...], across: Reals, down: Reals) -> Reals:
    """How much of every pixel a thing covers, (height, width), its edges a pixel wide."""
    label, x0, y0, x1, y1 = thing[:5]
    half_x, half_y = (x1 - x0) / 2, (y1 - y0) / 2
    u = ((across - (x0 + x1) / 2) / half_x)[None]
    v = ((down - (y0 + y1) / 2) / half_y)[:, None]
    pixel = 1 / (len(across) * half_x) / 2 + 1 / (len(down) * half_y) / 2  # in units of the half sides
    far = np.maximum(abs(u), abs(v))
    round_ = np.sqrt(u * u + v * v)
    form = {
        "disc": round_ - 1,
        "ring": abs(round_ - 0.78) - 0.22,
        "square": far - 1,
        "triangle": np.maximum(v - 1, 2 * abs(u) - v - 1),
        "cross": np.maximum(far - 1, np.minimum(abs(u), abs(v)) - 0.3),
        "diamond": abs(u) + abs(v) - 1,
        "bar": far - 1,
    }[CLASSES[int(label)]]
    cover: Reals = (0.5 - form / pixel).clip(0, 1)
    return cover * (far <= 1 + pixel / 2)


def _background(camera: int, height: int, width: int) -> tuple[Reals, Reals]:
    """What a camera sees when nothing is there, (height, width, 3), and a post before everything, (height, width)."""
    u = draw.uniform("street background", camera, torch.arange(200)).numpy()
    across, down = (np.arange(width) + 0.5) / width, ((np.arange(height) + 0.5) / height)[:, None]
    horizon = 0.22 + 0.2 * u[0]
    sky, wall, ground = 165 + 50 * u[1:4], 70 + 110 * u[4:7], 95 + 40 * u[7:10]
    image = np.where(
        (down < horizon)[:, :, None], sky - 40 * down[:, :, None], ground + 50 * (down - horizon)[:, :, None]
    )
    image = np.broadcast_to(image, (height, width, 3)).copy()
    for k in range(6):  # houses, with windows
        v = u[20 + 12 * k : 32 + 12 * k]
        left, wide, top = k / 6 - 0.1 + 0.15 * v[0], 0.1 + 0.2 * v[1], horizon * (0.1 + 0.8 * v[2])
        house = ((down > top) & (down < horizon + 0.1 * v[3])) & ((across > left) & (across < left + wide))
        image[house] = 0.5 * wall + 0.5 * (50 + 160 * v[4:7])
        panes = (np.sin(across * (40 + 50 * v[7])) > 0.4) & (np.sin(down * (50 + 50 * v[8])) > 0.4)
        image[house & panes] *= 0.6 + 0.6 * v[9]
    slope, left, wide = 1.5 * (u[10] - 0.5), 0.2 + 0.5 * u[11], 0.08 + 0.5 * u[12]
    road = (down > horizon) & (abs(across - left - slope * (down - horizon)) < wide * (down - horizon + 0.05))
    image[road] = 0.4 * ground + 0.6 * (60 + 40 * u[13])
    line = (down > horizon) & (abs(across - left - slope * (down - horizon)) < 0.02) & (np.sin(down * 60) > 0)
    image[line] = 190
    coarse = draw.normals(draw.bits("street texture", camera), 9 * 12).reshape(1, 1, 9, 12)
    stain = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear", align_corners=True)[0, 0].numpy()
    image += 9 * stain[:, :, None]
    at, thin = 0.1 + 0.8 * u[14], 0.012 + 0.012 * u[15]
    post = (abs(across - at) < thin) & (down > 0.1 + 0.2 * u[17]) if u[16] < 0.4 else np.zeros((height, width), bool)
    return image, np.broadcast_to(post, (height, width)).astype(np.float64)


def _lit(image: Reals, camera: int, hour: float) -> Reals:
    """As a camera sees it at that hour."""
    tint = np.array([_of_camera(camera, k) for k in (1, 2, 3)]) - 0.5
    bright = (0.65 + 0.5 * _of_camera(camera, 4)) * math.exp(0.5 * (hour - 0.5))
    found: Reals = 255 * (image.clip(0, 255) / 255 * bright * (1 + 0.25 * tint)).clip(0, 1) ** (
        0.8 + 0.4 * _of_camera(camera, 5)
    )
    return found


register(Pool, "streets", streets, about="streets(frames,size): drawn images of 26 street cameras, boxes of 7 classes")
