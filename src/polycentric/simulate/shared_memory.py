"""Tensors in memory that several processes see: written by one, read by another, and sent by none.

A segment has no name on any disk: whoever is to see it is handed its descriptor, and it is gone with the last process
that has it, however that one ends. Tensors begin where fresh ones would, at a line of memory: vector instructions
group sums by where numbers lie, and shared numbers must give the bits of one's own.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..stacks.stack import LINE, Stacks, apart

Parcel = dict[str, Stacks]
Form = dict[str, dict[str, list[Any]]]  # part -> name -> [dtype, shape, where it begins, numbers from row to row]
LEAST = 1 << 16  # bytes of a segment


class Segment:
    """A piece of shared memory, by a descriptor that is its own from now on."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.size = descriptor, os.fstat(descriptor).st_size
        self._map = mmap.mmap(descriptor, self.size)
        weakref.finalize(self, os.close, descriptor).atexit = False

    @staticmethod
    def of(size: int) -> Segment:
        """A new one of so many bytes at least."""
        size = max(LEAST, 1 << (size - 1).bit_length())
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("polycentric")
        else:
            descriptor, path = tempfile.mkstemp()
            os.unlink(path)
        os.ftruncate(descriptor, size)
        return Segment(descriptor)

    def write(self, parcel: Parcel) -> Form:
        """Copy tensors in, one behind another; where they are."""
        form: Form = {}
        whole, first = torch.frombuffer(self._map, dtype=torch.uint8), 0
        for part, stacks in parcel.items():
            form[part] = {}
            for name, rows in stacks.items():
                form[part][name] = [str(rows.dtype)[6:], list(rows.shape), first, apart(rows)]
                _seen(whole, *form[part][name]).copy_(rows)
                first += _room(rows)
        return form

    def read(self, form: Form, done: Callable[[], object] | None = None) -> Parcel:
        """The tensors there, not copied; `done` is called when the last of them is gone."""
        array = np.frombuffer(self._map, dtype=np.uint8)
        if done is not None:
            weakref.finalize(array, done).atexit = False
        return _all_seen(torch.from_numpy(array), form)

    def copy(self, form: Form) -> Parcel:
        """The tensors there, in memory of one's own that lies as the segment's does."""
        n = max((where[2] + _length(*where) for names in form.values() for where in names.values()), default=0)
        return _all_seen(torch.frombuffer(self._map, dtype=torch.uint8)[:n].clone(), form)


class Segments:
    """Segments of one process that others read: one that nobody reads any more is written again."""

    def __init__(self) -> None:
        self.known: dict[int, Segment] = {}
        self.free: set[int] = set()
        self._next = 0

    def take(self, size: int) -> tuple[int, Segment, bool]:
        """(number, segment, whether it is new) with room for so many bytes; free ones that have less are dropped."""
        found = next((k for k in sorted(self.free) if self.known[k].size >= size), None)
        if found is not None:
            self.free.remove(found)
            return found, self.known[found], False
        for k in self.free:
            del self.known[k]
        self.free.clear()
        self._next += 1
        self.known[self._next] = Segment.of(size)
        return self._next, self.known[self._next], True


def bytes_of(parcel: Parcel) -> int:
    """Room that a parcel takes, in whole lines of memory."""
    return sum(_room(rows) for stacks in parcel.values() for rows in stacks.values())


def _room(rows: Tensor) -> int:
    n = len(rows) * step * rows.element_size() if (step := apart(rows)) else rows.nbytes
    return -(-n // LINE) * LINE


def _all_seen(whole: Tensor, form: Form) -> Parcel:
    return {part: {n: _seen(whole, *where) for n, where in names.items()} for part, names in form.items()}


def _length(kind: str, shape: list[int], first: int, step: int) -> int:
    """Bytes of a tensor, with what lies between its rows."""
    dtype: torch.dtype = getattr(torch, kind)
    return (shape[0] * step if step else math.prod(shape)) * dtype.itemsize


def _seen(whole: Tensor, kind: str, shape: list[int], first: int, step: int) -> Tensor:
    dtype: torch.dtype = getattr(torch, kind)
    n = _length(kind, shape, first, step)
    if not n:
        return torch.empty(shape, dtype=dtype)
    flat = whole[first : first + n].view(dtype)
    return flat.view(shape[0], step)[:, : shape[1]] if step else flat.view(shape)
