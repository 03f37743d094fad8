"""One client after another: an error says where it happened, and a step in place is the step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polycentric import Looped, Prox, Simulation, Task, Train
from polycentric.learn.batches import plan_of
from support import Make, batches_of, cohort_of, numbered, rows_of


class Choosy(nn.Module):
    """Breaks on one example."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x == 20).any()):
            raise ValueError("I do not like 20")
        return self.head(x)


def test_an_error_at_a_client_says_where_it_happened() -> None:
    split = numbered([9, 6, 11, 4])  # example 20 is the sixth of client 2
    cohort = cohort_of(split, round=3)
    step = next(s for s, b in enumerate(batches_of(split, cohort, plan_of(cohort, 1, None, 2))[2]) if 5 in b)
    task = Task(Choosy().double(), lambda out, y: (out.squeeze(-1) - y).square(), dtype=torch.float64)
    with pytest.raises(ValueError, match="I do not like 20") as caught:
        Looped(task, split)(Train(lr=0.0, batch=2), rows_of(task, 4), cohort)
    assert caught.value.__notes__ == [f"at client 2, step {step} of round 3"]


@pytest.mark.parametrize("terms", [(), (Prox(0.3),)], ids=["loss", "penalty"])
@pytest.mark.parametrize("model", ["mlp", "logistic"])
def test_a_step_in_place_is_the_step_along_the_gradient(model: str, terms: tuple[Any, ...], blobs: Make) -> None:
    federation = blobs(sizes=(9, 9))
    task = Task.of(federation, model, dtype=torch.float64)
    clients = Simulation(federation, task, executor="looped")
    rows = {name: row + torch.tensor([[0.0], [0.1]]) for name, row in task.start().items()}
    rows["start"] = task.start()["model"].repeat(2, 1)
    before = {name: value.clone() for name, value in rows.items()}
    learner = Train(lr=0.2, batch=4, terms=terms)
    mine = clients.run(learner, rows, clients.everyone(0))["model"]
    assert all(torch.equal(rows[name], before[name]) for name in rows), "what comes in is not overwritten"
    clients.run.client = replace(clients.run.client, descent=None)  # type: ignore[attr-defined]
    torch.testing.assert_close(mine, clients.run(learner, rows, clients.everyone(0))["model"], rtol=1e-12, atol=1e-13)
