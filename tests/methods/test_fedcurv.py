"""FedCurv: clients are held back where the others' losses are curved; and the Fisher diagonal it rests on.

The names K1, K2, ... are those of the specifications of the methods.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polycentric import (
    Curvature,
    Federation,
    Method,
    Poisson,
    Prox,
    State,
    Train,
    Uniform,
    UsageError,
    fedavg,
    fedcurv,
    run_round,
)
from polycentric.learn import Fisher, Forget
from polycentric.runs.loop import Run
from polycentric.simulate.clock import Traffic, traffic
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.stack import Stacks
from support import Make, assert_same, differ, every_executor, linear, model, ready, small

TRAINING: dict[str, Any] = {"lr": 0.05, "epochs": 2, "batch": 5, "momentum": 0.5, "decay": 0.9}


def locals_of(prepared: Run, state: State, name: str = "model") -> Tensor:
    """What every client would send next, (clients, width)."""
    everyone = prepared.clients.everyone(state.round)
    out = torch.zeros(len(everyone), state.centers["model"].shape[1], dtype=torch.float64)
    for answer in prepared.clients.answers(prepared.method.at(state.round)[0], state, everyone):
        out[answer.block.index] = answer.sent[name]
    return out


# -- what it reduces to --------------------------------------------------------------------------------------


@every_executor
def test_K1_without_strength_it_is_unweighted_fedavg(executor: Any, blobs: Make) -> None:
    plain = model(fedavg(equal=True, **TRAINING), blobs(), executor=executor)
    assert_same(model(fedcurv(strength=0.0, **TRAINING), blobs(), executor=executor), plain)
    assert differ(model(fedcurv(strength=0.5, **TRAINING), blobs(), executor=executor), plain)


@every_executor
def test_K2_the_first_round_is_unweighted_fedavg(executor: Any, blobs: Make) -> None:
    plain = model(fedavg(equal=True, **TRAINING), blobs(), rounds=1, executor=executor)
    assert torch.equal(model(fedcurv(strength=0.5, **TRAINING), blobs(), rounds=1, executor=executor), plain)


@every_executor
@pytest.mark.parametrize("strength", [0.5, 1e3])
def test_K3_one_client_has_no_penalty(executor: Any, strength: float, blobs: Make) -> None:
    plain = model(fedavg(**TRAINING), blobs((17,)), executor=executor)
    assert_same(model(fedcurv(strength=strength, **TRAINING), blobs((17,)), executor=executor), plain)


def test_K4_two_sums_carry_the_whole_penalty() -> None:
    generator = torch.Generator().manual_seed(4)
    w, other = (torch.randn(5, generator=generator, dtype=torch.float64) for _ in range(2))
    theirs = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    fisher = torch.rand(3, 5, generator=generator, dtype=torch.float64)
    strength, term = 0.3, Curvature(0.3)
    for own in range(3):
        others = [j for j in range(3) if j != own]
        sums = {"fisher": fisher.sum(0), "pull": (fisher * theirs).sum(0)}
        mine = {"own_fisher": fisher[own], "own_pull": fisher[own] * theirs[own]}

        def cheap(at: Tensor, row: Stacks = sums | mine) -> Tensor:
            return torch.as_tensor(term.penalty(row | {"model": at}))

        def whole(at: Tensor, others: list[int] = others) -> Tensor:
            return strength * sum((fisher[j] * (at - theirs[j]).square()).sum() for j in others)

        assert_same(cheap(w) - cheap(other), whole(w) - whole(other))  # the value, up to a constant
        assert_same(torch.func.grad(cheap)(w), torch.func.grad(whole)(w))


def test_K4_rounding_below_zero_is_cut_off() -> None:
    tiny = torch.tensor([1e-17], dtype=torch.float64)
    row = {"fisher": 0 * tiny, "own_fisher": tiny, "pull": 0 * tiny, "own_pull": 0 * tiny}
    assert float(Curvature(1.0).penalty(row | {"model": torch.tensor([1e20], dtype=torch.float64)})) == 0


@dataclass(frozen=True)
class Known(Fisher):
    """Reports a curvature that is known beforehand, client by client."""

    diagonal: tuple[tuple[float, ...], ...] = ()

    def end(self, carry: Stacks, rows: Stacks, cohort: Cohort) -> Stacks:
        told = torch.tensor(self.diagonal, dtype=torch.float64)[cohort.index].expand_as(rows["model"])
        return super().end(carry | {"sum": told * carry["seen"][:, None]}, rows, cohort)


def knowing(method: Method, diagonal: Any) -> Method:
    """FedCurv whose clients report this in place of their Fisher diagonal."""
    (exchange,) = method.at(0)
    *before, fisher = exchange.learn
    assert isinstance(fisher, Fisher)
    return Method.of("known", replace(exchange, learn=(*before, Known(diagonal=tuple(map(tuple, diagonal))))))


@every_executor
def test_K5_a_constant_fisher_is_a_proximal_term_at_the_mean_of_the_others(executor: Any, blobs: Make) -> None:
    federation, strength, c = blobs((23, 7, 12, 30)), 0.2, 0.6
    training = TRAINING | {"momentum": 0.0}
    method = knowing(fedcurv(strength=strength, **training), [[c]] * 4)
    prepared = ready(method, federation, executor=executor)
    theirs = locals_of(prepared, prepared.state)
    state, _ = run_round(method, prepared.state, prepared.clients)
    assert_same(state.centers["model"][0], theirs.mean(0))

    of_others = (theirs.sum(0) - theirs) / 3
    rows = {"model": state.centers["model"].expand_as(theirs), "start": of_others}  # Prox ties to `start`
    tied = Train(terms=(Prox(2 * strength * c * 3),), **training)
    expected = prepared.clients.run(tied, rows, prepared.clients.everyone(1))["model"]
    assert_same(locals_of(prepared, state), expected)
    state, _ = run_round(method, state, prepared.clients)
    assert_same(state.centers["model"][0], expected.mean(0))


def diagonal_quadratics(made: Make, sizes: tuple[int, ...] = (8, 12, 20)) -> tuple[Federation, Tensor, Tensor]:
    """Regressions whose Hessians are diagonal: the federation, the diagonals h (clients, d) and the minima c."""
    generator = torch.Generator().manual_seed(6)
    parts, h = [], 1 + torch.rand(len(sizes), 3, generator=generator, dtype=torch.float64)
    for n, mine in zip(sizes, h, strict=True):
        x = torch.linalg.qr(torch.randn(n, 3, generator=generator, dtype=torch.float64)).Q
        parts.append((x * (n * mine).sqrt(), torch.randn(n, generator=generator, dtype=torch.float64)))
    c = torch.stack([x.T @ y / len(y) for x, y in parts]) / h
    return made(parts), h, c


SOLVE: dict[str, Any] = {"lr": 0.25, "steps": 110, "batch": None}  # at the slowest (1 - 0.25)^110 = 2e-14


@every_executor
def test_K6_with_exact_curvature_every_client_finds_the_optimum_in_round_two(executor: Any, made: Make) -> None:
    federation, h, c = diagonal_quadratics(made)
    method = knowing(fedcurv(strength=0.5, **SOLVE), h.tolist())
    prepared = ready(method, federation, model=linear, executor=executor)
    assert_same(locals_of(prepared, prepared.state), c)  # round one: everybody at home
    state, _ = run_round(method, prepared.state, prepared.clients)
    optimum = (h * c).sum(0) / h.sum(0)
    assert_same(locals_of(prepared, state), optimum.expand_as(c))
    state, _ = run_round(method, state, prepared.clients)
    assert_same(state.centers["model"][0], optimum)
    assert differ(model(fedavg(equal=True, **SOLVE), federation, model=linear)[0], optimum)


@every_executor
@pytest.mark.parametrize("far", [0.0, 5.0])
def test_K7_ewc_with_two_quadratics_is_the_joint_minimum(executor: Any, far: float, made: Make) -> None:
    federation, h, c = diagonal_quadratics(made, (9, 15))
    train = Train(terms=(Curvature(0.5),), **SOLVE)  # 1/2: the expansion of A's loss, exactly
    prepared = ready(fedavg(), federation, model=linear, executor=executor)
    second = prepared.clients.everyone(0)[1:]  # learn B, with A remembered by its minimum and curvature alone
    zero = torch.zeros(1, 3, dtype=torch.float64)
    memory = {"fisher": h[:1], "pull": h[:1] * c[:1], "own_fisher": zero, "own_pull": zero}
    found = prepared.clients.run(train, memory | {"model": c[:1] + far}, second)["model"]
    assert_same(found[0], (h * c).sum(0) / h.sum(0))


# -- who was there -------------------------------------------------------------------------------------------


def reference(federation: Federation, w: Tensor, cohorts: list[Tensor], lr: float, steps: int, strength: float) -> Any:
    """FedCurv on regressions, written out with the full sum over the others who were there the round before."""
    last: dict[int, tuple[Tensor, Tensor]] = {}
    for cohort in cohorts:
        now = {}
        for k in cohort.tolist():
            x, y = federation.train.of(k).x, federation.train.of(k).y
            mine = w.clone()
            for _ in range(steps):
                gradient = x.T @ (x @ mine - y) / len(y)
                for j, (theirs, fisher) in last.items():
                    if j != k:
                        gradient = gradient + 2 * strength * fisher * (mine - theirs)
                mine = mine - lr * gradient
            now[k] = (mine, ((x @ mine - y)[:, None] * x).square().mean(0))
        last = now
        w = torch.stack([mine for mine, _ in last.values()]).mean(0)
    return w, last


@every_executor
@pytest.mark.parametrize("select", [None, Uniform(n=3), Uniform(n=1), Poisson(0.5)])
def test_sums_run_over_those_of_the_round_before(executor: Any, select: Any, quadratics: Make) -> None:
    federation, strength = quadratics((9, 14, 20, 11, 13)), 0.05
    chosen = {} if select is None else {"select": select}
    method = fedcurv(strength=strength, lr=0.05, steps=3, batch=None, **chosen)
    prepared = ready(method, federation, model=linear, executor=executor)
    state, cohorts = prepared.state, []
    for _ in range(6):
        state, (trip,) = run_round(method, state, prepared.clients)
        cohorts.append(trip.cohort.index)
    assert min(map(len, cohorts)) > 0  # the reference wants somebody in every round
    w, last = reference(federation, prepared.state.centers["model"][0], cohorts, 0.05, 3, strength)
    assert_same(state.centers["model"][0], w)
    assert_same(state.centers["fisher"][0], sum(fisher for _, fisher in last.values()))
    assert_same(state.centers["pull"][0], sum(fisher * mine for mine, fisher in last.values()))
    if select is not None:  # the law is about clients that were not there before, and about some who were
        again = [set(a.tolist()) & set(b.tolist()) for a, b in pairwise(cohorts)]
        new = [set(b.tolist()) - set(a.tolist()) for a, b in pairwise(cohorts)]
        assert any(new) and (any(again) or select == Uniform(n=1))


@every_executor
def test_who_was_absent_subtracts_nothing(executor: Any, blobs: Make) -> None:
    federation = blobs()
    prepared = ready(fedcurv(), federation, executor=executor)
    everyone = prepared.clients.everyone(7)
    shape = (5, prepared.clients.task.width)
    rows = {"own_fisher": torch.rand(shape).double(), "own_pull": torch.rand(shape).double()}
    rows["stamp"] = torch.tensor([[6.0], [5.0], [7.0], [-2.0], [6.0]], dtype=torch.float64)
    found = prepared.clients.run(Forget(), rows, everyone)
    for name in ("own_fisher", "own_pull"):
        assert torch.equal(found[name][[0, 4]], rows[name][[0, 4]])
        assert not found[name][[1, 2, 3]].any()


def test_after_a_round_without_anybody_nothing_is_held_back(blobs: Make) -> None:
    federation, method = blobs(), fedcurv(strength=0.5, **TRAINING)
    prepared = ready(method, federation)
    state, _ = run_round(method, prepared.state, prepared.clients)
    (exchange,) = method.at(0)
    nobody = Method.of("nobody", replace(exchange, select=Poisson(1e-9)))
    empty, (trip,) = run_round(nobody, state, prepared.clients)
    assert len(trip.cohort) == 0
    assert torch.equal(empty.centers["model"], state.centers["model"])
    assert not empty.centers["fisher"].any() and not empty.centers["pull"].any()
    plain = fedavg(equal=True, **TRAINING)
    free, _ = run_round(plain, replace(empty, kept={}), prepared.clients)
    held, _ = run_round(method, empty, prepared.clients)
    assert_same(held.centers["model"], free.centers["model"])


def test_three_models_up_and_three_down(blobs: Make) -> None:
    method = fedcurv(select=Uniform(n=3), **TRAINING)
    prepared = ready(method, blobs())
    _, (trip,) = run_round(method, prepared.state, prepared.clients)
    row = prepared.clients.task.width * 8
    assert traffic(trip) == Traffic(down=3 * 3 * row, up=3 * 3 * row)


# -- the Fisher diagonal -------------------------------------------------------------------------------------


def by_hand(prepared: Run, w: Tensor, client: int) -> Tensor:
    """Example by example, with autograd, dropout off."""
    task, mine = prepared.clients.task, prepared.federation.train.of(client)
    total, module = torch.zeros_like(w), task.module
    module.eval()
    for x, y in zip(task.inputs(mine.x), task.targets(mine.y), strict=True):
        at = w.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(task.loss(task.outputs({"model": at}, x[None]), y[None]).sum(), at)
        total += gradient.square()
    module.train()
    return total / len(mine)


def fishers(prepared: Run, w: Tensor, labels: Any = "true", clients: list[int] | None = None, round: int = 3) -> Stacks:
    """What `Fisher` finds at w, at some clients."""
    everyone = prepared.clients.everyone(round)
    some = everyone if clients is None else everyone[torch.tensor(clients)]
    rows = {"model": w.expand(len(some), -1), "stamp": torch.zeros(len(some), 1, dtype=w.dtype)}
    return prepared.clients.run(Fisher(labels), rows, some)


def dropping(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(*shape, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, n_outputs))


@every_executor
@pytest.mark.parametrize("net", [small, dropping])
def test_the_fisher_diagonal_is_a_loop_over_examples_without_dropout(executor: Any, net: Any, blobs: Make) -> None:
    federation = blobs((23, 1, 300, 12))  # more than a chunk, and one example
    prepared = ready(fedcurv(), federation, model=net, executor=executor)
    w = prepared.clients.task.start()["model"][0]
    found = fishers(prepared, w)
    for k in range(4):
        assert_same(found["fisher"][k], by_hand(prepared, w, k))
    assert_same(found["pull"], found["fisher"] * w)
    for name in ("fisher", "pull"):
        assert torch.equal(found[name], found[f"own_{name}"])
    assert found["stamp"].unique().tolist() == [3.0]
    assert prepared.clients.task.module.training


@every_executor
def test_the_fisher_diagonal_of_a_regression(executor: Any, quadratics: Make) -> None:
    federation = quadratics()
    prepared = ready(fedcurv(), federation, model=linear, executor=executor)
    w = torch.linspace(-1, 1, 4, dtype=torch.float64)
    found = fishers(prepared, w)["fisher"]
    for k in range(4):
        part = federation.train.of(k)
        assert_same(found[k], ((part.x @ w - part.y)[:, None] * part.x).square().mean(0))


def test_clients_report_the_curvature_where_they_have_got_to(blobs: Make) -> None:
    federation, method = blobs(), fedcurv(**TRAINING)
    prepared = ready(method, federation)
    theirs, found = (locals_of(prepared, prepared.state, name) for name in ("model", "fisher"))
    state, _ = run_round(method, prepared.state, prepared.clients)
    for k in range(5):
        assert_same(found[k], by_hand(prepared, theirs[k], k))
    assert_same(state.centers["fisher"][0], found.sum(0))
    assert_same(state.centers["pull"][0], (found * theirs).sum(0))
    assert_same(state.kept["own_fisher"], found)


@every_executor
def test_labels_of_the_model_come_as_often_as_it_says(executor: Any, made: Make) -> None:
    # One constant input: the gradient for class c is p_c - [y = c], so its mean square tells how often y was c.
    n, classes = 12_800, 3
    one = torch.ones(n, 1, dtype=torch.float64), torch.zeros(n, dtype=torch.int64)
    prepared = ready(fedcurv(), made([one], classes=classes), model=linear, executor=executor)
    w = torch.tensor([0.3, -1.0, 0.2], dtype=torch.float64)
    p = w.softmax(0)
    for round in (0, 1):
        found = fishers(prepared, w, "model", round=round)["fisher"][0]
        often = (found - p.square()) / (1 - 2 * p)
        assert float(often.sum()) == pytest.approx(1)
        assert bool(((often - p).abs() < 5 * (p * (1 - p) / n).sqrt()).all())


def test_labels_of_the_model_depend_on_the_key_alone(blobs: Make) -> None:
    federation = blobs((23, 1, 300, 12))
    prepared = ready(fedcurv(), federation, executor="stacked")
    w = prepared.clients.task.start()["model"][0]
    first = fishers(prepared, w, "model")["fisher"]
    assert differ(first, fishers(prepared, w)["fisher"])
    for other in (
        ready(fedcurv(), federation, executor="looped"),
        ready(fedcurv(labels="model", lr=0.3), replace(federation, train=relabelled(federation))),
    ):
        assert_same(fishers(other, w, "model")["fisher"], first)
    assert_same(fishers(prepared, w, "model", clients=[3, 2])["fisher"], first[[3, 2]])  # in other company
    torch.manual_seed(99)
    assert torch.equal(fishers(prepared, w, "model")["fisher"], first)
    assert differ(fishers(prepared, w, "model", round=4)["fisher"], first)
    assert differ(fishers(ready(fedcurv(), federation, seed=1), w, "model")["fisher"], first)


def relabelled(federation: Federation) -> Any:
    return replace(federation.train, y=(federation.train.y + 1) % 3)


def test_labels_of_the_model_are_a_setting_of_the_method(blobs: Make) -> None:
    runs = [model(fedcurv(strength=0.5, labels=labels, **TRAINING), blobs()) for labels in ("true", "model")]
    assert differ(*runs)
    with pytest.raises(UsageError, match="labels must be 'true' or 'model', got 'given'"):
        fedcurv(labels="given")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"Curvature.strength must be >= 0, got -1"):
        fedcurv(strength=-1)


def test_a_batch_squared_would_be_too_small(blobs: Make) -> None:
    prepared = ready(fedcurv(), blobs((200,)))
    w = prepared.clients.task.start()["model"][0].requires_grad_()
    train = prepared.federation.train
    loss = nn.functional.cross_entropy(prepared.clients.task.outputs({"model": w}, train.x), train.y)
    (mean,) = torch.autograd.grad(loss, w)
    ratio = float(fishers(prepared, w.detach())["fisher"].sum() / mean.square().sum())
    assert ratio > 3 and math.isfinite(ratio)


def curved(u: float, v: float, at: float = 0.3) -> dict[str, Tensor]:
    """One client, one parameter, whose others pull with curvature u towards v / u."""
    one = torch.ones(1, dtype=torch.float64)
    return {"fisher": u * one, "own_fisher": 0 * one, "pull": v * one, "own_pull": 0 * one, "model": at * one}


@pytest.mark.parametrize("lr", [1e-6, 1e-4])
def test_the_implicit_step_is_the_explicit_one_where_steps_are_small(lr: float) -> None:
    row = curved(u=3.0, v=2.0)
    explicit, implicit = Curvature(0.7), Curvature(0.7, implicit=True)
    w = row["model"].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(explicit.penalty(row | {"model": w}), w)
    there = implicit.correct(row["model"], row, lr)
    assert implicit.penalty(row) == 0.0
    torch.testing.assert_close(there, (w - lr * gradient).detach(), rtol=0, atol=30 * lr**2)


def test_the_implicit_step_is_stable_where_the_explicit_one_is_not() -> None:
    """Steps of any size end where the penalty is least, at v / u."""
    row, term = curved(u=1e6, v=5e5), Curvature(1.0, implicit=True)
    w = row["model"]
    for _ in range(50):
        w = term.correct(w, row, 0.1)
    torch.testing.assert_close(w, torch.full((1,), 0.5, dtype=torch.float64))


def test_steps_too_long_for_the_curvature_warn_with_the_bound() -> None:
    row = {name: value[None] for name, value in curved(u=50.0, v=1.0).items()}
    with pytest.warns(UserWarning, match=r"max\(u\) = 10 is not below 2.*implicit=True.*strength below 0.2"):
        Curvature(1.0).check(row, lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Curvature(1.0, implicit=True).check(row, lr=0.1)
        Curvature(0.19).check(row, lr=0.1)
