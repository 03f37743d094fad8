"""A step's update as one product: the same step to rounding, and not taken where it would be another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from polycentric import Federation, KeepPrivate, fedavg, fedprox
from polycentric.learn import Compiled
from polycentric.learn.execute.fuse_update import fused_updates
from polycentric.round import run_round
from polycentric.runs.start import prepare

pytestmark = pytest.mark.xdist_group("compiled")  # one worker: what it has compiled it need not compile again
Make = Callable[..., Federation]
N = 3  # clients


def both(method: Any, federation: Federation, **how: Any) -> tuple[list[Tensor], Compiled]:
    """The models after two rounds, compiled and looped; and the executor that compiled."""
    models, runs = [], []
    for executor in ("compiled", "looped"):
        prepared = prepare(method, federation, executor=executor, dtype="float64", **({"model": "mlp"} | how))
        state = prepared.state
        for _ in range(2):
            state, _ = run_round(prepared.method, state, prepared.clients)
        models.append(state.centers["model"])
        runs.append(prepared.clients.run)
    assert isinstance(runs[0], Compiled) and runs[0].programs.works
    return models, runs[0]


@pytest.mark.parametrize(
    ("method", "fuses"),
    [
        (fedavg(lr=0.1, batch=5, epochs=3, decay=0.5), True),
        (fedprox(lr=0.1, batch=5, mu=0.3), True),
        (fedavg(lr=0.1, batch=5, cut=KeepPrivate("head*")), True),
        (fedavg(lr=0.1, batch=5, momentum=0.9), False),
    ],
    ids=["several steps", "a penalty", "two names", "momentum"],
)
def test_a_step_with_its_update_left_over_is_the_step(
    method: Any, fuses: bool, blobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polycentric.learn.execute.compiled.WIDE", 0)
    models, run = both(method, blobs(sizes=(10, 10)))
    assert set(run.programs.fuses.values()) == {fuses}
    torch.testing.assert_close(*models, rtol=1e-10, atol=1e-12)


def test_narrow_rows_keep_several_steps_in_a_program(blobs: Make) -> None:
    _, run = both(fedavg(lr=0.1, batch=5), blobs(sizes=(9, 12)), model="logistic")
    assert set(run.programs.fuses.values()) == {False}


def after_step(step: Callable[..., Tensor], *others: Tensor, width: int = 12) -> tuple[Tensor, Tensor, int]:
    """A row after a step, as written and as fused; and how many updates were left over."""
    row = torch.randn(N, width, dtype=torch.float64)

    def written(row: Tensor, *others: Tensor) -> None:
        row.copy_(step(row, *others))

    traced = make_fx(written)(row.clone(), *others)
    updates = fused_updates(traced)
    traced.recompile()
    plain, mine = row.clone(), row.clone()
    written(plain, *others)
    found = traced(mine, *others)
    for update in updates:
        update([mine, *others], found)
    return plain, mine, len(updates)


LR = torch.tensor([[0.1], [0.2], [0.3]], dtype=torch.float64)


def some(*shape: int) -> Tensor:
    return torch.randn(N, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


def test_every_client_has_its_own_rate() -> None:
    def step(row: Tensor, a: Tensor, b: Tensor, rate: Tensor) -> Tensor:
        gradient = torch.cat([torch.bmm(a, b).view(N, 8), a.sum((1, 2))[:, None].expand(N, 4)], 1)
        return torch.addcmul(row, gradient, rate, value=-1)

    plain, mine, n = after_step(step, some(2, 5), some(5, 4), LR)
    assert n == 2
    torch.testing.assert_close(mine, plain, rtol=1e-13, atol=1e-13)


def test_a_product_seen_the_other_way_round_is_no_product() -> None:
    def step(row: Tensor, a: Tensor, b: Tensor, rate: Tensor) -> Tensor:
        turned = torch.bmm(a, b).transpose(1, 2).reshape(N, 12)
        return torch.addcmul(row, torch.cat([turned], 1), rate, value=-1)

    plain, mine, n = after_step(step, some(3, 5), some(5, 4), LR)
    assert n == 0 and torch.equal(mine, plain)


def test_factors_that_the_step_overwrites_are_kept_as_they_were() -> None:
    def step(row: Tensor, rate: Tensor) -> Tensor:
        a, b = row[:, :6].view(N, 3, 2), row[:, 4:12].view(N, 2, 4)  # of the row itself, and of both halves
        return torch.addcmul(row, torch.cat([torch.bmm(a, b).view(N, 12)], 1), rate, value=-1)

    plain, mine, n = after_step(step, LR)
    assert n == 1
    torch.testing.assert_close(mine, plain, rtol=1e-13, atol=1e-13)


def test_mostly_other_gradients_are_left_in_the_program() -> None:
    def step(row: Tensor, a: Tensor, b: Tensor, rate: Tensor) -> Tensor:
        gradient = torch.cat([torch.bmm(a, b).view(N, 4), row[:, 4:].sin()], 1)
        return torch.addcmul(row, gradient, rate, value=-1)

    plain, mine, n = after_step(step, some(2, 5), some(5, 2), LR)
    assert n == 0 and torch.equal(mine, plain)
