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
    taking = program.begin(*mine)
    for _ in range(2):
        plain = [row.clone() for row in step(*plain, *batch)]
    if batch:
        taking.along([torch.stack([b, b]) for b in batch])
    else:
        taking.take(), taking.take()
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


def biased(row: Tensor, a: Tensor, b: Tensor, rate: Tensor) -> Sequence[Tensor]:
    """A weight's gradient a b, and a bias's, the sum of b over examples."""
    return [moved(row, [torch.bmm(a, b).view(N, 8), b.sum([1], True).view(N, 4)], rate)]


def called(program: Replay, *known: Tensor) -> list[str]:
    """What a step of some clients calls."""
    graph = program.begin(*known).take.func.__self__.graph  # type: ignore[attr-defined]
    return [getattr(node.target, "__name__", "") for node in graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("rate", [LR, torch.full_like(LR, 0.2), torch.zeros_like(LR)], ids=["own", "one", "none"])
def test_a_bias_is_moved_by_a_product_with_ones_where_all_have_one_rate(rate: Tensor) -> None:
    row, a, b = some(12), some(2, 5), some(5, 4)
    wanted = biased(row, a, b, rate)[0]
    mine, held = row.clone(), rate.clone()
    program = Replay(lambda row, rate, a, b: biased(row, a, b, rate), [mine], [held], [a, b])
    program.begin(mine, held).along([a[None], b[None]])
    torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-12)
    alike, names = bool((rate == rate[0]).all()), called(program, mine, held)
    assert (names == ["baddbmm_", "baddbmm_"]) == alike and ("addcmul_" in names) != alike


def test_one_program_serves_clients_of_one_rate_and_of_several() -> None:
    program = Replay(lambda row, rate, a, b: biased(row, a, b, rate), [some(12)], [LR], [some(2, 5), some(5, 4)])
    a, b = some(2, 5), some(5, 4)
    for rate in (LR, torch.full_like(LR, 0.3), 2 * LR, torch.full_like(LR, 0.1)):
        mine = some(12)
        program.begin(mine, rate).along([a[None], b[None]])
        torch.testing.assert_close(mine, biased(some(12), a, b, rate)[0], rtol=1e-12, atol=1e-12)


def test_a_rate_that_comes_with_the_batch_or_moves_is_each_clients_own() -> None:
    def decaying(row: Tensor, rate: Tensor, a: Tensor, b: Tensor) -> Sequence[Tensor]:
        return [*biased(row, a, b, rate), rate * 0.5]

    assert after_steps(biased, [some(12)], some(2, 5), some(5, 4), torch.full_like(LR, 0.2))
    assert after_steps(decaying, [some(12), torch.full_like(LR, 0.2)], some(2, 5), some(5, 4))


def test_a_step_that_reads_no_batch_is_taken_for_every_batch_all_the_same() -> None:
    mine = some(4)
    program = Replay(lambda row, x: [row + 1], [mine], [], [some(4)])
    program.begin(mine).along([torch.zeros(7, N, 4)])
    torch.testing.assert_close(mine, some(4) + 7)


def test_what_reads_the_batch_alone_is_done_for_several_steps_at_once() -> None:
    def step(row: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Sequence[Tensor]:
        zeros = torch.zeros(N, 4, 3, dtype=torch.float64)
        mask = zeros.scatter_add(2, y.unsqueeze(-1), weight.neg().unsqueeze(2))
        return [row + x.view(N, 4, 2).view(N, 8)[:, :4] + mask.view(N, 12)[:, :4] + row.view(N, 2, 2).view(N, 4)]

    x, weight = some(2, 2, 2), some(4)
    y = torch.tensor([[0, 2, 1, 1], [2, 2, 2, 0], [1, 0, 0, 2]])
    program = Replay(step, [some(4)], [], [x, y, weight])
    assert {"scatter_add", "neg", "unsqueeze", "unsqueeze.default"}.isdisjoint(called(program, some(4)))
    plain, mine, scale = some(4), some(4), (1.0, 0.5, -2.0)
    for factor in scale:
        plain = step(plain, factor * x, y, factor * weight)[0]
    stacked = [torch.stack([factor * part for factor in scale]) for part in (x, weight)]
    program.begin(mine).along([stacked[0], y.expand(3, N, 4), stacked[1]])
    torch.testing.assert_close(mine, plain, rtol=1e-12, atol=1e-12)


def test_what_a_step_overwrites_of_its_batch_it_reads_when_it_does() -> None:
    def step(row: Tensor, x: Tensor) -> Sequence[Tensor]:
        x.mul_(3)  # a module that changes what it is given
        flipped = x.neg()
        flipped.add_(1)
        return [row + flipped + x.view(N, 2, 2).view(N, 4)]

    plain, mine = some(4), some(4)
    batches = [0.5 * some(4), 2 * some(4)]
    program = Replay(step, [some(4)], [], [some(4)])
    for batch in batches:
        plain = step(plain, batch.clone())[0]
    program.begin(mine).along([torch.stack(batches)])
    torch.testing.assert_close(mine, plain, rtol=1e-12, atol=1e-12)


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
    names = called(program, some(4))
    assert len(names) == 2, names  # x + x, and the row in place


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
