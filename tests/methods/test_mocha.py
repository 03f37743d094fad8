"""MOCHA: duality, what it reduces to, and what stragglers and absent clients do to it. All in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from polycentric import Everyone, Federation, Method, Poisson, State, Uniform, UsageError, mocha, run_round
from polycentric.parts.select import Stragglers
from polycentric.reproduce.mocha import LINKS, times
from polycentric.round import receive
from polycentric.runs.loop import Run
from polycentric.runs.start import prepare
from polycentric.simulate.clock import Load
from polycentric.topology.heads.covariance import cov_and_prec
from support import Make

SIZES = (23, 7, 12, 5, 30)
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-11}


def ready(method: Method, federation: Federation, **how: Any) -> Run:
    return prepare(method, federation, **({"model": "logistic", "dtype": "float64"} | how))


def rounds_of(method: Method, federation: Federation, rounds: int, **how: Any) -> list[State]:
    prepared = ready(method, federation, **how)
    states = [prepared.state]
    for _ in range(rounds):
        states.append(run_round(method, states[-1], prepared.clients)[0])
    return states


def models(method: Method, federation: Federation, state: State) -> Tensor:
    """(clients, classes, inputs + 1)."""
    everyone = ready(method, federation).clients.everyone(state.round)
    return matrix(receive(method.exchanges[0], state, everyone)["model"], federation)


def matrix(rows: Tensor, federation: Federation) -> Tensor:
    classes = len(federation.classes)
    weights = rows[:, :-classes].view(len(rows), classes, -1)
    return torch.cat([weights, rows[:, -classes:, None]], 2)


def examples(federation: Federation, k: int) -> tuple[Tensor, Tensor]:
    """(x with a one at its end, y of +1 and -1 for each class)."""
    part = federation.train.of(k)
    x = torch.cat([part.x.double(), torch.ones(len(part.y), 1).double()], 1)
    return x, 2.0 * torch.nn.functional.one_hot(part.y, len(federation.classes)).double() - 1


def objectives(federation: Federation, state: State, sigma: Tensor, strength: float) -> tuple[float, float, Tensor]:
    """P, D and W(alpha), the plain way, from the dual variables alone."""
    classes, sums, gain = len(federation.classes), [], 0.0
    for k in range(federation.n_clients):
        x, y = examples(federation, k)
        alpha = state.kept["alpha"][k].view(-1, classes)[: len(x)]
        assert not state.kept["alpha"][k].view(-1, classes)[len(x) :].any()
        assert float((alpha * y).min()) >= 0 and float((alpha * y).max()) <= 1
        sums.append(alpha.T @ x / len(x))
        gain += float((alpha * y).sum() / len(x))
    b = torch.stack(sums).flatten(1)
    w = sigma @ b / strength
    penalty = strength / 2 * float((w.T @ torch.linalg.pinv(sigma, hermitian=True) @ w).trace())
    loss = 0.0
    for k in range(federation.n_clients):
        x, y = examples(federation, k)
        loss += float((1 - y * (x @ w[k].view(classes, -1).T)).clamp(min=0).sum() / len(x))
    return loss + penalty, gain - penalty, w.view(len(b), classes, -1)


# -- duality -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["none", "same", "learned"])
def test_with_a_fixed_covariance_the_dual_rises_and_the_gap_closes(relation: Any, blobs: Make) -> None:  # M1
    federation, strength = blobs(SIZES), 0.5
    method = mocha(relation=relation, strength=strength, every=10**6, share=1.0)
    states = rounds_of(method, federation, 30)
    sigma = states[-1].memory["covariance"]
    found = [objectives(federation, state, sigma, strength)[:2] for state in states]
    assert all(p >= d - 1e-12 for p, d in found)
    assert all(after >= before - 1e-12 for (_, before), (_, after) in pairwise(found))
    assert found[0][0] - found[0][1] > 1
    assert found[-1][0] - found[-1][1] < (5e-2 if relation == "same" else 5e-3)  # tasks in each other's way are slower


def test_the_gap_closes_to_rounding_with_more_rounds(blobs: Make) -> None:
    federation = blobs((6, 7, 5))
    method = mocha(relation="none", strength=1.0, share=4.0)
    state = rounds_of(method, federation, 80)[-1]
    p, d, _ = objectives(federation, state, torch.eye(3).double() / 3, 1.0)
    assert 0 <= p - d < 1e-7


def test_the_dual_rises_also_with_a_covariance_that_relates_all_tasks(blobs: Make) -> None:
    """Strong relations of both signs: without the safe curvature the tasks would overshoot together."""
    federation, strength = blobs(SIZES), 0.2
    method = mocha(strength=strength, every=10**6, share=1.0)
    states = rounds_of(method, federation, 1)
    w = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sigma = cov_and_prec(w @ w.T).cov
    state = replace(states[-1], memory=states[-1].memory | {"covariance": sigma})
    clients, last = ready(method, federation).clients, -math.inf
    for _ in range(40):
        p, d, _ = objectives(federation, state, sigma, strength)
        assert p >= d and d >= last - 1e-12
        last = d
        state, _ = run_round(method, state, clients)
    assert p - d < 0.05 * abs(p)


def test_the_model_follows_from_the_duals_also_after_a_new_covariance(blobs: Make) -> None:  # M5, X8
    federation, strength = blobs(SIZES), 0.1
    method = mocha(strength=strength, every=2)
    moved = 0
    states = rounds_of(method, federation, 6)
    for before, state in pairwise(states):
        p, d, w = objectives(federation, state, state.memory["covariance"], strength)
        torch.testing.assert_close(models(method, federation, state), w, rtol=1e-12, atol=1e-12)
        assert p >= d
        assert float(state.memory["covariance"].trace()) == pytest.approx(1, abs=1e-12)
        moved += not torch.equal(before.memory["covariance"], state.memory["covariance"])
    assert moved == 1 + 3  # everybody came in the first round; then every second one


def test_the_covariance_is_that_of_the_models_before_it(blobs: Make) -> None:
    federation, method = blobs(SIZES), mocha(every=3)
    states = rounds_of(method, federation, 3)
    before = states[2].memory["covariance"]
    w = before @ states[3].centers["model"] / 1e-2  # the dual sums of round 3, still mixed by the old covariance
    torch.testing.assert_close(states[3].memory["covariance"], cov_and_prec(w @ w.T).cov, **CLOSE)
    assert states[3].memory["condition"] > 1


def test_at_its_covariance_the_penalty_is_the_squared_nuclear_norm(blobs: Make) -> None:  # M4
    federation, strength = blobs(SIZES), 0.1
    state = rounds_of(mocha(strength=strength), federation, 5)[-1]
    _, _, w = objectives(federation, state, state.memory["covariance"], strength)
    flat = w.flatten(1)
    best = cov_and_prec(flat @ flat.T, eps=1e-13)
    penalty = strength / 2 * float((flat.T @ best.prec @ flat).trace())
    assert penalty == pytest.approx(strength / 2 * float(torch.linalg.matrix_norm(flat, "nuc")) ** 2, rel=1e-5)


def test_the_gap_in_the_metrics_is_the_gap(blobs: Make) -> None:
    federation, strength = blobs(SIZES), 0.1
    method = mocha(strength=strength, every=3)
    done = ready(method, federation, rounds=7, evaluate_every=1).go()
    states = rounds_of(method, federation, 7)
    assert "gap" not in done.history[0]
    for row, state in zip(done.history[2:], states[1:-1], strict=True):  # told at the start of the round after
        p, d, _ = objectives(federation, state, state.memory["covariance"], strength)
        assert row["primal"] == pytest.approx(p, rel=1e-9)
        assert row["dual"] == pytest.approx(d, rel=1e-9)
        assert row["gap"] == pytest.approx(p - d, rel=1e-7)


# -- reductions ----------------------------------------------------------------------------------------------


def svm(x: Tensor, y: Tensor, weight: Tensor, ridge: float) -> Tensor:
    """min sum_i weight_i hinge_i + ridge/2 |w|^2 for one class, solved by a library in the dual."""
    k = (y[:, None] * x) @ (y[:, None] * x).T
    k, c = k.numpy(), weight.numpy()

    def value(a: Any) -> tuple[float, Any]:  # a_i in [0, c_i]
        return float(a @ k @ a / (2 * ridge) - a.sum()), k @ a / ridge - 1

    found = minimize(value, np.zeros(len(c)), jac=True, bounds=[(0, top) for top in c], method="L-BFGS-B",
                     options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 20_000, "maxfun": 100_000})  # fmt: skip
    return (torch.from_numpy(found.x) * y) @ x / ridge


def test_with_unrelated_tasks_it_is_an_svm_for_each_with_ridge_lambda_m(blobs: Make) -> None:  # M2
    federation, strength = blobs((6, 9, 7)), 0.4
    method = mocha(relation="none", strength=strength, share=4.0)
    w = models(method, federation, rounds_of(method, federation, 40)[-1])
    for k, n in enumerate((6, 9, 7)):
        x, y = examples(federation, k)
        for c in range(3):
            right = svm(x, y[:, c], torch.full((n,), 1 / n).double(), strength * 3)
            torch.testing.assert_close(w[k, c], right, rtol=1e-3, atol=1e-4)


def test_with_one_covariance_of_ones_it_is_one_svm_for_all(blobs: Make) -> None:
    federation, strength = blobs((6, 9, 7)), 2.0
    method = mocha(relation="same", strength=strength, share=4.0)
    w = models(method, federation, rounds_of(method, federation, 60)[-1])
    torch.testing.assert_close(w[0], w[1], rtol=1e-9, atol=1e-12)
    parts = [examples(federation, k) for k in range(3)]
    x, y = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    weight = torch.cat([torch.full((len(x),), 1 / len(x)).double() for x, _ in parts])
    for c in range(3):  # tr(W^T Sigma^+ W) = m |w|^2 where all rows are w: Sigma^+ = Sigma = 1 1^T / m
        torch.testing.assert_close(w[0, c], svm(x, y[:, c], weight, strength * 3), rtol=0, atol=1e-3)
        assert not torch.allclose(w[0, c], svm(x, y[:, c], weight, strength), rtol=0, atol=1e-2)


def test_with_one_client_it_is_plain_coordinate_ascent(blobs: Make) -> None:  # M3
    federation, strength = blobs((9,)), 0.3
    for relation in ("learned", "none", "same"):
        method = mocha(relation=relation, strength=strength, share=3.0, every=1)  # type: ignore[arg-type]
        state = rounds_of(method, federation, 25)[-1]
        assert torch.equal(state.memory["covariance"], torch.ones(1, 1).double())
        x, y = examples(federation, 0)
        for c in range(3):
            right = svm(x, y[:, c], torch.full((9,), 1 / 9).double(), strength)
            torch.testing.assert_close(models(method, federation, state)[0, c], right, rtol=1e-3, atol=1e-4)


def test_one_step_by_hand(blobs: Make) -> None:
    """One client, one example, one step from zero: beta = clip(n lambda / |x|^2) for each class."""
    federation = blobs((1,))
    method = mocha(strength=2.0, relation="none", share=1.0)
    state = rounds_of(method, federation, 1)[-1]
    x, y = examples(federation, 0)
    beta = min(1.0, 2.0 / float(x.square().sum()))
    torch.testing.assert_close(state.kept["alpha"].view(1, 3), beta * y, **CLOSE)
    torch.testing.assert_close(matrix(state.centers["model"], federation)[0], beta * y.T @ x, **CLOSE)


def test_two_classes_mirror_each_other(blobs: Make) -> None:
    federation = blobs((9, 8, 7), classes=2)
    method = mocha(strength=0.1)
    w = models(method, federation, rounds_of(method, federation, 5)[-1])
    torch.testing.assert_close(w[:, 0], -w[:, 1], **CLOSE)


# -- what must not matter, and what may come -----------------------------------------------------------------


@pytest.mark.parametrize("block", [None, 1, 2])
def test_looped_is_stacked_also_with_stragglers(block: int | None, blobs: Make) -> None:
    method = mocha(stragglers=0.6, share=1.5, every=2)
    a = rounds_of(method, blobs(SIZES), 4, executor="looped")[-1]
    b = rounds_of(method, blobs(SIZES), 4, executor="stacked", block=block)[-1]
    for mine, other in ((a.centers, b.centers), (a.kept, b.kept), (a.memory, b.memory)):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-10)


def test_stragglers_do_a_tenth_of_their_steps_or_more(blobs: Make) -> None:
    select = mocha(stragglers=1.0).exchanges[0].select
    prepared = ready(mocha(stragglers=1.0), blobs((50,) * 5))
    efforts = torch.cat([select(prepared.state.memory, prepared.clients.everyone(r)).effort for r in range(200)])
    assert 0.1 <= float(efforts.min()) < 0.12 and 0.98 < float(efforts.max()) <= 1
    assert float(efforts.mean()) == pytest.approx(0.55, abs=0.03)


@pytest.mark.parametrize("how", [{"stragglers": 1.0}, {"select": Poisson(0.7)}, {"select": Uniform(n=2)}], ids=str)
def test_with_stragglers_and_absent_clients_the_gap_still_closes(how: dict[str, Any], blobs: Make) -> None:
    federation, strength = blobs(SIZES), 0.5
    method = mocha(relation="none", strength=strength, share=1.0, **how)
    states = rounds_of(method, federation, 70)
    assert bool((states[20].memory["examples"] > 0).all())  # once all have come, Sigma stays
    sigma, last = states[-1].memory["covariance"], -math.inf
    for state in states[20:]:
        p, d, _ = objectives(federation, state, sigma, strength)
        assert p >= d >= last - 1e-12
        last = d
    assert p - d < 0.02


def test_an_absent_task_keeps_its_duals(blobs: Make) -> None:
    federation, method = blobs(SIZES), mocha(select=Uniform(n=2))
    prepared = ready(method, federation)
    state = prepared.state
    for _ in range(4):
        before = state
        state, trips = run_round(method, state, prepared.clients)
        absent = torch.ones(5, dtype=torch.bool)
        absent[trips[0].arrived.index] = False
        assert torch.equal(state.kept["alpha"][absent], before.kept["alpha"][absent])
        assert torch.equal(state.centers["model"][absent], before.centers["model"][absent])


def test_a_task_that_comes_late_gets_a_variance_and_the_trace_stays_one(blobs: Make) -> None:
    method = mocha(select=Uniform(n=2), every=10**6)
    for state in rounds_of(method, blobs(SIZES), 8)[1:]:
        seen = state.memory["examples"] > 0
        m = int(seen.sum())
        torch.testing.assert_close(state.memory["covariance"], torch.diag(seen.double() / m), **CLOSE)


def test_examples_of_zeros_and_empty_tasks_do_no_harm(blobs: Make) -> None:
    federation = blobs((6, 0, 7))
    x = federation.train.x.clone()
    x[2] = 0.0
    federation = replace(federation, train=replace(federation.train, x=x))
    states = rounds_of(mocha(share=2.0, every=2), federation, 6)
    assert all(rows.isfinite().all() for s in states for rows in (s.centers | s.kept | s.memory).values())
    assert not states[-1].centers["model"][1].any()
    assert not states[-1].memory["covariance"][1].any()
    without = rounds_of(mocha(share=2.0, every=2), federation, 6)[-1]
    torch.testing.assert_close(states[-1].centers, without.centers)


def test_a_row_of_nothing_but_zeros_is_passed_over(blobs: Make) -> None:
    """Without a bias |x| = 0 can happen: the step is skipped, not divided by zero."""
    from polycentric.learn import Client, Sdca
    from polycentric.tasks.task import Batch

    prepared = ready(mocha(), blobs((3,)))
    task = prepared.clients.task
    carry = {"alpha": torch.zeros(9).double(), "order": torch.tensor([0, 1, -1])}
    row = {"model": torch.zeros(21).double(), "stiffness": torch.ones(1).double()}
    weight = torch.tensor([0.5, 0.5, 0.0]).double()  # the third is padding: all of its row is zero
    batch = Batch(torch.ones(3, 6).double(), torch.tensor([0, 1, 2]), weight)
    out = Sdca().step(carry | {"order": torch.tensor([2, 2, 0])}, row, batch, Client(task, None))  # type: ignore[arg-type]
    alpha = out["alpha"].view(3, 3)
    assert alpha.isfinite().all() and not alpha[2].any() and alpha[0].any()


def test_bytes_are_a_model_each_way_and_a_few_numbers(blobs: Make) -> None:
    done = ready(mocha(), blobs(SIZES), rounds=3).go()
    d = done.state.centers["model"].shape[1]
    assert done.tally.bytes_down == 3 * 5 * 8 * (d + 1)
    assert done.tally.bytes_up == 3 * 5 * 8 * (d + 2)


REFUSED = {
    "strength": ({"strength": 0.0}, r"strength must be in \(0, inf\), got 0.0"),
    "relation": ({"relation": "some"}, "relation must be learned, none or same, got 'some'"),
    "share": ({"share": 0.0}, "share of the examples in a round must be in .0, 1000., got 0.0"),
    "every": ({"every": 0}, "every must be at least 1, got 0"),
    "eps": ({"eps": -1.0}, r"eps must be in \(0, 0.5\], got -1.0"),
    "stragglers": ({"stragglers": 1.5}, r"share must be in \[0, 1\], got 1.5"),
}


@pytest.mark.parametrize(("given", "said"), REFUSED.values(), ids=REFUSED)
def test_bad_settings_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        mocha(**given)


def test_a_model_that_is_not_linear_is_refused(blobs: Make) -> None:
    with pytest.raises(UsageError, match=r"needs a linear model.*use --model logistic"):
        rounds_of(mocha(), blobs(), 1, model="mlp")


def test_a_regression_is_refused(quadratics: Make) -> None:
    with pytest.raises(UsageError, match="an output for each class"):
        rounds_of(mocha(), quadratics(), 1)


# -- time ----------------------------------------------------------------------------------------------------


def test_a_coordinate_step_is_what_the_clock_counts(blobs: Make) -> None:
    method = mocha(share=0.5, stragglers=1.0)
    prepared = ready(method, blobs(SIZES))
    cohort = method.exchanges[0].select({}, prepared.clients.everyone(3))
    load = Load(method.exchanges[0], prepared.state, cohort, 9)
    done = (cohort.effort * 0.5 * cohort.sizes).ceil()
    assert torch.equal(load.steps, done.double()) and torch.equal(load.examples, done.double())
    order = (
        method.exchanges[0]
        .learn[0]
        .begin(  # those that are really taken
            {"model": torch.zeros(5, 1), "alpha": torch.zeros(5, 1)}, cohort, prepared.clients.task
        )["order"]
    )
    assert torch.equal((order >= 0).sum(1), load.steps.long())


@pytest.mark.parametrize("trouble", [{}, {"stragglers": 1.0}, {"select": Poisson(0.5)}], ids=str)
def test_a_link_costs_the_same_in_every_round_and_waiting_costs_the_most(trouble: Any, blobs: Make) -> None:
    prepared = ready(mocha(**trouble), blobs(SIZES))
    free, slow, waiting = (times(prepared, 20, 0.0, *how) for how in ((False, False), (True, False), (True, True)))
    there = [len(prepared.method.exchanges[0].select({}, prepared.clients.everyone(r))) > 0 for r in range(20)]
    for link in LINKS.values():
        linked = times(prepared, 20, link, False, False)
        assert linked == pytest.approx([t + link * sum(there[: r + 1]) for r, t in enumerate(free)], rel=1e-12)
    assert slow == free and all(a > b for a, b, here in zip(waiting, slow, there, strict=True) if here)
    if not trouble:  # everybody's 8 steps, half of its examples, at 1 / u of the time
        speed = Stragglers(Everyone(), 1.0, least=0.1)({}, prepared.clients.everyone(0)).effort.double()
        steps = torch.tensor([-(-n // 2) for n in SIZES]).double()
        assert free[0] == 8 * 15 and waiting[0] == pytest.approx(float((8 * steps / speed).max()))
