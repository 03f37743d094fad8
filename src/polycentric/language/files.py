"""Files that are read: regular ones only, never more than a limit, and JSON that says one thing only.

A device, a pipe, a socket or a folder under a file's name is refused before anything is read of it: `/dev/zero` would
never end, and a pipe would wait for a writer. Every file that this package reads is opened here.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

KINDS = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket", stat.S_ISCHR: "a device"}
TEXT = 64 << 20  # bytes of a text file, unless somebody knows better


_CLOSED: ContextVar[bool] = ContextVar("closed", default=False)


@contextmanager
def no_files() -> Iterator[None]:
    """Refuse to open files while words of somebody else are followed: they could name any."""
    before = _CLOSED.set(True)
    try:
        yield
    finally:
        _CLOSED.reset(before)


def opened(path: str | Path, limit: int | None = None) -> io.BufferedReader:
    """A regular file, open for reading; an OSError where it is none, or has more bytes than `limit`."""
    if _CLOSED.get():
        raise PermissionError(errno.EPERM, "words of somebody else name it", str(path))
    _refuse(os.stat(path).st_mode, path)  # before it is opened: opening a device may do something
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # a pipe made since does not wait
    file = os.fdopen(os.open(path, flags), "rb")
    try:
        found = os.fstat(file.fileno())
        _refuse(found.st_mode, path)
        if limit is not None and found.st_size > limit:
            raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, more than {limit:,}", str(path))
    except BaseException:
        file.close()
        raise
    return file


def append(path: str | Path, text: str) -> None:
    """Text at the end of a regular file, which is made where there is none; no link is followed, no pipe waited for."""
    careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | careful
    with named(path), os.fdopen(os.open(path, flags, 0o600), "ab") as file:
        _refuse(os.fstat(file.fileno()).st_mode, path)
        file.write(text.encode())


@contextmanager
def named(path: str | Path) -> Iterator[None]:
    """Have an error say which file it is about: one of writing, or of closing, knows no name by itself."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def _refuse(mode: int, path: str | Path) -> None:
    if not stat.S_ISREG(mode):
        what = next((name for asks, name in KINDS.items() if asks(mode)), "no file")
        raise OSError(errno.EINVAL, f"it is {what}, not a regular file", str(path))


def read_bytes(path: str | Path, limit: int = TEXT) -> bytes:
    """All of a regular file; one that grows meanwhile is cut at the limit."""
    with opened(path, limit) as file:
        return file.read(limit)


def read_text(path: str | Path, limit: int = TEXT) -> str:
    """The text of a regular file in UTF-8; a ValueError where it is none. Line ends are as they stand."""
    return read_bytes(path, limit).decode("utf-8")


def packaged(package: str, *names: str) -> bytes:
    """A file that was installed with a package."""
    return resources.files(package).joinpath(*names).read_bytes()


def parsed(text: str | bytes) -> Any:
    """JSON, in which no name stands twice in an object and every number is one; a ValueError where it is not so."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def sha256_of(path: str | Path, size: int | None = None) -> str:
    """The sha256 of a regular file; empty where it has not the `size` in bytes that it should have."""
    with opened(path) as file:
        if size not in (None, os.fstat(file.fileno()).st_size):
            return ""
        return hashlib.file_digest(file, "sha256").hexdigest()


def why(error: BaseException) -> str:
    """What is wrong with a file, without its name and number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands there twice")
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")
