"""What a page is made of, as JSON: numbers, charts, tables, switches, and panels that hold them.

`page.js` draws every kind of part, and knows nothing of runs; a panel is a function that gives parts, or nothing.

    chart     series over an axis: line (with a band), points, bars, area        heat      a matrix as colours
    table     headings and lines, to be copied                                   picture   a topology
    flow      who went where, column by column                                   image     a picture, inline
    photo     a photograph, with words below
    facts     names and values     code      text to be copied     words    sentences
    switch    several versions of a part, chosen by buttons, lists or a slider
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ...runs.metrics import is_share
from ..tables import TextTable, as_csv, latex, markdown

Part = dict[str, Any]
Mode = Literal["line", "points", "bars", "area"]
DIGITS = 5  # of a number in a page


def number(value: Any) -> float | int | None:
    """A number as JSON has it, in so many digits as can be seen; what is not finite is nothing.

    >>> number(0.123456789), number(float("nan")), number(12)
    (0.12346, None, 12)
    """
    if value is None or isinstance(value, int):
        return value
    found = float(value)
    if not math.isfinite(found):
        return None
    short = float(f"{found:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def numbers(values: Iterable[Any]) -> list[float | int | None]:
    """The same for several."""
    return [number(value) for value in (values.tolist() if isinstance(values, np.ndarray) else values)]


def thinned(n: int, most: int) -> list[int]:
    """At most so many of n places, evenly, both ends among them.

    >>> thinned(5, 9), thinned(100, 4)
    ([0, 1, 2, 3, 4], [0, 33, 66, 99])
    """
    return list(range(n)) if n <= most else np.linspace(0, n - 1, most).round().astype(int).tolist()


def axis(title: str, metric: str = "", **more: Any) -> Part:
    """An axis; of a metric, in percent where it is a share."""
    return {"title": title, "share": is_share(metric), "whole": title.startswith("rounds"), **more}


def series(
    name: str, number_: int | None, x: Iterable[Any], y: Iterable[Any], mode: Mode = "line", **more: Any
) -> Part:
    """A line, points, bars or an area; `number_` chooses its colour, None is grey. More: low, high, text, dash."""
    found = {"name": name, "n": number_, "x": list(x), "y": numbers(y), "mode": mode}
    return found | {key: numbers(v) if key in ("low", "high") else v for key, v in more.items() if v is not None}


def chart(x: Part, y: Part, every: Sequence[Part], **more: Any) -> Part:
    """Series over an axis. More: stack, diagonal, equal, shade (from, to, words), height."""
    return {"kind": "chart", "x": x, "y": y, "series": list(every), **more}


def heat(z: Any, **more: Any) -> Part:
    """A matrix as colours. More: rows and columns (names), title, share, between, cuts (where parts end), square."""
    return {"kind": "heat", "z": [numbers(row) for row in z], **more}


def switch(options: Mapping[str, Sequence[str]], parts: Mapping[str, Part], **shared: Any) -> Part:
    """One of several parts; keys are the numbers chosen of every option, "0.2". `shared`: what all parts have.

    The option called `slider` is a slider.
    """
    slider = shared.pop("slider", None)
    named = [{"name": name, "values": list(values), "slider": name == slider} for name, values in options.items()]
    return {"kind": "switch", "options": named, "shared": shared, "parts": dict(parts)}


def by_run(found: Mapping[str, Part]) -> Part | None:
    """A part for each label, chosen by its name."""
    return switch({"run": list(found)}, {str(k): part for k, part in enumerate(found.values())}) if found else None


def table(found: TextTable, rows: Sequence[Mapping[str, Any]] | None = None) -> Part:
    """A table, with its copies; `rows`: what its CSV has, where that is more than is shown."""
    plain = rows or [dict(zip(found.heads, line, strict=True)) for line in found.lines]
    best = [[k, found.heads.index(head)] for k, head in sorted(found.best) if head in found.heads]
    said = {"title": found.title, "caption": found.caption, "heads": found.heads, "lines": found.lines}
    copies = {"CSV": as_csv(plain), "Markdown": markdown(found), "LaTeX": latex(found)}
    return {"kind": "table", **said, "left": found.left, "best": best, "copies": copies}


def facts(pairs: Iterable[tuple[str, Any]]) -> Part:
    """Names and values."""
    return {"kind": "facts", "pairs": [[name, str(value)] for name, value in pairs]}


def words(*lines: str) -> Part:
    """Sentences."""
    return {"kind": "words", "lines": list(lines)}


def panel(key: str, title: str, said: str, *parts: Part | None) -> Part | None:
    """A part of the page with a title and a sentence that says how to read it; None where it would be empty."""
    there = [part for part in parts if part]
    return {"key": key, "title": title, "words": said, "parts": there} if there else None
