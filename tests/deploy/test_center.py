"""A center and nodes give the bits of a simulation in blocks of one, for every method; faults change nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from deploy.in_process import AtOnce, Badly, center_of, nodes_of
from laws.test_contract import MODELS, build, every_method
from polycentric import run_round
from polycentric.deploy.letters import Reply
from polycentric.method import State
from polycentric.stacks.draw import uniform
from polycentric.stacks.stack import take
from support import Make, ready, small

SIZES = (23, 7, 12, 9, 14)
pytestmark = pytest.mark.filterwarnings("ignore:cfl. no center can split", "ignore:clients count by their examples")


def same(a: State, b: State) -> None:
    """Bit for bit, all that a center has."""
    for part in ("centers", "memory"):
        mine, other = getattr(a, part), getattr(b, part)
        assert mine.keys() == other.keys()
        for name in mine:
            assert torch.equal(mine[name].cpu(), other[name].cpu()), f"{part}/{name}"


@every_method
def test_nodes_give_the_bits_of_a_simulation_in_blocks_of_one(name: str, blobs: Make, tmp_path: Path) -> None:
    how: dict[str, Any] = {"executor": "looped", "block": 1, "model": MODELS.get(name.partition(",")[0], small)}
    run = ready(build(name), blobs(SIZES), **how)
    nodes = nodes_of(run, tmp_path)
    center, state = center_of(run, AtOnce(nodes))
    plain = run.state
    for _ in range(3):
        plain, _ = run_round(run.method, plain, run.clients)
        state, _ = run_round(run.method, state, center)
        center.state = state
        same(state, plain)
    assert {note.what for note in center.notes} == {"used"}
    for k, node in nodes.items():  # what clients keep is at the nodes, and nowhere else
        kept = node.keeper.after(center.used.get(k))
        assert all(torch.equal(kept[n], take(plain.kept, torch.tensor([k]))[n]) for n in kept)
    assert state.kept == {} and (bool(plain.kept) == any(node.keeper.begins for node in nodes.values()))


# -- replies -------------------------------------------------------------------------------------------------


def test_the_same_letter_gives_the_same_bytes_whatever_was_asked_since(blobs: Make, tmp_path: Path) -> None:
    """A reply is a function of the letter, the data and what was kept: asked again, also a round later, or restarted."""
    run = ready(build("lg-fedavg"), blobs(SIZES), executor="looped", block=1)
    nodes = nodes_of(run, tmp_path)
    center, state = center_of(run, AtOnce(nodes))
    letters: list[bytes] = []
    replies: list[bytes] = []
    for round in range(5):
        letters.append(center._letter(run.method.at(round)[0], state, center.everyone(round)[:1]).packed())
        replies.append(nodes[0].answer(letters[-1]))
        assert nodes_of(run, tmp_path)[0].answer(letters[-1]) == replies[-1]  # restarted
        for back in (1, 2):  # the center has lost rounds, and asks again
            assert round < back or nodes[0].answer(letters[-back]) == replies[-back]
        state, _ = run_round(run.method, state, center)
    assert len(list((tmp_path / "0").iterdir())) <= 5  # a few versions


SPOILED = "all nan, one nan, inf, 1e30, flip, wrong shape, row, dtype, missing, extra, another client, another round"
SPOILED += ", examples, huge, bytes, another letter"


@pytest.mark.parametrize("what", SPOILED.split(", "))
def test_no_reply_that_is_not_as_it_should_be_is_used(what: str, blobs: Make) -> None:
    """Two of five clients lie: the others' answers come through, and nothing raises."""
    run = ready(build("fedavg"), blobs(SIZES), executor="looped", block=1)
    nodes = nodes_of(run)

    class Lying(AtOnce):
        def send(self, letters: Any) -> None:
            super().send(letters)
            self.replies = [(k, spoil(what, data) if k < 2 else data) for k, data in self.replies]

    ticks = iter(range(10**6))
    how: dict[str, Any] = {"deadline": 3.0, "clock": lambda: float(next(ticks)), "rest": lambda seconds: None}
    center, state = center_of(run, Lying(nodes), **how, bound=1e6)
    after, trips = run_round(run.method, state, center)
    used = [note.client for note in center.notes if note.what == "used"]
    assert all(bool(rows.isfinite().all()) for rows in after.centers.values())
    assert sorted(used) == ([0, 1, 2, 3, 4] if what == "flip" else [2, 3, 4])  # what looks honest is for robust rules
    assert len(trips[0].arrived) == len(used)


def spoil(what: str, data: bytes) -> bytes:
    reply = Reply.read(data, 1 << 20)
    rows, facts = reply.sent["model"].clone(), reply.facts
    changed: dict[str, Any] = {
        "all nan": {"model": rows * float("nan")},
        "one nan": {"model": rows.index_fill(1, torch.tensor([0]), float("nan"))},
        "inf": {"model": rows.index_fill(1, torch.tensor([0]), float("inf"))},
        "1e30": {"model": rows + 1e30},
        "flip": {"model": -10 * rows},
        "wrong shape": {"model": rows[:, 1:]},
        "row": {"model": rows[0]},
        "dtype": {"model": rows.float()},
        "missing": {},
        "extra": {"model": rows, "more": rows},
    }
    told: dict[str, Any] = {
        "another client": {"client": facts.client + 1},
        "another round": {"round": 7},
        "examples": {"examples": facts.examples + 10**12 % (1 << 39)},
        "another letter": {"letter": "0" * 64},
    }
    if what == "huge":
        return data + b"0" * (1 << 22)
    if what == "bytes":
        return data[: len(data) // 2]
    return Reply(facts.model_copy(update=told.get(what, {})), changed.get(what, reply.sent)).packed()


def test_a_silent_node_costs_a_deadline_and_then_less(blobs: Make) -> None:
    """The round ends by the deadline; from the third miss on it is asked every second round, then every fourth."""
    run = ready(build("fedavg"), blobs(SIZES), executor="looped", block=1)
    nodes = nodes_of(run)

    class Silent(AtOnce):
        def send(self, letters: Any) -> None:
            super().send({k: data for k, data in letters.items() if k != 1})

    now = [0.0]

    def rest(seconds: float) -> None:
        now[0] += seconds

    center, state = center_of(run, Silent(nodes), deadline=5.0, clock=lambda: now[0], rest=rest)
    waits = []
    for _ in range(12):
        before = now[0]
        state, _ = run_round(run.method, state, center)
        waits.append(now[0] - before)
    assert max(waits) <= 5.0 + 1e-9 and sum(wait > 0 for wait in waits) < 8
    assert [note.client for note in center.notes if note.what == "late"] == [1] * sum(wait > 0 for wait in waits)


# -- faults --------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Only:
    """A simulation of which only some answers arrive: those that a center has used."""

    clients: Any
    used: set[tuple[int, int, int]]  # round, turn, client

    def everyone(self, round: int, turn: int = 0) -> Any:
        return self.clients.everyone(round, turn)

    def answers(self, exchange: Any, state: State, cohort: Any) -> Any:
        for answer in self.clients.answers(exchange, state, cohort):
            if (cohort.round, cohort.turn, int(answer.block.index[0])) in self.used:
                yield answer


@pytest.mark.parametrize("name", ["fedavg", "fesem", "lg-fedavg", "feddane", "dpa-sgd", "fedmes"])
@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_lost_doubled_late_or_killed_the_bits_are_those_of_who_was_used(
    name: str, seed: int, blobs: Make
) -> None:
    """A replayable schedule of faults, in a time of its own; the center is killed, and goes on from its checkpoint.

    An update counts at most once, nothing late is used, and the end is that of a simulation in which just those
    answers arrived.
    """
    run = ready(build(name), blobs(SIZES), executor="looped", block=1)
    nodes = nodes_of(run)
    post = Badly(nodes.__getitem__, seed)
    how: dict[str, Any] = {"deadline": 5.0, "clock": post.clock, "rest": post.rest}
    center, state = center_of(run, post, **how)
    saved = (state, dict(center.used), len(center.notes))
    for round in range(4):
        if uniform(seed, "kill", torch.tensor(round)) < 0.3:  # in the middle of a round that is then done again
            run_round(run.method, state, center)
            state, used, n = saved
            fresh, _ = center_of(run, post, **how)
            fresh.used, fresh.notes, center = dict(used), center.notes[:n], fresh
        center.missed.clear()  # everybody is asked in every round, as in the simulation
        center.state = state
        state, _ = run_round(run.method, state, center)
        saved = (state, dict(center.used), len(center.notes))
    used = [(note.round, note.turn, note.client) for note in center.notes if note.what == "used"]
    assert len(used) == len(set(used))
    plain = run.state
    for _ in range(4):
        plain, _ = run_round(run.method, plain, Only(run.clients, set(used)))
    same(state, plain)
    for k, node in nodes.items():
        kept = node.keeper.after(center.used.get(k))
        assert all(torch.equal(kept[n], take(plain.kept, torch.tensor([k]))[n]) for n in kept)
