"""Moves made by the kernels that make their gradients: the same models, and no large gradient is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

from polycentric import Federation, Prox, Stacked, Task, Train
from polycentric.learn.execute import captured, replay, stacked
from polycentric.learn.execute.captured import Captured
from polycentric.learn.execute.stacked import launch
from polycentric.learn.gpu import convolve, in_place, linear, pools
from polycentric.learn.gpu.overrides import Overrides
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.stack import Stacks
from support import interpreted_kernels

Make = Callable[..., Federation]
SIZES = (7, 5, 2)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our kernels on a processor, for any layer."""
    interpreted_kernels(monkeypatch)

    @contextmanager
    def ours(device: torch.device) -> Iterator[None]:
        with Overrides():
            yield

    monkeypatch.setattr(stacked, "use_gpu_kernels", ours)
    for module in (convolve, linear):
        monkeypatch.setattr(module, "backend", lambda a, b: "triton" if len(a) > 1 else "torch")
        monkeypatch.setattr(module, "_worth", lambda x, w: True)
    monkeypatch.setattr(linear, "LARGE", 0)
    monkeypatch.setattr(pools, "_worth", lambda x: True)
    monkeypatch.setattr(pools, "_by_kernel", lambda x: True)
    monkeypatch.setattr(in_place, "able", lambda w: True)
    monkeypatch.setattr(captured, "recorded", lambda function, pool: function)


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> list[Counter[str]]:
    """How often each of our operators is in the programs that are made."""
    made: list[Counter[str]] = []
    fused = replay.moves_fused

    def counted(graph: Any) -> None:
        fused(graph)
        made.append(Counter(name_of(node) for node in graph.nodes if "polycentric" in str(node.target)))

    monkeypatch.setattr(replay, "moves_fused", counted)
    return made


def name_of(node: Node) -> str:
    return str(node.target).split(".")[1]


class Net(nn.Module):
    """Convolutions, a pool and dense layers."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 5, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.dense = nn.Linear(20, 6)
        self.head = nn.Linear(6, n)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.conv2(self.conv1(x.view(len(x), 1, 4, 4)).relu()).relu())
        return self.head(self.dense(x.flatten(1)).relu())


class Tied(nn.Module):
    """A layer that is used twice: its gradient is a sum of two products."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.dense, self.head = nn.Linear(16, 16), nn.Linear(16, n)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dense(self.dense(x).relu()).relu())


class LowRank(nn.Module):
    """A layer whose weight is a product of two: what one of them moves along is made of the other."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(16, n), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.nn.functional.linear(self.left.weight, self.right.weight).T


def work(blobs: Make, model: Any, scan: Any, **changes: Any) -> tuple[Stacked, tuple[Train, Stacks, Cohort]]:
    """An executor, and what it is to do."""
    federation = blobs(SIZES, shape=(16,), dtype=torch.float32)
    task = Task.of(federation, lambda shape, n: model(n), dtype=torch.float32)
    n = len(SIZES)
    rows = {name: row.repeat(n, 1) for name, row in task.start().items()}
    cohort = Cohort(torch.arange(n), federation.train.sizes, torch.ones(n).double(), n, seed=0, round=0)
    train = Train(**{"lr": 0.05, "batch": 2} | changes)
    run = Stacked(task, federation.train, scan, in_place=True, few=0)
    return run, (train, rows | {"start": rows["model"]}, cohort)


def models(blobs: Make, model: Any, scan: Any, **changes: Any) -> tuple[Stacks, Stacks]:
    """What clients learn, launched or by a scan; and their rows before."""
    run, (train, rows, cohort) = work(blobs, model, scan, **changes)
    return run(train, rows, cohort), rows


WAYS: list[dict[str, Any]] = [{}, {"momentum": 0.9}, {"momentum": 0.5, "weight_decay": 0.1}]


@pytest.mark.parametrize("changes", WAYS, ids=str)
@pytest.mark.parametrize("model", [Net, Tied])
def test_fused_is_launched(
    model: Any, changes: dict[str, Any], blobs: Make, kernels: None, operators: list[Counter[str]]
) -> None:
    found, rows = models(blobs, model, Captured(), **changes)
    expected, _ = models(blobs, model, launch, **changes)
    torch.testing.assert_close(found["model"], expected["model"])
    assert float((found["model"] - rows["model"]).abs().max()) > 1e-3
    for program in operators[:1]:
        if model is Net:
            assert program["outer_moves_"] == program["convolution_in_w_moves_"] == 2
            assert not program["outer"] and not program["convolution_in_w"]
        else:
            assert program["outer_moves_"] == 1 and program["outer"] == 2


@pytest.mark.parametrize("model", [LowRank, Net])
def test_what_is_made_of_weights_or_of_a_row_is_made_before_they_move(
    model: Any, blobs: Make, kernels: None, operators: list[Counter[str]]
) -> None:
    """A product that reads another layer's weights; a gradient to which a penalty's is added."""
    changes: dict[str, Any] = {"terms": (Prox(0.5),)} if model is Net else {"lr": 1.0}
    found, _ = models(blobs, model, Captured(), **changes)
    expected, _ = models(blobs, model, launch, **changes)
    torch.testing.assert_close(found["model"], expected["model"])
    assert operators[0]["outer"] and operators[0]["move_"] and not operators[0]["outer_moves_"]


def test_a_program_is_right_for_other_clients(blobs: Make, kernels: None, operators: list[Counter[str]]) -> None:
    """Rates and starts of a later round stand in the places of the first one's."""
    run, (train, rows, cohort) = work(blobs, Net, Captured(), terms=(Prox(0.5),), decay=0.5)
    expected, _ = work(blobs, Net, launch, terms=(Prox(0.5),), decay=0.5)
    for round in range(3):
        now, there = replace(cohort, round=round), {name: row + round / 8 for name, row in rows.items()}
        torch.testing.assert_close(run(train, there, now)["model"], expected(train, there, now)["model"])
    assert len(operators) == len({n for n in (1, 2, 3) if n <= len(SIZES)})
