"""The street cameras' own annotations: JSON files that are lists of pictures.

    [{"image_id": "000017", "device1_id": 2, "device2_id": 1,
      "items": [{"class": "chair", "bbox": [x0, y0, x1, y1]}]}, ...]

Boxes are corners in pixels. The two numbers are devices of two divisions, `natural=device1` and `natural=device2`; a
file with `test` in its name is for testing, and its pictures have none.

Reference: Luo et al., Real-world image datasets for federated learning, 2019.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import require
from ..language.files import parsed, read_bytes
from .annotated import Box, Marked, Pictures, for_testing, named, number, pool_of
from .archive import LIMIT, reading
from .boxes_coco import JSON, json_files
from .federation import Pool

DEVICES = {"device1_id": "device1", "device2_id": "device2"}


def street_json(path: str | Path, *, size: tuple[int, int] | None = None, limit: int = LIMIT) -> Pool:
    """Read a folder of pictures and .json files, lists of records of pictures.

    Arguments:
        path: the folder.
        size: (height, width) to resize all pictures to; None demands that they have one size.
        limit: refuse pictures of more bytes than this.
    """
    root = Path(path)
    pictures, marks = Pictures(root), list[Marked]()
    for file in json_files(root):
        with reading(file):
            records = parsed(read_bytes(file, JSON))
            good = isinstance(records, list) and all(isinstance(record, dict) for record in records)
            require(good, f"{file.name} is no list of objects, one for each picture")
            marks += [_marked(file, record, pictures) for record in records]
    return pool_of(root, pictures, marks, size, limit)


def _marked(file: Path, record: dict[str, Any], pictures: Pictures) -> Marked:
    name, items = record.get("image_id"), record.get("items")
    good = isinstance(name, str | int) and not isinstance(name, bool)
    require(good, f"{file.name}: image_id must be the name of a picture, got {str(name)[:40]!r}")
    said = f"{file.name}: {str(name)[:80]}"
    good = isinstance(items, list) and all(isinstance(item, dict) for item in items)
    require(good, f"{said}: items must be a list of objects with class and bbox")
    devices = {to: _device(said, record[key]) for key, to in DEVICES.items() if record.get(key) is not None}
    boxes = [_box(said, item) for item in items or ()]
    return Marked(said, pictures.called(name, file), boxes, test=for_testing(file.name), devices=devices)


def _box(said: str, item: dict[str, Any]) -> Box:
    box = item.get("bbox")
    good = isinstance(box, list) and len(box) == 4
    require(good, f"{said}: bbox must be [x0, y0, x1, y1], got {str(box)[:60]}")
    x0, y0, x1, y1 = (number(f"{said}: bbox", value) for value in box or ())
    return named(said, item.get("class")), x0, y0, x1, y1


def _device(said: str, value: Any) -> int:
    good = (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, str) and value.isdecimal())
    require(good and 0 <= int(value) < 1 << 20, f"{said}: a device is a number from 0 up, got {str(value)[:40]!r}")
    return int(value)
