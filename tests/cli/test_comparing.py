"""Comparisons from the command line: rows, work, differences, who gains, and tables for people and programs."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from polycentric.cli import screen
from polycentric.runs.folder import Folder

FAST = ["--data", "two.npz", "--model", "logistic", "--rounds", "2", "--out", "table", "--quiet", "--device", "cpu"]
FAST += ["--executor", "looped"]

MINE = """
import torch
from polycentric import Metric, fedavg

def off(outputs, targets):
    return (outputs.argmax(-1) != targets).double().mean()

wrong = Metric(off, lower_is_better=True, name="wrong")

def ditto(mu: float = 0.1, lr: float = 0.1):
    return fedavg(lr=lr)
"""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with data of two groups, and code of the user's own."""
    monkeypatch.delenv("POLYCENTRIC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(screen.stdout, "_width", 200)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    source = np.random.default_rng(0)
    n, client = 200, np.arange(200) % 5
    y = source.integers(0, 2, n)
    x = source.normal(size=(n, 4)) + 2 * np.eye(4)[y]
    names = np.array(["anna", "ben", "carl", "dora", "emil"])
    common = {"x": x.astype(np.float32), "client": client, "client_names": names, "group": (client > 2).astype(int)}
    np.savez("two.npz", **common, y=y, classes=np.array(["no", "yes"]), group_names=np.array(["north", "south"]))
    np.savez("real.npz", **common, y=(x @ np.arange(4.0)).astype(np.float32))
    Path("mine.py").write_text(MINE)
    return tmp_path


def test_the_same_epochs_are_the_same_work_for_every_row(here, say):
    ended = say("compare", "nofed", "fedavg", "dpsgd", "reptile", "--set", "epochs=3", "--seeds", "1", *FAST, "--json")
    rows = json.loads(ended.out)["methods"]
    assert len({(row["work"]["steps"], row["work"]["examples"]) for row in rows}) == 1
    assert "unequal work" not in ended.err


def test_unequal_work_is_shown_and_warned_of_unless_it_is_meant(here, say):
    words = ["compare", "fedavg", "dpsgd", "--seeds", "1", *FAST]
    ended = say(*words)
    assert ended.err.startswith("note: unequal work: a client of fedavg takes 4 steps") and "dpsgd 1 step" in ended.err
    line = next(line for line in ended.out.splitlines() if "dpsgd" in line and " B" in line)
    assert line.split("│")[2].strip() == "1"
    assert say(*words, "--unequal-work").err == ""


def test_epochs_and_steps_together_are_refused(here, say):
    ended = say("compare", "fedavg", "dpsgd", "--set", "epochs=2", "--set", "steps=3", *FAST)
    assert ended.code == 2 and "epochs=2 and steps=3" in ended.err and not Path("table").exists()


def test_training_alone_beside_a_run_does_as_much_as_the_run(here, say):
    words = [word for word in FAST if word not in ("--out", "table")]
    for method, own in (("dpsgd", ["--set", "lr=0.5"]), ("fedavg", ["--set", "epochs=3"])):
        steps = ["--set", "steps=1"] if method == "dpsgd" else []
        ran = json.loads(say("run", method, *own, *words, "--out", f"{method}-run", "--alone", "--json").out)
        both = ["compare", "nofed", method, "--seeds", "1", *own, *steps, *words, "--out", f"{method}-two", "--json"]
        row = json.loads(say(*both).out)["methods"][1]
        assert row["share_below_alone"] == [ran["metrics"]["share_below_alone"]]


def test_a_row_has_settings_of_its_own_in_brackets(here, say):
    ended = say("compare", "fedavg(lr=0.5)", "mine:ditto(mu=3)", "--set", "lr=0.01", "--seeds", "1", *FAST, "--json")
    rows = json.loads(ended.out)["methods"]
    assert [row["method"] for row in rows] == ["fedavg(lr=0.5)", "mine:ditto(mu=3)"]
    found = [Folder(Path(row["run_dirs"][0])).read_config()[0] for row in rows]
    assert [(one.method, one.set) for one in found] == [
        ("fedavg", {"lr": "0.5"}),
        ("mine:ditto", {"mu": "3", "lr": "0.01"}),
    ]
    ended = say("compare", "fedavg(lr=0.5)", "--set", "lr=0.01", *FAST)
    assert ended.code == 2 and "'lr'" in ended.err  # it would reach nobody


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "fedavg(lr=0.5)", "--set", "lr=1"], "lr is set twice, in fedavg(lr=0.5) and as lr=1: drop one"),
        (["run", "fesem(4)"], "write fesem(KEY=4)"),
        (["run", "fesem(k=4)x"], "nothing may follow"),
        (["run", "fesem(k=4"], ") is missing"),
        (["run", "fesem(kk=4)"], "'kk'"),
        (["compare", "fedavg", "nofed", "--against", "fesem"], "'fesem'"),
        (["compare", "fedavg", "--format", "word"], "'word'"),
        (["compare", "fedavg", "--format", "csv", "--json"], "two formats"),
        (["choose-k", "fedavg"], "'k'"),
        (["choose-k", "fesem", "--ks", "two"], "got 'two'"),
        (["choose-k", "fesem", "--set", "k=3"], "k=3 is what is chosen"),
    ],
)
def test_mistakes_are_said_before_anything_is_run(here, say, words, said):
    ended = say(*words)
    assert ended.code == 2 and said in ended.err and ended.err.count("\n") == 1


def test_run_and_a_config_take_settings_in_brackets(here, say):
    Path("two.toml").write_text('method = "fesem(k=2)"\ndata = "two.npz"\n[set]\nlr = 0.2\n')
    words = [word for word in FAST if word not in ("--out", "table", "--data", "two.npz")]
    for method, own in (("fesem(k=3)", {"k": "3"}), ("two.toml", {"k": "2", "lr": 0.2})):
        folder = f"run-{method}"
        assert say("run", method, "--data", "two.npz", *words, "--out", folder).code == 0
        assert Folder(Path(folder)).read_config()[0].set == own


def test_bytes_go_up_and_come_down(here, say):
    words = ["compare", "fedavg", "ifca(k=4)", "--seeds", "1", *FAST, "--unequal-work"]
    rows = json.loads(say(*words, "--json").out)["methods"]
    assert rows[1]["bytes_down"] == 4 * rows[0]["bytes_down"] and rows[1]["bytes_up"] < 2 * rows[0]["bytes_up"]
    heads, *_ = [line for line in say(*words).out.splitlines() if "down" in line and "method" in line]
    assert "up" in heads and "sent" not in heads


@pytest.fixture
def compared(here, say) -> Callable[..., str]:
    def shown(*words: str) -> str:
        ended = say("compare", "fedavg", "nofed", "fedprox", "--seeds", "3", *FAST, *words)
        assert ended.code == 0
        return ended.out

    return shown


def test_every_format_has_every_row_and_what_can_be_told(compared):
    told = json.loads(compared("--format", "json", "--who"))
    sentences = [row["difference"]["told"] for row in told["methods"][1:]]
    assert all(len(row["who"]["clients"]) == 5 for row in told["methods"][1:])  # named in the data: the same persons
    page, paper, shown = (compared("--format", word) for word in ("markdown", "latex", "table"))
    assert all(sentence in text for text in (page, paper, shown) for sentence in sentences)
    assert [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")] == [
        "method", ":--", "fedavg", "nofed", "fedprox",
    ]  # fmt: skip
    body = paper.split(r"\hline")[2]
    assert body.count(r"\\") == 3 and r"$\pm$" in body and "±" not in body
    lines = list(csv.DictReader(io.StringIO(compared("--format", "csv"))))
    for line, row in zip(lines, told["methods"], strict=True):
        assert line["method"] == row["method"]
        assert float(line["micro_accuracy"]) == pytest.approx(np.mean(row["metrics"]["micro_accuracy"]))
        assert float(line["micro_accuracy_std"]) == pytest.approx(np.std(row["metrics"]["micro_accuracy"], ddof=1))
        assert line["difference_told"] == (row["difference"] or {"told": ""})["told"]


def test_the_reference_is_who_was_asked_for(compared):
    rows = json.loads(compared("--against", "nofed", "--by", "macro_f1", "--json"))["methods"]
    assert rows[1]["difference"] is None
    each = [a - b for a, b in zip(rows[0]["metrics"]["macro_f1"], rows[1]["metrics"]["macro_f1"], strict=True)]
    assert rows[0]["difference"]["each"] == each and rows[0]["difference"]["to"] == "nofed"


def test_who_gains_is_named_by_client_and_group(compared):
    shown = compared("--who")
    assert all(re.search(rf"{name}.*; of 5 clients \d gain and \d lose", shown) for name in ("nofed", "fedprox"))
    assert "who gains against fedavg" in shown and all(word in shown for word in ("anna", "emil", "north", "south"))
    lines = list(csv.DictReader(io.StringIO(compared("--who", "--format", "csv"))))
    assert [line["method"] for line in lines] == ["nofed"] * 5 + ["fedprox"] * 5
    assert all(int(line["seeds"]) > 1 and "seed" not in line for line in lines)  # the same persons: averaged over seeds
    assert {(line["client"], line["group"]) for line in lines} == {
        ("anna", "north"), ("ben", "north"), ("carl", "north"), ("dora", "south"), ("emil", "south"),
    }  # fmt: skip


def test_numbers_to_predict_have_columns_of_their_own(here, say):
    words = ["compare", "nofed", "fedavg", "--seeds", "2", *FAST, "--data", "real.npz"]
    shown = say(*words).out
    head = next(line for line in shown.splitlines() if "rmse" in line)
    assert all(word in head for word in ("worst tenth", "mae", "r2", "fine-tuned", "better alone"))
    row = next(line for line in shown.splitlines() if "fedavg" in line)
    assert "-" not in [cell.strip() for cell in row.split("│")]
    rows = json.loads(say(*words, "--json").out)["methods"]
    assert len(rows[1]["share_below_alone"]) == 2 and rows[1]["difference"]["metric"] == "micro_rmse"
    folder = Folder(Path(rows[0]["run_dirs"][0]))
    line = folder.read_clients()[0]
    assert float(line["rmse_in_use"]) > 0 and float(line["mae_in_use"]) > 0
    assert say("personalize", str(folder.path), "--steps", "0,2").code == 0
    assert "loss_after_2" in (folder.path / "personalize.csv").read_text()


def test_metrics_of_ones_own_are_columns_and_may_be_compared_by(here, say):
    words = ["compare", "fedavg", "nofed", "--seeds", "3", *FAST, "--metrics", "mine:wrong"]
    assert "wrong" in next(line for line in say(*words).out.splitlines() if "macro" in line)
    rows = json.loads(say(*words, "--by", "micro_wrong", "--who", "--json").out)["methods"]
    found = rows[1]["difference"]
    assert found["lower_is_better"] and rows[1]["who"]["of"] == "wrong"
    assert ("loses" in found["told"]) == (found["mean"] > 2 * found["se"])


def test_every_option_of_a_run_reaches_a_comparison(here, say):
    words = ["--valid", "0.2", "--held-out", "0.2", "--fine-tune", "0", "--patience", "1", "--monitor", "macro_f1"]
    rows = json.loads(say("compare", "fedavg", "--seeds", "1", *FAST, *words, "--json").out)["methods"]
    found = Folder(Path(rows[0]["run_dirs"][0]))
    made = found.read_config()[0]
    assert (made.valid, made.held_out, made.fine_tune, made.patience, made.monitor) == (0.2, 0.2, 0, 1, "macro_f1")
    assert rows[0]["personalised"] == [] and found.read_json("summary.json")["validation"]["metric"] == "valid_macro_f1"


def test_a_folder_of_runs_says_what_is_in_it_and_what_to_type(here, say, compared):
    compared()
    for command in ("personalize", "clusters", "resume"):
        ended = say(command, "table")
        assert ended.code == 2 and ended.err.count("\n") == 1 and "but has 9 in it" in ended.err
        for method in ("fedavg", "nofed", "fedprox"):
            (path,) = [p for p in Path("table").glob(f"{method}-*") if Folder(p).read_config()[0].seed == 0]
            assert f"{method}, seed 0: {path}" in ended.err


def test_choose_k_is_a_command(here, say):
    words = ["choose-k", "fesem", "--data", "two.npz", "--model", "logistic", "--ks", "1,2", "--rounds", "1"]
    found = json.loads(say(*words, "--set", "warm_up=1", "--json").out)
    assert [trial["k"] for trial in found["trials"]] == [1, 2] and found["k"] in (1, 2)
    best = max(found["trials"], key=lambda trial: (trial["valid_accuracy"], -trial["k"]))
    assert found["k"] == best["k"] and found["command"].endswith(f"--set warm_up=1 --set k={found['k']}")
    numbers = json.loads(say(*words, "--data", "real.npz", "--json").out)
    best = min(numbers["trials"], key=lambda trial: (trial["valid_loss"], trial["k"]))
    assert numbers["k"] == best["k"] and best["valid_accuracy"] is None
