"""The folder of a run: whole files or none, checkpoints that are right or passed over."""

import errno
import hashlib
import json
import os
import random
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

from polycentric.errors import UsageError
from polycentric.method import State
from polycentric.runs import checkpoint
from polycentric.runs.checkpoint import Checkpoint, Tally
from polycentric.runs.folder import Folder
from polycentric.runs.forms import check_of

LAW = settings(max_examples=25)


def a_checkpoint(round):
    r = torch.Generator().manual_seed(round)
    odd = torch.tensor([[0.0, -0.0, float("nan"), float("inf"), 5e-324]], dtype=torch.float64)
    state = State(
        centers={"model": torch.randn(2, 7, generator=r), "count": odd},
        kept={"private": torch.randn(3, 2, generator=r).bfloat16(), "nothing": torch.zeros(3, 0)},
        memory={"assignment": torch.randint(2, (3,), generator=r), "seen": torch.tensor([True, False, True])},
        round=round,
    )
    history = tuple({"round": i, "accuracy": i / 7} for i in range(round))
    return Checkpoint(state, Tally(round, 2 * round, 1, 0.1 * round, round, 2), history)


def bits(state):
    """Every tensor of a state, by name, type, shape and bytes."""
    return {
        (part, name): (t.dtype, t.shape, t.contiguous().view(torch.uint8).numpy().tobytes())
        for part in ("centers", "kept", "memory")
        for name, t in getattr(state, part).items()
    }


def same(a, b):
    return (
        a.state.round == b.state.round
        and bits(a.state) == bits(b.state)
        and a.tally == b.tally
        and a.history == b.history
    )


def begun(path, rounds=(1, 2)):
    folder = Folder.new(path)
    for round in rounds:
        folder.save(a_checkpoint(round))
    return folder


def files(path):
    return {str(f.relative_to(path)) for f in path.rglob("*") if f.is_file()}


@pytest.fixture
def no_sync(monkeypatch):
    """Hundreds of small files need not reach the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


# -- folders -------------------------------------------------------------------------------------------------


def test_a_folder_that_holds_anything_is_refused_and_left_alone(tmp_path):
    mine = tmp_path / "run"
    mine.mkdir()
    (mine / "thesis.txt").write_text("all my work")
    with pytest.raises(UsageError) as wrong:
        Folder.new(mine)
    assert str(wrong.value) == (
        f"{mine} exists already and is not overwritten: choose another --out, or continue the run with "
        f"`polycentric resume {mine}`"
    )
    assert files(tmp_path) == {"run/thesis.txt"}
    assert [f.name for f in mine.iterdir()] == ["thesis.txt"]


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "run").write_text("x")
    with pytest.raises(UsageError, match="exists already and is not overwritten"):
        Folder.new(tmp_path / "run")
    assert (tmp_path / "run").read_text() == "x"


def test_an_empty_folder_and_a_new_one_are_taken(tmp_path):
    (tmp_path / "empty").mkdir()
    Folder.new(tmp_path / "empty")
    Folder.new(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c" / "checkpoints").is_dir()


def test_a_free_name_is_found(tmp_path):
    names = [Folder.fresh(tmp_path, "run").path.name for _ in range(3)]
    assert names == ["run", "run-2", "run-3"]


def test_a_folder_without_a_config_is_not_a_run(tmp_path):
    with pytest.raises(UsageError) as wrong:
        Folder.open(tmp_path)
    assert str(wrong.value) == (f"{tmp_path} is not the folder of a run (it has no config.json); `ls runs` shows yours")
    Folder(tmp_path).write_json("config.json", {"method": "fedavg"})
    assert Folder.open(tmp_path).read_json("config.json") == {"method": "fedavg"}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"3"])
def test_a_file_that_is_not_a_json_object_is_named(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"config\.json"):
        Folder.open(tmp_path).read_json("config.json")


# -- checkpoints ---------------------------------------------------------------------------------------------


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path):
    folder = begun(tmp_path / "run", [3])
    found, problems = folder.load()
    assert problems == []
    assert same(found, a_checkpoint(3))


def test_what_is_loaded_lies_in_memory_as_what_was_saved_did(tmp_path):
    """Sums depend on it: a model at an odd address is multiplied in other pieces."""
    odd = State(
        {"model": torch.ones(3, 5), "b": torch.ones(1)}, {"c": torch.ones(3, 1)}, {"a": torch.ones(7).bool()}, 1
    )
    folder = Folder.new(tmp_path / "run")
    folder.save(Checkpoint(odd, Tally()))
    state = folder.load()[0].state
    rows = [*state.centers.values(), *state.kept.values(), *state.memory.values()]
    assert len(rows) == 4 and all(t.data_ptr() % 64 == 0 and t.is_contiguous() for t in rows)


def test_the_newest_is_loaded_and_only_the_last_three_are_kept(tmp_path):
    folder = begun(tmp_path / "run", range(1, 8))
    assert folder.load()[0].state.round == 7
    kept = {f"checkpoints/round-{r:06d}.{kind}" for r in (5, 6, 7) for kind in ("json", "safetensors")}
    lines = {"metrics.jsonl", "checkpoints/history.jsonl"}
    assert files(folder.path) == kept | lines  # and no temporary file


def test_a_checkpoint_may_be_written_again(tmp_path):
    folder = begun(tmp_path / "run", [1, 2, 2])
    assert same(folder.load()[0], a_checkpoint(2))


def test_without_checkpoints_there_is_nothing_and_no_problem(tmp_path):
    assert Folder.new(tmp_path / "run").load() == (None, [])


def test_metrics_are_rewound_to_a_checkpoint(tmp_path):
    folder, rows = Folder.new(tmp_path / "run"), a_checkpoint(4).history
    for row in rows:
        folder.append_metrics(row)
    long = (folder.path / "metrics.jsonl").read_bytes()
    folder.append_metrics({"round": 5})
    folder.rewind_metrics(rows)
    assert (folder.path / "metrics.jsonl").read_bytes() == long  # the very bytes


def test_a_manifest_is_as_long_after_many_rounds_as_after_few(tmp_path):
    folder = begun(tmp_path / "run", (10, 500))
    few, many = (len((folder.path / f"checkpoints/round-{r:06d}.json").read_text()) for r in (10, 500))
    assert many <= few + 20  # a few digits
    assert folder.load()[0].history == a_checkpoint(500).history  # it is in metrics.jsonl


def test_an_older_checkpoint_takes_its_own_rows_of_metrics(tmp_path):
    folder = begun(tmp_path / "run", (2, 4))
    (folder.path / "checkpoints/round-000004.safetensors").unlink()
    assert same(folder.load()[0], a_checkpoint(2))


@pytest.mark.parametrize("damage", [lambda text: text.replace("0.14", "0.41"), lambda text: text[:40], lambda text: ""])
def test_metrics_that_were_changed_are_noticed(tmp_path, damage):
    folder = begun(tmp_path / "run", (4,))
    right = folder.load()[0].history
    for name, other in (("metrics.jsonl", "checkpoints/history.jsonl"), ("checkpoints/history.jsonl", "metrics.jsonl")):
        path = folder.path / name
        whole = path.read_text()
        path.write_text(damage(whole))
        assert folder.load()[0].history == right  # from the other
        (folder.path / other).write_text(damage(whole))
        found, problems = folder.load()
        assert found is None and "metrics.jsonl and checkpoints/history.jsonl were changed" in problems[0]
        for each in (name, other):
            (folder.path / each).write_text(whole)


def test_the_last_row_may_be_left_out_where_more_rounds_were_asked_for(tmp_path):
    folder = begun(tmp_path / "run", (4,))
    folder.rewind_metrics(a_checkpoint(4).history[:-1])
    assert folder.load()[0].history == a_checkpoint(4).history[:-1]


def test_a_manifest_of_an_earlier_version_has_its_history_in_it(tmp_path):
    folder, old = begun(tmp_path / "run", (4,)), a_checkpoint(4)
    path = folder.path / "checkpoints/round-000004.json"
    manifest = json.loads(path.read_text())
    del manifest["metrics"], manifest["check"]
    manifest["history"] = list(old.history)
    path.write_text(json.dumps(manifest | {"check": check_of(manifest)}))
    (folder.path / "metrics.jsonl").unlink()
    assert same(folder.load()[0], old)


def test_the_best_state_comes_back_bit_for_bit(tmp_path):
    folder = Folder.new(tmp_path / "run")
    folder.save_best(a_checkpoint(3).state)
    found = folder.load_best()
    assert found.round == 3
    assert bits(found) == bits(a_checkpoint(3).state)


def test_a_damaged_best_state_is_refused(tmp_path):
    folder = Folder.new(tmp_path / "run")
    folder.save_best(a_checkpoint(3).state)
    path = folder.path / "best.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\0x")
    with pytest.raises(
        UsageError, match=f"^the best model of {folder.path} is damaged: its digest is wrong; to train it again, "
    ):
        folder.load_best()


# -- damage --------------------------------------------------------------------------------------------------


def falls_back(folder):
    """The newest checkpoint (2) is passed over for the one before it, and that is said."""
    found, problems = folder.load()
    assert len(problems) == 1
    assert problems[0].startswith("checkpoint round-000002 is damaged (")
    assert problems[0].endswith("); the one before it is used")
    assert same(found, a_checkpoint(1))


def damage(path, how, r):
    whole = path.read_bytes()
    if how == "cut short":
        path.write_bytes(whole[: r.randrange(len(whole))])
    elif how == "a bit flipped":
        place = r.randrange(len(whole))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << r.randrange(8)]) + whole[place + 1 :])
    else:
        path.write_bytes(whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2))
    return whole


@pytest.mark.parametrize("how", ["cut short", "a bit flipped", "half of it zeros"])
def test_damaged_tensors_are_passed_over(tmp_path, no_sync, how):
    folder, r = begun(tmp_path / "run"), random.Random(0)
    path = folder.path / "checkpoints" / "round-000002.safetensors"
    for _ in range(100):
        whole = damage(path, how, r)
        falls_back(folder)
        path.write_bytes(whole)
    assert folder.load()[0].state.round == 2


def test_a_manifest_cut_short_is_passed_over(tmp_path, no_sync):
    folder = begun(tmp_path / "run")
    path = folder.path / "checkpoints" / "round-000002.json"
    whole = path.read_bytes()
    for length in range(len(whole) - 1):  # without its last newline it is still whole
        path.write_bytes(whole[:length])
        falls_back(folder)


def test_a_manifest_with_a_bit_flipped_never_loads_anything_wrong(tmp_path, no_sync):
    """Either it is passed over, or what is loaded is right (a flip in white space)."""
    folder = begun(tmp_path / "run")
    path = folder.path / "checkpoints" / "round-000002.json"
    whole = path.read_bytes()
    wrong = []
    for place in range(len(whole)):
        for bit in (0, 2, 5, 7):  # another digit or letter, a sign or the other case, nothing that is text
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            found, problems = folder.load()
            if not (same(found, a_checkpoint(1)) and problems) and not same(found, a_checkpoint(2)):
                wrong.append((place, bit))
    assert wrong == []


@pytest.mark.parametrize("name", ["round-000002.safetensors", "round-000002.json"])
def test_a_checkpoint_with_a_file_missing_is_passed_over(tmp_path, name):
    folder = begun(tmp_path / "run")
    (folder.path / "checkpoints" / name).unlink()
    found, _ = folder.load()
    assert same(found, a_checkpoint(1))


@pytest.mark.parametrize("content", ["", "3", "[]", "{}", "null", '{"sha256": 1, "round": []}', "[" * 100])
def test_a_manifest_that_is_something_else_is_passed_over(tmp_path, content):
    folder = begun(tmp_path / "run")
    (folder.path / "checkpoints" / "round-000002.json").write_text(content)
    falls_back(folder)


def test_tensors_of_another_format_are_passed_over(tmp_path):
    folder = begun(tmp_path / "run")
    path = folder.path / "checkpoints" / "round-000002"
    garbage = b"not safetensors at all"
    path.with_suffix(".safetensors").write_bytes(garbage)
    manifest = json.loads(path.with_suffix(".json").read_text())
    manifest["sha256"] = hashlib.sha256(garbage).hexdigest()  # a digest that is right does not make it one
    path.with_suffix(".json").write_text(json.dumps(manifest))
    falls_back(folder)


def test_where_all_are_damaged_there_is_none_and_every_one_is_named(tmp_path):
    folder = begun(tmp_path / "run", [1, 2, 3])
    for path in (folder.path / "checkpoints").glob("*.safetensors"):
        path.write_bytes(b"")
    found, problems = folder.load()
    assert found is None
    assert [p.split()[1] for p in problems] == ["round-000003", "round-000002", "round-000001"]


@LAW
@given(st.binary(max_size=40), st.binary(max_size=40))
def test_whatever_lies_in_the_folder_loading_does_not_fail(manifest, tensors):
    with tempfile.TemporaryDirectory() as path:
        folder = Folder.new(Path(path) / "run")
        (folder.path / "checkpoints" / "round-000009.json").write_bytes(manifest)
        (folder.path / "checkpoints" / "round-000009.safetensors").write_bytes(tensors)
        assert folder.load()[0] is None


# -- a disk that is full or read-only ------------------------------------------------------------------------


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_only(*_, **__):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def half_written(tensors, path):
    Path(path).write_bytes(b"half of it")
    full()


BROKEN = {
    "full while tensors are written": (checkpoint, "save_file", half_written, "No space left on device"),
    "full while the manifest is written": (Path, "write_text", full, "No space left on device"),
    "full while it is synced": (os, "fsync", full, "No space left on device"),
    "read-only while it is renamed": (Path, "replace", read_only, "Read-only file system"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_disk_that_fails_is_named_and_the_last_good_checkpoint_stays(tmp_path, monkeypatch, broken):
    folder = begun(tmp_path / "run")
    where, name, fails, reason = BROKEN[broken]
    folder.append_metrics(a_checkpoint(3).history[-1])
    with monkeypatch.context() as patch:
        patch.setattr(where, name, fails)
        with pytest.raises(UsageError) as wrong:
            folder.save(a_checkpoint(3))
    text = str(wrong.value)
    assert text.startswith(f"cannot write {folder.path / 'checkpoints' / 'round-000003'}")
    assert f": {reason}; earlier checkpoints are intact, so free some space and continue with" in text
    assert not [f for f in files(folder.path) if Path(f).name.startswith(".")]  # nothing half-written is left
    assert same(folder.load()[0], a_checkpoint(2))
    folder.save(a_checkpoint(3))  # room was made
    assert same(folder.load()[0], a_checkpoint(3))


@pytest.mark.parametrize(("name", "fails"), [("write_text", full), ("replace", read_only)])
def test_a_small_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch, name, fails):
    folder = Folder.new(tmp_path / "run")
    folder.write_json("summary.json", {"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(Path, name, fails)
        with pytest.raises(UsageError, match=r"^cannot write .*summary\.json: "):
            folder.write_json("summary.json", {"a": 2})
    assert folder.read_json("summary.json") == {"a": 1}
    assert files(folder.path) == {"summary.json"}


def test_a_folder_on_a_read_only_disk_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(UsageError, match="Read-only file system"):
        Folder.new(tmp_path / "run")
    with pytest.raises(UsageError, match="Read-only file system"):
        Folder.fresh(tmp_path, "run")


def test_metrics_on_a_full_disk_are_a_mistake_and_the_log_is_not(tmp_path, monkeypatch):
    folder = Folder.new(tmp_path / "run")
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UsageError, match="No space left on device"):
        folder.append_metrics({"round": 1})
    folder.log("a line for people is not worth stopping for")


def test_a_process_that_dies_between_the_two_files_leaves_the_one_before(tmp_path, monkeypatch):
    folder = begun(tmp_path / "run")

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.save(a_checkpoint(3))
    assert same(folder.load()[0], a_checkpoint(2))


def test_a_process_that_dies_while_it_forgets_a_checkpoint_leaves_nothing_for_good(tmp_path, monkeypatch):
    folder, real = begun(tmp_path / "run", (1, 2, 3)), Path.unlink

    def killed(path, **how):
        real(path, **how)
        if "round-000001" in path.name:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.save(a_checkpoint(4))
    folder.save(a_checkpoint(4))
    kept = {path.name[:12] for path in (folder.path / "checkpoints").glob("round-*")}
    assert kept == {f"round-00000{n}" for n in (2, 3, 4)}
