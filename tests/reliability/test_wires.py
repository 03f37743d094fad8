"""The program that disturbs wires does what it says; and long forms of disturbed wires and disks that fail."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from polycentric.deploy.engine.children import free_port
from reliability.wires import Wires

TESTS = Path(__file__).parents[1]


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that says what it hears."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

        def answer(one: socket.socket) -> None:
            with one, suppress(OSError):
                while data := one.recv(1 << 16):
                    one.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def test_a_wire_is_reset_closed_stalled_and_slowed_where_it_is_told_and_then_well_again(echo: int) -> None:
    ports = [free_port(), free_port()]
    wires = Wires(echo, ports)
    lines = [socket.create_connection(("127.0.0.1", port), 5) for port in ports]
    try:

        def spoken(k: int) -> float:
            began = time.monotonic()
            lines[k].sendall(b"hello")
            assert lines[k].recv(10) == b"hello"
            return time.monotonic() - began

        lines[0].settimeout(5)
        spoken(0), spoken(1)
        wires.order({"kind": "stall", "at": 1, "who": [0], "ways": ["down"], "seconds": 0.4})
        assert spoken(1) < 0.3  # it is the moment, and not this node's wire
        assert 0.2 < spoken(0) < 2 and spoken(0) < 0.2
        wires.order({"kind": "slow", "at": 1, "who": [0], "rate": 50, "latency": 0.05, "seconds": 5.0})
        assert spoken(0) > 0.2  # both ways, five bytes each
        assert wires.told()["struck"] == 1 and spoken(0) < 0.2
        wires.order({"kind": "close", "at": 1, "who": [0], "seconds": 0.0})
        lines[1].sendall(b"hello")
        assert lines[0].recv(10) == b""
        assert lines[1].recv(10) == b"hello"
        wires.order({"kind": "reset", "at": 1, "who": [1], "seconds": 0.0})
        with pytest.raises(ConnectionResetError):
            spoken(1)
        lines += [socket.create_connection(("127.0.0.1", ports[1]), 5)]
        spoken(2)
        assert wires.told()["began"]
    finally:
        for line in lines:
            line.close()
        wires.end()


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="children are forked, and file systems mounted")
@pytest.mark.parametrize(("program", "cases"), [("wires", 1), ("disks", 2)])
def test_a_federation_whose_wires_or_disks_fail_goes_on_to_the_same_bits(program: str, cases: int) -> None:
    pytest.importorskip("flwr")
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    words = [sys.executable, str(TESTS / f"reliability/{program}.py"), str(cases), "--json"]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=220)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["bad"] == [] and found["of"] + found.get("skipped", 0) == cases
