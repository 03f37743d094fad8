"""Folders that are damaged, forged or edited, and power cuts: short forms of what `make reliability` does at length."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import polycentric as pc
from polycentric.runs.folder import Folder
from polycentric.runs.forms import check_of
from reliability.damage import Scene, damaged, edited, forged
from reliability.power import ON_DISK, cut

Say = Callable[..., SimpleNamespace]
only_posix = pytest.mark.skipif(os.name != "posix", reason="there are neither pipes nor alarms elsewhere")
pytestmark = only_posix


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("damage") / "scene")


@pytest.fixture
def here(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of all runs."""
    shutil.copytree(scene.root, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def flip(path: Path, at: int = -1) -> None:
    whole = bytearray(path.read_bytes())
    whole[at] ^= 1
    path.write_bytes(whole)


# -- every sort of damage ------------------------------------------------------------------------------------


def test_a_damaged_file_is_refused_or_said_or_makes_no_difference(scene: Scene) -> None:
    found = damaged(30, 0, scene, rare=0.0)
    assert found.bad == [] and found.cases == 30 and {"refused", "same"} <= set(found.became)


def test_a_forged_folder_makes_no_traceback(scene: Scene) -> None:
    found = forged(20, 0, scene)
    assert found.bad == [] and found.became["refused"]


def test_an_edited_setting_gives_the_same_bits_or_is_refused(scene: Scene) -> None:
    found = edited(30, 0, scene)
    assert found.bad == [] and {"refused", "same"} <= set(found.became)


@pytest.mark.parametrize("more", [[], ON_DISK], ids=["memory", "disk"])
def test_after_a_power_cut_a_run_goes_on_to_the_same_bits(tmp_path: Path, more: list[str]) -> None:
    found = cut(12, 0, tmp_path.resolve(), more)
    assert found.bad == [] and found.became["as uninterrupted"]
    assert bool(list(tmp_path.glob("run/checkpoints/*.bin"))) == bool(more)


# -- a finished run is what it was ---------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["personalize", "--steps", "0"], ["clusters"], ["export", "--center", "0"]])
def test_a_run_whose_last_checkpoint_is_damaged_is_not_shown_as_it_was_before(
    here: Path, say: Say, command: list[str]
) -> None:
    flip(here / "finished/checkpoints/round-000003.safetensors")
    said = say(command[0], "finished", *command[1:])
    assert (said.code, len(said.lines)) == (2, 1) and "round-000003 is damaged" in said.err
    assert "`polycentric resume finished` trains what is lost again" in said.err
    before = (here / "finished/clients.csv").read_bytes()
    mended = say("resume", "finished", "--json")
    assert mended.code == 0 and any("round-000003" in line for line in mended.lines)
    assert (here / "finished/clients.csv").read_bytes() == before
    assert say(command[0], "finished", *command[1:]).code == 0


def test_a_last_checkpoint_that_is_gone_is_missed(here: Path, say: Say) -> None:
    (here / "finished/checkpoints/round-000003.json").unlink()
    said = say("personalize", "finished", "--steps", "0")
    assert (said.code, len(said.lines)) == (2, 1) and "round-000003 is missing" in said.err


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("metrics.jsonl", ["curves", "finished"]),
        ("clients.csv", ["participation", "finished"]),
        ("places.csv", ["clusters", "finished"]),
        ("digests.json", ["curves", "finished"]),
    ],
)
@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_a_table_that_was_changed_is_refused_and_written_again(
    here: Path, say: Say, name: str, command: list[str], how: str
) -> None:
    path = here / "finished" / name
    right = path.read_bytes()
    flip(path, len(right) // 2) if how == "flipped" else path.unlink()
    said = say(*command)
    assert (said.code, len(said.lines)) == (2, 1) and name in said.err
    mended = say("resume", "finished", "--json")
    assert mended.code == 0 and f"note: {name} was changed since the run ended, and is written again" in mended.lines
    assert name in ("digests.json", "places.csv") or path.read_bytes() == right
    assert say("curves", "finished").code == 0


@pytest.mark.filterwarnings("default")
def test_a_cell_whose_summary_was_changed_is_made_again_and_said(here: Path, say: Say) -> None:
    words = ["sweep", "sweep.toml", "--out", "swept", "--json"]
    right = json.loads(say(*words).out)
    (path,) = (p for p in Path("swept").glob("*/summary.json") if json.loads(p.read_text())["seed"] == 1)
    path.write_text(path.read_text().replace('"micro_accuracy": 0.', '"micro_accuracy": 0.9'))
    said = say(*words)
    assert said.code == 0 and str(path) in said.err and "was changed since the run ended" in said.err
    again = json.loads(said.out)
    for run in (*right["runs"], *again["runs"]):
        del run["seconds"]
    assert again == right and say(*words).err == ""


# -- bound together ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [{"seed": 1}, {"held_out": 0.4}, {"precision": "bf16"}, {"block": 2}, {"dtype": "float64"}, {"rounds": 9}],
)
@pytest.mark.parametrize(
    "command", [["resume", "begun"], ["personalize", "finished"], ["predict", "finished", "new.npz"]]
)
def test_a_changed_setting_is_refused(here: Path, say: Say, changed: dict[str, Any], command: list[str]) -> None:
    folder = Folder(here / command[1])
    folder.write_json("config.json", folder.read_json("config.json") | changed)
    said = say(*command)
    assert (said.code, len(said.lines)) == (2, 1) and "config.json was changed since the run was started" in said.err


@pytest.mark.parametrize("changed", [{"state": "disk"}, {"workers": 2}, {"checkpoint_every": 2}])
def test_what_may_be_changed_makes_no_difference(here: Path, scene: Scene, say: Say, changed: dict[str, Any]) -> None:
    folder = Folder(here / "begun")
    folder.write_json("config.json", folder.read_json("config.json") | changed)
    assert say("resume", "begun", "--json").code == 0
    for name in ("metrics.jsonl", "clients.csv", "places.csv"):
        assert (here / "begun" / name).read_bytes() == (scene.root / "finished" / name).read_bytes()


def test_another_number_of_threads_is_refused_also_with_its_check(here: Path, say: Say) -> None:
    path = here / "begun/environment.json"
    found = json.loads(path.read_text()) | {"threads": 2}
    path.write_text(json.dumps(found))
    assert "environment.json was changed" in say("resume", "begun").err
    path.write_text(json.dumps(found | {"check": check_of(found)}))
    said = say("resume", "begun")
    assert (said.code, len(said.lines)) == (2, 1) and "not what begun was started with" in said.err


def test_other_names_of_classes_are_refused(here: Path, say: Say) -> None:
    import numpy as np

    arrays = dict(np.load("own.npz"))
    np.savez("own.npz", **arrays | {"classes": np.array(["a", "c", "b"])})
    for command in (["resume", "begun"], ["personalize", "finished"]):
        said = say(*command)
        assert (said.code, len(said.lines)) == (2, 1) and "names of classes, clients or groups" in said.err


def test_a_state_of_another_shape_is_passed_over_before_anything_is_computed(here: Path, say: Say) -> None:
    from safetensors.torch import load_file, save_file

    from polycentric.language.files import sha256_of

    path = here / "begun/checkpoints/round-000002.safetensors"
    for change in (lambda t: t[:, :-1], lambda t: t.double(), lambda t: t[:1]):
        tensors = load_file(path)
        shutil.copytree(here / "begun", here / "forged")
        forged = here / "forged/checkpoints/round-000002.safetensors"
        save_file(tensors | {"centers/model": change(tensors["centers/model"]).contiguous()}, forged)
        manifest = json.loads(forged.with_suffix(".json").read_text())
        manifest |= {"sha256": sha256_of(forged), "bytes": forged.stat().st_size}
        forged.with_suffix(".json").write_text(json.dumps(manifest | {"check": check_of(manifest)}))
        said = say("resume", "forged", "--json")
        assert said.code == 0 and "checkpoint round-000002 is damaged (" in said.err
        shutil.rmtree(here / "forged")


# -- no dead ends, no leftovers ------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [["checkpoints"], ["checkpoints", "config.json"]])
def test_a_run_killed_before_it_had_begun_is_begun_anew(here: Path, say: Say, left: list[str]) -> None:
    (here / "killed/checkpoints").mkdir(parents=True)
    if "config.json" in left:
        shutil.copy("begun/config.json", "killed")
    said = say("resume", "killed")
    assert (said.code, len(said.lines)) == (2, 1) and "`polycentric run` again, with --out killed" in said.err
    assert say("run", "fedavg", "--data", "own.npz", "--rounds", "1", "--out", "killed", "--json").code == 0


def test_files_of_a_checkpoint_that_was_half_removed_do_not_stay(here: Path, say: Say) -> None:
    left = here / "begun/checkpoints"
    for name in ("round-000000.safetensors", "round-000000.0.bin"):
        (left / name).write_bytes(b"left by a process that was killed")
    assert say("resume", "begun", "--json").code == 0
    rounds = {path.name.partition(".")[0] for path in left.glob("round-*")}
    assert rounds <= {f"round-00000{k}" for k in (1, 2, 3)}


def test_training_alone_is_not_lost_when_a_run_is_killed_before_its_end(here: Path, say: Say) -> None:
    words = ["--data", "own.npz", "--rounds", "2", "--model", "logistic", "--alone", "--json"]
    whole = json.loads(say("run", "fedavg", *words, "--out", "whole").out)["metrics"]
    for name in ("summary.json", "digests.json"):
        (here / "whole" / name).unlink()
    assert json.loads(say("resume", "whole", "--json").out)["metrics"] == whole
    assert 0 <= whole["share_below_alone"] <= 1


def test_training_alone_beside_objects_without_words_is_refused() -> None:
    from torch import nn

    with pytest.raises(pc.UsageError, match="alone=True needs model by name"):
        pc.run("fedavg", "digits", clients=4, rounds=1, alone=True, model=lambda shape, n: nn.Linear(64, n))


def test_more_rounds_that_were_cut_off_half_way_are_asked_for_again(
    here: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings and the environment are two files: whichever of them is written, the run can be gone on with."""
    write = Folder.write_json

    def killed(folder: Folder, name: str, value: Any) -> None:
        if name == "config.json":
            raise KeyboardInterrupt
        write(folder, name, value)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write_json", killed)
        assert say("resume", "finished", "--rounds", "4").code == 130
    assert say("resume", "finished", "--rounds", "4", "--json").code == 0
    assert say("resume", "finished").lines[0].startswith("note: finished is finished")


# -- what is no file -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "socket", "endless"])
@pytest.mark.parametrize(
    "name", ["begun/config.json", "begun/lock.json", "own.npz", "sweep.toml", "finished/clients.csv"]
)
def test_what_is_no_regular_file_is_refused_and_not_waited_for(here: Path, say: Say, kind: str, name: str) -> None:
    path = Path(name)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as there:
            there.bind(name)
    else:
        with path.open("wb") as file:
            file.truncate(5 << 30)  # a hole
    read = {"begun": ["resume", "begun"], "own.npz": ["data", "show", "own.npz"], "sweep.toml": ["sweep", "sweep.toml"]}
    said = say(*read.get(path.parts[0], ["participation", "finished"]))
    assert (said.code, len(said.lines)) == (2, 1) and said.lines[0].startswith("error: ")
