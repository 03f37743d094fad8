"""What a node makes of the terms it is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.in_process import clients_of, deployed, trusting
from deploy.test_center import simulated
from polycentric.deploy.letters import packed
from polycentric.deploy.serve import terms_of
from polycentric.deploy.terms import Terms
from support import Make

BEYOND = ["../other", "../../other", "/proc/other", "a/b", "..", ".", "a\n", "", "a" * 65, "\u202ea", "a\0"]


@pytest.mark.parametrize("run", BEYOND)
def test_a_run_is_called_by_a_name_that_leads_nowhere(run: str, blobs: Make, tmp_path: Path) -> None:
    """A name becomes a folder's: whatever a center calls a run, nothing is written beside the node's own folder."""
    made = simulated("lg-fedavg", blobs)
    client = clients_of(made.federation, tmp_path / "here" / "kept", limits=trusting)[0]
    center = deployed(made, clients_of(made.federation, limits=trusting), lambda terms: None)
    told = terms_of(center, "good", center.settings)(0)
    center.remote.run = run[:64]
    letter = center.remote._letter(center.method.at(0)[0], center.state, center.remote.everyone(0)[:1])
    facts: dict[str, Any] = told.model_dump() | {"run": run}
    (reply,) = client.answer([packed(Terms.model_construct(**facts), {}), letter])
    assert b'"refused"' in reply
    assert list(tmp_path.rglob("*")) == []
