"""Differences that can be trusted: what is paired, what is claimed, who gains, and which rows are not alike."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import polycentric as pc
from polycentric.errors import UsageError
from polycentric.runs.paired import (
    base_of,
    leading,
    margin,
    mean_and_error,
    sentence,
    served,
    unequal,
    who,
    with_differences,
)
from polycentric.runs.settings import Settings


def row(name: str, scores: list[float], metric: str = "micro_accuracy", **more: Any) -> dict[str, Any]:
    n = len(scores)
    return {
        "method": name, "seeds": list(range(n)), "fingerprints": [f"f{k}" for k in range(n)], "run_dirs": [""] * n,
        "metrics": {metric: scores}, "work": {"steps": 10.0, "examples": 100.0}, **more,
    }  # fmt: skip


CELL = [Settings(method="fedavg"), Settings(method="fesem")]


def test_what_is_hard_about_a_seed_falls_out():
    easy_and_hard = [0.9, 0.5, 0.7, 0.3]
    other = [score + gain for score, gain in zip(easy_and_hard, [0.02, 0.03, 0.02, 0.03], strict=True)]
    first, second = with_differences([row("a", easy_and_hard), row("b", other)], CELL)
    assert first["difference"] is None
    found = second["difference"]
    assert found["mean"] == pytest.approx(0.025) and found["se"] == pytest.approx(0.005 / math.sqrt(3))
    assert found["told"] == "b beats a by 2.5 ± 0.3 points over 4 seeds: beyond 3.2 standard errors"


@settings(max_examples=100)
@given(st.lists(st.floats(-0.5, 0.5), min_size=0, max_size=6))
def test_nothing_is_claimed_within_two_standard_errors_or_of_few_seeds(gains):
    told = sentence("b", "a", gains, "micro_accuracy")
    mean, se = mean_and_error(gains)
    claimed = "beats" in told or "loses" in told
    assert claimed == (len(gains) >= 3 and any(gains) and abs(mean) > margin(len(gains)) * se)
    assert margin(3) > 4.3 and margin(5) < 2.8 and margin(1000) == 2
    assert ("too few seeds to tell" in told) == (1 <= len(gains) < 3)


def test_less_is_better_of_an_error():
    rows = [row("a", [1.0, 2.0, 3.0], "micro_rmse"), row("b", [0.5, 1.6, 2.5], "micro_rmse")]
    found = with_differences(rows, CELL)[1]["difference"]
    assert found["mean"] < 0 and found["told"].startswith("b beats a by 0.467 ± 0.033 rmse over 3 seeds")
    back = with_differences(rows, CELL, against="b")
    assert back[1]["difference"] is None and back[0]["difference"]["told"].startswith("a loses to b")


def test_what_is_left_after_fine_tuning_is_said():
    alone = row("a", [0.5, 0.6, 0.7], personalised=[0.8, 0.8, 0.8])
    better = row("b", [0.6, 0.7, 0.8], personalised=[0.8, 0.81, 0.79])
    found = with_differences([alone, better], CELL)[1]["difference"]
    assert found["fine_tuned"] == pytest.approx([0, 0.01, -0.01])
    assert found["told"].endswith("; after fine-tuning +0.0 ± 0.6 points, which cannot be told from none")
    clear = with_differences([alone, better | {"personalised": [0.85, 0.86, 0.84]}], CELL)[1]["difference"]
    assert clear["told"].endswith("; after fine-tuning +5.0 ± 0.6 points")
    assert "fine_tuned" not in with_differences([alone, row("b", [0.6, 0.7, 0.8])], CELL)[1]["difference"]


def test_other_examples_are_not_paired():
    other = row("b", [0.9, 0.9, 0.9]) | {"fingerprints": ["f0", "x", "f2"]}
    assert "other examples" in with_differences([row("a", [0.1] * 3), other], CELL)[1]["difference"]["told"]


def test_only_seeds_in_which_both_ended_count():
    short = row("b", [0.5, 0.6]) | {"seeds": [1, 2], "fingerprints": ["f1", "f2"]}
    found = with_differences([row("a", [0.1, 0.2, 0.3]), short], CELL)[1]["difference"]
    assert found["seeds"] == [1, 2] and found["each"] == pytest.approx([0.3, 0.3])


def test_a_reference_or_a_metric_that_is_not_there_is_refused():
    rows = [row("a", [0.1]), row("b", [0.2])]
    with pytest.raises(UsageError, match="row to compare against 'c'"):
        with_differences(rows, CELL, against="c")
    with pytest.raises(UsageError, match="metric to compare by 'micro_acuracy'"):
        with_differences(rows, CELL, by="micro_acuracy")


def test_unequal_work_is_said_once_with_both_ends():
    rows = [row("a", [0.1]), row("b", [0.2], work={"steps": 16.0, "examples": 100.0}), row("c", [0.1], work=None)]
    (said,) = unequal(rows, CELL)
    assert said.startswith("unequal work: a client of b takes 16 steps over 100 examples in a round, one of a 10 steps")
    assert unequal(rows, CELL, work=False) == []
    assert unequal([row("a", [0.1]), row("b", [0.2], work={"steps": 15.0, "examples": 90.0})], CELL) == []


def test_rows_of_other_data_or_rounds_are_said():
    cells = [Settings(method="fedavg"), Settings(method="fedavg", rounds=3)]
    assert unequal([row("a", [0.1]), row("b.toml", [0.2])], cells) == ["rows differ in rounds: a 50, b.toml 3"]


def test_names_of_metrics():
    assert leading(["micro_loss", "micro_accuracy"]) == "micro_accuracy" and leading(["micro_rmse", "micro_loss"])
    assert leading(["micro_loss"]) == "micro_loss" and base_of("micro_rmse") == "rmse" and base_of("r2") == "r2"


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    how: dict[str, Any] = {"clients": 6, "rounds": 2, "seeds": 2, "model": "logistic", "device": "cpu", "fine_tune": 0}
    how |= {"executor": "looped", "data_seed": 3}
    return pc.compare(["nofed", "fedavg"], "mixture(k=2)", out=tmp_path_factory.mktemp("runs"), **how)


def test_a_regression_is_compared_with_training_alone(regression):
    alone, together = regression
    shares = together["share_below_alone"]
    assert len(shares) == 2 and all(0 <= share <= 1 for share in shares)
    for seed, share in enumerate(shares):
        here, there = (served(r["run_dirs"][seed]) for r in (together, alone))
        assert len(here) == 6 and share == sum(here[k] < there[k] for k in here) / 6
        assert all(value < 0 for value in here.values())  # minus a loss: more is better


def test_who_gains_names_every_client_and_group_once(regression):
    alone, together = regression
    found = who(together, alone, "micro_rmse", less=True)
    assert found["of"] == "rmse" and len(found["clients"]) == 6  # one data_seed deals the same clients in every seed
    assert found["gain"] + found["lose"] + found["same"] == 6
    gains = [one["gain"] for one in found["clients"]]
    assert gains == sorted(gains, reverse=True) and {one["group"] for one in found["clients"]} == {"0", "1"}
    assert [group["group"] for group in found["groups"]] == ["0", "1"]
    whole = sum(g["gain"] * g["clients"] for g in found["groups"]) / sum(g["clients"] for g in found["groups"])
    assert whole == pytest.approx(sum(gains) / 6)
    backwards = who(alone, together, "micro_rmse", less=True)
    assert (backwards["gain"], backwards["lose"]) == (found["lose"], found["gain"])


def test_clients_that_are_dealt_anew_are_told_apart_by_their_seed(regression):
    alone, together = regression
    apart = together | {"fingerprints": ["x", "y"]}
    found = [who(r, alone, "micro_rmse", less=True) for r in (together, apart)]
    assert [len(f["clients"]) for f in found] == [6, 12] and [f["averaged"] for f in found] == [True, False]
    for each in found:  # a group has as many members as it has in a seed, however many seeds there are
        assert sum(group["clients"] for group in each["groups"]) == 6
