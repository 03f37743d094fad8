"""Threads, where a process cannot be copied: the bits of one, and a refusal where they could not give them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from polycentric import Federation, Simulation, Task, UsageError, dpsgd, fedavg, fesem, ifca
from polycentric.round import run_round
from polycentric.runs.start import prepare
from polycentric.simulate import clients, threads
from support import Make

SIZES = (9, 3, 30, 1, 14, 6, 7, 22)


@pytest.fixture(autouse=True)
def threads_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (clients, threads):
        monkeypatch.setattr(module, "available", lambda: False)


def after(method: Any, federation: Federation, rounds: int = 2, **how: Any) -> dict[str, torch.Tensor]:
    prepared = prepare(method, federation, **({"model": "mlp"} | how))
    state = prepared.state
    for _ in range(rounds):
        state, _ = run_round(prepared.method, state, prepared.clients)
    return state.centers | state.kept | state.memory


METHODS = {
    "fedavg": lambda: fedavg(lr=0.05, epochs=2, batch=5),
    "fesem": lambda: fesem(k=2, lr=0.05, batch=5),  # reads all answers at once
    "ifca": lambda: ifca(k=2, lr=0.05, batch=5),  # predicts while others train
    "dpsgd": lambda: dpsgd(lr=0.05, batch=5),
}


@pytest.mark.parametrize("executor", ["looped", "stacked"])
@pytest.mark.parametrize("name", METHODS)
def test_two_workers_give_the_bits_of_one(name: str, executor: str, blobs: Make) -> None:
    federation = blobs(sizes=SIZES)
    one, two = (after(METHODS[name](), federation, executor=executor, block=2, workers=n) for n in (1, 2))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_a_block_has_a_module_of_its_own_in_every_thread(blobs: Make) -> None:
    simulation = Simulation(blobs(sizes=SIZES), Task.of(blobs(sizes=SIZES), "mlp"), block=1, workers=2)
    method = METHODS["fedavg"]()
    run_round(method, method.begin(simulation.task.start(), 8), simulation)
    modules = {id(run.task.module) for run in simulation._threads.runs}
    assert len(modules) == len(simulation._threads.runs) >= 1 and id(simulation.task.module) not in modules


def test_an_error_in_a_thread_arrives(blobs: Make) -> None:
    federation = blobs(sizes=SIZES)
    simulation = Simulation(federation, Task.of(federation, "mlp"), executor="looped", block=1, workers=2)
    method, broken = METHODS["fedavg"](), {"model": torch.zeros(1, 3)}
    with pytest.raises(RuntimeError, match="split"):
        run_round(method, method.begin(simulation.task.start(), 8).__class__(broken, {}, {}), simulation)


def test_workers_are_refused_where_modules_draw(blobs: Make) -> None:
    class Noisy(nn.Module):  # no dropout to be seen
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x.flatten(1)[:, :4] + torch.rand(()))

    federation = blobs(sizes=SIZES)
    n, k = federation.train.x[0].numel(), len(federation.classes)
    dropping = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(n, k))
    with pytest.raises(UsageError, match=r"draws random numbers by itself .* use --workers 1"):
        Simulation(federation, Task.of(federation, dropping), executor="looped", workers=2)
    noisy = Noisy()
    noisy.head = nn.Linear(min(4, n), k)
    with pytest.raises(UsageError, match="draws random numbers by itself"):
        Simulation(federation, Task.of(federation, noisy), executor="looped", workers=2)
    with pytest.raises(UsageError, match="workers must be at least 1, got 0"):
        Simulation(federation, Task.of(federation, "mlp"), workers=0)
