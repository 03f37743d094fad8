"""Speed: what is compiled, shared and done beside each other gives the same numbers; and the benchmarks run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from polycentric import Federation, Prox, Simulation, Task, Train, Uniform, UsageError, dpsgd, fedavg, fesem, ifca
from polycentric.cli.bench import _table
from polycentric.learn import Compiled, Stacked
from polycentric.learn.execute.compiled import Gate, pieces_for
from polycentric.round import run_round
from polycentric.runs.bench import WORK, Race, measure, profile
from polycentric.runs.grid import reopen
from polycentric.runs.loop import prepare
from polycentric.runs.machine import keep_programs
from polycentric.runs.record import Folder
from polycentric.runs.settings import Settings
from polycentric.simulate.clients import compiling_pays
from polycentric.stacks.draw import smallest, uniform

Make = Callable[..., Federation]
ROOT = Path(__file__).parents[2]
SIZES = (9, 3, 30, 1, 14, 6, 7, 22)


def after(method: Any, federation: Federation, rounds: int = 2, **how: Any) -> dict[str, torch.Tensor]:
    prepared = prepare(method, federation, **({"model": "mlp"} | how))
    state = prepared.state
    for _ in range(rounds):
        state, _ = run_round(prepared.method, state, prepared.clients)
    return state.centers | state.kept | state.memory


# -- workers -------------------------------------------------------------------------------------------------

METHODS = {
    "fedavg": lambda: fedavg(lr=0.05, epochs=2, batch=5),
    "fesem": lambda: fesem(k=2, lr=0.05, batch=5),  # reads all answers at once
    "ifca": lambda: ifca(k=2, lr=0.05, batch=5),  # predicts while others train
    "dpsgd": lambda: dpsgd(lr=0.05, batch=5),
}


@pytest.mark.parametrize("executor", ["looped", "stacked"])
@pytest.mark.parametrize("name", METHODS)
def test_two_workers_give_the_bits_of_one(name: str, executor: str, blobs: Make) -> None:
    federation = blobs(sizes=SIZES)
    one, two = (after(METHODS[name](), federation, executor=executor, block=2, workers=n) for n in (1, 2))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_compiled_programs_run_beside_each_other_and_are_traced_alone(blobs: Make) -> None:
    federation, how = blobs(sizes=(20,) * 8), {"executor": "compiled", "block": 2, "model": "logistic"}
    one, two = (after(fedavg(lr=0.05, batch=5), federation, workers=n, **how) for n in (1, 2))
    assert torch.equal(one["model"], two["model"])


def test_a_block_has_a_module_of_its_own_in_every_thread(blobs: Make) -> None:
    clients = Simulation(blobs(sizes=SIZES), Task.of(blobs(sizes=SIZES), "mlp"), block=1, workers=2)
    method = METHODS["fedavg"]()
    run_round(method, method.begin(clients.task.start(), 8), clients)
    modules = {id(run.task.module) for run in clients._others}  # type: ignore[attr-defined]
    assert len(modules) == len(clients._others) >= 1 and id(clients.task.module) not in modules


def test_an_error_in_a_thread_arrives(blobs: Make) -> None:
    federation = blobs(sizes=SIZES)
    clients = Simulation(federation, Task.of(federation, "mlp"), executor="looped", block=1, workers=2)
    method, broken = METHODS["fedavg"](), {"model": torch.zeros(1, 3)}
    with pytest.raises(RuntimeError, match="split"):
        run_round(method, method.begin(clients.task.start(), 8).__class__(broken, {}, {}), clients)


def test_workers_are_refused_where_modules_draw(blobs: Make) -> None:
    class Noisy(nn.Module):  # no dropout to be seen
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x.flatten(1)[:, :4] + torch.rand(()))

    federation = blobs(sizes=SIZES)
    n, k = federation.train.x[0].numel(), len(federation.classes)
    dropping = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(n, k))
    with pytest.raises(UsageError, match=r"draws random numbers by itself .* use --workers 1"):
        Simulation(federation, Task.of(federation, dropping), executor="looped", workers=2)
    noisy = Noisy()
    noisy.head = nn.Linear(min(4, n), k)
    with pytest.raises(UsageError, match="draws random numbers by itself"):
        Simulation(federation, Task.of(federation, noisy), executor="looped", workers=2)
    with pytest.raises(UsageError, match="workers must be at least 1, got 0"):
        Simulation(federation, Task.of(federation, "mlp"), workers=0)


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


# -- compiled ------------------------------------------------------------------------------------------------


def test_programs_are_shared_by_runs_with_the_same_text_and_by_no_others(
    blobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: dict[object, object] = {}
    monkeypatch.setattr("polycentric.learn.execute.compiled._known", known)
    federation = blobs(sizes=(10, 10))
    how: dict[str, Any] = {"executor": "compiled", "model": "logistic", "rounds": 1}
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
    task = Task.of(federation, "logistic")
    clients = Simulation(federation, task, executor="compiled")
    rows = {name: row.repeat(2, 1) for name, row in task.start().items()}
    poison = torch.full_like(rows["model"], torch.nan)
    plain = clients.run(Train(batch=5), rows | {"start": poison}, clients.everyone(0))
    assert bool(plain["model"].isfinite().all())
    pulled = clients.run(Train(batch=5, terms=(Prox(0.1),)), rows | {"start": poison}, clients.everyone(0))
    assert not bool(pulled["model"].isfinite().any())


def test_what_comes_in_is_not_overwritten(blobs: Make) -> None:
    federation = blobs(sizes=(10,) * 3)
    task = Task.of(federation, "logistic")
    clients = Simulation(federation, task, executor="compiled")
    rows = {name: row.repeat(3, 1) for name, row in task.start().items()}
    before = {name: row.clone() for name, row in rows.items()}
    clients.run(Train(batch=5), rows, clients.everyone(0))
    assert all(torch.equal(rows[name], before[name]) for name in rows)


def test_narrow_batches_are_padded_and_change_nothing(blobs: Make) -> None:
    federation = blobs(sizes=(5, 3, 7))
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
    from polycentric.runs.grid import enter

    asked = Settings.of(
        {"method": "fedavg", "data": "digits", "partition": "iid", "clients": 9, "model": "logistic", "rounds": 4}
        | {"executor": "compiled", "device": "cpu", "checkpoint_every": 1, "fine_tune": 0}
        | {"set": {"select": "uniform(n=3)", "steps": 4}}
    )
    whole = enter(asked.prepare(), asked, Folder.new(tmp_path / "whole")).go()
    assert whole.summary()["compile_seconds"] > 0
    assert (
        "compiled" in (tmp_path / "whole/log.txt").read_text()
        and "programs in" in (tmp_path / "whole/log.txt").read_text()
    )

    part = enter(asked.prepare(), asked, Folder.new(tmp_path / "part"))

    def stop(round: int, rounds: int, row: Any) -> None:
        if round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        part.go(stop)
    went_on, _ = reopen(Folder.open(tmp_path / "part"))
    assert torch.equal(went_on.state.centers["model"], whole.state.centers["model"])
    assert (tmp_path / "part/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_whoever_watches_is_told_before_a_program_is_compiled(blobs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from polycentric.learn.execute import compiled

    told: list[int] = []
    monkeypatch.setattr(compiled, "watchers", [told.append])
    prepared = prepare(fedavg(lr=0.05, batch=5), blobs(sizes=(10, 10)), model="logistic", executor="compiled")
    for _ in range(2):
        run_round(prepared.method, prepared.state, prepared.clients)
    assert told == list(range(1, prepared.clients.compiled[0] + 1))


def test_programs_are_kept_with_the_users_caches_unless_torch_is_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    keep_programs()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "elsewhere"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    keep_programs()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "polycentric/programs")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")


# -- auto ----------------------------------------------------------------------------------------------------


def choice(federation: Federation, rounds: int, method: Any = None, **how: Any) -> str:
    from polycentric.runs.loop import Schedule

    method = method or fedavg(lr=0.05, batch=5)
    return prepare(method, federation, schedule=Schedule(rounds), **({"model": "mlp"} | how)).clients.executor


def test_auto_compiles_only_runs_that_are_long_enough_and_always_the_same(
    blobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/g++")
    federation = blobs(sizes=SIZES)
    assert [choice(federation, rounds) for rounds in (0, 5, 10**6, 10**6)] == ["stacked"] * 2 + ["compiled"] * 2
    more = fedavg(lr=0.05, batch=5, epochs=100)
    least = [next(r for r in range(0, 10**6, 500) if choice(federation, r, m) == "compiled") for m in (more, None)]
    assert 0 < least[0] < least[1], "more work a round pays earlier"
    assert choice(federation, 10**6, executor="stacked") == "stacked"


def test_auto_leaves_alone_what_does_not_compile_well(blobs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/g++")
    federation = blobs(sizes=SIZES)
    n, k = federation.train.x[0].numel(), len(federation.classes)
    dropping = nn.Sequential(nn.Flatten(), nn.Linear(n, k), nn.Dropout(0.1))
    assert choice(federation, 10**6, model=dropping) == "stacked"
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert choice(federation, 10**6) == "stacked"


def test_whether_compiling_pays_is_monotone_in_rounds(blobs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/g++")
    prepared = prepare(fedavg(lr=0.05, batch=5), blobs(sizes=SIZES), model="mlp")
    pays = [compiling_pays(prepared.clients, prepared.method.at(0), prepared.state, 10**k) for k in range(8)]
    assert pays == sorted(pays) and pays[0] is False and pays[-1] is True


# -- very many clients ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [1, 7, 1000, 40_000, 100_001])
@pytest.mark.parametrize("n", [1, 6, 900])
def test_the_smallest_draws_are_those_of_a_full_sort(clients: int, n: int) -> None:
    who = torch.arange(clients) * 5 + 2
    for seed in range(3):
        full = uniform(seed, 1, "select", who).argsort()[:n].sort().values
        assert torch.equal(smallest(n, seed, 1, "select", who), full)


def test_the_smallest_draws_are_found_where_the_bound_was_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    def high(*key: Any) -> torch.Tensor:
        return 0.9 + uniform(*key) / 10

    monkeypatch.setattr("polycentric.stacks.draw.uniform", high)
    who = torch.arange(50_000)
    assert torch.equal(smallest(20, 3, "select", who), high(3, "select", who).argsort()[:20].sort().values)


def test_a_cohort_of_a_few_is_drawn_as_ever(blobs: Make) -> None:
    everyone = Simulation(blobs(sizes=SIZES), Task.of(blobs(sizes=SIZES), "mlp")).everyone(3, 1)
    draws = uniform(*everyone.key, "select", everyone.index)
    assert torch.equal(Uniform(n=3)({}, everyone).index, everyone.index[draws.argsort()[:3].sort().values])


# -- the benchmarks ------------------------------------------------------------------------------------------


def test_a_tiny_bench_has_positive_ratios() -> None:
    race = Race.of("mlp", clients=3, steps=2, batch=4)
    found = measure(race, ["looped", "stacked"], repeats=2, workers=2)
    ways = {"looped", "stacked", "looped x 2", "stacked x 2"}
    assert found["seconds"].keys() == ways | {"plain", "limit"} and found["over_plain"].keys() == ways
    assert all(value > 0 for key in ("seconds", "over_plain", "over_limit") for value in found[key].values())
    assert found["auto"] == "stacked" and _table([found]).row_count == 6
    assert "aten::" in profile(race)


@pytest.mark.parametrize("model", ["femnist-cnn", "mnist-cnn", "char-lstm"])
def test_every_model_does_the_same_work_as_the_plain_loop(model: str) -> None:
    race = Race.of(model, clients=2, steps=1, batch=2)
    assert set(measure(race, ["looped"], repeats=1)["over_limit"]) == {"looped", "plain"}


def test_bench_notices_work_that_is_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polycentric.runs.bench.plain", lambda task, *_: dict(task.module.named_parameters()))
    with pytest.raises(UsageError, match="not the same work"):
        measure(Race.of("logistic", clients=2, steps=2, batch=4), ["looped"], repeats=1)


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(UsageError, match="mlp"):
        Race.of("mlq")
    with pytest.raises(UsageError, match="executor"):
        measure(Race.of("logistic", clients=1, steps=1, batch=1), ["fast"])
    assert set(WORK) >= {"mlp", "femnist-cnn", "mnist-cnn", "char-lstm", "vgg11"}


def test_executors_of_the_package_are_what_simulation_makes(blobs: Make) -> None:
    federation = blobs(sizes=SIZES)
    made = {e: Simulation(federation, Task.of(federation, "mlp"), executor=e).run for e in ("stacked", "compiled")}
    assert type(made["stacked"]) is Stacked and type(made["compiled"]) is Compiled
