"""Stacks in files, for what clients keep when it is larger than memory.

    put        a stack becomes a memory-mapped file           copy   another file, in which rows are then replaced
    link       a file under a second name: a checkpoint       adopt  a checkpoint's file as a stack again

A file is written while one exchange is mixed, and never again: the next exchange works on a copy. So the state before a
round is still there when the round fails, and a checkpoint is a link to the files of its round, which nothing that
happens later can touch. On file systems that share blocks between copies (XFS, Btrfs) a copy costs the rows that are
replaced; on others it is a copy. Which pages are in memory is up to the system.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError

PIECE = 1 << 26  # bytes of a stack that are copied at once
TYPES = {str(kind)[6:]: kind for kind in (torch.float32, torch.float64, torch.int32, torch.int64, torch.bool)}


class OnDisk(Tensor):
    """A stack in a memory-mapped file: a tensor in every way, but that its `clone` is another file."""

    # What is computed from it is an ordinary tensor.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    path: Path
    shelf: Shelf | None

    def clone(self, **how: Any) -> Tensor:  # type: ignore[override]
        """A stack of its own, in a file of its own."""
        return self.as_subclass(Tensor).clone(**how) if self.shelf is None else self.shelf.copy(self)


class Shelf:
    """A folder of stacks, which is emptied first; None: one that vanishes with the process."""

    def __init__(self, folder: Path | None = None) -> None:
        self._count = itertools.count()
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="polycentric-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.folder = folder
        with said(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob("*.bin"):  # by a run that was killed
                left.unlink()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A stack of zeros in a new file."""
        if 0 in shape:
            return torch.zeros(shape, dtype=dtype)
        path = self._new()
        size = torch.Size(shape).numel() * dtype.itemsize
        with said(path), path.open("wb") as file:
            if hasattr(os, "posix_fallocate"):  # a full disk is noticed now, not when a page is written back
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
        return self._mapped(path, shape, dtype)

    def put(self, rows: Tensor) -> Tensor:
        """The same stack in a file; as it is, where it is in one."""
        if isinstance(rows, OnDisk):
            return rows if rows.shelf is self else self.adopt(rows)
        out = self.empty(tuple(rows.shape), rows.dtype)
        step = max(1, PIECE // max(1, rows[:1].numel() * rows.element_size()))
        for first in range(0, len(rows), step):  # a stack of equal rows may be one row in memory
            out[first : first + step] = rows[first : first + step].to("cpu")
        return out

    def copy(self, rows: OnDisk) -> Tensor:
        """The same stack in another file."""
        return self._again(rows, lambda path: _copy(rows.path, path))

    def adopt(self, rows: OnDisk) -> Tensor:
        """A stack of another folder's, under a name of ours: it stays when the other folder lets it go."""
        return self._again(rows, lambda path: link(rows, path))

    def _again(self, rows: OnDisk, write: Callable[[Path], None]) -> Tensor:
        path = self._new()
        with said(path):
            write(path)
        return self._mapped(path, tuple(rows.shape), rows.dtype)

    def _new(self) -> Path:
        return self.folder / f"{next(self._count):06d}.bin"

    def _mapped(self, path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> OnDisk:
        out = _map(path, shape, dtype, shared=True)
        out.shelf = self
        weakref.finalize(out, _unlink, path)  # who still looks at its pages may go on
        return out


def _unlink(path: Path) -> None:
    """Windows keeps a file that is still mapped; the next run in its folder takes it away."""
    with contextlib.suppress(PermissionError):
        path.unlink(missing_ok=True)


def link(rows: OnDisk, path: Path) -> None:
    """Give a stack's file a second name; a copy, where the file system has no links."""
    try:
        os.link(rows.path, path)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
            raise
        _copy(rows.path, path)


def opened(path: Path, shape: tuple[int, ...], dtype: str) -> OnDisk:
    """A stack in a file that is not ours to change."""
    if dtype not in TYPES or any(n < 1 for n in shape):
        raise ValueError(f"it is not known what {path.name} holds")
    size = torch.Size(shape).numel() * TYPES[dtype].itemsize
    if path.stat().st_size != size:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, not {size}")
    return _map(path, shape, TYPES[dtype], shared=False)


def _map(path: Path, shape: tuple[int, ...], dtype: torch.dtype, shared: bool) -> OnDisk:
    flat = torch.from_file(str(path), shared=shared, size=torch.Size(shape).numel(), dtype=dtype)
    out = flat.view(shape).as_subclass(OnDisk)
    out.path, out.shelf = path, None
    return out


def _copy(source: Path, target: Path) -> None:
    """In the kernel, which may let both share their blocks."""
    if not hasattr(os, "copy_file_range"):
        shutil.copyfile(source, target)
        return
    with source.open("rb") as a, target.open("wb") as b:
        left = os.fstat(a.fileno()).st_size
        try:
            while left and (done := os.copy_file_range(a.fileno(), b.fileno(), left)):
                left -= done
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                raise
    if left:
        shutil.copyfile(source, target)


@contextlib.contextmanager
def said(path: Path) -> Iterator[None]:
    """A full or closed disk, in one line."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write client state to {path}: {error.strerror or error}; free some space and continue with "
            "`polycentric resume`, or start a run without --state disk"
        ) from error
