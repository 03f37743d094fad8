"""What clients keep may live in files: the same bits, checkpoints that stay good, and little memory."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from polycentric import Diverged, Federation, KeepPrivate, Method, Uniform, UsageError, fedavg, fesem, mocha
from polycentric.runs.folder import Folder
from polycentric.runs.loop import Run
from polycentric.runs.start import prepare
from polycentric.simulate.disk_state import OnDisk, Shelf
from polycentric.stacks.stack import Draft, take
from support import recorded, went_on

ROOT = Path(__file__).parents[2]
TRAINING: dict[str, Any] = {"lr": 0.05, "epochs": 1, "batch": 5}

PRIVATE = fedavg(**TRAINING, cut=KeepPrivate("dense*"), select=Uniform(n=3))
LAST = fesem(k=2, **TRAINING, absent="last", select=Uniform(n=3))
COVARIANCE = mocha(every=2)
KEEPING = {"private parts": PRIVATE, "last rows": LAST, "covariance": COVARIANCE}
every_keeping = pytest.mark.parametrize("method", KEEPING.values(), ids=KEEPING)


def begun(method: Method, federation: Federation, folder: Path | None, state: str, rounds: int = 4) -> Run:
    model = "logistic" if method.name == "mocha" else "mlp"
    schedule = dict(rounds=rounds, checkpoint_every=1)
    prepared = prepare(method, federation, model=model, state=state, **schedule, block=2)  # type: ignore[arg-type]
    if folder is not None:
        recorded(prepared, folder)
    return prepared


def same_bits(a: Any, b: Any) -> bool:
    parts = [(x, y) for name in ("centers", "kept", "memory") for x, y in [(getattr(a, name), getattr(b, name))]]
    return a.round == b.round and all(
        x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x) for x, y in parts
    )


def on_disk(run: Run) -> set[str]:
    held = run.state.kept | run.state.memory
    return {name for name, rows in held.items() if isinstance(rows, OnDisk)}


# -- the same bits -------------------------------------------------------------------------------------------


@every_keeping
def test_in_files_are_the_same_bits_as_in_memory(method: Method, blobs: Any, tmp_path: Path) -> None:
    memory, disk = (begun(method, blobs(), tmp_path / state, state).go() for state in ("memory", "disk"))
    assert same_bits(memory.state, disk.state)
    for file in ("metrics.jsonl", "clients.csv"):
        assert (tmp_path / "memory" / file).read_bytes() == (tmp_path / "disk" / file).read_bytes()
    expected = {"private parts": {"private"}, "last rows": {"last"}}
    wanted = next((names for key, names in expected.items() if KEEPING[key] is method), {"covariance"})
    assert wanted <= on_disk(disk) and not on_disk(memory)


@every_keeping
@pytest.mark.parametrize("then", ["disk", "memory"])
def test_resumed_equals_uninterrupted(method: Method, then: str, blobs: Any, tmp_path: Path) -> None:
    whole = begun(method, blobs(), None, "memory").go()
    begun(method, blobs(), tmp_path / "run", "disk", rounds=2).go()
    resumed, problems = went_on(begun(method, blobs(), None, then), Folder.open(tmp_path / "run"))
    assert problems == [] and same_bits(resumed.state, whole.state)
    assert resumed.history == whole.history


def test_a_run_without_a_folder_leaves_nothing_behind(blobs: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = begun(PRIVATE, blobs(), None, "disk").go()
    assert on_disk(done) == {"private"} and len(list(tmp_path.glob("polycentric-*/*.bin"))) == 1  # old ones are gone
    del done
    gc.collect()
    assert not list(tmp_path.glob("polycentric-*"))


def test_a_round_leaves_the_files_it_was_given_as_they_were(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    before = shelf.put(torch.arange(12.0).view(4, 3))
    draft = Draft({"rows": before})
    draft.write(torch.tensor([1]), {"rows": torch.zeros(1, 3)})
    draft.write(torch.tensor([3]), {"rows": torch.ones(1, 3)})
    after = draft.stacks["rows"]
    assert torch.equal(before, torch.arange(12.0).view(4, 3))
    assert after.tolist() == [[0, 1, 2], [0, 0, 0], [6, 7, 8], [1, 1, 1]]
    assert isinstance(after, OnDisk) and after.path.stat().st_size == 48 and len(list(tmp_path.iterdir())) == 2
    assert type(take({"rows": after}, torch.tensor([0]))["rows"]) is torch.Tensor  # what is read is in memory
    del before
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == [after.path.name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_every_type_comes_back_as_it_was(dtype: torch.dtype, tmp_path: Path) -> None:
    rows = torch.arange(10).view(5, 2).to(dtype)
    assert torch.equal(Shelf(tmp_path).put(rows), rows)
    assert torch.equal(Shelf(tmp_path).put(rows[:1].expand(5, 2)), rows[:1].expand(5, 2))
    assert Shelf(tmp_path).put(rows[:0]).shape == (0, 2)


# -- checkpoints ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [PRIVATE, LAST], ids=["private parts", "last rows"])
def test_every_checkpoint_stays_what_it_was(method: Method, blobs: Any, tmp_path: Path) -> None:
    begun(method, blobs(), tmp_path / "run", "disk", rounds=5).go()
    manifests = sorted((tmp_path / "run/checkpoints").glob("*.json"), reverse=True)
    bins = sorted(path.name for path in (tmp_path / "run/checkpoints").glob("*.bin"))
    assert bins and {name.partition(".")[0] for name in bins} == {path.stem for path in manifests}  # old ones pruned
    for manifest in manifests:  # the newest, then the one before, ...
        found, problems = Folder.open(tmp_path / "run").load()
        assert found is not None and problems == []
        expected = begun(method, blobs(), None, "memory", rounds=found.state.round).go()
        assert same_bits(found.state, expected.state)
        manifest.unlink()


def test_a_damaged_file_is_passed_over_for_the_checkpoint_before(blobs: Any, tmp_path: Path) -> None:
    whole = begun(PRIVATE, blobs(), tmp_path / "run", "disk").go()
    file = tmp_path / "run/checkpoints/round-000004.0.bin"
    raw = bytearray(file.read_bytes())
    raw[7] ^= 1
    file.unlink()
    file.write_bytes(raw)
    fresh = begun(PRIVATE, blobs(), None, "disk")
    resumed, problems = went_on(fresh, Folder.open(tmp_path / "run"))
    assert len(problems) == 1 and "round-000004.0.bin is wrong" in problems[0]
    assert same_bits(resumed.state, whole.state)


def test_a_killed_process_leaves_the_last_checkpoint_good(blobs: Any, tmp_path: Path) -> None:
    """A process that ends in the middle of a round, with rows half written, and takes its finalizers with it."""
    whole = begun(PRIVATE, blobs(), None, "memory").go()
    if (child := os.fork()) == 0:
        torch.set_num_threads(1)  # others of its parent's are not there
        run = begun(PRIVATE, blobs(), tmp_path / "run", "disk")
        taken = Draft.write

        def write(self: Draft, index: Any, rows: Any) -> None:
            taken(self, index, rows)
            if run.state.round == 3 and rows.keys() & {"private"}:
                os._exit(9)

        Draft.write = write  # type: ignore[method-assign]
        run.go()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    left = list((tmp_path / "run/state").glob("*.bin"))
    assert len(left) > 1  # of the round that was under way
    found, problems = Folder.open(tmp_path / "run").load()
    assert found is not None and found.state.round == 3 and problems == []
    resumed, _ = went_on(begun(PRIVATE, blobs(), None, "disk"), Folder.open(tmp_path / "run"))
    assert same_bits(resumed.state, whole.state)
    assert len(list((tmp_path / "run/state").glob("*.bin"))) == 1  # what was left is gone


def test_divergence_keeps_the_files_of_the_round_before(quadratics: Any, tmp_path: Path) -> None:
    def two(shape: tuple[int, ...], n_outputs: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(*shape, 3), torch.nn.Linear(3, n_outputs))

    method = fedavg(lr=1e4, epochs=1, batch=None, cut=KeepPrivate("0.*"))
    states = {}
    for state in ("memory", "disk"):
        run = prepare(method, quadratics(), model=two, dtype="float64", state=state, rounds=500)
        recorded(run, tmp_path / state)
        with pytest.raises(Diverged):
            run.go()
        states[state], problems = Folder.open(tmp_path / state).load()
        assert problems == []
    assert states["memory"] is not None and states["disk"] is not None and states["disk"].state.round > 0
    assert same_bits(states["memory"].state, states["disk"].state)


def test_the_best_state_is_kept_in_files_too(blobs: Any, tmp_path: Path) -> None:
    def patient(state: str, folder: Path | None) -> Run:
        run = begun(PRIVATE, blobs(valid=4), folder, state, rounds=6)
        run.settings = run.settings.changed(patience=1)
        return run.go()

    memory, disk = patient("memory", None), patient("disk", tmp_path / "run")
    assert same_bits(memory.state, disk.state) and memory.metrics == disk.metrics
    best = Folder.open(tmp_path / "run").load_best()
    assert isinstance(best.kept["private"], OnDisk) and same_bits(best, disk.state)


# -- refusals ------------------------------------------------------------------------------------------------


def test_a_place_that_is_not_known_is_refused(blobs: Any) -> None:
    with pytest.raises(UsageError, match="state in the arguments: input should be 'memory' or 'disk', got 'cloud'"):
        prepare(PRIVATE, blobs(), state="cloud")  # type: ignore[arg-type]


def test_a_disk_that_cannot_be_written_is_said_in_one_line(blobs: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UsageError, match=r"cannot write client state to .*: No space left on device; free some space"):
        begun(PRIVATE, blobs(), tmp_path / "run", "disk").go()


# -- memory --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def peak() -> dict[str, float]:
    """Megabytes that a process needed at most, beyond files, for small and for large."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return {key: float(value) for key, value in json.loads(done.stdout.splitlines()[-1]).items()}


@pytest.mark.xdist_group("memory")
def test_a_cohort_larger_than_memory_streams_through_it(peak: dict[str, float]) -> None:
    """Ten times as many clients in a round, the same memory: a row is 1 MB, a block 5 of them."""
    assert peak["100 clients"] - peak["10 clients"] < 20  # all their rows would be 100


@pytest.mark.xdist_group("memory")
def test_what_clients_keep_is_not_in_memory(peak: dict[str, float]) -> None:
    """A hundred and fifty clients keep 1.1 MB each; 5 at a time are in memory."""
    assert peak["disk"] < 60
    assert peak["memory"] > 150


def anonymous() -> float:
    """Megabytes of this process that are no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def main() -> None:
    """In a process of its own: what it needs at most while rounds go by."""
    spec = importlib.util.spec_from_file_location("conftest_beside", ROOT / "tests/conftest.py")
    assert spec and spec.loader
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    federation = conftest.blobs_of([3] * 150, shape=(6,), test=1, dtype=torch.float32)

    def wide(width: int, shape: tuple[int, ...], n_outputs: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(*shape, width // 10), torch.nn.Linear(width // 10, n_outputs))

    prepare(fedavg(), federation, rounds=1, fine_tune=0).go()  # all that is imported on first use is imported
    out, written, base = {}, Draft.write, anonymous()
    for name, n in [("before", 10), ("10 clients", 10), ("100 clients", 100), ("disk", 10), ("memory", 10)]:
        kept = name in ("disk", "memory")
        method = fedavg(lr=0.01, batch=None, select=Uniform(n=n), **({"cut": KeepPrivate("0.*")} if kept else {}))
        state = "disk" if name == "disk" else "memory"
        model = partial(wide, 400_000 if kept else 250_000)
        run = prepare(method, federation, model=model, executor="looped", block=5, state=state, rounds=1, fine_tune=0)
        seen = [0.0]

        def looked(self: Draft, index: Any, rows: Any, seen: list[float] = seen) -> None:
            written(self, index, rows)
            seen.append(anonymous() - base)

        Draft.write = looked  # type: ignore[method-assign]
        run.go()
        Draft.write = written  # type: ignore[method-assign]
        out[name] = max(seen)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
