"""The benchmark: the same work in every way, and ratios of all of them."""

from __future__ import annotations

import pytest

from polycentric import UsageError
from polycentric.cli.bench import _table
from polycentric.runs.bench import WORK, Race, measure, profile


def test_a_tiny_bench_has_positive_ratios() -> None:
    race = Race.of("mlp", clients=3, steps=2, batch=4)
    found = measure(race, ["looped", "stacked"], repeats=2, workers=2)
    ways = {"looped", "stacked", "looped, 2 workers", "stacked, 2 workers"}
    assert found["seconds"].keys() == ways | {"plain", "limit"} and found["over_plain"].keys() == ways
    assert all(value > 0 for key in ("seconds", "over_plain", "over_limit") for value in found[key].values())
    assert found["auto"] == "traced" and _table([found]).row_count == 6
    assert "aten::" in profile(race)


@pytest.mark.parametrize("model", ["femnist-cnn", "mnist-cnn", "char-lstm"])
def test_every_model_does_the_same_work_as_the_plain_loop(model: str) -> None:
    race = Race.of(model, clients=2, steps=1, batch=2)
    assert set(measure(race, ["looped"], repeats=1)["over_limit"]) == {"looped", "plain"}


def test_bench_notices_work_that_is_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polycentric.runs.bench.plain", lambda task, *_: dict(task.module.named_parameters()))
    with pytest.raises(UsageError, match="not the same work"):
        measure(Race.of("logistic", clients=2, steps=2, batch=4), ["looped"], repeats=1)


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(UsageError, match="mlp"):
        Race.of("mlq")
    with pytest.raises(UsageError, match="executor"):
        measure(Race.of("logistic", clients=1, steps=1, batch=1), ["fast"])
    assert set(WORK) >= {"mlp", "femnist-cnn", "mnist-cnn", "char-lstm", "vgg11"}
