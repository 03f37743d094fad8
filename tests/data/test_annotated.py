"""The same scenes in every annotation form give the same tensors; what is wrong with files is one line, or counted."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image

from polycentric import data
from polycentric.data import Natural, Pool, coco, deal, read, street_json, voc, yolo
from polycentric.data.npz_file import npz, save
from polycentric.errors import UsageError
from polycentric.runs.newcomers import read_as_the_runs

CLASSES = ("basket", "chair", "table")
HEIGHT, WIDTH = 24, 32
# Pixels from 0, the last one not included; picture c has nothing in it.
SCENE: dict[str, list[tuple[str, int, int, int, int]]] = {
    "a": [("chair", 2, 3, 10, 12), ("table", 16, 6, 32, 24)],
    "b": [("basket", 0, 1, 8, 9)],
    "c": [],
    "d": [("table", 4, 4, 12, 20), ("chair", 20, 2, 30, 10), ("chair", 1, 15, 7, 23)],
}
TEST = "d"
LAYOUT = {"voc": voc, "coco": coco, "yolo": yolo, "street": street_json}


def picture(path: Path, seed: int = 0, size: tuple[int, int] = (HEIGHT, WIDTH)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def text(path: Path, words: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(words)
    return path


def xml(boxes: list[tuple[str, int, int, int, int]], size: tuple[int, int] = (HEIGHT, WIDTH)) -> str:
    objects = "".join(
        f"<object><name>{name}</name><part><name>leg</name><bndbox><xmin>9</xmin></bndbox></part><bndbox>"
        f"<xmin>{x0 + 1}</xmin><ymin>{y0 + 1}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>"
        for name, x0, y0, x1, y1 in boxes
    )
    sides = f"<size><width>{size[1]}</width><height>{size[0]}</height></size>"
    return f'<?xml version="1.0" encoding="utf-8"?><annotation>{sides}{objects}</annotation>'


def as_voc(root: Path) -> None:
    for name, boxes in SCENE.items():
        text(root / "Annotations" / f"{name}.xml", xml(boxes))
        picture(root / "JPEGImages" / f"{name}.png", ord(name))
    text(root / "ImageSets" / "Main" / "test.txt", f"{TEST}\n")


def as_yolo(root: Path) -> None:
    text(root / "classes.txt", "\n".join(CLASSES))
    for name, boxes in SCENE.items():
        part = "test" if name == TEST else "train"
        rows = [
            f"{CLASSES.index(kind)} {(x0 + x1) / 2 / WIDTH} {(y0 + y1) / 2 / HEIGHT} {(x1 - x0) / WIDTH} "
            f"{(y1 - y0) / HEIGHT}"
            for kind, x0, y0, x1, y1 in boxes
        ]
        text(root / "labels" / part / f"{name}.txt", "\n".join(rows) + "\n")
        picture(root / "images" / part / f"{name}.png", ord(name))


def as_coco(root: Path) -> None:
    for part in ("train", "val"):
        names = [name for name in SCENE if (name == TEST) == (part == "val")]
        images = [{"id": ord(n), "file_name": f"{n}.png", "height": HEIGHT, "width": WIDTH} for n in names]
        boxes = [
            {"image_id": ord(name), "category_id": 1 + CLASSES.index(kind), "bbox": [x0, y0, x1 - x0, y1 - y0]}
            for name in names
            for kind, x0, y0, x1, y1 in SCENE[name]
        ]
        categories = [{"id": 1 + at, "name": kind} for at, kind in enumerate(CLASSES)]
        whole = {"info": {}, "images": images, "annotations": boxes, "categories": categories}
        text(root / "annotations" / f"instances_{part}2017.json", json.dumps(whole))
        for name in names:
            picture(root / f"{part}2017" / f"{name}.png", ord(name))


def as_street(root: Path) -> None:
    for part in ("train", "test"):
        records = [
            {"image_id": name, "items": [{"class": box[0], "bbox": list(box[1:])} for box in boxes]}
            | ({} if part == "test" else {"device1_id": 1 + at % 2, "device2_id": 1 + at})
            for at, (name, boxes) in enumerate(SCENE.items())
            if (name == TEST) == (part == "test")
        ]
        text(root / f"{part}_label.json", json.dumps(records))
    for name in SCENE:
        picture(root / "Images" / f"{name}.png", ord(name))


WRITE: dict[str, Callable[[Path], None]] = {"voc": as_voc, "yolo": as_yolo, "coco": as_coco, "street": as_street}


def expected(pool: Pool) -> None:
    """See that a pool holds the scene."""
    assert pool.kind == "boxes" and pool.classes == CLASSES and pool.x.shape == (4, 3, HEIGHT, WIDTH)
    assert pool.x.dtype == torch.uint8 and pool.y.dtype == torch.float32 and pool.y.shape == (4, 3, 5)
    for name, boxes in SCENE.items():
        seed = np.random.default_rng(ord(name)).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        at = next(i for i in range(4) if np.array_equal(pool.x[i].permute(1, 2, 0).numpy(), seed))
        rows = [
            (CLASSES.index(kind), x0 / WIDTH, y0 / HEIGHT, x1 / WIDTH, y1 / HEIGHT) for kind, x0, y0, x1, y1 in boxes
        ]
        wanted = torch.tensor(rows + [(-1.0, 0, 0, 0, 0)] * (3 - len(rows)), dtype=torch.float32)
        torch.testing.assert_close(pool.y[at], wanted, rtol=0, atol=1e-6)
        assert pool.test is not None and bool(pool.test[at]) == (name == TEST)


@pytest.mark.parametrize("form", WRITE)
def test_all_forms_give_the_same_tensors_and_survive_being_kept(tmp_path: Path, form: str) -> None:
    WRITE[form](tmp_path / "set")
    pool = read(tmp_path / "set")
    expected(pool)
    torch.testing.assert_close(LAYOUT[form](tmp_path / "set").y, pool.y, rtol=0, atol=0)
    save(pool, tmp_path / "kept.npz")
    kept = npz(tmp_path / "kept.npz")
    expected(kept)
    assert torch.equal(kept.y, pool.y) and kept.note == pool.note and kept.recipe == pool.recipe
    assert pool.recipe == {"pictures": {"size": [HEIGHT, WIDTH], "channels": 3}}
    small = read(tmp_path / "set", size=(12, 16))
    assert small.x.shape == (4, 3, 12, 16) and torch.equal(small.y, pool.y)  # shares do not change
    assert small.recipe == {"pictures": {"size": [12, 16], "channels": 3}}


def test_devices_of_the_streets_own_form(tmp_path: Path) -> None:
    as_street(tmp_path / "set")
    pool = read(tmp_path / "set")
    assert pool.clients == ("device 1", "device 2", "device 3") and set(pool.divisions) == {"device1", "device2"}
    assert "the device of 1 test images is not known and was drawn at random" in pool.note
    assert deal(pool, Natural(by="device1")).clients == ("device 1", "device 2")
    save(pool, tmp_path / "kept.npz")
    kept = npz(tmp_path / "kept.npz")
    assert kept.clients == pool.clients and kept.client is not None and pool.client is not None
    assert torch.equal(kept.client, pool.client) and set(kept.divisions) == set(pool.divisions)
    lone = [{"image_id": "a", "items": []}, {"image_id": "b", "device1_id": 1, "items": []}]
    text(tmp_path / "set" / "train_label.json", json.dumps(lone))
    with pytest.raises(UsageError, match="is for training and has no device"):
        read(tmp_path / "set")


def test_folders_are_clients(tmp_path: Path) -> None:
    text(tmp_path / "classes.txt", "thing\n")
    for name in ("north/a", "north/b", "south/c"):
        text(tmp_path / "labels" / f"{name}.txt", "0 0.5 0.5 0.2 0.2")
        picture(tmp_path / "images" / f"{name}.png")
    pool = read(tmp_path)
    assert pool.clients == ("north", "south") and pool.test is None
    assert pool.client is not None and pool.client.tolist() == [0, 0, 1]
    text(tmp_path / "labels" / "d.txt", "")
    picture(tmp_path / "images" / "d.png")
    with pytest.raises(UsageError, match="lies in no folder of a client"):
        read(tmp_path)


def test_pictures_of_one_name_in_several_folders_are_told_apart(tmp_path: Path) -> None:
    text(tmp_path / "classes.txt", "thing\n")
    for at, folder in enumerate(("north", "south")):
        text(tmp_path / "labels" / folder / "a.txt", f"0 0.5 0.5 0.{at + 2} 0.2")
        picture(tmp_path / "images" / folder / "a.png", at)
    pool = read(tmp_path)
    wide = (pool.y[:, 0, 3] - pool.y[:, 0, 1]).tolist()
    assert pool.client is not None and pool.client.tolist() == [0, 1] and wide == pytest.approx([0.2, 0.3])


def test_what_disagrees_is_counted_and_said(tmp_path: Path) -> None:
    as_voc(tmp_path)
    folder = tmp_path / "Annotations"
    text(folder / "lost.xml", xml([("chair", 1, 1, 5, 5)]))
    picture(tmp_path / "JPEGImages" / "bare.png")
    text(folder / "b.xml", xml([("basket", 0, 2, 16, 18)], (2 * HEIGHT, 2 * WIDTH)))  # marked in a larger picture
    text(folder / "c.xml", xml([("chair", 4, 4, 4, 9), ("chair", 40, 2, 50, 9), ("chair", 20, 5, 40, 10)]))
    broken = io.BytesIO()
    Image.new("RGB", (WIDTH, HEIGHT)).save(broken, "PNG")
    (tmp_path / "JPEGImages" / "half.png").write_bytes(broken.getvalue()[:40])
    text(folder / "half.xml", xml([]))
    pool = read(tmp_path)
    assert len(pool.x) == 4
    assert pool.y[1, 0].tolist() == pytest.approx([0, 0, 1 / HEIGHT, 0.25, 9 / HEIGHT])
    assert pool.y[2, 0].tolist() == pytest.approx([1, 20 / WIDTH, 5 / HEIGHT, 1, 10 / HEIGHT]) and pool.y[2, 1, 0] == -1
    for words in (
        "annotations without their picture left out: 1 of 6 (Annotations/lost.xml)",
        "pictures without annotation left out: 1 of 6",
        "pictures left out because they cannot be read: 1 of 5 (JPEGImages/half.png",
        "pictures of another size than their annotation says: 1 of 4 (JPEGImages/b.png)",
        "boxes cut at the border of their image: 1 of 9",
        "boxes without area left out: 2 of 9",
    ):
        assert words in pool.note, (words, pool.note)


def test_corners_that_count_from_zero(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    text(tmp_path / "a.xml", xml([("chair", -1, 3, 8, 12)]))  # xmin is 0
    assert read(tmp_path).y[0, 0].tolist() == pytest.approx([0, 0, 4 / HEIGHT, 8 / WIDTH, 12 / HEIGHT])


def coco_with(**changes: Any) -> str:
    whole = {
        "images": [{"id": 1, "file_name": "a.png"}],
        "categories": [{"id": 3, "name": "chair"}],
        "annotations": [{"image_id": 1, "category_id": 3, "bbox": [1, 1, 5, 5]}],
    }
    return json.dumps(whole | changes)


def test_boxes_that_coco_leaves_open(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    row = {"image_id": 1, "category_id": 3, "bbox": [1, 1, 5, 5]}
    text(tmp_path / "x.json", coco_with(annotations=[row, row | {"iscrowd": 1}, row | {"image_id": 2}]))
    pool = read(tmp_path)
    assert pool.y.shape == (1, 1, 5) and pool.test is None and pool.client is None
    assert "not listed left out: 1" in pool.note and "crowds left out: 1" in pool.note


LAUGHS = '<!DOCTYPE a [<!ENTITY l "lol">' + "".join(
    f'<!ENTITY l{n} "{f"&l{n - 1 if n > 1 else str()};" * 10}">' for n in range(1, 9)
)
WRONG: dict[str, tuple[str, str, str]] = {
    "no xml": ("a.xml", "chair 1 2 3 4", "cannot be read"),
    "cut short": ("a.xml", "<annotation><object>", "cannot be read"),
    "billion laughs": ("a.xml", LAUGHS + "]><annotation><filename>&l8;</filename></annotation>", "DOCTYPE"),
    "another file": (
        "a.xml",
        '<!DOCTYPE a [<!ENTITY f SYSTEM "file:///etc/passwd">]><annotation>&f;</annotation>',
        "DOCTYPE",
    ),
    "nested": ("a.xml", "<a>" * 10_000 + "</a>" * 10_000, "nested too deeply"),
    "large": ("a.xml", "<a>" + " " * (1 << 20) + "</a>", "more than"),
    "no corner": ("a.xml", "<a><object><name>chair</name></object></a>", "xmin of an object: 'None' is no number"),
    "no number": ("a.xml", xml([("chair", 1, 1, 5, 5)]).replace(">5<", ">nan<"), "'nan' is no number"),
    "no name": ("a.xml", xml([("", 1, 1, 5, 5)]), "a class needs a name"),
    "no boxes at all": ("a.xml", xml([]), "classes.txt"),
    "too many boxes": ("a.xml", xml([("chair", 1, 1, 5, 5)] * 1001), "marks 1,001 boxes"),
    "seven numbers": ("a.txt", "0 0.5 0.5 0.1 0.1 0.3 0.3", "line 1 has 7 numbers"),
    "class without name": ("a.txt", "\n7 0.5 0.5 0.1 0.1", "line 2: class 7, but classes.txt names 1"),
    "word for a number": ("a.txt", "0 half 0.5 0.1 0.1", "'half' is no number"),
    "no pictures of coco": ("x.json", coco_with(images=[{"id": 1, "file_name": "../z.png"}]), "none of 1 annotated"),
    "coco twice": ("x.json", coco_with(images=[{"id": n, "file_name": "a.png"} for n in (1, 2)]), "2 times"),
    "coco category": ("x.json", coco_with(categories=[{"id": 4, "name": "table"}]), "category_id 3 is none"),
    "coco box": ("x.json", coco_with(annotations=[{"image_id": 1, "category_id": 3, "bbox": [1, 2]}]), "bbox must be"),
    "coco id": ("x.json", coco_with(images=[{"id": "1", "file_name": "a.png"}]), "id must be a whole number"),
    "coco without images": ("x.json", '{"annotations": [], "categories": []}', "no list of objects 'images'"),
    "deep json": ("x.json", "[" * 100_000, "cannot be read"),
    "record without items": ("x.json", '[{"image_id": "a"}]', "items must be a list"),
    "records that are no objects": ("x.json", "[1, 2]", "no list of objects"),
    "infinite corner": ("x.json", '[{"image_id": "a", "items": [{"class": "c", "bbox": [0, 0, 1e999, 1]}]}]', "inf"),
    "odd device": ("x.json", '[{"image_id": "a", "device1_id": "x", "items": []}]', "a device is a number"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_line(tmp_path: Path, case: str) -> None:
    name, words, message = WRONG[case]
    picture(tmp_path / "a.png")
    text(tmp_path / name, words)
    if name.endswith(".txt"):
        text(tmp_path / "classes.txt", "chair\n")
    with pytest.raises(UsageError) as caught:
        read(tmp_path)
    assert message in str(caught.value) and "\n" not in str(caught.value), caught.value


WORDS = ["image_id", "items", "class", "bbox", "device1_id", "images", "annotations", "categories", "id", "file_name"]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["a", "a.png", "chair", "", "../b", "7"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*WORDS, "name"]), inner, max_size=6),
    max_leaves=20,
)
RECORDS = st.lists(
    st.fixed_dictionaries({"image_id": ANY, "items": st.lists(st.fixed_dictionaries({"class": ANY, "bbox": ANY}))})
)
TABLES = st.fixed_dictionaries(
    {"images": st.just([{"id": 1, "file_name": "a.png"}]) | ANY, "categories": ANY, "annotations": ANY}
)


@given(whole=ANY | RECORDS | TABLES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_whatever_json_holds_is_read_or_refused(tmp_path: Path, whole: Any) -> None:
    picture(tmp_path / "a.png")
    text(tmp_path / "x.json", json.dumps(whole))
    for reader in (coco, street_json):
        try:
            found = reader(tmp_path)
            assert found.kind == "boxes" and len(found.x) == 1
        except UsageError as wrong:
            assert str(wrong)


@given(words=st.text(max_size=60) | st.lists(st.sampled_from(["0", "1", "0.5", "nan", "-1", "\n", "x"])).map(" ".join))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_text_holds_is_read_or_refused(tmp_path: Path, words: str) -> None:
    picture(tmp_path / "a.png")
    text(tmp_path / "classes.txt", "chair\n")
    (tmp_path / "a.txt").write_bytes(words.encode("utf-8", "surrogatepass"))
    (tmp_path / "a.xml").write_bytes(words.encode("utf-8", "surrogatepass"))
    for reader in (yolo, voc):
        try:
            assert len(reader(tmp_path).x) == 1
        except UsageError as wrong:
            assert str(wrong)


def test_classes_that_are_not_listed_are_refused(tmp_path: Path) -> None:
    as_voc(tmp_path)
    text(tmp_path / "classes.txt", "table\nchairs\nbasket\n")
    with pytest.raises(UsageError, match=r"Annotations/a.xml: unknown class 'chair': did you mean 'chairs'"):
        read(tmp_path)
    text(tmp_path / "classes.txt", "table\nchair\nbasket\nlamp\n")
    assert read(tmp_path).classes == ("table", "chair", "basket", "lamp")  # in their order, and one without a box
    text(tmp_path / "classes.txt", "table\ntable\n")
    with pytest.raises(UsageError, match="twice"):
        read(tmp_path)


def test_pictures_of_several_sizes_need_one(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    picture(tmp_path / "images" / "train" / "b.png", 7, (30, 40))
    with pytest.raises(UsageError, match="--size 64x64"):
        read(tmp_path)
    assert read(tmp_path, size=(24, 32)).x.shape == (4, 3, 24, 32)


def test_a_link_that_leaves_is_refused(tmp_path: Path) -> None:
    picture(tmp_path / "secret.png")
    text(tmp_path / "set" / "a.xml", xml([("chair", 1, 1, 5, 5)]))
    (tmp_path / "set" / "a.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(UsageError, match="link that leaves"):
        read(tmp_path / "set")


def test_the_forms_are_told_from_leaf(tmp_path: Path) -> None:
    text(
        tmp_path / "all.json",
        json.dumps({"users": ["u"], "num_samples": [1], "user_data": {"u": {"x": [[1]], "y": [0]}}}),
    )
    assert data.sources._kind(tmp_path) is data.leaf


def test_a_folder_is_imported_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Callable[..., Any]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    as_street(tmp_path / "cameras")
    (tmp_path / "cameras" / "Images" / "a.png").write_bytes(b"no picture")
    ended = say("data", "import", str(tmp_path / "cameras"), "--size", "12x16")
    assert ended.code == 0 and "use it with --data cameras" in ended.err
    assert ended.out.startswith("3 images, 4 boxes: basket (1), chair (2), table (1)\n2 clients, 1 to 2 images\n")
    assert "cannot be read: 1 of 4 (Images/a.png is not" in ended.out
    assert say("data", "show", "cameras", "--partition", "natural=device1").code == 0
    ended = say("data", "import", str(tmp_path / "cameras"), "--client", "site", "--force")
    assert (ended.code, len(ended.lines)) == (2, 1) and "leave --client out" in ended.err


def test_other_pictures_with_boxes_are_read_as_the_runs_were(tmp_path: Path) -> None:
    as_yolo(tmp_path / "set")
    small = read(tmp_path / "set", size=(12, 16))
    ours = deal(replace(small, client=torch.tensor([0, 0, 1, 1]), clients=("a", "b")), Natural())
    for data_of in (tmp_path / "set", str(tmp_path / "set")):
        pool, said = read_as_the_runs(ours, data_of)
        assert pool is not None and pool.x.shape == (4, 3, 12, 16) and pool.kind == "boxes" and not said
