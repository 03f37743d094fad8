"""The table of the gate: what its claims count."""

from __future__ import annotations

from pathlib import Path

import pytest

import polycentric as pc
from polycentric.reproduce import gate
from support import Make, small

VALUES = {
    (gate.GENERAL, 0): 90.0, (gate.GENERAL, 2): 85.0, (gate.GENERAL, 4): 50.0,
    (gate.PRIVATE, 0): 80.0, (gate.PRIVATE, 2): 80.0, (gate.PRIVATE, 4): 80.0,
    (gate.BOTH, 0): 92.0, (gate.BOTH, 2): 90.0, (gate.BOTH, 4): 86.0,
    (gate.GAIN, 0): 100.0, (gate.GAIN, 2): 100.0, (gate.GAIN, 4): 100.0,
}  # fmt: skip


def verdicts(data: str, **changes: float) -> list[bool | None]:
    values = {gate._name(data, *key): value for key, value in VALUES.items()} | changes
    three = {setting: [value] * 3 for setting, value in values.items()}
    two = {setting: seeds[:2] for setting, seeds in three.items()}
    told = [claim.judge(two)[0] for claim in gate._claims(data)]
    assert told[:3] == [None] * 3 and told[3] is not None  # too few to compare; that a client loses, one shows
    return [claim.judge(three)[0] for claim in gate._claims(data)]


def test_what_noise_costs_is_compared_with_what_it_costs_the_mixture() -> None:
    data = "sensors by subject"
    assert verdicts(data) == [True, True, True, True]
    assert verdicts(data, **{gate._name(data, gate.GENERAL, 4): 81.0}) == [False, False, True, True]
    assert verdicts(data, **{gate._name(data, gate.BOTH, 4): 83.0})[1] is False
    assert verdicts(data, **{gate._name(data, gate.BOTH, 4): 79.0})[2] is False
    assert verdicts(data, **{gate._name(data, gate.GAIN, 2): 96.0})[3] is False


def test_of_errors_less_is_better() -> None:
    data = "two Gaussians"
    errors = {gate._name(data, *key): value if key[0] == gate.GAIN else 1 / value for key, value in VALUES.items()}
    assert verdicts(data, **errors) == [True, True, True, True]
    assert verdicts(data, **errors | {gate._name(data, gate.GENERAL, 4): 1 / 70}) == [False, False, True, True]


def test_clients_are_counted_that_the_mixture_serves_no_worse(blobs: Make, tmp_path: Path) -> None:
    done = pc.run(pc.gate(lr=0.2, batch=5), blobs(test=20), model=small, rounds=3, out=tmp_path / "run")
    scores = done.scores["in_use"]
    expected = 100 * (scores.accuracy >= scores.marks["accuracy_general"].values).mean()
    assert gate.no_worse({"run_dir": tmp_path / "run"}) == pytest.approx(expected)
