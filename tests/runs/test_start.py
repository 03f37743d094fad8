"""One way into a run: the same settings and the same folder whoever begins it, and every way back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import polycentric as pc
from polycentric.cli import outcome
from polycentric.cli.app import app
from polycentric.runs.folder import Folder
from polycentric.runs.settings import Settings
from polycentric.runs.start import described, prepared
from support import Make, small

FEW: dict[str, Any] = {"rounds": 3, "device": "cpu", "checkpoint_every": 1}
WORDS: dict[str, Any] = {"partition": "rotations=2", "clients": 6}


def files(folder: Path) -> dict[str, bytes]:
    names = ("metrics.jsonl", "clients.csv", "places.csv", "config.json")
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}


def same_bits(a: pc.State, b: pc.State) -> bool:
    parts = [(getattr(a, name), getattr(b, name)) for name in ("centers", "kept", "memory")]
    return a.round == b.round and all(
        x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x) for x, y in parts
    )


# -- one option, one place -----------------------------------------------------------------------------------


def options_of(command: str) -> set[str]:
    import typer

    (found,) = [c for c in typer.main.get_command(app).commands.values() if c.name == command]  # type: ignore[attr-defined]
    return {word for parameter in found.params for word in parameter.opts}


def test_every_setting_is_an_option_of_the_command() -> None:
    wanted = {f"--{name.replace('_', '-')}" for name in Settings.model_fields if name != "method"}
    assert wanted <= options_of("run")
    assert wanted - {"--seed"} <= options_of("compare") and wanted - {"--seed"} <= options_of("sweep")


def test_every_setting_is_explained() -> None:
    assert [name for name, field in Settings.model_fields.items() if name != "method" and not field.description] == []


def test_settings_are_frozen_and_checked_again_when_changed() -> None:
    settings = Settings.of({"method": "fedavg"})
    with pytest.raises(ValueError, match="frozen"):
        settings.rounds = 3
    assert settings.changed(rounds=3).rounds == 3
    with pytest.raises(pc.UsageError, match=r"rounds in .*: input should be greater than or equal to 0, got -1"):
        settings.changed(rounds=-1)


def test_an_argument_nobody_knows_is_named_with_the_nearest_one(blobs: Make) -> None:
    with pytest.raises(pc.UsageError, match="unknown key in the arguments 'round': did you mean 'rounds'"):
        pc.run(pc.fedavg(), blobs(), round=3)


# -- by words, by objects, by the command --------------------------------------------------------------------


def test_words_objects_and_the_command_are_one_run(tmp_path: Path) -> None:
    by_words = pc.run("fesem", "digits", out=tmp_path / "words", set={"k": 2, "lr": 0.05}, **WORDS, **FEW)
    data = pc.load("digits", pc.Rotations(2), clients=6)
    by_objects = pc.run(pc.fesem(k=2, lr=0.05), data, out=tmp_path / "objects", **FEW)
    typed = ["--partition", "rotations=2", "--clients", "6", "--set", "k=2", "--set", "lr=0.05", "--rounds", "3"]
    typed += ["--device", "cpu", "--checkpoint-every", "1", "--quiet"]
    assert outcome(["run", "fesem", *typed, "--out", str(tmp_path / "typed")]) == 0
    assert same_bits(by_words.state, by_objects.state)
    one, other, third = (files(tmp_path / name) for name in ("words", "objects", "typed"))
    for name in ("metrics.jsonl", "clients.csv", "places.csv"):
        assert one[name] == other[name] == third[name]
    configs = [json.loads(found["config.json"]) for found in (one, other, third)]
    assert configs[0].keys() == configs[1].keys() == configs[2].keys() == Settings.model_fields.keys()
    assert configs[1]["method"] == "fesem" and configs[1]["data"] == "digits" and configs[1]["clients"] == 6


@pytest.mark.parametrize("command", [["resume"], ["personalize", "--steps", "0,1"], ["clusters", "--no-examples"]])
def test_a_run_begun_in_python_from_named_data_is_the_commands_too(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = pc.load("digits", pc.Rotations(2), clients=6, seed=3, valid=0.2)
    done = pc.run(pc.fesem(k=2, select=pc.Uniform(n=5)), data, out=tmp_path / "run", attack=pc.SignFlip(0.2), **FEW)
    before = files(tmp_path / "run")
    if command == ["resume"]:
        (tmp_path / "run/summary.json").unlink()
        for file in (tmp_path / "run/checkpoints").glob("round-000003*"):
            file.unlink()
    assert outcome([command[0], str(tmp_path / "run"), *command[1:]]) == 0, capsys.readouterr().err
    assert files(tmp_path / "run") == before
    assert same_bits(pc.open(tmp_path / "run").state, done.state)


def test_objects_that_no_words_say_are_asked_for(blobs: Make, tmp_path: Path, capsys: Any) -> None:
    data = blobs()
    done = pc.run(pc.fedavg(lr=0.05), data, model=small, out=tmp_path / "run", **FEW)
    assert Folder(tmp_path / "run").read_config()[1] == ("federation", "model")
    for file in (tmp_path / "run/checkpoints").glob("round-000003*"):
        file.unlink()
    (tmp_path / "run/summary.json").unlink()
    assert outcome(["resume", str(tmp_path / "run")]) == 2
    assert "pc.resume(" in (said := capsys.readouterr().err) and "federation=..., model=..." in said
    with pytest.raises(pc.UsageError, match=r"model\): .*, model=\.\.\.\)"):
        pc.resume(tmp_path / "run", federation=data)
    assert same_bits(pc.resume(tmp_path / "run", federation=data, model=small).state, done.state)
    assert same_bits(pc.open(tmp_path / "run", federation=data, model=small).state, done.state)


def test_observers_are_asked_for_so_that_no_line_lacks_their_numbers(tmp_path: Path) -> None:
    def ones(now: pc.Moment) -> dict[str, float]:
        return {"ones": 1.0}

    how: dict[str, Any] = {"clients": 4, "rounds": 2, "device": "cpu"}
    pc.run("fedavg", "digits", out=tmp_path / "run", observers=[ones], **how)
    with pytest.raises(pc.UsageError, match=r"cannot be written as text \(observers\)"):
        pc.resume(tmp_path / "run", rounds=3)
    went_on = pc.resume(tmp_path / "run", rounds=3, observers=[ones])
    assert [row["ones"] for row in went_on.history] == [1.0] * 4
    assert pc.open(tmp_path / "run").history == went_on.history


def test_words_beside_an_object_that_has_them_are_refused(blobs: Make) -> None:
    with pytest.raises(
        pc.UsageError, match=r"set=.* is for a method given by name: pass these settings to fedavg\(...\)"
    ):
        pc.run(pc.fedavg(), blobs(), set={"lr": 0.5})
    with pytest.raises(pc.UsageError, match=r"'made' is loaded already: pass partition, clients to pc\.load"):
        pc.run(pc.fedavg(), blobs(), clients=3, partition="iid")


def test_a_method_put_together_by_hand_is_asked_for(tmp_path: Path) -> None:
    method = pc.Method.of("mine", pc.Exchange((pc.Train(lr=0.05),)))
    pc.run(method, "digits", clients=5, out=tmp_path / "run", **FEW)
    with pytest.raises(pc.UsageError, match=r"pc\.open for a finished run"):
        pc.open(tmp_path / "run")
    assert pc.open(tmp_path / "run", method=method).state.round == 3


def test_what_words_say_is_what_is_built_again(blobs: Make) -> None:
    settings, given, needs = described(pc.fedprox(mu=0.3, select=pc.Uniform(n=4)), pc.load("digits", clients=5))
    assert needs == () and given.method is not None
    assert repr(prepared(settings).method) == repr(prepared(settings, given).method)


# -- more rounds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "fesem", "fedcurv", "hierarchical"])
def test_more_rounds_end_as_if_they_had_been_asked_for_at_once(method: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {"clients": 9, "device": "cpu", "evaluate_every": 2}
    whole = pc.run(method, "digits", rounds=5, out=tmp_path / "whole", **how)
    pc.run(method, "digits", rounds=3, out=tmp_path / "parts", **how)  # evaluated at its end, which goes again
    went_on = pc.resume(tmp_path / "parts", rounds=5)
    assert same_bits(went_on.state, whole.state) and went_on.tally == whole.tally
    one, other = files(tmp_path / "whole"), files(tmp_path / "parts")
    assert one == other
    assert pc.resume(tmp_path / "parts").state.round == 5  # nothing is left to do


def test_how_often_a_run_evaluates_stays_as_it_was(tmp_path: Path) -> None:
    how: dict[str, Any] = {"clients": 4, "device": "cpu", "model": "logistic", "fine_tune": 0}
    pc.run("fedsgd", "digits", rounds=60, out=tmp_path / "run", **how)
    went_on = pc.resume(tmp_path / "run", rounds=120)  # 120 alone would have been evaluated every two rounds
    assert [row["round"] for row in went_on.history] == list(range(121))


def test_a_run_that_goes_on_is_not_finished_until_it_ends_again(tmp_path: Path) -> None:
    class Stop(pc.Callback):
        def on_round(self, run: pc.Run, trips: Any) -> None:
            if run.state.round == 4:
                raise KeyboardInterrupt

    pc.run("fedavg", "digits", clients=4, out=tmp_path / "run", **FEW)
    with pytest.raises(KeyboardInterrupt):
        pc.resume(tmp_path / "run", rounds=5, callbacks=[Stop()])
    with pytest.raises(pc.UsageError, match="not a finished run"):
        pc.open(tmp_path / "run")
    assert pc.resume(tmp_path / "run").state.round == 5 and pc.open(tmp_path / "run").state.round == 5


def test_fewer_rounds_than_a_run_has_are_refused(tmp_path: Path) -> None:
    pc.run("fedavg", "digits", clients=4, out=tmp_path / "run", **FEW)
    with pytest.raises(pc.UsageError, match="started with 3 rounds, and rounds=2 is fewer"):
        pc.resume(tmp_path / "run", rounds=2)


def test_noise_that_was_found_for_some_rounds_is_not_stretched_over_more(tmp_path: Path) -> None:
    method, federation = pc.fedavg(equal=True, privacy=pc.Gaussian(1.0, epsilon=8.0)), pc.load("digits", clients=4)
    how = FEW | {"model": "logistic", "fine_tune": 0}
    pc.run(method, federation, out=tmp_path / "run", **how)
    assert pc.resume(tmp_path / "run", rounds=3).state.round == 3  # as many as it has
    with pytest.raises(pc.UsageError, match=r"found for epsilon=8 over these: 4 need more .* new run with --rounds 4;"):
        pc.resume(tmp_path / "run", rounds=4)
    own = replace(method, name="mine")  # that no words say
    pc.run(own, federation, out=tmp_path / "own", **how)
    with pytest.raises(pc.UsageError, match="found for epsilon=8 over these"):
        pc.resume(tmp_path / "own", rounds=4, method=own)


# -- looking at a finished run -------------------------------------------------------------------------------


def test_a_finished_run_has_its_models_scores_and_history(tmp_path: Path) -> None:
    done = pc.run("fesem", "digits", set={"k": 2}, out=tmp_path / "run", **WORDS, **FEW)
    found = pc.open(tmp_path / "run")
    assert found.history == done.history and found.places == done.places and found.tally == done.tally
    assert found.metrics == done.metrics
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(found.model_of(client=1)(x), done.model_of(client=1)(x))


def test_a_run_that_is_not_finished_is_not_opened(tmp_path: Path) -> None:
    pc.run("fedavg", "digits", clients=4, out=tmp_path / "run", **FEW)
    (tmp_path / "run/summary.json").unlink()
    with pytest.raises(pc.UsageError, match=r"not a finished run: `polycentric resume"):
        pc.open(tmp_path / "run")


# -- bound together ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"), [("seed", 1), ("held_out", 0.3), ("model", "logistic"), ("dtype", "float64")]
)
def test_settings_that_were_changed_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    data = pc.load("digits", clients=5)
    pc.run("fedavg", data, out=tmp_path / "run", model="mlp", **FEW)
    folder = Folder(tmp_path / "run")
    folder.write_json("config.json", folder.read_json("config.json") | {"data_seed": 0, key: value})
    with pytest.raises(pc.UsageError, match=r"was started with|was changed since"):
        pc.open(tmp_path / "run")


@pytest.mark.parametrize("command", [["resume"], ["personalize", "--steps", "0"]])
def test_a_checkpoint_of_another_run_is_refused(command: list[str], tmp_path: Path, capsys: Any) -> None:
    for seed in (0, 1):
        pc.run("fedavg", "digits", clients=4, data_seed=0, seed=seed, out=tmp_path / f"{seed}", **FEW)
    for file in (tmp_path / "1/checkpoints").glob("round-000003*"):
        (tmp_path / "0/checkpoints" / file.name).write_bytes(file.read_bytes())
    before = files(tmp_path / "0")
    assert outcome([command[0], str(tmp_path / "0"), *command[1:]]) == 2
    assert "round-000003" in (said := capsys.readouterr().err) and "belongs to another run" in said
    assert files(tmp_path / "0") == before


# -- comparing -----------------------------------------------------------------------------------------------


def test_methods_are_compared_in_python_as_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = {"clients": 5, "rounds": 1, "device": "cpu"}
    rows = pc.compare(["nofed", "fedprox"], "digits", seeds=2, out=tmp_path / "grid", set={"mu": "0.3"}, **common)
    assert [row["method"] for row in rows] == ["nofed", "fedprox"] and rows[0]["runs"] == 2
    capsys.readouterr()
    typed = ["--clients", "5", "--rounds", "1", "--device", "cpu", "--seeds", "2", "--set", "mu=0.3", "--json"]
    assert outcome(["compare", "nofed", "fedprox", "--data", "digits", *typed, "--out", str(tmp_path / "grid")]) == 0
    assert json.loads(capsys.readouterr().out)["methods"] == rows
