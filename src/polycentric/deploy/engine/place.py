"""A private folder in which one of Flower's programs runs: its lock, a secret, and certificates of its own.

The certificates are for the connection between that program and us, on this machine, and are made anew every time: who
listens at a port here is the program that we started, or nobody talks to it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import ssl
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ...errors import UsageError
from ...language.files import named
from ...runs.lock import Lock
from ..keys import make_server
from ..private_files import SECRET, private_folder

if TYPE_CHECKING:
    from .flower import Address

LOOPBACK = "127.0.0.1"


class Place:
    """The folder; a context manager."""

    def __init__(self, folder: Path, encrypted: bool = True) -> None:
        self.folder, self.encrypted = folder.absolute(), encrypted
        self._inner, self.secret_file = self.folder / "inner", self.folder / "secret"
        self._secret = b""
        self._lock: Lock | None = None

    def __enter__(self) -> Place:
        with private_folder(self.folder):
            pass
        self._lock = Lock(self.folder)
        self._lock.take()
        shutil.rmtree(self._inner, ignore_errors=True)
        if self.encrypted:
            make_server(self._inner, [LOOPBACK], 825, only=True)
            (self._inner / "ca.key").unlink()  # it has signed what it was made for
        self._secret = secrets.token_bytes(32)
        self.secret_file.unlink(missing_ok=True)
        file = os.open(self.secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, SECRET)
        with named(self.secret_file), os.fdopen(file, "wb") as opened:
            os.fchmod(file, SECRET)
            opened.write(self._secret)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self.secret_file.unlink(missing_ok=True)
        shutil.rmtree(self._inner, ignore_errors=True)
        if self._lock is not None:
            self._lock.release()

    @property
    def authority(self) -> Path:
        """By which the program here is known."""
        return self._inner / "ca.crt"

    @property
    def options(self) -> list[str]:
        """What Flower's programs are told: who may claim tasks, nothing is installed, and no code runs in between."""
        shared = ["--isolation", "process", "--superexec-auth-secret-file", str(self.secret_file), "--host", LOOPBACK]
        files = {"ca": self.authority, "": self._inner / "server.crt", "key": self._inner / "server.key"}
        named = {"ca": "--ssl-ca-certfile", "": "--ssl-certfile", "key": "--ssl-keyfile"}
        if self.encrypted:
            for part, path in files.items():
                shared += [named[part], str(path)]
        return shared

    def address(self, port: int) -> Address:
        """Where to find the program, and how to speak to it."""
        from .flower import Address

        tls = ssl.create_default_context(cafile=str(self.authority)) if self.encrypted else None
        return Address(LOOPBACK, port, tls, self._secret)


def endpoint(text: str) -> tuple[str, int]:
    """HOST:PORT in two."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 1 << 16) or "/" in text or host.isspace():
        raise UsageError(f"a server is named HOST:PORT, such as hospital.example:8443, got '{text[:80]}'")
    return host.strip("[]"), int(port)
