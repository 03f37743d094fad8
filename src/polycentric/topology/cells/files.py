"""Small text files: what is read of them, and what is refused."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from pathlib import Path

from ...errors import UsageError, require

MOST_BYTES = 64 << 20  # of a file that is read


def _lines(path: str, text: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The words of a CSV file's first line that has any, and all such lines with their numbers."""
    reader = csv.reader(io.StringIO(text))
    try:
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise UsageError(f"'{path}', line {reader.line_num}: {error}") from error
    return [word.strip().lower() for word in rows[0][1]] if rows else [], rows


def _numbers(path: str, line: int, row: Iterable[str], wanted: int) -> list[float]:
    words = list(row)
    try:
        out = [float(word) for word in words]
    except ValueError:
        out = []
    if len(out) != wanted or not all(map(math.isfinite, out)):
        raise UsageError(f"'{path}', line {line}: {wanted} numbers are wanted, got '{','.join(words)}'"[:300])
    return out


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _read(path: str) -> str:
    try:
        raw = Path(path).read_bytes() if Path(path).stat().st_size <= MOST_BYTES else None
        require(raw is not None, f"'{path}' is larger than {MOST_BYTES >> 20} MiB; write pairs client,edge")
        return (raw or b"").decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"'{path}' cannot be read: {reason}") from error
