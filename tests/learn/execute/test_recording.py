"""Operators as they reach the processor: how much they compute."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from polycentric.learn.execute.recording import operations


@pytest.mark.parametrize(
    ("model", "x", "by_hand"),
    [
        (nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)), torch.ones(4, 8), 2 * 4 * (8 * 5 + 5 * 3)),
        (nn.Conv2d(2, 3, 5, padding=2), torch.ones(1, 2, 8, 8), 2 * 64 * 3 * 2 * 25),
        (nn.Bilinear(2, 3, 4), None, None),
    ],
    ids=["dense", "convolution", "several in one"],
)
def test_operations_are_those_that_torch_counts(model: nn.Module, x: Tensor | None, by_hand: int | None) -> None:
    given = (torch.ones(6, 2), torch.ones(6, 3)) if x is None else (x,)
    counted = operations(lambda: model(*given))
    with torch.no_grad(), FlopCounterMode(display=False) as theirs:
        model(*given)
    assert counted == theirs.get_total_flops() == (by_hand if by_hand is not None else counted)


def test_counting_draws_nothing_that_is_missed() -> None:
    before = torch.get_rng_state()
    operations(lambda: torch.nn.functional.dropout(torch.ones(9), 0.5))
    assert torch.equal(torch.get_rng_state(), before)
