"""A secret of this machine's own, made once: 32 bytes that only its owner can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import UsageError, require
from ..language.files import read_bytes
from ..runs.checkpoint import replace_file

BYTES = 32


def secret_of(path: Path) -> bytes:
    """The secret in a file, which is made where there is none."""
    if not path.exists():

        def write(temporary: Path) -> None:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(os.urandom(BYTES))

        replace_file(path, write)
    try:
        found, mode = read_bytes(path, BYTES + 1), stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): see that it is there, and yours") from error
    require(len(found) == BYTES, f"{path} was changed: noise that was drawn by it cannot be drawn again; begin anew")
    require(not mode & 0o077, f"{path} can be read by others: chmod 600 {path}")
    return found
