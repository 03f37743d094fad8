"""The server's side: sends parcels, lists of bytes, to nodes and brings their replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType


@dataclass(frozen=True)
class Peer:
    """A node, as the server sees it."""

    id: str  # stable: the fingerprint of its public key; Flower's number of it where nodes have no keys
    name: str  # of its file NAME.pub; empty where nodes have no keys
    online: bool


class Link:
    """The server's side of a federation; a context manager.

    Arguments:
        folder: private, for Flower's files.
        host, port: where nodes connect to.
        keys: the server's folder of keys.
        nodes: a folder with NAME.pub of every node that may join; looked at again while it runs.
        insecure: no TLS and no keys of nodes; for trying it out on one machine.
        log: told what happens.
    """

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int,
        keys: Path | None,
        nodes: Path | None,
        insecure: bool = False,
        log: Callable[[str], None],
    ) -> None:
        raise NotImplementedError

    def __enter__(self) -> Link:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def peers(self) -> list[Peer]:
        """Every node that may join, and whether it is there."""
        raise NotImplementedError

    def send(self, parcels: Mapping[str, Sequence[bytes]], seconds: float) -> None:
        """To every peer, by its id, its parcel; what was not fetched after so many seconds is thrown away."""
        raise NotImplementedError

    def fetch(self) -> list[tuple[str, list[bytes]]]:
        """Replies since the last call, with the id of the peer that really sent each."""
        raise NotImplementedError

    def close(self) -> None:
        """End all that was started."""
        raise NotImplementedError
