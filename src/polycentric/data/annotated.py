"""Folders of pictures with boxes marked in them: what the readers of all annotation files have in common.

Pictures lie in the folder or in folders inside it, at most three deep. Whatever the files are:

    CLIENT/picture.jpg          a folder that is not called images, labels, train and the like is a client
    test/picture.jpg            a folder (or an annotation file) with `test` or `val` in its name is for testing
    test.txt                    in the folder or in ImageSets/Main: the names of the test pictures, one a line
    classes.txt                 the names of the classes in their order, one a line; without, those that occur, sorted

An annotation without its picture, a picture without annotation, one that cannot be read, a size that the annotation has
otherwise, a box that reaches over the border or has no area: each is counted, and the note of the pool says it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from ..errors import UsageError, require, unknown
from ..language.files import read_text
from .archive import AnyArray, reading
from .box_rows import MOST_BOXES, Divisions, joined, left_out, padded, with_devices
from .federation import Pool
from .npz_file import printable, renumbered
from .pictures import SUFFIXES, Bytes, shape_of, unpacked

MOST_PICTURES = 1_000_000
MOST_CLASSES = 10_000
LONGEST = 200  # characters of a name
ANNOTATION = 1 << 20  # bytes of the annotation of one picture
LISTS = ("test.txt", "ImageSets/Main/test.txt")
_NO_CLIENT = ("images", "image", "img", "jpegimages", "labels", "annotations", "imagesets", "data")
_PARTS = ("train", "test", "val")

Box = tuple[str, float, float, float, float]  # class, x0, y0, x1, y1


@dataclass(frozen=True)
class Marked:
    """What an annotation says of one picture."""

    said: str  # which annotation, for messages
    picture: Path | None  # None: it is not there
    boxes: Sequence[Box]
    size: tuple[float, float] | None = None  # height and width that boxes are measured in; None: the picture's own
    shares: bool = False  # whether boxes are in shares of the sides
    test: bool = False
    devices: dict[str, int] = field(default_factory=dict)  # numbers from 0, -1 where it is not known


class Pictures:
    """The pictures of a folder, by their names."""

    def __init__(self, root: Path) -> None:
        inside = root.resolve()
        deep = (file for depth in ("*", "*/*", "*/*/*", "*/*/*/*") for file in root.glob(depth))
        found = [file for file in deep if file.suffix.lower() in SUFFIXES and file.is_file()]
        self.root = root
        self.files = sorted(f for f in found if not any(part.startswith(".") for part in f.relative_to(root).parts))
        require(bool(self.files), f"{root.name} has no pictures ({', '.join(SUFFIXES)})")
        require(
            len(self.files) <= MOST_PICTURES, f"{root.name} has more than {MOST_PICTURES:,} pictures: import a part"
        )
        self._named: dict[str, list[Path]] = {}
        for file in self.files:
            good = file.resolve().is_relative_to(inside)
            require(good, f"{file.relative_to(root)} is a link that leaves {root.name}; put the picture itself there")
            for name in {file.name, file.stem, file.stem.lstrip("0") or "0"}:
                self._named.setdefault(name, []).append(file)

    def called(self, name: object, near: Path) -> Path | None:
        """The picture of a name, with or without folders and suffix; of several, the one nearest to its annotation."""
        parts = PurePosixPath(str(name).replace("\\", "/")).parts
        last = parts[-1] if parts else ""
        found = self._named.get(last) or self._named.get(PurePosixPath(last).stem) or []
        if not found and last.isdecimal():
            found = self._named.get(last.lstrip("0") or "0", [])
        mine = {*near.relative_to(self.root).parts[:-1], *parts[:-1]}

        def shared(file: Path) -> int:
            return len(mine.intersection(file.relative_to(self.root).parts[:-1]))

        return max(found, key=shared, default=None)


def pool_of(
    root: Path,
    pictures: Pictures,
    marks: Sequence[Marked],
    size: tuple[int, int] | None,
    limit: int,
    *,
    classes: tuple[str, ...] = (),
    notes: Sequence[str] = (),
) -> Pool:
    """Marked pictures as a pool; `classes` where the annotation files name them, `notes` what the reader has to say."""
    name = root.resolve().name
    lost = [mark.said for mark in marks if mark.picture is None]
    require(
        len(lost) < len(marks), f"{name}: none of {len(marks)} annotated pictures is there; put them into the folder"
    )
    bare = len(pictures.files) - len(marks) + len(lost)
    x, there, files, dropped = _readable(root, marks, size, limit)
    shapes = [shape_of(file, str(file)) for file in files]
    otherwise = [
        str(file.relative_to(root))
        for mark, shape, file in zip(there, shapes, files, strict=True)
        if mark.size not in (None, shape) and not mark.shares
    ]
    classes = _classes(root, there, classes)
    y, said = padded(name, *_arrays(there, shapes, classes), len(files), classes)
    listed = _test_list(root)
    test = np.array([_is_test(file, root, listed) or mark.test for file, mark in zip(files, there, strict=True)])
    client, clients = _clients(root, files)
    found, guessed = _devices(name, there, test)
    if found:
        client, clients = max(found.values(), key=lambda division: len(division[1]))
    notes = [
        *notes,
        _count("annotations without their picture left out", lost, len(marks)),
        f"pictures without annotation left out: {bare} of {len(pictures.files)}" if bare else "",
        dropped,
        _count("pictures of another size than their annotation says", otherwise, len(files)),
        said,
        guessed,
    ]
    return Pool(
        name,
        torch.from_numpy(x),
        y,
        classes,
        client=client,
        clients=clients,
        divisions=found,
        test=torch.from_numpy(test) if test.any() else None,
        note=joined(*notes),
        recipe={"pictures": {"size": list(x.shape[2:]), "channels": x.shape[1]}},
    )


def _readable(
    root: Path, marks: Sequence[Marked], size: tuple[int, int] | None, limit: int
) -> tuple[Bytes, list[Marked], list[Path], str]:
    """The pictures that are there and can be read, what is marked in them, their files, and how many cannot be read."""
    pairs = [(mark, mark.picture) for mark in marks if mark.picture is not None]
    most, times = Counter(file for _, file in pairs).most_common(1)[0]
    require(times == 1, f"{most.relative_to(root)} is annotated {times} times; leave all but one of them out")
    for mark, _ in pairs:
        n = len(mark.boxes)
        require(n <= MOST_BOXES, f"{mark.said} marks {n:,} boxes, more than {MOST_BOXES:,}; leave the picture out")
    broken: dict[int, str] = {}
    x = unpacked([file for _, file in pairs], [str(file.relative_to(root)) for _, file in pairs], size, limit, broken)
    kept = [at for at in range(len(pairs)) if at not in broken]
    there, files = [pairs[at][0] for at in kept], [pairs[at][1] for at in kept]
    return x[kept] if broken else x, there, files, left_out("pictures", broken, len(pairs))


def number(said: str, value: Any) -> float:
    """A finite number, or a line that names where it stands."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    require(math.isfinite(found) and abs(found) < 1e9, f"{said}: {str(value)[:40]!r} is no number of pixels")
    return found


def named(said: str, value: Any) -> str:
    """A class's name, which is not empty and not endless."""
    name = printable([value])[0].strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    require(0 < len(name) <= LONGEST, f"{said}: a class needs a name of 1 to {LONGEST} characters")
    return name


def listed_classes(root: Path) -> tuple[str, ...]:
    """The names in classes.txt, in their order; none where it is not there."""
    path = root / "classes.txt"
    if not path.is_file():
        return ()
    with reading(path):
        lines = [line.strip() for line in read_text(path, ANNOTATION).splitlines()]
    names = tuple(named(path.name, line) for line in lines if line)
    require(len(set(names)) == len(names), f"{path.name} names a class twice")
    good = 0 < len(names) <= MOST_CLASSES
    require(good, f"{path.name} must name 1 to {MOST_CLASSES:,} classes, one a line")
    return names


def for_testing(name: str) -> bool:
    """Whether a folder or an annotation file is for testing, by its name.

    >>> for_testing("instances_val2017.json"), for_testing("train_label.json")
    (True, False)
    """
    return any(part in name.lower() for part in _PARTS[1:])


def _arrays(
    there: Sequence[Marked], shapes: Sequence[tuple[int, int]], classes: tuple[str, ...]
) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Images, classes and corners in shares of all boxes."""
    number_of = {name: label for label, name in enumerate(classes)}
    rows = []
    for at, (mark, shape) in enumerate(zip(there, shapes, strict=True)):
        height, width = (1.0, 1.0) if mark.shares else mark.size or shape
        for name, x0, y0, x1, y1 in mark.boxes:
            rows.append((at, number_of[name], x0 / width, y0 / height, x1 / width, y1 / height))
    table = np.array(rows, np.float64).reshape(-1, 6)
    return table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2:]


def _classes(root: Path, marks: Sequence[Marked], named_there: tuple[str, ...]) -> tuple[str, ...]:
    """The classes in their order; a box of another one is refused."""
    known = named_there or listed_classes(root)
    found = {box[0]: mark.said for mark in reversed(marks) for box in mark.boxes}
    if not known:
        require(bool(found), f"{root.name}: no picture has a box, so there are no classes; name them in classes.txt")
        require(
            len(found) <= MOST_CLASSES, f"{root.name}: boxes are of {len(found):,} classes, more than {MOST_CLASSES:,}"
        )
        return tuple(sorted(found))
    for name, said in found.items():
        if name not in known:
            raise UsageError(f"{said}: {unknown('class', name, known)}")
    return known


def _test_list(root: Path) -> set[str]:
    for name in LISTS:
        path = root / name
        if path.is_file():
            with reading(path):
                lines = read_text(path).replace("\\", "/").splitlines()
            return {PurePosixPath(line.split()[0]).stem for line in lines if line.split()}
    return set()


def _is_test(file: Path, root: Path, listed: set[str]) -> bool:
    return file.stem in listed or any(map(for_testing, file.relative_to(root).parts[:-1]))


def _clients(root: Path, files: Sequence[Path]) -> tuple[torch.Tensor | None, tuple[str, ...]]:
    """Whose every picture is, by its folder."""

    def whose(file: Path) -> str:
        parts = file.relative_to(root).parts[:-1]
        return "/".join(part for part in parts if part.lower() not in _NO_CLIENT and not _is_part(part))

    owners = [whose(file) for file in files]
    if not any(owners):
        return None, ()
    without = next((file for file, owner in zip(files, owners, strict=True) if not owner), None)
    if without is not None:
        raise UsageError(
            f"{without.relative_to(root)} lies in no folder of a client, and other pictures do: put it into one"
        )
    return renumbered(np.array(owners))


def _is_part(folder: str) -> bool:
    return folder.lower().rstrip("0123456789").removesuffix("id") in _PARTS


def _devices(name: str, marks: Sequence[Marked], test: AnyArray) -> tuple[Divisions, str]:
    """The divisions of the pictures into devices, and what must be known of them."""
    found, said = Divisions(), dict[str, None]()
    for key in dict.fromkeys(key for mark in marks for key in mark.devices):
        device = np.array([mark.devices.get(key, -1) for mark in marks])
        device = device + int((device == 0).any())  # here they are numbered from 1
        found[key], told = with_devices(name, np.maximum(device, 0), None, test)
        said[told] = None
    return found, joined(*said)


def _count(what: str, names: Sequence[str], of: int) -> str:
    return f"{what}: {len(names)} of {of} ({', '.join(names[:3])})" if names else ""
