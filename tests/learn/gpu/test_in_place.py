"""Steps of a stack in place: the steps along the gradient; no row is laid together, none of the caller's is touched."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from polycentric import Federation, KeepPrivate, Prox, Stacked, Task, Train
from polycentric.learn import Looped
from polycentric.learn.batches import batch_at
from polycentric.learn.execute.stacked import launch
from polycentric.learn.gpu import in_place
from polycentric.learn.gpu.in_place import Move, by_kernel, by_torch
from polycentric.learn.learner import UpdateSpec, stepped
from polycentric.models import mlp
from polycentric.parts.optimizer import SGD, Adam, Momentum, Rule
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.stack import Stacks

Make = Callable[..., Federation]
SIZES = (23, 9, 9, 2)
WAYS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.1},
    {"momentum": 0.9},
    {"momentum": 0.5, "weight_decay": 0.2},
    {"momentum": 0.9, "terms": (Prox(0.5),)},
    {"terms": (Prox(0.5, implicit=True),)},
    {"optimizer": "adam", "weight_decay": 0.1, "terms": (Prox(0.5),)},
]


def work(blobs: Make, cut: Any = None, **changes: Any) -> tuple[Task, Federation, Train, Stacks, Cohort]:
    federation = blobs(SIZES)
    more = {} if cut is None else {"cut": cut}
    task = Task.of(federation, lambda shape, n: mlp(shape, n, (5,)), dtype=torch.float64, **more)
    n = len(SIZES)
    rows = {name: row.expand(n, -1) for name, row in task.start().items()}  # one row, seen many times
    cohort = Cohort(torch.arange(n), federation.train.sizes, torch.ones(n).double(), n, seed=0, round=0)
    return (
        task,
        federation,
        Train(**{"lr": 0.05, "batch": 4, "epochs": 2} | changes),
        rows | {"start": rows["model"]},
        cohort,
    )


@pytest.mark.parametrize("cut", [None, KeepPrivate("head*")], ids=["one name", "two names"])
@pytest.mark.parametrize("changes", WAYS, ids=str)
def test_a_step_in_place_is_the_step_along_the_gradient(changes: dict[str, Any], cut: Any, blobs: Make) -> None:
    task, federation, train, rows, cohort = work(blobs, cut, **changes)
    given = {name: row.clone() for name, row in rows.items()}
    mine = Stacked(task, federation.train, in_place=True)(train, rows, cohort)
    assert all(torch.equal(rows[name], given[name]) for name in rows), "what comes in is not overwritten"
    for other in (Stacked(task, federation.train), Looped(task, federation.train)):
        theirs = other(train, rows, cohort)
        assert mine.keys() == theirs.keys()
        for name in mine:
            torch.testing.assert_close(mine[name], theirs[name], rtol=1e-11, atol=1e-12)


def test_only_what_is_trained_moves(blobs: Make) -> None:
    task, federation, train, rows, cohort = work(blobs, KeepPrivate("head*"), trains=("private",), momentum=0.9)
    mine = Stacked(task, federation.train, in_place=True)(train, rows, cohort)
    theirs = Looped(task, federation.train)(train, rows, cohort)
    assert mine.keys() == {"private"}
    torch.testing.assert_close(mine["private"], theirs["private"], rtol=1e-11, atol=1e-12)


class Seen(TorchDispatchMode):
    """Writes down what is called, and the largest thing that it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.calls.append((str(func), 0 if func.is_view else out.numel()))
        return out


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_no_row_is_laid_together_or_written_anew(momentum: float, blobs: Make) -> None:
    task, federation, train, rows, cohort = work(blobs, momentum=momentum)
    whole = len(SIZES) * task.width
    for run, some in ((Stacked(task, federation.train, in_place=True), False), (Stacked(task, federation.train), True)):
        carry = {name: value.clone() for name, value in train.begin(rows, cohort, task).items()}
        index, weight = torch.zeros(len(SIZES), 4, dtype=torch.long), torch.full((len(SIZES), 4), 0.25)
        batch = batch_at(task, federation.train, None, index, weight)
        with Seen() as seen:
            step = partial(train.step, client=run.client)
            new = vmap(step, (0, 0, batch.axes))(carry, rows, batch)
        assert any(size >= whole for _, size in seen.calls) is some
        assert any("aten.cat" in name for name, _ in seen.calls) is some
        assert all((new[name].data_ptr() == carry[name].data_ptr()) is not some for name in new if name != "lr")


RULES = [(SGD(1), 0.0), (SGD(1), 0.3), (Momentum(1, 0.9), 0.0), (Momentum(1, 0.8), 0.3), (Adam(1), 0.2)]


def moved(rule: Rule, decay: float, move: Any, device: str = "cpu", sizes: tuple[int, ...] = (33, 1, 7, 70)) -> Any:
    """Rows and moments after three moves in parts, and after three steps with the parts laid together."""
    draw = torch.Generator().manual_seed(0)

    def some(*size: int) -> Tensor:
        return torch.randn(size, generator=draw).to(device)

    n, width, spec = 3, sum(sizes), UpdateSpec(rule, decay)
    lr = torch.tensor([0.1, 0.0, 0.3], device=device)
    apart = some(n, width + 5)[:, 2 : width + 2]  # rows that do not touch
    mine, theirs = {"": apart}, {"": apart.clone()}
    mine |= {name: value.clone() for name, value in rule.moments(apart).items()}
    theirs |= {name: value.clone() for name, value in rule.moments(apart).items()}
    for k in range(3):
        parts = tuple(some(n, size) for size in sizes)
        parts = (parts[0][:1].expand(n, -1) if k == 1 else parts[0], *parts[1:])  # one that all share
        moments = {name: value for name, value in mine.items() if name}
        move(Move(spec, tuple(moments)), mine[""], lr, moments, parts)
        flat = {"": torch.cat(parts, -1)}
        before = {f".{name}": value for name, value in theirs.items() if name}
        after = stepped(flat, {"": theirs[""]}, before, lr[:, None], spec)
        theirs = {name.removeprefix("."): value for name, value in after.items()}
    return mine, theirs


def close(mine: Stacks, theirs: Stacks) -> None:
    assert mine.keys() == theirs.keys()
    for name in mine:
        torch.testing.assert_close(mine[name], theirs[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("rule", "decay"), RULES, ids=str)
def test_parts_move_as_rows_do(rule: Rule, decay: float) -> None:
    close(*moved(rule, decay, by_torch))


@pytest.mark.parametrize(("rule", "decay"), RULES[:-1], ids=str)
def test_the_kernel_moves_parts(rule: Rule, decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="the kernels need Triton")
    if torch.cuda.is_available():
        pytest.skip("with a GPU the kernel itself is tested")
    monkeypatch.setattr(in_place, "BLOCK", 64)  # several programs for one part
    close(*moved(rule, decay, by_kernel))


def test_the_kernel_is_for_what_it_knows() -> None:
    w = torch.zeros(2, 3)
    assert not in_place._by_kernel(Move(UpdateSpec(SGD(1)), ()), w, w)  # not on a GPU


# -- on a GPU -------------------------------------------------------------------------------------------------


def gpu() -> str:
    if not torch.cuda.is_available() or not in_place.has_triton():
        pytest.skip("needs a GPU and Triton")
    return "cuda"


@pytest.mark.parametrize(("rule", "decay"), RULES[:-1], ids=str)
@pytest.mark.parametrize("sizes", [(33, 1, 7, 70), (832, 4096, 16), (5000, 3)], ids=str)
def test_on_a_gpu_the_kernel_moves_parts(rule: Rule, decay: float, sizes: tuple[int, ...]) -> None:
    mine, theirs = moved(rule, decay, by_kernel, gpu(), sizes)
    close(mine, theirs)
    again, _ = moved(rule, decay, by_kernel, gpu(), sizes)
    assert all(torch.equal(mine[name], again[name]) for name in mine)


@pytest.mark.parametrize("changes", WAYS, ids=str)
def test_on_a_gpu_steps_are_in_place_and_the_steps_along_the_gradient(changes: dict[str, Any], blobs: Make) -> None:
    device = gpu()
    federation = blobs(SIZES, dtype=torch.float32).to(device)
    task = Task.of(federation, lambda shape, n: mlp(shape, n, (5,)), device=device)
    n = len(SIZES)
    rows = {name: row.expand(n, -1) for name, row in task.start().items()}
    rows["start"] = rows["model"]
    cohort = Cohort(torch.arange(n), federation.train.sizes, torch.ones(n).double(), n, seed=0, round=0)
    train = Train(**{"lr": 0.05, "batch": 4, "epochs": 2} | changes)
    given = {name: row.clone() for name, row in rows.items()}
    run = Stacked(task, federation.train)
    plain, launched = Stacked(task, federation.train, in_place=False), Stacked(task, federation.train, launch)
    assert run.client.descent is not None
    mine, again, theirs, one = (way(train, rows, cohort)["model"] for way in (run, run, plain, launched))
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert torch.equal(mine, again) and torch.equal(mine, one)
    assert all(torch.equal(rows[name], given[name]) for name in rows)
