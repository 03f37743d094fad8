"""The door passes what nodes say, whole, and nothing else; who waits there is woken, and who is gone loses nothing."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from polycentric.deploy.engine import door
from polycentric.deploy.engine.children import free_port
from polycentric.deploy.engine.door import LARGEST, PULL, Door, Refused, digest, read

PUSH = "/v1/fleet/push-messages"
WARD = b"d2FyZC0z"  # a node's header


def head(path: str = PUSH, length: object = 5, verb: str = "POST", *lines: bytes, who: bytes = WARD) -> bytes:
    counted = [] if length is None else [b"Content-Length: %b" % str(length).encode()]
    named = [b"flwr-public-key: " + who] if who else []
    first = f"{verb} {path} HTTP/1.1".encode()
    return b"\r\n".join([first, b"Host: hospital.example", *named, *counted, *lines, b"", b""])


# -- what may pass -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    "/v1/control/start-run /v1/runtime/acquire-task /v1/responses /docs /openapi.json / /v1/fleet/ /health *"
    " /v1/fleet/../control/start-run /v1/fleet/%2e%2e/control/x /v1/fleet//control /v1/fleet/a/b"
    " //v1/fleet/pull-messages /v1/fleet/pull-messages?x=1 http://x/v1/fleet/pull-messages".split(),
)
def test_only_calls_of_nodes_pass(path: str) -> None:
    with pytest.raises(Refused):
        read(head(path))


@pytest.mark.parametrize(
    "lines",
    [
        (b"Transfer-Encoding: chunked",),
        (b"transfer-encoding : chunked",),
        (b"Content-Length: 5",),  # twice
        (b"Expect: 100-continue",),
        (b" folded: x",),
        (b"x: a\nTransfer-Encoding: chunked",),
        (b"x: a\rb",),
        (b"x y: z",),
        (b"x:\x00",),
        tuple(b"x-%d: y" % k for k in range(70)),
    ],
)
def test_a_request_whose_end_is_not_certain_is_refused(lines: tuple[bytes, ...]) -> None:
    with pytest.raises(Refused):
        read(head(PUSH, 5, "POST", *lines))


@pytest.mark.parametrize("length", [None, "", "-1", "+5", "5 5", "5,5", "0x5", "5.0", LARGEST + 1, "9" * 30])
def test_a_body_needs_one_plain_length_that_is_not_too_large(length: object) -> None:
    with pytest.raises(Refused):
        read(head(PUSH, length))
    assert read(head(PUSH, LARGEST)).length == LARGEST


@given(
    st.binary(max_size=300)
    | st.builds(
        lambda path, lines: head(f"/{path}", 3, "POST", *lines),
        st.sampled_from(["v1/fleet/get-run", "v1/control/x", "health"]),
        st.lists(st.from_regex(rb"[A-Za-z-]{1,20}[: ]{1,2}[\x00-\xff]{0,30}", fullmatch=True), max_size=5),
    )
)
def test_whatever_passes_is_of_one_form(data: bytes) -> None:
    """And passes again as it is, so that two doors in a row agree on it."""
    try:
        request = read(data)
    except Refused as refused:
        assert 400 <= refused.status < 500
        return
    assert read(request.head) == request
    assert re.fullmatch(r"/health|/v1/fleet/[a-z-]+", request.path)
    assert request.head.count(b"\r\n\r\n") == 1 and request.head.endswith(b"\r\n\r\n")
    lengths = re.findall(rb"\r\ncontent-length:([^\r]*)", request.head.lower())
    assert [int(one) for one in lengths] == [request.length][: len(lengths)]
    assert b"transfer-encoding" not in request.head.lower() and b"\nforwarded" not in request.head.lower()


# -- a door in this process ----------------------------------------------------------------------------------


class Opened:
    """A door, before a server that writes down what reaches it and says `ok`."""

    def __init__(self, bell: Path, hold: float, **more: Any) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.port, self.inner = free_port(), free_port()
        where = {"host": "127.0.0.1", "port": self.port, "inner": self.inner, "bell": str(bell)}
        self.bell, self.door = bell, Door(where | {"hold": hold} | more)
        self.server = self.do(self.door.open())
        self.behind = self.do(asyncio.start_server(self._behind, "127.0.0.1", self.inner))

    async def _behind(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while first := await reader.readuntil(b"\r\n\r\n"):
                found = re.search(rb"content-length: (\d+)", first)
                body = await reader.readexactly(int(found[1]) if found else 0)
                self.got.append((first.split()[1].decode(), body))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    def do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def hear(self, line: str) -> None:
        self.loop.call_soon_threadsafe(self.door.hear, line)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 10)

    def ask(self, *pieces: bytes) -> int:
        """The status of the reply; 0: the connection was closed without one."""
        with self.connect() as wire:
            for piece in pieces:
                wire.sendall(piece)
            return status(wire)

    def close(self) -> None:
        async def end() -> None:
            self.server.close()
            self.behind.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0.01)  # for what they closed to be closed

        self.do(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


def status(wire: socket.socket) -> int:
    """Of the next reply, which is read whole."""
    said = b""
    try:
        while not re.search(rb"length: 0\r\n\r\n$|length: 2\r\n\r\nok$", said) and (piece := wire.recv(1000)):
            said += piece
    except ConnectionResetError:
        pass
    return int(said.split()[1]) if said else 0


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    doors: list[Opened] = []

    def make(hold: float = 5.0, **more: Any) -> Opened:
        doors.append(Opened(tmp_path / "bell", hold, **more))
        return doors[-1]

    yield make
    for one in doors:
        one.close()


def test_requests_pass_whole_however_they_are_cut(opened: Callable[..., Opened]) -> None:
    here = opened()
    data = head(PUSH, 5) + b"a\r\n\r\n"

    @settings(max_examples=25)
    @given(st.lists(st.integers(1, len(data) - 1), max_size=4, unique=True))
    def law(cuts: list[int]) -> None:
        here.got.clear()
        ends = [0, *sorted(cuts), len(data)]
        assert here.ask(*(data[a:b] for a, b in pairwise(ends))) == 200
        assert here.got == [(PUSH, b"a\r\n\r\n")]

    law()


def test_one_connection_carries_many_requests(opened: Callable[..., Opened]) -> None:
    here = opened()
    with here.connect() as wire:
        for k in range(3):
            wire.sendall(head(PUSH, 1) + b"%d" % k)
            assert status(wire) == 200
    assert [body for _, body in here.got] == [b"0", b"1", b"2"]


def test_nothing_that_is_refused_reaches_flower(opened: Callable[..., Opened]) -> None:
    here = opened(only=digest(WARD))
    assert here.ask(head("/v1/control/start-run", 3) + b"abc") == 404
    assert here.ask(head(PUSH, LARGEST + 1)) == 413  # before its body is there
    assert here.ask(head(PUSH, 3, who=b"c29tZWJvZHk=") + b"abc") == 401
    assert here.ask(head(PUSH, 3, who=b"") + b"abc") == 401
    assert here.ask(b"\x16\x03\x01" * 40 + b"\r\n\r\n") == 400
    assert here.ask(b"x" * (door.HEAD + 10)) == 0
    assert here.got == []
    assert here.ask(head("/health", None, "GET", who=b"")) == 200
    assert here.ask(head(PUSH, 3) + b"abc") == 200


def test_who_was_turned_out_does_not_pass_and_may_come_back(opened: Callable[..., Opened]) -> None:
    here = opened(only="")
    assert here.ask(head(PUSH, 0)) == 401
    here.hear(f"only {digest(b'other')} {digest(WARD)}\n")
    assert here.ask(head(PUSH, 0)) == 200
    here.hear("only \n")
    assert here.ask(head(PUSH, 0)) == 401


def test_slow_and_half_requests_are_closed(opened: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "SHAKE", 0.2)
    monkeypatch.setattr(door, "SLOW", 0.2)
    here = opened()
    begun = time.monotonic()
    for piece in (b"", b"POST /v1", head(PUSH, 10), head(PUSH, 10) + b"half"):
        assert here.ask(piece) == 0
    assert time.monotonic() - begun < 3
    assert here.got == []
    assert here.door._room == door.ROOM  # and what they took is free again


def test_there_is_a_limit_of_connections_and_of_bytes(
    opened: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "MOST_OF_ONE", 2)
    here = opened()
    here.door._room = 100
    with here.connect() as one:
        one.sendall(head(PUSH, 90) + b"x" * 10)
        time.sleep(0.2)
        assert here.ask(head(PUSH, 20) + b"y" * 20) == 503
        with here.connect():
            assert here.ask(head(PUSH, 1) + b"y") == 503
        one.sendall(b"x" * 80)
        assert status(one) == 200
    time.sleep(0.2)
    assert here.ask(head(PUSH, 90) + b"y" * 90) == 200


def test_a_question_waits_until_something_was_sent(opened: Callable[..., Opened]) -> None:
    here = opened(hold=5.0)
    with here.connect() as wire:
        wire.sendall(head(PULL, 2) + b"me")
        time.sleep(0.3)
        assert here.got == []
        here.hear(f"wake {digest(b'other')}\n")
        time.sleep(0.3)
        assert here.got == []
        here.hear(f"wake {digest(WARD)}\n")
        assert status(wire) == 200
    assert here.got == [(PULL, b"me")]


def test_what_was_sent_before_a_question_is_not_waited_for(opened: Callable[..., Opened]) -> None:
    here = opened(hold=5.0)
    begun = time.monotonic()
    here.hear(f"wake {digest(WARD)}\n")
    here.hear(f"wake {digest(WARD)}\n")
    assert here.ask(head(PULL, 0)) == 200
    assert here.ask(head(PULL, 0)) == 200
    assert time.monotonic() - begun < 2


def test_the_bell_rings_when_a_node_has_brought_something(opened: Callable[..., Opened]) -> None:
    here = opened(hold=0.0)
    assert here.ask(head(PULL, 0)) == here.ask(head("/v1/fleet/get-run", 0)) == 200
    assert not here.bell.exists()
    times = []
    for path in (PUSH, "/v1/fleet/push-object"):
        assert here.ask(head(path, 1) + b"x") == 200
        time.sleep(0.05)
        times.append(here.bell.stat().st_mtime_ns)
    assert times[0] < times[1]


def test_a_question_is_passed_on_after_a_while(opened: Callable[..., Opened]) -> None:
    here = opened(hold=0.3)
    begun = time.monotonic()
    assert here.ask(head(PULL, 0)) == 200
    assert 0.3 <= time.monotonic() - begun < 2


def test_a_question_of_who_is_gone_or_turned_out_is_not_passed_on(opened: Callable[..., Opened]) -> None:
    """Flower counts a message as delivered once it was asked for: it would be lost."""
    here = opened(hold=1.5)
    with here.connect() as wire:
        wire.sendall(head(PULL, 0))
        time.sleep(0.1)
    time.sleep(0.5)
    here.hear(f"wake {digest(WARD)}\n")
    with here.connect() as wire:  # the next one of that node takes it
        wire.sendall(head(PULL, 0))
        assert status(wire) == 200
        wire.sendall(head(PULL, 0))
        time.sleep(0.1)
        here.hear("only \n")
        assert status(wire) == 0
    assert len(here.got) == 1


def test_nodes_are_told_to_try_again_while_flower_is_away(
    opened: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "AWAY", 0.3)
    here = opened()
    here.do(_closed(here.behind))
    assert here.ask(head(PUSH, 1) + b"x") == 503
    here.behind = here.do(asyncio.start_server(here._behind, "127.0.0.1", here.inner))
    assert here.ask(head(PUSH, 1) + b"x") == 200


async def _closed(server: asyncio.Server) -> None:
    server.close()
    await server.wait_closed()


def test_the_door_needs_nothing_but_the_standard_library() -> None:
    imported = re.findall(r"^(?:import|from) (\w+)", Path(door.__file__).read_text(), flags=re.MULTILINE)
    assert set(imported) <= set(sys.stdlib_module_names)
