"""Many runs as one table: every cell once, in a folder of its own, whoever runs it and however often."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from polycentric import Simulation, Task
from polycentric.cli import outcome
from polycentric.errors import UsageError
from polycentric.runs import grid as cells
from polycentric.runs.folder import Folder
from polycentric.runs.grid import compare, digest, finished, grouped, run_cell, run_cells, run_dir
from polycentric.runs.loop import Run
from polycentric.runs.settings import Settings
from polycentric.runs.start import attach_folder, prepared, resumed
from polycentric.simulate.auto_executor import FirstRound

TINY: dict[str, Any] = {
    "data": "teacher(clients=3,dimension=4,examples=8)", "model": "logistic", "rounds": 3, "checkpoint_every": 1,
    "device": "cpu", "executor": "looped",
}  # fmt: skip


def cell(method: str = "fedavg", seed: int = 0, **more: Any) -> Settings:
    return Settings.of(TINY | {"method": method, "seed": seed} | more)


FOUR = [cell(method, seed) for seed in (0, 1) for method in ("fedavg", "nofed")]


def numbers(summaries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Summaries without what depends on time and place."""
    return [{k: v for k, v in s.items() if k not in ("seconds", "run_dir")} for s in summaries]


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Run) -> None:
        raise AssertionError("this cell was run again")

    monkeypatch.setattr(Run, "go", refuse)


def test_another_table_of_cells_is_another_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    how = {"method": "fedmes", "set": {"cells": "table(cells.csv)"}, "data": "digits", "clients": 3, "rounds": 1}
    names = []
    for table in ("1,0\n1,1\n0,1\n", "1,0\n0,1\n0,1\n", "1,0\n1,1\n0,1\n"):
        Path("cells.csv").write_text(table)
        names.append(run_cell(Settings.of(TINY | how), tmp_path / "runs")["run_dir"])
    assert names[0] == names[2] != names[1]
    named = digest(cell("fedmes", set={"cells": "overlap(u=20, v=10)", "lr": 0.1}))
    for stray in ("overlap", "0.1", "20"):  # words, and not files that anybody asked for
        Path(stray).write_text("")
    assert digest(cell("fedmes", set={"cells": "overlap(u=20, v=10)", "lr": 0.1})) == named
    one, two = "kind,x,y,radius\nedge,0.5,0.5,1\n", "kind,x,y,radius\nedge,0.5,0.5,2\n"
    way, back = "round,client,x,y\n0,0,0.5,0.5\n", "round,client,x,y\n0,0,0.6,0.5\n"
    for method, placed, contents in (
        ("fedmes", {"cells": "map", "cells.places": "p.csv"}, (one, two)),
        ("fedmes", {"cells": {"name": "map", "places": "p.csv"}}, (one, two)),
        ("fedmes", {"select": "by-cell(n=1, cells=map(places='p.csv'))"}, (one, two)),
        ("dpsgd", {"graph": "file( p.csv )"}, ("0 1", "0 1\n1 2")),
        ("hierarchical", {"cells": "map(trace='p.csv')"}, (way, back)),
    ):
        Path("p.csv").write_text(contents[0])
        before = digest(cell(method, set=placed))
        Path("p.csv").write_text(contents[1])
        assert digest(cell(method, set=placed)) != before
    Path("p.csv").write_text(one)
    before = digest(cell("fedavg", partition="cells(setting=c, cells=map(places=p.csv))+sample=100"))
    Path("p.csv").write_text(two)
    assert digest(cell("fedavg", partition="cells(setting=c, cells=map(places=p.csv))+sample=100")) != before

    Path("cells.csv").write_text("1,1\n1,1\n1,1\n")
    assert outcome(["personalize", names[0], "--steps", "0"]) == 2  # nor is a finished run looked at with other cells


def test_cells_come_in_order_and_are_run_once(tmp_path, monkeypatch):
    told: list[tuple[int, int, str]] = []
    first = run_cells(FOUR, tmp_path, progress=lambda done, total, s: told.append((done, total, s["method"])))
    assert [(s["method"], s["seed"]) for s in first] == [("fedavg", 0), ("nofed", 0), ("fedavg", 1), ("nofed", 1)]
    assert told == [(1, 4, "fedavg"), (2, 4, "nofed"), (3, 4, "fedavg"), (4, 4, "nofed")]
    forbid(monkeypatch)
    assert run_cells(FOUR, tmp_path) == first
    assert run_cells([*FOUR, FOUR[0]], tmp_path) == [*first, first[0]]


def test_finished_cells_cost_a_look_at_a_file(tmp_path, monkeypatch):
    """No data are read, and a method is built once for all cells that have its words, not once for each."""
    many = [cell("fesem", seed, data="digits", set={"lr": lr, "k": 2}) for lr in (0.1, 0.2) for seed in range(20)]
    for one in many:
        Folder(run_dir(one, tmp_path)).path.mkdir(parents=True)
        Folder(run_dir(one, tmp_path)).write_json("summary.json", {"method": "fesem", "seed": one.seed})
    built: list[str] = []
    real = cells.built_method
    monkeypatch.setattr(cells, "built_method", lambda settings: built.append(settings.method) or real(settings))
    monkeypatch.setattr(cells, "load_data", lambda settings: pytest.fail("data were read"))
    monkeypatch.setattr(cells, "ProcessPoolExecutor", lambda *_, **__: pytest.fail("a process was started"))
    cells._NAMED.clear()
    for jobs in (1, 2):
        assert [s["seed"] for s in run_cells(many, tmp_path, jobs=jobs)] == [*range(20)] * 2
    assert len(built) == 2


@pytest.mark.parametrize("method", ["dpsgd", "matcha", "dpa-sgd", "reptile", "fedavg", "nofed"])
def test_epochs_act_whatever_the_method_takes_by_default(tmp_path, method):
    """With as many epochs every method does as much; what nobody sets is as it was."""
    data: dict[str, Any] = {"data": "teacher(clients=4,dimension=4,examples=40)", "rounds": 1}
    rounds = {n: run_cell(cell(method, **data, set={"epochs": n}), tmp_path) for n in (1, 5)}
    assert rounds[5]["work"] == {key: 5 * value for key, value in rounds[1]["work"].items()}
    assert rounds[1]["work"] == run_cell(cell("fedavg", **data), tmp_path)["work"]
    assert rounds[1]["metrics"] != rounds[5]["metrics"]


def test_the_work_of_a_round_is_the_mean_over_its_rounds(tmp_path):
    done = run_cell(cell("fesem", data="digits", clients=3, set={"k": 2, "warm_up": 4}), tmp_path)["work"]
    plain = run_cell(cell("fedavg", data="digits", clients=3), tmp_path)["work"]
    assert done == pytest.approx({key: (4 + 1 + 1) / 3 * value for key, value in plain.items()})  # the first round: 4
    assert run_cell(cell("fedavg", rounds=0), tmp_path)["work"] is None


def test_rows_of_one_method_have_settings_of_their_own(tmp_path):
    how = {key: value for key, value in TINY.items() if key != "data"}
    found = compare(["fedavg(lr=0.5)", "fedavg", "nofed"], TINY["data"], seeds=1, out=tmp_path, set={"lr": 0.01}, **how)
    assert [row["method"] for row in found] == ["fedavg(lr=0.5)", "fedavg", "nofed"]
    for row, lr in zip(found, ("0.5", 0.01, 0.01), strict=True):
        assert Folder(Path(row["run_dirs"][0])).read_config()[0].set == {"lr": lr}
    assert [row["difference"] and row["difference"]["to"] for row in found] == [None, *["fedavg(lr=0.5)"] * 2]


class Inline:
    """A pool of processes that is none."""

    def __init__(self, jobs: int, **_: Any) -> None:
        self.jobs = jobs

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def submit(self, function: Any, *given: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*given))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, **_: Any) -> None: ...


def test_where_memory_is_too_short_fewer_run_at_a_time(tmp_path, monkeypatch):
    tried: list[tuple[int, int, str]] = []

    def work(settings: Settings, parent: Path, beside: int) -> dict[str, Any]:
        tried.append((beside, settings.seed, settings.method))
        if settings.method == "nofed" and beside > fits:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run_cell(settings, parent)

    monkeypatch.setattr(cells, "ProcessPoolExecutor", Inline)
    monkeypatch.setattr(cells, "_work", work)
    told: list[int] = []
    fits = 1
    with pytest.warns(UserWarning, match="not enough memory for 2 runs at once: they continue, [21] at a time"):
        found = run_cells(FOUR, tmp_path / "a", jobs=4, progress=lambda done, total, s: told.append(done))
    assert numbers(found) == numbers(run_cells(FOUR, tmp_path / "b")) and told == [1, 2, 3, 4]
    assert [t for t in tried if t[2] == "nofed"] == [(n, seed, "nofed") for n in (4, 2, 1) for seed in (0, 1)]
    fits = 0
    with pytest.warns(UserWarning), pytest.raises(torch.OutOfMemoryError):  # alone it does not fit either
        run_cells(FOUR, tmp_path / "c", jobs=2)


@pytest.mark.parametrize(
    ("device", "asked", "beside", "block"),
    [("cuda", None, 4, 6), ("cuda", None, 100, 1), ("cuda", None, 2, None), ("cuda", 7, 4, 7), ("cpu", None, 4, None)],
)
def test_beside_others_on_a_gpu_blocks_are_smaller_and_stay_so(tmp_path, monkeypatch, device, asked, beside, block):
    made = prepared(cell(block=asked))
    monkeypatch.setattr(Task, "device", property(lambda self: torch.device(device)))  # only said: nothing may go there
    monkeypatch.setattr("polycentric.learn.execute.looped.draws", lambda task, x: False)
    monkeypatch.setattr("polycentric.simulate.auto_executor.block_size", lambda run, held=1: 12)
    first = FirstRound(made.method.at(0), made.state, 3, beside)
    made.clients = Simulation(made.federation, made.clients.task, executor="looped", block=asked, first=first)
    attach_folder(made, Folder.new(tmp_path / "run"))
    assert made.clients.block == Folder(tmp_path / "run").read_config()[0].block == block


def test_a_begun_cell_is_gone_on_with(tmp_path, monkeypatch):
    whole = run_cell(cell(), tmp_path / "whole")
    real, rounds = Run._round, []

    def counted(self: Run) -> Any:
        trips = real(self)
        rounds.append(self.state.round)
        if rounds == [1, 2]:
            raise KeyboardInterrupt
        return trips

    monkeypatch.setattr(Run, "_round", counted)
    with pytest.raises(KeyboardInterrupt):
        run_cell(cell(), tmp_path / "begun")
    assert finished(cell(), tmp_path / "begun") is None
    again = run_cell(cell(), tmp_path / "begun")
    assert rounds == [1, 2, 2, 3]  # the interrupted round is done again, no other
    assert numbers([again]) == numbers([whole])
    assert finished(cell(), tmp_path / "begun") == again


def test_a_cell_killed_before_its_first_round_is_begun_anew(tmp_path):
    path = run_dir(cell(), tmp_path)
    (path / "checkpoints").mkdir(parents=True)
    Folder(path).write_json("config.json", cell().model_dump())
    assert numbers([run_cell(cell(), tmp_path)]) == numbers([run_cell(cell(), tmp_path / "other")])


def test_processes_beside_each_other_give_the_same_summaries(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as here; sums in another order have other bits
    told: list[int] = []
    beside = run_cells(FOUR, tmp_path / "two", jobs=2, progress=lambda done, total, s: told.append(done))
    assert numbers(beside) == numbers(run_cells(FOUR, tmp_path / "one"))
    assert told == [1, 2, 3, 4]


def test_a_cell_that_diverges_does_not_stop_the_others(tmp_path):
    bad = cell(data="digits", clients=3, model="mlp", set={"lr": 1e30})
    lost, kept = run_cells([bad, cell()], tmp_path)
    assert (
        "sent NaN or infinity" in lost["diverged"]
        and "metrics" not in lost
        and lost["run_dir"] == str(run_dir(bad, tmp_path))
    )
    assert "metrics" in kept
    assert finished(bad, tmp_path) == lost  # it would diverge again: once is enough


def test_a_mistake_in_a_cell_ends_the_table(tmp_path):
    with pytest.raises(UsageError, match="unknown data set"):
        run_cells([cell(), cell(data="nope")], tmp_path)


@pytest.mark.parametrize(("key", "value"), [("device", "cuda"), ("checkpoint_every", 7)])
def test_where_and_how_often_does_not_change_the_name(key, value):
    assert digest(cell()) == digest(cell(**{key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", 1), ("rounds", 4), ("method", "nofed"), ("data", "digits"), ("clients", 2), ("partition", "natural"),
     ("model", "mlp"), ("set", {"lr": 0.2}), ("valid", 0.1), ("target", 0.5), ("fine_tune", 0), ("dtype", "float64")],
)  # fmt: skip
def test_what_changes_the_numbers_changes_the_name(key, value):
    assert digest(cell()) != digest(Settings.of(TINY | {"method": "fedavg"} | {key: value}))


def test_the_name_does_not_depend_on_the_order_of_settings():
    assert digest(cell(set={"lr": 0.1, "epochs": 2})) == digest(cell(set={"epochs": 2, "lr": 0.1}))


def test_what_a_run_was_made_from_is_read_back(tmp_path):
    run_cell(cell(executor="auto"), tmp_path)
    back, given = Folder(run_dir(cell(executor="auto"), tmp_path)).read_config()
    assert given == ()
    assert back.executor in ("looped", "stacked", "traced")  # resolved: a resumed run does the same whatever it finds
    assert back.model_copy(update={"executor": "auto"}) == cell(executor="auto")


def test_a_worker_hears_only_the_first_order_to_stop(monkeypatch):
    handlers: list[Any] = []
    monkeypatch.setattr(cells, "_when_stopped", handlers.append)
    with pytest.raises(KeyboardInterrupt):
        cells._stop()
    assert handlers[-1](2, None) is None


def test_grouped_keeps_the_order():
    rows = [{"a": 2, "b": 0}, {"a": 1, "b": 1}, {"a": 2, "b": 2}]
    assert list(grouped(rows, lambda r: r["a"]).items()) == [(2, [rows[0], rows[2]]), (1, [rows[1]])]


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        run_cells([cell()], Path(tmp_path / "file"))


def test_a_run_goes_on_with_the_threads_it_began_with(tmp_path):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        run_cell(cell(), tmp_path)
        torch.set_num_threads(2)
        resumed(Folder.open(run_dir(cell(), tmp_path)))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
