"""A block at once: the looped clients' numbers, dropout that is drawn by the seed, and few questions to a device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from polycentric import Looped, Prox, Simulation, Stacked, Task, Train, UsageError, fedavg
from polycentric.learn.execute import stacked
from polycentric.models import CharLSTM, lg_lenet
from polycentric.round import run_round
from support import Make, cohort_of, rows_of, small, tiny_conv

both_executors = pytest.mark.parametrize("executor", [Looped, Stacked])


def tiny_lstm(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    return CharLSTM(7, n_outputs, n_embedding=3, n_hidden=4)


MODELS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any]]] = {
    "mlp": (small, {}),
    "conv": (tiny_conv, {"shape": (2, 6, 5)}),
    "lg-lenet": (lg_lenet, {"shape": (1, 16, 16), "sizes": (7, 2, 5)}),
    "char-lstm": (tiny_lstm, {"shape": (5,), "symbols": 7}),
}
OPTIONS: list[dict[str, Any]] = [{"weight_decay": 0.1}, {"momentum": 0.5, "weight_decay": 0.2}]
OPTIONS += [{"optimizer": "adam", "weight_decay": 0.1}, {"terms": (Prox(0.5),)}]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("options", OPTIONS)
def test_stacked_equals_looped_for_ragged_clients(model: str, options: dict[str, Any], blobs: Make) -> None:
    make, data = MODELS[model]
    federation = blobs(**{"sizes": (9, 1, 14, 5)} | data)
    task, split = Task.of(federation, make, dtype=torch.float64), federation.train
    cohort = cohort_of(split, effort=torch.tensor([1.0, 1.0, 0.4, 1.0], dtype=torch.float64)[: len(split.sizes)])
    train = Train(lr=0.05, epochs=3, batch=4, **options)
    a, b = (run(task, split)(train, rows_of(task, len(cohort)), cohort)["model"] for run in (Stacked, Looped))
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(a, task.start()["model"].expand_as(a))


@pytest.mark.parametrize("model", MODELS)
def test_executors_predict_alike(model: str, blobs: Make) -> None:
    make, data = MODELS[model]
    federation = blobs(**{"sizes": (4, 4, 4)} | data | {"sizes": (4, 4, 4)})
    task, split = Task.of(federation, make, dtype=torch.float64), federation.train
    rows = {"model": task.start()["model"] + torch.linspace(-0.1, 0.1, 3, dtype=torch.float64)[:, None]}
    x = task.inputs(split.x.unflatten(0, (3, 4)))
    a, b = (run(task, split).outputs(rows, x) for run in (Stacked, Looped))
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert not a.requires_grad and not b.requires_grad


def dropping(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(*shape, 8), nn.Dropout(0.5), nn.Linear(8, n_outputs))


@both_executors
def test_dropout_draws_the_same_numbers_for_the_same_seed(executor: Any, blobs: Make) -> None:
    federation = blobs()
    task, split = Task.of(federation, dropping), federation.train

    def learned(**changes: Any) -> Tensor:
        torch.rand(3)  # what else is drawn in the program does not matter
        return executor(task, split)(Train(batch=None, steps=2), rows_of(task, 5), cohort_of(split, **changes))["model"]

    state = torch.random.get_rng_state()
    first = learned()
    assert torch.equal(first, learned())
    assert not torch.allclose(first, learned(seed=1))
    assert not torch.allclose(first, learned(round=1))
    torch.random.set_rng_state(state)
    torch.rand(3)
    assert torch.equal(torch.rand(5), _after(state, lambda: (learned(), torch.rand(5))[1]))


def _after(state: Tensor, draw: Callable[[], Tensor]) -> Tensor:
    """What is drawn from a given state of torch's own generator."""
    torch.random.set_rng_state(state)
    return draw()


@both_executors
def test_clients_have_dropout_of_their_own(executor: Any, blobs: Make, made: Make) -> None:
    one = blobs((6,)).train
    federation = made([(one.x, one.y)] * 3, classes=3)
    task = Task.of(federation, dropping)
    learned = executor(task, federation.train)(Train(batch=None), rows_of(task, 3), cohort_of(federation.train))[
        "model"
    ]
    assert not torch.allclose(learned[0], learned[1])
    assert not torch.allclose(learned[1], learned[2])


class Asked(TorchDispatchMode):
    """Counts what is asked of a device that has no numbers to tell, and what it is told that one would wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.questions, self.waits = 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            self.questions += 1
            return 1.0
        if function is torch.ops.aten._to_copy.default and str(kwargs.get("device")) == "meta":
            self.waits += not args[0].is_meta and not kwargs.get("non_blocking")
        return function(*args, **kwargs)


@pytest.mark.parametrize("sizes", [[12] * 5, [30, 3, 9]])
def test_a_round_asks_its_device_for_one_number_a_block(sizes: list[int], blobs: Make) -> None:
    method, federation = fedavg(batch=4, epochs=2), blobs(sizes)
    task = Task.of(federation, small)
    clients = Simulation(federation, task, executor="stacked", block=3)
    train = replace(federation.train, x=federation.train.x.to("meta"), y=federation.train.y.to("meta"))
    there = Stacked(replace(task, module=copy.deepcopy(task.module).to("meta")), train)
    for part, value in (("task", there.task), ("run", there)):
        object.__setattr__(clients, part, value)
    state = method.begin(there.task.start(), federation.n_clients)
    with Asked() as asked:
        after, _ = run_round(method, state, clients)
    assert after.centers["model"].is_meta
    assert (asked.questions, asked.waits) == (-(-len(sizes) // 3), 0)


@pytest.mark.parametrize("options", [{}, *OPTIONS])
def test_a_block_of_one_or_two_is_as_looped_and_overwrites_nothing(options: dict[str, Any], blobs: Make) -> None:
    federation = blobs(sizes=(9, 14))
    task, split = Task.of(federation, small, dtype=torch.float64), federation.train
    train = Train(lr=0.05, epochs=2, batch=4, **options)
    for some in ([0], [0, 1], [1, 0]):
        cohort = cohort_of(split)[torch.tensor(some)]
        rows = rows_of(task, len(some))
        before = rows["model"].clone()
        a, b = (run(task, split)(train, rows, cohort)["model"] for run in (Stacked, Looped))
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        assert torch.equal(rows["model"], before)


def test_whoever_is_left_over_in_a_block_is_not_stacked(blobs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = blobs(sizes=(40, 3, 12, 3, 3))
    task, split = Task.of(federation, small, dtype=torch.float64), federation.train
    plain, taken = stacked.one_by_one, list[tuple[int, int]]()

    def counted(steps: Any, carry: Any, rows: Any, stretch: range) -> Any:
        taken.append((len(stretch), len(carry["model"])))
        return plain(steps, carry, rows, stretch)

    monkeypatch.setattr(stacked, "one_by_one", counted)
    train, rows, cohort = Train(lr=0.05, batch=1), rows_of(task, 5), cohort_of(split)
    a, b = (run(task, split)(train, rows, cohort)["model"] for run in (Stacked, Looped))
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert taken == [(9, 2), (28, 1)], "steps 3 to 12 of two clients, then steps 12 to 40 of one"


@pytest.mark.parametrize("how", ["anew", "in place"])
def test_a_module_that_changes_its_buffers_is_refused(how: str, blobs: Make) -> None:
    class Counts(nn.Module):
        def __init__(self, n: int, k: int) -> None:
            super().__init__()
            self.head = nn.Linear(n, k)
            self.register_buffer("seen", torch.zeros(()))
            self.register_buffer("scale", torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if how == "anew":
                self.seen = self.seen + 1
            else:
                self.seen += 1
            return self.head(x.flatten(1)) * self.scale / self.seen

    federation = blobs(sizes=(5, 4))
    model = Counts(federation.train.x[0].numel(), len(federation.classes))
    with pytest.raises(UsageError, match="Counts changes its buffer 'seen' while it reads examples"):
        Simulation(federation, Task.of(federation, model))
