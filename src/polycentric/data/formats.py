"""The files other people publish data sets in: IDX (the MNIST family), CIFAR batches, folders of pictures,
and Hugging Face's datasets, which are objects rather than files.

Each reader gives a `Pool`, and trusts no file, as `archive` does not.
"""

from __future__ import annotations

import gzip
import math
import re
import string
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError, require
from ..language.files import opened, read_bytes, read_text
from .archive import LIMIT, AnyArray, reading
from .federation import Pool
from .npz_file import finite, labels, printable, renumbered
from .pictures import SUFFIXES, as_bytes, unpacked

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase  # FEMNIST's and EMNIST's order
_EMNIST = {"byclass": CHARACTERS, "letters": " " + string.ascii_lowercase}  # label -> character
_IDX = re.compile(r"(?:(.+)-)?(train|t10k|test)-(images|labels)[-.]idx[13]-ubyte(?:\.gz)?")
MOST_LABELS = 10_000  # of one example's, where nobody names them
_CIFAR10 = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())


# --- IDX


def idx(path: str | Path, *, limit: int = LIMIT) -> Pool:
    """Read a folder with the IDX files of MNIST, Fashion-MNIST, EMNIST or their kin, packed (.gz) or not.

    EMNIST's pictures are stored on their side and are turned upright.
    """
    folder = Path(path)
    require(folder.is_dir(), f"'{folder}' is not a folder; give the one with the IDX files")
    files = idx_files(folder)
    require(bool(files), f"{folder.name} has no IDX files such as train-images-idx3-ubyte.gz")
    sets = sorted({prefix for prefix, _, _ in files})
    require(
        len(sets) == 1, f"{folder.name} holds several IDX sets ({', '.join(sets)}); put each in a folder of its own"
    )
    prefix = sets[0]
    parts = sorted({part for _, part, _ in files}, key=("train", "test").index)
    xs, ys = [], []
    for part in parts:
        for kind in ("images", "labels"):
            require((prefix, part, kind) in files, f"{folder.name}: the {kind} of the {part} part are missing")
        xs.append(_idx_file(files[prefix, part, "images"], 3, limit))
        ys.append(_idx_file(files[prefix, part, "labels"], 1, limit))
        good = len(xs[-1]) == len(ys[-1])
        require(good, f"{folder.name}: the {part} part has {len(xs[-1])} images but {len(ys[-1])} labels")
    require(len({x.shape[1:] for x in xs}) == 1, f"{folder.name}: train and test images differ in size")
    x, values = np.concatenate(xs)[:, None], np.concatenate(ys)
    require(x.size > 0, f"{folder.name} has no examples")
    found, y = np.unique(values, return_inverse=True)
    alphabet = next((_EMNIST[key] for key in _EMNIST if prefix.endswith(key)), "")
    classes = tuple(alphabet[v] if v < len(alphabet) else str(v) for v in found.tolist())
    images = torch.from_numpy(x.swapaxes(2, 3).copy() if prefix.startswith("emnist") else x)
    target = torch.from_numpy(y.reshape(-1).astype(np.int64))
    test = _test_part(ys) if len(parts) == 2 else None
    return Pool(prefix or folder.resolve().name, images, target, classes, test=test)


def idx_files(folder: Path) -> dict[tuple[str, str, str], Path]:
    """The IDX files of a folder, by (set, train or test, images or labels)."""
    files = {}
    for file in sorted(folder.iterdir()):
        if match := _IDX.fullmatch(file.name):
            prefix, part, kind = match.groups()
            files[prefix or "", "train" if part == "train" else "test", kind] = file
    return files


def _idx_file(path: Path, n_sides: int, limit: int) -> AnyArray:
    packed = path.suffix == ".gz"
    with reading(path), opened(path) as file, gzip.open(file) if packed else file as stream:
        size = path.stat().st_size * (1_100 if packed else 1)  # deflate cannot unpack to more
        head = stream.read(4 + 4 * n_sides)
        require(len(head) == 4 + 4 * n_sides, f"{path.name} is cut short in its header; get it again")
        zero, kind, sides, *shape = struct.unpack(f">HBB{n_sides}I", head)
        good = (zero, kind, sides) == (0, 8, n_sides)
        require(good, f"{path.name} begins with {head[:4].hex()}, not 000008{n_sides:02x}: it is no such IDX file")
        expected = math.prod(shape)
        good = expected <= min(size, limit)
        require(good, f"{path.name} declares {expected:,} bytes, which its size or the limit forbids; get it again")
        data = _exactly(stream, expected, path)
    return np.frombuffer(data, np.uint8).reshape(shape)


def _exactly(stream: IO[bytes] | gzip.GzipFile, n: int, path: Path) -> bytearray:
    """Read n bytes and see that nothing follows, never holding more than that."""
    data = bytearray()
    while len(data) < n and (part := stream.read(min(1 << 20, n - len(data)))):
        data += part
    require(len(data) == n, f"{path.name} is cut short: {len(data):,} of {n:,} bytes; get it again")
    require(not stream.read(1), f"{path.name} is longer than the {n:,} bytes its header declares; get it again")
    return data


# --- CIFAR


def cifar(path: str | Path, *, limit: int = LIMIT) -> Pool:
    """Read a folder with the "binary version" of CIFAR-10 or CIFAR-100 (fine labels).

    CIFAR-10     data_batch_1.bin .. data_batch_5.bin, test_batch.bin     rows of label, 3 x 32 x 32 bytes
    CIFAR-100    train.bin, test.bin                                      rows of coarse, fine, 3 x 32 x 32
    """
    folder = Path(path)
    train, test = sorted(folder.glob("data_batch_*.bin")), folder / "test_batch.bin"
    n_labels, names_file, known = 1, folder / "batches.meta.txt", _CIFAR10
    if not train:
        train, test = [folder / "train.bin"], folder / "test.bin"
        n_labels, names_file, known = 2, folder / "fine_label_names.txt", tuple(map(str, range(100)))
    if not train[0].is_file():
        pickled = cifar_pickles(folder)
        raise UsageError(
            f"{folder.name} has the Python version of CIFAR, whose files are pickles and are never read; "
            'get the "binary version"'
            if pickled
            else f"{folder.name} has no CIFAR batches such as data_batch_1.bin or train.bin"
        )
    rows = [_cifar_rows(file, n_labels + 3072, limit) for file in [*train, *([test] if test.is_file() else [])]]
    table = np.concatenate(rows)
    require(len(table) > 0, f"{folder.name} has no examples")
    y, classes = labels(folder.name, table[:, n_labels - 1], _cifar_names(names_file, known))
    x = torch.from_numpy(table[:, n_labels:].reshape(-1, 3, 32, 32).copy())
    flag = _test_part([np.concatenate(rows[:-1]), rows[-1]]) if test.is_file() else None
    return Pool(f"cifar{len(known)}", x, y, classes, test=flag)


def cifar_pickles(folder: Path) -> bool:
    """Whether a folder looks like the Python version of CIFAR."""
    return any((folder / name).is_file() for name in ("data_batch_1", "batches.meta")) or all(
        (folder / name).is_file() for name in ("train", "test", "meta")
    )


def _cifar_rows(path: Path, width: int, limit: int) -> AnyArray:
    with reading(path):
        size = path.stat().st_size
        require(size <= limit, f"{path.name} has {size:,} bytes, more than the limit of {limit:,}; pass limit=")
        require(size % width == 0, f"{path.name} has {size:,} bytes, not a multiple of {width:,}; get it again")
        return np.frombuffer(read_bytes(path, limit), np.uint8).reshape(-1, width)


def _cifar_names(path: Path, known: tuple[str, ...]) -> tuple[str, ...]:
    if not path.is_file():
        return known
    with reading(path):
        names = printable(line.strip() for line in read_text(path, 1 << 20).splitlines() if line.strip())
    return names if len(names) == len(known) else known


# --- folders of pictures


def folders(path: str | Path, *, size: tuple[int, int] | None = None, limit: int = LIMIT) -> Pool:
    """Read pictures kept as CLIENT/CLASS/picture (.png, .jpg, .jpeg or .bmp): natural clients.

    Pictures kept as GROUP/CLIENT/CLASS/picture have known groups, too; there a client is called GROUP/CLIENT.

    Arguments:
        path: the folder that holds the clients.
        size: (height, width) to resize all pictures to; None demands that they have one size.
    """
    root = Path(path)
    files = picture_files(root)
    require(bool(files), f"{root.name} has no pictures kept as CLIENT/CLASS/picture.png")
    inside, above = root.resolve(), len(root.parts)
    deep = {len(file.parts) - above: file.relative_to(root) for file in files}
    shown = " and ".join(str(deep[depth]) for depth in sorted(deep))
    require(len(deep) == 1, f"{root.name} has {shown}: keep all as CLIENT/CLASS/picture or GROUP/CLIENT/CLASS/picture")
    for file in files:
        good = file.resolve().is_relative_to(inside)
        require(good, f"{file.relative_to(root)} is a link that leaves {root.name}; put the picture itself there")
    client, clients = renumbered(np.array(["/".join(file.parts[above:-2]) for file in files]))
    grouped = 4 in deep
    group, groups = renumbered(np.array([file.parts[above] for file in files])) if grouped else (None, ())
    y, classes = renumbered(np.array([file.parts[-2] for file in files]))
    x = unpacked(files, [str(file.relative_to(root)) for file in files], size, limit)
    pool = Pool(inside.name, torch.from_numpy(x), y, classes, client=client, clients=clients)
    how = {"size": None if size is None else list(size), "channels": x.shape[1]}
    return replace(pool, group=group, group_names=groups, recipe={"pictures": how})


def picture_files(root: Path) -> list[Path]:
    """The pictures two or three folders down, sorted; hidden files and folders are left out."""
    found = (
        f for depth in ("*/*/*", "*/*/*/*") for f in root.glob(depth) if f.suffix.lower() in SUFFIXES and f.is_file()
    )
    return sorted(f for f in found if not any(part.startswith(".") for part in f.relative_to(root).parts))


# --- Hugging Face


def hugging_face(
    dataset: Any,
    *,
    image: str = "image",
    label: str = "label",
    client: str | None = None,
    test: Any = None,
    name: str = "hugging-face",
    text: str | None = None,
    tokenizer: Callable[[str], Sequence[int]] | None = None,
    length: int = 64,
    symbols: int | None = None,
) -> Pool:
    """Take a Hugging Face dataset that is already in memory (anything with column_names and dataset[column]).

    Texts become symbols: their first `length` tokens, with symbol 0 in front of shorter ones, so that a recurrent
    model ends where the text does.

    Arguments:
        dataset: the examples.
        image: the column with pictures, arrays of one shape, or rows of numbers.
        label: the column with labels; fractional numbers are real targets, lists of whole numbers several labels.
        client: the column with the natural client, if there is one.
        test: a second dataset that is the test part, or the name of a column that is true for test examples.
        name: what to call the pool.
        text: the column with texts, instead of `image`.
        tokenizer: your own, from a text to whole numbers; 0 is taken for padding.
        length: symbols of an example.
        symbols: how many there are; None: one more than the largest that occurs.
    """
    require((text is None) == (tokenizer is None), f"{name}: text= and tokenizer= go together, got one of them")
    image = text or image
    parts = [dataset] if test is None or isinstance(test, str) else [dataset, test]
    wanted = [column for column in (image, label, client, test) if isinstance(column, str)]
    for part in parts:
        for column in wanted:
            there = list(part.column_names)
            require(column in there, f"{name} has no column '{column}'; it has {', '.join(map(str, there))}")
    with reading(Path(name)):
        columns = {column: [value for part in parts for value in part[column]] for column in wanted}
        require(len(columns[label]) > 0, f"{name} has no examples")
        if tokenizer is not None:
            x, symbols = _tokens(name, columns[image], tokenizer, length, symbols)
        else:
            x = _column(name, image, columns[image])
        y, classes = _hugging_labels(name, columns[label], getattr(dataset, "features", None), label)
        owner, clients = renumbered(np.array(list(map(str, columns[client])))) if client else (None, ())
    flag = _test_part([list(part[label]) for part in parts]) if len(parts) == 2 else None
    if isinstance(test, str):
        flag = torch.tensor([bool(value) for value in columns[test]])
    return Pool(name, x, y, classes, client=owner, clients=clients, test=flag, symbols=symbols or 0)


def _tokens(
    name: str, texts: list[Any], tokenizer: Callable[[str], Sequence[int]], length: int, symbols: int | None
) -> tuple[Tensor, int]:
    """Texts as rows of symbols, and how many symbols there are."""
    require(length >= 1, f"{name}: length must be at least 1, got {length}")
    x = np.zeros((len(texts), length), np.int64)
    for at, text in enumerate(texts):
        try:
            tokens = [int(token) for token in tokenizer(text)][:length]
        except (TypeError, ValueError) as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
            raise UsageError(f"{name}: tokenizer gives no list of whole numbers for example {at} ({said})") from error
        x[at, length - len(tokens) :] = tokens
    most = int(x.max()) + 1 if symbols is None else symbols
    good = int(x.min()) >= 0 and int(x.max()) < most <= 1 << 31
    require(good, f"{name}: tokens run from {int(x.min())} to {int(x.max())}, outside of symbols 0 to {most - 1}")
    return torch.from_numpy(x.astype(np.uint8 if most <= 256 else np.int32)), most


def _column(name: str, column: str, values: list[Any]) -> Tensor:
    if hasattr(values[0], "convert"):  # a picture
        images = [as_bytes(value) for value in values]
        require(len({image.shape for image in images}) == 1, f"{name}: pictures in '{column}' differ in size or colour")
        return torch.from_numpy(np.stack(images).transpose(0, 3, 1, 2).copy())
    array = np.stack([np.asarray(value) for value in values])
    if array.dtype == np.uint8 and array.ndim == 3:
        return torch.from_numpy(array[:, None].copy())
    if array.dtype == np.uint8 and array.ndim == 4:
        return torch.from_numpy(array.transpose(0, 3, 1, 2).copy())
    require(array.dtype.kind in "biuf", f"{name}: column '{column}' holds {array.dtype}, not pictures or numbers")
    return finite(name, column, array.reshape(len(array), -1) if array.ndim < 2 else array)


def _hugging_labels(name: str, values: list[Any], features: Any, label: str) -> tuple[Tensor, tuple[str, ...]]:
    feature = features.get(label) if hasattr(features, "get") else None
    names = getattr(feature, "names", None)
    if isinstance(values[0], list | tuple) or getattr(values[0], "ndim", 0) == 1:
        return _several(name, values, getattr(getattr(feature, "feature", None), "names", None), label)
    array = np.array(values)
    if array.dtype.kind == "f":
        return finite(name, label, array), ()
    return labels(name, array, printable(names)) if names else renumbered(array)


def _several(name: str, values: list[Any], names: Any, label: str) -> tuple[Tensor, tuple[str, ...]]:
    """Lists of the labels that every example has, as 0 and 1 for each label."""
    lists = [np.asarray(value).reshape(-1) for value in values]
    if len({part.shape for part in lists}) == 1 and any(len(np.unique(part)) < len(part) for part in lists):
        return labels(name, np.stack(lists), printable(names) if names else None)  # 0 and 1 already, or real numbers
    whole = np.concatenate(lists)
    good = whole.size > 0 and all(part.dtype.kind in "iu" or not part.size for part in lists)
    require(good, f"{name}: lists in '{label}' must hold whole numbers: the labels that an example has")
    low, high = int(whole.min()), int(whole.max())
    most = len(names) if names else min(high + 1, MOST_LABELS)
    require(0 <= low and high < most, f"{name}: labels run from {low} to {high}, but must lie in 0 to {most - 1}")
    y = torch.zeros(len(lists), most)
    for at, part in enumerate(lists):
        y[at, torch.from_numpy(part.astype(np.int64))] = 1
    return y, printable(names or range(most))


def _test_part(parts: Iterable[Any]) -> Tensor:
    """False for the first part, True for the second."""
    return torch.cat([torch.full((len(part),), bool(at)) for at, part in enumerate(parts)])
