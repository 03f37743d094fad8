"""Bytes that nobody meant: replies, messages and what nodes keep, changed at random; is anything but refused?

    python tests/reliability/fuzz.py 10000 --seed 0             10,000 cases
    python tests/reliability/fuzz.py 10000 --seed 0 --only 17   one of them again, with what was said

A case is a function of (seed, number). A federation of four clients has come to its second round in this process; then
something true is changed (bits, lengths, pieces cut out, put in or exchanged; values and names in its JSON; the form
of its tensors, or numbers in them) and goes the way that it would go:

    reply     of one client to a center, which trains or scores with it and the others' and ends its round
    greeting  of a node that says who it is, to the roster and the federation that is made of it
    letter    to a node, with true terms
    terms     to a node, before a letter
    kept      files of a node's folder: changed, gone, exchanged, or a folder, a link or a pipe; then the next letter
    pieces    of a message, as the engine puts it together
    request   to the door, as a node's connection brings it

Wrong is an error that gets out, more than SECONDS, a number in a center that is not finite, a node that gives no reply
or words about an error, and anything that is written but in the folder of the node that is asked. Terms that ask for
another training get no true letter: a server may ask for a long one, and that is no fault.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import blobs_of
from deploy.in_process import RUN, clients_of, deployed, restarted
from polycentric import State, run_round
from polycentric.deploy import node as at_node, roster
from polycentric.deploy.engine.door import Refused, read
from polycentric.deploy.letters import Reply, digest, packed
from polycentric.deploy.participant import Participant
from polycentric.deploy.post import Roster
from polycentric.deploy.roster import Hello, federation_of, presented
from polycentric.errors import UsageError
from polycentric.runs.loop import Run
from polycentric.runs.settings import Settings
from polycentric.runs.start import Given, prepared
from reliability.forked import counted, dice_of

SECONDS, ROOM, ROUNDS = 5.0, 4 << 30, 4
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "lg-fedavg": {},
    "fesem": {"k": 2, "every": 2},
    "fedmes": {"cells": "regions(0:1 1:2 0+1:1)"},
    "feddane": {"lr": 0.01},
    "dpa-sgd": {},
}
KINDS = ["reply"] * 3 + ["greeting"] + ["letter"] * 2 + ["terms", "kept", "pieces", "request"]
VALUES: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    3,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    1 << 31,
    1 << 63,
    10**30,
    -(10**30),
]
VALUES += ["", "x", "a" * 70, "é\u202e\ud800", "../../outside", "/etc/passwd", "\0", "0" * 64, [], {}, [0], {"a": 1}]
VALUES += [[[]] * 3, [1 << 40, 1 << 40], "torch.float64", "F64", "fedavg", "os:system"]
NUMBERS = [float("nan"), float("inf"), -float("inf"), 3e38, -1e30, 1e-45, 0.0]


class Hung(BaseException):
    """A case that took too long."""


# -- what is changed -----------------------------------------------------------------------------------------


def shaken(dice: random.Random, data: bytes, other: bytes) -> bytes:
    """Bytes changed without knowing what they are."""
    how, here = dice.randrange(6), bytearray(data)
    place = dice.randrange(len(here) + 1)
    if how == 0 and here:
        for _ in range(dice.choice((1, 1, 2, 8))):
            here[dice.randrange(len(here))] ^= 1 << dice.randrange(8)
    elif how == 1:
        del here[place:]
    elif how == 2:
        here[place:place] = dice.randbytes(dice.choice((1, 4, 300)))
    elif how == 3:
        here = here[:place] + bytearray(other[dice.randrange(len(other) + 1) :])
    elif how == 4:
        del here[place : place + dice.choice((1, 4, 100))]
    else:
        here[:4] = struct.pack(">I", dice.choice((0, 1, len(data), 1 << 20, (1 << 32) - 1)))
    return bytes(here)


def twisted(dice: random.Random, value: Any) -> Any:
    """JSON with one thing changed somewhere in it: a value, a name, one more, one less."""
    if isinstance(value, dict) and value and dice.random() < 0.85:
        name, out = dice.choice(sorted(value)), dict(value)
        how = dice.random()
        if how < 0.1:
            del out[name]
        elif how < 0.2:
            out[dice.choice(("", "more", "__class__", name + "x"))] = dice.choice(VALUES)
        else:
            out[name] = twisted(dice, value[name])
        return out
    if isinstance(value, list) and value and dice.random() < 0.7:
        place = dice.randrange(len(value))
        return [*value[:place], twisted(dice, value[place]), *value[place + 1 :]]
    if dice.random() < 0.03:
        deep: Any = []
        for _ in range(dice.choice((10, 600))):
            deep = [deep]
        return deep
    return dice.choice(VALUES)


def changed(dice: random.Random, data: bytes, other: bytes) -> bytes:
    """A letter, or whatever has its form, with something changed in the facts, the tensors' form or their numbers."""
    how = dice.random()
    if how < 0.35:
        return shaken(dice, data, other)
    n = struct.unpack(">I", data[:4])[0]
    head, body = data[4 : 4 + n], data[4 + n :]
    if how < 0.7:
        head = json.dumps(twisted(dice, json.loads(head)), ensure_ascii=False).encode("utf-8", "surrogatepass")
    else:
        size = struct.unpack("<Q", body[:8])[0]
        form, numbers = body[8 : 8 + size], bytearray(body[8 + size :])
        if how < 0.85 or len(numbers) < 8:
            form = json.dumps(twisted(dice, json.loads(form)), ensure_ascii=False).encode("utf-8", "surrogatepass")
        else:
            wide = dice.choice(("<f", "<d"))
            place = 8 * dice.randrange(len(numbers) // 8)
            number = struct.pack(wide, dice.choice(NUMBERS))
            numbers[place : place + len(number)] = number
        body = struct.pack("<Q", len(form)) + form + bytes(numbers)
    return struct.pack(">I", len(head)) + head + body


# -- a federation that has come to its second round -------------------------------------------------------------


@dataclass(eq=False)
class Post:
    """Carries letters at once; one reply of one client is another one."""

    clients: Mapping[int, Participant]
    terms: Callable[[int], bytes]
    swap: Callable[[int, bytes], bytes] = lambda client, reply: reply
    replies: list[tuple[int, bytes]] = field(default_factory=list)
    doubles: bool = False
    heard: dict[int, list[bytes]] = field(default_factory=dict)  # the last parcel to each
    known: dict[str, bytes] = field(default_factory=dict)  # replies to letters: the same ones come in many cases

    def send(self, letters: Mapping[int, Sequence[bytes]]) -> None:
        for client, each in letters.items():
            self.heard[client] = [self.terms(client), *each]
            for letter in each:
                name = digest(letter)
                if name not in self.known:
                    (self.known[name],) = self.clients[client].answer([self.terms(client), letter])
                self.replies += [(client, self.swap(client, self.known[name]))] * (1 + self.doubles)

    def fetch(self) -> list[tuple[int, bytes]]:
        found, self.replies = self.replies, []
        return found


@dataclass(eq=False)
class Scene:
    """A center after its first round, what it has sent for the second, and what was replied."""

    made: Run
    state: State
    used: dict[int, Any]
    clients: dict[int, Participant]
    home: Path
    parcels: dict[int, list[bytes]]  # client: terms, and the letter of the next round
    replies: dict[int, list[bytes]]
    greetings: dict[int, bytes]


def scene_of(name: str, root: Path) -> Scene:
    """The same every time."""
    now = [0.0]

    def rest(seconds: float) -> None:
        now[0] += seconds

    home, aside, words = root / "home" / name, root / "aside" / name, {"lr": 0.1, "epochs": 1} | METHODS[name]
    asked = {"method": name, "model": "mlp", "rounds": ROUNDS, "fine_tune": 0, "set": words, "executor": "looped"}
    federation = blobs_of((9, 7, 8, 6), dtype=torch.float32)
    clients = clients_of(federation, home)
    run = prepared(Settings.of({**asked, "block": 1, "data": "federation"}), Given(federation=federation))
    how: dict[str, Any] = {"deadline": 3.0, "clock": lambda: now[0], "rest": rest}
    made = deployed(run, clients, lambda terms: Post(clients, terms), **how)
    state, _ = run_round(made.method, made.state, made.remote)
    made.remote.notes.clear()
    used, before = (
        dict(made.remote.used),
        {k: shutil.copytree(home / str(k), root / "before" / name / str(k)) for k in clients},
    )
    made.remote.scores(state, "test")
    parcels = dict(made.remote.post.heard)
    for k, client in clients.items():  # as they were before they were asked
        shutil.rmtree(home / str(k))
        shutil.copytree(before[k], home / str(k))
        clients[k] = restarted(client)
    replies = {
        k: restarted(clients[k], folder=shutil.copytree(before[k], aside / str(k))).answer(parcels[k]) for k in clients
    }
    greetings = {k: clients[k].answer([packed(Hello(), {})])[0] for k in clients}
    return Scene(made, state, used, clients, root / "before" / name, parcels, replies, greetings)


# -- one case ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Fuzz:
    """All cases of a seed, in a folder."""

    seed: int
    root: Path

    def __post_init__(self) -> None:
        self.scene = cache(lambda name: scene_of(name, self.root))
        self.outside: list[str] = []  # written where it should not be
        self.inside: tuple[str, ...] = ()  # where it may be; empty: nobody looks
        self.said: list[str] = []
        sys.addaudithook(self._heard)  # it stays: only while a case runs somebody listens

    def _heard(self, event: str, given: tuple[Any, ...]) -> None:
        if not self.inside:
            return
        paths: list[Any] = []
        if event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            paths = [given[0]]
        elif event in ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod"):
            paths = [given[0]]
        elif event in ("os.rename", "os.link"):
            paths = list(given[:2])
        elif event == "os.symlink":
            paths = [given[1]]
        elif event in ("subprocess.Popen", "os.system", "os.exec", "socket.connect", "os.fork"):
            self.outside.append(event)
        for path in paths:
            if isinstance(path, str | bytes | os.PathLike):
                follows = event == "open" and not given[2] & os.O_NOFOLLOW
                full = (os.path.realpath if follows else os.path.abspath)(os.fsdecode(path))
                if not full.startswith((*self.inside, "/dev/null")):
                    self.outside.append(f"{event} {full}")

    def case(self, number: int) -> dict[str, Any]:
        """One of them: what went wrong, if anything."""
        dice = dice_of("fuzz", self.seed, number)
        kind = KINDS[number % len(KINDS)]
        name = sorted(METHODS)[number // len(KINDS) % len(METHODS)]
        found = self.scene(name)
        self.said, self.outside, wrong = [], [], ""
        folder = self.root / "cases" / str(number)
        folder.mkdir(parents=True)
        began = time.monotonic()
        try:
            with _bounded(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.inside = (str(folder), str(self.root / "home" / name))
                wrong = getattr(self, f"_{kind}")(dice, found, folder)
        except Hung:
            wrong = f"more than {SECONDS:g} s"
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            wrong = f"{type(error).__name__}: {str(error)[:200]} ({Path(last.filename).name}:{last.lineno})"
            self.said.append(traceback.format_exc())
        finally:
            self.inside = ()
            shutil.rmtree(folder, ignore_errors=True)
        wrong = wrong or (f"written outside: {self.outside[0]}" if self.outside else "")
        took = time.monotonic() - began
        return {"number": number, "name": f"{kind}, {name}", "wrong": wrong, "told": self.said, "took": took}

    def _client(self, scene: Scene, client: int, folder: Path, copied: bool = True) -> Participant:
        """A client in a process of its own, with a folder of its own."""
        if copied:
            shutil.copytree(scene.home / str(client), folder / "node")
        return restarted(scene.clients[client], folder=folder / "node", log=self.said.append)

    def _reply(self, dice: random.Random, scene: Scene, folder: Path) -> str:
        remote, liar = scene.made.remote, dice.randrange(4)
        other, turn, twice = dice.choice(scene.replies[dice.randrange(4)]), dice.randrange(3), dice.random() < 0.1
        remote.used, remote._ahead, remote._scored, remote._invited = dict(scene.used), {}, (None, 0, {}), None
        remote.notes.clear()
        remote.missed.clear()
        lied = [0]

        def swap(client: int, reply: bytes) -> bytes:
            """The scores, the training or the second exchange of one client."""
            if client == liar:
                lied[0] += 1
                return changed(dice, reply, other) if lied[0] == 1 + turn else reply
            return reply

        remote.post.swap, remote.post.replies, remote.post.doubles = swap, [], twice
        with mock.patch.object(at_node, "DIFFERENT", 1 << 30):  # the second exchange's letters differ from case to case
            remote.scores(scene.state, "test")
            after, _ = run_round(scene.made.method, scene.state, remote)
        bad = [name for name, rows in after.centers.items() if not bool(rows.isfinite().all())]
        self.said += [f"{note.client}: {note.what}" for note in remote.notes]
        if bad:
            return f"not finite: {', '.join(bad)}"
        used = {note.client for note in remote.notes if note.what == "used"}
        return "" if used >= set(range(4)) - {liar} else f"only {sorted(used)} were used, and {liar} lied"

    def _greeting(self, dice: random.Random, scene: Scene, folder: Path) -> str:
        liar = dice.randrange(4)
        told = {k: data for k, data in scene.greetings.items()}
        told[liar] = changed(dice, told[liar], scene.greetings[dice.randrange(4)])

        class Nobody:
            def peers(self) -> list[Any]:
                return []

        here = Roster(Nobody(), self.said.append, clock=lambda: 0.0)  # type: ignore[arg-type]
        for k, data in told.items():
            here._greeted[f"id {k}"] = 0.0
            here.take(f"id {k}", [data] if dice.random() < 0.9 else [data, data])
        try:
            found = federation_of(dict(here.present))
        except UsageError as error:
            self.said.append(str(error))
            return "" if "\n" not in str(error) and len(str(error)) < 1000 else f"a long word: {str(error)[:100]}"
        return "" if found.n_clients == len(here.present) else "other clients"

    def _letter(self, dice: random.Random, scene: Scene, folder: Path) -> str:
        client = dice.randrange(4)
        terms, *letters = scene.parcels[client]
        place = dice.randrange(len(letters))
        other = dice.choice(scene.parcels[dice.randrange(4)])
        letters[place] = changed(dice, letters[place], other)
        return self._answered(self._client(scene, client, folder), [terms, *letters])

    def _terms(self, dice: random.Random, scene: Scene, folder: Path) -> str:
        client = dice.randrange(4)
        terms, *letters = scene.parcels[client]
        new = changed(dice, terms, dice.choice(scene.parcels[dice.randrange(4)]))
        return self._answered(self._client(scene, client, folder), [new, *(letters if _same(terms, new) else [b""])])

    def _kept(self, dice: random.Random, scene: Scene, folder: Path) -> str:
        client = dice.randrange(4)
        node = self._client(scene, client, folder)
        files = sorted(path for path in (folder / "node").rglob("*") if path.is_file())
        path = dice.choice(files) if files else folder / "node" / RUN / "letters"
        path.parent.mkdir(parents=True, exist_ok=True)
        data, other = path.read_bytes() if files else b"", dice.choice(files).read_bytes() if files else b""
        how = dice.randrange(8)
        path.unlink(missing_ok=True)
        if how == 0:
            path.mkdir()
        elif how == 1:
            path.symlink_to(dice.choice(("/dev/zero", "/etc/passwd", "nowhere", str(self.root))))
        elif how == 2:
            os.mkfifo(path)
        elif how == 3:
            path.write_bytes(other)
        elif how > 3:
            path.write_bytes(shaken(dice, data, other))
        return self._answered(node, scene.parcels[client])

    def _answered(self, node: Participant, parcel: list[bytes]) -> str:
        """What is wrong with how a node answers."""
        replies = node.answer(parcel)
        if len(replies) != max(1, len(parcel) - 1) and len(replies) != 1:
            return f"{len(replies)} replies to {len(parcel) - 1} letters"
        for reply in replies:
            with contextlib.suppress(ValueError):
                presented(reply)
                continue
            told = Reply.told(reply)
            if told.code != "ok" and Reply.read(reply, 1 << 24).sent:
                return "words beside a code"
        return ""

    def _pieces(self, dice: random.Random, scene: Scene, folder: Path) -> str:
        from polycentric.deploy.engine.flower import FAILURES, assembled, unpacked

        first, pieces = _message()
        name = dice.choice(sorted(pieces))
        new = dict(pieces)
        how = dice.random()
        if how < 0.7:
            new[name] = shaken(dice, pieces[name], pieces[dice.choice(sorted(pieces))])
        elif how < 0.85:
            del new[name]
        else:
            new[name] = pieces[dice.choice(sorted(pieces))]
        try:
            parcel, code = unpacked(assembled(first, new).content)
        except FAILURES as error:
            self.said.append(f"{type(error).__name__}")
            return ""
        good = all(isinstance(one, bytes) for one in parcel) and len(code) <= 40
        return "" if good else "no parcel"

    def _request(self, dice: random.Random, scene: Scene, folder: Path) -> str:
        path = dice.choice(("/v1/fleet/pull-messages", "/v1/fleet/push-object", "/v1/control/start-run", "/health"))
        words = [f"{dice.choice(('POST', 'GET', 'PUT'))} {path} HTTP/1.1", "host: localhost", "flwr-public-key: abc"]
        words += [f"content-length: {dice.choice(('0', '12', '-1', '1e3', '99999999999', '12, 12'))}"]
        words += [dice.choice(("x: y", "transfer-encoding: chunked", "expect: 100-continue", "accept: */*"))]
        head = "\r\n".join([*words, "", ""]).encode()
        head = shaken(dice, head, head) if dice.random() < 0.8 else head
        try:
            found = read(head)
        except Refused as error:
            self.said.append(str(error))
            return "" if 400 <= error.status < 600 else f"status {error.status}"
        lines = found.head.split(b"\r\n")
        return (
            "" if lines[0].split()[1].startswith((b"/v1/fleet/", b"/health")) and b"\n" not in lines[0] else "it passed"
        )


def _same(terms: bytes, new: bytes) -> bool:
    """Whether changed terms ask for the same training, or for none."""
    try:
        mine, other = (json.loads(data[4 : 4 + struct.unpack(">I", data[:4])[0]])["settings"] for data in (terms, new))
    except (ValueError, KeyError, TypeError, struct.error):
        return True
    return isinstance(other, dict) and all(
        mine.get(k) == other.get(k) for k in {*mine, *other} - {"method", "seed", "rounds"}
    )


@cache
def _message() -> tuple[str, dict[str, bytes]]:
    """A message of the engine's, in its pieces."""
    from flwr.app.message import make_message
    from flwr.app.metadata import Metadata
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    from polycentric.deploy.engine.flower import packed as parcel

    with mock.patch("polycentric.deploy.engine.flower.SMALL", 100):  # some of it as arrays
        content = parcel([b"one", b"x" * 300, b"y" * 70])
    message = make_message(metadata=Metadata(1, "", 1, 2, "", "", 1.0, 9.0, "query"), content=content)
    found = get_all_nested_objects(message)
    return message.object_id, {name: one.deflate() for name, one in found.items()}


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """Not for long."""

    def late(*_: object) -> None:
        raise Hung

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def fuzz(n: int, seed: int = 0, jobs: int = 1, only: int | None = None, first: int = 0) -> dict[str, Any]:
    """How many of n cases went wrong, and which."""
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="fuzz-")).resolve()
    before, sync, fixed = resource.getrlimit(resource.RLIMIT_AS), os.fsync, roster.fixed_training()
    resource.setrlimit(resource.RLIMIT_AS, (_used() + ROOM, before[1]))
    os.fsync = lambda descriptor: None  # type: ignore[assignment]  # nobody cuts the power
    try:
        with mock.patch.object(roster, "fixed_training", lambda: fixed):  # the same every time
            cases = Fuzz(seed, root)
            found = [cases.case(number) for number in (range(first, first + n) if only is None else [only])]
    finally:
        os.fsync = sync
        resource.setrlimit(resource.RLIMIT_AS, before)
        shutil.rmtree(root, ignore_errors=True)
    again = f"python tests/reliability/fuzz.py 1 --seed {seed} --only"
    bad = [
        {"name": one["name"], "wrong": one["wrong"], "again": f"{again} {one['number']}"}
        for one in found
        if one["wrong"]
    ]
    return {
        "of": len(found),
        "bad": bad,
        "kinds": Counter(one["name"].partition(",")[0] for one in found),
        "longest": round(max(one["took"] for one in found), 2),
        "seconds": round(time.monotonic() - began, 1),
        **({"told": found[0]["told"]} if only is not None else {}),
    }


def _used() -> int:
    """Bytes of addresses that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def told(found: dict[str, Any]) -> str:
    """The counts for people."""
    return (
        f"{dict(found['kinds'])}\n{len(found['bad'])} of {found['of']:,} went wrong; the longest took "
        f"{found['longest']} s; {found['seconds']:.0f} s"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(counted(fuzz, "cases", 1, told))
