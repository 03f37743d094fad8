"""Schedules of faults: a server and its nodes in one process, in a time of their own, with everything going wrong.

    python tests/reliability/schedules.py 2000 --seed 0            2,000 schedules
    python tests/reliability/schedules.py 2000 --seed 0 --only 17  one of them again, exactly, with its whole history

What runs is `serve` with its roster, its record and its checkpoints, and nodes with folders; only the engine between
them is not the real one, and time is a number. Everything that happens follows from (seed, number of the schedule):

    letters, replies    are lost, doubled, and delayed, also for longer than the deadline: so they overtake each other
    nodes               die when a letter comes, once it is counted, amid and after what they keep, before a reply
                        leaves, and are started again from their folders; their disks are full or broken for a while
    the server          dies before and after any letter, whenever it looks, and before, amid and after anything that
                        it writes; its disk is full for a while; it is started again from its folder
    clocks              nodes' are off by hours; the server's jumps ahead, as if it had slept

The history of all of it is then checked:

    once          rounds follow each other in the record, each once; a letter's reply is used once at most
    in time       what was used was seen while it was waited for, by the server that used it, with those bits
    not lost      nobody was left out whose good reply was seen while it was waited for
    never back    no server begins before a checkpoint that an earlier one had finished; rounds and epsilon never fall
    the bits      of the centers, and of what nodes keep, are those of a simulation in which just those answers arrived
    the end       it is reached
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import json
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import blobs_of
from deploy.in_process import clients_of, restarted
from polycentric import State, open as open_run, run_round
from polycentric.deploy import node as at_node, participant as at_client, roster
from polycentric.deploy.center import Nodes, in_order
from polycentric.deploy.letters import LetterFacts, Reply, Spoiled, digest, facts_of, mark
from polycentric.deploy.node import Keeper
from polycentric.deploy.secret import secret_of
from polycentric.deploy.serve import Waiting, serve
from polycentric.errors import UsageError
from polycentric.round import Clients
from polycentric.runs import checkpoint, record
from polycentric.runs.folder import Folder
from polycentric.runs.loop import Callback, Run
from polycentric.runs.record import Exchanges, digest_of, read_record
from polycentric.runs.settings import Settings
from polycentric.runs.start import Given, prepared
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.stack import take
from reliability.forked import counted, dice_of, spread

DEADLINE, LIVES, LONGEST = 5.0, 12, 2_000.0  # seconds of the schedule's own time; times that a server is started
SIZES = (23, 7, 12, 9)
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "fedavg, some": {"method": "fedavg", "set": {"select": "uniform(n=2)"}},
    "fesem": {"method": "fesem", "set": {"k": 2, "every": 2}},
    "lg-fedavg": {"method": "lg-fedavg"},
    "feddane": {"method": "feddane", "set": {"lr": 0.01}},
    "dpa-sgd": {"method": "dpa-sgd"},
    "fedmes": {"method": "fedmes", "set": {"cells": "regions(0:1 1:2 0+1:1)"}},
    "dp-fedavg": {"method": "dp-fedavg", "set": {"clip": 1.0, "noise": 1.0, "select": "poisson(rate=0.7)"}},
    "fedavg, hidden": {"method": "fedavg", "set": {"hide": "dp-sgd(clip=1, noise=1)"}},
    "ifca": {"method": "ifca", "set": {"k": 2}},
    "fedcurv": {"method": "fedcurv"},
}
SENDING, LOOKING, WRITING = ("before a letter", "after a letter"), ("a look",), ("before", "amid", "after", "full")
POINTS = [*SENDING, *LOOKING, *(f"{when} {what}" for what in ("file", "record", "metrics") for when in WRITING)]
NODE_DIES = ("as it comes", "counted", "amid keeping", "kept", "answered")
NODE_DISK = ("counting", "keeping")


class Killed(BaseException):
    """The end of the server's process, wherever it is."""


class Died(BaseException):
    """The end of a node's."""


@dataclass(frozen=True)
class Peer:
    """A node, as the server's engine knows it."""

    id: str
    name: str
    online: bool


@dataclass
class Life:
    """One process of the server's: where it ends, and what it saw."""

    number: int
    point: str = ""
    nth: int = 0
    began: int = -1  # the round that it went on from
    saved: int = 0  # the newest checkpoint that was whole
    touched: Counter[str] = field(default_factory=Counter)
    windows: list[tuple[float, float, frozenset[str]]] = field(default_factory=list)  # waited from, until, for letters
    seen: list[tuple[float, str, str, dict[str, str]]] = field(
        default_factory=list
    )  # when, letter, code, what was sent
    sent: set[str] = field(default_factory=set)  # letters
    rounds: list[int] = field(default_factory=list)  # that it wrote down
    epsilons: list[tuple[int, float]] = field(default_factory=list)
    ended: str = ""


@dataclass(eq=False)
class World:
    """Time, the wire, the nodes, and a server that is started again and again; a carrier for the latter."""

    number: int
    seed: int
    root: Path

    def __post_init__(self) -> None:
        self.dice = dice_of("schedule", self.seed, self.number)
        self.name = sorted(METHODS)[self.number % len(METHODS)]
        words = METHODS[self.name]
        own: dict[str, Any] = {"lr": 0.1, "epochs": 1} | words.get("set", {})
        more = {"rounds": 3, "seed": self.number, "fine_tune": 0, "model": "mlp", "set": own}
        self.settings = Settings.of({**words, **more, "evaluate_every": self.dice.choice((1, 1, 2))})
        self.stored = self.name in ("dp-fedavg", "fedavg, hidden")
        self.least = self.dice.choice((1, 1, 2))
        self.faults = self.dice.choice((0.3, 1.0, 1.0, 2.0))  # how bad it is
        self.now, self.count, self.looks = 0.0, 0, 0
        self.heap: list[tuple[float, int, str, str, list[bytes]]] = []
        self.federation = blobs_of(SIZES, dtype=torch.float32)
        found = clients_of(self.federation, self.root / "nodes")
        self.names = [f"client-{k}" for k in found]
        self.nodes = dict(zip(self.names, found.values(), strict=True))
        for name, node in self.nodes.items():
            node.name, node.log = name, partial(self.at_home, name)
        self.down: dict[str, float] = {}  # node: until when
        self.lives: list[Life] = []
        self.asked: dict[tuple[int, int], Cohort] = {}
        self.letters: dict[str, LetterFacts] = {}
        self.digests: dict[str, str] = {}
        self.story: list[str] = []
        self.plan = ""  # what happens to the node that answers now

    # -- the carrier ---------------------------------------------------------------------------------------------

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def peers(self) -> list[Peer]:
        return [Peer(f"id of {name}", name, self.down.get(name, 0) <= self.now) for name in self.names]

    def send(self, parcels: Mapping[str, Sequence[bytes]], seconds: float) -> None:
        for id, parcel in parcels.items():
            name = id.removeprefix("id of ")
            self.touch("before a letter")
            for letter in parcel[1:]:
                facts = facts_of(letter, LetterFacts)[0]
                self.letters[mark(digest(letter))] = facts
                self.digests[mark(digest(letter))] = digest(letter)
                self.life.sent.add(mark(digest(letter)))
                self.tell(f"{facts.asks} {facts.round}.{facts.turn} {mark(digest(letter))[:6]} to {name}")
            self.put("node", name, list(parcel))
            self.touch("after a letter")

    def fetch(self) -> list[tuple[str, list[bytes]]]:
        self.touch("a look")
        self.looks += 1
        found: list[tuple[str, list[bytes]]] = []
        while self.heap and self.heap[0][0] <= self.now:
            _, _, where, name, parcel = heapq.heappop(self.heap)
            if where == "node":
                self.arrive(name, parcel)
            else:
                found.append((f"id of {name}", parcel))
                for reply in parcel:
                    with contextlib.suppress(Spoiled):
                        read = Reply.read(reply, 1 << 26)
                        sent = {each: digest_of(rows) for each, rows in read.sent.items()}
                        self.life.seen.append((self.looks, mark(read.facts.letter), read.facts.code, sent))
                        self.tell(f"{read.facts.code} {mark(read.facts.letter)[:6]} from {name}")
        return found

    def put(self, where: str, name: str, parcel: list[bytes]) -> None:
        """On its way, unless it is lost; perhaps twice, perhaps for long."""
        dice = self.dice
        for _ in range(2 if dice.random() < 0.08 * self.faults else 1):
            if dice.random() < 0.06 * self.faults:
                self.tell(f"lost: to the {where} {name}" if where == "node" else f"lost: from {name}")
                continue
            slow = dice.random() < 0.1 * self.faults
            self.count += 1
            when = self.now + (dice.uniform(0, 4 * DEADLINE) if slow else dice.uniform(0, 1))
            heapq.heappush(self.heap, (when, self.count, where, name, parcel))

    def clock(self) -> float:
        return self.now

    def rest(self, seconds: float) -> None:
        if self.now > LONGEST:
            raise AssertionError("the end: it is not reached")
        nearest = self.heap[0][0] if self.heap else self.now + 1.0
        self.now = max(self.now + seconds, min(nearest, self.now + 1.0))
        if self.dice.random() < 0.001 * self.faults:
            self.now += self.dice.uniform(0, 40)
            self.tell("the server slept")

    def tell(self, line: str) -> None:
        self.story.append(f"{self.now:9.2f} {self.life.number if self.lives else '-'}  {line}")

    def at_home(self, name: str, line: str) -> None:
        self.tell(f"    at {name}: {line}")

    # -- nodes ---------------------------------------------------------------------------------------------------

    def arrive(self, name: str, parcel: list[bytes]) -> None:
        if self.down.get(name, 0) > self.now:
            if self.dice.random() < 0.5:  # it waits in the engine; or it is lost
                self.count += 1
                heapq.heappush(self.heap, (self.down[name] + 0.1, self.count, "node", name, parcel))
            return
        dice, self.plan = self.dice, ""
        if dice.random() < 0.04 * self.faults:
            self.plan = dice.choice(NODE_DIES)
        elif dice.random() < 0.03 * self.faults:
            self.plan = f"{dice.choice(('ENOSPC', 'EIO'))} {dice.choice(NODE_DISK)}"
        try:
            if self.plan == "as it comes":
                raise Died
            replies = self.nodes[name].answer(parcel)
            if self.plan == "answered":
                raise Died
        except Died:
            self.tell(f"{name} died: {self.plan}")
            self.nodes[name] = restarted(self.nodes[name])
            self.down[name] = self.now + dice.choice((0.0, 0.0, dice.uniform(0, 3)))
            return
        finally:
            self.plan = ""
        self.put("server", name, replies)

    def keeping(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Around what a node writes of what it keeps."""

        def renamed(path: Path, write: Callable[[Path], object]) -> str:
            if self.plan.endswith(" keeping") and self.plan[0] == "E":
                path.with_name(f".{path.name}.half.tmp").write_bytes(b"half")
                raise OSError(getattr(errno, self.plan.partition(" ")[0]), "the disk")
            if self.plan == "amid keeping":
                path.with_name(f".{path.name}.half.tmp").write_bytes(b"half")
                raise Died
            found: str = real(path, write)
            if self.plan == "kept":
                raise Died
            return found

        return renamed

    def counting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Around what a node counts."""

        def ask(keeper: Keeper, round: int, what: int, letter: str, *most: int) -> None:
            if self.plan.endswith(" counting"):
                assert keeper.folder is not None
                keeper.folder.mkdir(parents=True, exist_ok=True)
                with (keeper.folder / "letters").open("a") as file:
                    file.write(f"\n{round} {what} {letter[:9]}")
                raise OSError(getattr(errno, self.plan.partition(" ")[0]), "the disk")
            real(keeper, round, what, letter, *most)
            if self.plan == "counted":
                raise Died

        return ask

    # -- the server ----------------------------------------------------------------------------------------------

    def touch(self, point: str, amid: Callable[[], None] = lambda: None) -> None:
        """Die here, or find the disk full, if it is the moment; `amid`: what is left of what was being written."""
        life = self.life
        life.touched[point] += 1
        if life.point == point and life.nth == life.touched[point]:
            life.ended = f"{point}, {life.nth}"
            self.tell(f"the server: {life.ended}")
            amid()
            if point.startswith("full"):
                raise OSError(errno.ENOSPC, "No space left on device")
            raise Killed

    def writing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Around every file that the server writes whole."""

        def renamed(path: Path, write: Callable[[Path], object]) -> str:
            if (self.root / "nodes") in path.parents:  # a node's secret
                return str(real(path, write))
            half = path.with_name(f".{path.name}.1.tmp")
            self.touch("before file")
            self.touch("amid file", lambda: half.write_bytes(b"half of it") and None)
            self.touch("full file")
            found: str = real(path, write)
            if path.parent.name == "checkpoints" and path.suffix == ".json":
                self.life.saved = max(self.life.saved, int(path.stem[6:]))
            self.touch("after file")
            return found

        return renamed

    def recording(self) -> SimpleNamespace:
        """Where a record is synced: all of it is written by then, or some."""

        def sync(descriptor: int) -> None:
            def cut() -> None:  # of this round's lines: those before are on the disk
                lines = Path(os.readlink(f"/proc/self/fd/{descriptor}")).read_bytes().splitlines(keepends=True)
                last = json.loads(lines[-1])["round"]
                size, new = sum(map(len, lines)), sum(len(line) for line in lines if json.loads(line)["round"] == last)
                os.ftruncate(descriptor, size - self.dice.randint(1, new))

            self.touch("before record")
            self.touch("amid record", cut)
            self.touch("full record", cut)
            self.touch("after record")

        return SimpleNamespace(fsync=sync)

    def measuring(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Around a line of metrics."""

        def append(folder: Folder, row: Mapping[str, Any]) -> None:
            def half() -> None:
                with (folder.path / "metrics.jsonl").open("a") as file:
                    file.write('{"round": 1, "mic')

            self.touch("before metrics")
            self.touch("amid metrics", half)
            with checkpoint.writing(folder.path):
                self.touch("full metrics", half)
            real(folder, row)
            self.touch("after metrics")

        return append

    def waiting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Around every wait of the server's for replies."""

        def gathered(nodes: Nodes, letters: Mapping[int, Sequence[bytes]]) -> dict[str, bytes]:
            every = (digest(each) for letter in letters.values() for each in letter)
            marks, began = frozenset(mark(each) for each in every if each not in nodes._ahead), self.looks
            found: dict[str, bytes] = real(nodes, letters)
            self.life.windows.append((began, self.looks, marks))
            return found

        return gathered

    def inviting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Around who is asked at all."""

        def everyone(nodes: Nodes, round: int, turn: int = 0) -> Any:
            found = real(nodes, round, turn)
            self.asked[round, turn] = found
            return found

        return everyone

    def noting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Around the record of a round."""

        def on_round(exchanges: Exchanges, run: Run, trips: Any) -> None:
            real(exchanges, run, trips)
            self.life.rounds.append(run.state.round - 1)

        return on_round

    @contextlib.contextmanager
    def hooks(self) -> Iterator[None]:
        """All of that in place of what it is around."""
        fixed, off = roster.fixed_training(), self.dice.uniform(-1e5, 1e5)
        with contextlib.ExitStack() as stack:
            for where, name, around in (
                (checkpoint, "renamed", self.writing),
                (at_node, "renamed", self.keeping),
                (Keeper, "ask", self.counting),
                (Folder, "append_metrics", self.measuring),
                (Nodes, "_gathered", self.waiting),
                (Nodes, "everyone", self.inviting),
                (Exchanges, "on_round", self.noting),
            ):
                stack.enter_context(mock.patch.object(where, name, around(getattr(where, name))))
            stack.enter_context(mock.patch.object(record, "os", self.recording()))
            stack.enter_context(mock.patch.object(roster, "fixed_training", lambda: fixed))
            stack.enter_context(mock.patch.object(at_client, "time", SimpleNamespace(time=lambda: time.time() + off)))
            yield

    def play(self) -> Run:
        """Start the server until it ends."""
        deaths = self.dice.choice((0, 1, 1, 2, 2, 3, 4))
        out = self.root / "served"
        while True:
            life = Life(len(self.lives), saved=self.life.saved if self.lives else 0)
            self.lives.append(life)
            if life.number < deaths:
                life.point = self.dice.choice(POINTS)
                life.nth = 1 + int(self.dice.random() ** 2 * self.usual(life.point))
            assert life.number < LIVES, "the end: it is not reached"
            (out / "lock.json").unlink(missing_ok=True)  # another process would see that its owner is gone
            how = Waiting(3, wait=500.0, deadline=DEADLINE, least=self.least)
            more: dict[str, Any] = {
                "names": self.names,
                "clock": self.clock,
                "rest": self.rest,
                "callbacks": [Eye(self)],
            }
            try:
                return serve(self.settings, self, out, how, log=lambda line: self.tell(f"  {line}"), **more)
            except Killed:
                self.now += self.dice.uniform(0, 10)
            except UsageError as error:
                if "is finished" in str(error) and self.lives[-2].ended.startswith("after file"):
                    return open_run(out, examples=False)  # killed after its last word
                full = life.ended.startswith("full") and "No space left" in str(error)
                assert full or "not enough nodes came" in str(error), f"refused: {error}"
                self.tell(f"the server ended: {error}")

    def usual(self, point: str) -> int:
        """How often a point is met, about."""
        return {"a look": 120, "before a letter": 30, "after a letter": 30}.get(point, 9 if "file" not in point else 25)


class Eye(Callback):
    """Looks over a server's shoulder."""

    def __init__(self, world: World) -> None:
        self.world = world

    def on_start(self, run: Run) -> None:
        self.world.life.began = run.state.round

    def on_evaluation(self, run: Run, row: dict[str, Any]) -> None:
        if "epsilon" in row:
            self.world.life.epsilons.append((row["round"], row["epsilon"]))


# -- the checker -----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Only(Clients):
    """A simulation in which just those are asked, and just those answers arrive, that a record has."""

    clients: Any
    asked: Mapping[tuple[int, int], Cohort]
    keys: Mapping[tuple[int, int, int], bytes]  # round, turn, client: what its noise was drawn by, where there is any

    def everyone(self, round: int, turn: int = 0) -> Any:
        every, asked = self.clients.everyone(round, turn), self.asked[round, turn]
        here = every[torch.isin(every.index, asked.index)]  # who never came has no examples
        return replace(here, might=asked.might, seed=asked.seed)  # by which a center draws, where nobody may know it

    def answers(self, exchange: Any, state: State, cohort: Any) -> Any:
        for block in in_order(replace(cohort, seed=self.clients.seed)):
            key = self.keys.get((cohort.round, cohort.turn, int(block.index[0])))
            if key is not None:
                yield from self.clients.answers(exchange.secured(key), state, block)


def violations(world: World, ended: Run) -> Iterator[str]:
    """What must not be, in a history."""
    lines = list(read_record(world.root / "served" / "exchanges.jsonl"))
    exchanges = [line for line in lines if "sent" in line]
    yield from order(world, lines)
    yield from used_well(world, exchanges)
    yield from never_back(world, ended)
    yield from bits(world, ended, exchanges)


def order(world: World, lines: list[dict[str, Any]]) -> Iterator[str]:
    """Once."""
    rounds = world.settings.rounds
    keys = [(line["round"], line.get("turn", 99)) for line in lines]
    if keys != sorted(set(keys)) or {key[0] for key in keys if key[1] == 99} != set(range(rounds)):
        yield f"once: the record has {keys}"
    used = [letter for line in lines for letter in line.get("letters", {}).items()]
    if len(used) != len(set(used)):
        yield "once: a letter's reply is used twice"


def used_well(world: World, exchanges: list[dict[str, Any]]) -> Iterator[str]:
    """In time, and not lost."""
    wrote = {round: life for life in world.lives for round in life.rounds}  # the last that wrote it
    for line in exchanges:
        here, life = (line["round"], line["turn"]), wrote[line["round"]]
        if set(line["sent"]) != set(line["letters"]):
            yield f"in time: {here}: {sorted(line['sent'])} were used, and letters are of {sorted(line['letters'])}"
        for client, letter in line["letters"].items():
            facts = world.letters.get(letter)
            right = facts is not None and (facts.asks, facts.round, facts.turn, facts.client) == (
                "learn",
                *here,
                int(client),
            )
            if not right:
                yield f"in time: {here}: client {client}'s letter {letter} is of another exchange, or was never sent"
            lives = world.lives if world.stored else [life]  # what was stored had been seen by one before
            if not any(line["sent"][client] in seen_in_time(each, letter) for each in lives):
                yield f"in time: {here}: what client {client} sent was not seen while it was waited for"
        for client in line["left_out"]:
            letters = [
                letter
                for letter, facts in world.letters.items()
                if (facts.asks, facts.round, facts.turn, facts.client) == ("learn", *here, client)
            ]
            waits = [
                (began, end, letter) for began, end, marks in life.windows for letter in letters if letter in marks
            ]
            for began, end, letter in waits[-1:]:
                codes = [code for when, of, code, _ in life.seen if of == letter and began < when <= end]
                if codes[:1] == ["ok"] and letter in life.sent:  # of two replies to a letter, the first counts
                    yield f"not lost: {here}: client {client} was left out, and had answered"


def letters_for(world: World, round: int, turn: int, client: int) -> list[str]:
    """All letters that ever asked a client to learn in an exchange."""
    key = ("learn", round, turn, client)
    return [each for each, f in world.letters.items() if (f.asks, f.round, f.turn, f.client) == key]


def seen_in_time(life: Life, letter: str) -> list[dict[str, str]]:
    """What good replies to a letter brought, while they were waited for."""
    return [
        sent
        for when, answered, code, sent in life.seen
        if answered == letter and code == "ok"
        if any(began < when <= ended and letter in marks for began, ended, marks in life.windows)
    ]


def never_back(world: World, ended: Run) -> Iterator[str]:
    """Never back."""
    saved = 0
    for life in world.lives:
        if 0 <= life.began < saved:
            yield f"never back: server {life.number} began at round {life.began}, and {saved} was saved"
        saved = max(saved, life.saved)
    rows = Folder.open(world.root / "served").read_metrics()
    rounds, epsilons = [row["round"] for row in rows], [row.get("epsilon", 0.0) for row in rows]
    if rounds != sorted(set(rounds)) or epsilons != sorted(epsilons):
        yield f"never back: rounds {rounds}, epsilons {epsilons}"
    known: dict[int, float] = {}
    for round, epsilon in (pair for life in world.lives for pair in life.epsilons):
        if known.setdefault(round, epsilon) != epsilon:
            yield f"never back: the epsilon of round {round} was {known[round]}, and then {epsilon}"
    if world.name == "dp-fedavg" and not epsilons[-1] > 0:
        yield "never back: no epsilon was told"


def bits(world: World, ended: Run, exchanges: list[dict[str, Any]]) -> Iterator[str]:
    """The bits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = Given(federation=world.federation, secret=secret_of(world.root / "served.secret"))
        run = prepared(world.settings.changed(executor="looped", block=1), given)
    keys: dict[tuple[int, int, int], bytes] = {}
    for line in exchanges:
        for k in line["sent"]:
            own = Keeper({}, world.root / "nodes" / k / "served")
            keys[line["round"], line["turn"], int(k)] = own.secret(world.digests[line["letters"][k]])
    plain = run.state
    for _ in range(world.settings.rounds):
        plain, _ = run_round(run.method, plain, Only(run.clients, world.asked, keys))
    for part in ("centers", "memory"):
        mine, theirs = getattr(ended.state, part), getattr(plain, part)
        apart = mine.keys() ^ theirs.keys() or {n for n in mine if not torch.equal(mine[n].cpu(), theirs[n].cpu())}
        if apart:
            yield f"the bits: {part}/{', '.join(sorted(apart))}"
    last = {int(k): (line, letter) for line in exchanges for k, letter in line["letters"].items()}
    for client, (line, letter) in last.items() if plain.kept else ():
        name = f"kept-{line['round']:010d}-{line['turn']:04d}-{letter}.safetensors"
        path = world.root / "nodes" / str(client) / "served" / name
        kept = load_file(path) if path.is_file() else {}
        right = take(plain.kept, torch.tensor([client]))
        if kept.keys() != right.keys() or not all(torch.equal(kept[n], right[n]) for n in right):
            yield f"the bits: what client {client} keeps"


# -- many ------------------------------------------------------------------------------------------------------------


def played(number: int, seed: int, root: Path) -> dict[str, Any]:
    """One schedule: what is wrong, and what happened."""
    folder = root / f"schedule {number}"
    world = World(number, seed, folder)
    try:
        with world.hooks(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ended = world.play()
        wrong = list(violations(world, ended))
    except AssertionError as error:
        wrong = [str(error)]
    except Exception as error:  # nothing else may get out
        wrong = [f"{type(error).__name__}: {error}"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    deaths = [life.ended.partition(",")[0] for life in world.lives if life.ended]
    return {"number": number, "name": world.name, "wrong": wrong, "deaths": deaths, "told": world.story}


def schedules(n: int, seed: int = 0, jobs: int = 1, only: int | None = None, first: int = 0) -> dict[str, Any]:
    """How many schedules broke a rule, and which."""
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="schedules-", dir=_quick()))
    os.fsync = lambda descriptor: None  # type: ignore[assignment]  # nobody cuts the power
    try:
        numbers = list(range(first, first + n)) if only is None else [only]
        one = lambda number: played(number, seed, root)  # noqa: E731
        found = [one(number) for number in numbers] if jobs == 1 else spread(one, numbers, root, jobs)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    again = f"python tests/reliability/schedules.py 1 --seed {seed} --only"
    bad = [
        {"name": one["name"], "wrong": "; ".join(one["wrong"][:3]), "again": f"{again} {one['number']}"}
        for one in found
        if one["wrong"]
    ]
    return {
        "of": len(found),
        "bad": bad,
        "kills": sum(len(one["deaths"]) for one in found),
        "points": Counter(death for one in found for death in one["deaths"]),
        "nodes": Counter(line.split(": ")[1] for one in found for line in one["told"] if " died: " in line),
        "seconds": round(time.monotonic() - began, 1),
        **({"told": found[0]["told"] + found[0]["wrong"]} if only is not None else {}),
    }


def _quick() -> str | None:
    """A disk in memory, where there is one: thousands of small files."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def told(found: dict[str, Any]) -> str:
    """The counts for people."""
    return (
        f"servers ended {found['kills']} times: {dict(found['points'])}\nnodes died: {dict(found['nodes'])}\n"
        f"{len(found['bad'])} of {found['of']} schedules broke a rule; {found['seconds']:.0f} s"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(counted(schedules, "schedules", 1, told))
