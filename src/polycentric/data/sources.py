"""Where data come from: find a data set by its name, read one from a path, or keep one for later.

find("digits")              made here or shipped with scikit-learn: digits, synthetic(0.5,0.5), teacher, minority
find("unipen62")            unipen62.npz, or a folder of that name, in $POLYCENTRIC_DATA or in the cache
find("street(size=144x176)")        the same for pictures, brought to another size as they are read
read("some/folder")         whatever it is: a table, .npz, LEAF, IDX, CIFAR, pictures by client and class, or with boxes
install("some/folder", "mine")      from then on found as "mine"
"""

from __future__ import annotations

import gzip
import inspect
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ..errors import UsageError, require, unknown
from ..language import entries, part_of, register
from ..language.files import opened
from ..language.own_code import is_own, own_function
from .boxes_coco import coco, head_of, json_files, looks_like_coco
from .boxes_json import street_json
from .boxes_voc import voc, voc_files
from .boxes_yolo import yolo, yolo_files
from .features import features
from .federation import Pool
from .formats import cifar, cifar_pickles, folders, idx, idx_files, picture_files
from .from_table import table
from .leaf_json import leaf, leaf_files
from .npz_file import npz, save, summary
from .pictures import size_of
from .table_file import SUFFIXES

VARIABLE = "POLYCENTRIC_DATA"
_NAME = re.compile(r"\w[\w.-]*")
_SIZED = re.compile(r"([^()]+)\((?:size=)?(\d+x\d+)\)")
_CALL = re.compile(r"(\w+)(?:\(.*\))?")


class Found(NamedTuple):
    """A data set that can be named, where it lies, and what it is."""

    name: str
    where: str
    what: str


def digits() -> Pool:
    """Scikit-learn's digits: 1,797 handwritten digits of 8 x 8 pixels, nothing to download."""
    rows = _digit_rows()
    images = np.round(rows[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    x, y = torch.from_numpy(images), torch.from_numpy(rows[:, -1].astype(np.int64))
    return Pool("digits", x, y, classes=tuple("0123456789"))


def _digit_rows() -> npt.NDArray[np.float64]:
    """Pixels from 0 to 16, and the digit, of every image; read without scikit-learn, which takes longer to import."""
    found = find_spec("sklearn")
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            with opened(path) as file, gzip.open(file, "rt") as lines:
                return np.loadtxt(lines, delimiter=",")
    from sklearn.datasets import load_digits  # of a version that has its file elsewhere

    raw = load_digits()
    return np.column_stack([raw.data, raw.target])


def find(name: str) -> Pool:
    """Look a data set up: built in, in $POLYCENTRIC_DATA (several folders allowed), in the cache, or a path.

    >>> find("digits").x.shape
    torch.Size([1797, 1, 8, 8])
    """
    if is_own(name):
        return _made_by(name)
    if built_in(name):
        made: Pool = part_of("data", name, Pool)
        return made
    if path := located(name):
        return read(path)
    if (resized := _SIZED.fullmatch(name)) and (path := located(resized[1])):
        return replace(read(path, size=size_of(resized[2])), name=name)
    choices = [found.name for found in available()]
    missing = "".join(f"; {folder}, which it names, is not there" for folder in missing_folders())
    said = f"{unknown('data set', name, choices)}; a path works too, and {VARIABLE} names folders to look in"
    raise UsageError(said + missing)


def located(name: str) -> Path | None:
    """The file or folder that a name means; None where it means none."""
    places = [folder for folder in _places() if _NAME.fullmatch(name)]
    paths = [path for folder in places for path in (folder / f"{name}.npz", folder / name)]
    # os.path and not Path.exists: the latter raises on names too long for a file
    return next((path for path in (*paths, Path(name).expanduser()) if os.path.exists(path)), None)


def _made_by(name: str) -> Pool:
    """What a function of the user's own gives, `module:attribute`."""
    made = own_function(name, "data")()
    if not isinstance(made, Pool):
        raise UsageError(f"data '{name}' gives a {type(made).__name__}; return a Pool, such as pc.from_arrays makes")
    return made


def built_in(name: str) -> bool:
    """Whether a name is one of those that need no file."""
    call = _CALL.fullmatch(name)
    return call is not None and call[1] in entries(Pool)


def available() -> list[Found]:
    """Every data set that has a name here; the first of a name is the one `find` takes."""
    found = {name: Found(name, "built in", entry.about) for name, entry in sorted(entries(Pool).items()) if entry.about}
    for folder in _places():
        for path in sorted(folder.glob("*")):  # none where the folder is missing or closed to us
            name = path.stem if path.suffix == ".npz" else path.name
            kind = _kind(path) if _NAME.fullmatch(name) else None
            if kind not in (None, table) and name not in found:  # a table has no name before it is imported
                assert kind is not None
                found[name] = Found(name, str(folder), summary(path) if kind is npz else f"folder ({kind.__name__})")
    return list(found.values())


def read(path: str | Path, **how: Any) -> Pool:
    """Read a file or folder in whichever of the known forms it is; `how`: arguments of the reader, such as `size`."""
    path = Path(path)
    require(os.path.exists(path), f"there is no file or folder '{path}'; check the path")
    reader = _kind(path)
    if reader is None:
        raise UsageError(
            f"'{path}' is in no form that can be read: a table (.csv, .parquet), .npz, LEAF (.json), IDX "
            "(...-idx3-ubyte), CIFAR (.bin), pictures as CLIENT/CLASS/picture.png, or pictures with boxes (VOC's .xml, "
            "COCO's .json, YOLO's .txt and classes.txt)"
        )
    for name in how:
        good = name in inspect.signature(reader).parameters
        for_what = "pictures" if name == "size" else "tables (.csv, .parquet)"
        require(good, f"{name} is for {for_what}, and '{path}' is read as {reader.__name__}; leave --{name} out")
    return reader(path, **how)


def install(path: str | Path, name: str, *, force: bool = False, **how: Any) -> Path:
    """Read a path and keep it in the user's cache in the library's own layout, to be found by its name.

    Arguments:
        path: anything that `read` can read.
        name: what to call it: letters, digits, '-', '_' and '.'.
        force: replace an installed data set of that name.
        how: arguments of the reader, such as `client` and `target` of a table.
    """
    good = bool(_NAME.fullmatch(name)) and name not in entries(Pool)
    free = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "mine"
    free = f"my-{free}" if free in entries(Pool) else free
    require(
        good,
        f"'{name}' cannot name a data set: use letters, digits, '-', '_' and '.', and no built-in name; say another, "
        f"such as --name {free}",
    )
    target = _cache() / f"{name}.npz"
    good = force or not target.exists()
    require(good, f"data set '{name}' is installed already; pass force=True (in the command: --force) to replace it")
    pool = read(path, **how)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        save(pool, target)
    except OSError as error:
        raise UsageError(f"cannot write {target} ({error.strerror}); set XDG_CACHE_HOME to another folder") from error
    return target


def _kind(path: Path) -> Callable[..., Pool] | None:
    """The reader for a path, judged by names, and of .json files by how the first one begins."""
    if path.is_file():
        return npz if path.suffix == ".npz" else table if path.suffix.lower() in SUFFIXES else None
    if not path.is_dir():
        return None
    if voc_files(path):
        return voc
    if files := json_files(path):
        first = files[0]
        return street_json if head_of(first).startswith("[") else coco if looks_like_coco(first) else leaf
    if leaf_files(path):
        return leaf
    if yolo_files(path):
        return yolo
    if idx_files(path):
        return idx
    if any(path.glob("*.bin")) or cifar_pickles(path):
        return cifar
    return folders if picture_files(path) else None


def _places() -> Iterator[Path]:
    for folder in os.environ.get(VARIABLE, "").split(os.pathsep):
        if folder:
            yield Path(folder).expanduser()
    yield _cache()


def missing_folders() -> list[Path]:
    """Folders that $POLYCENTRIC_DATA names and that are not there."""
    *named, _ = _places()
    return [folder for folder in named if not folder.is_dir()]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "polycentric"


def _features(source: str, one: str = "", how: str = "") -> Pool:
    """`features(NAME)`, or `features(NAME, CLASS, shuffled)`."""
    return features(find(source), one, how)


register(Pool, "digits", digits, about="1,797 examples of 8x8, 10 classes, no natural clients")
register(Pool, "features", _features)
