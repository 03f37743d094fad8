"""Processes beside each other: the bits of one, the same errors and warnings, and no end that goes unnoticed."""

from __future__ import annotations

import gc
import json
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import polycentric as pc
from polycentric import Federation, KeepPrivate, Krum, UsageError, dpsgd, fedavg, fesem, ifca
from polycentric.cli import outcome
from polycentric.errors import Lost
from polycentric.method import State
from polycentric.parts.attack import Collusion
from polycentric.round import run_round
from polycentric.runs.folder import Folder
from polycentric.runs.start import prepare
from polycentric.simulate.processes import Piece, Processes, available
from polycentric.simulate.share_out import one_math_thread
from polycentric.simulate.shared_memory import Segment, Segments, bytes_of
from polycentric.stacks import all_rows
from polycentric.stacks.stack import apart
from support import Make

pytestmark = pytest.mark.skipif(not available(), reason="this system cannot copy a process")
SIZES = (9, 3, 30, 1, 14, 6, 7, 22)


def after(method: Any, federation: Federation, rounds: int = 3, **how: Any) -> dict[str, torch.Tensor]:
    run = prepare(method, federation, **({"model": "mlp", "block": 2} | how))
    state = run.state
    for _ in range(rounds):
        state, _ = run_round(run.method, state, run.clients)
    run.clients.close()
    return state.centers | state.kept | state.memory


METHODS = {
    "one center": lambda: fedavg(lr=0.05, epochs=2, batch=5),
    "what clients keep": lambda: fedavg(lr=0.05, batch=5, cut=KeepPrivate("dense*")),
    "places are noted": lambda: fesem(k=3, lr=0.05, batch=5, match="distance"),
    "all rows at once": lambda: fesem(k=2, lr=0.05, batch=5),
    "a choice of models": lambda: ifca(k=2, lr=0.05, batch=5),
    "neighbours": lambda: dpsgd(lr=0.05, batch=5),
    "a rule that sees rows": lambda: fedavg(lr=0.05, batch=5, aggregate=Krum()),
}


def test_threads_that_have_mixed_leave_nothing_that_a_copied_process_waits_for(
    blobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_rows, "LEAST", 64)
    monkeypatch.setattr(all_rows, "LARGE", 0)
    monkeypatch.setitem(all_rows.MOST, "cpu", 64)
    federation, found = blobs(sizes=SIZES), []
    for n in (1, 3):
        with one_math_thread(True, n):  # one exchange after another: workers are copied anew while threads come and go
            found.append(after(fesem(k=2, lr=0.05, batch=5, warm_up=1), federation, workers=n, executor="stacked"))
            found[-1] |= {"graph": after(dpsgd(lr=0.05, batch=5), federation, workers=n)["model"]}
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


@pytest.mark.parametrize("name", METHODS)
def test_any_number_of_processes_gives_the_bits_of_one(name: str, blobs: Make) -> None:
    federation = blobs(sizes=SIZES)
    one, *others = (after(METHODS[name](), federation, executor="stacked", workers=n) for n in (1, 2, 3))
    for other in others:
        assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_attackers_that_see_all_rows_see_them(blobs: Make) -> None:
    federation = blobs(sizes=SIZES)
    one, two = (after(fedavg(), federation, attack=Collusion(0.3), workers=n) for n in (1, 2))
    assert torch.equal(one["model"], two["model"])


def test_modules_that_draw_draw_the_same(blobs: Make) -> None:
    federation = blobs(sizes=SIZES)
    n, k = federation.train.x[0].numel(), len(federation.classes)

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(n, k))

    torch.manual_seed(0)
    module = model()
    one, two = (after(fedavg(lr=0.1, batch=5), federation, model=module, executor="looped", workers=w) for w in (1, 2))
    assert torch.equal(one["model"], two["model"])


def test_an_answer_that_is_not_finite_is_left_out_there_too(blobs: Make) -> None:
    federation = blobs(sizes=SIZES)
    federation.train.x[: SIZES[0]] = float("nan")
    one, two = (after(fedavg(), federation, executor="stacked", workers=n) for n in (1, 2))
    assert torch.equal(one["model"], two["model"]) and bool(two["model"].isfinite().all())


def test_an_error_is_the_one_that_a_single_process_meets(blobs: Make) -> None:
    run = prepare(METHODS["one center"](), blobs(sizes=SIZES), model="mlp", executor="looped", block=1, workers=2)
    with pytest.raises(RuntimeError, match="split"):
        run_round(run.method, State({"model": torch.zeros(1, 3)}, {}, {}), run.clients)
    state, _ = run_round(run.method, run.state, run.clients)  # and work goes on after it
    assert bool(state.centers["model"].isfinite().all())
    run.clients.close()


# -- the processes by themselves ---------------------------------------------------------------------------------


def doubled(state: State, piece: Piece) -> dict[str, dict[str, torch.Tensor]]:
    return {"found": {"x": piece.tensors["in"]["x"] * 2 + state.centers["model"]}}


def piece(k: int) -> Piece:
    return Piece({"k": k}, {"in": {"x": torch.full((k,), float(k))}})


def state_of(value: float) -> State:
    return State({"model": torch.tensor([value])}, {}, {})


def found(pool: Processes, job: Any, n: int, value: float = 0.0, key: tuple[object, ...] = ("a",)) -> list[Any]:
    return [answer["found"]["x"].clone() for answer in pool.each(key, job, state_of(value), n, piece)]


def test_answers_come_in_order_with_the_state_of_the_day_and_memory_is_used_again() -> None:
    pool = Processes(3)
    for value in (0.0, 5.0, -1.0):
        answers = found(pool, doubled, 40, value)
        assert [a.tolist() for a in answers] == [[2 * k + value] * k for k in range(40)]
    pids = [worker.pid for worker in pool._workers]
    assert all(len(worker._theirs) <= 13 for worker in pool._workers)  # 40 answers three times over, 12 held at once
    found(pool, lambda state, piece: doubled(state, piece), 3, key=("b",))  # a new job: new workers
    assert {worker.pid for worker in pool._workers}.isdisjoint(pids)
    assert [a.tolist() for a in found(pool, doubled, 3)] == [[], [2.0], [4.0, 4.0]]  # who still know the old one
    pool.close()
    assert not pool._workers and [a.tolist() for a in found(pool, doubled, 2)] == [[], [2.0]]
    pool.close()


def test_an_answer_that_is_held_is_not_written_over() -> None:
    pool = Processes(2)
    held = [answer["found"]["x"] for answer in pool.each(("a",), doubled, state_of(0.0), 10, piece)]
    found(pool, doubled, 20, 7.0)
    assert [a.tolist() for a in held] == [[2.0 * k] * k for k in range(10)]
    pool.close()


def test_whoever_holds_many_answers_has_them_and_few_descriptors() -> None:
    pool, before = Processes(2), len(os.listdir("/dev/fd"))
    held = [answer["found"]["x"] for answer in pool.each(("a",), doubled, state_of(0.0), 300, piece)]
    assert len(os.listdir("/dev/fd")) - before < 100
    found(pool, doubled, 20, 7.0)
    assert [a.tolist() for a in held] == [[2.0 * k] * k for k in range(300)]
    assert all(a.numel() == 0 or a.data_ptr() % 64 == 0 for a in held)
    pool.close()


def test_a_second_asker_is_answered_while_the_first_still_listens() -> None:
    pool = Processes(2)
    first = pool.each(("a",), doubled, state_of(0.0), 30, piece)
    begun = [next(first)["found"]["x"].tolist() for _ in range(3)]
    assert [a.tolist() for a in found(pool, doubled, 4, 5.0)] == [[2.0 * k + 5] * k for k in range(4)]
    found(pool, lambda state, piece: doubled(state, piece), 4, key=("b",))
    assert begun + [a["found"]["x"].tolist() for a in first] == [[2.0 * k] * k for k in range(30)]
    pool.close()


@pytest.mark.parametrize("n", [4, 40])
def test_answers_of_workers_that_were_ended_are_not_waited_for(n: int) -> None:
    pool = Processes(2)
    answers = pool.each(("a",), doubled, state_of(0.0), n, piece)
    next(answers)
    pool.close()
    with pytest.raises(Lost, match="before they had answered"):
        list(answers)
    assert len(found(pool, doubled, 3)) == 3
    pool.close()


def test_a_process_may_have_many_files_open() -> None:
    resource = pytest.importorskip("resource")
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2000:
        pytest.skip("this system allows few")
    files, pool = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)], Processes(2)
    try:
        assert len(found(pool, doubled, 5)) == 5
    finally:
        pool.close()
        for file in files:
            os.close(file)


def test_what_a_worker_warns_of_is_said_here_and_what_fails_there_fails_here() -> None:
    parent = os.getpid()

    def warns(state: State, piece: Piece) -> Any:
        warnings.warn(f"piece {piece.words['k']}", stacklevel=2)
        return doubled(state, piece)

    def fails(state: State, piece: Piece) -> Any:
        if piece.words["k"] == 3:
            raise UsageError("three is wrong" if os.getpid() == parent else "said by another")
        return doubled(state, piece)

    pool = Processes(2)
    with pytest.warns(UserWarning, match="piece"):
        found(pool, warns, 2)
    with pytest.raises(UsageError, match="three is wrong"):
        found(pool, fails, 6, key=("b",))
    assert not pool._workers  # nobody works on what nobody wants
    pool.close()


def test_a_worker_that_is_killed_is_missed() -> None:
    def dies(state: State, piece: Piece) -> Any:
        if piece.words["k"] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return doubled(state, piece)

    pool = Processes(2)
    with pytest.raises(Lost, match="a worker was ended by SIGKILL, perhaps for want of memory: use fewer --workers"):
        found(pool, dies, 4)
    pool.close()


def test_workers_end_with_whoever_made_them() -> None:
    pool = Processes(2)
    found(pool, doubled, 2)
    pids = [worker.pid for worker in pool._workers]
    del pool
    gc.collect()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_shared_tensors_are_those_that_were_written() -> None:
    parcel = {
        "a": {"x": torch.rand(3, 5), "none": torch.zeros(0, 4), "yes": torch.tensor([True, False])},
        "b": {"n": torch.arange(7), "seen": torch.rand(1, 6).expand(4, 6), "one": torch.tensor(2.5).double()},
        "c": {"apart": torch.rand(3, 16)[:, :9]},
    }
    segment = Segment.of(bytes_of(parcel))
    read = Segment(os.dup(segment.descriptor)).read(segment.write(parcel))
    for part, stacks in parcel.items():
        for name, rows in stacks.items():
            there = read[part][name]
            assert there.dtype == rows.dtype and torch.equal(there, rows) and apart(there) == apart(rows)
            assert there.numel() == 0 or there.data_ptr() % 64 == 0  # sums are grouped as in memory of one's own


def test_segments_are_used_again_and_small_ones_are_given_up() -> None:
    segments = Segments()
    first, segment, new = segments.take(10)
    assert new and segment.size == 1 << 16
    segments.free.add(first)
    assert segments.take(100)[0] == first
    segments.free.add(first)
    second, larger, new = segments.take(1 << 17)
    assert new and second != first and larger.size == 1 << 17 and list(segments.known) == [second]


# -- whole runs --------------------------------------------------------------------------------------------------

WORDS = "--data digits --clients 6 --block work --quiet --device cpu --checkpoint-every 1".split()


def files(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in ("metrics.jsonl", "clients.csv")]


def test_a_run_goes_on_with_another_number_of_workers(tmp_path: Path) -> None:
    run = ["run", "fedavg", *WORDS, "--out"]
    assert outcome([*run, str(tmp_path / "one"), "--rounds", "4", "--workers", "1"]) == 0
    assert outcome([*run, str(tmp_path / "some"), "--rounds", "2", "--workers", "3"]) == 0
    config = json.loads((tmp_path / "some/config.json").read_text())
    assert config["workers"] == 3 and config["block"] == "work"
    (tmp_path / "some/config.json").write_text(json.dumps(config | {"workers": 2}))
    assert outcome(["resume", str(tmp_path / "some"), "--rounds", "4"]) == 0
    assert files(tmp_path / "one") == files(tmp_path / "some")


def test_a_worker_is_killed_and_the_run_resumed(tmp_path: Path) -> None:
    class Kill(pc.Callback):
        def on_round(self, run: Any, trips: Any) -> None:
            if run.state.round == 2:
                os.kill(run.clients._processes._workers[0].pid, signal.SIGKILL)

    how: dict[str, Any] = {"rounds": 4, "block": "work", "device": "cpu", "checkpoint_every": 1}
    with pytest.raises(Lost, match="a worker was ended by SIGKILL"):
        pc.run("fedavg", "digits", clients=6, workers=2, out=tmp_path / "two", callbacks=[Kill()], **how)
    assert Folder.open(tmp_path / "two").load()[0].state.round == 2  # type: ignore[union-attr]
    pc.resume(tmp_path / "two")
    pc.run("fedavg", "digits", clients=6, workers=1, out=tmp_path / "one", **how)
    assert files(tmp_path / "one") == files(tmp_path / "two")
