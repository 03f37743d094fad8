"""Compiled programs: the looped steps to rounding, shared where they are equal, and told before they are made.

To compile one takes seconds, so most tests take steps of the same form: two clients, batches of five, float64.
"""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from polycentric import Federation, Prox, Simulation, Task, Train, fedavg
from polycentric.learn import Compiled
from polycentric.learn.execute.compiled import Gate, pieces_for
from polycentric.round import run_round
from polycentric.runs.folder import Folder
from polycentric.runs.loop import Callback
from polycentric.runs.settings import Settings
from polycentric.runs.start import attach_folder, prepare, prepared, resumed
from support import Make

pytestmark = pytest.mark.xdist_group("compiled")  # one worker: what it has compiled it need not compile again


def after(method: Any, federation: Federation, rounds: int = 2, **how: Any) -> dict[str, torch.Tensor]:
    prepared = prepare(method, federation, **({"model": "mlp"} | how))
    state = prepared.state
    for _ in range(rounds):
        state, _ = run_round(prepared.method, state, prepared.clients)
    return state.centers | state.kept | state.memory


def test_compiled_steps_are_the_looped_ones_whoever_is_still_at_work(blobs: Make) -> None:
    federation, method = blobs(sizes=(9, 3, 30, 1, 14)), fedavg(lr=0.05, epochs=2, batch=5)
    models = []
    for executor in ("compiled", "looped"):
        prepared = prepare(method, federation, model="logistic", executor=executor, dtype="float64")
        state, _ = run_round(method, prepared.state, prepared.clients)
        models.append(state.centers["model"])
        if executor == "compiled":
            assert isinstance(prepared.clients.run, Compiled) and prepared.clients.run.programs.works
            assert prepared.clients.compiled[1] > 0
    torch.testing.assert_close(*models, rtol=1e-12, atol=1e-12)


def test_without_a_compiler_steps_run_stacked_and_that_is_said_once(
    blobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler")

    federation, method = blobs(), fedavg(lr=0.05, batch=5)
    monkeypatch.setattr("polycentric.learn.execute.compiled._built", refuse)
    monkeypatch.setattr("polycentric.learn.execute.compiled._known", {})  # of earlier runs
    models = []
    for executor in ("compiled", "stacked"):
        prepared = prepare(method, federation, model="logistic", executor=executor, dtype="float64")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(2):
                state, _trips = run_round(method, prepared.state, prepared.clients)
        assert len([w for w in said if "cannot be compiled" in str(w.message)]) == (executor == "compiled")
        models.append(state.centers["model"])
    assert torch.equal(*models)


def test_compiled_programs_run_beside_each_other_and_are_traced_alone(blobs: Make) -> None:
    federation = blobs(sizes=(20,) * 8)
    how = {"executor": "compiled", "block": 2, "model": "logistic", "dtype": "float64"}
    one, two = (after(fedavg(lr=0.05, batch=5), federation, workers=n, **how) for n in (1, 2))
    assert torch.equal(one["model"], two["model"])


def test_whoever_traces_is_alone() -> None:
    gate, inside, worst = Gate(), [], []

    def work() -> None:
        for _ in range(30):
            with gate.together():
                inside.append(1)
                with gate.alone():
                    worst.append(gate.running)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(worst) == 90 and set(worst) == {0} and gate.running == 0 and not gate.tracing


def test_programs_are_shared_by_runs_with_the_same_text_and_by_no_others(
    blobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: dict[object, object] = {}
    monkeypatch.setattr("polycentric.learn.execute.compiled._known", known)
    federation = blobs(sizes=(10, 10))
    how: dict[str, Any] = {"executor": "compiled", "model": "logistic", "rounds": 1, "dtype": "float64"}
    first = after(fedavg(lr=0.05, batch=5), federation, **how)
    n = len(known)
    assert n >= 1
    assert torch.equal(after(fedavg(lr=0.05, batch=5), federation, **how)["model"], first["model"])
    after(fedavg(lr=0.01, batch=5), federation, **how)  # the learning rate is an input
    assert len(known) == n
    after(fedavg(lr=0.05, batch=5, weight_decay=0.1), federation, **how)
    assert len(known) > n


def test_a_step_is_not_handed_rows_it_does_not_read(blobs: Make) -> None:
    federation = blobs(sizes=(10, 10))
    task = Task.of(federation, "logistic", dtype=torch.float64)
    clients = Simulation(federation, task, executor="compiled")
    rows = {name: row.repeat(2, 1) for name, row in task.start().items()}
    poison = torch.full_like(rows["model"], torch.nan)
    plain = clients.run(Train(batch=5), rows | {"start": poison}, clients.everyone(0))
    assert bool(plain["model"].isfinite().all())
    pulled = clients.run(Train(batch=5, terms=(Prox(0.1),)), rows | {"start": poison}, clients.everyone(0))
    assert not bool(pulled["model"].isfinite().any())


def test_what_comes_in_is_not_overwritten(blobs: Make) -> None:
    federation = blobs(sizes=(10, 10))
    task = Task.of(federation, "logistic", dtype=torch.float64)
    clients = Simulation(federation, task, executor="compiled")
    rows = {name: row.repeat(2, 1) for name, row in task.start().items()}
    before = {name: row.clone() for name, row in rows.items()}
    clients.run(Train(batch=5), rows, clients.everyone(0))
    assert all(torch.equal(rows[name], before[name]) for name in rows)


def test_narrow_batches_are_padded_and_change_nothing(blobs: Make) -> None:
    federation = blobs(sizes=(3, 7))
    for batch in (None, 20):
        both = [
            after(fedavg(lr=0.1, batch=batch), federation, 1, executor=e, model="logistic", dtype="float64")["model"]
            for e in ("compiled", "looped")
        ]
        torch.testing.assert_close(*both, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("row", [100, 130_000, 434_936, 3_000_000, 1 << 40])
def test_pieces_fit_the_cache_and_end_with_one_client(row: int) -> None:
    pieces = pieces_for(row)
    assert pieces[-1] == 1 and list(pieces) == sorted(pieces, reverse=True) and len(pieces) <= 4
    assert pieces[0] == 2 or pieces[0] * row <= 4 << 20


def test_a_compiled_run_goes_on_bit_for_bit_and_tells_what_compiling_cost(tmp_path: Path) -> None:
    asked = Settings.of(
        {"method": "fedavg", "data": "digits", "partition": "iid", "clients": 9, "model": "logistic", "rounds": 4}
        | {"executor": "compiled", "device": "cpu", "checkpoint_every": 1, "fine_tune": 0}
        | {"set": {"select": "uniform(n=2)", "steps": 1}}
    )
    whole = attach_folder(prepared(asked), Folder.new(tmp_path / "whole")).go()
    assert whole.summary()["compile_seconds"] > 0
    assert (
        "compiled" in (tmp_path / "whole/log.txt").read_text()
        and "programs in" in (tmp_path / "whole/log.txt").read_text()
    )

    part = attach_folder(prepared(asked), Folder.new(tmp_path / "part"))

    class Stop(Callback):
        def on_round(self, run: Any, trips: Any) -> None:
            if run.state.round == 2:
                raise KeyboardInterrupt

    part.callbacks += (Stop(),)
    with pytest.raises(KeyboardInterrupt):
        part.go()
    went_on = resumed(Folder.open(tmp_path / "part"))[0].go()
    assert torch.equal(went_on.state.centers["model"], whole.state.centers["model"])
    assert (tmp_path / "part/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_whoever_watches_is_told_before_a_program_is_compiled(blobs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from polycentric.learn.execute import compiled

    told: list[int] = []
    monkeypatch.setattr(compiled, "on_compile", [told.append])
    how = {"model": "logistic", "executor": "compiled", "dtype": "float64"}
    prepared = prepare(fedavg(lr=0.05, batch=5), blobs(sizes=(10, 10)), **how)
    for _ in range(2):
        run_round(prepared.method, prepared.state, prepared.clients)
    assert told == list(range(1, prepared.clients.compiled[0] + 1))
