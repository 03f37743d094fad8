"""Cells of your own: a table of edges and clients, from a tensor or a file; and text files as they are read."""

from __future__ import annotations

import csv
import hashlib
import io
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import LARGEST_FLOAT, UsageError, require
from ...language import part_of, register
from ...language.files import read_bytes
from .coverage import MOST_EDGES, MOST_LINKS, Coverage, Geometry

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
    if len(out) != wanted or not all(abs(number) <= LARGEST_FLOAT for number in out):
        raise UsageError(f"'{path}', line {line}: {wanted} numbers are wanted, got '{','.join(words)}'"[:300])
    return out


def _read(path: str) -> str:
    try:
        small = Path(path).stat().st_size <= MOST_BYTES
        require(small, f"'{path}' is larger than {MOST_BYTES >> 20} MiB; write pairs client,edge")
        return read_bytes(path, MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"'{path}' cannot be read: {reason}") from error


@dataclass(frozen=True, repr=False)
class GivenCells(Geometry):
    """A coverage that is at hand: a table (edges, clients) of 0/1, dense or sparse."""

    coverage: Coverage = field(compare=False)
    path: str | None = field(default=None, compare=False)  # the file it was read from
    digest: str = field(init=False)  # of the pairs: equal cells, equal digests

    def __post_init__(self) -> None:
        pairs = torch.stack([self.coverage.edge, self.coverage.client]).numpy().tobytes()
        sizes = str((self.n_edges, self.default_n_clients)).encode()
        object.__setattr__(self, "digest", hashlib.sha256(pairs + sizes).hexdigest()[:12])

    @staticmethod
    def of(table: Tensor) -> GivenCells:
        """From a tensor (edges, clients); a stored zero covers nobody."""
        require(table.dim() == 2, f"cells are a table of edges x clients, got a tensor of shape {tuple(table.shape)}")
        table = (table if table.is_sparse else table.to_sparse()).coalesce()
        one = table.values() == 1
        require(bool((one | (table.values() == 0)).all()), "cells are a table of edges x clients that holds 0 and 1")
        edge, client = table.indices()[:, one].cpu()
        return GivenCells(Coverage.of(edge, client, int(table.shape[0]), int(table.shape[1])))

    @property
    def files(self) -> tuple[str, ...]:
        """What it was read from."""
        return (self.path,) if self.path else ()

    @property
    def n_edges(self) -> int:
        """Rows of the table."""
        return self.coverage.n_edges

    @property
    def default_n_clients(self) -> int:
        """Columns of the table."""
        return self.coverage.n_clients

    def cover(self, n_clients: int, seed: int, round: int) -> Coverage:
        """The table, for the clients it was made for."""
        require(
            n_clients == self.default_n_clients,
            f"the cells cover {self.default_n_clients} clients, but the federation has {n_clients}: take --clients "
            f"{self.default_n_clients}, or cells for any number of clients, such as overlap(u=20, v=10)",
        )
        return self.coverage

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n_edges} edges, {self.default_n_clients} clients, {self.digest})"


def CellTable(path: str) -> GivenCells:
    """Cells from a file, edges and clients counted from 0.

    CSV: one line a client, one column an edge, 0 or 1, with or without a line of headings; or two columns headed
    `client,edge`, one line for each pair, which suits large maps. TOML: `edges = 3` and `clients = [[0], [0, 2], ...]`,
    the edges of every client.
    """
    text = _read(path)
    edge, client, n_edges, n_clients = _toml_pairs(path, text) if path.endswith(".toml") else _csv_pairs(path, text)
    require(n_clients > 0, f"'{path}' has no clients")
    require(1 <= n_edges <= MOST_EDGES, f"'{path}' has {n_edges:,} edges; a table has 1 to {MOST_EDGES:,}")
    return GivenCells(Coverage.of(torch.tensor(edge), torch.tensor(client), n_edges, n_clients), path)


def _toml_pairs(path: str, text: str) -> tuple[list[int], list[int], int, int]:
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"'{path}' cannot be read as TOML: {' '.join(str(error).split())}") from error
    rows, n_edges = found.get("clients"), found.get("edges")
    good = isinstance(rows, list) and isinstance(n_edges, int) and not isinstance(n_edges, bool)
    require(good, f"'{path}' must say `edges = 3` and `clients = [[0], [0, 2], ...]`, the edges of every client")
    assert isinstance(rows, list) and isinstance(n_edges, int)
    edge, client = [], []
    for k, row in enumerate(rows):
        fine = isinstance(row, list) and all(type(e) is int and 0 <= e < n_edges for e in row)
        require(fine, f"'{path}': the edges of client {k} must be numbers from 0 to {n_edges - 1}, got {row!r}"[:300])
        edge += row
        client += [k] * len(row)
    return edge, client, n_edges, len(rows)


def _csv_pairs(path: str, text: str) -> tuple[list[int], list[int], int, int]:
    head, rows = _lines(path, text)
    if sorted(head) == ["client", "edge"]:
        edge, client = [], []
        for line, row in rows[1:]:
            k, e = _numbers(path, line, row, 2)[:: 1 if head[0] == "client" else -1]
            good = k >= 0 and e >= 0 and k % 1 == 0 and e % 1 == 0 and e < MOST_EDGES and k < MOST_LINKS
            got = f"got '{','.join(row)}'"
            require(good, f"'{path}', line {line}: clients and edges are whole numbers from 0, {got}"[:300])
            client.append(int(k))
            edge.append(int(e))
        return edge, client, 1 + max(edge, default=-1), 1 + max(client, default=-1)
    try:
        list(map(float, head))
    except ValueError:  # headings
        rows = rows[1:]
    edge, client = [], []
    width = len(rows[0][1]) if rows else 0
    for k, (line, row) in enumerate(rows):
        for e, value in enumerate(_numbers(path, line, row, width)):
            require(value in (0, 1), f"'{path}', client {k}, edge {e}: a table of cells holds 0 and 1, got {value:g}")
            if value:
                edge.append(e)
                client.append(k)
    return edge, client, width, len(rows)


register(Geometry, "table", CellTable)


def geometry(cells: Any) -> Geometry:
    """Cells as they may be given in Python: a geometry, its text, or a table (edges, clients) of 0/1."""
    if isinstance(cells, str):
        cells = part_of("cells", cells, Geometry)
    if isinstance(cells, Geometry):
        return cells
    try:
        table = cells if isinstance(cells, Tensor) else torch.as_tensor(np.asarray(cells, dtype=float))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"cells must be a geometry such as Overlap(u=20, v=10), or a table of edges x clients, got {cells!r}"[:300]
        ) from error
    return GivenCells.of(table)
