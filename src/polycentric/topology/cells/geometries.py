"""Cells as they may be given in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError
from ...language import part_of
from .coverage import Geometry
from .tables import GivenCells


def geometry(cells: Any) -> Geometry:
    """Cells as they may be given in Python: a geometry, its text, or a table (edges, clients) of 0/1."""
    if isinstance(cells, Geometry):
        return cells
    if isinstance(cells, str):
        made: Geometry = part_of("cells", cells, Geometry)
        return made
    try:
        table = cells if isinstance(cells, Tensor) else torch.as_tensor(np.asarray(cells, dtype=float))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"cells must be a geometry such as Overlap(u=20, v=10), or a table of edges x clients, got {cells!r}"[:300]
        ) from error
    return GivenCells.of(table)
