"""Learning to be adapted: Reptile, MAML, FOMAML, and FedAvg as meta-learning in phases.

The names J1, J2, ... are those of the specifications of the methods. A center that takes SGD(1) steps moves by the
meta-gradient itself, so that every gradient here is read off one round: g = theta - theta'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polycentric import (
    SGD,
    Adam,
    Average,
    Federation,
    Method,
    Momentum,
    State,
    Train,
    Uniform,
    UsageError,
    fedavg,
    feddist,
    fedsgd,
    fomaml,
    maml,
    meta,
    reptile,
    run,
    run_round,
)
from polycentric.learn import BatchSchedule, Maml
from polycentric.runs.evaluate import evaluate
from polycentric.runs.loop import Run
from polycentric.runs.start import prepare
from polycentric.tasks.task import Batch
from support import Make, assert_same, differ, every_executor, linear

Meta = Callable[..., Method]

TRAINING: dict[str, Any] = {"lr": 0.05, "batch": 5, "momentum": 0.5, "decay": 0.9}


def small(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(*shape, 4), nn.Tanh(), nn.Linear(4, n_outputs))  # smooth, with a Hessian


def ready(method: Method, federation: Federation, **how: Any) -> Run:
    return prepare(method, federation, **{"model": small, "dtype": "float64", **how})


def after(method: Method, federation: Federation, rounds: int = 3, **how: Any) -> State:
    prepared = ready(method, federation, **how)
    state = prepared.state
    for _ in range(rounds):
        state, _ = run_round(method, state, prepared.clients)
    return state


def model(method: Method, federation: Federation, rounds: int = 3, **how: Any) -> Tensor:
    return after(method, federation, rounds, **how).centers["model"][0]


def moved(method: Method, federation: Federation, **how: Any) -> Tensor:
    """theta - theta' over one round."""
    return model(method, federation, 0, **how) - model(method, federation, 1, **how)


def gradient(method: Meta, federation: Federation, beta: float, steps: int, how: dict[str, Any], **kw: Any) -> Tensor:
    """The meta-gradient of maml or fomaml."""
    return moved(method(lr=beta, steps=steps, center=SGD(1.0), **kw), federation, **how)


def plain_gradient(federation: Federation, how: dict[str, Any]) -> Tensor:
    """The mean over clients of their full gradients: FedSGD with equal weights."""
    return moved(fedavg(equal=True, lr=1.0, steps=1, batch=None), federation, **how)


# -- Reptile -------------------------------------------------------------------------------------------------


@every_executor
@pytest.mark.parametrize("steps", [1, 4])
def test_J1_reptile_is_fedavg_with_so_many_steps(executor: Any, steps: int, blobs: Make) -> None:
    alike, ragged = blobs((12, 12, 12)), blobs()
    for federation, equal in ((alike, False), (alike, True), (ragged, True)):
        plain = model(fedavg(equal=equal, steps=steps, **TRAINING), federation, executor=executor)
        assert_same(model(reptile(steps=steps, **TRAINING), federation, executor=executor), plain)
    weighted = model(fedavg(steps=steps, **TRAINING), ragged, executor=executor)
    assert differ(model(reptile(steps=steps, **TRAINING), ragged, executor=executor), weighted)


@pytest.mark.parametrize("eps", [0.3, 1.5])
def test_J1_reptile_with_a_center_that_takes_sgd_steps_is_feddist(eps: float, blobs: Make) -> None:
    assert_same(
        model(reptile(steps=4, center=SGD(eps), **TRAINING), blobs()),
        model(feddist(eps=eps, steps=4, **TRAINING), blobs()),
    )


@every_executor
@pytest.mark.parametrize("beta", [0.01, 0.3])
def test_J2_with_one_step_the_gradient_of_fedavg_is_that_of_fedsgd(executor: Any, beta: float, blobs: Make) -> None:
    how = {"executor": executor}
    one = moved(fedavg(lr=beta, steps=1, batch=None), blobs(), **how) / beta
    assert_same(one, moved(fedsgd(lr=1.0), blobs(), **how))
    one = moved(reptile(lr=beta, steps=1, batch=None), blobs(), **how) / beta
    assert_same(one, plain_gradient(blobs(), how))


@pytest.mark.parametrize("center", [Momentum(1.0, 0.0), SGD(1.0), Average()])
def test_J6_without_momentum_and_with_a_rate_of_one_it_is_fedavg(center: Any, blobs: Make) -> None:
    plain = model(fedavg(epochs=2, **TRAINING), blobs())
    assert_same(model(fedavg(epochs=2, center=center, **TRAINING), blobs()), plain)
    assert_same(model(meta(rounds=3, epochs=2, first=center, **TRAINING), blobs()), plain)
    equal = model(fedavg(equal=True, steps=3, **TRAINING), blobs())
    assert_same(model(reptile(steps=3, center=center, **TRAINING), blobs()), equal)


# -- MAML and FOMAML -----------------------------------------------------------------------------------------


@every_executor
@pytest.mark.parametrize("steps", [1, 3])
def test_J3_without_inner_steps_all_gradients_are_that_of_fedsgd(executor: Any, steps: int, blobs: Make) -> None:
    how, tiny = {"executor": executor}, 1e-7
    plain = plain_gradient(blobs(), how)
    for method in (maml, fomaml):
        assert_same(gradient(method, blobs(), 0.0, steps, how), plain)
        assert differ(gradient(method, blobs(), 0.3, steps, how), plain)
    along = moved(reptile(lr=tiny, steps=steps, batch=None), blobs(), **how) / tiny  # K times, as beta tends to 0
    torch.testing.assert_close(along, steps * plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 4])
def test_J4_where_losses_are_linear_maml_is_fomaml(steps: int, quadratics: Make) -> None:
    def tilted(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.squeeze(-1) * targets

    for executor in ("looped", "stacked"):
        how = {"executor": executor, "model": linear, "loss": tilted}
        a, b = (gradient(method, quadratics(), 0.3, steps, how) for method in (maml, fomaml))
        assert_same(a, b)
        assert a.norm() > 1e-2
        how = {"executor": executor, "model": linear}
        assert differ(*(gradient(method, quadratics(), 0.3, steps, how) for method in (maml, fomaml)))


@every_executor
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_J5_the_gradients_on_quadratics(executor: Any, steps: int, quadratics: Make) -> None:
    federation, beta = quadratics(), 0.2
    how = {"executor": executor, "model": linear}
    theta = model(maml(), federation, 0, **how)
    first, second = [], []
    for k in range(federation.n_clients):
        x, y = federation.train.of(k).x, federation.train.of(k).y
        H = x.T @ x / len(y)
        c = torch.linalg.solve(H, x.T @ y / len(y))
        A = torch.linalg.matrix_power(torch.eye(4, dtype=torch.float64) - beta * H, steps)
        first.append(H @ A @ (theta - c))
        second.append(A @ H @ A @ (theta - c))
    assert_same(gradient(fomaml, federation, beta, steps, how), torch.stack(first).mean(0))
    assert_same(gradient(maml, federation, beta, steps, how), torch.stack(second).mean(0))


@every_executor
@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_maml_is_autodiff_through_the_unrolled_steps(executor: Any, held_out: bool, steps: int, blobs: Make) -> None:
    federation, beta, how = blobs((24, 8, 13, 2)), 0.4, {"executor": executor}
    task = ready(maml(), federation).clients.task
    theta = model(maml(), federation, 0, **how)

    def loss(at: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(task.outputs({"model": at}, x), y)

    everyone = ready(maml(), federation).clients.everyone(0)
    order = BatchSchedule(federation.train, everyone, Maml(held_out=held_out).plan(everyone)).index[0]
    whole, blunt = [], []
    for k in range(4):
        mine = order[k, : federation.train.sizes[k]]
        x, y = federation.train.x[mine], federation.train.y[mine]
        half = (len(y) + 1) // 2
        inner, outer = ((x[:half], y[:half]), (x[half:], y[half:])) if held_out else ((x, y), (x, y))
        w = start = theta.clone().requires_grad_()
        for _ in range(steps):
            (g,) = torch.autograd.grad(loss(w, *inner), w, create_graph=True)
            w = w - beta * g
        whole += torch.autograd.grad(loss(w, *outer), start, retain_graph=True)
        blunt += torch.autograd.grad(loss(w, *outer), w)
    assert_same(gradient(maml, federation, beta, steps, how, held_out=held_out), torch.stack(whole).mean(0))
    assert_same(gradient(fomaml, federation, beta, steps, how, held_out=held_out), torch.stack(blunt).mean(0))


@every_executor
def test_J8_the_gradient_of_fedavg_is_that_of_fedsgd_and_of_fomaml_term_by_term(executor: Any, blobs: Make) -> None:
    how, beta = {"executor": executor}, 0.3
    along = [moved(reptile(lr=beta, steps=K, batch=None), blobs(), **how) / beta for K in range(1, 6)]
    terms = [plain_gradient(blobs(), how)] + [gradient(fomaml, blobs(), beta, j, how) for j in range(1, 5)]
    assert_same(along[0], terms[0])
    for K in range(1, 5):
        assert_same(along[K] - along[K - 1], terms[K])
        assert_same(along[K], sum(terms[: K + 1]))
    same = moved(fedavg(equal=True, lr=beta, epochs=5, batch=None), blobs(), **how) / beta
    assert_same(same, sum(terms))


@every_executor
@pytest.mark.parametrize("method", [maml, fomaml])
def test_the_center_steps_along_the_mean_gradient_of_the_cohort(
    executor: Any, method: Meta, blobs: Make, made: Make
) -> None:
    federation = blobs()
    chosen = method(lr=0.3, steps=2, center=SGD(0.5), select=Uniform(n=2))
    prepared = ready(chosen, federation, executor=executor)
    start = prepared.state.centers["model"][0]
    state, (trip,) = run_round(chosen, prepared.state, prepared.clients)
    alone = []
    for k in trip.cohort.index.tolist():
        part = federation.train.of(k)
        alone.append(gradient(method, made([(part.x, part.y)], classes=3), 0.3, 2, {"executor": executor}))
    assert_same(start - state.centers["model"][0], 0.5 * torch.stack(alone).mean(0))


# -- batches of MAML -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(1, 12))
@pytest.mark.parametrize("padding", [0, 3])
def test_halves_are_a_partition_of_the_batch(n: int, padding: int) -> None:
    weight = torch.zeros(n + padding, dtype=torch.float64)
    weight[:n] = 1 / n
    batch = Batch(torch.arange(n + padding)[:, None], torch.arange(n + padding), weight)
    first, second = Maml.halves(batch)
    for half in (first, second):
        assert float(half.weight.sum()) == pytest.approx(1)
        assert torch.equal(half.weight[half.weight > 0], half.weight.max().expand(int((half.weight > 0).sum())))
        assert half.x is batch.x and half.y is batch.y
        assert not half.weight[n:].any()
    a, b = (set((half.weight > 0).nonzero()[:, 0].tolist()) for half in (first, second))
    assert a | b == set(range(n))
    if n == 1:
        assert a == b  # one example can only count in both
    else:
        assert not a & b, f"{sorted(a & b)} of {n} examples are adapted on and held out"
        assert 0 <= len(a) - len(b) <= 1


@pytest.mark.parametrize("method", [maml, fomaml])
def test_with_one_example_held_out_is_no_different(method: Meta, blobs: Make) -> None:
    ones = blobs((1, 1, 1))
    assert_same(*(model(method(lr=0.3, steps=2, held_out=held_out), ones) for held_out in (False, True)))
    assert differ(*(model(method(lr=0.3, steps=2, held_out=h, center=SGD(1.0)), blobs()) for h in (False, True)))


def test_a_batch_of_all_examples_is_no_batch(blobs: Make) -> None:
    federation = blobs((4, 7, 3))
    whole = model(maml(lr=0.3, steps=2), federation)
    assert_same(model(maml(lr=0.3, steps=2, batch=7), federation), whole)
    assert differ(model(maml(lr=0.3, steps=2, batch=2, center=SGD(1.0)), federation), whole)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: maml(lr=-1), "lr must be >= 0, got -1"),
        (lambda: fomaml(steps=0), "steps must be at least 1, got 0"),
        (lambda: maml(held_out=True, batch=1), "batch must be at least 2 or None, got 1"),
        (lambda: maml(batch=0), "batch must be at least 1 or None, got 0"),
        (lambda: reptile(steps=0), "steps must be at least 1, got 0"),
        (lambda: meta(rounds=0), "rounds of the first phase must be at least 1, got 0"),
    ],
)
def test_a_mistake_is_named(build: Callable[[], Method], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        build()


# -- phases --------------------------------------------------------------------------------------------------


@every_executor
def test_phases_switch_at_their_round_and_moments_begin_there(executor: Any, blobs: Make) -> None:
    federation, rounds, how = blobs(), 2, {"executor": executor}
    first, second = Momentum(0.8, 0.9), Adam(lr=0.01, eps=1e-5)
    both = meta(rounds=rounds, epochs=2, steps=3, first=first, second=second, **TRAINING)
    phase1 = fedavg(epochs=2, center=first, **TRAINING)
    phase2 = reptile(steps=3, center=second, **TRAINING)

    states = [after(both, federation, r, **how) for r in range(5)]
    for r in range(rounds + 1):  # phase one: FedAvg with momentum at the center, and nothing else
        alone = after(phase1, federation, r, **how)
        assert states[r].centers.keys() == alone.centers.keys()
        assert all(torch.equal(states[r].centers[name], alone.centers[name]) for name in alone.centers)

    prepared = ready(phase2, federation, **how)  # phase two: Reptile from that model, with fresh moments
    fresh = replace(prepared.state, centers={"model": states[rounds].centers["model"]}, round=rounds)
    for r in range(rounds + 1, 5):
        fresh, _ = run_round(phase2, fresh, prepared.clients)
        for name in ("model", "first", "second", "count"):
            assert torch.equal(states[r].centers[name], fresh.centers[name])
        assert float(states[r].centers["count"]) == r - rounds
    assert differ(after(phase1, federation, 4, **how).centers["model"], states[4].centers["model"])


def test_the_exchanges_of_every_round(blobs: Make) -> None:
    both = meta(rounds=3, epochs=2, steps=4)
    learned = [both.at(r)[0].learn[0] for r in range(6)]
    assert [train.steps for train in learned if isinstance(train, Train)] == [None] * 3 + [4] * 3
    assert [both.at(r)[0].topology.equal for r in range(6)] == [False] * 3 + [True] * 3  # type: ignore[attr-defined]
    assert [type(both.at(r)[0].optimizer) for r in range(6)] == [Momentum] * 3 + [Adam] * 3


# -- personalisation -----------------------------------------------------------------------------------------


@every_executor
@pytest.mark.parametrize("method", [reptile(**TRAINING), maml(), fomaml(), meta(rounds=1, **TRAINING)])
def test_J7_personalisation_without_steps_is_the_accuracy_before(executor: Any, method: Method, blobs: Make) -> None:
    federation = blobs(test=20)
    prepared = ready(method, federation, executor=executor)
    state, _ = run_round(method, prepared.state, prepared.clients)
    before = evaluate(method, state, prepared.clients, federation.test, fine_tune=None)
    for nothing in (Train(lr=0.0, epochs=3), Train(lr=0.0, steps=1, batch=None)):
        still = evaluate(method, state, prepared.clients, federation.test, fine_tune=nothing)
        np.testing.assert_array_equal(still.accuracy, before.accuracy)
        np.testing.assert_allclose(still.loss, before.loss, rtol=1e-10)
    tuned = evaluate(method, state, prepared.clients, federation.test, fine_tune=Train(lr=0.3, epochs=3))
    assert not np.allclose(tuned.loss, before.loss)


def test_without_fine_tuning_nothing_is_personalised(blobs: Make) -> None:
    done = run(reptile(**TRAINING), blobs(), model=small, rounds=2, fine_tune=0)
    assert "personalised" not in done.scores
    tuned = run(reptile(**TRAINING), blobs(), model=small, rounds=2, fine_tune=2)
    np.testing.assert_array_equal(tuned.scores["in_use"].loss, done.scores["in_use"].loss)
    assert not np.allclose(tuned.scores["personalised"].loss, tuned.scores["in_use"].loss)
