"""LEAF's files: JSON with the examples of every user, which makes the user a natural client.

    {"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}

What x holds tells which of LEAF's sets it is:

    rows of numbers                    FEMNIST and others; 784 numbers are a 28 x 28 image
    names of picture files             CelebA; the files lie in the same folder
    80 characters, y the next one      Shakespeare
    rows of strings, the 5th is text   Sent140

Reference: Caldas et al., LEAF: a benchmark for federated settings, 2018.
"""

from __future__ import annotations

import re
import string
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError, require
from ..language.files import parsed, read_bytes
from .archive import LIMIT, reading
from .federation import Pool
from .formats import CHARACTERS
from .npz_file import WINDOW, finite, labels, printable
from .pictures import SUFFIXES, unpacked

Examples = tuple[Tensor, Tensor, tuple[str, ...], int]  # x, y, classes, and how many symbols there are

ALPHABET = "".join(sorted("\n !\"&'(),-.:;>?[]}" + string.digits + string.ascii_letters))  # LEAF's 80 characters
WORDS = 25  # words of a message that are kept
BUCKETS = 9_999  # words are hashed to 1..BUCKETS; 0 fills up short messages
_WORD = re.compile(r"[a-z0-9']+|[^\sa-z0-9']")
_PICTURE_FOLDERS = (".", "images", "raw/img_align_celeba")


def leaf(path: str | Path, *, size: tuple[int, int] = (84, 84), limit: int = LIMIT) -> Pool:
    """Read a folder with train/ and test/ of LEAF's .json files, or with .json files that are not split.

    Words of Sent140 become symbols 1 to 9,999 by a fixed hash: the first 25 of a message, filled up with 0
    from the left. Characters of Shakespeare are numbered in LEAF's alphabet or, if the data hold another
    character, in the sorted alphabet of the data.

    Arguments:
        path: the folder.
        size: (height, width) that CelebA's pictures are resized to.
        limit: refuse files of more bytes than this.
    """
    root = Path(path)
    parts = leaf_files(root)
    require(bool(parts), f"{root.name} has no .json files, and no train/ and test/ with some")
    with reading(root):
        total = sum(file.stat().st_size for files in parts.values() for file in files)
    require(total <= limit, f"{root.name} has {total:,} bytes of JSON, more than {limit:,}; pass limit=")

    index: dict[str, int] = {}
    all_x: list[Any] = []
    all_y: list[Any] = []
    client: list[int] = []
    test: list[bool] = []
    for part, files in parts.items():
        for file in files:
            for user, (user_x, user_y) in _users(file, limit).items():
                client += [index.setdefault(user, len(index))] * len(user_y)
                test += [part == "test"] * len(user_y)
                all_x += user_x
                all_y += user_y
    require(len(all_y) > 0, f"{root.name} has no examples")
    with reading(root):
        x, y, classes, symbols = _examples(root, all_x, all_y, size, limit)
    split = torch.tensor(test) if "test" in parts else None
    owner, users = torch.tensor(client), printable(index)
    return Pool(root.resolve().name, x, y, classes, client=owner, clients=users, test=split, symbols=symbols)


def leaf_files(root: Path) -> dict[str, list[Path]]:
    """The .json files of each part; the part of files that are not split is called 'all'."""
    split = {part: sorted((root / part).glob("*.json")) for part in ("train", "test")}
    if split["train"]:
        return {part: files for part, files in split.items() if files}
    files = sorted(root.glob("*.json"))
    return {"all": files} if files else {}


def _users(path: Path, limit: int) -> dict[str, tuple[list[Any], list[Any]]]:
    """The examples of every user in one file."""
    with reading(path):
        content = parsed(read_bytes(path, limit))
        good = isinstance(content, dict) and isinstance(content.get("user_data"), dict)
        require(good, f"{path.name} is not in LEAF's form: it has no user_data; see users, num_samples, user_data")
        users = content.get("users", list(content["user_data"]))
        counts = content.get("num_samples", [None] * len(users))
        require(len(users) == len(counts), f"{path.name} has {len(users)} users but {len(counts)} num_samples")
        found = {}
        for user, count in zip(users, counts, strict=True):
            data = content["user_data"].get(user)
            require(isinstance(data, dict), f"{path.name}: user '{user}' has no entry in user_data")
            x, y = data.get("x"), data.get("y")
            require(isinstance(x, list) and isinstance(y, list), f"{path.name}: x and y of '{user}' must be lists")
            good = len(x) == len(y) == (len(y) if count is None else count)
            require(good, f"{path.name}: user '{user}' has {len(x)} x and {len(y)} y, but num_samples says {count}")
            found[str(user)] = (x, y)
        return found


def _examples(root: Path, xs: list[Any], ys: list[Any], size: tuple[int, int], limit: int) -> Examples:
    """Tell which of LEAF's sets it is by the first example."""
    first, name = xs[0], root.name
    if isinstance(first, str) and isinstance(ys[0], str):
        return _characters(name, xs, ys)
    if isinstance(first, str) and first.lower().endswith(SUFFIXES):
        files = [_picture(root, file) for file in xs]
        x = torch.from_numpy(unpacked(files, list(map(str, xs)), size, limit))
        return x, *_labels(name, ys), 0
    if isinstance(first, list) and first and isinstance(first[0], str):
        return _words(name, xs), *_labels(name, ys), BUCKETS + 1
    x = finite(name, "x", np.array(xs, dtype=np.float64).reshape(len(xs), -1))
    if x.shape[1] != 784:
        return x, *_labels(name, ys), 0
    return x.view(-1, 1, 28, 28), *_labels(name, ys, characters=True), 0


def _labels(name: str, ys: list[Any], *, characters: bool = False) -> tuple[Tensor, tuple[str, ...]]:
    """Labels and names of classes; of characters there are 10 (digits) or 62."""
    y = np.array(ys)
    if y.dtype.kind == "f" and bool((y == np.round(y)).all()) and bool((abs(y) < 1 << 31).all()):
        y = y.astype(np.int64)  # some writers of JSON print 3 as 3.0
    highest = int(y.max()) if y.dtype.kind in "iu" else len(CHARACTERS)
    names = CHARACTERS[:10] if highest < 10 else CHARACTERS
    return labels(name, y, tuple(names) if characters and highest < len(names) else ())


def _characters(name: str, xs: list[Any], ys: list[Any]) -> Examples:
    good = all(isinstance(x, str) and len(x) == WINDOW for x in xs)
    require(good, f"{name}: text must come in strings of {WINDOW} characters")
    require(all(isinstance(y, str) and len(y) == 1 for y in ys), f"{name}: y must be one character each")
    found = set().union(*map(set, xs), ys)
    alphabet = ALPHABET if found <= set(ALPHABET) else "".join(sorted(found))
    code = {character: at for at, character in enumerate(alphabet)}
    kind = torch.uint8 if len(alphabet) <= 256 else torch.int32
    x = torch.tensor([[code[c] for c in x] for x in xs], dtype=kind)
    return x, torch.tensor([code[y] for y in ys]), printable(alphabet), len(alphabet)


def _words(name: str, xs: list[Any]) -> Tensor:
    rows = torch.zeros(len(xs), WORDS, dtype=torch.int32)
    for row, x in zip(rows, xs, strict=True):
        require(isinstance(x, list) and len(x) > 4, f"{name}: a message must be a list whose 5th entry is its text")
        words = [1 + zlib.crc32(word.encode()) % BUCKETS for word in _WORD.findall(str(x[4]).lower())[:WORDS]]
        if words:  # from the left, so that a reader of the sequence ends on a word
            row[-len(words) :] = torch.tensor(words, dtype=torch.int32)
    return rows


def _picture(root: Path, name: Any) -> Path:
    """Where a named picture lies: inside the folder, whatever the name says."""
    inside = PurePosixPath(str(name))
    good = isinstance(name, str) and not inside.is_absolute() and ".." not in inside.parts and "\\" not in name
    require(good, f"{root.name}: picture '{name}' must be named by a path inside the folder, without '..'")
    for folder in _PICTURE_FOLDERS:
        file = root / folder / inside
        if file.is_file():
            require(file.resolve().is_relative_to(root.resolve()), f"{name} is a link that leaves {root.name}")
            return file
    raise UsageError(f"{root.name}: there is no picture '{name}'; put it in {root.name}/images")
