"""The table `matcha`: simulated time from the coins, measures that read a run's history, and claims that can fail."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from polycentric.reproduce import matcha as table


def test_simulated_time_is_a_step_and_the_matchings_one_after_another():
    assert table.elapsed("matcha", 1.0, 0, 10).tolist() == [6.0 * k for k in range(11)]  # 1 + 5 matchings
    assert table.elapsed("matcha", 0.0, 0, 10).tolist() == list(range(11))  # alone
    for schedule in ("matcha", "periodic"):
        took = np.diff(table.elapsed(schedule, 0.5, 0, 4000))
        assert took.mean() == pytest.approx(1 + 2.5, abs=0.1)
    assert set(took) == {1.0, 6.0}  # periodic: all or none


def test_a_loss_is_the_mean_of_the_last_evaluations_and_a_time_the_first_that_is_there(tmp_path):
    rows = [{"round": 10 * k, "micro_loss": 2.0 - 0.1 * k} for k in range(15)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = {"run_dir": str(tmp_path), "seed": 0}
    assert table._loss(summary) == pytest.approx(2.0 - 0.1 * 9.5)
    assert table._time("matcha", 1.0, 1.05)(summary) == 6 * 100
    assert math.isnan(table._time("matcha", 1.0, 0.1)(summary))


def test_the_plans_are_those_computed_beforehand():
    holds, words = table._planned()
    assert holds, words
    compared = table._compared()
    assert len(compared) == 18
    page = table._page_of_plans()
    assert all(f"| {name} | {budget:g} |" in page for name, budget, _ in compared)


def test_claims_can_fail():
    half, faster = table._half("CIFAR-10").judge, table._faster("CIFAR-10").judge

    def values(loss, time):
        return {
            "CIFAR-10, vanilla, loss": [1.0, 1.0],
            "CIFAR-10, MATCHA 0.5, loss": [loss, loss],
            "CIFAR-10, vanilla, time": [600.0, 600.0],
            "CIFAR-10, MATCHA 0.02, time": [time, time],
        }

    assert [half(values(loss, 1.0))[0] for loss in (0.99, 1.005, 1.02)] == [True, True, False]
    assert [faster(values(1.0, time))[0] for time in (110.0, 150.0, math.nan)] == [True, False, None]
    for mine, holds in (([1.1, 1.2, 1.1], False), ([0.9, 1.0, 0.9], True), ([0.9, 1.2, 1.0], None), ([0.9, 1.0], None)):
        found = {"CIFAR-10, MATCHA 0.1, loss": mine, "CIFAR-10, periodic 0.1, loss": [1.0, 1.11, 1.0][: len(mine)]}
        assert table._rather("CIFAR-10").judge(found)[0] is holds
    assert table._delay()[0] is True
