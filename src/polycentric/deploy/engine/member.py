"""The node's side: answers every parcel that the server sends.

Two processes: the user's own, which has the data and answers; and Flower's supernode, which fetches messages from the
server and brings replies back. If the supernode ends it is started again, after growing pauses. Nothing that the server
sends is ever run.
"""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UsageError, require
from ...language.files import named, read_text
from .admission import check_node
from .children import Child, free_port
from .place import Place, endpoint

if TYPE_CHECKING:
    from .flower import Address

LOOK, RARELY = 0.05, 2.0  # seconds between two looks at the supernode's log; for a message whatever it says
LATELY = 1.0  # seconds after a line of the log in which a message may come
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before the supernode is started again
HINT = 15.0  # seconds after which it is said that there is no connection
MOMENT = 1.0  # seconds for an answer that is nearly there when we end
WELL = 60.0  # seconds after which a supernode that ended had been well
REASONS = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not for this name, not valid now, or not from the authority of "
    "ca.crt: compare the fingerprints",
    "Failed to activate": "it thinks that this node is there already; it notices within a minute that it is not",
    "terminated gracefully": "it does not let this node in: give NAME.pub to its owner, and see that both clocks are "
    "right",
}
_NUMBER = re.compile(r"SuperNode ID: (\d{1,20})")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


class Member:
    """The node's side of a federation.

    Arguments:
        folder: private, for Flower's files; one process at a time.
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
        endpoint(server)
        require(seconds > 0, f"an answer needs more than 0 seconds, got {seconds}")
        if insecure:
            require(ca is None and key is None, "--insecure means no keys: leave --ca and --key away")
        else:
            require(
                ca is not None and key is not None,
                "a node needs the server's --ca, ca.crt, and its own --key, NAME.key: see docs/deploy.md",
            )
        self.server, self._ca, self._key, self.insecure = server, ca, key, insecure
        self._place, self._seconds, self._log = Place(Path(folder)), seconds, log
        self._worker = _Worker(answer, log)
        self.supernode: Child | None = None

    def run(self, stop: threading.Event) -> bool:
        """Take part until `stop` is set; whether nobody answers any more: see `_Worker.end`."""
        from .flower import check_version

        check_version()
        if self._ca is not None and self._key is not None:
            check_node(self._ca, self._key)
        pause = SHORTEST_PAUSE
        with self._place:
            while not stop.is_set():
                began = time.monotonic()
                connected = self._take_part(stop)
                if stop.is_set():
                    break
                well = connected or time.monotonic() - began > WELL  # a wire was cut, or a server started again
                pause = SHORTEST_PAUSE if well else pause
                self._log(f"trying again in {pause:g} s")
                stop.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        return self._worker.end()

    def _take_part(self, stop: threading.Event) -> bool:
        """Start a supernode, and answer what it brings until it ends, or we shall; whether it was let in."""
        self._sign_off()
        port = free_port()
        options = ["supernode", "--superlink", self.server, *self._place.options, "--port", str(port)]
        if self.insecure:
            options += ["--insecure"]
        else:
            assert self._ca is not None and self._key is not None
            options += ["--root-certificates", str(self._ca.absolute())]
            options += ["--auth-supernode-private-key", str(self._key.absolute())]
        child = self.supernode = Child("supernode", "starter.py", options, self._place.folder)
        try:
            return self._answer_all(self._place.address(port), child, stop)
        finally:
            alone = not child.alive
            child.end()
            if alone:
                self._log(f"no connection to {self.server}: {_why(child.said())}")
            else:
                self._number.unlink(missing_ok=True)  # a supernode that we end signs off itself

    def _answer_all(self, address: Address, child: Child, stop: threading.Event) -> bool:
        from .answering import claims_of_messages
        from .flower import FAILURES

        claims, known, hint = claims_of_messages(address), False, time.monotonic() + HINT
        size, lately, looked = -1, 0.0, 0.0
        try:
            while not stop.is_set() and child.alive:
                if not known and (found := _NUMBER.search(child.said())):
                    known = True
                    with named(self._number):
                        self._number.write_text(found[1])
                    self._log(f"connected to {self.server}")
                if not known and time.monotonic() > hint:
                    hint = float("inf")
                    self._log(f"no connection to {self.server} yet; it is tried on and on: is the server there?")
                now = time.monotonic()
                if child.written != size:  # a supernode says what it receives: to ask it all the time would be busy
                    size, lately = child.written, now
                if now - lately > LATELY and now - looked < RARELY:
                    stop.wait(LOOK)
                    continue
                looked = now
                try:
                    task = claims.next()
                except FAILURES:  # it starts, or ends
                    task = None
                if task is not None:
                    if not self._answer(address, task[0], stop):
                        return known
                else:
                    stop.wait(LOOK)
            return known
        finally:
            claims.close()

    def _answer(self, address: Address, token: str, stop: threading.Event) -> bool:
        """One message, and whatever happens a reply to it; False: the supernode did not take it, and waits for ever."""
        from .answering import Answering
        from .flower import FAILURES, check_size

        task = Answering(address, token)
        try:
            try:
                reply, code = self._worker.ask(task.parcel(stop), self._seconds, stop)
                check_size(reply)
            except UsageError as error:
                self._log(f"a reply was not sent: {error}")
                reply, code = [], "too large"
            except FAILURES as error:
                self._log(f"a message could not be read ({type(error).__name__})")
                reply, code = [], "not readable"
            if not (stop.is_set() and code):
                task.reply(reply, code)
            return True
        except FAILURES as error:
            self._log(f"a reply could not be handed over ({type(error).__name__}): starting the supernode again")
            return False
        finally:
            task.close()

    @property
    def _number(self) -> Path:
        """A file with the number that the server knows us by, as long as we have not signed off."""
        return self._place.folder / "number"

    def _sign_off(self) -> None:
        """Say that we are gone, where a supernode could not: otherwise we are not let in for a minute."""
        if self._ca is None or self._key is None or not self._number.exists():
            return
        from ..key_files import private_key
        from .answering import sign_off
        from .flower import FAILURES

        with contextlib.suppress(*FAILURES):
            sign_off(self.server, str(self._ca), private_key(self._key), int(read_text(self._number, 64)))
            self._number.unlink()


class _Worker:
    """Answers in one thread of its own, so that one that hangs does not hang everything."""

    def __init__(self, answer: Callable[[Sequence[bytes]], list[bytes]], log: Callable[[str], None]) -> None:
        self._answer, self._log = answer, log
        self._asked: queue.Queue[list[bytes] | None] = queue.Queue()
        self._answered: queue.Queue[tuple[list[bytes], str]] = queue.Queue()
        self._busy = False
        self._thread: threading.Thread | None = None

    def ask(self, parcel: list[bytes], seconds: float, stop: threading.Event) -> tuple[list[bytes], str]:
        """The reply and no code; or no reply, and what went wrong in a word."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
            self._thread.start()
        if self._busy:
            with contextlib.suppress(queue.Empty):
                self._answered.get_nowait()  # too late for the message that it answers
                self._busy = False
        if self._busy:
            self._log("a message was not answered: the one before is still being worked at")
            return [], "busy"
        self._busy = True
        self._asked.put(parcel)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not stop.is_set():
            with contextlib.suppress(queue.Empty):
                found = self._answered.get(timeout=min(left, 0.2))
                self._busy = False
                return found
        if not stop.is_set():
            self._log(f"a message was not answered within {seconds:g} s")
        return [], "late"

    def _work(self) -> None:
        while (parcel := self._asked.get()) is not None:
            try:
                reply = self._answer(parcel)
                good = isinstance(reply, list) and all(isinstance(one, bytes) for one in reply)
                found: tuple[list[bytes], str] = (reply, "") if good else ([], "failed")
                if not good:
                    self._log("a message was not answered: an answer must be a list of bytes")
            except Exception as error:  # the user's code: said here, and to nobody else
                self._log(f"a message was not answered: {type(error).__name__}: {error}")
                found = ([], "failed")
            self._answered.put(found)

    def end(self) -> bool:
        """Let the thread go; False: it is amid an answer, and a process that ended as usual would tear it from there.

        Python ends such a thread by unwinding it, which code in C++ answers by aborting the process.
        """
        self._asked.put(None)
        if self._thread is not None:
            self._thread.join(MOMENT)
        return self._thread is None or not self._thread.is_alive()


def _why(said: str) -> str:
    """What a supernode ended of, in plain words where they are known."""
    for mark, words in REASONS.items():
        if mark in said:
            return words
    lines = [line.strip() for line in _COLOR.sub("", said).splitlines() if line.strip()]
    return f"Flower's supernode has ended: {lines[-1][:200] if lines else 'it said nothing'}"
