"""What law tests share: small models, a run before its first round and the states after it, equality to rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from polycentric import Federation, Method, State, Task, run_round
from polycentric.data import Split
from polycentric.learn import BatchSchedule, Plan
from polycentric.models import mlp
from polycentric.runs.folder import Folder
from polycentric.runs.loop import Run
from polycentric.runs.start import attach_folder, continued, prepare
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.stack import Stacks
from polycentric.topology.cells.coverage import Coverage

Make = Callable[..., Federation]  # the fixtures `blobs`, `quadratics` and `made`

every_executor = pytest.mark.parametrize("executor", ["looped", "stacked"])


def small(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    return mlp(shape, n_outputs, hidden=(4,))


def linear(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    return nn.Linear(*shape, n_outputs, bias=False)


def ready(method: Method, federation: Federation, **how: Any) -> Run:
    """A run before its first round, in float64."""
    return prepare(method, federation, **{"model": small, "dtype": "float64"} | how)


def recorded(run: Run, path: Path) -> Run:
    """The same run with a folder of its own."""
    return attach_folder(run, Folder.new(path))


def went_on(fresh: Run, folder: Folder | None) -> tuple[Run, list[str]]:
    """A fresh run put where a folder's left off, run to its end; and what was found damaged."""
    problems = continued(fresh, folder)
    return fresh.go(), problems


def rounds_of(method: Method, federation: Federation, rounds: int = 3, **how: Any) -> list[State]:
    """The state before the first round, and after every one."""
    prepared = ready(method, federation, **how)
    states = [prepared.state]
    for _ in range(rounds):
        states.append(run_round(prepared.method, states[-1], prepared.clients)[0])
    return states


def after(method: Method, federation: Federation, rounds: int = 3, **how: Any) -> State:
    return rounds_of(method, federation, rounds, **how)[-1]


def model(method: Method, federation: Federation, rounds: int = 3, **how: Any) -> Tensor:
    """What the centers hold after some rounds."""
    return after(method, federation, rounds, **how).centers["model"]


def everyone(n: int, round: int = 0, seed: int = 0) -> Cohort:
    """Clients of one example each."""
    ones = torch.ones(n, dtype=torch.int64)
    return Cohort(torch.arange(n), ones, ones.double(), n, seed, round)


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def differ(a: Tensor, b: Tensor) -> bool:
    return not torch.allclose(a, b, rtol=1e-4, atol=1e-4)


class Largest(TorchDispatchMode):
    """Bytes of the largest tensor that is made within it: tracemalloc does not see what torch allocates."""

    bytes = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = operation(*args, **(kwargs or {}))
        made = [one.untyped_storage().nbytes() for one in tree_leaves(out) if isinstance(one, Tensor)]
        self.bytes = max([self.bytes, *made])
        return out


def interpreted_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our kernels in Triton's interpreter, where there is Triton and no GPU."""
    pytest.importorskip("triton", reason="the kernels need Triton")
    if torch.cuda.is_available():
        pytest.skip("with a GPU the kernels themselves are tested")
    from triton.runtime import interpreter

    given = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:  # a number is an array of one there, which numpy 2.4 refuses
        given(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


def valid(cells: Coverage) -> None:
    """What holds of every coverage."""
    assert bool((cells.covers >= 1).all())
    assert int(cells.covers.sum()) == int(cells.sizes.sum()) == len(cells.edge)
    assert bool(((cells.edge >= 0) & (cells.edge < cells.n_edges)).all())
    pair = cells.client * cells.n_edges + cells.edge
    assert torch.equal(pair, torch.unique(pair))


# -- local work: a split whose examples are numbered, cohorts, rows, batches


def numbered(sizes: list[int]) -> Split:
    """A split whose examples are their own positions."""
    n = sum(sizes)
    return Split(torch.arange(n)[:, None].double(), torch.zeros(n), torch.tensor([0, *sizes]).cumsum(0))


def cohort_of(split: Split, clients: list[int] | None = None, **changes: Any) -> Cohort:
    index = torch.arange(len(split.sizes)) if clients is None else torch.tensor(clients)
    effort = torch.ones(len(index), dtype=torch.float64)
    return replace(Cohort(index, split.sizes[index], effort, len(split.sizes), seed=0, round=0), **changes)


def batches_of(split: Split, cohort: Cohort, plan: Plan) -> list[list[list[int]]]:
    """Every client's batches, as positions in its own examples."""
    schedule = BatchSchedule(split, cohort, plan)
    return [
        [
            (schedule.index[s, k, : schedule.counts[s, k]] - split.offset[client]).tolist()
            for s in range(schedule.steps[k])
        ]
        for k, client in enumerate(cohort.index.tolist())
    ]


def rows_of(task: Task, n: int) -> Stacks:
    start = {name: row.repeat(n, 1) for name, row in task.start().items()}
    return start | {"start": start["model"]}


def tiny_conv(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    """A convolution, a norm, a pool and a head."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 3, 3, padding=1),
        nn.GroupNorm(1, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3 * (shape[1] // 2) * (shape[2] // 2), n_outputs),
    )
