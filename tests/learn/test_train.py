"""Local training: plain PyTorch's numbers, under either executor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from polycentric import KeepPrivate, Looped, Stacked, Task, Train
from polycentric.learn.batches import plan_of
from polycentric.parts.objective import Prox
from polycentric.stacks.stack import Layout
from support import Make, batches_of, cohort_of, rows_of, small

both_executors = pytest.mark.parametrize("executor", [Looped, Stacked])
OPTIMIZERS: list[tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = [
    ({}, torch.optim.SGD),
    ({"weight_decay": 0.1}, torch.optim.SGD),
    ({"momentum": 0.9}, torch.optim.SGD),
    ({"momentum": 0.5, "weight_decay": 0.2}, torch.optim.SGD),
    ({"optimizer": "adam"}, torch.optim.Adam),
    ({"optimizer": "adam", "weight_decay": 0.1}, torch.optim.Adam),
]


@both_executors
@pytest.mark.parametrize(("options", "optimizer"), OPTIMIZERS)
@pytest.mark.parametrize("batch", [4, None])
def test_training_is_a_plain_pytorch_loop(
    executor: Any, options: dict[str, Any], optimizer: Any, batch: int | None, blobs: Make
) -> None:
    federation = blobs((9, 1, 14))
    task, split = Task.of(federation, small, dtype=torch.float64), federation.train
    cohort = cohort_of(split, round=2)
    learned = executor(task, split)(Train(lr=0.05, epochs=3, batch=batch, **options), rows_of(task, 3), cohort)

    plain = {key: value for key, value in options.items() if key != "optimizer"}
    for k, steps in enumerate(batches_of(split, cohort, plan_of(cohort, 3, None, batch))):
        mine = split.of(k)
        net = small((6,), 3).double()
        net.load_state_dict(task.module.state_dict())
        optimize = optimizer(net.parameters(), lr=0.05, **plain)
        for index in steps:
            optimize.zero_grad()
            nn.functional.cross_entropy(net(mine.x[index]), mine.y[index]).backward()
            optimize.step()
        expected = Layout.of(net).row(dict(net.named_parameters()))
        torch.testing.assert_close(learned["model"][k], expected, rtol=1e-10, atol=1e-10)


@both_executors
def test_a_full_batch_is_one_step_on_all_examples(executor: Any, blobs: Make) -> None:
    federation = blobs((9, 1, 14))
    task, split, cohort = Task.of(federation, small, dtype=torch.float64), federation.train, cohort_of(federation.train)
    learned = executor(task, split)(Train(lr=0.3, batch=None), rows_of(task, 3), cohort)["model"]
    large = executor(task, split)(Train(lr=0.3, batch=1000), rows_of(task, 3), cohort)["model"]
    for k in range(3):
        w, mine = task.start()["model"][0].requires_grad_(), split.of(k)
        outputs = torch.func.functional_call(task.module, Layout.of(task.module).views(w), (mine.x,))
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(outputs, mine.y), w)
        torch.testing.assert_close(learned[k], (w - 0.3 * gradient).detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(large, learned, rtol=1e-10, atol=1e-10)


@both_executors
def test_the_learning_rate_decays_from_round_to_round(executor: Any, blobs: Make) -> None:
    federation = blobs((9, 5))
    task, split = Task.of(federation, small, dtype=torch.float64), federation.train
    for round, lr in enumerate((0.4, 0.2, 0.1)):
        cohort = cohort_of(split, round=round)
        decayed = executor(task, split)(Train(lr=0.4, decay=0.5), rows_of(task, 2), cohort)
        plain = executor(task, split)(Train(lr=lr), rows_of(task, 2), cohort)
        assert torch.equal(decayed["model"], plain["model"])


@both_executors
def test_only_the_names_that_are_trained_change(executor: Any, blobs: Make) -> None:
    federation = blobs((9, 5))
    task = Task.of(federation, small, cut=KeepPrivate("dense*"), dtype=torch.float64)
    run, cohort = executor(task, federation.train), cohort_of(federation.train)
    assert run(Train(trains=("private",)), rows_of(task, 2), cohort).keys() == {"private"}
    assert run(Train(), rows_of(task, 2), cohort).keys() == {"model", "private"}


@both_executors
def test_with_inertia_a_client_sends_a_mean_of_its_updates(executor: Any, blobs: Make) -> None:
    federation = blobs((9, 5))
    task, split = Task.of(federation, small, dtype=torch.float64), federation.train
    run, plain, slow = executor(task, split), Train(lr=0.4), Train(lr=0.4, inertia=0.75)
    rows = rows_of(task, 2) | {name: row.expand(2, -1) for name, row in slow.keeps(task.start()["model"]).items()}
    before = torch.zeros_like(rows["model"])
    for round in range(3):
        cohort, start = cohort_of(split, round=round), rows["model"]
        moved = run(plain, rows, cohort)["model"] - start
        rows = rows | run(slow, rows, cohort)
        before = 0.75 * before + 0.25 * moved
        torch.testing.assert_close(rows["model"], start + before, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(rows["inertia"], before, rtol=1e-10, atol=1e-10)
    assert not plain.keeps(before) and slow.trains_like == plain  # fine-tuning has nothing to remember


def test_the_rate_decays_by_the_round_for_steps_and_for_what_terms_say_of_them(
    blobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, told = blobs((3, 4)), []
    monkeypatch.setattr(Prox, "check", lambda term, rows, lr: told.append(lr))
    task = Task.of(federation, small, dtype=torch.float64)
    train = Train(lr=0.5, decay=0.5, terms=(Prox(0.1),))
    begun = [train.begin(rows_of(task, 2), cohort_of(federation.train, round=k), task) for k in (0, 2)]
    assert [carry["lr"].tolist() for carry in begun] == [[0.5, 0.5], [0.125, 0.125]] and told == [0.5, 0.125]
