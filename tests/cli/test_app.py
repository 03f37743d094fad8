"""The command as a stranger uses it: what it prints, what it writes, and what it says to a mistake."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import signal
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import polycentric
from polycentric.cli import _noting, main, outcome, screen
from polycentric.cli.demo import WAYS, what_it_shows
from polycentric.cli.screen import _numbers
from polycentric.data import load
from polycentric.errors import SYNONYMS
from polycentric.report.tables import spread
from polycentric.runs import checkpoint
from polycentric.runs.folder import Folder
from polycentric.runs.loop import Run
from polycentric.runs.recipes import parameters
from polycentric.runs.settings import Settings

SMALL = ["--data", "ok.npz", "--rounds", "4", "--model", "logistic", "--checkpoint-every", "1"]
COMMAND = str(Path(sys.executable).with_name("polycentric"))

MODELS = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, shape, n_outputs):
        super().__init__(nn.Flatten(), nn.Linear(5, n_outputs))

class Normed(nn.Sequential):
    def __init__(self, shape, n_outputs):
        super().__init__(nn.BatchNorm1d(5), nn.Linear(5, n_outputs))

def seven():
    return 7
"""
CONFIGS = {
    "ok": 'method = "fedavg"\ndata = "ok.npz"\nmodel = "logistic"\nrounds = 1\n[set]\nlr = 0.01\n',
    "half": "method = ",
    "key": 'method = "fedavg"\nrondus = 3\n',
    "kind": 'method = "fedavg"\nrounds = "many"\n',
    "nothing": "rounds = 3\n",
    "table": 'method = "fedavg"\nset = "lr"\n',
    "grid": 'method = "fedavg"\ndata = "ok.npz"\nmodel = "logistic"\nrounds = 1\n'
    '[grid]\nseed = [0, 1]\n"set.lr" = [0.1, 0.01]\n',
    "no-grid": 'method = "fedavg"\n[grid]\nseed = 3\n',
    "grid-key": 'method = "fedavg"\n[grid]\n"set.lrr" = [1]\n',
    "grid-table": 'method = "fedavg"\nset = 3\n[grid]\nseed = [1]\n',
}


def arrays() -> dict[str, Any]:
    """Forty examples of four clients, three classes that can be told apart."""
    source = np.random.default_rng(0)
    y = source.integers(0, 3, 40)
    x = source.normal(size=(40, 5)) + 2 * np.eye(5)[y]
    return {"x": x.astype(np.float32), "y": y, "client": np.arange(40) % 4, "classes": np.array(["a", "b", "c"])}


def fill(folder: Path) -> None:
    """Good and bad files of every kind, and a module of models."""
    good = arrays()
    np.savez(folder / "ok.npz", **good)
    x = good["x"].copy()
    x[3, 2] = np.nan
    np.savez(folder / "nan.npz", **good | {"x": x})
    np.savez(folder / "label.npz", **good | {"y": np.where(good["y"] == 1, 7, good["y"])})
    np.savez(folder / "pickle.npz", **good | {"x": np.array([{}] * 40, dtype=object)})
    np.savez(folder / "all-test.npz", **good | {"test": np.ones(40, bool)})
    np.savez(folder / "real.npz", **{k: v for k, v in good.items() if k != "classes"} | {"y": x[:, 0].clip(-1, 1) * 0})
    whole = (folder / "ok.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[:600])
    (folder / "empty.npz").write_bytes(b"")
    (folder / "flipped.npz").write_bytes(whole[:200] + bytes([whole[200] ^ 255]) + whole[201:])
    (folder / "leaf").mkdir()
    (folder / "leaf" / "a.json").write_text('{"users": [')
    (folder / "nothing").mkdir()
    (folder / "mynet.py").write_text(MODELS)
    for name, text in CONFIGS.items():
        (folder / f"{name}.toml").write_text(text)
    (folder / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    (folder / "foreign").mkdir()
    (folder / "foreign" / "config.json").write_text('{"method": "fedavg", "rounds": "abc", "data": "digits"}')
    (folder / "torn").mkdir()
    (folder / "torn" / "config.json").write_text("{")
    (folder / "python").mkdir()
    (folder / "python" / "config.json").write_text('{"method": "mine", "rounds": 3, "given": ["method"]}')


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    fill(folder)
    return folder


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Nothing of this machine's: no data folders, a cache of its own, a plain terminal."""
    monkeypatch.delenv("POLYCENTRIC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", sys.path[:])
    return monkeypatch


@pytest.fixture
def here(stranger: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder to work in, with the files."""
    folder = tmp_path / "here"
    folder.mkdir()
    fill(folder)
    stranger.chdir(folder)
    return folder


def strict(text: str) -> dict[str, Any]:
    """Exactly one JSON object, without NaN."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    value = json.loads(text, parse_constant=refuse)
    assert isinstance(value, dict) and text.count("\n") == 1
    return value


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    there = {p: p.stat() for p in folder.rglob("*") if "__pycache__" not in p.parts}
    return {str(p): (s.st_size, s.st_mtime_ns) for p, s in there.items()}


# -- mistakes: one line with the value and the remedy, code 2, nothing written -------------------------------

RUN = ["run", "fedavg"]
MISTAKES = [
    # names
    (["run", "fedavgg"], "'fedavgg'", "did you mean 'fedavg'?"),
    (["run", ""], "unknown method ''", "Known: "),
    ([*RUN, "--data", "digts"], "'digts'", "did you mean 'digits'?"),
    ([*RUN, "--data", "nothing"], "'nothing'", ".npz, LEAF"),
    ([*RUN, "--data", "."], "'.'", ".npz, LEAF"),
    ([*RUN, "--model", "mlpp"], "'mlpp'", "did you mean 'mlp'?"),
    ([*RUN, "--partition", "dirichlett=1"], "'dirichlett'", "did you mean 'dirichlet'?"),
    (["runn"], "'runn'", "Did you mean 'run'?"),
    ([*RUN, "--nope"], "--nope", "polycentric run --help"),
    (["methods", "fedprix"], "'fedprix'", "did you mean 'fedprox'?"),
    (["reproduce", "fedavg-mnits"], "'fedavg-mnits'", "did you mean 'fedavg-mnist'?"),
    (["reproduce", "fedavg-mnist", "--only", "zzz"], "zzz", "FedSGD, IID"),
    (["compare", "fedavg", "--set", "mu=1"], "'mu'", "Known: "),
    (["data", "show", "nope"], "'nope'", "Known: "),
    (["data", "import", "nope"], "'nope'", "check the path"),
    (["data", "import", "ok.npz", "--name", "a/b"], "'a/b'", "use letters"),
    (["data", "import", "ok.npz", "--name", "digits"], "'digits'", "no built-in name"),
    # types and ranges
    ([*RUN, "--rounds", "x"], "got 'x'", "--help"),
    ([*RUN, "--rounds=1.5"], "got '1.5'", "--help"),
    ([*RUN, "--rounds", "-1"], "got -1", "greater than or equal to 0"),
    ([*RUN, "--clients", "0"], "got 0", "greater than or equal to 1"),
    ([*RUN, "--clients", "99999999999999999999"], "99999999999999999999", "less than or equal to"),
    ([*RUN, "--clients", "5000"], "5000", "at most 1797 clients"),
    ([*RUN, "--seed", "99999999999999999999"], "99999999999999999999", "less than"),
    (["data", "show", "digits", "--seed", "-1"], "got -1", "greater than or equal to 0"),
    (["data", "show", "synthetic(seed=99999999999999999999)"], "99999999999999999999", "at most"),
    ([*RUN, "--valid", "nan"], "got nan", "less than 1"),
    ([*RUN, "--target", "2"], "got 2.0", "less than or equal to 1"),
    ([*RUN, "--executor", "foo"], "'foo'", "'traced' or 'compiled'"),
    ([*RUN, "--device", "foo"], "'foo'", "--device cpu"),
    ([*RUN, "--dtype", "float16"], "'float16'", "'float32' or 'float64'"),
    ([*RUN, "--partition", "dirichlet=x"], "'x'", "alpha must be a number"),
    ([*RUN, "--partition", "rotations=999"], "999", "at most"),
    ([*RUN, "--partition", "natural"], "digits", "choose a partition"),
    (["compare", "fedavg", "--seeds", "0"], "got '0'", "--seeds"),
    (["compare", "fedavg", "--jobs=0"], "got '0'", "--jobs"),
    # settings of the method
    ([*RUN, "--set", "lr"], "'lr'", "--set lr=0.1"),
    ([*RUN, "--set", "lrr=1"], "'lrr'", "did you mean 'lr'?"),
    ([*RUN, "--set", "lr="], "got ''", "must be a number"),
    ([*RUN, "--set", "lr=nan"], "got nan", "try 0.1"),
    ([*RUN, "--set", "epochs=1.5"], "'1.5'", "whole number"),
    ([*RUN, "--set", "epochs=" + "9" * 30], "9" * 30, "must be at most"),
    ([*RUN, "--set", "select=unifrm(n=3)"], "'unifrm'", "did you mean 'uniform'?"),
    ([*RUN, "--set", "select=uniform"], "Uniform", "Uniform(n=10)"),
    ([*RUN, "--set", "select.n=3"], "'select.n'", "choose another select"),
    ([*RUN, "--set", "select=poisson"], "poisson", "select=poisson(rate=...)"),
    ([*RUN, "--attack", "signflip"], "'signflip'", "did you mean 'sign-flip'?"),
    ([*RUN, "--attack", "nan(share=2)"], "got 2", "try 0.2"),
    (["compare", "fedavg", "--attack", "nan(scale=2)"], "'scale'", "Known: share"),
    # data
    ([*RUN, "--data", "nan.npz"], "nan.npz: x holds NaN", "remove or fill"),
    ([*RUN, "--data", "label.npz"], "0 to 7", "0 to 2"),
    ([*RUN, "--data", "pickle.npz"], "pickle.npz", "save plain arrays"),
    ([*RUN, "--data", "cut.npz"], "cut.npz", "get it again"),
    ([*RUN, "--data", "empty.npz"], "empty.npz", "get it again"),
    ([*RUN, "--data", "flipped.npz"], "flipped.npz", "get it again"),
    ([*RUN, "--data", "leaf"], "a.json", "get it again"),
    ([*RUN, "--data", "all-test.npz"], "'all-test'", "no training examples"),
    # models
    ([*RUN, "--data", "ok.npz", "--model", "mynet:Normed"], "BatchNorm1d at '0'", "nn.GroupNorm("),
    ([*RUN, "--data", "ok.npz", "--model", "mynet:seven"], "type int", "return the module"),
    ([*RUN, "--data", "ok.npz", "--model", "mynet:Nett"], "'mynet:Nett'", "a name that is in it"),
    ([*RUN, "--data", "ok.npz", "--model", "nonet:Net"], "'nonet:Net'", "PYTHONPATH"),
    # configs
    (["run", "absent.toml"], "'absent.toml'", "No such file"),
    (["run", "half.toml"], "'half.toml'", "Invalid value"),
    (["run", "bytes.toml"], "'bytes.toml'", "cannot be read as TOML"),
    (["run", "key.toml"], "'rondus'", "did you mean 'rounds'?"),
    (["run", "kind.toml"], "rounds in kind.toml", "valid integer"),
    (["run", "nothing.toml"], "method in nothing.toml", "required"),
    (["run", "table.toml"], "set in table.toml", "valid dictionary"),
    (["run", "ok.toml", "--rounds", "-1"], "rounds in the command", "got -1"),
    (["sweep", "no-grid.toml"], "no-grid.toml", '"set.lr" = [0.03, 0.1]'),
    (["sweep", "grid-key.toml"], "'lrr'", "did you mean 'lr'?"),
    (["sweep", "grid-table.toml"], "set in grid-table.toml", "valid dictionary"),
    (["compare", "ok.toml", "key.toml"], "'rondus'", "did you mean 'rounds'?"),
    # folders
    ([*RUN, "--data", "ok.npz", "--out", "nothing/.."], "nothing/..", "choose another --out"),
    ([*RUN, "--data", "ok.npz", "--out", "ok.npz"], "ok.npz", "choose another --out"),
    ([*RUN, "--data", "ok.npz", "--out", "ok.npz/x"], "ok.npz/x", "Not a directory"),
    (["compare", "fedavg", "--data", "ok.npz", "--out", "ok.npz"], "'ok.npz'", "choose another folder"),
    (["sweep", "grid.toml", "--out", "ok.npz/x"], "'ok.npz/x'", "choose another folder"),
    (["data", "show", "ok.npz", "--png", "absent/x.png"], "'absent/x.png'", "choose another folder"),
    (["resume", "absent"], "absent", "`ls runs`"),
    (["resume", "nothing"], "nothing", "no config.json"),
    (["resume", "torn"], "torn/config.json", "cannot be read"),
    (["resume", "foreign"], "rounds in foreign/config.json", "got 'abc'"),
    (["personalize", "absent"], "absent", "is not the folder of a run"),
    (["resume", "python"], "python", "started in Python with objects that cannot be written as text (method)"),
    (["run", "x" * 400 + ".toml"], "x" * 400, "File name too long"),
    ([*RUN, "--out", "a\x00"], "a", "--out"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "value", "remedy"), MISTAKES, ids=[" ".join(words)[:60] for words, _, _ in MISTAKES])
def test_a_mistake_is_one_line_and_leaves_nothing(files, stranger, say, words, value, remedy):
    stranger.chdir(files)
    before = contents(files)
    ended = say(*words)
    assert ended.code == 2, ended.err
    assert ended.out == ""
    assert len(ended.lines) == 1 and ended.lines[0].startswith("error: ") and ended.lines[0].isprintable(), ended.err
    said = value.removeprefix("got ").strip("'")  # some versions of typer name the value themselves
    assert said in ended.err and remedy in ended.err
    assert contents(files) == before


def test_without_words_the_help_is_shown_as_help(say):
    for words, name in (([], "compare"), (["data"], "import")):
        ended = say(*words)
        assert ended.code == 2 and ended.out == ""
        assert len(ended.lines) > 5 and not ended.err.startswith("error") and name in ended.err


@pytest.mark.parametrize(
    "words",
    ["", "demo", "run", "resume", "compare", "sweep", "methods", "data", "data list", "data show", "data import",
     "doctor", "reproduce", "keys", "keys server", "keys node", "keys show", "keys renew"],
)  # fmt: skip
def test_every_command_has_help(say, words):
    ended = say(*words.split(), "--help")
    assert ended.code == 0 and ended.err == "" and ended.out.startswith("Usage: polycentric")


# -- run -----------------------------------------------------------------------------------------------------

AGREED = {
    "method", "data", "model", "rounds", "seconds", "run_dir", "metrics", "bytes_up", "bytes_down",
    "simulated_seconds", "epsilon",
}  # fmt: skip
METRICS = {"micro_accuracy", "macro_accuracy", "micro_f1", "macro_f1", "worst_decile_accuracy"}


def test_json_is_one_object_with_the_agreed_keys(here, say):
    ended = say("run", "fedavg", *SMALL, "--out", "run", "--json")
    summary = strict(ended.out)
    assert (ended.code, ended.err) == (0, "")
    assert AGREED <= summary.keys() and METRICS <= summary["metrics"].keys()
    assert (summary["method"], summary["data"], summary["model"]) == ("fedavg", "ok", "logistic")
    assert (summary["rounds"], summary["run_dir"]) == (4, "run")
    assert all(0 <= summary["metrics"][name] <= 1 for name in METRICS)
    assert summary["bytes_up"] == summary["bytes_down"] == 4 * 4 * 4 * (5 * 3 + 3)  # rounds, clients, bytes, weights
    assert strict((here / "run" / "summary.json").read_text().replace("\n", "") + "\n") == summary


def test_attackers_are_told_and_count_nowhere(here, say):
    words = ["run", "fedavg", *SMALL, "--attack", "sign-flip(share=0.25)"]
    summary = strict(say(*words, "--out", "run", "--json").out)
    assert summary["attackers"] == 1 and "SignFlip(share=0.25" in summary["attack"]
    assert "note: 1 clients were simulated attackers; scores are over the others" in say(*words, "--out", "other").err
    plain = strict(say("run", "fedavg", *SMALL, "--out", "plain", "--json").out)
    assert plain["attackers"] == 0 and plain["attack"] is None
    with (here / "run/clients.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["accuracy_in_use"] == "" for row in rows].count(True) == 1


def test_the_same_seed_gives_the_same_bits(here, say):
    for out in ("one", "two", "other"):
        seed = "1" if out == "other" else "0"
        assert say("run", "fedavg", *SMALL, "--out", out, "--seed", seed, "--json").code == 0
    lines = {out: (here / out / "metrics.jsonl").read_bytes() for out in ("one", "two", "other")}
    assert lines["one"] == lines["two"] != lines["other"]
    last = "checkpoints/round-000004.safetensors"
    one, two = (load_file(here / out / last) for out in ("one", "two"))
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)


def test_people_see_a_table_and_where_it_is(here, say):
    ended = say("run", "fedavg", *SMALL, "--out", "a [red] name")
    assert ended.code == 0 and "micro_accuracy" in ended.out and "after fine-tuning" in ended.out
    assert ended.err.endswith("; a [red] name\n")  # brackets mean nothing, and the line is not broken


def test_without_a_name_a_run_gets_a_folder_of_its_own(here, say):
    runs = {strict(say("run", "fedavg", *SMALL, "--json").out)["run_dir"] for _ in range(2)}
    assert len(runs) == 2 and all(Path(run).is_relative_to("runs") for run in runs)


def test_nothing_is_written_over_a_run(here, say):
    assert say("run", "fedavg", *SMALL, "--out", "run", "--quiet").code == 0
    before = contents(here)
    ended = say("run", "nofed", *SMALL, "--out", "run")
    assert ended.code == 2 and "polycentric resume run" in ended.err and contents(here) == before


def test_a_config_is_run_and_the_command_wins(here, say):
    (here / "ok.toml").write_bytes(b"\xef\xbb\xbf" + CONFIGS["ok"].encode())  # as some editors begin a file
    summary = strict(say("run", "ok.toml", "--rounds", "2", "--set", "lr=0.5", "--out", "run", "--json").out)
    asked = json.loads((here / "run" / "config.json").read_text())
    assert summary["rounds"] == asked["rounds"] == 2
    assert asked["set"] == {"lr": "0.5"} and asked["data"] == "ok.npz"


def test_a_model_of_the_current_folder_is_found(here, say):
    assert strict(say("run", "fedavg", *SMALL, "--model", "mynet:Net", "--json").out)["model"] == "mynet:Net"


@pytest.mark.filterwarnings("default")
def test_more_clients_a_round_than_clients_are_clipped_with_a_note(here, say):
    ended = say("run", "fedavg", *SMALL, "--set", "select=uniform(n=99)", "--json")
    assert ended.code == 0 and strict(ended.out)["rounds"] == 4
    assert ended.lines == ["note: 99 clients a round were asked for, but only 4 have data: all of them take part"]


@pytest.mark.filterwarnings("default")
def test_what_two_parts_say_alike_is_said_once(here, say):
    ended = say("run", "fesem", *SMALL, "--set", "k=9", "--json")
    assert ended.lines == ["note: 9 centers were asked for, but there are only 4 clients: using 4"]


def test_only_shares_are_shown_in_percent(here, say):
    ended = say("run", "mtl", *SMALL, "--model", "mlp")
    table = {line.split("│")[1].strip(): line for line in ended.out.splitlines() if line.count("│") > 2}
    assert "%" in table["micro_accuracy"] and "%" in table["pooled_f1"]
    assert "%" not in table["condition"] and "%" not in table["micro_loss"]


def test_scores_by_test_labels_are_told_as_no_result(here, say):
    told = say("run", "fesem", *SMALL, "--set", "k=2", "--optimistic").lines
    assert any("by test labels (optimistic, no result)" in line for line in told)
    told = say("run", "nofed", *SMALL, "--optimistic").lines
    assert any("no optimistic scores" in line for line in told)


def test_a_client_without_training_examples_is_still_evaluated(here, say):
    good = arrays()
    good["test"] = (good["client"] == 1) | (np.arange(40) >= 32)
    np.savez("lonely.npz", **good)
    summary = strict(say("run", "fedavg", *SMALL, "--data", "lonely.npz", "--json").out)
    assert summary["clients"] == 4 and summary["metrics"]["clients_without_examples"] == 0
    assert summary["bytes_up"] == 4 * 3 * 4 * 18  # three of the four send


def test_a_regression_has_losses_and_strict_json(here, say):
    summary = strict(say("run", "fedavg", *SMALL, "--data", "real.npz", "--json").out)
    assert "micro_loss" in summary["metrics"] and "micro_accuracy" not in summary["metrics"]
    words = ("compare", "nofed", "fedavg", "--data", "real.npz", "--model", "logistic", "--rounds", "1", "--seeds", "2")
    row = strict(say(*words, "--json").out)["methods"][1]
    assert (
        len(row["personalised"]) == len(row["share_below_alone"]) == 2 and row["difference"]["metric"] == "micro_rmse"
    )
    assert say(*words).code == 0


def test_alone_tells_the_share_that_would_have_done_better(here, say):
    summary = strict(say("run", "fedavg", *SMALL, "--out", "run", "--alone", "--json").out)
    assert 0 <= summary["metrics"]["share_below_alone"] <= 1
    assert json.loads((here / "run" / "summary.json").read_text()) == summary


def test_most_answers_not_finite_stop_the_run_with_its_state(here, say):
    ended = say("run", "fedavg", *SMALL, "--model", "mlp", "--set", "lr=1e30", "--out", "run", "--json")
    assert (ended.code, ended.out, len(ended.lines)) == (1, "", 1)
    assert "4 of 4 clients" in ended.err and "--set lr=0.01" in ended.err
    checkpoint, problems = Folder.open(here / "run").load()
    assert checkpoint is not None and not problems


def test_a_full_disk_is_said_and_the_run_goes_on_later(here, say, stranger):
    from polycentric.runs import checkpoint

    def full(tensors: object, path: Path) -> None:
        if "round-000003" in path.name:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        save(tensors, path)

    assert say("run", "fedavg", *SMALL, "--out", "whole", "--quiet").code == 0
    save = checkpoint.save_file
    stranger.setattr(checkpoint, "save_file", full)
    ended = say("run", "fedavg", *SMALL, "--out", "run")
    assert (ended.code, len(ended.lines)) == (2, 1)
    assert "No space left on device" in ended.err and "polycentric resume" in ended.err
    assert not list((here / "run").rglob("*.tmp"))
    stranger.setattr(checkpoint, "save_file", save)
    assert say("resume", "run", "--quiet").code == 0
    assert (here / "run" / "metrics.jsonl").read_bytes() == (here / "whole" / "metrics.jsonl").read_bytes()


# -- resume --------------------------------------------------------------------------------------------------


def test_after_ctrl_c_resume_ends_with_the_same_bits(here, say, stranger):
    real = Run._round

    def impatient(self: Run) -> Any:
        trips = real(self)
        if self.state.round == 3:
            raise KeyboardInterrupt
        return trips

    assert say("run", "fedavg", *SMALL, "--out", "whole", "--json").code == 0
    stranger.setattr(Run, "_round", impatient)
    ended = say("run", "fedavg", *SMALL, "--out", "run", "--json")
    assert (ended.code, ended.out) == (130, "")
    assert ended.lines == ["error: interrupted; `polycentric resume run` continues from the last complete round"]
    stranger.setattr(Run, "_round", real)
    summary = strict(say("resume", "run", "--json").out)
    whole = json.loads((here / "whole" / "summary.json").read_text())
    assert summary["metrics"] == whole["metrics"] and summary["bytes_up"] == whole["bytes_up"]
    for name in ("metrics.jsonl", "clients.csv", "checkpoints/round-000004.safetensors"):
        assert (here / "run" / name).read_bytes() == (here / "whole" / name).read_bytes()


def test_a_damaged_checkpoint_is_passed_over_with_a_note(here, say):
    assert say("run", "fedavg", *SMALL, "--out", "run", "--quiet").code == 0
    lines = (here / "run" / "metrics.jsonl").read_bytes()
    (here / "run" / "summary.json").unlink()
    (here / "run" / "checkpoints" / "round-000004.safetensors").write_bytes(b"damaged")
    ended = say("resume", "run", "--json")
    assert ended.code == 0 and strict(ended.out)["rounds"] == 4
    assert len(ended.lines) == 1 and ended.lines[0].startswith("note: checkpoint round-000004 is damaged")
    assert (here / "run" / "metrics.jsonl").read_bytes() == lines


def test_a_finished_run_is_not_touched(here, say):
    summary = strict(say("run", "fedavg", *SMALL, "--out", "run", "--alone", "--json").out)
    before = contents(here)
    ended = say("resume", "run", "--json")
    assert ended.code == 0 and strict(ended.out) == summary and contents(here) == before
    assert ended.lines == [
        "note: run is finished, so nothing was run; to add rounds: `polycentric resume run --rounds N`"
    ]
    (here / "run").rename(here / "moved")
    assert say("resume", "moved").code == 0


@pytest.mark.parametrize("steps", ["x", "", "-1", "1.5", "²", "9" * 30])
def test_steps_that_are_no_numbers_are_refused(here, say, steps):
    (here / "run").mkdir()
    (here / "run" / "summary.json").write_text("{}")
    ended = say("personalize", "run", f"--steps={steps}")
    assert (ended.code, len(ended.lines)) == (2, 1) and f"got '{steps}'" in ended.err and "0,1,5,20" in ended.err


def test_other_data_are_not_gone_on_with(here, say):
    assert say("run", "fedavg", *SMALL, "--out", "run", "--quiet").code == 0
    (here / "run" / "summary.json").unlink()
    np.savez("ok.npz", **arrays() | {"x": arrays()["x"] + 1})
    ended = say("resume", "run")
    assert (ended.code, len(ended.lines)) == (2, 1) and "fingerprint" in ended.err


@pytest.mark.timeout(700)
def test_a_real_ctrl_c_keeps_the_last_whole_round(here, stranger):
    words = ["run", "fedavg", "--data", "ok.npz", "--model", "mynet:Net", "--rounds", "1000000"]
    words += ["--evaluate-every", "1", "--out", "run", "--executor", "looped"]
    process = subprocess.Popen(
        [COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell may start us deaf to it
    )
    lines, until = here / "run" / "metrics.jsonl", time.monotonic() + 300  # other tests may have the machine
    try:
        while not (lines.exists() and lines.read_text().count("\n") > 3) and time.monotonic() < until:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    assert err == "error: interrupted; `polycentric resume run` continues from the last complete round\n"
    checkpoint, problems = Folder.open(here / "run").load()
    assert checkpoint is not None and not problems and checkpoint.state.round >= 3


def test_output_that_cannot_be_written_is_said():
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        ended = subprocess.run([COMMAND, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1 and "No space left" in ended.stderr


def test_main_ends_with_the_code_of_the_outcome(capsys):
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as end:
            main(["run", "fedavgg"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert end.value.code == 2


# -- tables over many runs -----------------------------------------------------------------------------------


def shown(values: list[float]) -> str:
    return f"{100 * statistics.fmean(values):.1f}±{100 * statistics.stdev(values):.1f}"


def test_compare_prints_mean_and_deviation(here, say):
    words = ["compare", "nofed", "fedprox", "--set", "mu=0.5", "--data", "ok.npz", "--model", "logistic"]
    words += ["--rounds", "2", "--seeds", "2", "--out", "table"]
    rows = strict(say(*words, "--json").out)["methods"]
    assert [row["method"] for row in rows] == ["nofed", "fedprox"] and [row["runs"] for row in rows] == [2, 2]
    assert len(rows[1]["share_below_alone"]) == 2 and "share_below_alone" not in rows[0]
    before = contents(here)
    ended = say(*words)
    assert ended.code == 0 and contents(here) == before  # finished runs are read, not run
    for row in rows:
        line = next(line for line in ended.out.splitlines() if row["method"] in line)
        assert all(shown(row["metrics"][name]) in line for name in ("micro_accuracy", "worst_decile_accuracy"))


def test_compare_keeps_two_configs_of_a_method_apart(here, say):
    words = ["compare", "fedavg", "ok.toml", "fedavg", "--data", "ok.npz", "--model", "logistic"]
    rows = strict(say(*words, "--rounds", "1", "--seeds", "2", "--json").out)["methods"]
    assert [(row["method"], row["runs"]) for row in rows] == [("fedavg", 2), ("ok.toml", 2)]
    assert rows[0]["metrics"] != rows[1]["metrics"]


def test_compare_counts_what_diverges(here, say, stranger):
    stranger.setattr(screen.stdout, "_width", 300)
    words = ["compare", "fedavg", "--data", "ok.npz", "--model", "mlp", "--rounds", "2", "--seeds", "1"]
    words += ["--set", "lr=1e30"]
    rows = strict(say(*words, "--json").out)["methods"]
    assert (rows[0]["runs"], rows[0]["diverged"]) == (0, 1)
    assert "1 diverged" in say(*words).out


def test_sweep_runs_every_combination(here, say):
    table = strict(say("sweep", "grid.toml", "--out", "sweep", "--json").out)
    assert table["grid"] == ["seed", "set.lr"] and len(table["runs"]) == 4
    points = [(run["grid"]["seed"], run["grid"]["set.lr"]) for run in table["runs"]]
    assert points == [(0, 0.1), (0, 0.01), (1, 0.1), (1, 0.01)]
    assert len(list((here / "sweep").iterdir())) == 4
    ended = say("sweep", "grid.toml", "--out", "sweep")
    rates = {rate: [run["metrics"]["micro_accuracy"] for run in table["runs"] if run["grid"]["set.lr"] == rate]
             for rate in (0.1, 0.01)}  # fmt: skip
    for rate, values in rates.items():
        assert re.search(rf"{rate}\s.*{re.escape(shown(values))}", ended.out)


def test_ctrl_c_in_a_table_says_that_the_same_command_goes_on(here, say, stranger):
    def stop(self: Run) -> None:
        raise KeyboardInterrupt

    real = Run._round
    stranger.setattr(Run, "_round", stop)
    ended = say("sweep", "grid.toml", "--out", "sweep")
    assert ended.code == 130 and ended.lines == ["error: interrupted; the same command again continues"]
    stranger.setattr(Run, "_round", real)
    assert len(strict(say("sweep", "grid.toml", "--out", "sweep", "--json").out)["runs"]) == 4


def made_up(fedavg: float, alone: float, fesem: float, below: float, ari: float) -> dict[str, dict[str, Any]]:
    scores = {"nofed": alone, "fedsgd": 0.01, "fedavg": fedavg, "fedprox": 0.01, "fesem": fesem}
    assert scores.keys() == WAYS.keys()
    return {
        name: {
            "metrics": {"micro_accuracy": [value, value], "worst_decile_accuracy": [value / 2] * 2, "ari": [ari] * 2},
            "personalised": [value] * 2,
            "share_below_alone": [below] * 2,
        }
        for name, value in scores.items()
    }


def test_the_demonstration_says_what_its_table_says():
    lines = what_it_shows(made_up(fedavg=0.9, alone=0.7, fesem=0.96, below=0.2, ari=1.0))
    assert lines[0].startswith("Learning together helps: FedAvg reaches 90 %, clients alone 70 %")
    assert "20 % of the clients would have done better alone" in lines[1] and "45 %" in lines[1]
    assert "finds the four groups by itself, and is better than one center: 96 %, worst tenth 48 %" in lines[2]


def test_the_demonstration_does_not_praise_what_is_not_so():
    lines = what_it_shows(made_up(fedavg=0.5, alone=0.7, fesem=0.4, below=0.0, ari=0.3))
    assert lines[0].startswith("Learning together does not help here: FedAvg reaches 50 %, clients alone 70 %")
    assert lines[1].startswith("Nobody would have done better alone") and "hides" not in lines[1]
    assert "the true ones 0.30), and is no better than one center: 40 %" in lines[2]


def test_numbers_that_are_missing_are_left_out():
    assert spread([0.5, None, math.nan, 0.6]) == "55.0±7.1" and spread([None]) == "-"
    assert _numbers({"micro_loss": None, "macro_accuracy": 0.5, "bytes_up": 10}) == "mean 50.0%  up 10 B"


# -- data and the machine ------------------------------------------------------------------------------------


def idx_folder(folder: Path) -> None:
    source = np.random.default_rng(1)
    for part, n in (("train", 30), ("t10k", 10)):
        images, labels = source.integers(0, 255, (n, 4, 4)), source.integers(0, 3, n)
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
            (folder / f"{part}-{kind}-ubyte").write_bytes(head + values.astype(np.uint8).tobytes())


def leaf_folder(folder: Path) -> None:
    source = np.random.default_rng(2)
    data = {user: {"x": source.normal(size=(6, 4)).tolist(), "y": [0, 1] * 3} for user in ("u", "v")}
    (folder / "a.json").write_text(json.dumps({"users": ["u", "v"], "num_samples": [6, 6], "user_data": data}))


def cifar_folder(folder: Path) -> None:
    source = np.random.default_rng(3)
    rows = source.integers(0, 255, (20, 3073)).astype(np.uint8)
    rows[:, 0] %= 10
    (folder / "data_batch_1.bin").write_bytes(rows.tobytes())


def picture_folder(folder: Path) -> None:
    source = np.random.default_rng(4)
    for client in "ab":
        for label in "xy":
            (folder / client / label).mkdir(parents=True)
            for k in range(3):
                pixels = source.integers(0, 255, (4, 4, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / client / label / f"{k}.png")


@pytest.mark.filterwarnings("ignore:.* a name and no example")  # ten classes of CIFAR, and a few pictures
@pytest.mark.parametrize("fill_folder", [idx_folder, leaf_folder, cifar_folder, picture_folder])
def test_imported_data_are_those_of_the_path(here, say, fill_folder):
    folder = here / "mine"
    folder.mkdir()
    fill_folder(folder)
    assert say("data", "import", "mine", "--name", "kept").code == 0
    again = say("data", "import", "mine", "--name", "kept")
    assert (again.code, len(again.lines)) == (2, 1) and "--force" in again.err
    assert say("data", "import", "mine", "--name", "kept", "--force").code == 0
    assert load("kept", "iid", clients=2).fingerprint == load("mine", "iid", clients=2).fingerprint
    assert "kept" in say("data", "list").out
    assert say("data", "show", "kept", "--partition", "iid", "--clients", "2").code == 0


def test_pictures_are_resized_when_they_are_imported(here, say):
    picture_folder(here / "mine")
    assert say("data", "import", "mine", "--size", "3x5").code == 0
    assert load("mine").shape == (3, 3, 5)
    for size in ("64", "0x4", "4x4x3", "ax4"):
        ended = say("data", "import", "mine", "--size", size, "--force")
        assert (ended.code, len(ended.lines)) == (2, 1) and f"'{size}'" in ended.err and "64x64" in ended.err


def test_an_npz_is_imported_under_its_own_name(here, say):
    ended = say("data", "import", "ok.npz")
    assert ended.code == 0 and ended.err.endswith("use it with --data ok\n")
    assert load("ok").fingerprint == load("ok.npz").fingerprint


def test_data_are_found_in_the_folders_of_the_variable(files, stranger, say):
    stranger.setenv("POLYCENTRIC_DATA", f"/nowhere:{files}")
    stranger.setattr(screen.stdout, "_width", 300)
    assert "40 examples of 5, 3 classes, natural clients" in say("data", "list").out
    ended = say("data", "show", "ok")
    assert ended.code == 0 and "heterogeneity" in ended.out


def test_a_heat_map_is_drawn(here, say):
    ended = say("data", "show", "ok.npz", "--png", "map.png")
    assert (ended.code, ended.err) == (0, "figure: map.png\n")
    assert (here / "map.png").read_bytes().startswith(b"\x89PNG")


def test_the_doctor_finds_this_machine_well(here, say):
    ended = say("doctor")
    assert ended.code == 0 and ended.err == "" and "largest difference" in ended.out
    assert ended.out.count("python") == 1


def test_methods_and_tables_are_listed(say):
    listed = say("methods")
    assert listed.code == 0 and all(word in listed.out for word in ("fedavg", "mnist-cnn", "uniform"))
    page = say("methods", "fedavg")
    assert page.code == 0 and "McMahan" in page.out and "epochs" in page.out
    assert "fedavg-mnist" in say("reproduce").out


def test_a_narrow_terminal_loses_no_name(here, say, stranger):
    stranger.setenv("COLUMNS", "44")
    ended = say("run", "fedavg", *SMALL, "--out", "run", "--quiet")
    first = "".join(line.split("│")[1].strip() for line in ended.out.splitlines() if line.count("│") > 2)
    assert ended.code == 0 and "worst_decile_accuracy" in first


def test_the_version_and_short_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert outcome(["--version"]) == 0
    assert capfd.readouterr().out == f"polycentric {polycentric.__version__}\n"
    for command in ([], ["run"], ["data", "list"], ["topology", "show"]):
        assert outcome([*command, "-h"]) == 0
        assert capfd.readouterr().out.startswith(f"Usage: {' '.join(['polycentric', *command])} [OPTIONS]")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--set", "learning_rate=0.1"], "did you mean 'lr'"),
        (["--set", "batch_size=5"], "did you mean 'batch'"),
        (["--set", "local_epochs=5"], "did you mean 'epochs'"),
        (["--learning-rate", "0.1"], "did you mean --set lr=...?"),
        (["--lr", "0.1"], "did you mean --set lr=...?"),
        (["--num-rounds", "3"], "did you mean --rounds?"),
        (["--n-clients", "3"], "did you mean --clients?"),
    ],
)
def test_what_others_call_it_is_known(typed: list[str], meant: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert outcome(["run", "fedavg", *typed]) == 2
    assert meant in capfd.readouterr().err


def test_what_others_call_it_is_known_in_python() -> None:
    with pytest.raises(TypeError, match="no setting is called 'learning_rate': did you mean 'lr'"):
        polycentric.fedavg(learning_rate=0.1)
    with pytest.raises(polycentric.UsageError, match="'n_clients': did you mean 'clients'"):
        polycentric.run("fedavg", "digits", n_clients=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        polycentric.fedavg(nonsense=0.1)


def test_every_synonym_stands_for_something_there_is() -> None:
    known = {name for method in polycentric.METHODS for name in parameters(method)} | set(Settings.model_fields)
    assert set(SYNONYMS.values()) <= known | {"out"}
    assert not set(SYNONYMS) & known, "what there is needs no other name"


def test_a_folder_of_data_that_is_not_there_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    gone = str(tmp_path / "gone")
    monkeypatch.setenv("POLYCENTRIC_DATA", f"{tmp_path}{os.pathsep}{gone}")
    assert outcome(["run", "fedavg", "--data", "nothing-like-it"]) == 2
    assert f"{gone}, which it names, is not there" in capfd.readouterr().err
    assert outcome(["data", "list"]) == 0
    assert "is not there" in " ".join(capfd.readouterr().out.split())
    monkeypatch.setenv("POLYCENTRIC_DATA", str(tmp_path))
    assert outcome(["data", "list"]) == 0
    assert "is not there" not in " ".join(capfd.readouterr().out.split())


def test_torch_speaks_to_its_developers_and_others_to_the_user(capfd: pytest.CaptureFixture[str]) -> None:
    note = _noting()
    note("The .grad attribute is being accessed", UserWarning, str(Path(torch.__file__).parent / "_tensor.py"), 1)
    note("x is slow (Triggered internally at /pytorch/x.cpp:3.)", UserWarning, "/home/me/model.py", 3)
    note("ours", UserWarning, polycentric.__file__, 1)
    note("the user's own", UserWarning, "/home/me/model.py", 1)
    assert capfd.readouterr().err == "note: ours\nnote: the user's own\n"


def test_a_mac_s_gpu_is_refused_with_a_reason(capfd: pytest.CaptureFixture[str]) -> None:
    assert outcome(["run", "fedavg", "--rounds", "0", "--device", "mps"]) == 2
    assert "device 'mps' is not supported: it has no float64" in capfd.readouterr().err


def test_files_are_written_where_folders_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refused(path: Any, *how: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *how)

    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr(checkpoint.os, "name", "nt")
    checkpoint.renamed(tmp_path / "one.txt", lambda temporary: temporary.write_bytes(b"1"))
    monkeypatch.undo()
    assert (tmp_path / "one.txt").read_bytes() == b"1"
