"""Zip files of arrays from strangers, read without trusting them.

Sizes are checked before anything is unpacked, Python objects (pickles) are never read, and whatever is wrong
becomes one line that names the file.
"""

from __future__ import annotations

import contextlib
import math
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..errors import UsageError, require
from ..language.files import opened, why

AnyArray = NDArray[Any]
Arrays = dict[str, AnyArray]

LIMIT = 16 << 30  # bytes that a file may unpack to


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a foreign file makes a parser raise into one line that names the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except UsageError:
        raise
    except FileNotFoundError as error:
        raise UsageError(f"there is no file '{path}'; check the path") from error
    except Exception as error:  # zipfile, zlib, json and numpy raise a dozen kinds on damaged bytes
        reason = why(error).splitlines()[0][:120]
        raise UsageError(f"{path.name} cannot be read ({reason}); it may be damaged: get it again") from error


def unzipped(path: Path, wanted: Sequence[str], limit: int = LIMIT) -> Arrays:
    """Those of the wanted arrays that an .npz file has."""
    with _opened(path) as archive:
        members = _members(archive, path, wanted, limit)
        return {key: _array(archive, info, path) for key, info in members.items()}


def names_in(path: Path) -> list[str]:
    """The names of all arrays of an .npz file."""
    with _opened(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def shapes(path: Path, wanted: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of the wanted arrays, without reading them."""
    found = {}
    with _opened(path) as archive:
        for key, info in _members(archive, path, wanted, LIMIT).items():
            with archive.open(info) as stream:
                found[key] = _header(stream, path)[0]
    return found


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    require(not path.is_dir(), f"{path.name} is a folder, not an .npz file")
    with opened(path) as stream:
        require(stream.read(2) == b"PK", f"{path.name} is not an .npz file (a zip of arrays); get it again")
        with zipfile.ZipFile(stream) as archive:
            yield archive


def _header(stream: IO[bytes], path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """(shape, whether in Fortran's order, type) of an array in the archive."""
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    version = npy.read_magic(stream)
    require(version in readers, f"{path.name}: an array is in .npy version {version}, not 1.0 or 2.0")
    shape, fortran, dtype = readers[version](stream)
    good = not dtype.hasobject
    require(good, f"{path.name}: an array holds Python objects (a pickle), which are never read; save plain arrays")
    require(dtype.kind in "biufU", f"{path.name}: an array is {dtype}; save plain numbers or strings")
    require(all(side >= 0 for side in shape), f"{path.name}: an array has the shape {shape}")
    return shape, fortran, dtype


def _members(archive: zipfile.ZipFile, path: Path, wanted: Sequence[str], limit: int) -> dict[str, zipfile.ZipInfo]:
    """The wanted arrays that are there, after a look at what they would unpack to."""
    members = {i.filename.removesuffix(".npy"): i for i in archive.infolist() if i.filename.endswith(".npy")}
    known = {key: members[key] for key in wanted if key in members}
    total = sum(info.file_size for info in known.values())
    require(total <= limit, f"{path.name} unpacks to {total:,} bytes, more than the limit of {limit:,}; pass limit=")
    for key, info in known.items():
        good = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        require(good, f"{path.name}: array {key} is packed in an unusual way; save it with numpy.savez_compressed")
        # Deflate cannot do better than 1 to 1,032; half of that on a large array is no real data.
        require(
            info.file_size <= 64 << 20 or info.file_size <= 500 * info.compress_size,
            f"{path.name}: array {key} unpacks from {info.compress_size:,} to {info.file_size:,} bytes, "
            "which no real data do; the file is refused",
        )
    good = sum(info.compress_size for info in known.values()) <= path.stat().st_size
    require(good, f"{path.name} declares more bytes than it has; get it again")
    return known


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> AnyArray:
    with archive.open(info) as stream:
        shape, fortran, dtype = _header(stream, path)
        n_bytes = math.prod(shape) * dtype.itemsize
        here = info.file_size - stream.tell()
        require(
            here == n_bytes, f"{path.name}: {info.filename} should have {n_bytes:,} bytes, not {here:,}; get it again"
        )
        flat = np.empty(n_bytes, np.uint8)
        at = 0
        while part := stream.read(1 << 20):
            flat[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
        require(at == n_bytes, f"{path.name}: {info.filename} is cut short; get it again")
    array = flat.view(dtype).reshape(shape, order="F" if fortran else "C")
    return array.astype(dtype.newbyteorder("="), copy=False)
