"""Files that are whole or not there at all: written under another name, synced to the disk, and renamed."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from safetensors import SafetensorError

from ..errors import UsageError


def replace_file(path: Path, write: Callable[[Path], object]) -> str:
    """Write a file under another name, sync it, give it its name; returns its digest."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            write(temporary)
            digest = digest_of(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        finally:
            temporary.unlink(missing_ok=True)
    return digest


def digest_of(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A full or read-only disk, in one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"cannot write {path}: {reason}; what was written before is whole, so make room and go on with "
            "`polycentric resume`"
        ) from error
