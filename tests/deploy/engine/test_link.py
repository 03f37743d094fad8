"""A real federation on this machine, with TLS and keys: bytes arrive, intruders do not, and what is killed comes back.

One server and three nodes serve all tests, which run in this order; together they take less than a minute.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="a federation between machines needs the extra deploy")

from polycentric.deploy.engine import link as linking
from polycentric.deploy.engine.children import free_port
from polycentric.deploy.engine.link import Link
from polycentric.deploy.engine.member import Member
from polycentric.deploy.keys import make_node, make_server
from polycentric.errors import UsageError

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX"),
    pytest.mark.xdist_group("engine"),
]
N = 3
SECRET_WORDS = "patient 4711 of ward 9"


def answered(parcel: Sequence[bytes]) -> list[bytes]:
    """Every letter backwards; some have another wish."""
    if parcel[:1] == [b"raise"]:
        raise ValueError(SECRET_WORDS)
    if parcel[:1] == [b"sleep"]:
        time.sleep(1.6)
    return [one[::-1] for one in parcel]


class Federation:
    """A link, its members, and what they said."""

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_port()
        self.said: dict[str, list[str]] = {}
        self.stop = threading.Event()
        self.threads: list[threading.Thread] = []
        self.members: list[Member] = []
        self.nodes = root / "nodes"
        make_server(root / "server", ["hospital.example"])
        make_server(root / "elsewhere", ["hospital.example"])
        self.nodes.mkdir(0o700)
        for k in range(N + 1):
            make_node(root / f"key-{k}", f"ward-{k}")
            if k < N:
                (self.nodes / f"ward-{k}.pub").write_bytes((root / f"key-{k}/ward-{k}.pub").read_bytes())
        self.link = Link(
            root / "link", port=self.port, keys=root / "server", nodes=self.nodes, log=self.listen("server")
        )

    def listen(self, who: str) -> Callable[[str], None]:
        return self.said.setdefault(who, []).append

    def join(
        self, name: str, key: int | None, authority: str = "server", stop: threading.Event | None = None
    ) -> Member:
        member = Member(
            self.root / f"node-{name}",
            answered,
            server=f"127.0.0.1:{self.port}",
            ca=None if key is None else self.root / authority / "ca.crt",
            key=None if key is None else self.root / f"key-{key}/ward-{key}.key",
            insecure=key is None,
            seconds=1.0 if name == "1" else 60,
            log=self.listen(name),
        )
        self.threads.append(threading.Thread(target=member.run, args=(stop or self.stop,)))
        self.threads[-1].start()
        return member

    def names(self) -> dict[str, str]:
        """Names of those that are there, by id."""
        return {peer.id: peer.name for peer in self.link.peers() if peer.online}

    def connected(self, name: str) -> int:
        """How often a node has said that it is connected."""
        return self.said[name].count(f"connected to 127.0.0.1:{self.port}")

    def exchange(self, parcels: Mapping[str, Sequence[bytes]], seconds: float = 60.0) -> dict[str, list[bytes]]:
        """Replies by name."""
        names = {peer.name: peer.id for peer in self.link.peers()}
        self.link.send({names[name]: parcel for name, parcel in parcels.items()}, seconds)
        called, got = {mark: name for name, mark in names.items()}, dict[str, list[bytes]]()
        end = time.monotonic() + seconds
        while len(got) < len(parcels) and time.monotonic() < end:
            for peer, parcel in self.link.fetch():
                assert called[peer] not in got, "a reply came twice"
                got[called[peer]] = parcel
            time.sleep(0.02)
        return got

    def echoes(self, *names: str) -> bool:
        """Whether these, or all, answer."""
        parcels = {name: [name.encode(), b"!"] for name in names or [f"ward-{k}" for k in range(N)]}
        return self.exchange(parcels) == {name: answered(parcel) for name, parcel in parcels.items()}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    root = tmp_path_factory.mktemp("engine")
    with pytest.MonkeyPatch.context() as patch:
        (root / "house").mkdir()
        patch.setenv("HOME", str(root / "house"))
        patch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # what runs on this machine needs no proxy
        patch.setenv("NO_PROXY", "127.0.0.1")  # but nodes may: these go the direct way
        patch.setenv("FLWR_HOME", str(root / "house/flower"))
        patch.setattr(linking, "REREAD", 0.5)
        made = Federation(root)
        try:
            with made.link:
                made.members = [made.join(str(k), k) for k in range(N)]
                until(lambda: len(made.names()) == N, 60)
                yield made
        finally:
            made.stop.set()
            for thread in made.threads:
                thread.join(20)


def until(true: Callable[[], bool], seconds: float = 45.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_parcels_arrive_whole_in_order_and_from_whom_they_are(federation: Federation) -> None:
    parcels = {
        "ward-0": [b"one", b"", b"three", b"one"],
        "ward-1": [],
        "ward-2": [bytes(range(256)), b"\x00" * 1000, *(b"%d" % k for k in range(40))],
    }
    assert federation.exchange(parcels) == {name: answered(parcel) for name, parcel in parcels.items()}
    assert federation.link.fetch() == []


def test_large_parcels_arrive(federation: Federation) -> None:
    large = [os.urandom(20 << 20), b"and a short one"]
    got = federation.exchange({f"ward-{k}": large for k in range(N)})
    assert got == {f"ward-{k}": answered(large) for k in range(N)}


def test_who_cannot_answer_says_so_in_a_word_and_goes_on(federation: Federation) -> None:
    """ward-1 takes longer than it may; nothing of what went wrong leaves the node."""
    got = federation.exchange({"ward-0": [b"raise"], "ward-1": [b"sleep"], "ward-2": [b"fine"]})
    assert got == {"ward-0": [], "ward-1": [], "ward-2": [b"enif"]}
    told = "\n".join(federation.said["server"])
    assert "ward-0 could not answer: failed" in told and "ward-1 could not answer: late" in told
    assert any(SECRET_WORDS in line for line in federation.said["0"])
    link = federation.root / "link"
    everything = b"".join(path.read_bytes() for path in link.rglob("*") if path.is_file())
    assert SECRET_WORDS not in told and SECRET_WORDS.encode() not in everything
    time.sleep(1.0)  # until it has woken up
    assert federation.echoes()


def test_a_message_to_nobody_is_told_and_one_that_is_too_large_refused(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polycentric.deploy.engine import flower

    federation.link.send({"SHA256:nobody": [b"x"]}, 5)
    assert "a message to node SHA256:nobody is lost: no such node" in federation.said["server"]
    monkeypatch.setattr(flower, "LARGEST", 10)
    with pytest.raises(UsageError, match="a message of 11 bytes is larger than 10"):
        federation.link.send({"SHA256:nobody": [b"x" * 11]}, 5)


def test_only_what_nodes_need_can_be_reached(federation: Federation) -> None:
    """Not the port of the superlink, where anybody may begin runs and let nodes in; and nothing without TLS."""

    def ask(verb: str, path: str, body: bytes = b"") -> int:
        trust = ssl.create_default_context(cafile=str(federation.root / "server/ca.crt"))
        wire = http.client.HTTPSConnection("127.0.0.1", federation.port, timeout=10, context=trust)
        wire.request(verb, path, body or None, {"content-type": "application/x-protobuf"})
        try:
            return wire.getresponse().status
        finally:
            wire.close()

    assert ask("GET", "/health") == 200
    assert ask("POST", "/v1/fleet/register-node", b"x") == 401
    for path in ("start-run", "list-nodes", "register-node", "unregister-node", "stop-run"):
        assert ask("POST", f"/v1/control/{path}", b"x") == 404
    assert ask("POST", "/v1/runtime/acquire-task", b"x") == 404
    assert ask("GET", "/docs") == 404
    plain = http.client.HTTPConnection("127.0.0.1", federation.port, timeout=10)
    with pytest.raises((OSError, http.client.HTTPException)):
        plain.request("GET", "/health")
        plain.getresponse()
    plain.close()


def test_the_superlink_listens_here_only_and_gives_its_task_to_nobody(federation: Federation) -> None:
    """Somebody else on this machine can reach it, and still needs a secret to become the server."""
    from polycentric.deploy.engine.flower import FAILURES, Address, Claims

    real = federation.link._place.address(federation.link._machinery.inner)
    assert real.host == "127.0.0.1" and real.secret not in federation.link._machinery.superlink.said(1 << 24).encode()  # type: ignore[union-attr]
    for kind in ("flwr-serverapp", "flwr-clientapp"):
        thief = Claims(Address(real.host, real.port, real.tls, b"guess" * 7), kind)
        with pytest.raises(FAILURES):
            thief.next()
        thief.close()


def test_intruders_are_refused_and_disturb_nobody(federation: Federation) -> None:
    """A key that is not registered; a server that is known by another authority; no TLS."""
    stop, before = threading.Event(), len(federation.threads)
    federation.join("unknown", N, stop=stop)
    federation.join("misled", 0, "elsewhere", stop=stop)
    plain = federation.join("plain", None, stop=stop)
    until(lambda: any("does not let this node in" in line for line in federation.said["unknown"]))
    until(lambda: any("compare the fingerprints" in line for line in federation.said["misled"]))
    until(lambda: "retrying" in plain.supernode.said())  # type: ignore[union-attr]
    assert federation.echoes()
    stop.set()
    for thread in federation.threads[before:]:
        thread.join(20)
    assert not any("connected" in line for name in ("unknown", "misled", "plain") for line in federation.said[name])
    assert len(federation.names()) == N


def test_nothing_is_lost_when_the_superlink_or_the_door_is_killed(federation: Federation) -> None:
    link = federation.link
    for child in (link._machinery.superlink, link._machinery.door):
        assert child is not None
        os.kill(child.pid, signal.SIGKILL)
        assert federation.echoes()
    told = "\n".join(federation.said["server"])
    assert "superlink has ended" in told and "door has ended" in told
    assert "lost" not in told.split("superlink has ended")[1]


def test_a_supernode_that_is_killed_comes_back(federation: Federation) -> None:
    child, before = federation.members[0].supernode, federation.connected("0")
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    assert federation.echoes("ward-1", "ward-2")
    until(lambda: federation.connected("0") > before)
    assert federation.echoes()


def test_a_key_that_is_taken_away_turns_its_node_out_until_it_is_back(federation: Federation) -> None:
    key, away, before = federation.nodes / "ward-2.pub", federation.root / "ward-2.pub", federation.connected("2")
    key.rename(away)
    until(lambda: {peer.name for peer in federation.link.peers()} == {"ward-0", "ward-1"})
    until(lambda: any("does not let this node in" in line for line in federation.said["2"]))
    away.rename(key)
    assert federation.echoes("ward-0", "ward-1")
    until(lambda: federation.connected("2") > before)
    assert federation.echoes()


def test_a_folder_serves_one_at_a_time_and_a_port_as_well(federation: Federation) -> None:
    root = federation.root
    other = {"keys": root / "server", "nodes": federation.nodes, "log": print}
    with pytest.raises(UsageError, match="is being written by"), Link(root / "link", port=free_port(), **other):  # type: ignore[arg-type]
        pass
    with pytest.raises(UsageError, match="cannot listen at"), Link(root / "other", port=federation.port, **other):  # type: ignore[arg-type]
        pass
    assert federation.echoes()


def test_all_ends_and_nothing_is_left(federation: Federation) -> None:
    """No process, no secret, and nothing outside of the folders; logs are readable to their owner only."""
    link = federation.link
    children = [link._machinery.superlink, link._machinery.door, *(member.supernode for member in federation.members)]
    federation.stop.set()
    for thread in federation.threads:
        thread.join(20)
        assert not thread.is_alive()
    link.close()
    for child in children:
        assert child is not None and not child.alive
        with pytest.raises(ProcessLookupError):
            os.killpg(child.pid, 0)
    root = federation.root
    assert list((root / "house").rglob("*")) == []
    left = {path.name for place in ("link", "node-0") for path in (root / place).iterdir()}
    assert not left & {"secret", "inner", "lock.json", "number"}
    for log in root.glob("*/*.log"):
        assert log.stat().st_mode & 0o777 == 0o600
        assert not re.search("PRIVATE KEY|" + SECRET_WORDS, log.read_text())
