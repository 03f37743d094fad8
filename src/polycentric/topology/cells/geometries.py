"""Cells by name, and as they may be given in Python."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError, require, unknown
from .coverage import Geometry
from .map import CellMap
from .shapes import CellRegions, Overlap, RingCells
from .tables import CellTable, GivenCells

GEOMETRIES: dict[str, Any] = {
    "overlap": Overlap,
    "ring": RingCells,
    "regions": CellRegions,
    "table": CellTable,
    "map": CellMap,
}


def geometry_of(text: str) -> Geometry:
    """A geometry from a text.

    >>> geometry_of("overlap(u=0, v=30)")
    Overlap(u=0, v=30, w=0)
    """
    match = re.fullmatch(r"\s*([a-z]+)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
    if not match:
        raise UsageError(f"cells must be one of {', '.join(GEOMETRIES)}, like overlap(u=20, v=10), got '{text}'")
    name = match[1]
    if name not in GEOMETRIES:
        raise unknown("cells", name, GEOMETRIES)
    known = dict(inspect.signature(GEOMETRIES[name], eval_str=True).parameters)
    given: dict[str, Any] = {}
    for place, word in enumerate(w for w in (match[2] or "").split(",") if w.strip()):
        key, equals, value = word.partition("=")
        require(
            bool(equals) or place < len(known),
            f"{name} takes {', '.join(known)}, and '{word.strip()}' is one too many; regions are separated by blanks",
        )
        key, value = (key.strip(), value) if equals else (list(known)[place], word)
        if key not in known:
            raise unknown(f"setting of {name}", key, known)
        require(key not in given, f"{name} is given {key} twice")
        given[key] = _typed(f"{name}.{key}", value.strip().strip("'\""), known[key].annotation)
    missing = [key for key, p in known.items() if p.default is p.empty and key not in given]
    require(not missing, f"{name} needs {', '.join(missing)}: write {name}({', '.join(missing)}=...)")
    made: Geometry = GEOMETRIES[name](**given)
    return made


def _typed(key: str, text: str, wanted: Any) -> Any:
    kinds = getattr(wanted, "__args__", (wanted,))
    if bool in kinds:
        require(text.lower() in ("true", "false"), f"{key} must be true or false, got '{text}'")
        return text.lower() == "true"
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                raise UsageError(f"{key} must be a {'whole ' * (kind is int)}number, got '{text}'") from None
    return text


def geometry(cells: Any) -> Geometry:
    """Cells as they may be given in Python: a geometry, its text, or a table (edges, clients) of 0/1."""
    if isinstance(cells, Geometry):
        return cells
    if isinstance(cells, str):
        return geometry_of(cells)
    try:
        table = cells if isinstance(cells, Tensor) else torch.as_tensor(np.asarray(cells, dtype=float))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"cells must be a geometry such as Overlap(u=20, v=10), or a table of edges x clients, got {cells!r}"[:300]
        ) from error
    return GivenCells.of(table)
