"""Programs that run beside us, each with a log of its own, and never longer than we do.

A child's standard input is a pipe that we hold: when we end, however, the pipe closes and the child ends itself. Each
has a group of processes of its own, so that Ctrl-C reaches us alone and we end them in order.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from ...errors import UsageError

HERE = Path(__file__).parent
POLITELY = 3.0  # seconds that a child has to end by itself
LARGEST_LOG = 8 << 20  # bytes; what is older goes to NAME.log.old, what is older than that is gone


class Child:
    """A Python program of this folder: it runs from when it is made until `end`.

    Arguments:
        name: of its log.
        program: the file's name, here.
        arguments: of the program; no secrets, since everybody on a machine can see them.
        folder: for its log; where it runs, and Flower's home.
    """

    def __init__(self, name: str, program: str, arguments: Sequence[str], folder: Path) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        command = [sys.executable, "-P", str(HERE / program), *arguments]
        with contextlib.suppress(FileNotFoundError):
            os.replace(self.log, folder / f"{name}.log.old")
        output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=surroundings(folder),
                start_new_session=True,
                bufsize=0,
            )
        finally:
            os.close(output)
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)  # one that does not listen must not hold us up
        self._telling = threading.Lock()

    @property
    def pid(self) -> int:
        """The number of its process, which is that of its group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        self._trim()
        return self._process.poll() is None

    def tell(self, line: str) -> bool:
        """A line on its standard input; False: it is gone, or does not listen."""
        data = line.encode() + b"\n"
        with self._telling, contextlib.suppress(OSError, ValueError):
            return self._process.stdin is not None and self._process.stdin.write(data) == len(data)
        return False

    def said(self, most: int = 1 << 16) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError), open(self.log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read(most).decode("utf-8", "replace")
        return ""

    @property
    def written(self) -> int:
        """How long its log is."""
        with contextlib.suppress(OSError):
            return self.log.stat().st_size
        return -1

    def end(self) -> None:
        """End it: politely, then not."""
        for number, patience in ((signal.SIGTERM, POLITELY), (signal.SIGKILL, None)):
            if self._process.poll() is None:  # not reaped: the number is still its own
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(patience)
        if self._process.stdin is not None:
            with self._telling, contextlib.suppress(OSError):
                self._process.stdin.close()

    def _trim(self) -> None:
        """Begin a long log anew: its writer appends, so that it goes on at the beginning of one that was emptied."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > LARGEST_LOG:
                old = self.log.with_name(f"{self.log.name}.old")
                shutil.copyfile(self.log, old)
                os.truncate(self.log, 0)


def surroundings(folder: Path) -> dict[str, str]:
    """The environment of a child: Flower's own settings are ours to make, and it calls nobody."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
    ours = {"FLWR_HOME": str(folder / "home"), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return kept | ours | {"PYTHONUNBUFFERED": "1", "OTEL_SDK_DISABLED": "true"}


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens to, at this moment."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as found:
        found.bind((host, 0))
        return int(found.getsockname()[1])


def check_free(host: str, port: int) -> None:
    """Refuse a port that cannot be listened to, before anything is started."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        raise UsageError(
            f"cannot listen at {host}:{port} ({error.strerror or error}): choose another --port, or --host"
        ) from None
