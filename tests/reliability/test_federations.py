"""Short forms of what is tried on purpose to break a federation between organisations."""

from __future__ import annotations

import sys

import pytest

from reliability.fuzz import KINDS, fuzz
from reliability.lies import LIES, lies
from reliability.schedules import METHODS, schedules


def test_whatever_is_lost_doubled_late_full_or_killed_no_rule_of_the_history_is_broken() -> None:
    found = schedules(len(METHODS), seed=5)
    assert found["bad"] == [] and found["of"] == len(METHODS)
    assert found["kills"] > 3 and len(found["nodes"]) > 1  # something happened


@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded as on Linux")
def test_whatever_bytes_are_changed_nothing_gets_out_and_nothing_is_written_elsewhere() -> None:
    pytest.importorskip("flwr")
    found = fuzz(12 * len(KINDS), seed=5)
    assert found["bad"] == [] and len(found["kinds"]) == 7


@pytest.mark.parametrize("rule", [0, 2])
def test_a_lie_harms_neither_the_mean_nor_a_robust_rule(rule: int) -> None:
    found = lies(2, first=rule * len(LIES) + 3)
    assert found["bad"] == [] and found["of"] == 2
