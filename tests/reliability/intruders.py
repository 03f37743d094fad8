"""Intruders at a real server, with keys and TLS on this machine: each must be refused, and disturb nobody.

    python tests/reliability/intruders.py 6            all of them
    python tests/reliability/intruders.py 6 --only 3   one of them, with what everybody said

    unknown key        a node whose public key the server was not given
    no TLS             a node, and a plain request, without encryption
    wrong authority    a node that knows another authority than the server's: it must not speak to this one
    replayed           the bytes of a node's connection once more; and a call that was signed some minutes ago
    control from outside   every route but those of nodes, and the engine's own port from another address than loopback
    oversize           a body, a head and a message that are too large, by a node that may come

After each of them all three nodes answer as before.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import ssl
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from deploy.engine.test_link import Federation, N, until
from polycentric.deploy.engine.children import free_port
from polycentric.deploy.engine.door import HEAD, LARGEST
from polycentric.deploy.engine.member import Member
from polycentric.deploy.key_files import private_key
from reliability.forked import counted

SPOKEN = 1000  # bytes of a connection on which more than a greeting went to the server
REFUSED = (400, 401, 403, 404, 411, 413)


def unknown_key(place: Federation) -> str:
    """Its key is not in the folder of those that may join."""
    with _joining(place, "unknown", N) as (_, said):
        until(lambda: any("does not let this node in" in line for line in said))
        return _kept_out(said)


def no_tls(place: Federation) -> str:
    """Neither a node nor a request gets an answer."""
    plain = http.client.HTTPConnection("127.0.0.1", place.port, timeout=10)
    try:
        plain.request("GET", "/health")
        return f"a plain request is answered: {plain.getresponse().status}"
    except (OSError, http.client.HTTPException):
        pass
    finally:
        plain.close()
    with _joining(place, "plain", None) as (member, said):
        until(lambda: member.supernode is not None and "retrying" in member.supernode.said())
        return _kept_out(said)


def wrong_authority(place: Federation) -> str:
    """A node that would be led to another server."""
    with _joining(place, "misled", 0, "elsewhere") as (_, said):
        until(lambda: any("compare the fingerprints" in line for line in said))
        return _kept_out(said)


def replayed(place: Federation) -> str:
    """What somebody on the way has recorded is of no use."""
    with _recording(place.port) as (port, recorded):
        stop = threading.Event()
        key = place.root / f"key-{N - 1}/ward-{N - 1}.key"
        how: dict[str, Any] = {"server": f"127.0.0.1:{port}", "ca": place.root / "server/ca.crt", "key": key}
        member = Member(place.root / "node-recorded", lambda parcel: [], **how, log=lambda line: None)
        thread = threading.Thread(target=member.run, args=(stop,))
        thread.start()  # a node that may come, or is told that it is there already: it has spoken in either case
        try:
            until(lambda: any(len(one) > SPOKEN for one in recorded))
        finally:
            stop.set()
            thread.join(20)
    for data in [bytes(one) for one in recorded if len(one) > SPOKEN][:3]:
        greeting = data[: 5 + int.from_bytes(data[3:5])]
        if _records(place.port, data) > _records(place.port, greeting + b"\x17\x03\x03\x00\x20" + bytes(32)):
            return "recorded bytes are answered by more than a greeting and its end"
    now, apart = datetime.now(UTC), timedelta(minutes=7)
    calls = {"good": (now, None), "old": (now - apart, None), "future": (now + apart, None), "forged": (now, N)}
    beat, body = "/v1/fleet/send-node-heartbeat", _heartbeat(place, 0)
    found = {name: _status(place, beat, _signed(place, 0, *how), body) for name, how in calls.items()}
    right = found == {"good": 200, "old": 401, "future": 401, "forged": 401}
    return "" if right else f"signatures are answered {found}"


def control_from_outside(place: Federation) -> str:
    """Who could begin runs, let nodes in or claim tasks must be on the server's machine, and have a secret."""
    routes = [
        f"/v1/control/{name}" for name in ("start-run", "list-nodes", "register-node", "unregister-node", "stop-run")
    ]
    routes += [
        "/v1/runtime/acquire-task",
        "/v1/runtime/pull-messages",
        "/docs",
        "/openapi.json",
        "/",
        "/v1/fleet/../control",
    ]
    for path in routes:
        for headers in ({}, _signed(place, 0, datetime.now(UTC))):
            if (status := _status(place, path, headers)) not in REFUSED:
                return f"{path} is answered {status}"
    inner = place.link._machinery.inner
    for host in _addresses():
        with contextlib.suppress(OSError), socket.create_connection((host, inner), 2):
            return f"the engine's port is open at {host}"
    bound = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"]
    mine = [address for address in bound if int(address.partition(":")[2], 16) in (inner, place.port)]
    return "" if mine and all(one.startswith("0100007F") for one in mine) else f"bound to {mine}"


def oversize(place: Federation) -> str:
    """Too large is refused before it is read; and a message that becomes too large, before it is put together."""
    signed = _signed(place, 0, datetime.now(UTC))
    found = [
        _status(place, "/v1/fleet/push-messages", signed | {"content-length": str(LARGEST + 1)}),
        _status(place, "/v1/fleet/push-messages", signed | {"content-length": "9" * 10}),
        _status(place, "/v1/fleet/push-messages", signed | {"content-length": "0", "x": "y" * HEAD}),
    ]
    if any(status not in (*REFUSED, 0) for status in found):
        return f"answered {found}"
    from deploy.engine import test_flower

    with contextlib.suppress(AttributeError):  # the laws of the engine's messages, with a bomb of a million pieces
        import pytest

        with pytest.MonkeyPatch.context() as patch:
            test_flower.test_a_message_that_becomes_too_large_is_refused_before_it_does(patch)
    return ""


INTRUDERS: dict[str, Callable[[Federation], str]] = {
    "unknown key": unknown_key,
    "no TLS": no_tls,
    "wrong authority": wrong_authority,
    "replayed": replayed,
    "control from outside": control_from_outside,
    "oversize": oversize,
}


# -- what they need ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _joining(
    place: Federation, name: str, key: int | None, authority: str = "server"
) -> Iterator[tuple[Member, list[str]]]:
    stop = threading.Event()
    member = place.join(name, key, authority, stop=stop)
    try:
        yield member, place.said[name]
    finally:
        stop.set()
        place.threads.pop().join(30)


def _kept_out(said: list[str]) -> str:
    return "it is connected" if any("connected" in line for line in said) else ""


def _heartbeat(place: Federation, who: int) -> bytes:
    """What a node says now and then, by its number."""
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.node_pb2 import Node

    from polycentric.deploy.engine.office import key_bytes

    key = key_bytes(private_key(place.root / f"key-{who}/ward-{who}.key").public_key())
    number = next(one.number for one in place.link._look() if one.key == key)
    return bytes(SendNodeHeartbeatRequest(node=Node(node_id=number), heartbeat_interval=30).SerializeToString())


def _status(place: Federation, path: str, headers: dict[str, str], body: bytes = b"x") -> int:
    """What a call from outside is answered; 0: the connection is closed."""
    trust = ssl.create_default_context(cafile=str(place.root / "server/ca.crt"))
    wire = http.client.HTTPSConnection("127.0.0.1", place.port, timeout=10, context=trust)
    try:
        wire.putrequest("POST", path)
        for name, value in (
            {"content-length": str(len(body)), "content-type": "application/protobuf"} | headers
        ).items():
            wire.putheader(name, value)
        wire.endheaders()
        if "content-length" not in headers:
            wire.send(body)
        return wire.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        wire.close()


def _signed(place: Federation, who: int, when: datetime, by: int | None = None) -> dict[str, str]:
    """The headers of a node's call, as at some time; `by`: signed with another key."""
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    mine, other = (private_key(place.root / f"key-{k}/ward-{k}.key") for k in (who, who if by is None else by))
    stamp = when.isoformat()
    return {
        "flwr-public-key": b64encode(public_key_to_bytes(mine.public_key())).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": b64encode(sign_message(other, stamp.encode())).decode(),
    }


def _records(port: int, data: bytes) -> int:
    """How many records of TLS somebody is answered who sends these bytes."""
    found, n = b"", 0
    with socket.create_connection(("127.0.0.1", port), 10) as wire:
        wire.settimeout(15)
        with contextlib.suppress(OSError):
            wire.sendall(data)
            while piece := wire.recv(1 << 16):
                found += piece
    while len(found) >= 5:
        found, n = found[5 + int.from_bytes(found[3:5]) :], n + 1
    return n


@contextlib.contextmanager
def _recording(behind: int) -> Iterator[tuple[int, list[bytearray]]]:
    """Somebody on the way: a port that passes everything on, and keeps what went to the server."""
    recorded: list[bytearray] = []
    listening = socket.create_server(("127.0.0.1", free_port()))
    over = threading.Event()

    def pass_on(a: socket.socket, b: socket.socket, kept: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while not over.is_set() and (data := a.recv(1 << 16)):
                if kept is not None:
                    kept += data
                b.sendall(data)
        for each in (a, b):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = listening.accept()
                there = socket.create_connection(("127.0.0.1", behind), 10)
                recorded.append(bytearray())
                for given in ((here, there, recorded[-1]), (there, here, None)):
                    threading.Thread(target=pass_on, args=given, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1], recorded
    finally:
        over.set()
        listening.close()


def _addresses() -> list[str]:
    """Addresses of this machine that are not loopback."""
    with contextlib.suppress(OSError):
        found = {str(one[4][0]) for one in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
        return sorted(address for address in found if not address.startswith("127."))
    return []


def intruders(n: int, seed: int = 0, jobs: int = 1, only: int | None = None) -> dict[str, Any]:
    """How many were let in, or disturbed somebody."""
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="intruders-"))
    names = list(INTRUDERS)[:n] if only is None else [list(INTRUDERS)[only]]
    place, bad, told = Federation(root), list[dict[str, str]](), list[str]()
    try:
        with place.link:
            place.members = [place.join(str(k), k) for k in range(N)]
            until(lambda: len(place.names()) == N, 60)
            for name in names:
                try:
                    wrong = INTRUDERS[name](place)
                    until(lambda: len(place.names()) == N, 90)
                    wrong = wrong or ("" if place.echoes() else "nodes do not answer any more")
                except AssertionError as error:
                    wrong = f"{error}"
                told.append(f"{name}: {wrong or 'refused'}")
                if wrong:
                    bad.append({"name": name, "wrong": wrong, "again": "python tests/reliability/intruders.py 6"})
    finally:
        place.stop.set()
        for thread in place.threads:
            thread.join(20)
        shutil.rmtree(root, ignore_errors=True)
    found = {"of": len(names), "bad": bad, "seconds": round(time.monotonic() - began, 1)}
    return found | (
        {"told": [*told, *(f"{who}: {line}" for who, lines in place.said.items() for line in lines)]}
        if only is not None
        else {}
    )


def told(found: dict[str, Any]) -> str:
    """The counts for people."""
    return f"{found['of'] - len(found['bad'])} of {found['of']} intruders were refused; {found['seconds']:.0f} s"


if __name__ == "__main__":
    os.environ.setdefault("NO_PROXY", "127.0.0.1")
    sys.exit(counted(intruders, "intruders", 1, told))
