"""`polycentric data check`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from polycentric.cli import outcome


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data in which one example is both for training and for testing."""
    source = np.random.default_rng(0)
    x = source.normal(size=(80, 3)).astype(np.float32)
    y, client, test = (x[:, 0] > 0).astype(np.int64), np.arange(80) % 8, np.arange(80) >= 64
    x[72] = x[0]
    x[:, 1] *= 1000
    np.savez(tmp_path / "leaky.npz", x=x, y=y, client=client, test=test, classes=np.array(["no", "yes"]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.mark.filterwarnings("default:data 'leaky'")
def test_the_command_prints_findings_and_answers_and_draws(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(["data", "check", "leaky.npz", "--png", "check.png"]) == 0
    out, err = capsys.readouterr()
    lines = [line.split(None, 1) for line in out.splitlines() if line.strip()]
    said = {first: rest for first, rest in (pair for pair in lines if len(pair) == 2)}
    assert "1 of 16 test examples are also training examples of the same client" in said["leak"]
    assert "different units" in said["mind"] and "drawn in check.png" in err
    assert (here / "check.png").stat().st_size > 0


def test_one_json_object_and_options_of_a_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(["data", "check", "leaky.npz", "--standardise", "train", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["clients"] == 8 and not [one for one in out["findings"] if one["about"] == "mind"]
    assert (
        outcome(["data", "check", "digits", "--partition", "shards=2", "--clients", "6", "--seed", "1", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["clients"] == 6


def test_a_file_of_another_kind_is_refused_before_anything_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(["data", "check", "nowhere", "--png", "check.jpg"]) == 2
    assert "--png must end in .png, .svg or .pdf, got 'check.jpg'" in capsys.readouterr().err
