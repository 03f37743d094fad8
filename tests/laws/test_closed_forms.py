"""Clients whose loss is a quadratic, where the answer can be written down.

    F_k(w) = |X_k w - y_k|^2 / 2n_k  =  (w - c_k)^T H_k (w - c_k) / 2 + const,     H_k = X_k^T X_k / n_k

so q full-batch steps lead from w to c_k + (I - lr H_k)^q (w - c_k).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from polycentric import Federation, Method, Momentum, fedavg, feddist, feddws, fedprox, fedsgd, load, nofed, run_round
from polycentric.runs.loop import Run
from polycentric.runs.start import prepare
from support import Make, assert_same, every_executor, linear


def ready(method: Method, federation: Federation, **how: Any) -> Run:
    return prepare(method, federation, model=linear, dtype="float64", **how)


def model(method: Method, federation: Federation, rounds: int = 1, start: Tensor | None = None, **how: Any) -> Tensor:
    """The centers after some rounds, (centers, dimension)."""
    prepared = ready(method, federation, **how)
    state = prepared.state
    if start is not None:
        state = replace(state, centers={"model": start.expand_as(state.centers["model"])})
    for _ in range(rounds):
        state, _ = run_round(method, state, prepared.clients)
    return state.centers["model"]


def begin(federation: Federation) -> Tensor:
    return ready(fedavg(), federation).state.centers["model"][0]


@dataclass
class Quadratics:
    """What is known of a federation of quadratics."""

    H: Tensor  # (clients, d, d)
    c: Tensor  # (clients, d) every client's own minimum
    p: Tensor  # (clients,) shares of the data

    @staticmethod
    def of(federation: Federation) -> Quadratics:
        parts = [federation.train.of(k) for k in range(federation.n_clients)]
        H = torch.stack([part.x.T @ part.x / len(part) for part in parts])
        b = torch.stack([part.x.T @ part.y / len(part) for part in parts])
        n = federation.train.sizes.double()
        return Quadratics(H, torch.linalg.solve(H, b), n / n.sum())

    def contraction(self, lr: float, steps: int) -> Tensor:
        """(I - lr H_k)^steps, (clients, d, d)."""
        eye = torch.eye(self.H.shape[1], dtype=torch.float64)
        return torch.linalg.matrix_power(eye - lr * self.H, steps)

    def local(self, w: Tensor, lr: float, steps: int) -> Tensor:
        """Where every client gets from w, (clients, d)."""
        return self.c + torch.einsum("kij,kj->ki", self.contraction(lr, steps), w - self.c)

    @property
    def optimum(self) -> Tensor:
        """The minimum of the mean loss."""
        mean_H = torch.einsum("k,kij->ij", self.p, self.H)
        return torch.linalg.solve(mean_H, torch.einsum("k,kij,kj->i", self.p, self.H, self.c))


@every_executor
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_I4_local_steps_on_a_quadratic(executor: str, steps: int, quadratics: Make) -> None:
    federation = quadratics()
    known = Quadratics.of(federation)
    local = known.local(begin(federation), 0.2, steps)
    training: dict[str, Any] = {"lr": 0.2, "steps": steps, "batch": None}
    assert_same(model(nofed(**training), federation, executor=executor), local)
    assert_same(model(fedavg(**training), federation, executor=executor)[0], known.p @ local)
    assert_same(model(fedavg(equal=True, **training), federation, executor=executor)[0], local.mean(0))


def test_I4_training_alone_finds_every_clients_own_minimum(quadratics: Make) -> None:
    federation = quadratics((20, 30, 40), dimension=3)
    assert_same(
        model(nofed(lr=0.5, steps=200, batch=None), federation),
        Quadratics.of(federation).c,
    )


def test_I5_fedsgd_converges_to_the_optimum(quadratics: Make) -> None:
    federation = quadratics()
    assert_same(model(fedsgd(lr=0.5), federation, rounds=150)[0], Quadratics.of(federation).optimum)


@pytest.mark.parametrize("steps", [2, 5])
def test_I5_the_fixed_point_of_fedavg_is_known_and_is_not_the_optimum(steps: int, quadratics: Make) -> None:
    # w = sum p_k [c_k + A_k (w - c_k)]   =>   (I - sum p_k A_k) w = sum p_k (I - A_k) c_k
    federation = quadratics()
    known = Quadratics.of(federation)
    eye = torch.eye(4, dtype=torch.float64)
    moved = eye - known.contraction(0.3, steps)
    left, right = torch.einsum("k,kij->ij", known.p, moved), torch.einsum("k,kij,kj->i", known.p, moved, known.c)
    fixed = torch.linalg.solve(left, right)

    method = fedavg(lr=0.3, steps=steps, batch=None)
    assert_same(model(method, federation, rounds=100)[0], fixed)
    assert_same(model(method, federation, rounds=1, start=fixed)[0], fixed)
    assert (fixed - known.optimum).norm() > 1e-2


def test_I5_with_one_step_the_fixed_point_is_the_optimum(quadratics: Make) -> None:
    federation = quadratics()
    optimum = Quadratics.of(federation).optimum
    assert_same(model(fedavg(lr=0.3, steps=1, batch=None), federation, start=optimum)[0], optimum)


@pytest.mark.parametrize("mu", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("implicit", [False, True])
def test_P3_exact_local_solves_stay_near(mu: float, implicit: bool, quadratics: Make) -> None:
    # argmin of F_k + mu/2 |w - start|^2 = (H_k + mu I)^-1 (H_k c_k + mu start), within |grad F_k(start)| / mu
    federation = quadratics((12, 15, 18), dimension=3)
    known, start = Quadratics.of(federation), begin(quadratics((12, 15, 18), dimension=3))
    solve: dict[str, Any] = {"lr": 1 / (mu + 2), "steps": 150, "batch": None}
    (train,) = fedprox(mu=mu, implicit=implicit, **solve).at(0)[0].learn
    solved = model(nofed(terms=train.terms, **solve), federation)  # as nofed: every client's own solution

    eye = torch.eye(3, dtype=torch.float64)
    force = torch.einsum("kij,kj->ki", known.H, start - known.c)
    assert_same(solved, start - torch.linalg.solve(known.H + mu * eye, force))
    assert bool(((solved - start).norm(dim=1) <= force.norm(dim=1) / mu).all())
    assert_same(model(fedprox(mu=mu, implicit=implicit, **solve), federation)[0], known.p @ solved)


@every_executor
def test_the_implicit_step_solves_the_penalty_exactly(executor: str, quadratics: Make) -> None:
    federation, lr, mu = quadratics(), 0.2, 3.0
    known, start = Quadratics.of(federation), begin(federation)
    rows = start.expand(4, -1)
    for _ in range(5):
        gradient = torch.einsum("kij,kj->ki", known.H, rows - known.c)
        rows = (rows - lr * gradient + lr * mu * start) / (1 + lr * mu)
    method = fedprox(mu=mu, implicit=True, lr=lr, steps=5, batch=None)
    assert_same(model(method, federation, executor=executor)[0], known.p @ rows)


def test_the_implicit_step_is_stable_where_lr_mu_is_a_thousand(quadratics: Make) -> None:
    federation, start = quadratics(), begin(quadratics())
    known = Quadratics.of(federation)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method = fedprox(mu=1e4, implicit=True, lr=0.1, steps=30, batch=None)
    rows = start - torch.linalg.solve(
        known.H + 1e4 * torch.eye(4, dtype=torch.float64), torch.einsum("kij,kj->ki", known.H, start - known.c)
    )
    assert_same(model(method, federation)[0], known.p @ rows)
    assert_same(model(method, federation, rounds=2)[0], model(method, federation, start=(known.p @ rows))[0])


@pytest.mark.parametrize("lr, mu", [(0.1, 20.0), (1.0, 2.0), (0.5, 4.5)])
def test_the_explicit_step_warns_where_it_diverges(lr: float, mu: float, quadratics: Make) -> None:
    with pytest.warns(UserWarning, match=r"lr \* mu = .* use implicit=True"):
        method = fedprox(mu=mu, lr=lr, steps=100, batch=None)
    tame = fedprox(mu=mu, lr=lr, steps=100, batch=None, implicit=True)
    far = (model(method, quadratics()) - begin(quadratics())).norm()
    near = (model(tame, quadratics()) - begin(quadratics())).norm()
    assert far > 100 * near


def test_the_explicit_step_does_not_warn_below_two() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fedprox(mu=19.9, lr=0.1)


def spheres(made: Make) -> Federation:
    """Quadratics with H_k = I: one step with lr = 1 leads to c_k from wherever it began."""
    generator = torch.Generator().manual_seed(3)

    def part(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
        return n**0.5 * torch.linalg.qr(x).Q, torch.randn(n, generator=generator, dtype=torch.float64)

    return made([part(n) for n in (6, 10, 15)])


EXACT: dict[str, Any] = {"lr": 1.0, "steps": 1, "batch": None}


@pytest.mark.parametrize("eps", [0.25, 0.6, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("method", [feddist, feddws])
def test_the_error_of_feddist_is_multiplied_by_one_minus_eps(
    method: Callable[..., Method], eps: float, made: Make
) -> None:
    federation = spheres(made)
    known, before = Quadratics.of(federation), begin(federation)
    target = known.c.mean(0) if method is feddist else known.p @ known.c
    for rounds in (1, 2, 3):
        w = model(method(eps=eps, **EXACT), federation, rounds=rounds)[0]
        assert_same(w - target, (1 - eps) ** rounds * (before - target))


def test_the_error_of_a_center_with_momentum_is_a_recurrence(made: Make) -> None:
    federation = spheres(made)
    known = Quadratics.of(federation)
    target = known.p @ known.c
    error, velocity = begin(federation) - target, torch.zeros(3, dtype=torch.float64)
    for rounds in (1, 2, 3):
        velocity = 0.7 * velocity + error
        error = error - 0.4 * velocity
        assert_same(model(fedavg(center=Momentum(0.4, 0.7), **EXACT), federation, rounds)[0] - target, error)


@pytest.mark.parametrize("weight_decay", [0.1, 1.0])
def test_weight_decay_is_ridge_regression(weight_decay: float, quadratics: Make) -> None:
    federation = quadratics((20, 30, 40), dimension=3)
    known = Quadratics.of(federation)
    eye = torch.eye(3, dtype=torch.float64)
    ridge = torch.linalg.solve(known.H + weight_decay * eye, torch.einsum("kij,kj->ki", known.H, known.c))
    alone = nofed(lr=0.3, steps=250, batch=None, weight_decay=weight_decay)
    assert_same(model(alone, federation), ridge)


@pytest.mark.parametrize("momentum", [0.3, 0.9])
def test_client_momentum_is_the_heavy_ball(momentum: float, quadratics: Make) -> None:
    federation = quadratics()
    known, rows = Quadratics.of(federation), begin(federation).expand(4, -1)
    for _ in range(2):  # rounds: the ball begins at rest in each of them
        velocity = torch.zeros_like(rows)
        for _ in range(6):
            velocity = momentum * velocity + torch.einsum("kij,kj->ki", known.H, rows - known.c)
            rows = rows - 0.1 * velocity
    method = nofed(lr=0.1, steps=6, batch=None, momentum=momentum)
    assert_same(model(method, federation, rounds=2), rows)


@pytest.mark.parametrize("eps", [0.3, 1.0])
def test_R5_feddist_is_a_gradient_step_on_the_distances_with_the_factor_two_absorbed(eps: float) -> None:
    """w' = w - eps/2 grad_w [ 1/m sum_k |w_k - w|^2 ]."""
    federation = load("digits", clients=5)
    method = feddist(eps=eps, lr=0.1)
    run = prepare(method, federation, dtype="float64")
    answers = run.clients.answers(method.at(0)[0], run.state, run.clients.everyone(0))
    local = torch.cat([answer.sent["model"] for answer in answers])
    w = run.state.centers["model"].clone().requires_grad_()
    (gradient,) = torch.autograd.grad((local - w).square().sum(1).mean(), w)
    after, _ = run_round(method, run.state, run.clients)
    torch.testing.assert_close(after.centers["model"], (w - eps / 2 * gradient).detach(), rtol=1e-10, atol=1e-10)
