"""Distances between models, from inner products summed over pieces of the width."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

COLUMNS = 1 << 13  # numbers of a row widened to float64 at once: for some hundred rows that stays in the cache
Spans = tuple[tuple[int, int], ...] | None  # (first, last) columns of a row; None: all


def inner_products(rows: Tensor, columns: Spans = None, origin: Tensor | None = None) -> Tensor:
    """X X^T of rows less an origin (width,), by default their mean; float64 on the host, over pieces of the width."""
    out = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for piece in pieces(rows.shape[1], columns):
        part = rows[:, piece].to(torch.float64, copy=True)
        part -= part.mean(0) if origin is None else origin[piece].double()
        out += part @ part.T
    return out.cpu()


def squared_distances(rows: Tensor, centers: Tensor, columns: Spans = None) -> Tensor:
    """Squared distances (rows, centers), without ever forming rows x centers x width.

    |a - b|^2 = |a|^2 - 2 a.b + |b|^2 cancels badly when both are far from the origin and near each other, so
    everything is moved to the middle of the centers first; sums run in float64 over pieces of the width.
    """
    out = torch.zeros(len(rows), len(centers), dtype=torch.float64, device=rows.device)
    for piece in pieces(rows.shape[1], columns):
        b = centers[:, piece].double()
        middle = b.mean(0)
        a, b = rows[:, piece].to(torch.float64, copy=True).sub_(middle), b - middle
        out += torch.einsum("ij,ij->i", a, a)[:, None] - 2 * a @ b.T + b.square().sum(1)
    return out.clamp_(min=0).nan_to_num_(nan=math.inf, posinf=math.inf)  # what overflows is far away


def pieces(width: int, columns: Spans = None) -> Iterator[slice]:
    """All columns of a row, or some spans of them, at most COLUMNS at once."""
    for first, last in ((0, width),) if columns is None else columns:
        for begin in range(first, last, COLUMNS):
            yield slice(begin, min(begin + COLUMNS, last))
