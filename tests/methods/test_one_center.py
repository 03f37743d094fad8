"""FedProx with a mu that adapts, and methods of one center put together: they run, and they resume bit for bit.

The rule (Li et al., MLSys 2020): mu rises by 0.1 when the mean loss rises, and falls by 0.1 after five falls in a row.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from polycentric import (
    SGD,
    Active,
    Adam,
    Average,
    Curvature,
    Federation,
    Method,
    Momentum,
    Poisson,
    Prox,
    State,
    Stragglers,
    Train,
    Uniform,
    UsageError,
    fedavg,
    fedcurv,
    feddane,
    feddist,
    fedprox,
    fomaml,
    maml,
    meta,
    reptile,
    run_round,
)
from polycentric.parts.optimizer import AdaptiveMu
from polycentric.runs.folder import Folder
from polycentric.runs.loop import Run
from polycentric.simulate.clock import Traffic, traffic
from polycentric.stacks.mixing import Heard
from support import Make, assert_same, differ, every_executor, linear, ready, recorded, went_on

LAW = settings(max_examples=80)
TRAINING: dict[str, Any] = {"lr": 0.05, "epochs": 2, "batch": 5, "momentum": 0.5, "decay": 0.9}


# -- the rule ------------------------------------------------------------------------------------------------


def number(value: float) -> Tensor:
    return torch.tensor([[value]], dtype=torch.float64)


def mus(losses: list[float], mu: float = 0.5, heard: list[bool] | None = None) -> list[float]:
    """mu after every round, by the part itself."""
    centers = {"model": number(0.0), "mu": number(mu), "loss": number(math.inf), "falls": number(0.0)}
    out = []
    for loss, some in zip(losses, heard or [True] * len(losses), strict=True):
        mask = torch.tensor([some])
        told = {"model": Heard(centers["model"], mask), "loss": Heard(number(loss) if some else centers["loss"], mask)}
        centers = AdaptiveMu(Average()).step(centers, told)
        out.append(float(centers["mu"]))
    return out


def by_hand(losses: list[float], mu: float = 0.5) -> list[float]:
    """The rule in plain Python."""
    last, falls, out = math.inf, 0, []
    for loss in losses:
        if last < math.inf:
            falls = falls + 1 if loss < last else 0
            if loss > last:
                mu += 0.1
            elif falls == 5:
                mu, falls = max(mu - 0.1, 0.0), 0
        last = loss
        out.append(mu)
    return out


@LAW
@given(st.lists(st.floats(-1.0, 3.0).filter(lambda x: abs(x) > 1e-6), max_size=40), st.floats(0, 1))
def test_the_rule_for_any_course_of_the_loss(changes: list[float], mu: float) -> None:
    losses = [100.0]
    for change in changes:
        losses.append(losses[-1] + (change if change > 0 else 0.2 * change))
    assert mus(losses, mu) == pytest.approx(by_hand(losses, mu), abs=1e-12)


@LAW
@given(st.lists(st.booleans(), max_size=60))
def test_the_rule_for_any_rises_and_falls(rises: list[bool]) -> None:
    losses = [0.0]
    for rise in rises:
        losses.append(losses[-1] + (1.0 if rise else -1.0))
    assert mus(losses) == pytest.approx(by_hand(losses), abs=1e-12)


def test_mu_rises_when_the_loss_rises_and_falls_after_five_falls() -> None:
    up = mus([1.0, 2.0, 3.0, 4.0])
    assert up == pytest.approx([0.5, 0.6, 0.7, 0.8])
    down = mus([float(-t) for t in range(13)])
    assert down == pytest.approx([0.5] * 5 + [0.4] * 5 + [0.3] * 3)  # the first round compares with nothing
    interrupted = mus([9, 8, 7, 6, 5, 5.5, 5, 4, 3, 2, 1])
    assert interrupted == pytest.approx([0.5] * 5 + [0.6] * 5 + [0.5])


def test_mu_is_never_negative() -> None:
    course = mus([float(-t) for t in range(40)], mu=0.25)
    assert course[:16] == pytest.approx([0.25] * 5 + [0.15] * 5 + [0.05] * 5 + [0.0])
    assert course[16:] == [0.0] * 24


def test_a_loss_that_stays_the_same_is_no_fall() -> None:
    assert mus([1.0] * 20) == [0.5] * 20
    assert mus([5.0, 4, 3, 2, 1, 1, 0]) == [0.5] * 7  # four, and then not in a row


def test_a_center_that_heard_nobody_learns_nothing() -> None:
    losses, heard = [1.0, 7.0, 2.0, 9.0, 3.0], [True, False, True, False, True]
    told = mus(losses, heard=heard)
    assert told == pytest.approx([0.5, 0.5, 0.6, 0.6, 0.7])
    assert mus([9.0, 8, 7, 0, 6, 5, 0, 4], heard=[True] * 3 + [False, True, True, False, True])[-2:] == pytest.approx(
        [0.5, 0.4]
    )


# -- in a run ------------------------------------------------------------------------------------------------


def course(method: Method, federation: Federation, rounds: int, **how: Any) -> list[State]:
    prepared = ready(method, federation, **how)
    states = [prepared.state]
    for _ in range(rounds):
        states.append(run_round(method, states[-1], prepared.clients)[0])
    return states


def mean_loss(federation: Federation, w: Tensor) -> float:
    return float((federation.train.x @ w - federation.train.y).square().mean() / 2)


@every_executor
@pytest.mark.parametrize(("lr", "falls"), [(0.05, True), (3.0, False)])
def test_mu_follows_the_mean_loss_of_a_run(executor: Any, lr: float, falls: bool, quadratics: Make) -> None:
    federation = quadratics()
    method = fedprox(mu=0.3, adaptive=True, lr=lr, steps=1, batch=None)
    states = course(method, federation, 12, model=linear, executor=executor)
    losses = [mean_loss(federation, state.centers["model"][0]) for state in states[:-1]]
    assert all((a > b) == falls for a, b in pairwise(losses))
    assert [float(s.centers["mu"]) for s in states[1:]] == pytest.approx(by_hand(losses, 0.3), abs=1e-12)
    assert [float(s.centers["loss"]) for s in states[1:]] == pytest.approx(losses, rel=1e-10)
    assert float(states[-1].centers["mu"]) == pytest.approx(0.3 - 0.2 if falls else 0.3 + 1.1)


@every_executor
@pytest.mark.parametrize("center", [Average(), SGD(0.5), Momentum(0.5, 0.9), Adam(0.01)])
def test_until_mu_changes_it_is_fedprox(executor: Any, center: Any, blobs: Make) -> None:
    how = {"executor": executor}
    adaptive = course(fedprox(mu=2.0, adaptive=True, center=center, **TRAINING), blobs(), 4, **how)
    plain = course(fedprox(mu=2.0, center=center, **TRAINING), blobs(), 4, **how)
    same = next((r for r, s in enumerate(adaptive) if float(s.centers["mu"]) != 2.0), 4)
    assert same >= 1  # the first round has nothing to compare with
    for a, b in zip(adaptive[: same + 1], plain[: same + 1], strict=True):
        assert_same(a.centers["model"], b.centers["model"])


@every_executor
def test_every_round_is_fedprox_with_the_mu_that_came_down(executor: Any, blobs: Make) -> None:
    federation, training = blobs(), {"lr": 0.8, "epochs": 3, "batch": 5}  # so fast that the loss goes up and down
    how = {"executor": executor}
    states = course(fedprox(mu=0.2, adaptive=True, select=Uniform(n=3), **training), federation, 8, **how)
    came = [float(state.centers["mu"]) for state in states]
    assert len(set(came)) > 1
    for before, after in pairwise(states):
        plain = fedprox(mu=float(before.centers["mu"]), select=Uniform(n=3), **training)
        prepared = ready(plain, federation, **how)
        begun = replace(prepared.state, centers={"model": before.centers["model"]}, round=before.round)
        assert_same(run_round(plain, begun, prepared.clients)[0].centers["model"], after.centers["model"])


def test_mu_and_the_loss_are_one_number_more_each_way(blobs: Make) -> None:
    method = fedprox(adaptive=True, select=Uniform(n=3), **TRAINING)
    prepared = ready(method, blobs())
    _, (trip,) = run_round(method, prepared.state, prepared.clients)
    row = (prepared.clients.task.width + 1) * 8
    assert traffic(trip) == Traffic(down=3 * row, up=3 * row)


def test_an_empty_round_changes_neither_model_nor_mu(blobs: Make) -> None:
    method = fedprox(mu=0.4, adaptive=True, select=Poisson(1e-9), **TRAINING)
    first, last = course(method, blobs(), 3)[::3]
    assert all(torch.equal(first.centers[name], last.centers[name]) for name in first.centers)


def test_adaptive_and_implicit_do_not_go_together() -> None:
    with pytest.raises(UsageError, match="adaptive mu has no implicit step: choose adaptive or implicit"):
        fedprox(adaptive=True, implicit=True)


# -- two terms in one client ---------------------------------------------------------------------------------


@every_executor
def test_a_proximal_term_and_curvature_add_up(executor: Any, quadratics: Make) -> None:
    # argmin of F_k + lambda sum_j (w - w_j)^T I_j (w - w_j) + mu/2 |w - start|^2, by linear algebra
    federation, strength, mu = quadratics((12, 15, 18), dimension=3), 0.3, 0.8
    training: dict[str, Any] = {"lr": 0.2, "steps": 110, "batch": None}
    prepared = ready(fedavg(), federation, model=linear, executor=executor)
    generator = torch.Generator().manual_seed(1)
    fisher, theirs = (torch.rand(3, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    start, eye = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    sums = {"fisher": fisher.sum(0).expand(3, -1), "pull": (fisher * theirs).sum(0).expand(3, -1)}
    rows = sums | {"own_fisher": fisher, "own_pull": fisher * theirs}
    rows |= {"model": start.expand(3, -1), "start": start.expand(3, -1)}
    for terms in ((Prox(mu), Curvature(strength)), (Curvature(strength), Prox(mu))):
        train = Train(terms=terms, **training)
        found = prepared.clients.run(train, rows, prepared.clients.everyone(0))["model"]
        for k in range(3):
            x, y = federation.train.of(k).x, federation.train.of(k).y
            u = fisher.sum(0) - fisher[k]
            v = (fisher * theirs).sum(0) - fisher[k] * theirs[k]
            left = x.T @ x / len(y) + 2 * strength * u.diag() + mu * eye
            assert_same(found[k], torch.linalg.solve(left, x.T @ y / len(y) + 2 * strength * v + mu * start[0]))


@every_executor
def test_fedcurv_with_a_proximal_term(executor: Any, blobs: Make) -> None:
    def last(method: Method) -> Tensor:
        return course(method, blobs(), 3, executor=executor)[-1].centers["model"]

    both = last(fedcurv(strength=0.5, terms=(Prox(0.7),), **TRAINING))
    tied = last(fedavg(equal=True, terms=(Prox(0.7),), **TRAINING))
    assert_same(last(fedcurv(strength=0.0, terms=(Prox(0.7),), **TRAINING)), tied)
    assert_same(last(fedcurv(strength=0.5, terms=(Prox(0.0),), **TRAINING)), last(fedcurv(strength=0.5, **TRAINING)))
    assert differ(both, tied) and differ(both, last(fedcurv(strength=0.5, **TRAINING)))


# -- interruptions -------------------------------------------------------------------------------------------

ACTIVE = Active(3, ignore=0.4, sharpness=0.5, explore=0.3)
FAST: dict[str, Any] = {"lr": 0.05, "batch": 10}
TOGETHER: dict[str, Method] = {
    "adaptive fedprox": fedprox(mu=0.3, adaptive=True, **FAST),
    "adaptive fedprox, active, momentum": fedprox(adaptive=True, select=ACTIVE, center=Momentum(0.5, 0.9), **FAST),
    "prox and curvature": fedcurv(terms=(Prox(0.3),), select=Uniform(n=3), **FAST),
    "active reptile": reptile(select=ACTIVE, center=Adam(0.01), **FAST),
    "active fedcurv": fedcurv(select=ACTIVE, labels="model", **FAST),
    "active feddane with stragglers": feddane(select=Stragglers(ACTIVE, 0.5), lr=0.005, epochs=3, batch=10),
    "active and weighed feddist": feddist(select=replace(ACTIVE, weigh=True), **FAST),
    "active maml": maml(select=ACTIVE, steps=2, held_out=True),
    "active fomaml": fomaml(select=ACTIVE, steps=2, batch=6),
    "active meta": meta(rounds=3, epochs=1, steps=2, select=ACTIVE, **FAST),
}


@pytest.mark.parametrize(
    ("name", "stopped_after"), [*((name, 4) for name in TOGETHER), ("adaptive fedprox", 0), ("active fedcurv", 0)]
)
def test_resumed_equals_uninterrupted_bit_for_bit(name: str, stopped_after: int, blobs: Make, tmp_path: Path) -> None:
    method, federation = TOGETHER[name], blobs((13, 7, 9, 1, 14, 9))

    def begin(where: str, rounds: int) -> Run:
        prepared = ready(method, federation, rounds=rounds, evaluate_every=7, fine_tune=0, dtype="float32")
        recorded(prepared, tmp_path / where)
        return prepared

    whole = begin("whole", 7).go()
    begin("parts", stopped_after).go()
    fresh = ready(method, federation, rounds=7, evaluate_every=7, fine_tune=0, dtype="float32")
    resumed, problems = went_on(fresh, Folder.open(tmp_path / "parts"))
    assert problems == []
    assert resumed.state.round == whole.state.round == 7
    for a, b in (
        (resumed.state.centers, whole.state.centers),
        (resumed.state.kept, whole.state.kept),
        (resumed.state.memory, whole.state.memory),
    ):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[stack], b[stack]) for stack in a)
    assert resumed.metrics == whole.metrics
    assert resumed.tally == whole.tally
    assert all(bool(rows.isfinite().all()) for rows in whole.state.centers.values())
