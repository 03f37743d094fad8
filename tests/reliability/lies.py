"""Replies that lie: 2 of 11 clients send what is no model, or one that harms, through the server's real code.

    python tests/reliability/lies.py 140              every lie for the mean and every robust rule
    python tests/reliability/lies.py 140 --only 17    one of them again, with what the server said

Every run is `serve` with eleven nodes in this process, alike but for what the first two send. Where the rule is the
mean, every number of the model must be finite in the end, and the run finished. Where it is robust, the model must be
within a tenth of what the mean of the nine honest ones alone comes to: |w - honest| <= 0.1 |honest|.
"""

from __future__ import annotations

import json
import shutil
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import federation_of
from deploy.in_process import clients_of
from deploy.test_serve import Hand
from polycentric import Federation
from polycentric.deploy import roster
from polycentric.deploy.letters import Reply, packed, unpacked
from polycentric.deploy.roster import Here, is_here
from polycentric.deploy.serve import Waiting, serve
from polycentric.runs.loop import Run
from polycentric.runs.settings import Settings
from reliability.forked import counted

CLIENTS, LIARS, ROUNDS, NEAR = 11, 2, 3, 0.1
RULES = ["mean", "trimmed-mean(beta=0.2)", "median", "krum(attackers=0.2)", "geometric-median", "quorum(median)"]
RULES += ["nnm(trimmed-mean(beta=0.2))", "bucketing(median)", "clipping(median)"]
RULES += ["clipping(nnm(trimmed-mean(beta=0.2)))"]  # clipping around the mean bounds what liars do, to a fifth here
Change = Callable[[torch.Tensor], dict[str, torch.Tensor]]


def _first(rows: torch.Tensor, value: float) -> dict[str, torch.Tensor]:
    return {"model": rows.index_fill(1, torch.tensor([0]), value)}


NUMBERS: dict[str, Change] = {
    "all NaN": lambda rows: {"model": rows * float("nan")},
    "one NaN": lambda rows: _first(rows, float("nan")),
    "+Inf": lambda rows: _first(rows, float("inf")),
    "1e30": lambda rows: {"model": rows + 1e30},
    "flipped, times 10": lambda rows: {"model": -10 * rows},
    "wrong shape": lambda rows: {"model": rows[:, 1:].clone()},
    "a shape that broadcasts": lambda rows: {"model": rows[:, :1].clone()},
    "missing": lambda rows: {},
    "one more": lambda rows: {"model": rows, "more": rows.clone()},
}
WORDS: dict[str, tuple[bytes, bytes]] = {  # in the facts
    "examples NaN": (b'"examples": EXAMPLES', b'"examples": NaN'),
    "examples 1e12": (b'"examples": EXAMPLES', b'"examples": 1000000000000'),
    "examples -1000": (b'"examples": EXAMPLES', b'"examples": -1000'),
}
STRINGS = "text instead of numbers"
GREETING = "flipped, times 10, of 1e9 examples from the greeting on"
LIES = [*NUMBERS, STRINGS, *WORDS, GREETING]


def lied(lie: str, data: bytes) -> bytes:
    """A reply as a liar sends it."""
    reply = Reply.read(data, 1 << 26)
    if lie in NUMBERS:
        return Reply(reply.facts, NUMBERS[lie](reply.sent["model"])).packed()
    if lie == GREETING:
        facts = reply.facts.model_copy(update={"examples": 10**9})
        return Reply(facts, {"model": -10 * reply.sent["model"]}).packed()
    if lie == STRINGS:
        head = json.dumps(reply.facts.model_dump()).encode()
        names = json.dumps({"model": {"dtype": "STRING", "shape": [1, 4], "data_offsets": [0, 16]}}).encode()
        return struct.pack(">I", len(head)) + head + struct.pack("<Q", len(names)) + names + b"sixteen letters."
    old, new = WORDS[lie]
    n = struct.unpack(">I", data[:4])[0]
    told = str(reply.facts.examples).encode()
    head = data[4 : 4 + n].replace(old.replace(b"EXAMPLES", told), new)
    assert new in head
    return struct.pack(">I", len(head)) + head + data[4 + n :]


@dataclass(eq=False)
class Lying(Hand):
    """A carrier some of whose nodes lie."""

    lie: str = ""
    liars: tuple[str, ...] = ()
    changed: set[bytes] = field(default_factory=set)

    def send(self, parcels: Mapping[str, Sequence[bytes]], seconds: float) -> None:
        super().send(parcels, seconds)
        self.replies = [
            (id, [self._told(id.removeprefix("id-"), reply) for reply in each]) for id, each in self.replies
        ]

    def _told(self, name: str, reply: bytes) -> bytes:
        if name not in self.liars or not self.lie or reply in self.changed:
            return reply
        if is_here(reply):
            facts, tensors = unpacked(reply, Here, 1 << 26)
            many = facts.sizes.model_copy(update={"train": 10**9})
            new = packed(facts.model_copy(update={"sizes": many}), tensors) if self.lie == GREETING else reply
        else:
            new = lied(self.lie, reply) if "model" in Reply.read(reply, 1 << 26).sent else reply
        self.changed.add(new)
        return new


@cache
def everybody() -> Federation:
    """Eleven clients with examples of the same kind."""
    made = torch.Generator().manual_seed(7)
    means = 2 * torch.randn(3, 8, generator=made)

    def part(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.randint(3, (n,), generator=made)
        return means[y] + torch.randn(n, 8, generator=made), y

    return federation_of([part(60 + k) for k in range(CLIENTS)], [part(10) for _ in range(CLIENTS)], classes=3)


@cache
def _fixed() -> torch.Tensor:
    return roster.fixed_training()


def run_of(rule: str, lie: str, folder: Path, said: list[str] | None = None) -> Run:
    """A served run with liars; without a lie they are silent."""
    found = clients_of(everybody(), folder / "nodes")
    for k, client in found.items():
        client.name = f"ward-{k:02d}"
    liars = tuple(f"ward-{k:02d}" for k in range(LIARS))
    carrier = Lying({client.name: client for client in found.values()}, lie=lie, liars=liars)
    names = sorted(carrier.clients)
    if not lie:
        carrier.online -= set(liars)
    words: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch": 10, "aggregate": rule}
    asked = {"method": "fedavg", "model": "logistic", "rounds": ROUNDS, "fine_tune": 0, "set": words}
    now = [0.0]

    def rest(seconds: float) -> None:
        now[0] += seconds

    how = Waiting(CLIENTS if lie else CLIENTS - LIARS, deadline=5.0, wait=60.0)
    fixed = _fixed()
    with warnings.catch_warnings(), mock.patch.object(roster, "fixed_training", lambda: fixed):  # the same every time
        warnings.simplefilter("ignore")
        log = (lambda line: None) if said is None else said.append
        time_of: dict[str, Any] = {"clock": lambda: now[0], "rest": rest}
        return serve(Settings.of(asked), carrier, folder / "served", how, names=names, log=log, **time_of)


def tried(number: int, folder: Path) -> dict[str, Any]:
    """One rule and one lie."""
    rule, lie = RULES[number // len(LIES) % len(RULES)], LIES[number % len(LIES)]
    said: list[str] = []
    wrong, far = "", float("nan")
    try:
        model = run_of(rule, lie, folder, said).state.centers["model"]
        finished = (folder / "served" / "summary.json").is_file()
        if not finished or not bool(model.isfinite().all()):
            wrong = "not finished" if not finished else "not finite"
        honest = alone(folder.parent)
        far = float((model - honest).norm() / honest.norm())
        if rule != "mean" and not far <= NEAR:
            wrong = f"{far:.3g} from the honest mean"
    except Exception as error:  # whatever they send, nothing ends the run
        wrong = f"{type(error).__name__}: {error}"
    return {"number": number, "name": f"{rule}, {lie}", "wrong": wrong, "far": far, "told": said}


_ALONE: dict[int, torch.Tensor] = {}


def alone(root: Path) -> torch.Tensor:
    """What the mean of the honest clients alone comes to."""
    if not _ALONE:
        _ALONE[0] = run_of("mean", "", root / "alone").state.centers["model"]
    return _ALONE[0]


def lies(n: int, seed: int = 0, jobs: int = 1, only: int | None = None, first: int = 0) -> dict[str, Any]:
    """How many of n lies did harm."""
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="lies-"))
    try:
        numbers = range(first, first + n) if only is None else [only]
        found = [tried(number, root / str(number)) for number in numbers]
    finally:
        shutil.rmtree(root, ignore_errors=True)
    again = "python tests/reliability/lies.py 1 --only"
    bad = [
        {"name": one["name"], "wrong": one["wrong"], "again": f"{again} {one['number']}"}
        for one in found
        if one["wrong"]
    ]
    robust = [one["far"] for one in found if not one["name"].startswith("mean") and not one["wrong"]]
    return {
        "of": len(found),
        "bad": bad,
        "farthest": max(robust, default=0.0),
        "seconds": round(time.monotonic() - began, 1),
        **({"told": found[0]["told"]} if only is not None else {}),
    }


def told(found: dict[str, Any]) -> str:
    """The counts for people."""
    return (
        f"{found['of'] - len(found['bad'])} of {found['of']} lies did no harm; where a rule is robust, models end at "
        f"most {found['farthest']:.2%} from the honest mean; {found['seconds']:.0f} s"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(counted(lies, "lies", 1, told))
