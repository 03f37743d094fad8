"""The library's own file: one .npz of plain arrays that holds a whole data set.

x                           examples: uint8 images (n, h, w) or (n, h, w, c), float series
                            (n, time, channels), or vectors (n, d)
symbols                     says that x holds symbols (n, length), and how many there are
jpeg, offset                instead of x: image i is jpeg[offset[i]:offset[i+1]]
text, offset, role, vocab   instead of x and y: role i speaks text[offset[i]:offset[i+1]], in bytes
y, classes                  labels 0..C-1 and their names; without names the labels that occur are the classes;
                            real numbers to predict have no classes
                            (n, L) of 0 and 1 with L classes: several labels an example
                            (n, t) of real numbers: several numbers to predict
                            of symbols (n, length), whole numbers of the same shape: a symbol to predict at every
                            position, -1 where there is none
boxes                       instead of y: rows (image, class, x0, y0, x1, y1), real numbers in shares of the image's
                            sides, or whole numbers that count 1/65535 of them
image_id                    the number of each image where it came from; not read
targets, columns            names of the numbers to predict, and of the features of vectors x
inputs                      where x (n, d) holds several inputs end to end: [[name, shape], ...], as JSON
recipe                      how rows of a table, pictures or several inputs became x, as JSON; of a table x may have
                            gaps (nan)
client, client_names        natural client of each example (absent: the set must be partitioned)
device20, device5, ...      the device of each image, from 1, 0 where it is not known, instead of `client`; of several
                            such arrays the one with most devices is taken, unless natural=device5 asks for another
device20_guess, ...         a device for test images where it is not known
test                        True for test examples
canonical_test              the same where a partition deals the examples, if other examples are for testing then
group, group_names          a known population of each example, to judge by
protected                   a protected attribute of each example
note                        what the reader of a number must know
"""

from __future__ import annotations

import json
import os
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError, require, unknown
from .archive import LIMIT, AnyArray, Arrays, names_in, reading, shapes, unzipped
from .box_rows import DEVICE, GUESS, boxed, boxes_of, divided, joined, left_out, numbers, padded, rows
from .dealing import some_of
from .federation import Inputs, Pool
from .pictures import resized, unpacked

MOST_CLASSES = 100_000
WINDOW = 80  # characters in, one out: LEAF's task on Shakespeare
KNOWN = (
    *("x", "jpeg", "offset", "text", "role", "vocab", "symbols", "y", "classes", "client", "client_names"),
    *("test", "canonical_test", "group", "group_names", "protected", "note", "targets", "columns", "recipe"),
    *("inputs", "channels", "recording", "boxes", "image_id"),
)


def npz(path: str | Path, *, size: tuple[int, int] | None = None, stride: int = WINDOW, limit: int = LIMIT) -> Pool:
    """Read a data set in the library's own layout.

    Arguments:
        path: the file.
        size: (height, width) to resize all pictures to; None leaves them as they are.
        stride: for text only, characters from one window of 80 to the next. The default cuts every role into
            windows that do not overlap; 1 takes every window there is, as LEAF does: 80 times as many.
        limit: refuse a file that unpacks to more bytes than this.
    """
    path = Path(path)
    with reading(path):
        arrays = unzipped(path, check_names(path), limit)
        if "text" in arrays:
            require(size is None, f"size is for pictures, and {path.name} holds a text: leave size out")
            return _text(path, arrays, stride)
        return _examples(path, arrays, size, limit)


def without_targets(path: Path, limit: int = LIMIT) -> tuple[Tensor, int, tuple[str, ...]]:
    """The examples of a file that need not say what they are: x, the number of symbols, and names of features."""
    with reading(path):
        arrays, name = unzipped(path, check_names(path), limit), path.name
        require("x" in arrays or "jpeg" in arrays, f"{name} has no array x (or jpeg): it is not in the layout")
        symbols = _number(name, arrays, "symbols")
        x = _pictures(name, arrays, None, limit) if "x" not in arrays else _inputs(name, arrays["x"], symbols)
        require(len(x) > 0, f"{name} has no examples")
        return x, symbols, _names(name, arrays, "columns")


def check_names(path: Path) -> list[str]:
    """The names of all arrays; one that nobody would read is refused: `clients` would be a set without `client`."""
    names = names_in(path)
    for name in names:
        if name not in KNOWN and not DEVICE.fullmatch(name.removesuffix(GUESS)):
            raise UsageError(
                f"{path.name}: {unknown('array', name, KNOWN)}; rename it, or leave it out if it is of no use"
            )
    return names


def save(pool: Pool, path: Path) -> None:
    """Write a pool in the library's layout: under a temporary name, synced, then renamed."""
    x = pool.x.numpy()
    symbols = {"symbols": np.array(pool.symbols)} if pool.symbols else {}
    if x.ndim > 2 and not pool.symbols:
        x = np.moveaxis(x, 1, -1)  # the layout keeps channels last
    target = {"boxes": rows(pool.y)} if pool.kind == "boxes" else {"y": pool.y.numpy()}
    arrays: Arrays = {"x": x, **target, "classes": _strings(pool.classes), **symbols}
    optional = {"client": pool.client, "test": pool.test, "canonical_test": pool.common_test}
    optional |= {"group": pool.group, "protected": pool.protected}
    arrays |= {key: value.numpy() for key, value in optional.items() if value is not None}
    names = {"client_names": pool.clients, "group_names": pool.group_names}
    names |= {"targets": pool.targets, "columns": pool.columns}
    arrays |= {key: _strings(value) for key, value in names.items() if value}
    if pool.divisions:
        del arrays["client"], arrays["client_names"]
        arrays |= {key: numbers(names)[of.numpy()] for key, (of, names) in pool.divisions.items()}
    arrays |= {"note": np.array(pool.note)} if pool.note else {}
    arrays |= {"recipe": np.array(json.dumps(pool.recipe))} if pool.recipe is not None else {}
    arrays |= {"inputs": np.array(json.dumps(pool.inputs))} if pool.inputs else {}
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **arrays)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def summary(path: Path) -> str:
    """One line about a file, from the headers of its arrays alone."""
    try:
        with reading(path):
            shape = shapes(path, names_in(path))
            if "text" in shape:
                return f"{shape['text'][0]:,} characters of {shape['role'][0]:,} roles"
            size = "x".join(map(str, shape["x"][1:])) if "x" in shape else "JPEG"
            what = f"{shape['classes'][0]} classes" if shape.get("classes", (0,))[0] else "real targets"
            what = f"{shape['boxes'][0]:,} boxes of {what}" if "boxes" in shape else what
            clients = (
                "natural clients" if "client" in shape or any(map(DEVICE.fullmatch, shape)) else "no natural clients"
            )
            n = shape["x"][0] if "x" in shape else shape["offset"][0] - 1
            return f"{n:,} examples of {size}, {what}, {clients}"
    except UsageError as mistake:
        return str(mistake)


def labels(
    name: str, y: AnyArray, classes: tuple[str, ...] | None, of_symbols: tuple[int, ...] | None = None
) -> tuple[Tensor, tuple[str, ...]]:
    """Check classes, several labels, numbers to predict, boxes, or a symbol at every position.

    Arguments:
        name: what to call the data in a message.
        y: the targets.
        classes: names; without them a class is called by its number.
        of_symbols: the shape of x where it holds symbols: with whole numbers in the same shape one is predicted at
            every position.
    """
    if y.ndim == 3 and classes:
        return boxed(name, y, classes), classes
    if classes and y.shape == of_symbols and y.dtype.kind in "iu":
        good = bool((y >= -1).all()) and bool((y < len(classes)).all())
        require(good, f"{name}: y holds symbols outside 0 to {len(classes) - 1} (-1: none is predicted there)")
        return torch.from_numpy(y.astype(np.int64)), classes
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    cubic = "; boxes (n, most, 5) need classes" * (y.ndim == 3)
    good = y.ndim in (1, 2) and y.shape[1:] != (0,)
    require(good, f"{name}: y has shape {y.shape}, not (n,) or (n, targets){cubic}")
    if y.ndim == 2 and (classes or y.dtype.kind in "biu"):
        return _several_labels(name, y, classes)
    if y.dtype.kind == "f" and not classes:
        return finite(name, "y", y), ()
    require(y.dtype.kind in "biu", f"{name}: y is {y.dtype}, but labels must be whole numbers")
    low, high = (int(y.min()), int(y.max())) if len(y) else (0, 0)
    most = len(classes) if classes else MOST_CLASSES
    require(0 <= low and high < most, f"{name}: labels run from {low} to {high}, but must lie in 0 to {most - 1}")
    return (torch.from_numpy(y.astype(np.int64)), classes) if classes else renumbered(y.astype(np.int64))


def _several_labels(name: str, y: AnyArray, classes: tuple[str, ...] | None) -> tuple[Tensor, tuple[str, ...]]:
    good = bool(np.isin(y, (0, 1)).all())
    require(good, f"{name}: y has shape {y.shape}, so it must hold 0 and 1 for each label, or real numbers to predict")
    named = classes or tuple(map(str, range(y.shape[1])))
    require(len(named) == y.shape[1], f"{name}: y has {y.shape[1]} labels, but classes has {len(named)} names")
    return torch.from_numpy(y.astype(np.float32)), named


def finite(name: str, what: str, values: AnyArray) -> Tensor:
    """Numbers as float32, or a line saying that some are not numbers."""
    numbers = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    good = bool(numbers.isfinite().all())
    require(good, f"{name}: {what} holds NaN, infinity or numbers too large; remove or fill them before loading")
    return numbers


def renumbered(client: AnyArray) -> tuple[Tensor, tuple[str, ...]]:
    """Clients 0..n-1 in place of any ids, and the ids as names."""
    ids, index = np.unique(client, return_inverse=True)
    return torch.from_numpy(index.reshape(-1).astype(np.int64)), printable(ids)


def printable(names: Any) -> tuple[str, ...]:
    """Names that a terminal can show: what is not printable is escaped."""
    strings = map(str, names)
    return tuple(s if s.isprintable() else s.encode("unicode_escape").decode("ascii") for s in strings)


# --- from arrays to a pool


def _examples(path: Path, arrays: Arrays, size: tuple[int, int] | None, limit: int) -> Pool:
    name = path.name
    require("x" in arrays or "jpeg" in arrays, f"{name} has no array x (or jpeg, or text): it is not in the layout")
    boxed = "boxes" in arrays
    require(boxed or "y" in arrays, f"{name} has no array y: every example needs a label")
    require(not boxed or "y" not in arrays, f"{name} has both y and boxes: leave out the one that is not learned")
    symbols = _number(name, arrays, "symbols")
    recipe = _recipe(name, arrays)
    gaps = recipe is not None and "columns" in recipe  # of a table: they are filled when it is dealt
    broken: dict[int, str] = {}
    if "x" in arrays:
        x = _inputs(name, arrays["x"], symbols, gaps)
        good = size is None or (x.dtype == torch.uint8 and x.dim() == 4)
        require(good, f"size is for pictures, and an example of {name} has shape {tuple(x.shape[1:])}: leave size out")
        if size is not None and tuple(x.shape[2:]) != size:
            good = x.shape[0] * x.shape[1] * size[0] * size[1] <= limit
            require(
                good, f"{name}: {len(x):,} images of {size[0]}x{size[1]} need more than {limit:,} bytes; ask for less"
            )
            x = resized(x, size)
    else:
        x = _pictures(name, arrays, size, limit, broken if boxed else None)
    require(len(x) > 0, f"{name} has no examples")
    classes, said = _names(name, arrays, "classes"), ""
    if boxed:
        good = x.dim() == 4
        require(good, f"{name}: boxes are in images, but an example has shape {tuple(x.shape[1:])}; leave boxes out")
        y, said = padded(name, *boxes_of(name, arrays["boxes"]), len(x), classes)
        recipe = {"pictures": {"size": list(x.shape[2:]), "channels": x.shape[1]}}
    else:
        y, classes = labels(name, arrays["y"], classes, tuple(x.shape) if symbols else None)
    client, clients = _clients(name, arrays, len(x))
    test = _flag(name, arrays, "test", len(x))
    given = {key: _whole(name, arrays, key, len(x)) for key in arrays if DEVICE.fullmatch(key.removesuffix(GUESS))}
    divisions, guessed = divided(name, given, torch.zeros(len(x), dtype=torch.bool) if test is None else test)
    if divisions:
        require(client is None, f"{name} has both client and devices: leave one of them out")
        client, clients = max(divisions.values(), key=lambda division: len(division[1]))
    group = _whole(name, arrays, "group", len(x))
    group_names = _names(name, arrays, "group_names")
    if group is not None:
        high = int(group.max())
        require(int(group.min()) >= 0 and high < MOST_CLASSES, f"{name}: groups must be numbered from 0")
        group_names = group_names or tuple(map(str, range(high + 1)))
        require(high < len(group_names), f"{name}: group {high} has no name in group_names")
    pool = Pool(
        name=path.stem,
        x=x,
        y=y,
        classes=classes,
        client=client,
        clients=clients,
        divisions=divisions,
        test=test,
        common_test=_flag(name, arrays, "canonical_test", len(x)),
        group=group,
        group_names=group_names if group is not None else (),
        protected=_whole(name, arrays, "protected", len(x)),
        note=joined(_note(arrays), guessed, said, left_out("pictures", broken, len(x))),
        symbols=symbols,
        targets=_names(name, arrays, "targets"),
        columns=_names(name, arrays, "columns"),
        inputs=_several_inputs(name, arrays),
        recipe=recipe,
    )
    return some_of(pool, torch.tensor([at not in broken for at in range(len(x))])) if broken else pool


def _inputs(name: str, x: AnyArray, symbols: int, gaps: bool = False) -> Tensor:
    if symbols:
        require(x.dtype.kind in "iu" and x.ndim == 2, f"{name}: symbols must be whole numbers (n, length)")
        good = x.size == 0 or 0 <= int(x.min()) <= int(x.max()) < symbols
        require(good, f"{name}: x holds symbols outside 0 to {symbols - 1}")
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.uint8 if symbols <= 256 else np.int32))
    good = x.dtype == np.uint8 or x.dtype.kind == "f"
    require(good, f"{name}: x is {x.dtype}, but images must be uint8 and series float; convert it")
    require(
        2 <= x.ndim <= 4 and 0 not in x.shape[1:], f"{name}: x has shape {x.shape}, not one of (n, d) to (n, h, w, c)"
    )
    if x.dtype == np.uint8 and x.ndim == 3:
        x = x[:, None]
    elif x.ndim > 2:
        x = np.moveaxis(x, -1, 1)
    if x.dtype.kind != "f":
        return torch.from_numpy(np.ascontiguousarray(x))
    finite(name, "x", np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf) if gaps else x)
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))


def _pictures(
    name: str, arrays: Arrays, size: tuple[int, int] | None, limit: int, broken: dict[int, str] | None = None
) -> Tensor:
    packed, offset = _slices(name, arrays, "jpeg")
    pictures = [packed[first:last] for first, last in pairwise(offset)]
    images = unpacked(pictures, [f"{name}: picture {i}" for i in range(len(pictures))], size, limit, broken)
    return torch.from_numpy(images)


def _slices(name: str, arrays: Arrays, what: str) -> tuple[AnyArray, list[int]]:
    """A long array and the places where it is cut."""
    whole, offset = arrays[what], arrays.get("offset")
    require(whole.ndim == 1 and whole.dtype == np.uint8, f"{name}: {what} must be one row of bytes (uint8)")
    if offset is None or offset.ndim != 1 or offset.dtype.kind not in "iu" or len(offset) < 2:
        raise UsageError(f"{name}: {what} needs an array offset of whole numbers that says where each piece begins")
    places = offset.astype(np.int64)
    good = int(places[0]) == 0 and int(places[-1]) == len(whole) and bool((np.diff(places) >= 0).all())
    require(good, f"{name}: offset must rise from 0 to {len(whole)}, the length of {what}")
    return whole, [int(place) for place in places]


def _text(path: Path, arrays: Arrays, stride: int) -> Pool:
    name = path.name
    require(1 <= stride <= WINDOW, f"stride must be 1 to {WINDOW}, got {stride}")
    text, places = _slices(name, arrays, "text")
    vocabulary = _names(name, arrays, "vocab", escape=False)
    roles = _names(name, arrays, "role")
    require(len(roles) == len(places) - 1, f"{name}: {len(roles)} roles, but offset cuts {len(places) - 1} texts")
    good = 0 < len(vocabulary) <= 256 and all(len(c) == 1 and ord(c) < 256 for c in vocabulary)
    require(good, f"{name}: vocab must name 1 to 256 single characters")
    code = np.full(256, -1, np.int16)
    code[[ord(c) for c in vocabulary]] = np.arange(len(vocabulary))
    symbols = code[text]
    require(bool((symbols >= 0).all()), f"{name}: text holds characters that vocab does not name")

    sizes = np.diff(places)
    n_windows = np.where(sizes > WINDOW, (sizes - WINDOW - 1) // stride + 1, 0)
    require(int(n_windows.sum()) > 0, f"{name}: no role speaks more than {WINDOW} characters")
    role = np.repeat(np.arange(len(roles)), n_windows)
    rank = np.arange(len(role)) - np.repeat(np.cumsum(n_windows) - n_windows, n_windows)
    start = np.asarray(places)[role] + stride * rank
    windows = np.lib.stride_tricks.sliding_window_view(symbols.astype(np.uint8), WINDOW + 1)[start]
    # The end of a role's text is its test part, so that no training window contains what is asked there.
    n_test = np.where(n_windows > 1, np.maximum(1, np.round(0.2 * n_windows)), 0)
    kept, client = np.unique(role, return_inverse=True)
    return Pool(
        name=path.stem,
        x=torch.from_numpy(windows[:, :WINDOW].copy()),
        y=torch.from_numpy(windows[:, WINDOW].astype(np.int64)),
        classes=printable(vocabulary),
        client=torch.from_numpy(client.reshape(-1)),
        clients=tuple(roles[k] for k in kept),
        test=torch.from_numpy(rank >= (n_windows - n_test)[role]),
        note=_note(arrays) or f"windows of {WINDOW} characters, {stride} apart; the last fifth of a role is its test",
        symbols=len(vocabulary),
    )


def _names(name: str, arrays: Arrays, key: str, *, escape: bool = True) -> tuple[str, ...]:
    names = arrays.get(key)
    if names is None:
        return ()
    require(names.ndim == 1 and (names.dtype.kind == "U" or not names.size), f"{name}: {key} must be a row of strings")
    return printable(names) if escape else tuple(map(str, names))


def _clients(name: str, arrays: Arrays, n: int) -> tuple[Tensor | None, tuple[str, ...]]:
    client = arrays.get("client")
    if client is None:
        return None, ()
    require(client.shape == (n,), f"{name}: client has shape {client.shape} for {n} examples")
    require(client.dtype.kind in "iuU", f"{name}: client is {client.dtype}, but ids must be whole numbers or strings")
    index, ids = renumbered(client)
    names = _names(name, arrays, "client_names")
    if not names:
        return index, ids
    good = client.dtype.kind in "iu" and 0 <= int(client.min()) <= int(client.max()) < len(names)
    require(good, f"{name}: client must lie in 0 to {len(names) - 1}, where client_names has names")
    return index, tuple(names[int(i)] for i in ids)


def _whole(name: str, arrays: Arrays, key: str, n: int) -> Tensor | None:
    values = arrays.get(key)
    if values is None:
        return None
    require(values.shape == (n,), f"{name}: {key} has shape {values.shape} for {n} examples")
    require(values.dtype.kind in "biu", f"{name}: {key} is {values.dtype}, but must be whole numbers")
    return torch.from_numpy(values.astype(np.int64))


def _flag(name: str, arrays: Arrays, key: str, n: int) -> Tensor | None:
    values = _whole(name, arrays, key, n)
    if values is None:
        return None
    require(0 <= int(values.min()) <= int(values.max()) <= 1, f"{name}: {key} must be True or False")
    return values.bool()


def _number(name: str, arrays: Arrays, key: str) -> int:
    value = arrays.get(key)
    if value is None:
        return 0
    good = value.ndim == 0 and value.dtype.kind in "iu" and 0 <= int(value) <= 1 << 31
    require(good, f"{name}: {key} must be one whole number")
    return int(value)


def _json(arrays: Arrays, key: str) -> Any:
    told = arrays.get(key)
    return json.loads(str(told)) if told is not None and told.ndim == 0 and told.dtype.kind == "U" else None


def _recipe(name: str, arrays: Arrays) -> dict[str, Any] | None:
    recipe: dict[str, Any] | None = _json(arrays, "recipe")
    require("recipe" not in arrays or isinstance(recipe, dict), f"{name}: recipe must be a JSON object as a text")
    return recipe


def _several_inputs(name: str, arrays: Arrays) -> Inputs:
    if "inputs" not in arrays:
        return ()
    try:
        return tuple((str(key), tuple(map(int, shape))) for key, shape in _json(arrays, "inputs"))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: inputs must be a JSON list of names and shapes as a text") from error


def _note(arrays: Arrays) -> str:
    note = arrays.get("note")
    if note is not None and note.ndim == 0:
        return printable([note])[0]
    return "images were kept as JPEG: pixels differ a little from the original" if "jpeg" in arrays else ""


def _strings(names: tuple[str, ...]) -> AnyArray:
    return np.array(names, dtype=np.str_)
