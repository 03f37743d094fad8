"""The two programs of a server: Flower's superlink, which keeps messages, and the door that nodes connect to."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UsageError
from .children import Child, free_port
from .door import digest
from .place import Place

if TYPE_CHECKING:
    from .flower import Address
    from .office import Registered

PATIENCE = 60.0  # seconds for a program to start
HOLD = 15.0  # seconds that a node's question for messages may wait at the door; it gives up after 30


class Machinery:
    """Starts the two, once or again, and ends them.

    Arguments:
        place: their folder.
        host, port: of the door.
        keys: the server's folder of keys; None: no TLS, and everybody may pass.
        ending: set when nothing is to be started any more.
        log: told what happens.
    """

    def __init__(
        self,
        place: Place,
        host: str,
        port: int,
        keys: Path | None,
        ending: threading.Event,
        log: Callable[[str], None],
    ) -> None:
        self._place, self.host, self.port, self._keys, self._ending, self._log = place, host, port, keys, ending, log
        self._bell = place.folder / "bell"
        self.inner = 0
        self.superlink: Child | None = None
        self.door: Child | None = None

    def start(self) -> Address:
        """Start Flower, and wait until it answers: at another port if it must, and at last with an empty database."""
        database = self._place.folder / "state.db"
        for left in (2, 1, 0):
            self.inner = self.inner or free_port()
            options = ["superlink", *self._place.options, "--port", str(self.inner), "--database", str(database)]
            options += ["--disable-runtime-dependency-installation"]
            options += ["--insecure"] if self._keys is None else ["--enable-supernode-auth"]
            self.superlink = Child("superlink", "starter.py", options, self._place.folder)
            address = self._place.address(self.inner)
            end = time.monotonic() + PATIENCE
            while self.superlink.alive and time.monotonic() < end and not self._ending.wait(0.05):
                if address.healthy():
                    return address
            self.superlink.end()
            self.inner = 0
            if self._ending.is_set():
                break
            if left == 1:
                self._log("Flower does not start: trying with an empty database, the other is kept as old-state.db")
                for path in self._place.folder.glob("state.db*"):
                    path.replace(path.with_name(f"old-{path.name}"))
        raise UsageError(f"Flower does not start: see {self._place.folder / 'superlink.log'}")

    def open(self, only: str) -> None:
        """Open the door for some, by the digests of their headers."""
        settings: dict[str, Any] = {"host": self.host, "port": self.port, "inner": self.inner, "hold": HOLD}
        settings["bell"] = str(self._bell)
        if self._keys is not None:
            keys = self._keys.absolute()
            settings |= {"certificate": str(keys / "server.crt"), "key": str(keys / "server.key")}
            settings |= {"authority": str(self._place.authority), "only": only}
        self.door = Child("door", "door.py", [json.dumps(settings)], self._place.folder)
        end = time.monotonic() + PATIENCE
        while " open" not in (said := self.door.said()):
            if not self.door.alive or time.monotonic() > end:
                self.door.end()
                raise UsageError(f"cannot listen at {self.host}:{self.port}: {' '.join(said.split())[-200:]}")
            time.sleep(0.02)

    def wake(self, node: Registered) -> None:
        """Tell the door that something was sent to a node."""
        if self.door is not None:
            self.door.tell(f"wake {digest(node.header.encode())}")

    @property
    def rung(self) -> int:
        """When a node last brought something, as the door says."""
        with contextlib.suppress(OSError):
            return self._bell.stat().st_mtime_ns
        return 0

    def end(self) -> None:
        """End both."""
        for child in (self.door, self.superlink):
            if child is not None:
                child.end()
