"""Several ranks are one process: the same bits for every method, and an end that can be gone on from.

This file is also the program of a rank: `python tests/simulate/test_ranks.py FOLDER` runs every case with whoever else
is there.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from polycentric import (
    METHODS,
    Exchange,
    GeometricMedian,
    Gossip,
    KeepPrivate,
    Krum,
    Mean,
    Median,
    Method,
    Momentum,
    Poisson,
    Simulation,
    Train,
    TrimmedMean,
    Uniform,
    UsageError,
)
from polycentric.cli import outcome
from polycentric.errors import OtherRankFailed
from polycentric.method import Held
from polycentric.parts.aggregate import Robust
from polycentric.parts.attack import LittleIsEnough, SignFlip
from polycentric.parts.before_rule import Bucketing, Clipping, NearestNeighbours, Quorum
from polycentric.round import Answer
from polycentric.runs.folder import Folder
from polycentric.runs.loop import Callback, Run
from polycentric.runs.start import prepare
from polycentric.simulate.clock import Physical
from polycentric.simulate.ranks import ALONE, Ranks, asked, dealt, join_ranks, own_device
from polycentric.stacks import all_rows
from polycentric.stacks.cohort import Cohort
from support import recorded, went_on

ROOT = Path(__file__).parents[2]
BUSY = 300  # seconds that ranks get where they take a few: other tests may have the machine
pytestmark = [
    pytest.mark.timeout(4 * BUSY),  # so that it is said what ranks wrote until then
    pytest.mark.xdist_group("ranks"),  # who else would wait for what they write
]


def other(folder: str, name: str) -> Any:
    """Another file of the tests."""
    spec = importlib.util.spec_from_file_location(f"beside_{name}", ROOT / "tests" / folder / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


contract, conftest = other("laws", "test_contract"), other("", "conftest")
build, blobs = contract.build, conftest.blobs_of
SIZES = (11, 7, 12, 1, 9, 4, 3)


@dataclass(frozen=True)
class Longest(Robust):
    """A user's own, that knows nothing of columns."""

    def of(self, rows: torch.Tensor, around: Any = None) -> torch.Tensor:
        return rows[rows.norm(dim=1).argmax()]


class OfLengthOne(Median):
    """A user's own, made of one of ours that is the same column by column."""

    def of(self, rows: torch.Tensor, around: Any = None) -> torch.Tensor:
        return super().of(rows / rows.norm(dim=1, keepdim=True))


@dataclass(frozen=True)
class Meeting(Gossip):
    """Neighbours who look at everybody in the end."""

    def meet(self, memory: Any, arrived: Cohort, centers: Any) -> Any:
        model = centers["model"]
        return memory, centers | {"model": 0.9 * model + 0.1 * model.mean(0, keepdim=True)}


@dataclass(frozen=True)
class Counted(Train):
    """Sends a number in another type than centers have."""

    def end(self, carry: Any, rows: Any, cohort: Cohort) -> Any:
        return super().end(carry, rows, cohort) | {"count": cohort.sizes[:, None].float() / 3}


@contextmanager
def small_columns(together: int = 0) -> Iterator[None]:
    """Pieces of so few columns that the smallest model has some for everybody; `together`: as `all_rows.TOGETHER`."""
    before = all_rows.LEAST, dict(all_rows.MOST), all_rows.TOGETHER, all_rows.TILE
    all_rows.TOGETHER, all_rows.TILE = together or before[2], 2
    all_rows.LEAST = all_rows.MOST["cpu"] = 7  # of 43: one is left over
    try:
        yield
    finally:
        all_rows.LEAST, all_rows.MOST, all_rows.TOGETHER, all_rows.TILE = before


SELDOM = {"rounds": 5, "evaluate_every": 5}  # what clients keep is at home meanwhile
# name: the method and its settings, and how it is run.
PECULIAR: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "private parts": ("fedavg", {"cut": KeepPrivate("dense*"), "select": Uniform(n=5)}, {}),
    "private parts on disk": ("fedavg", {"cut": KeepPrivate("dense*"), "select": Uniform(n=5)}, {"state": "disk"}),
    "kept where it is learned": ("fedavg", {"cut": KeepPrivate("dense*"), "select": Uniform(n=5)}, SELDOM),
    "kept on disk, seldom seen": (
        "fedavg",
        {"cut": KeepPrivate("dense*"), "select": Uniform(n=5)},
        {"state": "disk", "checkpoint_every": 2} | SELDOM,
    ),
    "kept, and rows seen": ("fedavg", {"cut": KeepPrivate("dense*"), "aggregate": Krum()}, SELDOM),
    "kept by several exchanges": ("lg-fedavg", {"warm_up": 3, "select": Uniform(n=5)}, SELDOM),
    "kept, and not written yet": ("lg-fedavg", {"warm_up": 9, "select": Uniform(n=5)}, SELDOM),
    "kept, and not finite": ("fedavg", {"cut": KeepPrivate("0*")}, SELDOM | {"model": contract.steep}),
    "last rows": ("fesem", {"absent": "last", "select": Uniform(n=5), "match": "distance", "reseed": True}, {}),
    "robust": ("fedavg", {"aggregate": Krum()}, {}),
    "robust, kept and attacked": (
        "fedavg",
        {"aggregate": NearestNeighbours(TrimmedMean(0.2)), "cut": KeepPrivate("dense*"), "select": Uniform(n=5)},
        {"attack": SignFlip(0.3), "held_out": 0.2} | SELDOM,
    ),
    "robust clusters": ("fesem", {"k": 2, "aggregate": GeometricMedian(), "match": "distance"}, {}),
    "robust cells": ("fedmes", {"aggregate": Quorum(Clipping(Median()), least=2)}, {}),
    "robust in buckets": ("fedprox", {"aggregate": Clipping(Bucketing(Mean()), iterations=2)}, {"workers": 2}),
    "robust, and not finite": ("fedavg", {"aggregate": Median()}, {"model": contract.steep}),
    "robust, and nobody comes": ("fedavg", {"aggregate": Median(), "select": Poisson(0.05)}, {}),
    "a graph, resumed": ("dpsgd", {"select": Uniform(n=5), "momentum": 0.9}, SELDOM),
    "a graph, recorded": ("dpsgd", {}, SELDOM | {"record": True}),
    "matchings, seldom seen": ("matcha", {"budget": 0.5, "cut": KeepPrivate("dense*")}, SELDOM | {"rounds": 7}),
    "a robust graph": ("dpsgd", {"aggregate": Clipping(Median()), "select": Uniform(n=6)}, SELDOM | {"workers": 2}),
    "a graph, attacked": ("dpsgd", {"aggregate": TrimmedMean(0.3)}, SELDOM | {"attack": SignFlip(0.3)}),
    "a graph, attackers know": ("dpsgd", {}, SELDOM | {"attack": LittleIsEnough(0.3)}),
    "a graph that meets": ("of one's own", {"topology": Meeting()}, SELDOM),
    "a graph, and a server": ("of one's own", {"optimizer": Momentum(0.9)}, SELDOM),
    "a graph, and a count": (
        "of one's own",
        {"learn": (Counted(lr=0.1),), "sends": ("model", "count"), "holds": {"count": Held(1)}},
        SELDOM | {"fine_tune": 0},
    ),
    "a graph, not finite": ("dpsgd", {}, SELDOM | {"model": contract.steep}),
    "a graph that centers step on": ("dpsgd", {"select": Poisson(0.4)}, SELDOM | {"checkpoint_every": 2}),
    "robust, recorded": ("fedavg", {"aggregate": Median()}, {"record": True}),
    "recorded": ("fedavg", {}, {"record": True}),
    "robust, many rows": ("fedavg", {"aggregate": NearestNeighbours(GeometricMedian())}, {}),
    "a rule of one's own": ("fedavg", {"aggregate": Longest()}, {}),
    "a rule like another": ("fedavg", {"aggregate": Quorum(OfLengthOne(), least=2)}, {}),
    "nobody comes": ("fedavg", {"select": Poisson(0.05)}, {}),
    "attacked": ("fedavg", {}, {"attack": SignFlip(0.3), "held_out": 0.2}),
    "not finite": ("fedavg", {}, {"model": contract.steep}),
    "a deadline": ("fedavg", {}, {"clock": Physical(frequency_spread=1.0, deadline=0.02)}),
    "patience": ("fedavg", {}, {"rounds": 3, "patience": 1}),
    "one block": ("fedavg", {}, {"block": 100, "executor": "stacked"}),
    "own blocks": ("fedavg", {}, {"block": None, "executor": "stacked"}),
    "threads": ("fedavg", {}, {"workers": 2}),
}
CASES = [*METHODS, *(name for name in PECULIAR if name != "own blocks")]


def case(name: str, ranks: Ranks, folder: Path | None = None, **given: Any) -> Run:
    """A run of two or three rounds in blocks of two clients, before its first round."""
    of, settings, how = PECULIAR.get(name, (name, {}, {}))
    own = {"learn": (Train(lr=0.1),), "topology": Gossip()} | settings
    method = Method.of(of, Exchange(**own)) if of == "of one's own" else build(of, **settings)
    federation = blobs(SIZES, valid=2)
    if "not finite" in name:
        federation = contract.absurd(federation, 2, 4)
    rounds = 3 if len(method.phases) > 1 else 2
    usual = {"model": contract.model_of(method), "executor": "looped", "block": 2, "rounds": rounds}
    how = usual | {"ranks": ranks} | how | given
    prepared = prepare(method, federation, **how)
    if folder and ranks.first:
        recorded(prepared, folder)
    return prepared


RESUMED = (
    "fesem",
    "last rows",
    "patience",
    "private parts on disk",
    "kept where it is learned",
    "a graph, resumed",
)


# -- a rank --------------------------------------------------------------------------------------------------


def main(where: Path) -> None:
    """Everything that two ranks are asked to do together; what they found is written beside it."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with small_columns(), join_ranks(BUSY) as ranks:
        for name in [*CASES, "own blocks"]:
            with small_columns(3 if "many rows" in name else 0):
                case(name, ranks, where / name).go()
        for name in RESUMED:
            begun = where / f"{name} resumed"
            case(name, ranks, begun, rounds=1).go()
            went_on(case(name, ranks), Folder.open(begun) if ranks.first else None)
        found = {"long text": ranks.text("å" * 3000 if ranks.first else ""), "empty text": ranks.text("")}
        found |= {"mistake of one": said(lambda: fails_at(ranks, {1}), ranks)}
        found |= {"mistake of all": said(lambda: fails_at(ranks, {0, 1}), ranks)}
        for name in ("kept where it is learned", "matchings, seldom seen"):
            looking, looked_at = Looking(), case(name, ranks)
            looked_at.callbacks = (*looked_at.callbacks, looking)
            looked_at.go()
            found |= {f"looked at {name}": looking.seen}
        found |= {"apart": said(lambda: drifts(ranks), ranks), "threads": threads_of_the_group()}
    for _ in range(100):  # the system may list a thread for a moment after it has ended
        if not (left := threads_of_the_group()):
            break
        time.sleep(0.1)
    found |= {"threads left": left}
    (where / f"rank {ranks.rank}.json").write_text(json.dumps(found))


class Looking(Callback):
    """A user's own, that looks at what clients keep, and at centers, after every round."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def on_round(self, run: Run, trips: Any) -> None:
        there = run.state.kept | run.state.centers
        self.seen.append([name for name, rows in there.items() if bool(rows.isfinite().all())] + [str(len(there))])


def threads_of_the_group() -> list[str]:
    """Of this process, as the system names them; nothing where it does not."""
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # it has just ended
            names.append(path.read_text().strip())
    return [name for name in names if "gloo" in name or "tcpstore" in name]


def said(do: Callable[[], object], ranks: Ranks) -> str:
    try:
        do()
    except (UsageError, OtherRankFailed) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def fails_at(ranks: Ranks, where: set[int]) -> None:
    with ranks.together():
        if ranks.rank in where:
            raise UsageError("no data here")


def drifts(ranks: Ranks) -> None:
    state = case("fedavg", ALONE).state
    ranks.check(state)
    model = state.centers["model"].clone()
    model[0, 0] += ranks.rank * 1e-7
    ranks.check(replace(state, centers={"model": model}, round=1))


def is_free(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0


@dataclass(frozen=True)
class Started:
    """A process that is a rank. It writes to files: into a pipe that nobody reads it could not write much."""

    process: subprocess.Popen[bytes]
    out: IO[str]
    error: IO[str]


@contextmanager
def started(arguments: list[str], **how: Any) -> Iterator[list[Started]]:
    """Two ranks on this machine's loopback, and nowhere else; nobody is left behind."""
    port = next(filter(is_free, random.sample(range(10_000, 30_000), 100)))  # no port that the system itself gives away
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    common = os.environ | {"PYTHONPATH": path, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    common |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    common |= {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # whoever is there first tells how often it has knocked
    ranks: list[Started] = []
    with ExitStack() as files:
        try:
            for rank in range(2):
                out, error = (files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))
                words, env = [sys.executable, *arguments], common | {"RANK": str(rank)}
                ranks.append(Started(subprocess.Popen(words, env=env, stdout=out, stderr=error, **how), out, error))
            yield ranks
        finally:
            for one in ranks:
                one.process.kill()
                one.process.wait()


def written(file: IO[str]) -> str:
    """What a rank has written so far, or all of it."""
    file.seek(0)
    return file.read()


def ended(ranks: list[Started], seconds: float = 400) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each, when all have come to their end."""
    until = time.monotonic() + seconds
    try:
        codes = [rank.process.wait(max(0.0, until - time.monotonic())) for rank in ranks]
    except subprocess.TimeoutExpired:
        pytest.fail(f"not done after {seconds:g} seconds:\n" + "\n".join(written(rank.error) for rank in ranks))
    return [(code, written(rank.out), written(rank.error)) for code, rank in zip(codes, ranks, strict=True)]


# -- the same bits -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks made of every case, in one start: of several workers the first starts them, the others wait."""
    place = tmp_path_factory.getbasetemp()
    place = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place  # that of all workers
    where, told = place / "ranks", place / "ranks.json"
    with (place / "ranks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not where.exists():
            where.mkdir()
            with started([__file__, str(where)]) as ranks:
                told.write_text(json.dumps(ended(ranks)))
    assert told.exists(), "the ranks did not come to their end, as another worker says"
    found = json.loads(told.read_text())
    assert [code for code, _, _ in found] == [0, 0], "".join(error for _, _, error in found)
    return where


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_are_one_process_bit_for_bit(name: str, together: Path, tmp_path: Path) -> None:
    with small_columns(3 if "many rows" in name else 0):
        alone = case(name, ALONE, tmp_path / "alone").go()
    shared, problems = Folder.open(together / name).load()
    assert problems == [] and shared is not None
    mine, _ = Folder.open(tmp_path / "alone").load()
    assert mine is not None and contract.same_bits(shared.state, mine.state)
    assert shared.tally == mine.tally
    for file in ("metrics.jsonl", "clients.csv"):  # every score, every client, before and after fine-tuning
        assert (together / name / file).read_bytes() == (tmp_path / "alone" / file).read_bytes()
    one, two = (json.loads((path / "summary.json").read_text()) for path in (tmp_path / "alone", together / name))
    assert {**one, "seconds": 0, "run_dir": ""} == {**two, "seconds": 0, "run_dir": ""}
    assert alone.state.round > 0


@pytest.mark.filterwarnings("ignore")
def test_blocks_that_nobody_asked_for_do_not_depend_on_the_ranks(together: Path) -> None:
    found, _ = Folder.open(together / "own blocks").load()
    with small_columns():
        alone = case("own blocks", ALONE).go()
    assert found is not None and alone.clients.block_size > 1
    assert torch.equal(found.state.centers["model"], alone.state.centers["model"])


@pytest.mark.parametrize("name", RESUMED)
def test_ranks_go_on_where_ranks_left_off(name: str, together: Path) -> None:
    parts, whole = (Folder.open(together / where).load()[0] for where in (f"{name} resumed", name))
    assert parts is not None and whole is not None and contract.same_bits(parts.state, whole.state)
    for file in ("metrics.jsonl", "clients.csv"):
        assert (together / f"{name} resumed" / file).read_bytes() == (together / name / file).read_bytes()


# -- keeping together ----------------------------------------------------------------------------------------


def test_what_ranks_tell_each_other(together: Path) -> None:
    first, second = (json.loads((together / f"rank {rank}.json").read_text()) for rank in (0, 1))
    assert first["long text"] == second["long text"] == "å" * 3000
    assert first["empty text"] == second["empty text"] == ""


@pytest.mark.parametrize(("name", "rounds"), [("kept where it is learned", 5), ("matchings, seldom seen", 7)])
def test_a_callback_of_the_users_own_sees_all_that_is_at_home(name: str, rounds: int, together: Path) -> None:
    for rank in (0, 1):
        seen = json.loads((together / f"rank {rank}.json").read_text())[f"looked at {name}"]
        assert seen == [["private", "model", "2"]] * rounds


def test_what_goes_wrong_is_said_by_one_rank(together: Path) -> None:
    first, second = (json.loads((together / f"rank {rank}.json").read_text()) for rank in (0, 1))
    assert first["mistake of one"] == "OtherRankFailed: rank 1 failed"
    assert second["mistake of one"] == "UsageError: no data here"
    assert first["mistake of all"] == "UsageError: no data here"
    assert second["mistake of all"] == "OtherRankFailed: rank 0 failed"


def test_ranks_whose_centers_differ_do_not_go_on(together: Path) -> None:
    first, second = (json.loads((together / f"rank {rank}.json").read_text()) for rank in (0, 1))
    assert first["apart"] == "nothing"
    assert second["apart"].startswith("UsageError: rank 1 has other centers than rank 0 after round 0")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for the names of threads")
def test_no_thread_outlives_the_group_and_meets_the_end_of_the_interpreter(together: Path) -> None:
    for rank in (0, 1):
        found = json.loads((together / f"rank {rank}.json").read_text())
        assert found["threads"] and found["threads left"] == []


def test_everybody_gets_a_share_and_the_largest_go_first() -> None:
    assert dealt([9, 5, 4, 1], 2) == [0, 1, 1, 0]
    owners = dealt([100, 1, 1, 1, 1, 1, 1], 3)
    assert [owners.count(rank) for rank in range(3)] == [1, 3, 3]
    owners = dealt([100, 1, 1, 1, 1, 1], 2)
    assert [owners.count(rank) for rank in range(2)] == [3, 3]  # nobody holds more blocks than their share
    assert dealt([], 4) == [] and dealt([1], 4) == [0]


def test_a_rank_alone_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert asked() == ALONE
    with join_ranks() as ranks:
        assert ranks.first and ranks.text("a") == "a" and ranks.mine([1, 2, 3]) == [1, 2, 3]
        ones = torch.ones(2)
        ranks.add(ones)
        assert ones.tolist() == [1, 1]


def test_blocks_are_learned_once_each_and_few_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks in turn, one behind the other: each is given its own blocks, a few at a time."""
    clients: Simulation = case("fedavg", ALONE).clients
    blocks = list(clients.everyone(0).blocks(1)) * 5  # 35 blocks
    asked_of: dict[int, list[list[int]]] = {0: [], 1: []}
    monkeypatch.setattr(Ranks, "stacks", lambda self, parcel, owner: {"sent": {}, "kept": {}})
    for rank in (0, 1):

        def learn(some: Any, kept: None, rank: int = rank) -> Iterator[Answer]:
            asked_of[rank].append([id(block) for block in some])
            yield from (Answer(block, {}, {}) for block in some)

        assert len(list(Ranks(rank, 2).answers(blocks, learn, {}))) == 35
    assert all(len(some) <= 4 for lists in asked_of.values() for some in lists)
    every = [one for lists in asked_of.values() for some in lists for one in some]
    assert sorted(every) == sorted(map(id, blocks))
    assert isinstance(blocks[0], Cohort)


# -- refusals ------------------------------------------------------------------------------------------------


def test_a_rank_has_a_gpu_of_its_own_unless_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Ranks(0, 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert own_device("cuda", two) == ("cuda:1", two)
    with pytest.warns(UserWarning, match="cuda:0 is one GPU for 2 ranks, which share it: with --device cuda"):
        device, ranks = own_device("cuda:0", two)
    assert (device, ranks.by_host) == ("cuda:0", True)
    assert ranks.counted is two.counted and not two.by_host
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(
        UsageError, match=r"rank 3 of this machine has no GPU of its own, there are 2: .*nproc-per-node 2"
    ):
        own_device("cuda", two)
    assert own_device("cpu", two) == ("cpu", two) and own_device("cuda:0", ALONE) == ("cuda:0", ALONE)


def test_what_travels_through_the_host_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that is not where its copy is: what others say of the copy is written to it."""
    monkeypatch.setattr(torch.Tensor, "cpu", torch.Tensor.clone)
    there = torch.zeros(3)
    Ranks(0, 2, by_host=True)._over(there, lambda wire: wire.add_(2))
    assert there.tolist() == [2, 2, 2]


def test_ranks_must_wait_for_some_time() -> None:
    with pytest.raises(UsageError, match="more than 0 seconds, got 0; try 600"), join_ranks(0):
        pass


@pytest.mark.parametrize(("rank", "says"), [("0", True), ("1", False)])
def test_commands_that_ranks_cannot_share_are_refused_once(
    rank: str, says: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert outcome(["compare", "fedavg", "nofed"]) == 2
    told = "torchrun works with run, resume, bench only, got 'compare': leave torchrun out" in capsys.readouterr().err
    assert told is says


# -- a rank that dies ----------------------------------------------------------------------------------------

COMMAND = ["-m", "polycentric", "run", "fesem", "--data", "digits", "--partition", "rotations=4", "--clients", "12"]
COMMAND += ["--executor", "stacked", "--set", "k=2", "--set", "absent=last", "--evaluate-every", "1"]


def lines(path: Path) -> int:
    return path.read_text().count("\n") if path.is_file() else 0


@contextmanager
def begun(folder: Path, rounds: int, more: int, *options: str, command: list[str] = COMMAND) -> Iterator[list[Started]]:
    """Two ranks that have evaluated some rounds and are at work."""
    words = [*command, "--rounds", str(rounds), "--out", folder.name, *options]
    until = time.monotonic() + BUSY
    with started(words, cwd=folder.parent) as ranks:
        while lines(folder / "metrics.jsonl") <= more:
            codes = [rank.process.poll() for rank in ranks]
            if codes != [None, None] or time.monotonic() > until:
                said = "\n".join(written(rank.error) for rank in ranks)
                pytest.fail(f"the ranks did not come to work, their exit codes are {codes}:\n{said}")
            time.sleep(0.1)
        yield ranks


def test_the_death_of_a_rank_ends_the_run_and_resume_goes_on(tmp_path: Path) -> None:
    with begun(tmp_path / "run", 100_000, 2) as ranks:
        ranks[1].process.kill()
        (code, out, error), (killed, *_) = ended(ranks, BUSY)
    assert (code, out, killed) == (1, "", -signal.SIGKILL)
    assert error.strip().splitlines()[-1] == (
        "error: one of the 2 ranks was ended or has failed; "
        "`polycentric resume run` continues from the last complete round"
    )
    folder = Folder.open(tmp_path / "run")
    found, problems = folder.load()
    assert problems == [] and found is not None and found.state.round >= 1
    assert len(found.history) == found.state.round + 1

    rounds = found.state.round + 2  # as if the run had been asked for a few rounds more
    settings, needs = folder.read_config()
    folder.write_config(settings.changed(rounds=rounds), needs)
    assert outcome(["resume", str(tmp_path / "run"), "--quiet"]) == 0  # alone: that ranks go on as well, is shown above
    assert folder.read_json("summary.json")["rounds"] == rounds

    block = folder.read_json("config.json")["block"]
    assert block == "work"
    words = [*COMMAND[2:], "--rounds", str(rounds), "--block", str(block), "--out", str(tmp_path / "one"), "--quiet"]
    assert outcome(words) == 0
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == (tmp_path / "one/metrics.jsonl").read_bytes()
    assert (tmp_path / "run/clients.csv").read_bytes() == (tmp_path / "one/clients.csv").read_bytes()


@pytest.mark.long
def test_a_rank_that_dies_takes_nothing_with_it_but_rounds_since_all_was_looked_at(tmp_path: Path) -> None:
    command = ["-m", "polycentric", "run", "fedavg", "--data", "digits", "--clients", "12", "--executor", "stacked"]
    command += ["--set", "cut=private(dense*)", "--model", "mlp", "--evaluate-every", "7"]
    with begun(tmp_path / "run", 100_000, 3, command=command) as ranks:
        ranks[1].process.kill()
        (code, _, error), _ = ended(ranks, BUSY)
    assert code == 1 and "`polycentric resume run` continues from the last complete round" in error
    folder = Folder.open(tmp_path / "run")
    found, problems = folder.load()
    assert problems == [] and found is not None and found.state.round >= 7 and found.state.round % 7 == 0
    assert list(found.state.kept) == ["private"] and bool(found.state.kept["private"].isfinite().all())
    rounds = found.state.round + 3
    settings, needs = folder.read_config()
    folder.write_config(settings.changed(rounds=rounds), needs)
    assert outcome(["resume", str(tmp_path / "run"), "--quiet"]) == 0
    assert folder.read_json("config.json")["block"] is None  # the command's own choice again
    words = [*command[2:], "--rounds", str(rounds), "--out", str(tmp_path / "one"), "--quiet"]
    assert outcome(words) == 0
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == (tmp_path / "one/metrics.jsonl").read_bytes()
    assert (tmp_path / "run/clients.csv").read_bytes() == (tmp_path / "one/clients.csv").read_bytes()


@pytest.mark.long
def test_a_rank_that_says_nothing_is_waited_for_so_long_and_no_longer(tmp_path: Path) -> None:
    with begun(tmp_path / "run", 100_000, 2, "--wait", "3") as ranks:
        ranks[1].process.send_signal(signal.SIGSTOP)
        ((code, _, error),) = ended(ranks[:1], BUSY)  # half of what it would wait for unasked
    assert code == 1
    assert "one of the 2 ranks has said nothing for 3 seconds; `polycentric resume run` continues" in error
    assert Folder.open(tmp_path / "run").load()[1] == []


@pytest.mark.long
def test_ranks_resume_by_the_command_and_one_of_them_tells(tmp_path: Path) -> None:
    for words in ([*COMMAND, "--rounds", "2", "--out", "run"], ["-m", "polycentric", "resume", "run", "--rounds", "4"]):
        with started([*words, "--json"], cwd=tmp_path) as ranks:
            (code, out, error), (other, nothing, silent) = ended(ranks)
        assert (code, other, nothing, silent) == (0, 0, "", ""), error + silent
    assert json.loads(out)["rounds"] == 4
    words = [*COMMAND[2:], "--rounds", "4", "--out", str(tmp_path / "one"), "--quiet"]
    assert outcome(words) == 0
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == (tmp_path / "one/metrics.jsonl").read_bytes()


@pytest.mark.long
def test_torchrun_itself(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *COMMAND]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*words, "--rounds", "2", "--json"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 2
    wrong = subprocess.run(
        [*words, "--set", "kk=2"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert wrong.returncode != 0
    assert wrong.stderr.count("unknown setting of fesem 'kk'") == 1  # said by one rank


if __name__ == "__main__":
    main(Path(sys.argv[1]))
