"""The server's side: sends parcels, lists of bytes, to nodes and brings their replies.

Three processes: the user's own, in which all decisions are made; Flower's superlink, which keeps messages until they
are fetched, and listens on this machine only; and the door before it, which nodes connect to. If one of the other two
ends, it is started again: messages that were kept are still there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ...errors import UsageError, require
from .admission import allowed, check_server, is_here
from .children import check_free
from .machinery import PATIENCE, Machinery
from .place import Place

if TYPE_CHECKING:
    from .flower import Address
    from .office import Office, Registered, Serving

POLL, RARELY, OFTEN = 0.05, 1.0, 1.0  # seconds between two looks: for replies; where none was brought; for who is there
WHILE = 1.0  # seconds that looking for replies may take, about
SOON = 0.5  # seconds that looking for something waits for Flower
REREAD, LOOK = 5.0, 0.2  # seconds between two looks at who may join, and at whether all is well
MOMENT = 0.3  # seconds
UNWELL = 90.0  # seconds after which a superlink that does not answer is ended
LONGEST_PAUSE = 30.0  # seconds between two tries to start something again


@dataclass(frozen=True)
class Peer:
    """A node, as the server sees it."""

    id: str  # stable: the fingerprint of its public key; Flower's number of it where nodes have no keys
    name: str  # of its file NAME.pub; empty where nodes have no keys
    online: bool


@dataclass(frozen=True)
class Sent:
    """A message whose reply may come."""

    peer: str
    number: int
    until: float


class Link:
    """The server's side of a federation; a context manager.

    Arguments:
        folder: private, for Flower's files; one process at a time.
        host, port: where nodes connect to.
        keys: the server's folder of keys.
        nodes: a folder with NAME.pub of every node that may join; looked at again while it runs.
        insecure: no TLS and no keys of nodes; for trying it out on one machine.
        log: told what happens; from another thread, too.
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
        require(0 < port < 1 << 16, f"--port must be 1 to 65535, got {port}")
        if insecure:
            require(keys is None and nodes is None, "--insecure means no keys: leave --keys and --nodes away")
            require(
                is_here(host), f"--insecure is for trying it out on this machine, so --host {host} cannot be: make keys"
            )
        else:
            require(
                keys is not None and nodes is not None,
                "a server needs its --keys, and --nodes, a folder with NAME.pub of every node: see docs/deploy.md",
            )
        self.host, self.port, self.insecure = host, port, insecure
        self._place = Place(Path(folder), encrypted=not insecure)
        self._keys, self._nodes_folder, self._log = keys, nodes, log
        self._lock, self._ending = threading.RLock(), threading.Event()
        self._machinery = Machinery(self._place, host, port, keys, self._ending, log)
        self._address: Address | None = None
        self._office: Office | None = None
        self._serving: Serving | None = None
        self._watcher: threading.Thread | None = None
        self._stack = contextlib.ExitStack()
        self._pending: dict[str, Sent] = {}
        self._names: dict[bytes, tuple[str, str]] = {}  # public key: fingerprint and name
        self._said: dict[str, float] = {}
        self._known: list[Registered] = []
        self._looked = self._fetched = float("-inf")
        self._heard = -1
        self._halves = False  # whether messages are there of which a part is missing

    def __enter__(self) -> Link:
        from .flower import check_version

        check_version()
        if self._keys is not None and self._nodes_folder is not None:
            check_server(self._keys, self._nodes_folder)
        try:
            self._stack.enter_context(self._place)
            check_free(self.host, self.port)
            self._start()
            self._begin()
            self._open()
        except BaseException:
            self.close()
            raise
        self._watcher = threading.Thread(target=self._watch, name="link", daemon=True)
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def peers(self) -> list[Peer]:
        """Every node that may join, and whether it is there; Flower notices within a minute that one is gone."""
        with self._turn(SOON) as ours:
            known = self._look() if ours else self._known
        if self.insecure:
            return [Peer(str(one.number), "", one.online) for one in known]
        online = {one.key for one in known if one.online}
        return [Peer(mark, name, key in online) for key, (mark, name) in self._names.items()]

    def send(self, parcels: Mapping[str, Sequence[bytes]], seconds: float) -> None:
        """To every peer, by its id, its parcel; what was not fetched after so many seconds is thrown away.

        What cannot be sent, since there is no such node or Flower is being started again, is told to the log.
        """
        from .flower import FAILURES, check_size
        from .office import batches

        require(seconds > 0, f"a message needs a time to live above 0 seconds, got {seconds}")
        for parcel in parcels.values():
            check_size(parcel)
        with self._turn(PATIENCE) as ours:
            known = self._numbers() if ours else {}
            self._lost([peer for peer in parcels if peer not in known], "no such node" if ours else "Flower is away")
            addressed = {known[peer].number: peer for peer in parcels if peer in known}
            for some in batches(addressed, parcels):
                try:
                    taken = self._pushed({number: parcels[peer] for number, peer in some.items()}, seconds)
                except (*FAILURES, UsageError) as error:
                    self._lost(list(some.values()), type(error).__name__)
                    continue
                for number, peer in some.items():
                    if number in taken:
                        self._pending[taken[number]] = Sent(peer, number, time.monotonic() + seconds)
                        self._machinery.wake(known[peer])
                    else:
                        self._lost([peer], "Flower did not take it")

    def _pushed(self, parcels: Mapping[int, Sequence[bytes]], seconds: float) -> dict[int, str]:
        """Hand messages over; if that fails, once more, the same ones; if that fails, too, the run is over."""
        from .flower import FAILURES

        serving = self._served
        messages = serving.written(parcels, seconds)
        try:
            return serving.push(messages)
        except FAILURES:
            try:
                time.sleep(MOMENT)  # what was killed just now takes a moment to be gone
                self._revive()
            finally:
                self._halves = self._serving is serving
            if self._serving is not serving:
                messages = self._served.written(parcels, seconds)
            taken = self._served.push(messages)
            self._halves = False
            return taken

    def fetch(self) -> list[tuple[str, list[bytes]]]:
        """Replies since the last call, with the id of the peer that really sent each.

        An empty reply is a node's way to say that it could not answer: the log tells why, in a word.
        """
        from .flower import FAILURES

        now, out = time.monotonic(), []
        with self._turn(SOON) as ours:
            rung = self._machinery.rung
            if not ours or not self._pending or now - self._fetched < (POLL if rung != self._heard else RARELY):
                return []
            self._fetched, self._heard = now, rung
            try:
                replies = self._served.pull(self._pending, WHILE)
            except FAILURES as error:
                self._say(f"replies could not be fetched ({type(error).__name__})")
                return []
            if time.monotonic() - now > WHILE:
                self._heard = -1  # there is more
            for reply in replies:
                sent = self._pending.pop(reply.to, None)
                if sent is None:
                    continue  # twice
                if reply.number != sent.number or reply.parcel is None:
                    self._log(f"{self._called(sent.peer)} did not reply ({reply.code or 'another node did'})")
                    continue
                if reply.code:
                    self._log(f"{self._called(sent.peer)} could not answer: {reply.code}")
                out.append((sent.peer, [] if reply.code else reply.parcel))
            for message in [message for message, sent in self._pending.items() if sent.until < now]:
                self._served.forget(message)
                self._lost([self._pending.pop(message).peer], "no reply in time")
        return out

    def close(self) -> None:
        """End all that was started."""
        self._ending.set()
        if self._watcher is not None:
            self._watcher.join()
        with self._lock:
            if self._serving is not None:
                from .flower import FAILURES

                with contextlib.suppress(*FAILURES):
                    self._serving.finish()
                self._serving.close()
            if self._office is not None:
                self._office.close()
            self._machinery.end()
            self._office = self._serving = None
            self._stack.close()

    @contextlib.contextmanager
    def _turn(self, seconds: float) -> Iterator[bool]:
        """Our turn to speak to Flower, unless it is being started again for longer than that."""
        ours = self._lock.acquire(timeout=seconds)
        try:
            yield ours
        finally:
            if ours:
                self._lock.release()

    # -- beginning -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """A run of our own; what was sent in the one before is lost."""
        from .flower import FAILURES
        from .office import Serving

        assert self._office is not None and self._address is not None
        if self._serving is not None:
            self._serving.close()
        self._lost([sent.peer for sent in self._pending.values()], "its run is over")
        self._pending.clear()
        try:
            self._halves = False
            self._serving = Serving(self._address, self._office.begin(), PATIENCE)
        except FAILURES as error:
            raise UsageError(
                f"Flower did not begin ({type(error).__name__}): see {self._place.folder / 'superlink.log'}"
            ) from error

    def _start(self) -> None:
        """Flower, and what the owner of a server asks of it."""
        from .office import Office

        self._address = self._machinery.start()
        if self._office is not None:
            self._office.close()
        self._office = Office(self._address)
        self._reread()

    def _open(self) -> None:
        """The door; whoever was sent something is woken."""
        self._machinery.open(self._may_pass())
        numbers = {one.number: one for one in self._look()}
        for sent in self._pending.values():
            if sent.number in numbers:
                self._machinery.wake(numbers[sent.number])

    # -- while it runs ---------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Keep everything going."""
        from .flower import BEAT

        well = beat = reread = time.monotonic()
        pause = 0.0
        while not self._ending.wait(max(LOOK, pause)):
            try:
                if self._revive(time.monotonic() - well):
                    well = time.monotonic()
                if time.monotonic() - reread > REREAD:
                    reread = time.monotonic()
                    self._reread()
                if self._halves or time.monotonic() - beat > BEAT:
                    beat = time.monotonic()
                    self._beat()
                    well = time.monotonic()
                pause = 0.0
            except Exception as error:  # whatever it is, the user's process goes on, and this is tried again
                pause = min(LONGEST_PAUSE, max(1.0, 2 * pause))
                self._say(f"Flower is disturbed ({type(error).__name__}: {error})")

    def _revive(self, unwell: float = 0.0) -> bool:
        """Start again what has ended, or has not answered for long; whether Flower had to be."""
        with self._lock:
            superlink, door = self._machinery.superlink, self._machinery.door
            if superlink is None or door is None or self._ending.is_set():
                return False
            if unwell > UNWELL:
                superlink.end()
            dead = not superlink.alive
            if dead:
                self._log("Flower's superlink has ended: starting it again")
                superlink.end()
                before = self._address
                self._start()
                if before is not None and self._address is not None and before.port == self._address.port:
                    self._beat()
                else:  # which neither the door nor our run know
                    door.end()
                    self._begin()
            if not door.alive:
                self._log("the door has ended: opening it again")
                door.end()
                self._open()
            return dead

    def _beat(self) -> None:
        """Say that we are alive; if the run is not ours any more, begin another."""
        with self._lock:
            if self._halves or not self._served.beat():
                self._log("the run has ended: beginning another")
                self._begin()

    def _reread(self) -> None:
        """Let in whose key is in the folder, and turn out whose is not."""
        from .flower import FAILURES

        if self._nodes_folder is None:
            return
        names = allowed(self._nodes_folder, self._say)
        with self._lock:
            assert self._office is not None
            self._names = names
            for key in names.keys() - {one.key for one in self._office.nodes()}:
                try:
                    self._office.register(key)
                except FAILURES:
                    self._say(f"{names[key][1]}.pub could not be registered: see superlink.log")
            self._looked = float("-inf")
            door = self._machinery.door
            if door is not None and not door.tell(f"only {self._may_pass()}"):
                self._say("the door does not listen")

    def _may_pass(self) -> str:
        """Digests of the nodes that the door lets through.

        A node whose key was taken away is turned out there. Flower still knows it, since it would never let a key in
        again that was once turned out; but nothing that it says reaches Flower, and nothing is sent to it.
        """
        from .door import digest
        from .office import header_of

        return " ".join(sorted(digest(header_of(key).encode()) for key in self._names))

    def _look(self) -> list[Registered]:
        """Who is registered, and there; asked now and then."""
        from .flower import FAILURES

        now = time.monotonic()
        if self._office is not None and now - self._looked >= OFTEN:
            self._looked = now
            try:
                self._known = self._office.nodes()
            except FAILURES as error:
                self._say(f"nodes could not be listed ({type(error).__name__})")
        return self._known

    def _numbers(self) -> dict[str, Registered]:
        """Nodes by the peers' ids."""
        if self.insecure:
            return {str(one.number): one for one in self._look()}
        return {self._names[one.key][0]: one for one in self._look() if one.key in self._names}

    @property
    def _served(self) -> Serving:
        if self._serving is None:
            raise ValueError("there is no run")
        return self._serving

    def _lost(self, peers: Sequence[str], why: str) -> None:
        for peer in peers:
            self._log(f"a message to {self._called(peer)} is lost: {why}")

    def _called(self, peer: str) -> str:
        return next((name for mark, name in self._names.values() if mark == peer), f"node {peer}")

    def _say(self, line: str) -> None:
        """What may happen every few seconds is said once a minute."""
        now = time.monotonic()
        self._said = {said: when for said, when in self._said.items() if now - when < 60.0}
        if line not in self._said:
            self._said[line] = now
            self._log(line)
