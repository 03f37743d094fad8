"""What a column of a table is, and how its texts become numbers.

    number      itself
    boolean     0 or 1
    date        days since the first date in training
    category    a column of 0 and 1 for every value seen in training; a value that was not is 0 in all of them, since a
                column of its own would have weights that nobody has trained
    skip        left out

Of a number, boolean or date that is missing (empty, NA, NaN, ?, null) the cell is `nan` until the examples are dealt
(`filled`): then it is the median over training examples, and a column "NAME missing" of 0 and 1 says so, where any was
missing in training. A category that is missing is a value like others. A column that holds numbers and other texts,
such as <0.5, is asked about; where the user says that it is a number, those texts are missing (`loose`).

A *spec* says all that about one column, as JSON can hold it; the specs of a table are part of its recipe.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError, require, unknown
from .archive import AnyArray
from .federation import Pool
from .table_file import Sheet

Spec = dict[str, Any]

MISSING = ("", "na", "n/a", "nan", "?", "null", "<na>", "nat")  # in any case of letters
PAIRS = (("false", "true"), ("no", "yes"), ("f", "t"), ("n", "y"), ("0", "1"), ("0.0", "1.0"))
TRUTH = {word: bool(at) for pair in PAIRS for at, word in enumerate(pair)}
MOST_CATEGORIES = 1_000  # columns that one category may become
FEW = 20  # different texts that are a category however few rows there are
SOME = 0.1  # share of numbers from which on it is asked what the other texts are
KINDS = ("number", "category", "boolean", "date", "dmy", "mdy", "skip", "labels")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_CODE = re.compile(r"0\d+", re.ASCII)  # 01234 is a code, not a number
_ID = re.compile(r"(?:^|.*[ _-])id", re.IGNORECASE)
_TIME = r"(?:[ T](\d{1,2}):(\d{2})(?::(\d{2}))?)?"
_DATES = {  # the order of day, month and year; dots are only between day, month and year in that order
    "iso": re.compile(rf"(?P<y>\d{{4}})[-/](?P<m>\d{{1,2}})[-/](?P<d>\d{{1,2}}){_TIME}", re.ASCII),
    "dmy": re.compile(rf"(?P<d>\d{{1,2}})[-/.](?P<m>\d{{1,2}})[-/.](?P<y>\d{{4}}){_TIME}", re.ASCII),
    "mdy": re.compile(rf"(?P<m>\d{{1,2}})[-/](?P<d>\d{{1,2}})[-/](?P<y>\d{{4}}){_TIME}", re.ASCII),
}


def types_of(types: str | Mapping[str, str] | None) -> dict[str, str]:
    """Kinds of columns as they are written: `age=number,zip=category`."""
    if types is None or isinstance(types, str):
        pairs = [word.rpartition("=") for word in (types or "").split(",") if word.strip()]
        for name, equals, kind in pairs:
            require(bool(equals and name.strip()), f"types are written age=number,zip=category, got '{name}{kind}'")
        types = {name.strip(): kind for name, _, kind in pairs}
    found = {name: kind.strip().lower() for name, kind in types.items()}
    for kind in found.values():
        if kind not in KINDS:
            raise unknown("kind of column", kind, KINDS)
    return found


def is_missing(cell: str) -> bool:
    """Whether a cell says nothing."""
    return cell.lower() in MISSING


# --- what a column is


def learned(sheet: Sheet, name: str, kind: str | None, training: Sequence[int]) -> tuple[Spec | None, str]:
    """The spec of a column, or None and why it is left out.

    Arguments:
        kind: what the user says it is; None: guessed from all rows.
        training: rows that decide categories, origins and fills.
    """
    whole = sheet.columns[name]
    spec, why = guessed(sheet, name) if kind is None else _asked(sheet, name, kind)
    if spec is None:
        return None, why
    there = [whole[i] for i in training]
    spec |= {"name": name, "missing": any(map(is_missing, there))}
    if spec["kind"] == "category":
        values = sorted({cell for cell in there if not is_missing(cell)})
        good = len(values) <= MOST_CATEGORIES
        require(
            good,
            f"{sheet.name}: column '{name}' has {len(values):,} different values, each of which would be a column; "
            f"leave it out with types {name}=skip, or group its values",
        )
        return spec | {"values": values}, ""
    if spec["kind"] == "date":
        dates = [_moment(cell, spec["order"]) for cell in there if not is_missing(cell)]
        spec |= {"origin": min((day for day in dates if day), default=datetime(1970, 1, 1)).isoformat()}
    known = np.sort(values_of(spec, sheet, whole)[list(training)])
    spec |= {"missing": bool(np.isnan(known).any())}
    known = known[~np.isnan(known)]
    return spec | {"fill": float(known[(len(known) - 1) // 2]) if len(known) else 0.0}, ""


def guessed(sheet: Sheet, name: str) -> tuple[Spec | None, str]:
    """What a column looks like, from all of its texts."""
    present = [cell for cell in sheet.columns[name] if not is_missing(cell)]
    found = set(present)
    if not found:
        return None, "empty"
    if {cell.lower() for cell in found} in [set(pair) for pair in PAIRS]:
        return {"kind": "boolean"}, ""
    decimal = decimal_of(sheet, name)
    wrong = {cell for cell in found if number(cell, decimal) is None}
    if not wrong:
        return _number_or_not(name, present, decimal)
    if order := _order(sheet, name, found):
        return {"kind": "date", "order": order}, ""
    slips = sum(cell in wrong for cell in present)
    if len(present) - slips >= SOME * len(present):
        cell = next(cell for cell in present if cell in wrong)
        where = sheet.where(sheet.columns[name].index(cell))
        raise UsageError(
            f"{sheet.name}: column '{name}' holds numbers, but '{cell[:80]}' in {where} ({slips} such of "
            f"{len(present)}); say --types {name}=number (such cells count as missing), {name}=category or {name}=skip"
        )
    if 1 < len(found) == len(present):
        return None, "another text in every row"
    if len(found) > min(max(FEW, len(present) // 2), MOST_CATEGORIES):
        return None, f"{len(found):,} different texts in {len(present):,} rows"
    return {"kind": "category"}, ""


def _number_or_not(name: str, present: list[str], decimal: str) -> tuple[Spec | None, str]:
    """Numbers; but codes are categories, and those that only count or name the rows are left out."""
    if any(_CODE.fullmatch(cell) for cell in present):
        return {"kind": "category"}, ""
    values = [number(cell, decimal) or 0.0 for cell in present]
    if len(values) > 2 and all(value == values[0] + at for at, value in enumerate(values)):
        return None, "counts the rows"
    if len(values) > 2 and len(set(values)) == len(values) and _ID.fullmatch(name) and all(v == int(v) for v in values):
        return None, "another number in every row"
    return {"kind": "number", "decimal": decimal}, ""


def _asked(sheet: Sheet, name: str, kind: str) -> tuple[Spec | None, str]:
    """What the user says it is."""
    require(kind != "labels", f"types {name}=labels is for a target; a column to learn from is {', '.join(KINDS[:-1])}")
    if kind == "skip":
        return None, "as asked"
    if kind == "number":
        decimal = decimal_of(sheet, name)
        loose = unreadable(sheet, name, decimal)
        return {"kind": "number", "decimal": decimal} | ({"loose": True} if loose else {}), ""
    if kind in ("date", "dmy", "mdy"):
        found = {cell for cell in sheet.columns[name] if not is_missing(cell)}
        return {"kind": "date", "order": kind if kind != "date" else _order(sheet, name, found) or "iso"}, ""
    return {"kind": kind}, ""


def unreadable(sheet: Sheet, name: str, decimal: str) -> set[int]:
    """Rows of a column of numbers that hold another text; none where no cell is a number: then it is no such column."""
    cells = sheet.columns[name]
    read = {cell: number(cell, decimal) is not None for cell in set(cells) if not is_missing(cell)}
    return {at for at, cell in enumerate(cells) if not read.get(cell, True)} if any(read.values()) else set()


def decimal_of(sheet: Sheet, name: str) -> str:
    """A comma where cells are not cut at commas, some number needs it, and none has a point."""
    found = set(sheet.columns[name])
    needs = sheet.comma and any("," in cell and number(cell, ",") is not None for cell in found)
    return "," if needs and not any("." in cell and number(cell, ".") is not None for cell in found) else "."


def _order(sheet: Sheet, name: str, found: set[str]) -> str:
    """The order of day, month and year that all dates have; empty: they are no dates."""
    orders = [order for order in _DATES if all(_moment(cell, order) is not None for cell in found)]
    if "dmy" in orders and "mdy" in orders:
        two = next((cell for cell in sorted(found) if _moment(cell, "dmy") != _moment(cell, "mdy")), None)
        if two is not None:
            raise UsageError(
                f"{sheet.name}: column '{name}' holds dates such as {two}, which may be day or month first: say types "
                f"{name}=dmy or {name}=mdy, or write them as 2021-12-31"
            )
    return next(iter(orders), "")


# --- from texts to numbers


def number(cell: str, decimal: str = ".") -> float | None:
    """A text as a number, where it is one.

    >>> number("-1.5e3"), number("2,5", ","), number("2,5"), number("inf"), number("1_000")
    (-1500.0, 2.5, None, None, None)
    """
    text = cell.replace(",", ".") if decimal == "," and cell.count(",") == 1 and "." not in cell else cell
    return float(text) if _NUMBER.fullmatch(text) and abs(float(text)) < 3e38 else None  # what float32 holds


def _moment(cell: str, order: str) -> datetime | None:
    """A text as a day, perhaps with a time; times with a zone are taken to Greenwich."""
    try:
        if match := _DATES[order].fullmatch(cell):
            hour, minute, second = (int(part or 0) for part in match.groups()[3:])
            return datetime(int(match["y"]), int(match["m"]), int(match["d"]), hour, minute, second)
        if order != "iso" or "-" not in cell:
            return None
        found = datetime.fromisoformat(cell)
        return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None


def _parser(spec: Spec) -> Callable[[str], float | None]:
    """How a text of a column becomes a number; None where it does not."""
    if spec["kind"] == "number":
        return lambda cell: number(cell, spec["decimal"])
    if spec["kind"] == "boolean":
        return lambda cell: TRUTH.get(cell.lower())
    origin = datetime.fromisoformat(spec["origin"])

    def days(cell: str) -> float | None:
        found = _moment(cell, spec["order"])
        return None if found is None else (found - origin).total_seconds() / 86_400

    return days


def values_of(spec: Spec, sheet: Sheet, column: list[str]) -> AnyArray:
    """The numbers of a column that is measured, (rows,); nan where one is missing."""
    parse = _parser(spec)
    known = {cell: math.nan if is_missing(cell) else parse(cell) for cell in set(column)}
    if spec.get("loose"):
        known = {cell: math.nan if value is None else value for cell, value in known.items()}
    if wrong := [cell for cell, value in known.items() if value is None]:
        at = min(map(column.index, wrong))
        raise UsageError(
            f"{sheet.name}, {sheet.where(at)}: column '{spec['name']}' holds '{column[at][:80]}', which is no "
            f"{spec['kind']}; correct it, or say what the column is: types {spec['name']}=category, or skip"
        )
    return np.array([known[cell] for cell in column], dtype=np.float64)


def encoded(spec: Spec, sheet: Sheet) -> AnyArray:
    """The columns of x that one column becomes, (rows, width) float32; nan where a number is missing."""
    column = sheet.columns[spec["name"]]
    if spec["kind"] != "category":
        values = values_of(spec, sheet, column)
        return np.stack([values, np.isnan(values)][: 1 + spec["missing"]], 1).astype(np.float32)
    place = {value: at for at, value in enumerate(spec["values"])}
    width = len(place) + spec["missing"]
    at = np.array([width - 1 if spec["missing"] and is_missing(cell) else place.get(cell, -1) for cell in column])
    hot: AnyArray = (at[:, None] == np.arange(width)).astype(np.float32)
    return hot


def unknown_cells(spec: Spec, sheet: Sheet) -> str:
    """What a column of later rows holds that training rows did not, in words; empty: nothing."""
    column, name = sheet.columns[spec["name"]], spec["name"]
    if spec["kind"] == "category":
        known = set(spec["values"])
        strange = [cell for cell in column if cell not in known and not (spec["missing"] and is_missing(cell))]
        what, so = "a value that was not there in training", "it is 0 in all columns of that category"
    else:
        read, good = _parser(spec), spec.get("loose")
        strange = [cell for cell in column if good and not is_missing(cell) and read(cell) is None]
        what, so = "a text that is no number", "it counts as missing"
    few = list(dict.fromkeys("nothing" if is_missing(cell) else f"'{cell[:40]}'" for cell in strange))
    shown = ", ".join(few[:3]) + (", ..." if len(few) > 3 else "")
    return f"column '{name}' holds {what} in {len(strange)} of {len(column)} rows ({shown}): {so}" if strange else ""


def heads(spec: Spec) -> list[str]:
    """The names of the columns of x that one column becomes."""
    name = spec["name"]
    own = [f"{name}={value}" for value in spec["values"]] if spec["kind"] == "category" else [name]
    return own + [f"{name} missing"] * spec["missing"]


def specs_of(recipe: Mapping[str, Any]) -> list[Spec]:
    """The specs of a recipe, whoever wrote it."""
    try:
        specs = [dict(spec) for spec in recipe.get("columns", ())]
        for spec in specs:
            heads(spec)
            if spec["kind"] != "category":
                float(spec["fill"])
                _parser(spec)("")
        return specs
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError("the recipe of this table is damaged; import the table again") from error


def filled(pool: Pool, train: Tensor) -> Pool:
    """The pool with medians of the training examples where a number of its table is missing, and in its recipe."""
    specs = [] if pool.recipe is None else specs_of(pool.recipe)
    if pool.recipe is None or not specs:
        return pool
    good = pool.x.dim() == 2 and pool.x.shape[1] == sum(len(heads(spec)) for spec in specs)
    require(good, f"data '{pool.name}': the recipe of the table is for another x; import the table again")
    x, at, new = pool.x.clone(), 0, list[Spec]()
    for spec in specs:
        if spec["kind"] != "category":
            known = x[train, at]
            median = float(known.nanmedian()) if len(known) else math.nan  # the lower of two: a boolean stays one
            spec = spec | {"fill": 0.0 if math.isnan(median) else median}
            x[:, at] = torch.where(x[:, at].isnan(), spec["fill"], x[:, at])
        new.append(spec)
        at += len(heads(spec))
    return replace(pool, x=x, recipe={**pool.recipe, "columns": new})


# --- what is shown of a column


def shown(spec: Spec, x: Tensor) -> tuple[str, str, int]:
    """The kind of a column, its values or range, and how many are missing, from its columns of x before filling."""
    kind = spec["kind"]
    if kind == "category":
        counts = x.sum(0).long().tolist()
        values = [f"{value} ({n})" for value, n in zip(spec["values"], counts, strict=False)]
        more = f" and {len(values) - 5} more" if len(values) > 5 else ""
        unseen = int((x.sum(1) == 0).sum())
        said = f"; {unseen} not seen in training" if unseen else ""
        return kind, ", ".join(values[:5]) + more + said, counts[-1] if spec["missing"] else 0
    known = x[:, 0][~x[:, 0].isnan()]
    missing = len(x) - len(known)
    if not len(known):
        return kind, "", missing
    low, high = float(known.min()), float(known.max())
    if kind == "boolean":
        return kind, f"{int(known.sum())} true, {int((1 - known).sum())} false", missing
    if kind == "date":
        first = datetime.fromisoformat(spec["origin"])
        days = [(first + timedelta(days=value)).date().isoformat() for value in (low, high)]
        order = "" if spec["order"] == "iso" else f" ({spec['order']})"
        return kind, f"{days[0]} to {days[1]}{order}", missing
    comma = " (decimal comma)" if spec["decimal"] == "," else ""
    return kind, f"{low:.6g} to {high:.6g}{comma}", missing
