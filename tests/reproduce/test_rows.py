"""Rows from a grid, the settings of their runs, and what is measured of a run."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from hypothesis import given, strategies as st

from polycentric.errors import UsageError
from polycentric.reproduce.rows import (
    at_end,
    cell,
    error,
    first_reaching,
    history,
    memory_of,
    rounds_to,
    rows,
)
from polycentric.reproduce.table import Row
from polycentric.runs.grid import digest
from polycentric.runs.settings import Settings
from polycentric.topology.heads.covariance import correlations

AXIS = st.lists(st.integers(0, 9), max_size=4)


@given(AXIS, AXIS)
def test_a_grid_has_a_row_at_every_point_in_order_and_none_twice(a, b):
    made = rows(lambda x, y: Row(f"{x} {y}", {}), a, b)
    points = dict.fromkeys(f"{x} {y}" for x, y in itertools.product(a, b))
    assert [row.setting for row in made] == list(points)
    several = rows(lambda x: [Row(f"{x} {y}", {}) for y in b], a)
    assert several == made and rows(lambda x: None, a) == ()


def test_the_first_row_of_a_setting_stays():
    made = rows(lambda n: Row("the same", {"rounds": n}), (1, 2))
    assert [row.settings["rounds"] for row in made] == [1]


def test_cells_are_settings_and_differ_where_anything_differs():
    asked = cell("fedavg", "digits", "logistic", 5, {"lr": 0.1}, clients=4)
    others = [
        cell("fedavg", "digits", "logistic", 6, {"lr": 0.1}, clients=4),
        cell("fedavg", "digits", "logistic", 5, {"lr": 0.2}, clients=4),
        cell("fedavg", "digits", "logistic", 5, {"lr": 0.1}, clients=4, evaluate_every=5),
        asked | {"clients": 5},
    ]
    names = {digest(Settings.of({**one, "seed": 0})) for one in (asked, *others)}
    assert len(names) == 5 and asked["fine_tune"] == 0 and asked["evaluate_every"] == 1


def test_a_number_of_the_summary_or_none():
    summary = {"metrics": {"ari": 0.5, "none": None}, "rounds_to_target": 7, "optimistic": None}
    assert at_end("metrics", "ari", scale=100)(summary) == 50 and at_end("rounds_to_target")(summary) == 7
    for path in (("metrics", "none"), ("metrics", "other"), ("optimistic", "one_center", "ari"), ("other",)):
        assert math.isnan(at_end(*path)(summary))
    assert error("ari")(summary) == 50


def test_the_first_evaluation_at_a_target(tmp_path):
    values = [0.1, 0.5, None, 0.5, 0.9]
    lines = [json.dumps({"round": 2 * k, "micro_accuracy": v}) + "\n" for k, v in enumerate(values)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    assert len(history(tmp_path)) == 5
    assert first_reaching(tmp_path, 0.5)["round"] == 2 and first_reaching(tmp_path, 0.6)["round"] == 8
    assert first_reaching(tmp_path, 0.95) is None and first_reaching(tmp_path, 0.1, "auc") is None
    assert rounds_to(0.6)({"run_dir": str(tmp_path)}) == 8
    assert math.isnan(rounds_to(0.95)({"run_dir": str(tmp_path)}))


@given(st.integers(1, 5), st.integers(0, 99))
def test_correlations_lie_between_one_and_minus_one(n, seed):
    rows = torch.randn(n, n + 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = correlations(rows @ rows.T)
    assert torch.allclose(found.diagonal(), torch.ones(n, dtype=torch.float64))
    assert bool((found.abs() <= 1 + 1e-12).all()) and torch.allclose(found, found.T)
    scale = torch.arange(1, n + 1)
    assert torch.allclose(found, correlations(scale[:, None] * (rows @ rows.T) * scale))


def test_a_run_without_a_checkpoint_says_so(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError):
        memory_of(tmp_path)
