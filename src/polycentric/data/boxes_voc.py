"""Pascal VOC's annotations: an XML file for every picture.

    <annotation>
        <filename>a.jpg</filename>
        <size><width>352</width><height>288</height></size>
        <object><name>chair</name>
            <bndbox><xmin>1</xmin><ymin>20</ymin><xmax>60</xmax><ymax>90</ymax></bndbox></object>
    </annotation>

Its corners are pixels, counted from 1, the last included: x0 = (xmin - 1) / width, x1 = xmax / width. Tools that count
from 0 betray it by a 0 in some file; then corners are taken as they stand.

Reference: Everingham et al., The Pascal visual object classes (VOC) challenge, IJCV 2010.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat

from ..errors import require
from ..language.files import read_bytes
from .annotated import ANNOTATION, Box, Marked, Pictures, named, number, pool_of
from .archive import LIMIT, reading
from .federation import Pool

DEEPEST = 20  # elements within elements
CORNERS = ("xmin", "ymin", "xmax", "ymax")


def voc(path: str | Path, *, size: tuple[int, int] | None = None, limit: int = LIMIT) -> Pool:
    """Read a folder of pictures and .xml files, beside them or in Annotations/.

    Arguments:
        path: the folder.
        size: (height, width) to resize all pictures to; None demands that they have one size.
        limit: refuse pictures of more bytes than this.
    """
    root = Path(path)
    pictures, marks = Pictures(root), list[Marked]()
    for file in voc_files(root):
        with reading(file):
            marks.append(_marked(file, root, pictures))
    from_one = all(corner >= 1 for mark in marks for box in mark.boxes for corner in box[1:3])
    if from_one:
        marks = [replace(mark, boxes=[(n, a - 1, b - 1, c, d) for n, a, b, c, d in mark.boxes]) for mark in marks]
    return pool_of(root, pictures, marks, size, limit)


def voc_files(root: Path) -> list[Path]:
    """The .xml files of a folder, at most two folders down."""
    return sorted(file for depth in ("*.xml", "*/*.xml", "*/*/*.xml") for file in root.glob(depth))


def _marked(file: Path, root: Path, pictures: Pictures) -> Marked:
    said = str(file.relative_to(root))
    facts, objects = _elements(read_bytes(file, ANNOTATION), said)
    boxes = list[Box]()
    for found in objects:
        x0, y0, x1, y1 = (number(f"{said}: {key} of an object", found.get(f"bndbox/{key}")) for key in CORNERS)
        boxes.append((named(said, found.get("name", "")), x0, y0, x1, y1))
    sides = [number(f"{said}: {key}", facts[f"size/{key}"]) for key in ("height", "width") if f"size/{key}" in facts]
    good = len(sides) == 2 and min(sides) > 0  # some tools write 0 where they do not know
    picture = pictures.called(file.stem, file) or pictures.called(facts.get("filename", ""), file)
    return Marked(said, picture, boxes, (sides[0], sides[1]) if good else None)


def _elements(text: bytes, said: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The texts of an annotation's elements by their path, and those of every object.

    A document type, by which a few bytes may become gigabytes or name another file, is refused where it begins.
    """
    parser = expat.ParserCreate()
    path: list[str] = []
    words: list[str] = []
    facts: dict[str, str] = {}
    objects: list[dict[str, str]] = []

    def begins(tag: str, _: Any) -> None:
        require(len(path) < DEEPEST, f"{said} is nested too deeply for an annotation")
        path.append(tag)
        words.clear()
        if path[1:] == ["object"]:
            objects.append({})

    def ends(_: str) -> None:
        inside = path[1:2] == ["object"]
        where = objects[-1] if inside else facts
        where.setdefault("/".join(path[2:] if inside else path[1:]), "".join(words).strip())
        path.pop()
        words.clear()

    def refuse(*_: Any) -> NoReturn:
        raise ValueError("it declares a document type or entities, which are never read: leave <!DOCTYPE ...> out")

    parser.StartElementHandler, parser.EndElementHandler = begins, ends
    parser.CharacterDataHandler = words.append
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = parser.ExternalEntityRefHandler = refuse
    parser.Parse(text, True)
    return facts, objects
