"""Search: what is drawn, who goes on, and that only validation has a say."""

from __future__ import annotations

import itertools
import json
import math
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from polycentric.cli import outcome
from polycentric.errors import Diverged, UsageError
from polycentric.runs import search as searching
from polycentric.runs.search import ETA, Tried, checked_axes, drawn_points, rungs, search
from polycentric.runs.settings import Settings, command_of

CONFIG = """
method = "fedavg"
data = "teacher(clients=4,dimension=4,examples=20)"
model = "logistic"
rounds = 3
device = "cpu"
executor = "looped"
fine_tune = 0
[grid]
seed = [0, 1]
"set.lr" = { low = 0.0001, high = 0.1, log = true }
"""


@settings(max_examples=40)
@given(st.floats(1e-4, 1e3), st.floats(1.5, 1e3), st.booleans(), st.integers(0, 99))
def test_what_is_drawn_lies_in_its_range(low, times, log, seed):
    axes = {"set.lr": {"low": low, "high": low * times, "log": log}, "set.k": {"low": 2, "high": 5}, "a": ["x", "y"]}
    for point in drawn_points(checked_axes(axes, "here"), 8, seed):
        assert low * (1 - 1e-3) <= point["set.lr"] <= low * times * (1 + 1e-3)
        assert point["set.k"] in (2, 3, 4, 5) and point["a"] in ("x", "y")


def test_a_log_range_is_even_in_its_logarithm():
    axis = {"lr": {"low": 1e-4, "high": 1.0, "log": True}}
    drawn = [point["lr"] for point in drawn_points(axis, 400)]
    for power in range(4):  # a quarter each, give or take three deviations
        assert abs(sum(10 ** (power - 4) <= lr < 10 ** (power - 3) for lr in drawn) - 100) < 3 * math.sqrt(75)
    assert drawn_points(axis, 5) == drawn_points(axis, 5) != drawn_points(axis, 5, seed=1)


def test_points_are_different_and_lists_run_out():
    axes = {"a": [1, 2, 3], "b": [4, 5]}
    assert len(drawn_points(axes, 100)) == 6
    assert len({str(point) for point in drawn_points(axes, 5)}) == 5


@settings(max_examples=60)
@given(st.integers(1, 200), st.integers(0, 500))
def test_every_rung_has_fewer_points_and_more_rounds_and_the_last_is_whole(trials, rounds):
    stages = rungs(trials, rounds, "halving")
    assert stages[0][0] == trials and stages[-1][1] == rounds
    assert all(r >= min(1, rounds) for _, r in stages)
    for (n, r), (fewer, more) in itertools.pairwise(stages):
        assert n / ETA <= fewer < n / ETA + 1 and r < more <= ETA * r
    assert rungs(trials, rounds, "random") == [(trials, rounds)]


@pytest.mark.parametrize(
    ("axis", "said"),
    [({"low": 1}, "low < high"), ({"low": 2, "high": 1}, "low < high"), ({"low": 0, "high": 1, "log": True}, "above 0"),
     ({"low": 1, "high": 2, "lgo": True}, "'lgo'"), ({"low": "a", "high": 2}, "low < high"),
     ({"low": 1, "high": 2, "log": 3}, "true or false")],
)  # fmt: skip
def test_a_range_that_is_none_is_refused(axis, said):
    with pytest.raises(UsageError, match=said):
        checked_axes({"set.lr": axis}, "here.toml")


def pretended(monkeypatch: pytest.MonkeyPatch, less: bool = False) -> list[tuple[float, int, int]]:
    """Runs that are none: the score is that of the learning rate, and a test score that says the opposite."""
    ran: list[tuple[float, int, int]] = []

    def run_cells(cells: list[Settings], parent: Path, **_: Any) -> list[dict[str, Any]]:
        out = []
        for cell in cells:
            lr = cell.set["lr"]
            ran.append((lr, cell.rounds, cell.seed))
            if lr > 0.9:
                out.append({"method": "fedavg", "seed": cell.seed, "diverged": "not finite"})
                continue
            found = {"metric": "valid_x", "value": lr, "lower_is_better": less}
            out.append({"validation": found, "metrics": {"micro_accuracy": 1 - lr}, "seed": cell.seed})
        return out

    monkeypatch.setattr(searching, "run_cells", run_cells)
    return ran


def cells_at(point: dict[str, Any], rounds: int) -> list[Settings]:
    return [Settings(method="fedavg", set={"lr": point["lr"]}, rounds=rounds, seed=seed) for seed in (0, 1)]


@pytest.mark.parametrize("how", ["random", "halving"])
@pytest.mark.parametrize("less", [False, True])
def test_the_best_on_validation_wins_and_who_diverges_never_does(monkeypatch, tmp_path, how, less):
    ran = pretended(monkeypatch, less)
    points = [{"lr": lr} for lr in (0.3, 0.95, 0.5, 0.1, 0.8, 0.2, 0.4, 0.6, 0.7)]
    found = search(points, cells_at, 9, how, tmp_path)
    assert found[0].point == {"lr": 0.1 if less else 0.8} and found[0].rounds == 9
    assert sorted(t.point["lr"] for t in found) == sorted(p["lr"] for p in points)
    assert found[-1].point == {"lr": 0.95} and found[-1].diverged
    assert len(ran) == (18 if how == "random" else 2 * (9 + 3 + 1))
    if how == "halving":
        assert [t.rounds for t in found] == [9, 3, 3, 1, 1, 1, 1, 1, 1]


def test_where_everything_diverges_it_is_said(monkeypatch, tmp_path):
    pretended(monkeypatch)
    with pytest.raises(Diverged, match="all 2 points"):
        search([{"lr": 1.0}, {"lr": 2.0}], cells_at, 9, "random", tmp_path)


def test_a_point_is_judged_by_all_its_seeds():
    runs = tuple({"validation": {"metric": "x", "value": v, "lower_is_better": False}} for v in (0.2, 0.6))
    assert Tried({}, 1, runs).score == pytest.approx(0.4)
    assert Tried({}, 1, (*runs, {"diverged": "yes"})).score == -math.inf


def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, *words: str) -> tuple[int, str, str]:
    monkeypatch.chdir(tmp_path)
    Path("grid.toml").write_text(CONFIG)
    code = outcome(["sweep", "grid.toml", "--out", "runs", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_winner_is_told_with_its_command_and_only_its_test_score(tmp_path, monkeypatch, capsys):
    code, out, err = searched(tmp_path, monkeypatch, capsys, "--search", "random", "--trials", "3", "--json")
    assert code == 0 and "a tenth of every client's training examples is held out" in err
    found = json.loads(out)
    assert len(found["trials"]) == 3 and not any({"test", "metrics"} & trial.keys() for trial in found["trials"])
    scores = [sum(trial["validation"]) / 2 for trial in found["trials"]]
    assert found["winner"]["metric"] == "valid_micro_loss" and scores == sorted(scores)  # of numbers: the least loss
    assert [test["micro_rmse"] for test in found["winner"]["test"]]
    words = shlex.split(found["winner"]["command"])[1:]
    assert outcome([*words, "--out", "again", "--quiet", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["metrics"] == found["winner"]["test"][0]  # the command runs the winner
    assert again["validation"]["value"] == found["winner"]["validation"][0]


def test_a_range_needs_a_search_and_trials_do_too(tmp_path, monkeypatch, capsys):
    code, _, err = searched(tmp_path, monkeypatch, capsys)
    assert code == 2 and "--search random" in err
    code, _, err = searched(tmp_path, monkeypatch, capsys, "--trials", "3")
    assert code == 2 and "--search random" in err
    code, _, err = searched(tmp_path, monkeypatch, capsys, "--search", "randm")
    assert code == 2 and "did you mean 'random'?" in err


def test_a_command_says_all_settings_that_are_not_the_default():
    own = {"lr": 0.1, "select": {"name": "uniform", "n": 3}, "equal": True, "batch": None}
    made = Settings(method="fedavg", data="a b.npz", dissimilarity=True, valid=0.2, set=own)
    assert command_of(made) == (
        "polycentric run fedavg --data 'a b.npz' --valid 0.2 --dissimilarity --set lr=0.1 --set select=uniform "
        "--set select.n=3 --set equal=true --set batch=none"
    )
