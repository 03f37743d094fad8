"""Pools from what is in memory: NumPy arrays, tensors, torch's datasets.

from_arrays(x, y, client=site)                              one row of x an example, channels first
from_arrays({"image": images, "age": ages}, y, client=site)     several inputs, end to end in one row of floats
from_dataset(dataset, client=[...])                         anything with len() and dataset[i] -> (x, y)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError, require
from .archive import AnyArray
from .federation import Inputs, Pool
from .npz_file import MOST_CLASSES, finite, labels, printable, renumbered
from .pictures import as_bytes
from .suspicious import FEW

PerExample = Sequence[Any] | AnyArray | Tensor


def from_arrays(
    x: Any,
    y: Any,
    *,
    client: PerExample | None = None,
    test: PerExample | None = None,
    group: PerExample | None = None,
    protected: PerExample | None = None,
    classes: Sequence[str] | None = None,
    columns: Sequence[str] = (),
    targets: Sequence[str] = (),
    symbols: int = 0,
    name: str = "arrays",
    note: str = "",
) -> Pool:
    """A pool from NumPy arrays or tensors.

    Arguments:
        x: (n, d) features, (n, channels, time) series, uint8 (n, h, w) or (n, channels, h, w) images; or several such
            inputs by name, with which the model is called in this order.
        y: (n,) or (n, 1): whole numbers or strings are classes, floats are numbers to predict; (n, t): 0 and 1 for
            each of t labels, or t numbers; (n, most, 5): boxes in images, rows (class, x0, y0, x1, y1) in shares of
            the sides, class -1 where there is none; of symbols x, whole numbers of the same shape: one to predict at
            every position, -1 where there is none. For the last two, classes must be named.
        client: whose every example is; None: they must be dealt by a partition.
        test: True for test examples; None: a fifth at every client.
        group: a known population of every example, to judge by.
        protected: a protected attribute of every example, for methods that hide it.
        classes: names of the classes 0 .. C-1; None: as y calls them.
        columns: names of the features.
        targets: names of the numbers to predict.
        symbols: says that x holds symbols (n, length), and how many there are.
    """
    inputs, recipe = Inputs(), None
    if isinstance(x, Mapping):
        require(not symbols and not columns, f"{name}: several inputs can have neither symbols nor columns")
        whole, inputs, recipe = packed(name, x)
    else:
        whole = _examples(name, "x", _array(name, "x", x), symbols)
    n = len(whole)
    require(n > 0, f"{name} has no examples")
    goal, names = _targets(name, _array(name, "y", y), classes, tuple(whole.shape) if symbols else None)
    owner, clients = (None, ()) if client is None else _named(name, "client", client, n)
    of, groups = (None, ()) if group is None else _named(name, "group", group, n)
    flag = None if test is None else _each(name, "test", test, n)
    good = flag is None or flag.dtype.kind == "b" or bool(np.isin(flag, (0, 1)).all())
    require(good, f"{name}: test must be True or False for every example")
    features = whole.shape[1] if whole.dim() == 2 else 0
    good = len(columns) in (0, features)
    require(good, f"{name}: {len(columns)} names in columns for {features} features")
    good = goal.dim() < 3 or whole.dim() == 4
    require(good, f"{name}: y has boxes in images, but x has shape {tuple(whole.shape)}, not (n, channels, h, w)")
    outputs = goal.shape[1] if goal.dim() == 2 else 1
    good = not targets or (not names and len(targets) == outputs)
    require(good, f"{name}: targets names {len(targets)} numbers to predict, but y has {'no' if names else outputs}")
    return Pool(
        name=name,
        x=whole,
        y=goal,
        classes=names,
        client=owner,
        clients=clients,
        test=None if flag is None else torch.from_numpy(flag.astype(bool)),
        group=of,
        group_names=groups,
        protected=None if protected is None else _named(name, "protected", protected, n)[0],
        note=note,
        symbols=symbols,
        targets=printable(targets),
        columns=printable(columns),
        inputs=inputs,
        recipe=recipe,
    )


def from_dataset(
    dataset: Any,
    *,
    client: PerExample | Callable[[int], Any] | None = None,
    test: PerExample | Callable[[int], Any] | None = None,
    name: str = "dataset",
    **how: Any,
) -> Pool:
    """A pool from a `torch.utils.data.Dataset`, or anything with a length and examples (x, y) by number.

    Every example is taken once and kept: what a transform draws at random is drawn once for all (a transform that
    draws is told; `augment` draws anew in every round).

    Arguments:
        client: whose every example is: a list or array, or a function of the example's number.
        test: True for test examples, in the same two ways.
        how: other arguments of `from_arrays`; classes are the dataset's own where it has any.
    """
    good = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    require(good, f"{name}: from_dataset needs len(dataset) and dataset[i]; a stream has neither: make a list of it")
    n = len(dataset)
    require(n > 0, f"{name} has no examples")
    pairs = [_pair(name, dataset, at) for at in range(n)]
    _same_twice(name, pairs[0][0], _pair(name, dataset, 0)[0])
    several = isinstance(pairs[0][0], Mapping)
    parts = {key: [x[key] for x, _ in pairs] for key in pairs[0][0]} if several else {"x": [x for x, _ in pairs]}
    stacked = {key: _stacked(name, key, values) for key, values in parts.items()}
    y = _stacked(name, "y", [np.asarray(value) for _, value in pairs])
    own = getattr(dataset, "classes", None)
    named = isinstance(own, Sequence) and not isinstance(own, str) and y.dtype.kind in "iu"
    given = {"classes": list(map(str, own))} if named and own else {}

    def of_each(what: Any) -> Any:
        return [what(at) for at in range(n)] if callable(what) else what

    x = stacked if several else stacked["x"]
    return from_arrays(x, y, client=of_each(client), test=of_each(test), name=name, **(given | how))


def _pair(name: str, dataset: Any, at: int) -> tuple[Any, Any]:
    """An example as (input or inputs by name, target)."""
    example = dataset[at]
    good = isinstance(example, tuple | list) and len(example) == 2
    require(
        good, f"{name}: example {at} is {type(example).__name__}, not a pair (x, y); wrap the dataset so that it is"
    )
    x, y = example
    return ({key: _pixels(value) for key, value in x.items()} if isinstance(x, Mapping) else _pixels(x)), y


def _pixels(value: Any) -> AnyArray:
    """One input as an array; a picture as bytes, channels first."""
    if hasattr(value, "convert"):
        return as_bytes(value).transpose(2, 0, 1)
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def _same_twice(name: str, once: Any, again: Any) -> None:
    both = [list(x.values()) if isinstance(x, Mapping) else [x] for x in (once, again)]
    if not all(a.shape == b.shape and np.array_equal(a, b) for a, b in zip(*both, strict=True)):
        warnings.warn(
            f"data '{name}': example 0 is another one each time, so a transform draws at random; what it drew now is "
            "kept for all rounds: leave it out, and draw in training with augment (--augment flip)",
            stacklevel=3,
        )


def _stacked(name: str, what: str, values: list[AnyArray]) -> AnyArray:
    """Arrays of one shape as one."""
    for at, value in enumerate(values):
        if value.shape != values[0].shape:
            raise UsageError(
                f"{name}: {what} of example {at} has shape {value.shape} but example 0 has {values[0].shape}; all "
                "must have one: pad or resize them"
            )
    return np.stack(values)


# --- arrays


def _array(name: str, what: str, values: Any) -> AnyArray:
    """Anything that holds numbers or strings, as an array."""
    if isinstance(values, Tensor):
        array: AnyArray = values.detach().cpu().numpy()
    else:
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise UsageError(f"{name}: {what} is ragged: all of its rows must have one shape") from error
    if array.dtype.kind == "O" and array.ndim == 1 and all(isinstance(value, str) for value in array):
        array = array.astype(np.str_)
    require(array.ndim > 0, f"{name}: {what} is a single {type(values).__name__}, not one value for each example")
    good = array.dtype.kind in "biufU"
    require(good, f"{name}: {what} holds {array.dtype}, not numbers{' or strings' if what != 'x' else ''}")
    return array


def _examples(name: str, what: str, x: AnyArray, symbols: int) -> Tensor:
    """Examples as a pool has them."""
    require(x.dtype.kind != "U", f"{name}: {what} holds strings, not numbers; a table goes to from_frame")
    if symbols:
        good = x.dtype.kind in "iu" and x.ndim == 2 and x.size > 0 and 0 <= int(x.min()) and int(x.max()) < symbols
        require(good, f"{name}: symbols must be whole numbers from 0 to {symbols - 1}, (n, length)")
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.uint8 if symbols <= 256 else np.int32))
    x = x[:, None] if x.ndim == 1 else x
    good = x.ndim <= 4 and 0 not in x.shape[1:]
    require(good, f"{name}: {what} has shape {x.shape}, not one of (n, d) to (n, channels, height, width)")
    first = x.ndim < 4 or x.shape[-1] not in (1, 3, 4) or x.shape[1] <= 4
    require(first, f"{name}: {what} has shape {x.shape}, but channels come first: {what}.transpose(0, 3, 1, 2)")
    if x.dtype == np.uint8 and x.ndim > 2:
        return torch.from_numpy(np.ascontiguousarray(x[:, None] if x.ndim == 3 else x))
    return finite(name, what, x)


def packed(name: str, several: Mapping[str, Any]) -> tuple[Tensor, Inputs, dict[str, Any]]:
    """Several inputs end to end in one row of floats, their shapes, and a recipe that says which of them were bytes.

    Bytes of images become numbers in [0, 1], as they would alone.
    """
    require(bool(several), f"{name}: x is empty; give at least one input")
    parts, inputs, kinds = list[Tensor](), list[tuple[str, tuple[int, ...]]](), dict[str, str]()
    for key, values in several.items():
        part = _examples(name, str(key), _array(name, str(key), values), 0)
        n = len(parts[0]) if parts else len(part)
        require(len(part) == n, f"{name}: input '{key}' has {len(part)} examples, but those before it {n}")
        inputs.append((str(key), tuple(part.shape[1:])))
        kinds[str(key)] = str(part.dtype)[6:]
        parts.append((part.float() / 255 if part.dtype == torch.uint8 else part).flatten(1))
    return torch.cat(parts, 1), tuple(inputs), {"inputs": kinds}


def _targets(
    name: str, y: AnyArray, classes: Sequence[str] | None, of_symbols: tuple[int, ...] | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Classes, labels or numbers; without names, classes are called as y calls them."""
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.dtype.kind == "U":
        require(y.ndim == 1, f"{name}: y holds strings in shape {y.shape}, but a class is one for each example")
        require(classes is None, f"{name}: y holds strings, which are the names of the classes: leave classes out")
        return renumbered(y)
    if y.ndim != 1 or y.dtype.kind == "f" or classes is not None:
        return labels(name, y, None if classes is None else printable(classes), of_symbols)
    found = len(np.unique(y))
    good = found <= min(max(FEW, len(y) // 2), MOST_CLASSES)
    require(
        good,
        f"{name}: y holds {found:,} different whole numbers in {len(y):,} examples; if they are numbers to predict, "
        "give floats (y.astype(float)); if they are classes, name them with classes=",
    )
    return renumbered(y)


def _each(name: str, what: str, values: PerExample, n: int) -> AnyArray:
    array = _array(name, what, values)
    require(
        array.shape == (n,), f"{name}: {what} has shape {array.shape} for {n} examples; it needs one value for each"
    )
    return array


def _named(name: str, what: str, values: PerExample, n: int) -> tuple[Tensor, tuple[str, ...]]:
    array = _each(name, what, values, n)
    require(array.dtype.kind in "biuU", f"{name}: {what} is {array.dtype}, but ids must be whole numbers or strings")
    return renumbered(array)
