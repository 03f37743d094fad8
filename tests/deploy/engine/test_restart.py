"""A server that is killed and started again finds its nodes, which have waited; and the same without keys."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="a federation between machines needs the extra deploy")

from polycentric.deploy.engine.children import free_port
from polycentric.deploy.engine.link import Link
from polycentric.deploy.engine.member import Member
from polycentric.deploy.keys import make_node, make_server

pytestmark = [pytest.mark.long, pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")]

SERVE = """
import sys, time
from pathlib import Path
from polycentric.deploy.engine.link import Link
root, port = Path(sys.argv[1]), int(sys.argv[2])
link = Link(root / "link", port=port, keys=root / "server", nodes=root / "nodes", log=lambda line: None)
with link:
    print(link._machinery.superlink.pid, link._machinery.door.pid, flush=True)
    while not any(peer.online for peer in link.peers()):
        time.sleep(0.1)
    for peer in link.peers():
        link.send({peer.id: [b"of the one that dies"]}, 600)
    print("sent", flush=True)
    time.sleep(600)
"""


def answers(link: Link, data: bytes, seconds: float = 60.0) -> list[list[bytes]]:
    """What the first that is there replies."""
    end = time.monotonic() + seconds
    while not (there := [peer for peer in link.peers() if peer.online]):
        assert time.monotonic() < end
        time.sleep(0.1)
    while time.monotonic() < end:
        link.send({there[0].id: [data]}, 10)
        until = time.monotonic() + 10
        while time.monotonic() < until:
            if got := link.fetch():
                return [parcel for _, parcel in got]
            time.sleep(0.05)
    return []


def test_a_server_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    """Its processes end with it; its node waits; and what the dead one had sent is not answered to the new one."""
    port, stop, said = free_port(), threading.Event(), list[str]()
    make_server(tmp_path / "server", ["localhost"])
    make_node(tmp_path / "key", "ward-3")
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes/ward-3.pub").write_bytes((tmp_path / "key/ward-3.pub").read_bytes())
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(tmp_path), str(port)], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    children = [int(word) for word in server.stdout.readline().split()]
    asked: list[bytes] = []

    def answer(parcel: list[bytes]) -> list[bytes]:
        asked.extend(parcel)
        return [one[::-1] for one in parcel]

    member = Member(
        tmp_path / "node",
        answer,  # type: ignore[arg-type]
        server=f"127.0.0.1:{port}",
        ca=tmp_path / "server/ca.crt",
        key=tmp_path / "key/ward-3.key",
        log=said.append,
    )
    thread = threading.Thread(target=member.run, args=(stop,))
    thread.start()
    try:
        assert server.stdout.readline() == "sent\n"
        server.send_signal(signal.SIGKILL)
        server.wait()
        server.stdout.close()
        end = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() for pid in children):
            assert time.monotonic() < end, "a process outlived the server"
            time.sleep(0.1)
        told: list[str] = []
        keys = {"keys": tmp_path / "server", "nodes": tmp_path / "nodes"}
        with Link(tmp_path / "link", port=port, log=told.append, **keys) as link:
            assert answers(link, b"once more") == [[b"erom ecno"]]
        assert said.count(f"connected to 127.0.0.1:{port}") >= 1
        assert asked[-1] == b"once more"
    finally:
        stop.set()
        thread.join(20)


def test_without_keys_it_works_on_one_machine(tmp_path: Path) -> None:
    port, stop = free_port(), threading.Event()
    with Link(tmp_path / "link", port=port, keys=None, nodes=None, insecure=True, log=print) as link:
        member = Member(
            tmp_path / "node",
            lambda parcel: [one * 2 for one in parcel],
            server=f"127.0.0.1:{port}",
            ca=None,
            key=None,
            insecure=True,
            log=print,
        )
        thread = threading.Thread(target=member.run, args=(stop,))
        thread.start()
        try:
            assert answers(link, b"ha") == [[b"haha"]]
            assert [peer.name for peer in link.peers()] == [""]
        finally:
            stop.set()
            thread.join(20)


def test_a_large_message_arrives(tmp_path: Path) -> None:
    """300 MB there and back."""
    port, stop = free_port(), threading.Event()
    data = os.urandom(1 << 20) * 300
    with Link(tmp_path / "link", port=port, keys=None, nodes=None, insecure=True, log=print) as link:
        member = Member(
            tmp_path / "node",
            lambda parcel: list(parcel),
            server=f"127.0.0.1:{port}",
            ca=None,
            key=None,
            insecure=True,
            log=print,
        )
        thread = threading.Thread(target=member.run, args=(stop,))
        thread.start()
        try:
            while not (there := [peer for peer in link.peers() if peer.online]):
                time.sleep(0.1)
            link.send({there[0].id: [data]}, 200)
            end, got = time.monotonic() + 200, list[tuple[str, list[bytes]]]()
            longest = 0.0
            while not got and time.monotonic() < end:
                begun = time.monotonic()
                got = link.fetch()
                longest = max(longest, time.monotonic() - begun)
                time.sleep(0.05)
            assert [parcel for _, parcel in got] == [[data]]
            print(f"the longest look for replies took {longest:.1f} s")
        finally:
            stop.set()
            thread.join(20)
