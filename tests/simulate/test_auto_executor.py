"""The rule of auto: always the same choice, by model, device and length of the run, and blocks that fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polycentric import Federation, Simulation, Stacked, Task, fedavg
from polycentric.learn import Compiled
from polycentric.learn.learner import Executor
from polycentric.models import mlp
from polycentric.runs.start import prepare
from polycentric.simulate.auto_executor import FirstRound, block_size, compiling_pays
from support import Make, small

SIZES = (9, 3, 30, 1, 14, 6, 7, 22)


def tiny_conv(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(shape[0], 3, 3, padding=1),
        nn.GroupNorm(1, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3 * (shape[1] // 2) * (shape[2] // 2), n_outputs),
    )


class Branch(nn.Module):
    """Data decide which way it goes, so it cannot be stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) if x.sum() > 0 else self.head(-x)


def test_a_model_that_cannot_be_stacked_is_looped_with_one_warning(blobs: Make) -> None:
    with pytest.warns(UserWarning, match="Branch cannot be stacked") as said:
        done = prepare(fedavg(), blobs(), model=Branch, dtype="float64").go()
    assert len(said) == 1
    assert done.clients.executor == "looped"
    asked = prepare(fedavg(), blobs(), model=Branch, dtype="float64", executor="looped").go()
    assert torch.equal(done.state.centers["model"], asked.state.centers["model"])


def test_convolutions_are_looped_on_a_cpu_and_dense_layers_stacked(blobs: Make) -> None:
    pictures, numbers = blobs(shape=(2, 6, 5)), blobs()
    assert Simulation(pictures, Task.of(pictures, tiny_conv)).executor == "looped"
    assert Simulation(numbers, Task.of(numbers, small)).executor == "stacked"


def test_executors_of_the_package_are_what_simulation_makes(blobs: Make) -> None:
    federation = blobs(sizes=SIZES)
    made = {e: Simulation(federation, Task.of(federation, "mlp"), executor=e).run for e in ("stacked", "compiled")}
    assert type(made["stacked"]) is Stacked and type(made["compiled"]) is Compiled


def choice(federation: Federation, rounds: int, method: Any = None, **how: Any) -> str:
    method = method or fedavg(lr=0.05, batch=5)
    return prepare(method, federation, rounds=rounds, **({"model": "mlp"} | how)).clients.executor


def test_auto_compiles_only_runs_that_are_long_enough_and_always_the_same(
    blobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/g++")
    federation = blobs(sizes=SIZES)
    assert [choice(federation, rounds) for rounds in (0, 5, 10**6, 10**6)] == ["stacked"] * 2 + ["compiled"] * 2
    more = fedavg(lr=0.05, batch=5, epochs=100)
    least = [next(r for r in range(0, 10**6, 500) if choice(federation, r, m) == "compiled") for m in (more, None)]
    assert 0 < least[0] < least[1], "more work a round pays earlier"
    assert choice(federation, 10**6, executor="stacked") == "stacked"


def test_auto_leaves_alone_what_does_not_compile_well(blobs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/g++")
    federation = blobs(sizes=SIZES)
    n, k = federation.train.x[0].numel(), len(federation.classes)
    dropping = nn.Sequential(nn.Flatten(), nn.Linear(n, k), nn.Dropout(0.1))
    assert choice(federation, 10**6, model=dropping) == "stacked"
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert choice(federation, 10**6) == "stacked"


def test_whether_compiling_pays_is_monotone_in_rounds(blobs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/g++")
    prepared = prepare(fedavg(lr=0.05, batch=5), blobs(sizes=SIZES), model="mlp")
    first = [FirstRound(prepared.method.at(0), prepared.state, 10**k) for k in range(8)]
    pays = [compiling_pays(prepared.clients, some) for some in first]
    assert pays == sorted(pays) and pays[0] is False and pays[-1] is True


@pytest.mark.parametrize("executor", ["looped", "stacked", "compiled"])
@pytest.mark.parametrize("width", [1, 40, 3000])
def test_a_block_fits_what_its_executor_asks_for_in_whole_pieces(executor: Any, width: int, blobs: Make) -> None:
    federation = blobs(sizes=SIZES)
    task = Task.of(federation, lambda shape, n: mlp(shape, n, (width,)))
    run, row = Simulation(federation, task, executor=executor).run, 4 * task.width
    n = block_size(run)
    assert n % run.piece == 0 and 1 <= n <= 1024
    assert n * row <= run.block_bytes < (n + run.piece) * row or n in (run.piece, 1024)


class There(Executor):
    """Asks for blocks as any executor does, and has a model of a million numbers on some device."""

    def __init__(self, device: str) -> None:
        self.task = SimpleNamespace(device=torch.device(device), width=10**6, dtype=torch.float32)

    def __call__(self, *_: object) -> Any: ...

    def outputs(self, *_: object) -> Any: ...


def test_a_block_on_a_gpu_is_larger() -> None:
    assert [block_size(There(device)) for device in ("cpu", "mps", "cuda")] == [2, 2, 268]
