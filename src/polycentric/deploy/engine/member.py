"""The node's side: answers every parcel that the server sends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path


class Member:
    """The node's side of a federation.

    Arguments:
        folder: private, for Flower's files.
        answer: a parcel in, the reply out; called in one thread, one after the other.
        server: host:port.
        ca: the authority's certificate, by which the server is known.
        key: the node's private key.
        insecure: no TLS and no key; for trying it out on one machine.
        seconds: the longest that an answer may take; then the server gets an empty reply.
        log: told what happens; nobody else is.
    """

    def __init__(
        self,
        folder: Path,
        answer: Callable[[Sequence[bytes]], list[bytes]],
        *,
        server: str,
        ca: Path | None,
        key: Path | None,
        insecure: bool = False,
        seconds: float = 3600,
        log: Callable[[str], None],
    ) -> None:
        raise NotImplementedError

    def run(self, stop: threading.Event) -> None:
        """Take part until `stop` is set."""
        raise NotImplementedError
