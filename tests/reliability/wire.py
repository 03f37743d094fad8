"""Somebody on the way between nodes and a server: a port for each node, behind which connections can be disturbed.

    python wire.py BEHIND PORT PORT ...      lines of JSON on standard input; it ends when that closes

    {"kind": KIND, "at": N, "who": [0, 2], "seconds": S, ...}    once N more bytes have passed, S seconds long, at these
                                                                 ports; the count begins anew
    {}                                                           tell what has happened since then, and disturb no more

KIND is one of

    reset, close    connections end at once, by RST or by FIN, and so do new ones
    stall           nothing is passed on (`ways`: up, down or both), while both ends stay open; then all that was held
    slow            so many bytes a second (`rate`) of each connection and way, each piece later by `latency` seconds

Standard library only. What passes is TLS, which nobody here can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any

PIECE, MOST = 1 << 14, 200  # bytes that are passed on at a time; connections
AT_ONCE = struct.pack("ii", 1, 0)  # a connection that ends so ends by RST
Pair = tuple[int, asyncio.StreamWriter, asyncio.StreamWriter]  # port, to the node, to the server


class Wire:
    """Passes everything on, but for a while."""

    def __init__(self, behind: int, ports: Sequence[int]) -> None:
        self.behind, self.ports = behind, ports
        self.pairs: set[Pair] = set()
        self.order: dict[str, Any] = {}
        self.bytes = self.struck = self.peak = 0
        self.until = 0.0
        self.calm = asyncio.Event()
        self.calm.set()

    async def run(self) -> None:
        """Until standard input closes."""
        servers = [
            await asyncio.start_server(lambda r, w, k=k: self._visit(k, r, w), "127.0.0.1", port)
            for k, port in enumerate(self.ports)
        ]
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        print("open", flush=True)
        while line := await reader.readline():
            if order := json.loads(line):
                self.order, self.bytes, self.struck, self.peak, self.until = order, 0, 0, len(self.pairs), 0.0
            else:
                told = {"bytes": self.bytes, "struck": self.struck, "peak": self.peak, "began": self.until > 0}
                self.order, self.until = {}, 0.0
                self.calm.set()
                print(json.dumps(told), flush=True)
        for server in servers:
            server.close()
        os._exit(0)  # whoever still waits on a connection is not waited for

    def _now(self, k: int) -> str:
        """How a port is disturbed at this moment."""
        return self.order["kind"] if k in self.order.get("who", ()) and time.monotonic() < self.until else ""

    def _count(self, n: int) -> None:
        """Bytes have passed: it may be time."""
        self.bytes += n
        if self.order.get("kind") and not self.until and self.bytes >= self.order["at"]:
            self.until = time.monotonic() + self.order["seconds"]
            self.calm.clear()
            asyncio.get_running_loop().call_later(self.order["seconds"], self.calm.set)
            for pair in list(self.pairs):
                if pair[0] in self.order["who"]:
                    self.struck += 1
                    if self.order["kind"] in ("reset", "close"):
                        self._end(pair)

    def _end(self, pair: Pair) -> None:
        for writer in pair[1:]:
            if self.order["kind"] == "reset":
                with contextlib.suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                writer.transport.abort()
            else:
                writer.close()

    async def _visit(self, k: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self.pairs) >= MOST:
            writer.close()
            return
        try:
            inward, outward = await asyncio.open_connection("127.0.0.1", self.behind)
        except OSError:  # the server is not there
            writer.close()
            return
        pair = (k, writer, outward)
        self.pairs.add(pair)
        self.peak = max(self.peak, len(self.pairs))
        if self._now(k) in ("reset", "close"):
            self.struck += 1
            self._end(pair)
        try:
            await asyncio.gather(self._pass(k, "up", reader, outward), self._pass(k, "down", inward, writer))
        finally:
            self.pairs.discard(pair)
            for each in pair[1:]:
                each.close()

    async def _pass(self, k: int, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, until it ends; then the other is told."""
        with contextlib.suppress(OSError, EOFError):
            while piece := await reader.read(PIECE):
                self._count(len(piece))
                if self._now(k) == "stall" and way in self.order["ways"]:
                    await self.calm.wait()
                if self._now(k) == "slow":
                    with contextlib.suppress(TimeoutError):  # what waits when it ends waits no longer
                        pause = self.order["latency"] + len(piece) / self.order["rate"]
                        await asyncio.wait_for(self.calm.wait(), pause)
                writer.write(piece)
                await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()


if __name__ == "__main__":
    asyncio.run(Wire(int(sys.argv[1]), [int(word) for word in sys.argv[2:]]).run())
