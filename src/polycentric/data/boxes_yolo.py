"""YOLO's annotations: a text file for every picture, a line for every box.

    labels/a.txt        2 0.5 0.4 0.1 0.2       class, middle (across, down), width, height, in shares of the sides
    classes.txt         the names of classes 0, 1, 2, ..., one a line

A text lies beside its picture, or in labels/ as the picture lies in images/. An empty one says that nothing is there.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import require
from ..language.files import read_text
from .annotated import ANNOTATION, LISTS, Box, Marked, Pictures, listed_classes, number, pool_of
from .archive import LIMIT, reading
from .federation import Pool


def yolo(path: str | Path, *, size: tuple[int, int] | None = None, limit: int = LIMIT) -> Pool:
    """Read a folder of pictures, a .txt file for each of them, and classes.txt.

    Arguments:
        path: the folder.
        size: (height, width) to resize all pictures to; None demands that they have one size.
        limit: refuse pictures of more bytes than this.
    """
    root = Path(path)
    classes = listed_classes(root)
    require(bool(classes), f"{root.name} has no classes.txt that names classes 0, 1, 2, ..., one a line")
    pictures, marks = Pictures(root), list[Marked]()
    for file in yolo_files(root):
        with reading(file):
            said = str(file.relative_to(root))
            lines = [line.split() for line in read_text(file, ANNOTATION).splitlines()]
            boxes = [_box(f"{said}, line {at + 1}", words, classes) for at, words in enumerate(lines) if words]
            marks.append(Marked(said, pictures.called(file.stem, file), boxes, shares=True))
    require(bool(marks), f"{root.name} has classes.txt and no .txt file for any picture")
    return pool_of(root, pictures, marks, size, limit, classes=classes)


def yolo_files(root: Path) -> list[Path]:
    """The .txt files of pictures, at most three folders down; none without classes.txt."""
    if not (root / "classes.txt").is_file():
        return []
    lists = {root / name for name in ("classes.txt", "train.txt", "val.txt", *LISTS)}
    deep = (file for depth in ("*.txt", "*/*.txt", "*/*/*.txt", "*/*/*/*.txt") for file in root.glob(depth))
    return sorted(file for file in deep if file not in lists and file.name != "classes.txt")


def _box(said: str, words: list[str], classes: tuple[str, ...]) -> Box:
    good = len(words) == 5
    require(good, f"{said} has {len(words)} numbers, but a box is five: class, middle across and down, width, height")
    label, x, y, width, height = (number(said, word) for word in words)
    good = label == int(label) and 0 <= label < len(classes)
    require(good, f"{said}: class {label:g}, but classes.txt names {len(classes)}, 0 to {len(classes) - 1}")
    return classes[int(label)], x - width / 2, y - height / 2, x + width / 2, y + height / 2
