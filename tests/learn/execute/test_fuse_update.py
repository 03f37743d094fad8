"""A step replayed on its rows in place: the same step to rounding, and products only where they are the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from polycentric import Federation, KeepPrivate, fedavg, fedprox
from polycentric.learn import Traced
from polycentric.learn.execute.recording import CannotRecord
from polycentric.learn.execute.replay import Replay
from polycentric.round import run_round
from polycentric.runs.start import prepare

Make = Callable[..., Federation]
N = 3  # clients


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
def test_a_dense_layer_is_moved_by_a_product(method: Any, fuses: bool, blobs: Make) -> None:
    models = []
    for executor in ("traced", "looped"):
        made = prepare(method, blobs(sizes=(10, 10)), executor=executor, dtype="float64", model="mlp")
        state = made.state
        for _ in range(2):
            state, _ = run_round(made.method, state, made.clients)
        models.append(state.centers["model"])
        if isinstance(made.clients.run, Traced):
            assert {program.fuses for program in made.clients.run.programs.known.values()} == {fuses}
    torch.testing.assert_close(*models, rtol=1e-10, atol=1e-12)


def after_steps(step: Callable[..., Sequence[Tensor]], rows: list[Tensor], *batch: Tensor) -> bool:
    """Whether a step fuses; two of it, as written and replayed, must end with the same rows."""
    program = Replay(step, rows, [], batch)
    plain, mine = [row.clone() for row in rows], [row.clone() for row in rows]
    settled = program.settle(*mine, *program.constants)
    for _ in range(2):
        plain = [row.clone() for row in step(*plain, *batch)]
        program.take(*settled, *batch)
    torch.testing.assert_close(mine, plain, rtol=1e-12, atol=1e-12)
    return program.fuses


LR = torch.tensor([[0.1], [0.2], [0.3]], dtype=torch.float64)


def some(*shape: int) -> Tensor:
    return torch.randn(N, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


def moved(row: Tensor, parts: list[Tensor], rate: Tensor = LR) -> Tensor:
    return torch.addcmul(row, torch.cat(parts, 1), rate, value=-1)


def test_every_client_has_its_own_rate() -> None:
    def step(row: Tensor, a: Tensor, b: Tensor, rate: Tensor) -> Sequence[Tensor]:
        return [moved(row, [torch.bmm(a, b).view(N, 8), a.sum((1, 2))[:, None].expand(N, 4)], rate)]

    assert after_steps(step, [some(12)], some(2, 5), some(5, 4), LR)


def test_a_product_seen_the_other_way_round_is_no_product() -> None:
    def step(row: Tensor, a: Tensor, b: Tensor) -> Sequence[Tensor]:
        return [moved(row, [torch.bmm(a, b).transpose(1, 2).reshape(N, 12)])]

    assert not after_steps(step, [some(12)], some(3, 5), some(5, 4))


def test_factors_that_the_step_overwrites_are_kept_as_they_were() -> None:
    def step(row: Tensor) -> Sequence[Tensor]:
        a, b = row[:, :6].view(N, 3, 2), row[:, 4:12].view(N, 2, 4)  # of the row itself, and of both halves
        return [moved(row, [torch.bmm(a, b).view(N, 12)])]

    assert after_steps(step, [some(12)])


def test_rows_may_change_places() -> None:
    def step(one: Tensor, two: Tensor) -> Sequence[Tensor]:
        return [two, one]

    assert not after_steps(step, [some(4), 2 * some(4)])


def test_a_row_may_be_moved_by_another_that_moves() -> None:
    def step(row: Tensor, other: Tensor, a: Tensor) -> Sequence[Tensor]:
        return [moved(row, [torch.bmm(a, other.view(N, 3, 4)).view(N, 8)]), torch.addcmul(other, other, LR), row[:, :2]]

    rows = [some(8), some(12), some(2)]
    after_steps(lambda row, other, third, a: step(row, other, a), rows, some(2, 3))


def test_mostly_other_gradients_are_no_products() -> None:
    def step(row: Tensor, a: Tensor, b: Tensor) -> Sequence[Tensor]:
        return [moved(row, [torch.bmm(a, b).view(N, 4), row[:, 4:].sin()])]

    assert not after_steps(step, [some(12)], some(2, 5), some(5, 2))


def test_what_a_step_makes_and_overwrites_it_makes_at_every_step() -> None:
    def step(row: Tensor, x: Tensor) -> Sequence[Tensor]:
        count = torch.zeros(4, dtype=torch.float64)
        count += 1
        count[1:].mul_(x[0, 1:])
        return [row + count]

    after_steps(step, [some(4)], some(4))


def test_only_what_changes_is_computed_at_every_step() -> None:
    def step(row: Tensor, x: Tensor) -> Sequence[Tensor]:
        one = torch.ones_like(row)
        return [torch.addcmul(row, (x * one).view(N, 4).view(N, 4) + x * 1, LR.neg().neg())]

    program = Replay(step, [some(4)], [], [some(4)])
    called = [node.name for node in program.take.__self__.graph.nodes if node.op == "call_function"]  # type: ignore[attr-defined]
    assert len(called) == 2, called  # x + x, and the row in place


def test_a_step_that_looks_at_numbers_cannot_be_recorded() -> None:
    def step(row: Tensor) -> Sequence[Tensor]:
        return [row * float(row.sum())]

    with pytest.raises(CannotRecord, match="looks at the numbers"):
        Replay(step, [some(4)], [], [])


def test_memory_that_was_reached_in_secret_cannot_be_followed() -> None:
    def step(row: Tensor) -> Sequence[Tensor]:
        return [row + torch.nn.Parameter(row * 2)]  # torch makes it behind everybody's back

    with pytest.raises(CannotRecord, match="cannot be followed"):
        Replay(step, [some(4)], [], [])
