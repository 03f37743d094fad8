"""Tables as files: CSV (comma, semicolon, tab or bar), and Parquet where pyarrow is installed.

Both become `Sheet`, columns of texts: what a text means (a number, a date, nothing) is decided in `columns`, so that
a file, a data frame and a row to be predicted go the same way. Files are foreign: bytes and columns are bounded
before anything is kept, and what is wrong is said with its line.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import UsageError, require
from ..language.files import opened, read_bytes
from .archive import reading
from .npz_file import printable

MOST_BYTES = 1 << 30  # of a file, or of what a Parquet file unpacks to
MOST_COLUMNS = 10_000
DELIMITERS = ",;\t|"
SUFFIXES = (".csv", ".tsv", ".parquet")


@dataclass(frozen=True, eq=False)
class Sheet:
    """A table of texts, column by column; what is missing is an empty text."""

    name: str
    columns: dict[str, list[str]]
    place: Sequence[int]  # the line of the file, or the row, of every row
    unit: str = "row"  # what `place` counts
    comma: bool = False  # whether numbers may have a decimal comma: cells are not cut at commas

    def __len__(self) -> int:
        return len(self.place)

    def column(self, name: str, what: str) -> list[str]:
        """The cells of a column that was asked for by name."""
        if name not in self.columns:
            there = ", ".join(list(self.columns)[:30]) + (" ..." if len(self.columns) > 30 else "")
            raise UsageError(f"{self.name} has no column '{name}' for {what}; it has {there}")
        return self.columns[name]

    def some(self, kept: Sequence[int]) -> Sheet:
        """Some of the rows."""
        columns = {name: [cells[i] for i in kept] for name, cells in self.columns.items()}
        return Sheet(self.name, columns, [self.place[i] for i in kept], self.unit, self.comma)

    def where(self, row: int) -> str:
        """How a message names a row."""
        return f"{self.unit} {self.place[row]}"


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """The rows of a CSV or Parquet file as dictionaries by column, as `rows_to_inputs` takes them."""
    cells = read_sheet(path)
    return [dict(zip(cells.columns, row, strict=True)) for row in zip(*cells.columns.values(), strict=True)]


def read_sheet(path: str | Path, *, limit: int = MOST_BYTES) -> Sheet:
    """The cells of a CSV or Parquet file; one that is larger than `limit` bytes is refused."""
    path = Path(path)
    with reading(path):
        require(path.exists(), f"there is no file '{path}'; check the path")
        require(not path.is_dir(), f"'{path}' is a folder, not a table")
        return _parquet(path, limit) if path.suffix.lower() == ".parquet" else _csv(path, limit)


def rows_of(frame: Any) -> list[dict[str, str]]:
    """The same of a pandas DataFrame, or anything with `columns` and `frame[column]`."""
    cells = sheet_of("the frame", frame.columns, frame.__getitem__)
    return [dict(zip(cells.columns, row, strict=True)) for row in zip(*cells.columns.values(), strict=True)]


def csv_text(rows: Iterable[Iterable[Any]], end: str = "\r\n") -> str:
    """Rows as CSV; what a spreadsheet would run (=, +, - or @ first, and no number) has a ' before it, as is customary.

    >>> csv_text([["=cmd|1", -5, "-5", "+a", "a=b"]], end="")
    "'=cmd|1,-5,-5,'+a,a=b"
    """
    text = io.StringIO()
    csv.writer(text, lineterminator=end).writerows([_harmless(cell) for cell in row] for row in rows)
    return text.getvalue()


def _harmless(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@")):
        return cell
    try:
        float(cell)
        return cell
    except ValueError:
        return f"'{cell}"


def sheet_of(name: str, columns: Iterable[Any], column: Any) -> Sheet:
    """Sheet from columns at hand: `column(key)` gives the values of one."""
    keys = list(columns)
    names = _checked(name, list(map(str, keys)))
    found = {head: [_text(value) for value in column(key)] for head, key in zip(names, keys, strict=True)}
    sizes = {len(cells) for cells in found.values()}
    require(len(sizes) == 1 and sizes != {0}, f"{name} has no rows, or columns of different lengths")
    return Sheet(name, found, range(sizes.pop()))


def sheet_from(rows: Sequence[Mapping[str, Any]], wanted: Iterable[str]) -> Sheet:
    """Some columns of rows that were given one by one."""
    for at, row in enumerate(rows):
        for column in wanted:
            require(column in row, f"row {at} has no column '{column}'; it has {', '.join(map(str, list(row)[:30]))}")
    return Sheet("rows", {column: [_text(row[column]) for row in rows] for column in wanted}, range(len(rows)))


def _text(value: Any) -> str:
    """A value as a file would have it."""
    if value is None:
        return ""
    if isinstance(value, date) and hasattr(value, "isoformat"):  # also pandas' timestamps; its NaT says "NaT"
        return str(value.isoformat())
    return str(value).strip()


def _checked(name: str, header: list[str]) -> list[str]:
    """The names of the columns: printable, not too many, none twice."""
    good = len(header) <= MOST_COLUMNS
    require(good, f"{name} has {len(header):,} columns, more than {MOST_COLUMNS:,}: it is not taken for a table")
    heads = [head.strip() or f"column {at}" for at, head in enumerate(printable(header), start=1)]
    first: dict[str, int] = {}
    for at, head in enumerate(heads, start=1):
        good = first.setdefault(head, at) == at
        require(good, f"{name}: columns {first[head]} and {at} are both called '{head}'; rename one of them")
    return heads


# --- CSV


def _csv(path: Path, limit: int) -> Sheet:
    name, size = path.name, path.stat().st_size
    require(size <= limit, f"{name} has {size:,} bytes, more than the limit of {limit:,}; take fewer rows or columns")
    raw = read_bytes(path, limit)
    for sign, what in (
        (b"PK\x03\x04", "a zip, perhaps of a spreadsheet"),
        (b"PAR1", "a Parquet file: call it .parquet"),
    ):
        require(not raw.startswith(sign), f"{name} is no CSV file but {what}; save it as CSV")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{name} is not in UTF-8 (line {line}); save it as 'CSV UTF-8' and try again") from error
    require("\0" not in text, f"{name} holds bytes of zero: it is no text, or not in UTF-8; save it as 'CSV UTF-8'")
    delimiter = _delimiter(text)
    lines = _lines(name, text, delimiter)
    _, first = next(lines, (0, []))
    require(bool(first), f"{name} is empty: a table begins with a line of column names")
    header = _checked(name, first)
    columns: list[list[str]] = [[] for _ in header]
    places, same = list[int](), dict[str, str]()
    for line, cells in lines:
        if len(cells) != len(header):
            raise UsageError(
                f"{name}, line {line}: {len(cells)} cells, but the first line names {len(header)} columns "
                f"(cut at {_named(delimiter)}); mend that line, a cell with {_named(delimiter)} goes between quotes"
            )
        places.append(line)
        for column, cell in zip(columns, cells, strict=True):
            column.append(same.setdefault(cell, cell) if len(cell) < 24 else cell)  # equal texts are kept once
    require(bool(places), f"{name} has column names and no rows")
    return Sheet(name, dict(zip(header, columns, strict=True)), places, "line", comma=delimiter != ",")


def _lines(name: str, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Every record and the line it begins in; empty lines are passed over."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        for cells in reader:
            if cells:
                yield line, [cell.strip() for cell in cells]
            line = reader.line_num + 1
    except csv.Error as error:
        raise UsageError(f"{name}, line {line}: {error}; look for a quotation mark that is not closed") from error


def _delimiter(text: str) -> str:
    """The one that cuts the line of names into most columns."""
    head = text[: 1 << 20].lstrip("\r\n")

    def pieces(delimiter: str) -> int:
        try:
            return max(map(len, islice(csv.reader(io.StringIO(head, newline=""), delimiter=delimiter), 1)), default=0)
        except csv.Error:
            return 0

    return max(DELIMITERS, key=pieces)


def _named(delimiter: str) -> str:
    return "a tab" if delimiter == "\t" else f"'{delimiter}'"


# --- Parquet


def _parquet(path: Path, limit: int) -> Sheet:
    try:
        from pyarrow import parquet, types
    except ImportError as error:
        raise UsageError(
            f"{path.name}: Parquet files need pyarrow: pip install 'polycentric[tables]', or save the table as CSV"
        ) from error
    with opened(path) as stream, parquet.ParquetFile(stream) as file:
        facts = file.metadata
        n_bytes = sum(facts.row_group(at).total_byte_size for at in range(facts.num_row_groups))
        good = n_bytes <= limit and facts.num_columns * facts.num_rows <= limit
        require(good, f"{path.name} unpacks to {n_bytes:,} bytes, more than the limit of {limit:,}; take fewer rows")
        names = _checked(path.name, file.schema_arrow.names)
        for name, field in zip(names, file.schema_arrow, strict=True):
            good = not types.is_nested(field.type) and not types.is_binary(field.type)
            require(good, f"{path.name}: column '{name}' holds {field.type}, not one value a row; leave it out")
        table = file.read()
    require(table.num_rows > 0, f"{path.name} has no rows")
    columns = {name: list(map(_text, table.column(at).to_pylist())) for at, name in enumerate(names)}
    return Sheet(path.name, columns, range(table.num_rows))
