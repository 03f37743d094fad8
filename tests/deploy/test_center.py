"""A center and nodes give the bits of a simulation in blocks of one, for every method; faults change nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polycentric as pc
from deploy.in_process import AtOnce, Badly, clients_of, deployed, trusting
from laws.test_contract import QUIET, build, every_method, recipe
from polycentric import Diverged, run_round
from polycentric.deploy.center import Nodes
from polycentric.deploy.letters import Reply
from polycentric.deploy.participant import Participant
from polycentric.method import State
from polycentric.round import Clients
from polycentric.runs.evaluate import evaluate
from polycentric.runs.folder import Folder
from polycentric.runs.loop import Run
from polycentric.runs.start import prepare
from polycentric.stacks.draw import uniform
from polycentric.stacks.stack import take
from support import Make, ready, recorded

SIZES = (23, 7, 12, 9, 14)
pytestmark = pytest.mark.filterwarnings("ignore:cfl. no center can split", "ignore:clients count by their examples")


def simulated(name: str, blobs: Make, **how: Any) -> Run:
    """A run whose settings say all of it, so that nodes can make it too; without noise, which is a secret there."""
    model = "logistic" if recipe(name) == "mocha" else "support:small"
    return ready(build(name, **QUIET.get(name, {})), blobs(SIZES), executor="looped", block=1, model=model, **how)


def same(a: State, b: State) -> None:
    """Bit for bit, all that a center has."""
    for part in ("centers", "memory"):
        mine, other = getattr(a, part), getattr(b, part)
        assert mine.keys() == other.keys()
        for name in mine:
            assert torch.equal(mine[name].cpu(), other[name].cpu()), f"{part}/{name}"


def last_of(center: Any, client: int) -> Any:
    """What a client must go on from."""
    return center.used[client].key if client in center.used else None


def same_kept(clients: dict[int, Participant], center: Any, plain: State) -> None:
    """What clients keep is at the nodes, and nowhere else."""
    for k, client in clients.items():
        assert client._node is not None
        kept = client._node[1].keeper.after(last_of(center, k))
        assert kept.keys() == plain.kept.keys()
        assert all(torch.equal(kept[n], take(plain.kept, torch.tensor([k]))[n]) for n in kept)


@every_method
def test_nodes_give_the_bits_of_a_simulation_in_blocks_of_one(name: str, blobs: Make, tmp_path: Path) -> None:
    """Also what it measures of itself, but for sums over all clients' examples, which nobody can make here."""
    run = simulated(name, blobs, rounds=3, evaluate_every=1)
    clients = clients_of(run.federation, tmp_path, limits=trusting)
    made = deployed(run, clients, lambda terms: AtOnce(clients, terms))
    made.go()
    run.go()
    same(made.state, run.state)
    same_kept(clients, made.remote, run.state)
    assert {note.what for note in made.remote.notes} == {"used"}
    for mine, plain in zip(made.history, run.history, strict=True):
        assert mine["micro_loss"] == pytest.approx(plain["micro_loss"], rel=1e-9)
        assert mine["macro_accuracy"] == plain["macro_accuracy"]
    for what in made.scores.keys() | run.scores.keys():
        assert made.scores[what].count.tolist() == run.scores[what].count.tolist()
        assert np.allclose(made.scores[what].loss, run.scores[what].loss, rtol=1e-9)


# -- replies -------------------------------------------------------------------------------------------------


def test_the_same_letter_gives_the_same_bytes_whatever_was_asked_since(blobs: Make, tmp_path: Path) -> None:
    """A reply is a function of letter, data and what was kept: asked again, also a round later, or restarted."""
    run = simulated("lg-fedavg", blobs, rounds=6)
    clients = clients_of(run.federation, tmp_path, limits=trusting)
    made = deployed(run, clients, lambda terms: AtOnce(clients, terms))
    center, state = made.remote, made.state
    parcels: list[list[bytes]] = []
    replies: list[list[bytes]] = []
    for round in range(5):
        letter = center._letter(made.method.at(round)[0], state, center.everyone(round)[:1])
        parcels.append([center.post.terms(0), letter])
        replies.append(clients[0].answer(parcels[-1]))
        restarted = clients_of(run.federation, tmp_path, limits=trusting)[0]
        assert restarted.answer(parcels[-1]) == replies[-1]
        for back in (1, 2):  # the center has lost rounds, and asks again
            assert round < back or clients[0].answer(parcels[-back]) == replies[-back]
        state, _ = run_round(made.method, state, center)
    assert len(list((tmp_path / "0" / "a-run").glob("kept-*"))) <= 5  # a few versions


SPOILED = "all nan, one nan, inf, 1e30, flip, wrong shape, row, dtype, missing, extra, another client, another round"
SPOILED += ", examples, huge, bytes, another letter"


@pytest.mark.parametrize("what", SPOILED.split(", "))
def test_no_reply_that_is_not_as_it_should_be_is_used(what: str, blobs: Make) -> None:
    """Two of five clients lie: the others' answers come through, and nothing raises."""
    run = simulated("fedavg", blobs)
    clients = clients_of(run.federation, limits=trusting)

    class Lying(AtOnce):
        def send(self, letters: Any) -> None:
            super().send(letters)
            self.replies = [(k, spoil(what, data) if k < 2 else data) for k, data in self.replies]

    ticks = iter(range(10**6))
    how: dict[str, Any] = {"deadline": 3.0, "clock": lambda: float(next(ticks)), "rest": lambda seconds: None}
    made = deployed(run, clients, lambda terms: Lying(clients, terms), **how, bound=1e6)
    after, trips = run_round(made.method, made.state, made.remote)
    used = [note.client for note in made.remote.notes if note.what == "used"]
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
        "extra": {"model": rows, "more": rows.clone()},
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
    run = simulated("fedavg", blobs)
    clients = clients_of(run.federation, limits=trusting)

    class Silent(AtOnce):
        def send(self, letters: Any) -> None:
            super().send({k: each for k, each in letters.items() if k != 1})

    now = [0.0]

    def rest(seconds: float) -> None:
        now[0] += seconds

    how: dict[str, Any] = {"deadline": 5.0, "clock": lambda: now[0], "rest": rest}
    made = deployed(run, clients, lambda terms: Silent(clients, terms), **how)
    state, waits = made.state, []
    for _ in range(12):
        before = now[0]
        state, trips = run_round(made.method, state, made.remote)
        waits.append(now[0] - before)
        assert made.remote.silent(trips[0]) == (waits[-1] > 0)
    assert max(waits) <= 5.0 + 1e-9 and sum(wait > 0 for wait in waits) < 8


def test_a_round_that_too_few_answer_is_asked_again_and_changes_nothing_until_then(blobs: Make) -> None:
    """With everybody away the center waits, round for round the same; they come back, and it goes on."""
    run = simulated("fedavg", blobs, rounds=2)
    clients = clients_of(run.federation, limits=trusting)
    now, said = [0.0], list[str]()

    class Away(AtOnce):
        def send(self, letters: Any) -> None:
            if now[0] >= 20:
                super().send(letters)

    def rest(seconds: float) -> None:
        now[0] += seconds

    how: dict[str, Any] = {"deadline": 5.0, "least": 5, "clock": lambda: now[0], "rest": rest, "log": said.append}
    made = deployed(run, clients, lambda terms: Away(clients, terms), **how)
    state, _ = run_round(made.method, made.state, made.remote)
    plain, _ = run_round(run.method, run.state, run.clients)
    same(state, plain)
    assert len(said) == 4 and "0 of 5 answered, 5 are needed" in said[0]
    assert [note.what for note in made.remote.notes] == ["used"] * 5


CODES = ["failed", "refused"]


@pytest.mark.parametrize("what", CODES)
def test_who_refuses_or_fails_at_once_is_asked_again_after_the_deadline_and_not_before(what: str, blobs: Make) -> None:
    """Otherwise a center would ask thousands of times in a second, and fill its log."""
    run = simulated("fedavg", blobs, rounds=2)
    clients = clients_of(run.federation, limits=trusting)
    now, said = [0.0], list[str]()

    class Unwilling(AtOnce):
        def send(self, letters: Any) -> None:
            super().send(letters)
            if now[0] < 20:
                self.replies = [(k, coded(data, what)) for k, data in self.replies]

    def rest(seconds: float) -> None:
        now[0] += seconds

    how: dict[str, Any] = {"deadline": 5.0, "clock": lambda: now[0], "rest": rest, "log": said.append}
    made = deployed(run, clients, lambda terms: Unwilling(clients, terms), **how)
    run_round(made.method, made.state, made.remote)
    assert len(said) == 4 and now[0] == 20


@pytest.mark.parametrize("what", CODES)
def test_a_majority_that_fails_is_no_training_that_diverges(what: str, blobs: Make) -> None:
    run = simulated("fedavg", blobs, rounds=2)
    clients = clients_of(run.federation, limits=trusting)

    class Unwilling(AtOnce):
        def send(self, letters: Any) -> None:
            super().send(letters)
            self.replies = [(k, data if k == 4 else coded(data, what)) for k, data in self.replies]

    made = deployed(run, clients, lambda terms: Unwilling(clients, terms)).go()
    assert made.state.round == 2 and made.tally.took is not None and made.tally.took.tolist() == [0, 0, 0, 0, 2]


@pytest.mark.parametrize("bound", [1e12, math.inf])
def test_a_training_that_diverges_everywhere_ends_and_says_so(bound: float, blobs: Make) -> None:
    """The same letter would be answered by the same numbers, however often it is sent."""
    how: dict[str, Any] = {"executor": "looped", "block": 1, "model": "support:small", "dtype": "float32"}
    run = ready(build("fedavg", lr=1e30), blobs(SIZES, dtype=torch.float32), **how, rounds=5)
    clients = clients_of(run.federation, limits=trusting)
    made = deployed(run, clients, lambda terms: AtOnce(clients, terms), bound=bound)
    with pytest.raises(Diverged, match="5 of 5 clients sent NaN"):
        made.go()


def coded(data: bytes, code: str) -> bytes:
    """A reply that says no more than a code."""
    return Reply(Reply.told(data).model_copy(update={"code": code}), {}).packed()


LIES = {
    "more examples": {"test/count": 1e11},
    "fewer examples": {"test/count": 1.0},
    "half an example": {"valid/count": 0.5},
    "no number of examples": {"test/count": float("nan")},
    "too accurate": {"test/accuracy": 1.5},
    "less than nothing": {"test/f1": -0.1},
}


@pytest.mark.parametrize("lie", LIES)
def test_scores_that_cannot_be_are_not_believed(lie: str, blobs: Make) -> None:
    """Of as many examples as a client has said to have, and no others: one that lies does not outweigh the rest."""
    run = simulated("fedavg", blobs, rounds=1)
    clients = clients_of(run.federation, limits=trusting)

    class Lying(AtOnce):
        def send(self, letters: Any) -> None:
            super().send(letters)
            self.replies = [(k, lied(data) if k == 1 else data) for k, data in self.replies]

    def lied(data: bytes) -> bytes:
        reply = Reply.read(data, 1 << 20)
        numbers = {name: torch.full((1, 1), value, dtype=torch.float64) for name, value in LIES[lie].items()}
        return Reply(reply.facts, reply.sent | numbers).packed() if "test/count" in reply.sent else data

    made = deployed(run, clients, lambda terms: Lying(clients, terms))
    plain, found = (
        evaluate(run.method, run.state, run.clients, run.federation.test),
        made.remote.scores(made.state, "test"),
    )
    assert found.count.tolist() == [n * (k != 1) for k, n in enumerate(plain.count)]
    assert [math.isnan(loss) for loss in found.loss] == [k == 1 for k in range(5)]


@pytest.mark.parametrize("loss", [1e308, -1e308, float("inf"), float("nan")])
def test_a_loss_that_is_no_number_ends_nothing(loss: float, blobs: Make, tmp_path: Path) -> None:
    run = simulated("fedavg", blobs, rounds=2, evaluate_every=1)
    clients = clients_of(run.federation, limits=trusting)

    class Lying(AtOnce):
        def send(self, letters: Any) -> None:
            super().send(letters)
            self.replies = [(k, lied(data) if k < 2 else data) for k, data in self.replies]

    def lied(data: bytes) -> bytes:
        reply = Reply.read(data, 1 << 20)
        told = {"test/loss": torch.tensor([[loss]], dtype=torch.float64)}
        return Reply(reply.facts, reply.sent | told).packed() if "test/count" in reply.sent else data

    made = deployed(run, clients, lambda terms: Lying(clients, terms))
    ended = recorded(made, tmp_path / "run").go()
    assert ended.state.round == 2
    assert len(Folder.open(tmp_path / "run").read_metrics()) == 3  # what cannot be written as JSON is not


# -- faults --------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Only(Clients):
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
@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_lost_doubled_late_or_killed_the_bits_are_those_of_who_was_used(
    name: str, seed: int, blobs: Make
) -> None:
    """A replayable schedule of faults, in a time of its own; the center is killed, and goes on from its checkpoint.

    An update counts at most once, nothing late is used, and the end is that of a simulation in which just those
    answers arrived.
    """
    check_schedule(name, seed, blobs)


def again(center: Nodes) -> Nodes:
    """A center that was started again, over the same post."""
    how = {name: getattr(center, name) for name in ("deadline", "clock", "rest")}
    return Nodes(center.run, center.method, center.clients, center.begins, center.post, center.rounds, **how)


def check_schedule(name: str, seed: int, blobs: Make, rounds: int = 4) -> None:
    run = simulated(name, blobs, rounds=rounds)
    clients = clients_of(run.federation, limits=trusting)
    made = deployed(run, clients, lambda terms: Badly(clients.__getitem__, terms, seed), deadline=5.0)
    center, state = made.remote, made.state
    center.clock, center.rest = center.post.clock, center.post.rest
    saved = (state, dict(center.used), len(center.notes))
    for round in range(rounds):
        if uniform(seed, "kill", torch.tensor(round)) < 0.3:  # in the middle of a round that is then done again
            run_round(made.method, state, center)
            state, used, n = saved
            notes, center = center.notes[:n], again(center)
            center.used, center.notes = dict(used), notes
        if uniform(seed, "score", torch.tensor(round)) < 0.5:
            center.missed.clear()
            center.scores(state, "test")
        center.missed.clear()  # everybody is asked in every round, as in the simulation
        state, _ = run_round(made.method, state, center)
        saved = (state, dict(center.used), len(center.notes))
    used = [(note.round, note.turn, note.client) for note in center.notes if note.what == "used"]
    assert len(used) == len(set(used))
    plain = run.state
    for _ in range(rounds):
        plain, _ = run_round(run.method, plain, Only(run.clients, set(used)))
    same(state, plain)
    for k, client in clients.items():
        if client._node is not None:
            kept = client._node[1].keeper.after(last_of(center, k))
            assert all(torch.equal(kept[n], take(plain.kept, torch.tensor([k]))[n]) for n in kept)


def test_boxes_are_learned_by_nodes_as_in_a_simulation(tmp_path: Path) -> None:
    """Scores of boxes too: every node finds and scores its own, and what is pooled over images nobody can tell."""
    data = pc.load("streets(104,64x64)", partition="natural=device5")
    how: dict[str, Any] = {"rounds": 1, "model": "yolo", "fine_tune": 0, "executor": "looped", "block": 1}
    run = prepare(pc.fedavg(), data, **how)
    clients = clients_of(data, tmp_path, limits=trusting)
    mine = clients[0].own  # this node has room for more boxes than any of its images has
    more = {name: torch.nn.functional.pad(getattr(mine, name).y, (0, 0, 0, 2)) for name in ("train", "valid", "test")}
    for y in more.values():
        y[:, -2:, 0] = -1
    splits = {name: replace(getattr(mine, name), y=y) for name, y in more.items()}
    clients[0] = replace(clients[0], own=replace(mine, **splits))
    made = deployed(run, clients, lambda terms: AtOnce(clients, terms))
    made.go()
    run.go()
    same(made.state, run.state)
    assert np.array_equal(made.scores["in_use"].marks["map50"].values, run.scores["in_use"].marks["map50"].values)
    assert "micro_map50" in made.metrics and "pooled_map50" not in made.metrics
    told = {
        f"{part}/{name}": torch.tensor(0.5) for part in ("test", "valid") for name in ("accuracy", "f1", "mark/map50")
    }
    told |= {f"{part}/count": torch.tensor(float(made.remote.scored_on[part][0])) for part in ("test", "valid")}
    assert made.remote._believed(0, told) and not made.remote._believed(
        0, told | {"test/mark/map50": torch.tensor(7.0)}
    )
