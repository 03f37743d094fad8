"""A table with a client in every row becomes a pool: what is learned from, what is learned, and who owns it.

    pool = table("visits.csv", client="site", target="outcome")         a file
    pool = from_frame(frame, client="site", target="outcome")           a data frame
    x    = rows_to_inputs(federation.recipe, read_rows("new.csv"))      later rows, in the same way

What a column is, is guessed from all rows, without a look at targets. Which values a category has, where dates begin
and what fills a gap is decided by training rows where a column says which those are; otherwise categories and origins
by all rows, and fills by the training examples once the table is dealt (`columns.filled`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError, require
from .archive import LIMIT, AnyArray
from .columns import (
    MOST_CATEGORIES,
    PAIRS,
    TRUTH,
    Spec,
    decimal_of,
    encoded,
    guessed,
    heads,
    is_missing,
    learned,
    number,
    shown,
    specs_of,
    types_of,
    unknown_cells,
    unreadable,
    values_of,
)
from .federation import Pool
from .npz_file import printable, renumbered
from .suspicious import FEW, unlike_targets
from .table_file import MOST_BYTES, Sheet, read_sheet, sheet_from, sheet_of

SPLIT = "|"  # between the labels of one cell
_TEST = TRUTH | {"test": True, "train": False}


def table(
    path: str | Path,
    *,
    client: str | None = None,
    target: str | Sequence[str] | None = None,
    types: str | Mapping[str, str] | None = None,
    test: str | None = None,
    group: str | None = None,
    labels: bool = False,
    limit: int = MOST_BYTES,
) -> Pool:
    """Read a CSV or Parquet file.

    Arguments:
        path: the file; its first line names the columns.
        client: the column that says whose a row is; None: the rows must be dealt by a partition.
        target: the column to predict, or several (`"x,y"` or a list).
        types: what columns are, where the guess is wrong: `"age=number,zip=category,note=skip"` or a dictionary.
        test: a column that is true for test rows.
        group: a column with a known population, to judge by, never to learn from.
        labels: the target is several labels: a cell `a|b`, or a column of 0 and 1 for each.
        limit: refuse a file of more bytes.
    """
    name = Path(path).name
    require(
        bool(target),
        f"{name} is a table: say what to predict and whose a row is, once: polycentric data import {name} "
        "--client COLUMN --target COLUMN",
    )
    how: dict[str, Any] = {"client": client, "types": types, "test": test, "group": group, "labels": labels}
    return _pool(read_sheet(path, limit=limit), Path(path).stem, target, **how)


def from_frame(
    frame: Any,
    *,
    client: str | None = None,
    target: str | Sequence[str],
    types: str | Mapping[str, str] | None = None,
    test: str | None = None,
    group: str | None = None,
    labels: bool = False,
    name: str = "frame",
) -> Pool:
    """A pool from a pandas DataFrame, or anything with `columns` and `frame[column]`; arguments as those of `table`."""
    good = hasattr(frame, "columns") and hasattr(frame, "__getitem__")
    require(good, f"from_frame takes a data frame with columns, got {type(frame).__name__}; arrays go to from_arrays")
    how: dict[str, Any] = {"client": client, "types": types, "test": test, "group": group, "labels": labels}
    return _pool(sheet_of(name, frame.columns, frame.__getitem__), name, target, **how)


def rows_to_inputs(recipe: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Tensor:
    """Rows of the same table as x, (rows, features), as the recipe of a federation says.

    A category that was not seen in training is 0 in all of its columns; what is missing is filled as in training.
    """
    specs = specs_of(recipe)
    require(bool(specs), "this recipe has no columns: the data did not come from a table")
    sheet = sheet_from(rows, [spec["name"] for spec in specs])
    parts = []
    for spec in specs:
        part = encoded(spec, sheet)
        parts.append(part if spec["kind"] == "category" else np.where(np.isnan(part), np.float32(spec["fill"]), part))
    return torch.from_numpy(np.concatenate(parts, 1))


def unlike_training(recipe: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What later rows hold that training rows did not, a sentence for each column."""
    specs = specs_of(recipe)
    sheet = sheet_from(rows, [spec["name"] for spec in specs])
    return [said for said in (unknown_cells(spec, sheet) for spec in specs) if said]


def rows_to_targets(recipe: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Tensor:
    """Targets of rows of the same table as y; a row without one, or of a class nobody knows, is refused."""
    y, known = known_targets(recipe, rows)
    bare = next((at for at, there in enumerate(known.tolist()) if not there), None)
    require(bare is None, f"row {bare} has no target in {' or '.join(map(repr, recipe['target']['columns']))}")
    return y


def known_targets(recipe: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> tuple[Tensor, Tensor]:
    """Targets of rows of the same table as y, zero where a row has none, and which rows have one, (rows,) bool."""
    try:
        spec: Spec = dict(recipe["target"])
        columns = list(spec["columns"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError("this recipe has no target: the data did not come from a table") from error
    sheet = sheet_from(rows, columns)
    bare = _bare(sheet, columns, {column: spec["decimal"] for column in columns if spec.get("loose")})
    kept = torch.tensor([at for at in range(len(sheet)) if at not in bare], dtype=torch.int64)
    found = _targets(spec, sheet.some(kept.tolist()))
    y, known = found.new_zeros(len(sheet), *found.shape[1:]), torch.zeros(len(sheet), dtype=torch.bool)
    y[kept], known[kept] = found, True
    return y, known


def table_report(pool: Pool) -> tuple[list[tuple[str, str, str, str]], list[str]]:
    """What became of a table, from its recipe: (column, kind, values or range, missing) of each, and lines."""
    recipe, at, rows = pool.recipe or {}, 0, list[tuple[str, str, str, str]]()
    for spec in specs_of(recipe):
        width = len(heads(spec))
        kind, values, missing = shown(spec, pool.x[:, at : at + width])
        rows.append((spec["name"], kind, values, str(missing) if missing else ""))
        at += width
    rows += [(name, "left out", why, "") for name, why in recipe.get("skipped", {}).items()]
    target = recipe["target"]
    called, unlike = ", ".join(target["columns"]), list[str]()
    if target["kind"] == "numbers":
        each = [f"{float(y.min()):.6g} to {float(y.max()):.6g}" for y in pool.y.reshape(len(pool.y), -1).unbind(1)]
        named = [f"{name} {shown}" for name, shown in zip(target["columns"], each, strict=True)]
        what = f"a number, {each[0]}" if len(each) == 1 else f"numbers, {', '.join(named)}"
        unlike = unlike_targets(pool.y, pool.targets)
    else:
        counts = pool.y.sum(0) if pool.y.dim() == 2 else torch.bincount(pool.y, minlength=len(pool.classes))
        each = [f"{name} ({int(n)})" for name, n in zip(pool.classes, counts.tolist(), strict=True)]
        more = f" and {len(each) - 6} more" if len(each) > 6 else ""
        what = f"{len(each)} {target['kind']}: {', '.join(each[:6])}{more}"
    width = pool.x.shape[1]
    said = [f"{len(pool.y):,} rows, {width} feature{'s' * (width > 1)}", f"target {called}: {what}", *unlike]
    if pool.client is None:
        said.append("no client column: deal the rows with --partition, such as --partition iid")
    else:
        sizes = torch.bincount(pool.client)
        said.append(f"{len(pool.clients)} clients by {recipe['client']}, {int(sizes.min())} to {int(sizes.max())} rows")
    if pool.test is not None:
        said.append(f"{int(pool.test.sum()):,} test rows by {recipe['test']}")
    if any(kind in ("number", "boolean", "date") and missing for _, kind, _, missing in rows):
        said.append("what is missing becomes the median of training rows; a column 'NAME missing' of 0 and 1 says so")
    return rows, said + ([pool.note] if pool.note else [])


# --- from cells to a pool


def _pool(
    sheet: Sheet,
    name: str,
    target: str | Sequence[str] | None,
    *,
    client: str | None,
    types: str | Mapping[str, str] | None,
    test: str | None,
    group: str | None,
    labels: bool,
) -> Pool:
    kinds = types_of(types)
    named = target.split(",") if isinstance(target, str) and target not in sheet.columns else target
    wanted = [word.strip() for word in ([named] if isinstance(named, str) else named or ()) if word.strip()]
    require(bool(wanted), f"{sheet.name}: say what to predict: target='outcome' (--target outcome)")
    uses = [("target", column) for column in wanted]
    uses += [(what, column) for what, column in (("client", client), ("test", test), ("group", group)) if column]
    for what, column in uses:
        sheet.column(column, what)
        good = [other for _, other in uses].count(column) == 1
        require(
            good, f"{sheet.name}: column '{column}' is given as {what} and as something else; it can be one of them"
        )
    taken = {column for _, column in uses}
    for column in kinds:
        sheet.column(column, "types")
        good = column not in taken or column in wanted
        require(good, f"{sheet.name}: column '{column}' is not learned from, so types cannot say what it is")

    sheet, note = _whole(sheet, wanted, client, kinds)
    is_test = None if test is None else _truth(sheet, test)
    training = [at for at in range(len(sheet)) if is_test is None or not is_test[at]]
    require(bool(training), f"{sheet.name}: '{test}' is true in all rows, so none is left to train on")
    specs, skipped = list[Spec](), dict[str, str]()
    for column in sheet.columns:
        if column not in taken:
            spec, why = learned(sheet, column, kinds.get(column), training)
            if spec is None:
                skipped[column] = why
            else:
                specs.append(spec)
    left = "; ".join(f"{column} ({why})" for column, why in list(skipped.items())[:5])
    columns = [head for spec in specs for head in heads(spec)]
    require(bool(columns), f"{sheet.name} has no column to learn from{f'; left out: {left}' if left else ''}")
    n_bytes = 4 * len(columns) * len(sheet)
    require(n_bytes <= LIMIT, f"{sheet.name} would be {n_bytes:,} bytes in {len(columns):,} columns; skip some")
    x = np.empty((len(sheet), len(columns)), np.float32)  # filled part by part: never twice in memory
    at = 0
    for spec in specs:
        part = encoded(spec, sheet)
        x[:, at : at + part.shape[1]] = part
        at += part.shape[1]

    for spec in specs:
        if said := unknown_cells(spec, sheet) if spec.get("loose") else "":
            note += f"{'; ' if note else ''}{said}"
    goal = _goal(sheet, wanted, kinds, labels)
    owner, clients = renumbered(np.array(sheet.columns[client])) if client else (None, ())
    of, groups = renumbered(np.array([c or "missing" for c in sheet.columns[group]])) if group else (None, ())
    recipe = {"columns": specs, "skipped": skipped, "target": goal, "client": client, "test": test, "group": group}
    return Pool(
        name=name,
        x=torch.from_numpy(x),
        y=_targets(goal, sheet),
        classes=printable(goal.get("classes", ())),
        client=owner,
        clients=clients,
        test=is_test,
        group=of,
        group_names=groups,
        note=note,
        targets=tuple(wanted) if goal["kind"] == "numbers" else (),
        columns=printable(columns),
        recipe=recipe,
    )


def _bare(sheet: Sheet, wanted: Sequence[str], loose: Mapping[str, str]) -> set[int]:
    """Rows without a target; `loose`: the decimal of columns in which another text than a number is none."""
    bare = {at for column in wanted for at, cell in enumerate(sheet.columns[column]) if is_missing(cell)}
    return bare.union(*(unreadable(sheet, column, decimal) for column, decimal in loose.items()))


def _whole(sheet: Sheet, wanted: list[str], client: str | None, kinds: Mapping[str, str]) -> tuple[Sheet, str]:
    """The rows that have a target and a client, and a note on those that do not."""
    numbers = {column: decimal_of(sheet, column) for column in wanted if kinds.get(column) == "number"}
    bare = _bare(sheet, wanted, numbers)
    lost = {at for at, cell in enumerate(sheet.columns[client]) if is_missing(cell)} if client else set()
    if not bare and not lost:
        return sheet, ""
    kept = [at for at in range(len(sheet)) if at not in bare and at not in lost]
    counts = {"target": len(bare), "client": len(lost - bare)}
    said = ", ".join(f"{n} without {what}" for what, n in counts.items() if n)
    note = f"rows left out: {said}, of {len(sheet)}"
    require(bool(kept), f"{sheet.name}: {note}; none is left")
    return sheet.some(kept), note


def _truth(sheet: Sheet, column: str) -> Tensor:
    """A column of true and false."""
    for at, cell in enumerate(sheet.columns[column]):
        good = cell.lower() in _TEST
        require(
            good, f"{sheet.name}, {sheet.where(at)}: '{column}' must be true or false, or test or train, got '{cell}'"
        )
    return torch.tensor([_TEST[cell.lower()] for cell in sheet.columns[column]])


# --- targets


def _goal(sheet: Sheet, wanted: list[str], kinds: Mapping[str, str], labels: bool) -> Spec:
    """What is to be predicted: kind (classes, labels, numbers), names of classes, and how texts become them."""
    asked = {kinds[column] for column in wanted if column in kinds} | ({"labels"} if labels else set())
    good = len(asked) <= 1 and not asked & {"skip", "date", "dmy", "mdy"}
    said = f"target {', '.join(wanted)} is said to be {' and '.join(sorted(asked))}"
    require(good, f"{sheet.name}: {said}; a target is a number, a category or labels")
    kind = next(iter(asked), None)
    goal: Spec = {"columns": wanted}
    if len(wanted) > 1:
        return goal | _several(sheet, wanted, kind)
    column = wanted[0]
    found = set(sheet.columns[column])
    if kind == "labels" or (kind is None and any(SPLIT in cell for cell in found)):
        classes = sorted({label for cell in found for label in _labels(cell)})
        require(bool(classes), f"{sheet.name}: target '{column}' names no label")
        return goal | {"kind": "labels", "classes": classes}
    decimal = decimal_of(sheet, column)
    values = {cell: number(cell, decimal) for cell in found}
    numbers = all(value is not None for value in values.values())
    whole = numbers and all(value == int(value) for value in values.values() if value is not None)
    if kind == "number" or (kind is None and numbers and (not whole or len(set(values.values())) > FEW)):
        return goal | {"kind": "numbers", "decimal": decimal} | ({"loose": True} if kind else {})
    if kind is None and not numbers:
        _no_date(sheet, column)
    classes = [str(int(v)) for v in sorted(set(values.values()))] if whole else sorted(found)  # type: ignore[arg-type, type-var]
    pair = next((pair for pair in PAIRS if {cell.lower() for cell in found} == set(pair)), None)
    if pair and not whole:
        classes = sorted(found, key=lambda cell: pair.index(cell.lower()))
    require(
        len(classes) > 1, f"{sheet.name}: target '{column}' is '{classes[0]}' in all rows: there is nothing to learn"
    )
    good = len(classes) <= MOST_CATEGORIES and (kind is not None or len(classes) <= max(FEW, len(sheet) // 2))
    require(
        good,
        f"{sheet.name}: target '{column}' has {len(classes):,} different values in {len(sheet):,} rows, too many for "
        f"classes; choose another column, or say types {column}=number",
    )
    return goal | {"kind": "classes", "classes": classes, "whole": whole}


def _no_date(sheet: Sheet, column: str) -> None:
    spec, _ = guessed(sheet, column)
    good = spec is None or spec["kind"] != "date"
    require(good, f"{sheet.name}: target '{column}' holds dates; predict a number of days instead")


def _several(sheet: Sheet, wanted: list[str], kind: str | None) -> Spec:
    """Several numbers, or several labels with a column of 0 and 1 each."""
    binary = all(cell.lower() in TRUTH for column in wanted for cell in sheet.columns[column])
    if kind == "labels" or (kind is None and binary):
        return {"kind": "labels", "classes": wanted}
    good = kind in (None, "number")
    require(good, f"{sheet.name}: targets {', '.join(wanted)} together can be numbers or labels (0 and 1), not {kind}")
    decimal = "," if any(decimal_of(sheet, column) == "," for column in wanted) else "."
    return {"kind": "numbers", "decimal": decimal} | ({"loose": True} if kind else {})


def _targets(goal: Spec, sheet: Sheet) -> Tensor:
    """The cells of the target columns as y."""
    columns = goal["columns"]
    if goal["kind"] == "numbers" or (goal["kind"] == "labels" and len(columns) > 1):
        how = {"kind": "number", "decimal": goal["decimal"]} if goal["kind"] == "numbers" else {"kind": "boolean"}
        parts = [values_of(how | {"name": column}, sheet, sheet.columns[column]) for column in columns]
        y = np.stack(parts, 1).astype(np.float32)
        return torch.from_numpy(y[:, 0] if len(columns) == 1 else y)
    column, place = sheet.columns[columns[0]], {name: at for at, name in enumerate(goal["classes"])}
    if goal["kind"] == "labels":
        hot: AnyArray = np.zeros((len(column), len(place)), np.float32)
        for at, cell in enumerate(column):
            hot[at, [_place(place, label, sheet, at) for label in _labels(cell)]] = 1
        return torch.from_numpy(hot)
    whole = goal["whole"]
    return torch.tensor(
        [_place(place, _whole_number(cell) if whole else cell, sheet, at) for at, cell in enumerate(column)]
    )


def _labels(cell: str) -> list[str]:
    return [label.strip() for label in cell.split(SPLIT) if label.strip()]


def _whole_number(cell: str) -> str:
    value = number(cell, "," if "," in cell else ".")
    return cell if value is None else str(int(value))


def _place(place: Mapping[str, int], name: str, sheet: Sheet, at: int) -> int:
    good = name in place
    known = ", ".join(list(place)[:20])
    require(good, f"{sheet.name}, {sheet.where(at)}: '{name}' is no class that was there in training: {known}")
    return place[name]
