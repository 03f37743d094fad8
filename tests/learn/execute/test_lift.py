"""What reads a batch alone, done for several steps at once, is what each step would do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from polycentric.learn.execute import lift
from polycentric.learn.execute.replay import Replay

CLIENTS, STEPS, WIDTH = 3, 4, 3  # as many clients as columns: an axis that is taken for another makes no error

READS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {  # of (clients, width), (clients,)
    "a product": (lambda x, y: x * x, 1),
    "a product of what has fewer axes": (lambda x, y: x * y, 0),
    "a product that is seen wider first": (lambda x, y: x * y.unsqueeze(1), 2),
    "a choice": (lambda x, y: torch.where(x.ne(1.0), x, torch.scalar_tensor(0.0, dtype=x.dtype)), 2),
    "a choice by what has fewer axes": (lambda x, y: torch.where(y.ne(1.0), x, x * x), 2),
    "marks on marks": (
        lambda x, y: (
            torch.full((CLIENTS, WIDTH), 0.0)
            .scatter(1, y.ne(1.0).long().unsqueeze(1), 1.0)
            .scatter(1, y.ne(1.0).long().unsqueeze(1), 0.5)
        ),
        1,
    ),
    "marks": (lambda x, y: torch.full((CLIENTS, WIDTH), 0.0).scatter(1, y.ne(1.0).long().unsqueeze(1), -1.0), 1),
}


@pytest.mark.parametrize("name", READS)
def test_lifted_or_not_a_step_does_the_same(name: str) -> None:
    read, n = READS[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(3, (STEPS, CLIENTS, WIDTH), generator=generator).double()
    y = torch.randint(3, (STEPS, CLIENTS), generator=generator).double()
    w = torch.rand(CLIENTS, WIDTH, generator=generator).double()

    def step(w: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        return [w * 0.5 + read(x, y)]

    with torch.no_grad():
        mine = w.clone()
        replay = Replay(step, [w.clone()], [], [x[0], y[0]])
        replay.begin(mine).along([x, y])
        for s in range(STEPS):
            w = step(w, x[s], y[s])[0]
    torch.testing.assert_close(mine, w)
    batches = [node for node in replay._graph.nodes if node.op == "placeholder"][1:3]
    calls = [node for node in replay._graph.nodes if node.op == "call_function"]
    assert len(lift.liftable(calls, batches)) == n
