"""Targets that are boxes in images, or a symbol at every position: what looks at data takes them, or says why not."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

import polycentric as pc
from polycentric.data import (
    Federation,
    Natural,
    Pool,
    available,
    describe,
    find,
    from_arrays,
    heat_map,
    heterogeneity,
    label_counts,
    npz,
)
from polycentric.data.box_rows import padded, rows
from polycentric.data.duplicates import duplicates
from polycentric.data.federation import Kind, kind_of, renamed
from polycentric.data.npz_file import save, summary
from polycentric.data.outline import from_outline, outline
from polycentric.data.suspicious import all_of
from polycentric.data.unlike import unlike
from polycentric.errors import UsageError
from polycentric.runs.predict import in_terms_of

CLASSES = ("basket", "chair", "table")
NOTHING = (-1.0, 0.0, 0.0, 0.0, 0.0)
BOXES = torch.tensor(
    [
        [(0, 0.1, 0.1, 0.5, 0.5), (2, 0.2, 0.3, 0.9, 1.0)],
        [(1, 0.0, 0.0, 0.3, 0.4), NOTHING],
        [NOTHING, NOTHING],
        [(1, 0.6, 0.6, 0.8, 0.9), (1, 0.1, 0.2, 0.3, 0.4)],
    ]
)
IMAGES = torch.arange(4 * 3 * 6 * 8).reshape(4, 3, 6, 8).to(torch.uint8)


def pool(**changes: Any) -> Pool:
    """Four images of two clients."""
    of = torch.tensor([0, 0, 1, 1])
    return replace(Pool("seen", IMAGES, BOXES, CLASSES, client=of, clients=("a", "b")), **changes)


def federation(**changes: Any) -> Federation:
    return pc.load(pool(test=torch.zeros(4, dtype=torch.bool), **changes))


@pytest.mark.parametrize(
    ("y", "classes", "kind"),
    [
        (torch.zeros(3, dtype=torch.int64), CLASSES, "classes"),
        (torch.zeros(3, 3), CLASSES, "labels"),
        (torch.zeros(3), (), "numbers"),
        (torch.zeros(3, 2), (), "numbers"),
        (torch.zeros(3, 2, 5), CLASSES, "boxes"),
        (torch.zeros(3, 7, dtype=torch.int64), CLASSES, "symbols"),
    ],
)
def test_targets_say_what_is_learned(y: Tensor, classes: tuple[str, ...], kind: Kind) -> None:
    assert kind_of(y, classes) == kind


def test_boxes_of_a_federation() -> None:
    seen = federation()
    assert (seen.kind, seen.n_outputs, seen.shape) == ("boxes", 3, (3, 6, 8))
    assert label_counts(seen).tolist() == [[1, 1, 1], [0, 2, 0]]
    assert heterogeneity(seen) == pytest.approx((3 * 4 / 15 + 2 * 2 / 5) / 5)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ((3, 0.1, 0.1, 0.5, 0.5), "none of -1 and 0 to 2"),
        ((0.5, 0.1, 0.1, 0.5, 0.5), "none of -1 and 0 to 2"),
        ((1, 0.1, 0.1, 1.5, 0.5), "outside of 0 to 1"),
        ((1, 0.5, 0.1, 0.5, 0.5), "no area"),
        ((1, 0.5, 0.1, 0.2, 0.5), "no area"),
        ((-1, 0.0, 0.1, 0.2, 0.5), "not zero"),
        ((1, 0.5, float("nan"), 0.2, 0.5), "NaN"),
    ],
)
def test_a_box_that_is_none_is_refused(row: tuple[float, ...], words: str) -> None:
    y = BOXES.clone()
    y[3, 1] = torch.tensor(row)
    with pytest.raises(UsageError, match=words) as caught:
        federation(y=y)
    assert "\n" not in str(caught.value)
    assert words == "NaN" or "example 3, box 1" in str(caught.value)


def test_boxes_need_classes_and_five_numbers() -> None:
    for changes in ({"classes": ()}, {"y": BOXES[..., :4].contiguous()}):
        with pytest.raises(UsageError, match="boxes"):
            federation(**changes)


def test_wrong_boxes_are_cut_or_left_out_and_counted() -> None:
    table = np.array([[0.2, 0.2, 1.4, 0.5], [0.3, 0.3, 0.3, 0.9], [-1, -1, -0.5, -0.5], [0.1, 0.1, 0.2, 0.2]])
    y, said = padded("set", np.array([1, 1, 1, 0]), np.array([0, 1, 1, 2]), table, 3, CLASSES)
    assert y.shape == (3, 1, 5) and y[2, 0].tolist() == list(NOTHING)
    assert y[1, 0].tolist() == pytest.approx([0, 0.2, 0.2, 1, 0.5])
    assert said == "boxes cut at the border of their image: 1 of 4; boxes without area left out: 2 of 4"
    good, said = padded("set", *_columns(rows(BOXES)), 4, CLASSES)
    assert torch.equal(good, BOXES) and not said
    for image, label, words in ((4, 0, "images 4 to 4"), (0, 3, "classes 3 to 3"), (-1, 0, "images -1 to -1")):
        with pytest.raises(UsageError, match=words):
            padded("set", np.array([image]), np.array([label]), table[3:], 4, CLASSES)
    with pytest.raises(UsageError, match="has 1,001 boxes"):
        padded("set", np.zeros(1001, int), np.zeros(1001, int), table[3:].repeat(1001, 0), 1, CLASSES)


def _columns(table: Any) -> tuple[Any, Any, Any]:
    return table[:, 0].astype(int), table[:, 1].astype(int), table[:, 2:]


def test_classes_are_called_otherwise() -> None:
    y = renamed(BOXES, torch.tensor([2, 0, 1]))
    assert y[..., 0].tolist() == [[2, 1], [0, -1], [-1, -1], [0, 0]] and torch.equal(y[..., 1:], BOXES[..., 1:])
    assert renamed(torch.tensor([0, 1]), torch.tensor([3, 4])).tolist() == [3, 4]


def test_everything_that_looks_at_targets_takes_boxes(tmp_path: Path) -> None:
    seen = federation()
    console = Console(file=io.StringIO(), width=120)
    console.print(describe(seen))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "3, of boxes in images: 5 for training, up to 2 an image" in shown
    assert heat_map(seen, tmp_path / "map.png").stat().st_size > 1000
    assert {found.about for found in unlike(seen)} == {"labels", "features", "classes"}
    assert [found.text for found in duplicates(seen)] == ["no example occurs twice"]
    said = all_of(seen)
    assert "1 of 4 training images have no box: they show background only" in said
    assert "1 of 2 clients have no training box of some class" in said
    bare = federation(y=torch.cat([BOXES[:2], torch.tensor(NOTHING).expand(2, 2, 5)]))
    assert "1 of 2 clients have no box in any training image: b" in all_of(bare)
    again = from_outline(outline(seen), "outline.json")
    assert (again.kind, again.n_outputs, again.train.y.shape[1:]) == ("boxes", 3, (2, 5))
    assert pc.check_data(seen).answers == (
        "no first answer: where things are in an image is no linear function of its pixels",
    )
    with pytest.warns(UserWarning, match="class lamp has a name and no example"):
        federation(classes=(*CLASSES, "lamp"))


@pytest.mark.parametrize("partition", ["dirichlet=0.5", "shards=1", "classes=1"])
def test_partitions_by_label_say_what_to_type(partition: str) -> None:
    with pytest.raises(UsageError, match="several boxes in an image; choose natural, iid or quantity"):
        pc.load(pool(), partition, clients=2)


def test_partitions_that_do_not_look_at_labels_deal_boxes() -> None:
    assert pc.load(pool(), "iid", clients=2).kind == "boxes"
    assert pc.load(pool(), "quantity=1", clients=2).kind == "boxes"
    square = pool(x=IMAGES[..., :6].contiguous())
    with pytest.raises(UsageError, match="not the boxes in them"):
        pc.load(square, "rotations=2", clients=2)


def test_boxes_from_arrays() -> None:
    made = from_arrays(IMAGES.numpy(), BOXES.numpy(), classes=CLASSES, client=["a", "a", "b", "b"])
    assert made.kind == "boxes" and torch.equal(made.y, BOXES) and made.classes == CLASSES
    far = BOXES.clone()
    far[0, 0, 3] = 1.5
    with pytest.warns(UserWarning, match="boxes cut at the border of their image: 1 of 5"):
        assert float(from_arrays(IMAGES, far, classes=CLASSES).y[0, 0, 3]) == 1
    with pytest.raises(UsageError, match="need classes"):
        from_arrays(IMAGES, BOXES)
    with pytest.raises(UsageError, match="boxes in images, but x has shape"):
        from_arrays(IMAGES.flatten(1).float(), BOXES, classes=CLASSES)
    with pytest.raises(UsageError, match=r"boxes are \(n, most, 5\)"):
        from_arrays(IMAGES, BOXES[..., :3], classes=CLASSES)


# --- a symbol at every position


def test_a_symbol_at_every_position(tmp_path: Path) -> None:
    x = np.array([[0, 1, 2, 1], [2, 2, 0, 1], [1, 0, 0, 2]])
    y = np.array([[1, 2, 1, -1], [2, 0, 1, 0], [0, 0, 2, -1]])
    made = from_arrays(x, y, symbols=3, classes=("x", "y", "z"), client=["a", "a", "b"])
    assert made.kind == "symbols" and torch.equal(made.y, torch.from_numpy(y))
    told = pc.load(replace(made, test=torch.zeros(3, dtype=torch.bool)))
    assert told.n_outputs == 3 and label_counts(told).tolist() == [[2, 3, 2], [2, 0, 1]]
    assert not all_of(told)[1:] and from_outline(outline(told), "outline.json").kind == "symbols"
    save(made, tmp_path / "kept.npz")
    assert npz(tmp_path / "kept.npz").kind == "symbols" and torch.equal(npz(tmp_path / "kept.npz").y, made.y)
    with pytest.raises(UsageError, match="a symbol at every position; choose natural"):
        pc.load(made, "dirichlet=1", clients=2)
    with pytest.raises(UsageError, match="outside 0 to 2"):
        from_arrays(x, y + 1, symbols=3, classes=("x", "y", "z"))


# --- the layout of files


def jpeg(seed: int) -> bytes:
    found = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (16, 24, 3), dtype=np.uint8)).save(found, "JPEG")
    return found.getvalue()


def written(path: Path, *, pictures: list[bytes] | None = None, **changes: Any) -> Path:
    """Six pictures of three devices and two; the last two are for testing."""
    pictures = pictures or [jpeg(seed) for seed in range(6)]
    arrays = {
        "jpeg": np.frombuffer(b"".join(pictures), np.uint8),
        "offset": np.cumsum([0, *map(len, pictures)]),
        "boxes": np.array([[0, 2, 0, 0, 65535, 32768], [3, 0, 6554, 0, 13107, 65535], [0, 1, 1, 1, 9, 9]], np.uint16),
        "classes": np.array(CLASSES),
        "test": np.arange(6) > 3,
        "image_id": np.arange(6),
        "device3": np.array([1, 2, 3, 3, 0, 0], np.uint8),
        "device3_guess": np.array([1, 2, 3, 3, 2, 3], np.uint8),
        "device2": np.array([1, 1, 2, 2, 0, 0], np.uint8),
        "device2_guess": np.array([1, 1, 2, 2, 1, 2], np.uint8),
    }
    whole: dict[str, Any] = {key: value for key, value in (arrays | changes).items() if value is not None}
    np.savez(path, **whole)
    return path


def test_a_file_with_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = npz(written(tmp_path / "cameras.npz"))
    assert seen.kind == "boxes" and seen.x.shape == (6, 3, 16, 24) and seen.y.shape == (6, 2, 5)
    assert seen.y[0].tolist() == [
        pytest.approx([2, 0, 0, 1, 32768 / 65535]),
        pytest.approx([1, 1 / 65535, 1 / 65535, 9 / 65535, 9 / 65535]),
    ]
    assert seen.y[1, 0].tolist() == list(NOTHING)
    assert seen.clients == ("device 1", "device 2", "device 3") and set(seen.divisions) == {"device2", "device3"}
    assert "the device of 2 test images is not known and is a guess" in seen.note
    monkeypatch.setenv("POLYCENTRIC_DATA", str(tmp_path))
    two = pc.load("cameras", partition="natural=device2")
    assert two.clients == ("device 1", "device 2") and two.test.sizes.tolist() == [1, 1]
    assert pc.load("cameras").n_clients == 3 and two.source is not None and two.source.partition == "natural=device2"
    assert pc.load("cameras", partition=Natural(by="device2")).fingerprint == two.fingerprint
    small = find("cameras(size=8x12)")
    assert small.x.shape == (6, 3, 8, 12) and torch.equal(small.y, seen.y)
    assert find("cameras(8x12)").recipe == {"pictures": {"size": [8, 12], "channels": 3}}
    assert summary(tmp_path / "cameras.npz") == "6 examples of JPEG, 3 boxes of 3 classes, natural clients"
    assert [found.what for found in available() if found.name == "cameras"] == [summary(tmp_path / "cameras.npz")]
    with pytest.raises(UsageError, match="unknown kind of client of 'cameras' 'device5': did you mean"):
        pc.load("cameras", partition="natural=device5")
    with pytest.raises(UsageError, match="have one kind of natural clients, not 'device5': write natural"):
        pc.load(pool(), partition="natural=device5")
    with pytest.raises(UsageError, match="HEIGHTxWIDTH"):
        find("cameras(size=0x12)")


def test_kept_images_are_resized_as_they_are_read(tmp_path: Path) -> None:
    save(npz(written(tmp_path / "cameras.npz")), tmp_path / "kept.npz")
    assert torch.equal(npz(tmp_path / "kept.npz", size=(8, 12)).x, npz(tmp_path / "cameras.npz", size=(8, 12)).x)
    with pytest.raises(UsageError, match="ask for less"):
        npz(tmp_path / "kept.npz", size=(900, 900), limit=1_000_000)
    np.savez(tmp_path / "rows.npz", x=np.zeros((4, 3)), y=np.zeros(4, int))
    with pytest.raises(UsageError, match="size is for pictures"):
        npz(tmp_path / "rows.npz", size=(8, 12))


def test_a_picture_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    pictures = [jpeg(seed) for seed in range(6)]
    whole = npz(written(tmp_path / "whole.npz"))
    for at in (0, 1):
        broken = [p[:30] if i == at else p for i, p in enumerate(pictures)]
        seen = npz(written(tmp_path / "half.npz", pictures=broken))
        others = [i for i in range(6) if i != at]
        assert torch.equal(seen.x, whole.x[others]) and torch.equal(seen.y, whole.y[others])
        assert all(len(client) == 5 for client, _ in seen.divisions.values())
        assert f"pictures left out because they cannot be read: 1 of 6 (half.npz: picture {at} is not" in seen.note
    with pytest.raises(UsageError, match="picture 0 is not a readable"):
        npz(written(tmp_path / "none.npz", pictures=[b"x"] * 6))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "five columns": ({"boxes": np.zeros((3, 5))}, "rows (image, class, x0, y0, x1, y1)"),
    "half a class": ({"boxes": np.array([[0, 0.5, 0, 0, 1, 1]])}, "must be whole numbers"),
    "a class without name": ({"boxes": np.array([[0, 3.0, 0, 0, 1, 1]])}, "classes 3 to 3, but classes has 3 names"),
    "an image that is not there": ({"boxes": np.array([[6, 0.0, 0, 0, 1, 1]])}, "images 6 to 6, but there are 6"),
    "NaN": ({"boxes": np.array([[0, 0, np.nan, 0, 1, 1]])}, "NaN"),
    "no classes": ({"classes": None}, "boxes need classes"),
    "labels, too": ({"y": np.zeros(6, int)}, "both y and boxes"),
    "two owners": ({"client": np.zeros(6, int)}, "both client and devices"),
    "no device in training": ({"device2": np.array([0, 1, 2, 2, 0, 0])}, "image 0 is for training and has no device"),
    "a guess of nobody": ({"device3_guess": np.full(6, 9)}, "guessed has no training image"),
    "below zero": ({"device2": np.array([-1, 1, 2, 2, 0, 0])}, "numbered from 1"),
    "another array": ({"devices": np.zeros(6, int)}, "unknown array 'devices'"),
    "boxes in rows": ({"jpeg": None, "offset": None, "x": np.zeros((6, 3))}, "boxes are in images"),
    "too many": ({"boxes": np.array([[0, 0, 0, 0, 1, 1.0]] * 1001)}, "has 1,001 boxes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path, case: str) -> None:
    changes, words = WRONG[case]
    path = written(tmp_path / "wrong.npz", **changes)
    with pytest.raises(UsageError) as caught:
        npz(path)
    assert words in str(caught.value) and "wrong" in str(caught.value) and "\n" not in str(caught.value), caught.value


def test_the_street_cameras() -> None:
    folders = os.environ.get("POLYCENTRIC_DATA", "").split(os.pathsep)
    if not any((Path(folder) / "street.npz").is_file() for folder in folders if folder):
        pytest.skip("set POLYCENTRIC_DATA to the folder with street.npz")
    twenty, five = pc.load("street(size=72x88)"), pc.load("street(size=72x88)", partition="natural=device5")
    for seen, clients in ((twenty, 20), (five, 5)):
        assert (seen.n_clients, len(seen.train), len(seen.test), len(seen.classes)) == (clients, 765, 191, 7)
        assert seen.kind == "boxes" and seen.shape == (3, 72, 88) and int(seen.train.sizes.min()) > 0
        assert int(label_counts(seen).sum()) + int((seen.test.y[..., 0] >= 0).sum()) == 2544
        assert "191 test images is not known and is a guess" in seen.note
    assert five.train.sizes.tolist() == [212, 344, 37, 122, 50]
    assert label_counts(five).sum(0).tolist() == label_counts(twenty).sum(0).tolist()


def test_boxes_by_the_classes_of_a_run() -> None:
    ours, turned = federation(), ("table", "chair", "basket")
    y = renamed(BOXES, torch.tensor([turned.index(name) for name in CLASSES]))
    assert torch.equal(in_terms_of(ours, y, turned, "theirs"), BOXES)
    with pytest.raises(UsageError, match="a class 'lamp', which is none of the run's"):
        in_terms_of(ours, BOXES, ("basket", "chair", "lamp"), "theirs")
    with pytest.raises(UsageError, match="classes as targets, and the run's data boxes"):
        in_terms_of(ours, torch.zeros(4, dtype=torch.int64), CLASSES, "theirs")
