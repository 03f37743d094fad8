"""Training that hides every example: a plain loop's numbers under every executor, and what it promises."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polycentric import (
    Active,
    ExampleNoise,
    Exchange,
    Federation,
    KeepPrivate,
    Looped,
    Prox,
    Stacked,
    Task,
    Train,
    UsageError,
    fedavg,
)
from polycentric.learn import BatchSchedule, Gradient, Plan, Traced
from polycentric.learn.batches import appearances, plan_of
from polycentric.learn.execute import captured
from polycentric.methods import METHODS
from polycentric.parts import example_noise
from polycentric.parts.accountant import Release
from polycentric.parts.objective import Dane, Ridge
from polycentric.runs.recipes import build_method, words_of
from polycentric.runs.start import prepare
from polycentric.simulate.auto_executor import block_size
from polycentric.stacks.draw import bits, normals
from polycentric.stacks.stack import Layout
from support import Largest, Make, after, batches_of, cohort_of, numbered, ready, rows_of, small, tiny_conv

HIDE = ExampleNoise(clip=0.3, noise=0.8)
SIZES = (9, 1, 14)


def on_a_gpu(task: Task, split: Any) -> Stacked:
    return Stacked(task, split, captured.Captured(), in_place=True)


every_executor = pytest.mark.parametrize("executor", [Looped, Stacked, on_a_gpu])


@pytest.fixture(autouse=True)
def graphs_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "recorded", lambda function, pool: function)


def plain_loop(task: Task, federation: Federation, train: Train, round: int, turn: int = 0) -> list[Tensor]:
    """Every client's model by ordinary autograd, one example after another, with torch's own optimizers."""
    split, hide = federation.train, train.hide
    assert hide is not None
    cohort, models = cohort_of(split, round=round, turn=turn), []
    for k, steps in enumerate(batches_of(split, cohort, train.plan(cohort))):
        mine, net = split.of(k), task.loaded({name: row[0] for name, row in task.start().items()}).train()
        start = [p.detach().clone() for p in net.parameters()]
        kind = torch.optim.Adam if train.optimizer == "adam" else torch.optim.SGD
        how = {} if train.optimizer == "adam" else {"momentum": train.momentum}
        optimizer = kind(net.parameters(), lr=train.lr, weight_decay=train.weight_decay, **how)
        key = bits(0, round, turn, "example noise", torch.tensor(k))
        for step, index in enumerate(steps):
            total = torch.zeros(task.width, dtype=torch.float64)
            for e in index:
                net.zero_grad()
                task.loss(net(mine.x[e : e + 1]), mine.y[e : e + 1]).sum().backward()
                g = torch.cat([p.grad.flatten() for p in net.parameters()])  # type: ignore[union-attr]
                total += g * min(1.0, hide.clip * example_noise.SAFE / float(g.norm()))
            total += hide.clip * hide.noise * normals(bits(key, torch.tensor(step)), task.width)
            parts = torch.split(total / len(index), [p.numel() for p in net.parameters()])
            for p, s, g in zip(net.parameters(), start, parts, strict=True):
                p.grad = g.view_as(p) + sum(t.mu * (p.detach() - s) for t in train.terms if isinstance(t, Prox))
            optimizer.step()
        models.append(Layout.of(net).row(dict(net.named_parameters())))
    return models


@every_executor
@pytest.mark.parametrize(
    "options",
    [
        {"batch": 4, "epochs": 3},
        {"batch": None, "steps": 3, "momentum": 0.9},
        {"batch": 4, "steps": 5, "optimizer": "adam", "weight_decay": 0.1},
        {"batch": 5, "weight_decay": 0.2, "terms": (Prox(0.5), Prox(0.5, implicit=False))},
    ],
    ids=str,
)
def test_a_step_is_the_clipped_sum_and_noise_of_a_plain_loop(
    executor: Any, options: dict[str, Any], blobs: Make
) -> None:
    federation = blobs(SIZES)
    task = Task.of(federation, small, dtype=torch.float64)
    train = Train(lr=0.05, hide=HIDE, **options)
    cohort = cohort_of(federation.train, round=2, turn=1)
    learned = executor(task, federation.train)(train, rows_of(task, 3), cohort)["model"]
    expected = plain_loop(task, federation, train, round=2, turn=1)
    torch.testing.assert_close(learned, torch.stack(expected), rtol=1e-10, atol=1e-10)


@every_executor
def test_convolutions_and_examples_a_few_at_a_time_give_the_same(
    executor: Any, blobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = blobs((5, 7, 3), shape=(1, 6, 6))
    task = Task.of(federation, tiny_conv, dtype=torch.float64)
    monkeypatch.setattr(example_noise, "ROOM", 2 * task.width * 8)
    train, cohort = Train(lr=0.05, batch=5, hide=HIDE), cohort_of(federation.train)
    assert train.rows_held(task) == 2
    learned = executor(task, federation.train)(train, rows_of(task, 3), cohort)["model"]
    torch.testing.assert_close(learned, torch.stack(plain_loop(task, federation, train, 0)), rtol=1e-9, atol=1e-9)


def test_so_many_gradients_and_no_more_are_held_at_once(blobs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = blobs((40, 40))
    task = Task.of(federation, "mlp", dtype=torch.float64)
    cohort, rows = cohort_of(federation.train), rows_of(task, 2)

    def largest() -> int:
        with Largest() as seen:
            Looped(task, federation.train)(Train(batch=None, hide=HIDE), rows, cohort)
        return seen.bytes

    whole = largest()
    monkeypatch.setattr(example_noise, "ROOM", 2 * task.width * 8)
    assert largest() < whole / 10


def test_a_block_has_fewer_clients_where_steps_hold_many_rows(blobs: Make) -> None:
    def wide(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(*shape, 4000), nn.ReLU(), nn.Linear(4000, n_outputs))

    federation = blobs((30,) * 60)
    plain, hidden = (
        prepare(fedavg(batch=30, hide=hide), federation, model=wide, executor="stacked") for hide in (None, HIDE)
    )
    row, bytes_ = plain.clients.task.width * 4, plain.clients.run.block_bytes
    assert plain.clients.block is None and plain.clients.block_size == bytes_ // row
    assert hidden.clients.block_size == hidden.clients.block == 2 * bytes_ // 30 // row < plain.clients.block_size
    assert block_size(plain.clients.run, held=10**9) == 1


# -- what must not matter ------------------------------------------------------------------------------------


def test_without_clip_and_noise_it_is_plain_training_bit_for_bit(blobs: Make) -> None:
    for executor in ("looped", "stacked"):
        how = {"executor": executor, "dtype": "float32"}
        with_it = after(fedavg(lr=0.1, momentum=0.5, hide=ExampleNoise(math.inf, 0.0)), blobs(), **how)
        assert torch.equal(
            with_it.centers["model"], after(fedavg(lr=0.1, momentum=0.5), blobs(), **how).centers["model"]
        )


def test_a_clip_that_nothing_reaches_is_plain_training_to_rounding(blobs: Make) -> None:
    with_it = after(fedavg(lr=0.1, hide=ExampleNoise(1e9, 0.0)), blobs())
    torch.testing.assert_close(with_it.centers, after(fedavg(lr=0.1), blobs()).centers, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "how", [{"block": 1}, {"block": 2}, {"workers": 2, "block": 2}, {"executor": "looped"}], ids=str
)
def test_blocks_workers_and_executors_change_nothing(how: dict[str, Any], blobs: Make) -> None:
    method = fedavg(lr=0.1, epochs=2, batch=4, hide=HIDE)
    expected = after(method, blobs(), executor="stacked").centers
    torch.testing.assert_close(
        after(method, blobs(), **{"executor": "stacked"} | how).centers, expected, rtol=1e-10, atol=1e-10
    )


def test_replayed_steps_give_the_same(blobs: Make) -> None:
    federation = blobs((8, 8))
    task = Task.of(federation, small, dtype=torch.float64)
    train, cohort = Train(lr=0.05, batch=4, momentum=0.9, hide=HIDE), cohort_of(federation.train)
    found = [run(task, federation.train)(train, rows_of(task, 2), cohort)["model"] for run in (Traced, Looped)]
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


def test_noise_belongs_to_a_client_a_round_and_an_exchange(blobs: Make) -> None:
    one = blobs((6,)).train
    federation = blobs((6, 6))
    twins = replace(federation.train, x=one.x.repeat(2, 1), y=one.y.repeat(2))
    task = Task.of(federation, small, dtype=torch.float64)

    def moved(**which: int) -> Tensor:
        train = Train(lr=1.0, batch=None, hide=ExampleNoise(1e-6, 1e6))  # nothing but noise
        rows = rows_of(task, 2)
        return Stacked(task, twins)(train, rows, cohort_of(twins, **which))["model"] - rows["model"]

    found = torch.cat([moved(), moved(round=1), moved(turn=1), moved(seed=1)])
    assert float(torch.corrcoef(found).triu(1).abs().max()) < 0.5
    assert torch.equal(moved(), moved())


def test_dropout_is_drawn_for_every_example(blobs: Make) -> None:
    def dropping(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(*shape, 64), nn.Dropout(0.5), nn.Linear(64, n_outputs))

    for executor in ("looped", "stacked"):
        a, b = (after(fedavg(lr=0.1, hide=HIDE), blobs(), model=dropping, executor=executor) for _ in range(2))
        assert torch.equal(a.centers["model"], b.centers["model"]) and bool(a.centers["model"].isfinite().all())


def test_a_norm_that_mixes_examples_is_refused(blobs: Make) -> None:
    with pytest.raises(UsageError, match=r"BatchNorm1d.*GroupNorm\(groups, channels\) instead"):
        ready(
            fedavg(hide=HIDE), blobs(), model=lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        )


# -- what is promised ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "steps", "batch"), [(3, None, 4), (1, 1, 4), (1, 7, 4), (1, 5, None), (2, None, 100)]
)
def test_no_example_is_used_more_often_than_said(epochs: int, steps: int | None, batch: int | None) -> None:
    split = numbered([9, 1, 14, 4])
    cohort = cohort_of(split)
    plan = plan_of(cohort, epochs, steps, batch)
    schedule, said = BatchSchedule(split, cohort, plan), appearances(plan, cohort)
    for k in range(4):
        used = [schedule.index[s, k, : schedule.counts[s, k]] for s in range(schedule.steps[k])]
        counts = torch.cat(used).bincount()
        assert int(counts.max()) == int(said[k])
    told = Train(epochs=epochs, steps=steps, batch=batch, hide=HIDE).release(split.sizes)
    assert told == Release(0.8, times=int(said.max()))


def test_halves_and_clients_without_examples_are_counted_too() -> None:
    cohort = cohort_of(numbered([9, 3]))
    assert appearances(Plan(torch.tensor([5, 5]), 2, half=1), cohort).tolist() == [3, 5]  # of 4 and of 1 examples
    assert Train(steps=4, hide=HIDE).release(torch.tensor([0, 25])) == Release(0.8, times=2)
    assert Train(hide=HIDE).release(torch.tensor([0])) == Release(0.8, times=0)


def test_nothing_is_promised_without_noise_or_where_other_parameters_are_read() -> None:
    sizes = torch.tensor([5])
    assert Train().release(sizes) is None
    assert Train(hide=ExampleNoise(1.0, 0.0)).release(sizes) is None
    assert Train(hide=HIDE, trains=("model",)).release(sizes) is None
    assert Train(hide=HIDE, trains=("model",), part="general").release(sizes) is not None


def test_an_exchange_adds_up_what_its_training_tells() -> None:
    sizes = torch.tensor([20, 30])
    assert fedavg(hide=HIDE, epochs=3).exchanges[0].example_releases(sizes) == (Release(0.8, times=3),)
    assert fedavg().exchanges[0].example_releases(sizes) is None
    mine = Train(trains=("private",))
    assert Exchange((mine, Train(hide=HIDE, trains=("model",), part="general"))).example_releases(sizes) == (
        Release(0.8, times=1),
    )
    assert Exchange((mine, Train(hide=HIDE))).example_releases(sizes) is None  # it reads what was learned without noise


def test_one_example_moves_a_step_by_at_most_c_over_n(blobs: Make) -> None:
    """Neighbours as they are defined: an example that gives a gradient of zero."""
    federation = blobs((6,))
    task = Task.of(federation, small, dtype=torch.float64)

    def moved(weightless: int | None) -> Tensor:
        def loss(outputs: Tensor, y: Tensor) -> Tensor:  # a label of -1 has no gradient
            return nn.functional.cross_entropy(outputs, y, reduction="none", ignore_index=-1)

        y = federation.train.y.clone()
        if weightless is not None:
            y[weightless] = -1
        split = replace(federation.train, y=y)
        train = Train(lr=1.0, batch=None, hide=ExampleNoise(0.2, 3.0))
        return Looped(replace(task, loss=loss), split)(train, rows_of(task, 1), cohort_of(split))["model"]

    whole = moved(None)
    lengths = [float((whole - moved(e)).norm()) for e in range(6)]
    assert max(lengths) <= 0.2 / 6 * (1 + 1e-9) and min(lengths) > 0


# -- what would leak beside it is refused --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("feddane", {}, "Dane"),
        ("fedcurv", {}, "Curvature"),
        ("ifca", {"k": 2}, "hide hides examples in what training sends"),
        ("fedprox", {"adaptive": True}, "MeanLoss looks at them too"),
    ],
)
def test_methods_whose_clients_tell_more_than_they_train_are_refused(name: str, settings: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        METHODS[name](**settings, hide=HIDE)


def test_a_selection_that_asks_about_examples_is_refused() -> None:
    with pytest.raises(UsageError, match="Value looks at them too"):
        fedavg(hide=HIDE, select=Active(n=2))
    with pytest.raises(UsageError, match="Gradient looks at them too"):
        Exchange((Gradient(), Train(hide=HIDE)))


def test_terms_must_be_blind(blobs: Make) -> None:
    with pytest.raises(UsageError, match="Dane also reads"):
        Train(hide=HIDE, terms=(Prox(0.1), Dane()))
    assert Train(hide=HIDE, terms=(Prox(0.1), Ridge(0.1))).hides


def test_a_part_reads_only_what_is_trained(blobs: Make) -> None:
    federation = blobs()
    task = Task.of(federation, lambda: nn.Sequential(small((6,), 3)), dtype=torch.float64)
    cut = replace(task, cut=KeepPrivate("0.head*"))
    train = Train(hide=HIDE, trains=("model",), part="0")
    with pytest.raises(UsageError, match="'0' also has parameters of private"):
        Looped(cut, federation.train)(train, rows_of(cut, 5), cohort_of(federation.train))


def test_fine_tuning_at_home_hides_nothing() -> None:
    assert Train(hide=HIDE, lr=0.3).trains_like == Train(lr=0.3)
    assert Train(part="general").trains_like is None


def test_it_is_a_setting_of_every_method_that_trains() -> None:
    built = build_method("fedavg", {"hide": "dp-sgd(clip=0.3, noise=0.8)"})
    assert built == fedavg(hide=HIDE)
    assert words_of(built.recipe) == ({"hide": "dp-sgd(clip=0.3, noise=0.8)"}, [])  # type: ignore[arg-type]
    assert build_method("fesem", {"k": 2, "hide": "none"}) == METHODS["fesem"](k=2)
