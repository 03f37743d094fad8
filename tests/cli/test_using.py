"""The commands that take something out of a finished run, as a stranger uses them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polycentric as pc
from polycentric.cli import outcome

RUNS = {"one": ["fedavg"], "two": ["fesem", "--set", "k=2"], "alone": ["nofed"]}


def arrays(seed: int, clients: list[str]) -> dict[str, Any]:
    """Forty examples of four clients, three classes that can be told apart."""
    source = np.random.default_rng(seed)
    y = source.integers(0, 3, 40)
    x = (source.normal(size=(40, 5)) + 2 * np.eye(5)[y]).astype(np.float32)
    return {"x": x, "y": y, "client": np.array(clients)[np.arange(40) % 4], "classes": np.array(["a", "b", "c"])}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    np.savez(folder / "old.npz", **arrays(0, ["north", "south", "east", "west"]))
    np.savez(folder / "new.npz", **arrays(1, ["south", "up", "down", "west"]))
    how = ["--data", str(folder / "old.npz"), "--rounds", "2", "--model", "logistic", "--quiet", "--fine-tune", "0"]
    for name, words in RUNS.items():
        assert outcome(["run", *words, *how, "--out", str(folder / name)]) == 0
    return folder


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    def ask(*words: object, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        came = outcome(list(map(str, words)))
        out, err = capsys.readouterr()
        assert came == code, err
        return out, err

    return ask


def test_export_prints_the_lines_that_load_it(runs: Path, tmp_path: Path, said: Any) -> None:
    out, err = said("export", runs / "alone", "--client", "south", "--out", tmp_path)
    assert "written:" in err and "examples, off by at most" in err
    space: dict[str, Any] = {"x": torch.ones(2, 5)}
    exec(out, space)
    assert torch.allclose(space["outputs"], pc.open(runs / "alone").model_of(client="south")(space["x"]))
    _, err = said("export", runs / "alone", "--client", "south", "--out", tmp_path, code=2)
    assert "is there already" in err and "--force" in err
    found = json.loads(said("export", runs / "two", "--all", "--json")[0])
    assert [Path(one["file"]).name for one in found["models"]] == ["center-0.safetensors", "center-1.safetensors"]
    assert all(one["checked"] for one in found["models"]) and (runs / "two" / "export").is_dir()
    assert "unknown format 'pickle'" in said("export", runs / "one", "--format", "pickle", code=2)[1]
    assert "did you mean 'north'" in said("export", runs / "one", "--client", "nord", code=2)[1]


def test_predict_writes_a_row_for_each_example(runs: Path, tmp_path: Path, said: Any) -> None:
    out, err = said("predict", runs / "one", runs / "new.npz")
    assert "40 examples; loss" in err and "accuracy" in err
    assert said("predict", runs / "one", runs / "new.npz", "--out", tmp_path / "p.csv")[0] == ""
    assert (tmp_path / "p.csv").read_text().splitlines() == out.splitlines()
    with (tmp_path / "p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 40 and {row["predicted"] for row in rows} <= {"a", "b", "c"}
    assert "is there already" in said("predict", runs / "one", runs / "new.npz", "--out", tmp_path / "p.csv", code=2)[1]
    said("predict", runs / "one", runs / "new.npz", "--out", tmp_path / "p.csv", "--force")


def test_assign_names_a_center_for_every_client(runs: Path, tmp_path: Path, said: Any) -> None:
    found = json.loads(said("assign", runs / "two", runs / "new.npz", "--json", "--out", tmp_path / "c.csv")[0])
    assert {row["client"] for row in found["clients"]} == {"south", "up", "down", "west"}
    for row in found["clients"]:
        losses = [row["loss_0"], row["loss_1"]]
        assert row["center"] == int(np.argmin(losses)) and row["margin"] == pytest.approx(max(losses) - min(losses))
    assert (tmp_path / "c.csv").read_text().startswith("client,center,margin,loss_0,loss_1")
    out, err = said("assign", runs / "one", runs / "new.npz")
    assert "margin" in out and "fedavg has one center, so there is nothing to choose" in err
    assert "have whole models of their own" in said("assign", runs / "alone", runs / "new.npz", code=2)[1]


def test_evaluate_scores_other_data_and_says_with_what(runs: Path, said: Any) -> None:
    found = json.loads(said("evaluate", runs / "two", "--data", runs / "new.npz", "--json")[0])
    assert found["own"] == 2 and found["clients"] == 4 and {"metrics", "known", "newcomers"} <= found.keys()
    out, err = said("evaluate", runs / "alone", "--data", runs / "new.npz")
    assert "clients of the run" in out and "2 newcomers take the mean of all trained clients' models" in err
    again = json.loads(said("evaluate", runs / "one", "--data", runs / "old.npz", "--json")[0])
    summary = json.loads((runs / "one" / "summary.json").read_text())
    assert again["metrics"] == pytest.approx(summary["metrics"])
    assert "--data NAME" in said("evaluate", runs / "one", code=2)[1]
    assert "examples have shape (1, 8, 8)" in said("evaluate", runs / "one", "--data", "digits", code=2)[1]


def test_no_cell_of_a_table_is_a_formula(tmp_path: Path, said: Any) -> None:
    """A spreadsheet runs what begins with = + - @; a client, a class and a file may be called anything."""
    odd = ["=cmd|1", "+a", "-b", "@c"]
    whole = arrays(0, odd) | {"classes": np.array(["=1+1", "b", "c"])}
    np.savez(tmp_path / "odd.npz", **whole)
    how = ["--data", tmp_path / "odd.npz", "--rounds", 2, "--model", "logistic", "--quiet", "--out", tmp_path / "r"]
    said("run", "fesem", "--set", "k=2", *how)
    said("predict", tmp_path / "r", tmp_path / "odd.npz", "--center", 0, "--out", tmp_path / "p.csv")
    said("assign", tmp_path / "r", tmp_path / "odd.npz", "--out", tmp_path / "a.csv")
    said("clusters", tmp_path / "r", "--no-examples")
    said("personalize", tmp_path / "r", "--steps", "0,1")
    tables = [tmp_path / "p.csv", tmp_path / "a.csv", *(tmp_path / "r").rglob("*.csv")]
    names = {path.name for path in tables}
    assert names >= {"p.csv", "a.csv", "clients.csv", "members.csv", "personalize.csv"}
    for path in tables:
        with path.open(newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row if cell]
        assert not [cell for cell in cells if cell[0] in "=+@" or (cell[0] == "-" and not is_number(cell))], path.name
    with (tmp_path / "r" / "clients.csv").open(newline="") as file:
        assert {row["client"] for row in csv.DictReader(file)} == {f"'{name}" for name in odd}


def is_number(cell: str) -> bool:
    try:
        return float(cell) == float(cell)
    except ValueError:
        return False
