"""Captured steps: the same bits as launched ones, in as few replays as there are graphs for, within their memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from polycentric import Federation, Prox, Stacked, Task, Train
from polycentric.learn.batches import Plan
from polycentric.learn.execute import captured as module
from polycentric.learn.execute.captured import TOGETHER, Captured, Graphs, bucket_size
from polycentric.learn.execute.stacked import launch
from polycentric.models import mlp
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.stack import Stacks

Make = Callable[..., Federation]
SIZES = (100, 37, 37, 5)


def on(
    device: str, blobs: Make, in_place: bool | None = None, **changes: Any
) -> tuple[Stacked, Stacked, Train, Stacks, Cohort]:
    """Two executors of the same work, one that captures and one that does not."""
    federation = blobs(SIZES, dtype=torch.float32).to(device)
    task = Task.of(federation, lambda shape, n: mlp(shape, n, (5,)), device=device)
    n = len(SIZES)
    rows = {name: row.repeat(n, 1) + torch.arange(n, device=device)[:, None] / 8 for name, row in task.start().items()}
    cohort = Cohort(torch.arange(n), federation.train.sizes, torch.ones(n).double(), n, seed=0, round=0)
    captured, launched = (Stacked(task, federation.train, scan, in_place, few=0) for scan in (Captured(), launch))
    return captured, launched, Train(**{"lr": 0.05, "batch": 4} | changes), rows | {"start": rows["model"]}, cohort


def graphs_of(run: Stacked) -> list[Graphs]:
    assert isinstance(run.scan, Captured)
    return list(run.scan.graphs.values())


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Without a GPU: a function is its own graph. What is recorded and replayed is written down."""
    done: list[str] = []

    def recorded(function: Any, pool: object) -> Callable[[], object]:
        bucket = function.args[0]  # of Graphs._step
        done.append(f"record {bucket}")
        return lambda: done.append(f"replay {bucket}") or function()

    monkeypatch.setattr(module, "recorded", recorded)
    return done


CHANGES: list[dict[str, Any]] = [{}, {"momentum": 0.9, "terms": (Prox(0.5),)}, {"optimizer": "adam"}]
CHANGES.append({"terms": (Prox(0.5, implicit=True),)})  # puts another row in the place of the one that moved


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_captured_is_launched(changes: dict[str, Any], in_place: bool, blobs: Make, replays: list[str]) -> None:
    captured, launched, train, rows, cohort = on("cpu", blobs, in_place, **changes)
    given = {name: row.clone() for name, row in rows.items()}
    for _ in range(3):
        a, b = captured(train, rows, cohort), launched(train, rows, cohort)
        assert all(torch.equal(a[name], b[name]) for name in b)
    assert all(torch.equal(rows[name], given[name]) for name in rows)
    assert any(word.startswith("replay") for word in replays)


def test_the_first_step_of_a_bucket_is_launched_and_the_second_recorded(blobs: Make, replays: list[str]) -> None:
    captured, _, train, rows, cohort = on("cpu", blobs)
    captured(train, rows, cohort)  # steps 25, 10, 10, 2: stretches of 2 by four clients, 8 by three and 15 by one
    assert replays == [
        f"{what} {bucket}" for bucket, n in ((4, 2), (3, 8), (1, 15)) for what in ("record", *["replay"] * (n - 1))
    ]
    replays.clear()
    captured(train, rows, cohort)
    assert replays == ["replay 4"] * 2 + ["replay 3"] * 8 + ["replay 1"] * 15


def test_an_executor_takes_its_graphs_with_it(blobs: Make, replays: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(function: Callable[[], object], pool: object) -> Callable[[], object]:
        function()  # a graph remembers kernels, and not who asked for them
        return lambda: None

    monkeypatch.setattr(module, "recorded", recorded)
    captured, _, train, rows, cohort = on("cpu", blobs)
    captured(train, rows, cohort)
    gone = [weakref.ref(it) for it in (captured, *graphs_of(captured))]
    gc.collect()
    gc.disable()
    try:
        del captured
        assert len(gone) > 1 and not any(it() for it in gone)  # at once, without a search for circles
    finally:
        gc.enable()


def test_a_step_that_comes_once_is_not_recorded(blobs: Make, replays: list[str]) -> None:
    captured, launched, train, rows, cohort = on("cpu", blobs, steps=1)
    captured(train, rows, cohort)
    assert not replays
    a, b = captured(train, rows, cohort), launched(train, rows, cohort)
    assert replays == ["record 4", "replay 4"]
    assert all(torch.equal(a[name], b[name]) for name in b)


def test_the_newest_has_room_and_the_oldest_makes_it(
    blobs: Make, replays: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    captured, launched, train, rows, cohort = on("cpu", blobs)
    learners = [replace(train, lr=lr) for lr in (0.1, 0.2, 0.3)]
    captured(learners[0], rows, cohort)
    monkeypatch.setattr(module, "COPIES", graphs_of(captured)[0].bytes)
    for learner in (*learners, learners[0]):
        a, b = captured(learner, rows, cohort), launched(learner, rows, cohort)
        assert all(torch.equal(a[name], b[name]) for name in b)
    assert [key[0] for key in captured.scan.graphs] == [learners[2], learners[0]]  # type: ignore[attr-defined]


def test_more_clients_take_more_places_and_fewer_take_the_first(blobs: Make, replays: list[str]) -> None:
    captured, launched, train, rows, cohort = on("cpu", blobs)
    for some in ([1, 2], [0, 1, 2, 3], [3, 0], [0, 1, 2, 3]):
        mine, few = {name: row[some] for name, row in rows.items()}, cohort[torch.tensor(some)]
        a, b = captured(train, mine, few), launched(train, mine, few)
        assert all(torch.equal(a[name], b[name]) for name in b)
    (graphs,) = graphs_of(captured)
    assert graphs.room == len(SIZES)


def test_clients_of_many_sizes_need_few_graphs(blobs: Make, replays: list[str]) -> None:
    federation = blobs(range(1, 30), dtype=torch.float32)
    task = Task.of(federation, lambda shape, n: mlp(shape, n, (5,)))
    n = federation.n_clients
    rows = {name: row.repeat(n, 1) for name, row in task.start().items()}
    cohort = Cohort(torch.arange(n), federation.train.sizes, torch.ones(n).double(), n, seed=0, round=0)
    captured, launched = (Stacked(task, federation.train, scan, few=0) for scan in (Captured(), launch))
    train = Train(lr=0.05, batch=1, epochs=2)
    for _ in range(6):
        a = captured(train, rows, cohort)
    torch.testing.assert_close(a, launched(train, rows, cohort))
    (graphs,) = graphs_of(captured)
    widths = {min(bucket_size(active), n) for active in range(1, n + 1)}
    assert set(graphs.replays) == widths and len(widths) == 10


def test_a_bucket_is_not_much_too_large() -> None:
    for n in range(1, 1000):
        assert n <= bucket_size(n) <= 1.5 * n and bucket_size(bucket_size(n)) == bucket_size(n) <= bucket_size(n + 1)


def test_nobody_takes_a_step(blobs: Make, replays: list[str]) -> None:
    captured, _, train, rows, cohort = on("cpu", blobs)
    still = replace(train, steps=1)
    plan = Plan(torch.zeros(len(SIZES), dtype=torch.int64), 4)
    with mock.patch.object(Train, "plan", lambda *_: plan):
        out = captured(still, rows, cohort)
    assert torch.equal(out["model"], rows["model"]) and not replays


def test_who_takes_no_step_is_not_moved(blobs: Make, replays: list[str]) -> None:
    captured, launched, train, rows, cohort = on("cpu", blobs)
    plan = Plan(torch.tensor([9, 0, 3, 0]), 4)
    with mock.patch.object(Train, "plan", lambda *_: plan):
        a, b = captured(train, rows, cohort), launched(train, rows, cohort)
    assert torch.equal(a["model"], b["model"]) and torch.equal(a["model"][[1, 3]], rows["model"][[1, 3]])
    assert not torch.equal(a["model"], rows["model"])


def plain(step: Callable[[Stacks, Stacks, torch.Tensor, torch.Tensor], Stacks]) -> Any:
    """Steps of a function of what is carried, what is held, and a batch's positions and weights, as they are."""
    take = lambda carry, rows, batch: step(carry, rows, *batch)  # noqa: E731
    return SimpleNamespace(in_place=False, take=take, gather=lambda index, weight: (index, weight))


@pytest.mark.parametrize("n", [1, 2, 3, 27, TOGETHER, TOGETHER + 1, 2 * TOGETHER + 5])
def test_every_batch_is_taken_once_and_in_order(n: int, replays: list[str]) -> None:
    def step(carry: Stacks, rows: Stacks, index: torch.Tensor, weight: torch.Tensor) -> Stacks:
        return {"sum": 3 * carry["sum"] + index.sum(-1) * weight.sum(-1) + rows["row"]}

    draw = torch.Generator().manual_seed(n)
    index = torch.randint(0, 5, (n, 2, 4), generator=draw)
    weight = torch.randint(0, 5, (n, 2, 4), generator=draw).double()
    rows, carry = {"row": torch.ones(2).double()}, {"sum": torch.zeros(2).double()}
    graph = Graphs(carry, rows, index[0], weight[0], None)
    expected = carry
    for i, w in zip(index, weight, strict=True):
        expected = step(expected, rows, i, w)
    found = []
    for start in (carry, {"sum": torch.ones(2)}, carry):
        graph.enter(start, rows)
        graph.take(plain(step), index, weight)
        found.append(graph.leave(0, 2)["sum"])
    one, other, two = found
    assert torch.equal(one, expected["sum"]) and torch.equal(two, expected["sum"])
    assert not torch.equal(one, other)
    assert not carry["sum"].any()


def test_what_a_step_leaves_in_the_place_of_another_is_not_overwritten_before_it_is_read(replays: list[str]) -> None:
    def swap(carry: Stacks, rows: Stacks, index: torch.Tensor, weight: torch.Tensor) -> Stacks:
        return {"a": carry["b"], "b": carry["a"]}

    carry, none = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0])}, torch.zeros(5, 2, 1)
    graph = Graphs(carry, {}, none[0].long(), none[0], None)
    graph.take(plain(swap), none.long(), none)  # an odd number of times
    assert graph.leave(0, 2)["a"].tolist() == [3, 4] and graph.leave(0, 2)["b"].tolist() == [1, 2]


def test_on_a_gpu_captured_is_launched(blobs: Make) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    captured, launched, train, rows, cohort = on("cuda", blobs, momentum=0.9, terms=(Prox(0.5),))
    expected, first = launched(train, rows, cohort), captured(train, rows, cohort)  # the first steps are launched
    for _ in range(3):
        found = captured(train, rows, cohort)
        assert all(torch.equal(found[name], first[name]) for name in first)
    torch.testing.assert_close(found, expected)
    (graphs,) = graphs_of(captured)
    assert {bucket for bucket, replay in graphs.replays.items() if replay is not None} == {4, 3, 1}
