"""The rule of auto: always the same choice, by model, device and length of the run, and blocks that fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polycentric import (
    Active,
    Federation,
    Method,
    Simulation,
    Stacked,
    Task,
    UsageError,
    fedavg,
    fedcurv,
    ifca,
    maml,
    nofed,
    resume,
    run,
)
from polycentric.learn import Traced
from polycentric.learn.execute import looped
from polycentric.learn.learner import Executor
from polycentric.models import mlp
from polycentric.runs.personalize import personalize
from polycentric.runs.start import prepare
from polycentric.simulate.auto_executor import FirstRound, block_size
from polycentric.simulate.rehearsal import failure
from support import Make, small, tiny_conv

SIZES = (9, 3, 30, 1, 14, 6, 7, 22)


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


class Recurrent(nn.Module):
    """A recurrence of torch's, which vmap takes only where gradients are wanted."""

    def __init__(self, kind: Callable[..., nn.Module] = nn.GRU) -> None:
        super().__init__()
        self.cell, self.head = kind(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.cell(x.unflatten(-1, (3, 2)))
        return self.head(states[..., -1, :])


class OldSquare(torch.autograd.Function):
    """As such functions were written once: torch cannot differentiate it twice, nor batch it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * ctx.saved_tensors[0] * g


class Squared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return OldSquare.apply(self.head(x))


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_a_recurrence_of_torch_is_learned_scored_tuned_and_gone_on_with(kind: Any, blobs: Make, tmp_path: Path) -> None:
    def model() -> nn.Module:
        return Recurrent(kind)

    federation = blobs()
    done = run(nofed(), federation, model=model, rounds=2, out=tmp_path / "run")
    assert done.clients.executor == "looped" and "personalised" in done.scores
    assert len(personalize(done, [0, 2])) == 2
    more = resume(tmp_path / "run", rounds=3, model=model, federation=federation)
    assert more.state.round == 3


@pytest.mark.filterwarnings("ignore:.*cannot be stacked")
@pytest.mark.parametrize("model", [Recurrent, Branch])
@pytest.mark.parametrize("method", [fedcurv(), maml(), ifca(k=2), fedavg(select=Active(n=2))])
def test_what_no_stack_can_take_is_looped_in_every_method(model: Any, method: Method, blobs: Make) -> None:
    done = run(method, blobs(), model=model, rounds=2, dissimilarity=True)
    assert done.clients.executor == "looped" and done.state.round == 2


def test_gradients_of_each_example_are_the_same_one_by_one(blobs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    for stackable in (True, False):
        monkeypatch.setattr(looped, "runs_stacked", lambda *_, found=stackable: found)
        ran = run(fedcurv(), blobs(), model=small, rounds=2, executor="looped", dtype="float64")
        rows.append(ran.state.centers["model"])
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*cannot be stacked")
def test_what_a_method_asks_of_a_model_in_vain_is_refused_before_the_first_round(blobs: Make) -> None:
    assert run(fedavg(), blobs(), model=Squared, rounds=1).state.round == 1
    with pytest.raises(UsageError, match="model Squared cannot do what this method asks of it"):
        prepare(maml(), blobs(), model=Squared)
    with pytest.raises(UsageError, match="use --executor looped"):
        prepare(fedavg(), blobs(), model=Recurrent, executor="stacked")


def test_a_rehearsal_leaves_no_trace(blobs: Make) -> None:
    federation = blobs()
    n, k = federation.train.x[0].numel(), len(federation.classes)
    dropping = nn.Sequential(nn.Flatten(), nn.Linear(n, k), nn.Dropout(0.5))
    made = prepare(fedavg(), federation, model=dropping, rounds=2)
    before = torch.get_rng_state()
    first = {name: rows.clone() for name, rows in made.state.centers.items()}
    assert failure(made.clients, FirstRound(made.method.at(0), made.state, 2), made.clients.run) is None
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(rows, first[name]) for name, rows in made.state.centers.items())


def test_convolutions_are_looped_on_a_cpu_and_dense_layers_traced(blobs: Make) -> None:
    pictures, numbers = blobs(shape=(2, 6, 5)), blobs()
    assert Simulation(pictures, Task.of(pictures, tiny_conv)).executor == "looped"
    assert Simulation(numbers, Task.of(numbers, small)).executor == "traced"


def test_executors_of_the_package_are_what_simulation_makes(blobs: Make) -> None:
    federation = blobs(sizes=SIZES)
    made = {e: Simulation(federation, Task.of(federation, "mlp"), executor=e).run for e in ("stacked", "traced")}
    assert type(made["stacked"]) is Stacked and type(made["traced"]) is Traced


def choice(federation: Federation, rounds: int, method: Any = None, **how: Any) -> str:
    method = method or fedavg(lr=0.05, batch=5)
    return prepare(method, federation, rounds=rounds, **({"model": "mlp"} | how)).clients.executor


def test_auto_takes_the_same_however_many_rounds_there_are(blobs: Make) -> None:
    federation = blobs(sizes=SIZES)
    assert {choice(federation, rounds) for rounds in (0, 5, 10**6)} == {"traced"}
    assert choice(federation, 10**6, executor="stacked") == "stacked"


def test_what_was_called_compiled_is_traced(blobs: Make) -> None:
    assert choice(blobs(sizes=SIZES), 1, executor="compiled") == "traced"


@pytest.mark.parametrize("executor", ["looped", "stacked", "traced"])
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
