"""A short form of two programs beside this file: runs that are killed and resumed, and two that write at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
SHORT = """
import json
from reliability.kills import kills
from reliability.writers import writers
print(json.dumps([kills(6, seed=4), writers(4)]))
"""

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="children are forked, and their files found in /proc"),
    pytest.mark.xdist_group("kills"),  # one worker: what is found is found once
]


@pytest.fixture(scope="module")
def found() -> tuple[dict[str, Any], dict[str, Any]]:
    """What both count, in one process of their own: what forks must have no threads."""
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    how: dict[str, Any] = {"env": os.environ | {"PYTHONPATH": path}, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", SHORT], **how, timeout=220)
    assert done.returncode == 0, done.stderr
    killed, paired = json.loads(done.stdout.splitlines()[-1])
    return killed, paired


def test_a_killed_run_ends_as_if_nobody_had_disturbed_it(found: tuple[dict[str, Any], dict[str, Any]]) -> None:
    killed, _ = found
    assert killed["bad"] == [] and killed["good"] == killed["of"] == 6
    assert killed["kills"] >= 6 and len(killed["moments"]) > 2 and "SIGKILL" in killed["signals"]


def test_of_two_at_once_one_writes_and_the_other_is_refused_or_waits(
    found: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    _, paired = found
    assert paired["bad"] == [] and paired["good"] == paired["of"] == 4
    assert set(paired["kinds"]) == {"resume", "sweep", "run"}
