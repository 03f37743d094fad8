"""A run from its first round to its folder: what it says of itself, when it stops, and that nothing can break it."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import polycentric.runs.observers
from polycentric import (
    Adam,
    Callback,
    Churn,
    Federation,
    KeepPrivate,
    Method,
    Moment,
    Run,
    Settings,
    State,
    Uniform,
    UsageError,
    fedavg,
    nofed,
    run,
    run_round,
)
from polycentric.methods import METHODS
from polycentric.report.participation import draw_participation, took_part
from polycentric.runs.folder import Folder
from polycentric.runs.start import prepare
from support import Make, recorded, small, went_on

TRAINING: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch": 5}


def begun(method: Method, federation: Federation, path: Path, **schedule: Any) -> Run:
    """A run with a folder, before its first round."""
    prepared = prepare(method, federation, model=small, **schedule)
    recorded(prepared, path)
    return prepared


def again(method: Method, federation: Federation, path: Path, **schedule: Any) -> tuple[Run, list[str]]:
    """The run of a folder, gone on with by a fresh program."""
    return went_on(prepare(method, federation, model=small, **schedule), Folder.open(path))


def after(method: Method, federation: Federation, rounds: int) -> State:
    prepared = prepare(method, federation, model=small)
    state = prepared.state
    for _ in range(rounds):
        state, _ = run_round(method, state, prepared.clients)
    return state


def same_bits(a: State, b: State) -> bool:
    return a.round == b.round and all(
        x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)
        for x, y in ((a.centers, b.centers), (a.kept, b.kept), (a.memory, b.memory))
    )


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


# -- what a run says -----------------------------------------------------------------------------------------


def test_the_summary_has_the_agreed_keys_and_is_json(blobs: Make, tmp_path: Path) -> None:
    done = run(fedavg(**TRAINING), blobs(), model=small, rounds=3, out=tmp_path / "run")
    summary = done.summary()
    assert summary.keys() == {
        *("method", "data", "model", "clients", "seed", "rounds", "seconds", "run_dir"),
        *("metrics", "initial", "personalised", "held_out"),
        *(
            "bytes_up",
            "bytes_down",
            "bytes_by_link",
            "simulated_seconds",
            "epsilon",
            "privacy",
            "dropped",
            "late",
            "participation",
        ),
        *("best_round", "best_validation", "validation", "work", "rounds_to_target", "stopped"),
        *("executor", "fingerprint", "note", "attack", "attackers"),
    }
    needed = {"micro_accuracy", "macro_accuracy", "micro_f1", "macro_f1", "worst_decile_accuracy"}
    for scores in ("metrics", "initial", "personalised"):
        assert needed <= summary[scores].keys()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert json.loads((tmp_path / "run/summary.json").read_text()) == summary
    assert (summary["method"], summary["data"], summary["model"]) == ("fedavg", "made", "small")
    assert (summary["rounds"], summary["clients"], summary["seed"]) == (3, 5, 0)
    assert summary["run_dir"] == str(tmp_path / "run")


def test_what_is_written_is_json_where_a_loss_overflows(made: Make, tmp_path: Path) -> None:
    x = torch.eye(3, dtype=torch.float64)
    federation = made([(x, x[0]), (x, x[1])], test=[(x, x[0]), (1e200 * x, x[1])])
    done = run(fedavg(**TRAINING), federation, rounds=1, dtype="float64", out=tmp_path / "run")

    def no_json(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    assert not torch.tensor(done.scores["in_use"].loss).isfinite().all()
    folder = tmp_path / "run"
    for text in ((folder / "summary.json").read_text(), *(folder / "metrics.jsonl").read_text().splitlines()):
        json.loads(text, parse_constant=no_json)


def test_metrics_are_the_history_and_do_not_know_the_time(blobs: Make, tmp_path: Path) -> None:
    runs = [run(fedavg(**TRAINING), blobs(valid=4), model=small, rounds=3, out=tmp_path / name) for name in "ab"]
    lines = (tmp_path / "a/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == runs[0].history
    assert [row["round"] for row in runs[0].history] == [0, 1, 2, 3]
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == (tmp_path / "b/metrics.jsonl").read_bytes()
    assert runs[0].history[-1]["micro_accuracy"] == runs[0].metrics["micro_accuracy"]


def test_evaluation_may_be_rare_and_is_never_left_out_at_the_end(blobs: Make) -> None:
    rare = run(fedavg(**TRAINING), blobs(), model=small, rounds=7, evaluate_every=3)
    assert [row["round"] for row in rare.history] == [0, 3, 6, 7]
    often = run(fedavg(**TRAINING), blobs(), model=small, rounds=7)
    assert same_bits(rare.state, often.state)
    assert rare.history == [often.history[round] for round in (0, 3, 6, 7)]


def test_every_client_has_a_line_in_the_table(blobs: Make, tmp_path: Path) -> None:
    done = run(nofed(**TRAINING), blobs(), model=small, rounds=2, out=tmp_path / "run")
    with (tmp_path / "run/clients.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["client"] for row in table] == list(done.federation.clients)
    for k, row in enumerate(table):
        for column in ("initial", "in_use", "personalised"):
            assert float(row[f"accuracy_{column}"]) == pytest.approx(done.scores[column].accuracy[k], rel=1e-5)


@pytest.mark.parametrize("name", ["fedavg", "feddane", "fesem", "dpsgd"])
def test_who_took_part_is_counted_by_rounds(name: str, blobs: Make, tmp_path: Path) -> None:
    """As often as a client was among those whose answers came, through an interruption too."""
    sizes, select = (9, 7, 0, 12, 5, 8), Churn(0.5, 2.0) if name == "dpsgd" else Uniform(2)
    method = METHODS[name](select=select, lr=0.1)
    begun(method, blobs(sizes), tmp_path / "run", rounds=3, checkpoint_every=1).go()
    done, _ = again(method, blobs(sizes), tmp_path / "run", rounds=7)
    clients, state = done.clients, prepare(method, blobs(sizes), model=small).state
    came = [0] * 6
    for _ in range(7):
        state, trips = run_round(done.method, state, clients)
        for k in {k for trip in trips for k in trip.arrived.index.tolist()}:
            came[k] += 1
    assert done.tally.took.tolist() == came and came[2] == 0 and len(set(came)) > 1
    told = done.summary()["participation"]
    assert told["mean"] == pytest.approx(sum(came) / 5) and told["never"] == came.count(0) - 1
    assert took_part(tmp_path / "run").tolist() == [n for k, n in enumerate(came) if k != 2]


def test_everybody_in_every_round_is_no_inequality(blobs: Make, tmp_path: Path) -> None:
    done = run(fedavg(**TRAINING), blobs(), model=small, rounds=4, held_out=0.2, out=tmp_path / "run")
    told = done.summary()["participation"]
    assert (told["gini"], told["rounds"], told["clients"]) == (0.0, [4], [4])  # one of five is held out
    assert run(fedavg(), blobs(), model=small, rounds=0).summary()["participation"] is None
    unequal = draw_participation({"all": [tmp_path / "run"]}, tmp_path / "who.png")
    assert unequal == {"all": 0.0} and (tmp_path / "who.png").stat().st_size > 1000
    table = tmp_path / "run" / "clients.csv"
    table.write_text(table.read_text().replace("took_part", "something"))
    for name in ("digests.json", "environment.json"):  # as of an earlier version
        (tmp_path / "run" / name).unlink()
    with pytest.raises(UsageError, match="does not say who took part"):
        took_part(tmp_path / "run")


def test_a_callback_sees_every_round(blobs: Make) -> None:
    seen: list[tuple[str, int]] = []

    class Notes(Callback):
        def on_start(self, run: Run) -> None:
            seen.append(("start", run.state.round))

        def on_round(self, run: Run, trips: Any) -> None:
            seen.append(("round", run.state.round))
            assert [len(trip.arrived) for trip in trips] == [5]

        def on_evaluation(self, run: Run, row: dict[str, Any]) -> None:
            seen.append(("evaluation", row["round"]))
            assert row is run.history[-1]

        def on_stop(self, run: Run) -> None:
            seen.append(("stop", run.state.round))

        def on_end(self, run: Run) -> None:
            seen.append(("end", run.state.round))

    run(fedavg(**TRAINING), blobs(), model=small, rounds=4, evaluate_every=2, callbacks=[Notes()])
    rounds = [("round", 1), ("evaluation", 2), ("round", 2), ("round", 3), ("evaluation", 4), ("round", 4)]
    assert seen == [("start", 0), ("evaluation", 0), *rounds, ("stop", 4), ("end", 4)]


def test_an_observer_of_ones_own_stands_behind_ours(blobs: Make, tmp_path: Path) -> None:
    def zeros(now: Moment) -> dict[str, float]:
        return {"zeros": float((now.state.centers["model"] == 0).double().mean())}

    done = run(fedavg(**TRAINING), blobs(), model=small, rounds=2, out=tmp_path / "run", observers=[zeros])
    assert all(list(row)[-1] == "zeros" for row in done.history)
    assert [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()] == done.history


def test_no_rounds_leave_the_first_model(blobs: Make) -> None:
    done = run(fedavg(**TRAINING), blobs(), model=small, rounds=0)
    assert same_bits(done.state, after(fedavg(**TRAINING), blobs(), 0))
    assert done.metrics == done.scores["initial"].summary()
    assert done.tally.bytes_up == done.tally.bytes_down == 0


# -- when it stops -------------------------------------------------------------------------------------------


def noisy(blobs: Make) -> Federation:
    """Labels without sense, so that the validation score soon stops rising."""
    federation = blobs((12, 9, 14), valid=10, seed=4)
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(3, (len(federation.train),), generator=generator)
    return replace(federation, train=replace(federation.train, y=y))


def other_labels(federation: Federation, seed: int) -> Federation:
    """The same federation, its test labels drawn anew."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (len(federation.test),), generator=generator)
    return replace(federation, test=replace(federation.test, y=y))


def test_early_stopping_never_looks_at_test_data(blobs: Make) -> None:
    def done(federation: Federation) -> Run:
        return run(fedavg(**TRAINING), federation, model=small, rounds=40, patience=3)

    plain = done(noisy(blobs))
    assert plain.stopped and len(plain.history) < 40
    for seed in range(3):
        other = done(other_labels(noisy(blobs), seed))
        assert other.metrics != plain.metrics
        assert (other.stopped, other.tally) == (plain.stopped, plain.tally)
        assert len(other.history) == len(plain.history)
        assert same_bits(other.state, plain.state)


def test_the_best_model_on_the_validation_split_is_restored(blobs: Make, tmp_path: Path) -> None:
    federation = noisy(blobs)
    done = run(fedavg(**TRAINING), federation, model=small, rounds=40, patience=3, out=tmp_path / "run")
    scores = [row["valid_micro_accuracy"] for row in done.history[1:]]  # the model nobody has trained does not count
    best = 1 + scores.index(max(scores))
    assert done.tally.best_round == done.state.round == best
    assert len(scores) == best + 3
    assert done.stopped == f"no better validation score since round {best}"
    assert same_bits(done.state, after(fedavg(**TRAINING), federation, best))
    assert same_bits(Folder.open(tmp_path / "run").load_best(), done.state)
    assert done.metrics["micro_accuracy"] == done.history[best]["micro_accuracy"]


def test_the_best_model_survives_an_interruption(blobs: Make, tmp_path: Path) -> None:
    federation, method = noisy(blobs), fedavg(**TRAINING)
    whole = begun(method, federation, tmp_path / "whole", rounds=40, patience=3).go()
    stop = whole.tally.best_round + 1 if whole.tally.best_round else 1
    begun(method, federation, tmp_path / "parts", rounds=stop).go()
    resumed, _ = again(method, federation, tmp_path / "parts", rounds=40, patience=3)
    assert same_bits(resumed.state, whole.state)
    assert resumed.history == whole.history
    assert resumed.tally == whole.tally


def test_patience_needs_a_validation_split(blobs: Make) -> None:
    with pytest.raises(UsageError, match="patience needs a validation split"):
        run(fedavg(), blobs(), model=small, patience=2)


def test_a_target_stops_the_run_when_it_is_reached(blobs: Make) -> None:
    free = run(fedavg(**TRAINING), blobs(), model=small, rounds=10)
    target = free.history[6]["micro_accuracy"]
    first = next(row["round"] for row in free.history if row["micro_accuracy"] >= target)
    done = run(fedavg(**TRAINING), blobs(), model=small, rounds=10, target=target)
    assert done.state.round == done.summary()["rounds_to_target"] == first
    assert "target" in done.summary()["stopped"]
    assert done.history == free.history[: first + 1]


@pytest.mark.parametrize(
    ("name", "value"),
    [("rounds", -1), ("evaluate_every", 0), ("checkpoint_every", 0), ("patience", 0), ("fine_tune", -1)],
)
def test_a_bad_schedule_fails_when_built(name: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"{name}.*{value}"):
        Settings.of({"method": "fedavg", name: value})


# -- the folder ----------------------------------------------------------------------------------------------


def test_a_run_folder_is_never_overwritten(blobs: Make, tmp_path: Path) -> None:
    run(fedavg(**TRAINING), blobs(), model=small, rounds=1, out=tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(UsageError, match=r"exists already and is not overwritten.*resume"):
        run(fedavg(**TRAINING), blobs(), model=small, rounds=1, seed=1, out=tmp_path / "run")
    assert contents(tmp_path / "run") == before


def test_names_of_fresh_folders_do_not_collide(tmp_path: Path) -> None:
    assert [Folder.fresh(tmp_path, "run").path.name for _ in range(3)] == ["run", "run-2", "run-3"]


def test_a_folder_that_is_no_run_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not the folder of a run"):
        Folder.open(tmp_path)


def test_only_the_last_checkpoints_are_kept(blobs: Make, tmp_path: Path) -> None:
    run(fedavg(**TRAINING), blobs(), model=small, rounds=6, checkpoint_every=1, out=tmp_path / "run")
    kept = sorted(file.name for file in (tmp_path / "run/checkpoints").glob("round-*"))
    assert kept == [f"round-00000{n}.{kind}" for n in (4, 5, 6) for kind in ("json", "safetensors")]


def test_other_data_are_not_resumed_with(blobs: Make, tmp_path: Path) -> None:
    begun(fedavg(**TRAINING), blobs(), tmp_path / "run", rounds=1).go()
    before = contents(tmp_path / "run")
    with pytest.raises(UsageError, match="the data are not those the run was started with"):
        again(fedavg(**TRAINING), blobs(seed=1), tmp_path / "run", rounds=2)
    assert contents(tmp_path / "run") == before


def test_a_finished_run_resumes_to_what_it_was(blobs: Make, tmp_path: Path) -> None:
    done = begun(fedavg(**TRAINING), blobs(), tmp_path / "run", rounds=3).go()
    before = contents(tmp_path / "run")
    resumed, problems = again(fedavg(**TRAINING), blobs(), tmp_path / "run", rounds=3)
    assert problems == []
    assert same_bits(resumed.state, done.state)
    assert resumed.summary() | {"seconds": 0} == done.summary() | {"seconds": 0}
    now = contents(tmp_path / "run")
    assert {name for name in now if now[name] != before.get(name)} <= {"log.txt", "summary.json", "digests.json"}


# -- interruptions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", range(1, 9))
def test_an_interrupt_loses_no_line_and_no_byte_of_the_count(
    call: int, blobs: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control-C while a round is evaluated: the checkpoint must be of a whole round, its line included."""
    method, federation = fedavg(**TRAINING), blobs(valid=4)
    whole = begun(method, federation, tmp_path / "whole", rounds=4).go()
    calls, real = iter(range(1, 100)), polycentric.runs.observers.evaluate

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(polycentric.runs.observers, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        begun(method, federation, tmp_path / "parts", rounds=4).go()
    monkeypatch.undo()
    resumed, _ = again(method, federation, tmp_path / "parts", rounds=4)
    assert same_bits(resumed.state, whole.state)
    assert resumed.tally == whole.tally
    assert (tmp_path / "parts/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a bit flipped": lambda stem: flip(stem.with_suffix(".safetensors")),
    "cut short": lambda stem: stem.with_suffix(".safetensors").write_bytes(b"half"),
    "gone": lambda stem: stem.with_suffix(".safetensors").unlink(),
    "a manifest cut short": lambda stem: stem.with_suffix(".json").write_text('{"round": 3, "sha'),
    "a manifest of something else": lambda stem: stem.with_suffix(".json").write_text("[]"),
    "an empty manifest": lambda stem: stem.with_suffix(".json").write_text(""),
}


@pytest.fixture(scope="module")
def whole_and_parts(blobs: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of a run of five rounds, and of the same after three of them; to be copied, not touched."""
    folder = tmp_path_factory.mktemp("runs")
    for name, rounds in (("whole", 5), ("parts", 3)):
        begun(fedavg(**TRAINING), blobs(), folder / name, rounds=rounds, checkpoint_every=1).go()
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("how_many", [1, 3])
def test_a_damaged_checkpoint_is_passed_over_and_the_end_is_the_same(
    damage: str, how_many: int, blobs: Make, whole_and_parts: Path, tmp_path: Path
) -> None:
    method, federation = fedavg(**TRAINING), blobs()
    shutil.copytree(whole_and_parts, tmp_path, dirs_exist_ok=True)
    whole, _ = Folder.open(tmp_path / "whole").load()
    for n in range(3, 3 - how_many, -1):
        DAMAGES[damage](tmp_path / f"parts/checkpoints/round-00000{n}")
    resumed, problems = again(method, federation, tmp_path / "parts", rounds=5, checkpoint_every=1)

    assert len(problems) == how_many
    log = (tmp_path / "parts/log.txt").read_text()
    for n, problem in zip((3, 2, 1), problems, strict=False):
        assert f"checkpoint round-00000{n} is damaged" in problem
        assert problem in log
    assert f"resumed after round {3 - how_many}" in log
    assert whole is not None and whole.state.round == 5
    assert same_bits(resumed.state, whole.state)
    assert (tmp_path / "parts/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


# One process imports everything once, then forks a child for every attempt; the children are killed.
WORKER = """
import hashlib, json, os, random, signal, sys, time, traceback
from pathlib import Path

import torch

torch.set_num_threads(1)
from polycentric.runs.settings import Settings
from polycentric.runs.folder import Folder
from polycentric.runs.start import Given, attach_folder, load_data, prepared, resumed

root, settings = Path(sys.argv[1]), Settings.of(json.loads(sys.argv[2]))
given = Given(federation=load_data(settings))


def begin(name):
    attach_folder(prepared(settings, given), Folder.new(root / name))


def die_at(event):
    # The program dies just before or just after it touches the disk for the nth time.
    left = [event]

    def deadly(function):
        def call(*args, **kwargs):
            for before in (True, False):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                if before:
                    result = function(*args, **kwargs)
            return result

        return call

    os.fsync, Path.replace, Path.unlink = map(deadly, (os.fsync, Path.replace, Path.unlink))


def attempt(name, delay=None, event=None):
    # True: it was killed. False: it came to its end.
    pid = os.fork()
    if pid == 0:
        try:
            if event is not None:
                die_at(event)
            resumed(Folder.open(root / name), given)[0].go()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if delay is not None:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return True
    if os.WEXITSTATUS(status):
        sys.exit("a child failed")
    return False


def digests(name):
    newest = sorted((root / name / "checkpoints").glob("round-*.safetensors"))[-1]
    files = [newest, root / name / "best.safetensors", root / name / "metrics.jsonl"]
    summary = json.loads((root / name / "summary.json").read_text())
    return [newest.name, summary["metrics"], summary["bytes_up"]] + [
        hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    ]


begin("warm")
resumed(Folder.open(root / "warm"), given)[0].go()  # what is imported on first use is imported once, not by every child
begin("whole")
began = time.monotonic()
attempt("whole")
seconds = time.monotonic() - began
dice, report = random.Random(0), {"whole": digests("whole")}
for how, least in (("time", 8), ("events", 20)):
    kills, ends = 0, []
    while kills < least:
        name, tries, killed = f"{how}-{len(ends)}", 0, True
        begin(name)
        while killed:
            if tries == 88:
                killed = attempt(name)
            elif how == "time":
                killed = attempt(name, delay=dice.uniform(0, seconds / 3))
            else:
                killed = attempt(name, event=1 + tries % 44)
            tries += 1
            kills += killed
        ends.append(digests(name))
    report[how] = {"kills": kills, "ends": ends}
print(json.dumps(report))
"""


def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """SIGKILL at random moments, and just before and after every touch of the disk."""
    settings: dict[str, Any] = {
        "method": "fedavg",
        "data": "digits",
        "clients": 6,
        "model": "logistic",
        "rounds": 5,
        "set": {"lr": 0.05, "select": "uniform(n=3)", "center": "momentum(lr=1, beta=0.5)"},
        "valid": 0.1,
        "patience": 50,
        "checkpoint_every": 1,
        "device": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(tmp_path), json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    for how, least in (("time", 8), ("events", 20)):
        assert report[how]["kills"] >= least
        assert all(end == report["whole"] for end in report[how]["ends"])


def test_tensors_of_a_checkpoint_come_back_as_they_were(blobs: Make, tmp_path: Path) -> None:
    method = fedavg(cut=KeepPrivate("dense*"), center=Adam(0.1), **TRAINING)
    done = run(method, blobs(), model=small, rounds=2, out=tmp_path / "run")
    kept, problems = Folder.open(tmp_path / "run").load()
    assert problems == [] and kept is not None
    assert same_bits(kept.state, done.state)
    assert kept.tally == done.tally
    assert list(kept.history) == done.history
    rows: Tensor = kept.state.kept["private"]
    assert rows.shape == (5, 28)
