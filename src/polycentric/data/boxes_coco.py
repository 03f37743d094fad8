"""COCO's annotations: one JSON file for many pictures.

    {"images": [{"id": 7, "file_name": "a.jpg", "height": 288, "width": 352}],
     "categories": [{"id": 3, "name": "chair"}],
     "annotations": [{"image_id": 7, "category_id": 3, "bbox": [x, y, width, height]}]}

Boxes are in pixels, from the corner at the left and the top. Those of a crowd (`iscrowd`) are left out and counted.

Reference: Lin et al., Microsoft COCO: common objects in context, ECCV 2014.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import require
from ..language.files import opened, parsed, read_bytes
from .annotated import Box, Marked, Pictures, for_testing, named, number, pool_of
from .archive import LIMIT, reading
from .federation import Pool

JSON = 512 << 20  # bytes of one file


def coco(path: str | Path, *, size: tuple[int, int] | None = None, limit: int = LIMIT) -> Pool:
    """Read a folder of pictures and .json files, in it or in annotations/; one with `test` or `val` in its name is for
    testing.

    Arguments:
        path: the folder.
        size: (height, width) to resize all pictures to; None demands that they have one size.
        limit: refuse pictures of more bytes than this.
    """
    root = Path(path)
    pictures, marks, classes, lost, crowds = Pictures(root), list[Marked](), dict[int, str](), 0, 0
    for file in json_files(root):
        with reading(file):
            whole = parsed(read_bytes(file, JSON))
            tables = [_rows(file, whole, key) for key in ("categories", "images", "annotations")]
            categories, images, annotations = tables
            own = {_id(file, row, "id"): named(f"{file.name}: categories", row.get("name")) for row in categories}
            good = all(classes.setdefault(key, name) == name for key, name in own.items())
            require(good, f"{file.name}: its categories are not those of the other .json files; give both the same")
            boxes: dict[int, list[Box]] = {_id(file, row, "id"): [] for row in images}
            require(len(boxes) == len(images), f"{file.name}: two images have the same id")
            for row in annotations:
                image, label = _id(file, row, "image_id"), _id(file, row, "category_id")
                crowds += bool(row.get("iscrowd"))
                lost += image not in boxes
                if image not in boxes or row.get("iscrowd"):
                    continue
                said = f"{file.name}: category_id {label} is none of its categories; add it to them"
                require(label in classes, said)
                boxes[image].append((classes[label], *_corners(file, row)))
            for row in images:
                marks.append(_marked(file, row, boxes[_id(file, row, "id")], pictures))
    names = tuple(classes[key] for key in sorted(classes))
    require(len(set(names)) == len(names), f"{root.name}: two categories have one name")
    notes = [f"boxes of images that are not listed left out: {lost}"] if lost else []
    notes += [f"boxes of crowds left out: {crowds}"] if crowds else []
    return pool_of(root, pictures, marks, size, limit, classes=names, notes=notes)


def json_files(root: Path) -> list[Path]:
    """The .json files of a folder, and of annotations/ in it."""
    return sorted([*root.glob("*.json"), *root.glob("annotations/*.json")])


def looks_like_coco(file: Path) -> bool:
    """Whether a .json file begins as COCO's do, rather than as LEAF's."""
    head = head_of(file)
    return any(f'"{word}"' in head for word in ("images", "categories", "annotations", "licenses")) and not any(
        f'"{word}"' in head for word in ("users", "num_samples", "user_data")
    )


def head_of(file: Path) -> str:
    """How a file begins; empty where it cannot be read."""
    try:
        with opened(file) as stream:
            return stream.read(4096).decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    except OSError:
        return ""


def _rows(file: Path, whole: Any, key: str) -> list[dict[str, Any]]:
    rows = whole.get(key) if isinstance(whole, dict) else None
    good = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    require(good, f"{file.name} has no list of objects '{key}': it is not in COCO's form")
    return rows or []


def _id(file: Path, row: dict[str, Any], key: str) -> int:
    value = row.get(key)
    good = isinstance(value, int) and not isinstance(value, bool)
    require(good, f"{file.name}: {key} must be a whole number, got {str(value)[:40]!r}")
    return int(value or 0)


def _corners(file: Path, row: dict[str, Any]) -> tuple[float, float, float, float]:
    box = row.get("bbox")
    good = isinstance(box, list) and len(box) == 4
    require(good, f"{file.name}: bbox must be [x, y, width, height], got {str(box)[:60]}")
    x, y, width, height = (number(f"{file.name}: bbox", value) for value in box or ())
    return x, y, x + width, y + height


def _marked(file: Path, row: dict[str, Any], boxes: list[Box], pictures: Pictures) -> Marked:
    name = row.get("file_name")
    good = isinstance(name, str) and bool(name)
    require(good, f"{file.name}: an image needs a file_name, got {str(name)[:40]!r}")
    sides = [number(f"{file.name}: {key} of {name}", row[key]) for key in ("height", "width") if row.get(key)]
    size = (sides[0], sides[1]) if len(sides) == 2 and min(sides) > 0 else None
    return Marked(f"{file.name}: {name}", pictures.called(name, file), boxes, size, test=for_testing(file.name))
