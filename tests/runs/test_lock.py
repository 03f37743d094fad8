"""One writer for every folder: exactly one of many, the dead are taken over, the living and the unknown are not."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import polycentric as pc
from polycentric.cli import outcome
from polycentric.errors import UsageError
from polycentric.runs import grid, lock
from polycentric.runs.folder import Folder
from polycentric.runs.grid import run_cell, run_cells, run_dir
from polycentric.runs.lock import LOCK, BeingWritten, Lock, Owner, writer
from polycentric.runs.loop import Run
from polycentric.runs.settings import Settings
from polycentric.runs.start import attach_folder, prepared, resumed

TINY: dict[str, Any] = {
    "data": "teacher(clients=3,dimension=4,examples=8)", "model": "logistic", "rounds": 4, "checkpoint_every": 1,
    "device": "cpu", "executor": "looped",
}  # fmt: skip
FOUR = [Settings.of(TINY | {"method": method, "seed": seed}) for seed in (0, 1) for method in ("fedavg", "nofed")]
only_posix = pytest.mark.skipif(os.name != "posix", reason="elsewhere nobody can be asked whether it lives")
only_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="nobody says when a process was started")


def until(happens: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < end, "it never happens"
        time.sleep(0.01)


def write(folder: Path, **changes: Any) -> Owner:
    """A lock of this process, but for some changes."""
    owner = replace(Owner.here(), **changes)
    folder.mkdir(exist_ok=True)
    (folder / LOCK).write_text(lock._words(owner))
    return owner


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def begun(path: Path) -> Path:
    """A run that was interrupted after its second round."""

    class Stop(pc.Callback):
        def on_round(self, run: Run, trips: Any) -> None:
            if run.state.round == 2:
                raise KeyboardInterrupt

    how = {key: value for key, value in TINY.items() if key != "data"}
    with pytest.raises(KeyboardInterrupt):
        pc.run("fedavg", TINY["data"], out=path, callbacks=[Stop()], **how)
    return path


def results(path: Path) -> dict[str, bytes]:
    """What a run's end depends on neither time nor place for."""
    names = ["metrics.jsonl", "clients.csv", "checkpoints/round-000004.safetensors"]
    return {name: (path / name).read_bytes() for name in names}


# -- who has ended -------------------------------------------------------------------------------------------


def test_a_lock_is_given_to_one_and_given_back(tmp_path):
    first = Lock(tmp_path)
    assert first.take() is None
    assert Owner.of((tmp_path / LOCK).read_text()) == first.owner
    with pytest.raises(BeingWritten) as refusal:
        Lock(tmp_path).take()
    since = first.owner.since[11:16]
    assert str(refusal.value) == (
        f"{tmp_path} is being written by process {os.getpid()} on host {first.owner.host} since {since}: "
        f"wait for it, or end it; if that machine is gone, delete {tmp_path / LOCK}"
    )
    first.release()
    assert list(tmp_path.iterdir()) == []
    second = Lock(tmp_path)
    assert second.take() is None
    first.release()  # twice does nothing to the next one's
    assert (tmp_path / LOCK).exists()
    del second  # nor does anybody keep what is forgotten
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_links_has_locks_too(tmp_path, monkeypatch):
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    first = Lock(tmp_path)
    assert first.take() is None and Owner.of((tmp_path / LOCK).read_text()) == first.owner
    with pytest.raises(BeingWritten):
        Lock(tmp_path).take()
    first.release()
    assert list(tmp_path.iterdir()) == []


@only_posix
def test_a_dead_owner_is_taken_over_with_a_line(tmp_path):
    dead = write(tmp_path, pid=ended_process())
    (tmp_path / ".config.json.1.tmp").write_text("half")  # by whoever was killed
    assert writer(tmp_path) is None
    with Folder(tmp_path).alone():
        assert Owner.of((tmp_path / LOCK).read_text()).pid == os.getpid()
    assert f"taken over from process {dead.pid} on host {dead.host}" in (tmp_path / "log.txt").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


@only_proc
def test_a_number_that_another_process_has_by_now_is_a_dead_owner(tmp_path):
    old = write(tmp_path, started="1")
    assert Lock(tmp_path).take() == old


@only_proc
def test_a_killed_process_that_nobody_has_asked_about_is_dead(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    write(tmp_path, pid=process.pid, started=lock._stat(process.pid)[1])
    assert writer(tmp_path) is not None
    process.kill()
    until(lambda: lock._stat(process.pid)[0] == "Z")
    assert writer(tmp_path) is None
    process.wait()


@pytest.mark.parametrize(
    "changes", [{"host": "elsewhere"}, {"machine": "another"}, {"processes": "pid:[1]"}, {"boot": "b", "machine": ""}]
)
def test_who_cannot_be_asked_is_not_taken_over(tmp_path, monkeypatch, changes):
    """Another host, another of the same name, a container on this one, a container on who knows which."""
    write(tmp_path, pid=ended_process(), **changes)
    with pytest.raises(BeingWritten, match=rf"if that machine is gone, delete \S+{LOCK}"):
        Lock(tmp_path).take()
    (tmp_path / LOCK).unlink()
    assert Lock(tmp_path).take() is None


@only_proc
def test_a_machine_that_was_started_again_has_no_process_of_before(tmp_path, monkeypatch):
    real = lock._text
    monkeypatch.setattr(lock, "_text", lambda path: "abc" if path == "/etc/machine-id" else real(path))
    monkeypatch.setattr(lock, "NO_CONTAINER", Owner.here().processes)
    before = write(tmp_path, boot="the one before")
    assert Lock(tmp_path).take() == before
    monkeypatch.setattr(lock, "NO_CONTAINER", "another")  # containers of one image do not know their machine
    write(tmp_path, boot="the one before")
    with pytest.raises(BeingWritten):
        Lock(tmp_path).take()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', json.dumps({"pid": -1, "host": "h"})])
def test_a_lock_that_says_nothing_is_refused_in_one_line(tmp_path, monkeypatch, text):
    monkeypatch.setattr(lock, "HALF_WRITTEN_SECONDS", 0.05)
    (tmp_path / LOCK).write_text(text)
    with pytest.raises(UsageError, match=f"if nobody writes {tmp_path}, delete it"):
        Lock(tmp_path).take()
    assert (tmp_path / LOCK).read_text() == text


def test_a_lock_that_was_deleted_is_taken_again_or_the_run_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.0)
    mine = Lock(tmp_path)
    mine.take()
    os.utime(tmp_path / LOCK, (0, 0))
    mine.keep()
    assert (tmp_path / LOCK).stat().st_mtime > 1  # the sign of life
    (tmp_path / LOCK).unlink()
    mine.keep()
    assert Owner.of((tmp_path / LOCK).read_text()) == mine.owner
    other = write(tmp_path, token="other", host="elsewhere")
    with pytest.raises(BeingWritten, match=r"was taken by process \d+ on host elsewhere"):
        mine.keep()
    mine.release()
    assert Owner.of((tmp_path / LOCK).read_text()) == other


TAKERS = """
import json, sys, time
from pathlib import Path
from polycentric.runs.lock import BeingWritten, Lock
root, me, n = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
(root / f"ready-{me}").touch()
while len(list(root.glob("ready-*"))) < n:
    pass
held = {}
for folder in sorted(root.glob("run-*")):
    lock = Lock(folder)
    try:
        lock.take()
        held[folder.name] = lock
    except BeingWritten:
        pass
print(json.dumps(list(held)), flush=True)
sys.stdin.read()
"""


@only_posix
def test_of_many_that_find_a_dead_owner_one_takes_over(tmp_path):
    n, dead = 8, ended_process()
    names = [f"run-{i:02}" for i in range(40)]
    for i, name in enumerate(names):
        owner = write(tmp_path / name, pid=dead)
        if i % 2:  # and somebody died while taking over
            (tmp_path / name / f".lock-{owner.token}.tmp").write_text(lock._words(replace(owner, token="half")))
    how: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    each = [[sys.executable, "-c", TAKERS, str(tmp_path), str(i), str(n)] for i in range(n)]
    takers = [subprocess.Popen(words, **how) for words in each]
    try:
        held = [json.loads(taker.stdout.readline()) for taker in takers]  # type: ignore[union-attr]
        assert sorted(name for mine in held for name in mine) == names
        for taker, mine in zip(takers, held, strict=True):
            assert all(Owner.of((tmp_path / name / LOCK).read_text()).pid == taker.pid for name in mine)
    finally:
        for taker in takers:
            taker.communicate("")
    assert [path for name in names for path in (tmp_path / name).iterdir()] == []


@only_posix
def test_a_forked_child_leaves_its_parents_lock(tmp_path):
    words = """
import os, sys
from pathlib import Path
from polycentric.runs.lock import Lock
lock = Lock(Path(sys.argv[1]))
lock.take()
if not (child := os.fork()):
    lock.release()
    sys.exit(0)
os.waitpid(child, 0)
print(lock.path.exists())
"""
    said = subprocess.run([sys.executable, "-c", words, str(tmp_path)], capture_output=True, text=True, check=True)
    assert said.stdout == "True\n" and list(tmp_path.iterdir()) == []


# -- runs ----------------------------------------------------------------------------------------------------


class Held(pc.Callback):
    """Stays in a round until it is let go."""

    def __init__(self) -> None:
        self.there, self.go = threading.Event(), threading.Event()

    def on_round(self, run: Run, trips: Any) -> None:
        self.there.set()
        assert self.go.wait(60)


def test_of_two_that_resume_a_folder_one_goes(tmp_path, capsys):
    path, held = begun(tmp_path / "run"), Held()
    assert not (path / LOCK).exists()  # Ctrl-C gives it back
    thread = threading.Thread(target=lambda: pc.resume(path, callbacks=[held]))
    thread.start()
    try:
        assert held.there.wait(60)
        before = {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file()}
        (temporary := path / ".metrics.jsonl.1.tmp").write_text("the writer's")
        with pytest.raises(BeingWritten, match=f"is being written by process {os.getpid()} on host"):
            pc.resume(path)
        assert outcome(["resume", str(path), "--rounds", "9"]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: {path} is being written by process") and said.count("\n") == 1
        pc.layers(path)  # who reads needs no lock, and removes nothing
        assert before == {f: f.stat().st_mtime_ns for f in path.rglob("*") if f.is_file() and f != temporary}
        temporary.unlink()
    finally:
        held.go.set()
        thread.join()
    how = {key: value for key, value in TINY.items() if key != "data"}
    pc.run("fedavg", TINY["data"], out=tmp_path / "whole", **how)
    assert results(path) == results(tmp_path / "whole")
    assert not (path / LOCK).exists() and not (tmp_path / "whole" / LOCK).exists()
    pc.open(path)


def test_a_run_that_fails_gives_its_folder_back(tmp_path):
    path = begun(tmp_path / "run")

    class Fails(pc.Callback):
        def on_round(self, run: Run, trips: Any) -> None:
            assert (path / LOCK).is_file()
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        pc.resume(path, callbacks=[Fails()])
    assert not (path / LOCK).exists()
    folder = Folder.open(path)
    with pytest.raises(UsageError, match="rounds=1 is fewer"):
        resumed(folder, rounds=1)
    assert not (path / LOCK).exists()
    with pytest.raises(UsageError, match="is another run's by now"):  # somebody was faster between `new` and now
        attach_folder(prepared(FOUR[0]), folder)
    assert not (path / LOCK).exists()
    pc.resume(path)


def test_the_folder_is_held_while_clients_train_alone(tmp_path, monkeypatch):
    locked: list[bool] = []
    real = Run._go
    monkeypatch.setattr(Run, "_go", lambda self: (locked.append((tmp_path / "run" / LOCK).is_file()), real(self))[1])
    words = ["--data", TINY["data"], "--model", "logistic", "--rounds", "1", "--out", str(tmp_path / "run")]
    assert outcome(["run", "fedavg", *words, "--alone", "--quiet"]) == 0
    assert locked == [True, True] and not (tmp_path / "run" / LOCK).exists()


# -- tables --------------------------------------------------------------------------------------------------

CELLS = """
import json, sys, time, warnings
from pathlib import Path
from polycentric.runs.grid import run_cells
from polycentric.runs.loop import Run
from polycentric.runs.settings import Settings
warnings.simplefilter("ignore")
real, let_go = Run._round, Path(sys.argv[1]) / "go"
def wait(self):
    while not let_go.exists():
        time.sleep(0.01)
    return real(self)
Run._round = wait
found = run_cells([Settings.of(one) for one in json.loads(sys.argv[2])], Path(sys.argv[1]))
print(json.dumps(found))
"""


@contextmanager
def other_process(parent: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process over the same cells, in the first round of the first until there is a file go."""
    cells = json.dumps([cell.model_dump() for cell in FOUR])
    words = [sys.executable, "-c", CELLS, str(parent), cells]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}) as other:
        try:
            until(lambda: (run_dir(FOUR[0], parent) / "metrics.jsonl").is_file())
            yield other
        finally:
            other.kill()


def logs(parent: Path) -> list[str]:
    return [(run_dir(cell, parent) / "log.txt").read_text() for cell in FOUR]


def test_two_processes_over_the_same_cells_run_each_once(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "POLL_SECONDS", 0.02)
    told: list[tuple[int, str]] = []

    def progress(done: int, total: int, summary: dict[str, Any]) -> None:
        told.append((done, summary.get("waiting", "")))
        if "waiting" in summary:
            (tmp_path / "go").touch()

    with other_process(tmp_path) as other:
        with pytest.warns(UserWarning, match=f"waiting for process {other.pid} on host"):
            mine = run_cells(FOUR, tmp_path, progress=progress)
        theirs = json.loads(other.communicate(timeout=60)[0])
    assert mine == theirs and [(s["method"], s["seed"]) for s in mine] == [(c.method, c.seed) for c in FOUR]
    assert [text.count("ended after round 4") for text in logs(tmp_path)] == [1] * 4
    assert not any("resumed" in text or "taken over" in text for text in logs(tmp_path))
    assert [done for done, _ in told] == [1, 2, 3, 3, 4] and told[3][1].startswith(f"process {other.pid} ")
    assert not list(tmp_path.rglob(LOCK))


@only_posix
def test_the_cell_of_a_process_that_is_killed_is_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "POLL_SECONDS", 0.02)

    def progress(done: int, total: int, summary: dict[str, Any]) -> None:
        if "waiting" in summary:
            other.kill()

    with (
        other_process(tmp_path / "a") as other,
        pytest.warns(UserWarning, match=f"waiting for process {other.pid} on host"),
    ):
        found = run_cells(FOUR, tmp_path / "a", progress=progress)
    assert [f"taken over from process {other.pid}" in text for text in logs(tmp_path / "a")] == [True] + [False] * 3
    kept = [{k: v for k, v in s.items() if k not in ("seconds", "run_dir")} for s in found]
    again = run_cells(FOUR, tmp_path / "b")
    assert kept == [{k: v for k, v in s.items() if k not in ("seconds", "run_dir")} for s in again]


def test_nobody_waits_for_ever_for_a_machine_that_gives_no_sign(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(grid, "SILENT_SECONDS", 0.2)
    run_dir(FOUR[1], tmp_path).mkdir()
    write(run_dir(FOUR[1], tmp_path), host="elsewhere")
    with pytest.warns(UserWarning, match="waiting for"), pytest.raises(BeingWritten, match="on host elsewhere"):
        run_cells(FOUR, tmp_path)
    there = [(run_dir(cell, tmp_path) / "summary.json").is_file() for cell in FOUR]
    assert there == [True, False, True, True]  # the others are run all the same


def test_a_cell_that_is_asked_for_twice_is_run_once_by_several_jobs(tmp_path, monkeypatch):
    refusals: list[BeingWritten] = []

    def work(settings: Settings, parent: Path, beside: int) -> dict[str, Any]:
        try:
            return run_cell(settings, parent)
        except BeingWritten as refusal:
            refusals.append(refusal)
            raise

    real = Run._round
    monkeypatch.setattr(Run, "_round", lambda self: (time.sleep(0.1), real(self))[1])
    monkeypatch.setattr(grid, "ProcessPoolExecutor", lambda jobs, **_: ThreadPoolExecutor(jobs))
    monkeypatch.setattr(grid, "_work", work)
    first, second = run_cells([FOUR[0], FOUR[0]], tmp_path, jobs=2)
    assert first == second and len(refusals) == 1
    assert (run_dir(FOUR[0], tmp_path) / "log.txt").read_text().count("ended") == 1
