"""A node answers one message after the other, in time or not at all, and keeps to itself what went wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from polycentric.deploy.engine.link import Link
from polycentric.deploy.engine.member import REASONS, Member, _why, _Worker
from polycentric.deploy.engine.place import endpoint
from polycentric.errors import UsageError

Make = Callable[..., _Worker]


@pytest.fixture
def worker() -> Iterator[Make]:
    made: list[_Worker] = []

    def make(answer: Callable[[Sequence[bytes]], list[bytes]], said: list[str]) -> _Worker:
        made.append(_Worker(answer, said.append))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_answers_come_from_one_thread(worker: Make) -> None:
    threads = set()

    def answer(parcel: Sequence[bytes]) -> list[bytes]:
        threads.add(threading.get_ident())
        return [b"".join(parcel)]

    here = worker(answer, [])
    assert [here.ask([b"a", b"%d" % k], 5, threading.Event()) for k in range(3)] == [
        ([b"a%d" % k], "") for k in range(3)
    ]
    assert len(threads) == 1 and threads != {threading.get_ident()}


@pytest.mark.parametrize("wrong", [None, b"bytes", [1], ["text"], (b"a",)])
def test_an_answer_is_a_list_of_bytes(wrong: object, worker: Make) -> None:
    said: list[str] = []
    assert worker(lambda parcel: wrong, said).ask([], 5, threading.Event()) == ([], "failed")
    assert said == ["a message was not answered: an answer must be a list of bytes"]


def test_what_goes_wrong_is_said_here_and_a_word_there(worker: Make) -> None:
    def answer(parcel: Sequence[bytes]) -> list[bytes]:
        raise ValueError("patient 4711")

    said: list[str] = []
    assert worker(answer, said).ask([], 5, threading.Event()) == ([], "failed")
    assert said == ["a message was not answered: ValueError: patient 4711"]


def test_who_hangs_is_late_then_busy_and_answers_again_when_it_is_done(worker: Make) -> None:
    go = threading.Event()

    def answer(parcel: Sequence[bytes]) -> list[bytes]:
        if parcel == [b"hang"]:
            go.wait(10)
        return list(parcel)

    said: list[str] = []
    here, stop = worker(answer, said), threading.Event()
    assert here.ask([b"hang"], 0.2, stop) == ([], "late")
    assert here.ask([b"next"], 5, stop) == ([], "busy")
    go.set()
    time.sleep(0.2)
    assert here.ask([b"again"], 5, stop) == ([b"again"], ""), "the late reply is not that to a later message"
    assert len(said) == 2


def test_stopping_waits_for_nobody(worker: Make) -> None:
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    begun = time.monotonic()
    worker(lambda parcel: time.sleep(1.5), []).ask([], 60, stop)  # type: ignore[func-returns-value]
    assert time.monotonic() - begun < 1.2


def test_ending_says_whether_somebody_is_amid_an_answer(worker: Make) -> None:
    """A process that goes on to its usual end then would be aborted."""
    go, stop = threading.Event(), threading.Event()
    unasked, idle, busy = worker(list, []), worker(list, []), worker(lambda parcel: [b"%d" % go.wait(10)], [])
    assert idle.ask([b"a"], 5, stop) == ([b"a"], "") and busy.ask([b"a"], 0.1, stop) == ([], "late")
    assert unasked.end() and idle.end() and not busy.end()
    go.set()


@pytest.mark.parametrize("mark", REASONS)
def test_why_there_is_no_connection_is_said_in_plain_words(mark: str) -> None:
    assert _why(f"INFO: this\nERROR: [SSL: {mark} SuperNode.\nINFO: Finished") == REASONS[mark]


def test_whatever_else_a_supernode_ended_of_is_its_last_line() -> None:
    assert _why("one\n\x1b[91mERROR \x1b[0m: two\n\n") == "Flower's supernode has ended: ERROR : two"
    assert _why("") == "Flower's supernode has ended: it said nothing"


def test_a_server_is_a_host_and_a_port() -> None:
    assert endpoint("hospital.example:8443") == ("hospital.example", 8443)
    assert endpoint("[2001:db8::7]:8443") == ("2001:db8::7", 8443)
    for wrong in ("hospital.example", "hospital.example:", ":8443", "https://a:8443", "a:0", "a:70000", "a:b", ""):
        with pytest.raises(UsageError, match="HOST:PORT"):
            endpoint(wrong)


def test_keys_are_needed_unless_it_is_said_that_they_are_not(tmp_path: Path) -> None:
    def member(**more: object) -> None:
        Member(tmp_path, lambda parcel: [], **({"server": "a:1", "ca": None, "key": None, "log": print} | more))  # type: ignore[arg-type]

    def link(**more: object) -> None:
        Link(tmp_path, **({"port": 1, "keys": None, "nodes": None, "log": print} | more))  # type: ignore[arg-type]

    for make, some in ((member, "ca"), (link, "keys")):
        make(insecure=True)
        for more in ({}, {some: tmp_path}):
            with pytest.raises(UsageError, match=r"needs .*--"):
                make(**more)
        with pytest.raises(UsageError, match="--insecure means no keys"):
            make(insecure=True, **{some: tmp_path})
    for host in ("0.0.0.0", "10.0.0.5", "hospital.example", "::"):
        with pytest.raises(UsageError, match="on this machine"):
            link(insecure=True, host=host)
    link(insecure=True, host="::1")
    with pytest.raises(UsageError, match="--port must be 1 to 65535, got 0"):
        link(insecure=True, port=0)
    with pytest.raises(UsageError, match="more than 0 seconds"):
        member(insecure=True, seconds=0)


@pytest.mark.parametrize(("let_in", "pauses"), [(True, [1, 1, 1, 1]), (False, [1, 2, 4, 8])])
def test_only_who_is_not_let_in_waits_longer_and_longer(
    let_in: bool, pauses: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wire that is cut now and then costs a second, not a minute."""
    said: list[str] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if len(said) == len(pauses):
                self.set()
            return self.is_set()

    node = Member(tmp_path / "node", list, server="127.0.0.1:1", ca=None, key=None, insecure=True, log=said.append)
    monkeypatch.setattr(node, "_take_part", lambda stop: let_in)
    assert node.run(Stop())
    assert said == [f"trying again in {pause} s" for pause in pauses]
