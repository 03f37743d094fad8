"""Goals: the next symbol at every place, and goals of one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import polycentric as pc
from polycentric.errors import UsageError
from polycentric.tasks.next_symbol import NextSymbol

SYMBOLS, LENGTH, N = 4, 6, 48


class Following(nn.Module):
    """What follows a symbol, whatever came before."""

    def __init__(self, shape: tuple[int, ...], n_outputs: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(SYMBOLS, 8), nn.Linear(8, n_outputs)

    def forward(self, symbols: Tensor) -> Tensor:
        return self.head(self.embedding(symbols))


def texts() -> pc.Federation:
    """Every symbol is followed by the next one; of some places nothing is asked."""
    first = torch.arange(N)[:, None] % SYMBOLS
    whole = (first + torch.arange(LENGTH + 1)) % SYMBOLS
    y = whole[:, 1:].clone()
    y[::3, -2:] = -1
    client = [k % 4 for k in range(N)]
    return pc.load(pc.from_arrays(whole[:, :-1], y, client=client, symbols=SYMBOLS, classes=list("abcd")))


def test_the_next_symbol_is_learned_at_every_place_looped_and_stacked() -> None:
    how: dict[str, Any] = {"model": Following, "rounds": 12, "dtype": "float64", "fine_tune": 0}
    runs = [pc.run(pc.fedavg(lr=1.0, epochs=3), texts(), executor=way, **how) for way in ("looped", "stacked")]
    assert runs[0].federation.kind == "symbols" and runs[0].metrics["micro_accuracy"] == 1
    torch.testing.assert_close(runs[0].state.centers["model"], runs[1].state.centers["model"], rtol=0, atol=1e-10)
    row = next(runs[0].predict(texts().test.x).rows())
    assert row["predicted"] == "bcdabc" and "probability_a" not in row


def test_only_places_where_something_is_asked_count() -> None:
    goal, r = NextSymbol(), torch.Generator().manual_seed(0)
    z, y = torch.randn(2, 3, SYMBOLS, generator=r), torch.tensor([[1, 2, -1], [-1, -1, -1]])
    expected = cross_entropy(z[0, :2], y[0, :2])
    assert goal.loss(z, y).tolist() == [pytest.approx(float(expected)), 0.0]
    z[0] = 10 * torch.nn.functional.one_hot(torch.tensor([1, 3, 0]), SYMBOLS)
    scores = goal.score(goal.noted(z).numpy(), y.numpy(), np.zeros(2), np.array([0, 1]), 2, tuple("abcd"))
    assert scores.count.tolist() == [1, 1] and scores.accuracy[0] == 0.5 and goal.merit(z, y)[0] == 0.5


def test_a_model_with_one_row_where_several_are_wanted_is_refused() -> None:
    with pytest.raises(UsageError, match=rf"must give \(2, {LENGTH}, {SYMBOLS}\)"):
        pc.run(pc.fedavg(), texts(), model="char-lstm", rounds=1)


# -- goals of one's own --------------------------------------------------------------------------------------


class Median(pc.Goal):
    """|z - y|, whose best constant is the median."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.squeeze(-1) - targets).abs()


class Mean(pc.Goal):
    """One number for all examples."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.squeeze(-1) - targets).square().mean()


class Unwritten(pc.Goal):
    """Without a loss."""


def numbers() -> pc.Federation:
    """Two thirds near 0, a third near 30."""
    x = torch.ones(60, 1)
    y = torch.cat([torch.zeros(40), torch.full((20,), 30.0)]) + torch.linspace(-0.5, 0.5, 60)
    return pc.load(pc.from_arrays(x, y, client=[k % 3 for k in range(60)], test=[k % 5 == 0 for k in range(60)]))


def test_a_goal_of_ones_own_is_what_is_minimised() -> None:
    how: dict[str, Any] = {"model": "logistic", "rounds": 60, "fine_tune": 0}
    ours, theirs = (pc.run(pc.fedavg(lr=0.1), numbers(), **how, **more) for more in ({}, {"goal": Median}))
    x = torch.ones(1, 1)
    assert abs(float(theirs.predict(x).outputs)) < 1 and abs(float(ours.predict(x).outputs) - 10) < 2
    assert "micro_rmse" not in theirs.metrics and theirs.metrics["micro_loss"] < 11
    assert "goal" in theirs.given


@pytest.mark.parametrize(
    ("goal", "why"),
    [(Mean, "one number for 2 examples"), (Unwritten, "loss"), (Median().loss, "pc.Goal"), (int, "no pc.Goal")],
)
def test_a_goal_that_cannot_be_is_refused_before_anything_runs(goal: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        pc.run(pc.fedavg(), numbers(), model="logistic", rounds=1, goal=goal)
