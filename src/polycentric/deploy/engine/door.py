"""The door of a server: all that nodes can reach. It passes on what nodes need of Flower, and nothing else.

    python -P door.py SETTINGS      as JSON: host, port, inner (the port behind), hold, bell (a file), only; with TLS
                                    certificate, key, and authority (of the certificate behind)

Flower's superlink has one port for everything, and whoever reaches it may begin runs, let nodes in and turn them out
without any key. So it listens on this machine only, and this program stands before it: it ends TLS, and lets through
calls of nodes, POST /v1/fleet/NAME with a body of at most LARGEST bytes, and GET /health. Every request is read
whole, in the strictest form there is, and written anew, so that both sides agree where it ends. Lines on standard input
tell more, by what nodes write into their header flwr-public-key (Flower checks that the key is theirs):

    only DIGEST ...     who may pass, from now on; everybody where this was never said, nobody where none is named
    wake DIGEST         something was sent to that node

A node asks for messages, and sleeps 3 seconds when there are none. So its question waits here, for `hold` seconds at
most, until something was sent to it. The other way round, the time of the file `bell` is set to now whenever a node has
brought something, so that the server need not ask all the time.

Standard library only: it starts at once, and has little that could go wrong. When standard input closes, it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LARGEST = 16 << 20  # bytes of a body: Flower sends what is larger in pieces of 5 MiB
ROOM = 512 << 20  # bytes of all bodies that are here at a time
HEAD = 1 << 15  # bytes of a request without its body
MOST, MOST_OF_ONE = 2000, 250  # connections at a time: of all, of one address
SHAKE, IDLE, SLOW, AWAY = 10.0, 75.0, 30.0, 12.0  # seconds: to begin; between requests; for a piece; for the superlink
STALE = 3.0  # seconds: the inner side closes connections that were idle for 5
PULL, PUSH, HEALTH = "/v1/fleet/pull-messages", "/v1/fleet/push-", "/health"
WHO = b"flwr-public-key"

_LINE = re.compile(rb"(GET|POST) (/[a-z0-9/-]{0,100}) HTTP/1\.1")
_FIELD = re.compile(rb"([A-Za-z0-9-]{1,64}):[ \t]*([\x21-\x7e](?:[\x20-\x7e]{0,8190}[\x21-\x7e])?)?[ \t]*")
_PATH = re.compile(r"/v1/fleet/[a-z-]{1,64}")
_DROPPED = re.compile(
    rb"connection|keep-alive|te|trailer|upgrade|host|content-length|forwarded|x-forwarded-.*|proxy-.*"
)


class Refused(Exception):
    """A request that is not let through, and what the other side is told: a number, and no more."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class Request:
    """A request that may pass: its head, written anew; how many bytes follow; whose it is."""

    head: bytes
    length: int
    path: str
    who: str


def read(head: bytes) -> Request:
    """A request from its head, up to and with the empty line; Refused where it may not pass."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    found = _LINE.fullmatch(first)
    if not found:
        raise Refused(400, "no request that nodes make")
    verb, path = found[1], found[2].decode("ascii")
    if not (path == HEALTH if verb == b"GET" else _PATH.fullmatch(path)):
        raise Refused(404, f"{verb.decode()} {path}")
    kept, lengths, who = [], [], ""
    for line in lines:
        field = _FIELD.fullmatch(line)
        if not field or len(lines) > 64:
            raise Refused(400, "a header that nodes do not write")
        name, value = field[1].lower(), field[2] or b""
        if name in (b"transfer-encoding", b"expect"):
            raise Refused(411, "a body of unknown length")
        if name == b"content-length":
            lengths.append(value)
        elif name == WHO:
            who = digest(value)
        if not _DROPPED.fullmatch(name):
            kept.append(name + b": " + value)
    if len(lengths) != (verb == b"POST") or not all(re.fullmatch(rb"[0-9]{1,10}", one) for one in lengths):
        raise Refused(411, "a body of unknown length")
    length = int(lengths[0]) if lengths else 0
    if length > LARGEST:
        raise Refused(413, f"a body of {length:,} bytes")
    counted = [b"content-length: %d" % length] if lengths else []
    anew = [first, b"host: 127.0.0.1", *kept, *counted, b"connection: keep-alive", b"", b""]
    return Request(b"\r\n".join(anew), length, path, who)


def digest(header: bytes) -> str:
    """A node's header in few letters."""
    return hashlib.sha256(header).hexdigest()[:32]


class Waking:
    """Who has something to fetch, and who waits for it."""

    def __init__(self) -> None:
        self._due: Counter[str] = Counter()
        self._bells: dict[str, asyncio.Event] = {}

    def wake(self, who: str) -> None:
        """Something was sent to a node."""
        self._due[who] += 1
        if bell := self._bells.get(who):
            bell.set()

    async def wait(self, who: str, seconds: float, gone: Callable[[], bool]) -> bool:
        """Until there is something, at most for a time; False: whoever asked is gone."""
        end = time.monotonic() + seconds
        while not self._due[who] and time.monotonic() < end:
            if gone():
                return False
            bell = self._bells.setdefault(who, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(bell.wait(), min(0.2, max(0.0, end - time.monotonic())))
            bell.clear()
        if gone():
            return False
        if self._due[who] > 0:
            self._due[who] -= 1
        if not self._due[who]:
            del self._due[who]
            self._bells.pop(who, None)
        return True


class Door:
    """Lets requests through, one after the other of each connection."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.host, self.port, self.inner = str(settings["host"]), int(settings["port"]), int(settings["inner"])
        self.hold = float(settings["hold"])
        self.waking, self.only = Waking(), None if settings.get("only") is None else set(settings["only"].split())
        self._here: Counter[str] = Counter()  # connections of every address
        self._room, self._told, self._bell = ROOM, 0.0, Path(settings["bell"])
        self._certificate = (settings["certificate"], settings["key"]) if settings.get("certificate") else None
        self.outside: ssl.SSLContext | None = None
        self.inside: ssl.SSLContext | None = None
        if self._certificate:
            self.outside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.outside.minimum_version = ssl.TLSVersion.TLSv1_2
            self.outside.load_cert_chain(*self._certificate)
            self.inside = ssl.create_default_context(cafile=settings["authority"])

    async def open(self) -> asyncio.Server:
        """From now on nodes can come."""
        shake = SHAKE if self.outside else None
        return await asyncio.start_server(
            self._visit, self.host, self.port, ssl=self.outside, limit=HEAD, ssl_handshake_timeout=shake
        )

    async def run(self) -> None:
        """Until standard input closes."""
        server = await self.open()
        self._tell("open", always=True)
        async with server:
            renewing = asyncio.create_task(self._renewed())
            await self._listen()
            renewing.cancel()

    async def _listen(self) -> None:
        """Lines from whoever started us."""
        reader = asyncio.StreamReader(limit=1 << 20)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self.hear(line.decode("ascii", "replace"))

    def hear(self, line: str) -> None:
        """One line of standard input."""
        word, _, named = line.partition(" ")
        if word == "only":
            self.only = set(named.split())
        elif word == "wake":
            self.waking.wake(named.strip())

    async def _renewed(self) -> None:
        """A certificate that was renewed is shown to whoever comes next."""

        def dates() -> list[float]:
            return [Path(path).stat().st_mtime for path in self._certificate or ()]

        before = dates()
        while self._certificate and self.outside:
            await asyncio.sleep(30)
            with contextlib.suppress(OSError, ssl.SSLError):
                if dates() != before:
                    self.outside.load_cert_chain(*self._certificate)
                    before = dates()
                    self._tell("a new certificate", always=True)

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        who = str((writer.get_extra_info("peername") or ("somebody",))[0])
        self._here[who] += 1
        inner = Inner(self.inner, self.inside)
        try:
            if self._here[who] > MOST_OF_ONE or self._here.total() > MOST:
                raise Refused(503, "too many connections")
            patience = SHAKE
            while await self._pass_one(reader, writer, inner, patience):
                patience = IDLE
        except Refused as refused:
            self._tell(f"refused {who}: {refused}")
            await self._reply(writer, refused.status)
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, ssl.SSLError):
            pass  # gone, slow, or the beginning of something that is too long
        finally:
            self._here[who] -= 1
            self._here += Counter()  # without those that are zero
            inner.close()
            writer.close()
            with contextlib.suppress(OSError, TimeoutError, ssl.SSLError):
                await asyncio.wait_for(writer.wait_closed(), SHAKE)

    async def _pass_one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inner: Inner, patience: float
    ) -> bool:
        """A request in, a reply back; False: there are no more."""
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), patience)
        except asyncio.IncompleteReadError:
            return False
        request = read(head)
        if not self._may(request):
            raise Refused(401, "a key that is not registered")
        if request.length > self._room:
            raise Refused(503, "too much at a time")
        self._room -= request.length
        try:
            seconds = SLOW * (1 + request.length / (4 << 20))
            body = await asyncio.wait_for(reader.readexactly(request.length), seconds)
            if request.path == PULL and not await self.waking.wait(
                request.who, self.hold, lambda: _left(reader) or not self._may(request)
            ):
                return False  # whoever asked is gone, or was turned out: a message fetched for nobody would be lost
            if not await inner.send(request.head, body):
                await self._reply(writer, 503)  # what a node tries again
                return True
        finally:
            self._room += request.length
        more = await inner.answer(writer)
        if request.path.startswith(PUSH):
            self._bell.touch(0o600)
        return more

    def _may(self, request: Request) -> bool:
        return self.only is None or request.path == HEALTH or request.who in self.only

    async def _reply(self, writer: asyncio.StreamWriter, status: int) -> None:
        with contextlib.suppress(OSError, TimeoutError, ssl.SSLError):
            writer.write(b"HTTP/1.1 %d \r\ncontent-length: 0\r\n\r\n" % status)
            await asyncio.wait_for(writer.drain(), SHAKE)

    def _tell(self, line: str, always: bool = False) -> None:
        """A line of the log; of what others may do as often as they like, one in a second."""
        if always or time.monotonic() - self._told > 1.0:
            self._told = self._told if always else time.monotonic()
            print(time.strftime("%Y-%m-%d %H:%M:%S"), line, flush=True)


def _left(reader: asyncio.StreamReader) -> bool:
    """Whether the other side is gone."""
    return reader.at_eof() or reader.exception() is not None


class Inner:
    """A connection to Flower behind the door, for the requests of one connection before it."""

    def __init__(self, port: int, context: ssl.SSLContext | None) -> None:
        self._port, self._context = port, context
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used = 0.0

    async def send(self, head: bytes, body: bytes) -> bool:
        """Pass a request on; False: Flower is away, and did not come back in time."""
        end = time.monotonic() + AWAY
        while True:
            try:
                if self._streams is None or time.monotonic() - self._used > STALE or self._streams[0].at_eof():
                    self.close()
                    opening = asyncio.open_connection("127.0.0.1", self._port, ssl=self._context, limit=HEAD)
                    self._streams = await asyncio.wait_for(opening, SHAKE)
                self._streams[1].write(head + body)
                await asyncio.wait_for(self._streams[1].drain(), SLOW)
                return True
            except (OSError, EOFError, TimeoutError, ssl.SSLError):
                self.close()
                if time.monotonic() > end:
                    return False
                await asyncio.sleep(0.2)

    async def answer(self, writer: asyncio.StreamWriter) -> bool:
        """Bring the reply back; False: nothing more can be said on this connection."""
        assert self._streams is not None
        reader = self._streams[0]
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 4 * SLOW)
        found = re.search(rb"\r\ncontent-length: *([0-9]{1,10})\r\n", head, re.IGNORECASE)
        left = int(found[1]) if found else -1
        writer.write(head)
        while left:
            piece = await asyncio.wait_for(reader.read(min(1 << 18, left) if left > 0 else 1 << 18), SLOW)
            if not piece:
                return False
            left -= len(piece) if left > 0 else 0
            writer.write(piece)
            await asyncio.wait_for(writer.drain(), SLOW)
        await asyncio.wait_for(writer.drain(), SLOW)
        self._used = time.monotonic()
        return True

    def close(self) -> None:
        """Let go of it."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def main() -> None:
    """Open the door."""
    try:
        asyncio.run(Door(json.loads(sys.argv[1])).run())
    except OSError as error:
        print(f"cannot open: {error.strerror or error}", flush=True)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
