"""A real federation on this machine: a server, two nodes as processes of their own, keys and TLS.

Several methods one after another over the same nodes, each bit for bit the simulated run.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from polycentric import load, run as simulate
from polycentric.deploy.engine.link import Link
from polycentric.deploy.first_look import make_keys, nodes_beside
from polycentric.deploy.serve import Waiting, serve
from polycentric.runs.record import verify
from polycentric.runs.settings import Settings

pytest.importorskip("flwr")
NAMES = ["ward-0", "ward-1"]
DATA: dict[str, Any] = {"data": "digits", "partition": "dirichlet=0.5", "clients": 2}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fesem": {"k": 2},
    "fedmes": {"cells": "regions(0:1 0+1:1)"},
    "dpa-sgd": {},
}
pytestmark = pytest.mark.xdist_group("federation")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Link]]:
    """A server that listens, and two nodes that have joined."""
    folder, port = tmp_path_factory.mktemp("federation"), free_port()
    keys, public = make_keys(folder, NAMES)
    settings = Settings.of({"method": "fedavg", **DATA})
    lines: list[str] = []
    with (
        Link(folder / "engine", port=port, keys=keys, nodes=public, log=lines.append) as link,
        nodes_beside(folder, settings, NAMES, port, trust=False),
    ):
        yield folder, link


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("method", METHODS)
def test_a_deployed_run_is_the_simulated_one_bit_for_bit(method: str, place: tuple[Path, Link]) -> None:
    folder, link = place
    how: dict[str, Any] = {"set": {"lr": 0.05, **METHODS[method]}, "rounds": 2}
    served = serve(Settings.of({"method": method, **how}), link, folder / method, Waiting(2, deadline=60), names=NAMES)
    assert torch.get_num_threads() == 1, "the suite runs with OMP_NUM_THREADS=1"
    plain = folder / f"{method}-simulated"
    data = load(DATA["data"], DATA["partition"], clients=2)
    simulate(method, data, executor="looped", block=1, record=True, out=plain, **how)
    found = verify(folder / method, plain)
    assert found.difference is None and found.rounds == 2
    assert served.tally.late == served.tally.dropped == 0
