"""FedDANE: the gradient of every client is corrected to the mean gradient, which a first exchange brings together.

The names D1, D2, ... are those of the specifications of the methods. On quadratics the corrected gradient at x is
g + (H_k + mu)(x - w), so q full-batch steps lead from w to w - (H_k + mu)^-1 (I - (I - lr (H_k + mu))^q) g.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polycentric import (
    SGD,
    Everyone,
    Exchange,
    Federation,
    Method,
    Momentum,
    Prox,
    Star,
    State,
    Train,
    Uniform,
    fedavg,
    feddane,
    fedprox,
    fedsgd,
    run_round,
)
from polycentric.learn import Gradient
from polycentric.parts.objective import Dane
from polycentric.parts.select import Select
from polycentric.runs.loop import Run
from polycentric.runs.start import prepare
from polycentric.simulate.clock import Traffic, traffic
from support import Make, assert_same, differ, every_executor, linear, small

Model = Callable[[tuple[int, ...], int], nn.Module]

# Minibatches, momentum and a decaying rate: equal methods must agree in all of it.
TRAINING: dict[str, Any] = {"lr": 0.05, "epochs": 2, "batch": 5, "momentum": 0.5, "decay": 0.9}


def ready(method: Method, federation: Federation, model: Model = small, **how: Any) -> Run:
    return prepare(method, federation, model=model, dtype="float64", **how)


def after(method: Method, federation: Federation, rounds: int = 3, start: Tensor | None = None, **how: Any) -> Tensor:
    """The center's model after some rounds."""
    prepared = ready(method, federation, **how)
    state = prepared.state
    if start is not None:
        state = placed(state, start)
    for _ in range(rounds):
        state, _ = run_round(method, state, prepared.clients)
    return state.centers["model"][0]


def placed(state: State, model: Tensor) -> State:
    """The state with another model at the center."""
    return replace(state, centers=state.centers | {"model": model.expand_as(state.centers["model"])})


def selecting(method: Method, ask: Select, act: Select) -> Method:
    """FedDANE with a selection of its own for each exchange."""
    first, second = method.at(0)
    return Method.of("feddane", replace(first, select=ask), replace(second, select=act))


@dataclass
class Quadratics:
    """F_k(w) = (w - c_k)^T H_k (w - c_k) / 2 + const for the linear regression of every client."""

    H: Tensor  # (clients, d, d)
    c: Tensor  # (clients, d)
    n: Tensor  # (clients,)

    @staticmethod
    def of(federation: Federation) -> Quadratics:
        parts = [federation.train.of(k) for k in range(federation.n_clients)]
        H = torch.stack([part.x.T @ part.x / len(part) for part in parts])
        b = torch.stack([part.x.T @ part.y / len(part) for part in parts])
        return Quadratics(H, torch.linalg.solve(H, b), federation.train.sizes.double())

    def share(self, who: Tensor) -> Tensor:
        return self.n[who] / self.n[who].sum()

    def gradient(self, w: Tensor, who: Tensor) -> Tensor:
        """The mean gradient of some clients at w."""
        return torch.einsum("k,kij,kj->i", self.share(who), self.H[who], w - self.c[who])

    @property
    def optimum(self) -> Tensor:
        """The minimum of the mean loss over all examples."""
        p = self.n / self.n.sum()
        mean_H = torch.einsum("k,kij->ij", p, self.H)
        return torch.linalg.solve(mean_H, torch.einsum("k,kij,kj->i", p, self.H, self.c))

    def round(self, w: Tensor, ask: Tensor, act: Tensor, lr: float, mu: float, steps: int) -> Tensor:
        """One round of FedDANE in closed form."""
        g, eye = self.gradient(w, ask), torch.eye(len(w), dtype=w.dtype)
        bend = self.H[act] + mu * eye
        way = torch.linalg.solve(bend, eye - torch.linalg.matrix_power(eye - lr * bend, steps)) @ g
        return w - self.share(act) @ way


@every_executor
@pytest.mark.parametrize("mu", [0.0, 0.3, 10.0])
def test_D1_with_everybody_there_one_full_batch_step_is_fedsgd(executor: Any, mu: float, blobs: Make) -> None:
    one = after(feddane(mu=mu, lr=0.1, steps=1, batch=None), blobs(), executor=executor)
    assert_same(one, after(fedsgd(lr=0.1), blobs(), executor=executor))
    more = after(feddane(mu=mu, lr=0.1, steps=3, batch=None), blobs(), executor=executor)
    assert differ(more, after(fedavg(lr=0.1, steps=3, batch=None), blobs(), executor=executor))


def test_D1_holds_for_every_optimizer_of_the_center(blobs: Make) -> None:
    for center in (SGD(0.5), Momentum(0.5, 0.9)):
        one = after(feddane(mu=2.0, lr=0.1, steps=1, batch=None, center=center), blobs())
        assert_same(one, after(fedsgd(lr=0.1, center=center), blobs()))


@every_executor
@pytest.mark.parametrize("steps", [1, 2, 9])
@pytest.mark.parametrize("mu", [0.0, 1.5])
def test_D2_a_stationary_point_of_the_mean_loss_is_a_fixed_point(
    executor: Any, steps: int, mu: float, quadratics: Make
) -> None:
    federation = quadratics()
    optimum = Quadratics.of(federation).optimum
    training: dict[str, Any] = {"lr": 0.2, "steps": steps, "batch": None}
    how: dict[str, Any] = {"model": linear, "start": optimum, "executor": executor}
    assert_same(after(feddane(mu=mu, **training), federation, **how), optimum)
    if steps > 1:  # the others leave it
        for other in (fedavg(**training), fedprox(mu=mu, **training)):
            assert (after(other, federation, rounds=1, **how) - optimum).norm() > 1e-3


def test_D2_it_stays_fixed_whoever_acts_and_moves_if_not_everybody_is_asked(quadratics: Make) -> None:
    federation = quadratics()
    optimum = Quadratics.of(federation).optimum
    method = feddane(mu=0.5, lr=0.2, steps=4, batch=None)
    how: dict[str, Any] = {"model": linear, "start": optimum}
    assert_same(after(selecting(method, Everyone(), Uniform(n=2)), federation, **how), optimum)
    assert (after(selecting(method, Uniform(n=2), Everyone()), federation, **how) - optimum).norm() > 1e-3


@every_executor
@pytest.mark.parametrize("steps", [1, 6])
def test_rounds_on_quadratics_are_those_of_the_closed_form(executor: Any, steps: int, quadratics: Make) -> None:
    federation = quadratics((9, 14, 20, 11, 16))
    known, lr, mu = Quadratics.of(federation), 0.1, 0.4
    method = feddane(mu=mu, lr=lr, steps=steps, batch=None, select=Uniform(n=3))
    prepared = ready(method, federation, linear, executor=executor)
    state = prepared.state
    for _ in range(3):
        w = state.centers["model"][0]
        state, (ask, act) = run_round(method, state, prepared.clients)
        assert_same(state.centers["gradient"][0], known.gradient(w, ask.cohort.index))
        assert_same(state.centers["model"][0], known.round(w, ask.cohort.index, act.cohort.index, lr, mu, steps))


def test_it_converges_to_the_optimum_where_fedavg_does_not(quadratics: Make) -> None:
    federation = quadratics((20, 30, 40), dimension=3)
    optimum = Quadratics.of(federation).optimum
    training: dict[str, Any] = {"lr": 0.2, "steps": 5, "batch": None}
    assert_same(after(feddane(mu=1.0, **training), federation, rounds=60, model=linear), optimum)
    assert (after(fedavg(**training), federation, rounds=60, model=linear) - optimum).norm() > 1e-3


@every_executor
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_D3_one_client_is_fedprox(executor: Any, mu: float, blobs: Make) -> None:
    federation = blobs((17,))
    assert_same(
        after(feddane(mu=mu, **TRAINING), federation, executor=executor),
        after(fedprox(mu=mu, **TRAINING), federation, executor=executor),
    )


@every_executor
@pytest.mark.parametrize("select", [None, Uniform(n=2)])
def test_D3_identical_clients_are_fedprox(executor: Any, select: Any, blobs: Make, made: Make) -> None:
    one = blobs((17,)).train
    twins = made([(one.x, one.y)] * 4, classes=3)
    same, other = feddane(mu=0.7, **TRAINING), fedprox(mu=0.7, **TRAINING)
    if select is not None:  # then it does not matter who is asked; who acts must be the same
        same = selecting(same, select, Everyone())
    assert_same(after(same, twins, executor=executor), after(other, twins, executor=executor))
    unlike = blobs((17, 9, 12, 30))
    assert differ(after(same, unlike, executor=executor), after(other, unlike, executor=executor))


@every_executor
def test_D4_with_its_own_gradient_in_place_of_the_mean_it_is_fedprox(executor: Any, blobs: Make) -> None:
    learn = (Gradient("gradient"), Gradient("own_gradient"), Train(terms=(Dane(), Prox(0.7)), **TRAINING))
    method = Method.of("own", Exchange(learn=learn, topology=Star(), select=Uniform(n=4)))
    federation = blobs()
    assert_same(
        after(method, federation, executor=executor),
        after(fedprox(mu=0.7, select=Uniform(n=4), **TRAINING), federation, executor=executor),
    )


@every_executor
def test_gradients_are_over_all_examples_of_a_client(executor: Any, blobs: Make) -> None:
    federation = blobs((300, 7, 513, 1))  # more than one chunk, and less
    prepared = ready(feddane(lr=0.01), federation, executor=executor)
    start = prepared.state.centers["model"]
    state, _ = run_round(prepared.method, prepared.state, prepared.clients)
    w = start[0].clone().requires_grad_()
    outputs = prepared.clients.task.outputs({"model": w}, federation.train.x)
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(outputs, federation.train.y), w)
    assert_same(state.centers["gradient"][0], gradient)


def test_the_two_cohorts_are_drawn_independently(blobs: Make) -> None:
    federation = blobs((4,) * 10)
    method = feddane(lr=0.001, select=Uniform(n=3))
    prepared, cohorts = ready(method, federation, linear), []
    for round in range(200):  # only the draws: no training
        turns = [prepared.clients.everyone(round, turn) for turn in (0, 1)]
        both = (e.select({}, everyone) for e, everyone in zip(method.at(round), turns, strict=True))
        cohorts.append([set(cohort.index.tolist()) for cohort in both])
    assert any(ask != act for ask, act in cohorts)
    common = torch.tensor([float(len(ask & act)) for ask, act in cohorts])
    # Hypergeometric: mean 0.9, variance 3 * 0.3 * 0.7 * 7/9 = 0.49.
    assert abs(float(common.mean()) - 0.9) < 5 * (0.49 / 200) ** 0.5


def test_a_round_moves_five_models_and_each_cohort_pays_for_its_own(blobs: Make) -> None:
    method = selecting(feddane(lr=0.001), Uniform(n=2), Uniform(n=4))
    prepared = ready(method, blobs((5,) * 7))
    row = prepared.state.centers["model"].shape[1] * 8
    after_ask, trips = run_round(method, prepared.state, prepared.clients)
    ask, act = trips
    assert (len(ask.cohort), len(act.cohort)) == (2, 4)
    moved = sum((traffic(trip) for trip in trips), start=Traffic())
    assert moved == Traffic(down=2 * row + 2 * 4 * row, up=2 * row + 4 * row)
    assert after_ask.centers.keys() == {"model", "gradient"}
    assert not after_ask.kept  # its own gradient is nothing a client keeps


def test_terms_and_the_center_can_be_given(blobs: Make) -> None:
    twice = after(feddane(mu=0.3, terms=(Prox(0.4),), **TRAINING), blobs())
    assert_same(twice, after(feddane(mu=0.7, **TRAINING), blobs()))
    start = after(feddane(**TRAINING), blobs(), rounds=0)
    assert torch.equal(after(feddane(center=SGD(0.0), **TRAINING), blobs()), start)
