"""Short forms of what is tried on purpose to break a federation between organisations."""

from __future__ import annotations

from reliability.schedules import METHODS, schedules


def test_whatever_is_lost_doubled_late_full_or_killed_no_rule_of_the_history_is_broken() -> None:
    found = schedules(len(METHODS), seed=5)
    assert found["bad"] == [] and found["of"] == len(METHODS)
    assert found["kills"] > 3 and len(found["nodes"]) > 1  # something happened
