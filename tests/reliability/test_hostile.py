"""Whatever is typed or read works or is refused in a line: a short form of `hostile.py`, and cases once met."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from polycentric.errors import UsageError
from polycentric.language import value_of
from reliability import hostile

Say = Callable[..., SimpleNamespace]


def test_hostile_settings_and_files_are_refused_in_a_line() -> None:
    found = hostile.hostile(300, seed=0)
    assert found.wrong == []
    assert 0 < found.refused < found.cases == 300  # both happen, or nothing is tried


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (lambda: {}["x"], "traceback"),
        (lambda: hostile.np.zeros(hostile.MOST_BYTES // 4).sum(), "memory"),
        (lambda: exec("while True: pass"), "hang"),
    ],
)
def test_what_is_wrong_is_noticed(wrong: Callable[[], None], what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "SECONDS", 0.05)
    assert hostile.tried(wrong)[0] == what


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six clients of eight examples."""
    source = np.random.default_rng(0)
    y = source.integers(0, 2, 48)
    x = (source.normal(size=(48, 3)) + y[:, None]).astype(np.float32)
    np.savez(tmp_path / "tiny.npz", x=x, y=y, client=np.arange(48) % 6, classes=np.array(["a", "b"]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fedavg --held-out 0.95", "held_out=0.95 of 6 clients leaves nobody to train"),
        ("fedavg --held-out 0.99 --valid 0.5", "held_out=0.99 of 6 clients leaves nobody to train"),
        ("fesem --attack nan(share=0.99)", "attack with share=0.99 of 6 clients is everybody"),
        ("fedavg --attack sign-flip(share=0.95) --dissimilarity", "is everybody, and nobody is left to score"),
        ("fedavg --partition iid --clients 48", "none of the 48 clients whose scores count has test examples"),
        ("fedavg --partition classes(clients=2147483648)", "ask for at most 48 clients"),
        ("fedavg --partition iid --clients 999999999999", "ask for at most 48 clients"),
        ("fedavg --set lr=1e39", "lr must be at most 3.4e+38, got 1e39"),
        ("fedavg --attack same-value(value=1e39)", "attack.value must be at most 3.4e+38, got 1e39"),
        ("fedavg --fine-tune 9223372036854775808", "got 9223372036854775808"),
        ("fedavg --set epochs=1000000000000", "at most 1,048,576 epochs or steps, got 1000000000000"),
        ("maml --set steps=1000000000000", "at most 1,048,576 steps, got 1000000000000"),
        ("ifca --set k=1000000000", "k must be at most 10,000 where all centers come down"),
        ("fedmes --set models=1000000000", "models must be at most 1,000 at every edge"),
        ("fedmes --set cells=map(radius=1e308)", "cells.radius must be at most 3.4e+38"),
        ("fesem --set lr=1e30", "the training diverges: try a smaller learning rate"),
        ("fesem --attack nan(share=0.8)", "try a smaller share or size of the attack"),
    ],
)
def test_an_edge_is_refused_and_says_what_to_do(tiny: Path, say: Say, words: str, said: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = say("run", *words.split(), "--data", "tiny.npz", "--rounds", "2", "--out", "run", "--executor", "looped")
    assert told.code in (1, 2) and said in told.lines[-1]
    assert [line for line in told.lines if line.startswith("error: ")] == told.lines[-1:]


@pytest.mark.parametrize(
    "words", ["mtl --optimistic", "dpa-sgd --model logistic --dissimilarity", "dpa-sgd --model mlp --dissimilarity"]
)
def test_an_edge_that_has_an_answer_gets_it(tiny: Path, say: Say, words: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        told = say(
            "run",
            *words.split(),
            "--data",
            "tiny.npz",
            "--rounds",
            "2",
            "--out",
            "run",
            "--executor",
            "looped",
            "--json",
        )
    assert told.code == 0
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert last["micro_loss"] > 0
    if "dissimilarity" in words:  # of what is shared, and said where nothing is
        assert ("dissimilarity" in last) == ("mlp" in words) == ("it is not measured" not in told.err)


def test_a_map_that_no_distance_fits_is_refused(tiny: Path, say: Say) -> None:
    Path("map.csv").write_text("kind,x,y,radius\nedge,1e308,0,1e308\nedge,-1e308,0,1e308\n")
    told = say("run", "fedmes", "--data", "tiny.npz", "--rounds", "1", "--set", "cells=map(places=map.csv)")
    assert told.code == 2 and "'map.csv', line 2: 3 numbers are wanted, got '1e308,0,1e308'" in told.err


@pytest.mark.parametrize("number", ["3.4028236e38", "-1e39", "1e308"])
def test_numbers_fit_a_model(number: str) -> None:
    with pytest.raises(UsageError, match=r"at most 3\.4e"):
        value_of("lr", number, float)
    assert value_of("lr", "3.4e38", float) == 3.4e38
