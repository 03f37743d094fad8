"""Every "reduces to": methods that are equal in theory, on the same minibatches, are equal to rounding.

The names I1, P1, R1, ... are those of the specifications of the methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from polycentric import (
    SGD,
    Everyone,
    Method,
    Momentum,
    Poisson,
    Prox,
    Star,
    Stragglers,
    TrimmedMean,
    Uniform,
    fedavg,
    feddist,
    feddws,
    fedprox,
    fedsgd,
    nofed,
    run_round,
)
from polycentric.learn import BatchSchedule
from polycentric.learn.batches import plan_of
from polycentric.runs.start import prepare
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.stack import Layout
from support import Make, assert_same, differ, model, small

# Minibatches, momentum and a decaying rate: equal methods must agree in all of it.
TRAINING: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch": 5, "momentum": 0.5, "decay": 0.9}


# -- FedAvg, FedSGD, NoFed -----------------------------------------------------------------------------------


def test_I1_fedsgd_is_fedavg_with_one_full_batch_step(blobs: Make) -> None:
    one_step = model(fedavg(lr=0.1, steps=1, batch=None), blobs())
    assert_same(model(fedsgd(lr=0.1), blobs()), one_step)
    assert_same(model(fedavg(lr=0.1, epochs=1, batch=None), blobs()), one_step)
    assert differ(model(fedavg(lr=0.1, epochs=3, batch=None), blobs()), one_step)


def test_I1_fedsgd_is_gradient_descent_on_the_pooled_data(blobs: Make) -> None:
    federation = blobs()
    prepared = prepare(fedsgd(lr=0.1), federation, model=small, dtype="float64")
    module, w = prepared.clients.task.module, prepared.state.centers["model"][0]
    for _ in range(3):
        w = w.detach().requires_grad_()
        outputs = torch.func.functional_call(module, Layout.of(module).views(w), (federation.train.x,))
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(outputs, federation.train.y), w)
        w = w - 0.1 * gradient
    assert_same(model(fedsgd(lr=0.1), federation)[0], w.detach())


def test_I2_one_client_fedavg_is_plain_sgd(blobs: Make) -> None:
    federation = blobs((17,))
    prepared = prepare(fedavg(**TRAINING), federation, model=small, dtype="float64")
    module, x, y = prepared.clients.task.module, federation.train.x, federation.train.y
    expected = small((6,), 3).double()
    expected.load_state_dict(module.state_dict())
    for round in range(3):
        lr = TRAINING["lr"] * TRAINING["decay"] ** round
        optimizer = torch.optim.SGD(expected.parameters(), lr=lr, momentum=TRAINING["momentum"])
        everyone = prepared.clients.everyone(round)
        batches = BatchSchedule(federation.train, everyone, plan_of(everyone, epochs=2, steps=None, batch=5))
        for s in range(batches.n_steps):
            index = batches.index[s, 0, : batches.counts[s, 0]]
            optimizer.zero_grad()
            nn.functional.cross_entropy(expected(x[index]), y[index]).backward()
            optimizer.step()
    layout = Layout.of(module)
    assert_same(model(fedavg(**TRAINING), federation)[0], layout.row(dict(expected.named_parameters())))


def test_I2_one_client_fedavg_is_training_alone(blobs: Make) -> None:
    assert_same(model(fedavg(**TRAINING), blobs((17,))), model(nofed(**TRAINING), blobs((17,))))
    assert differ(model(fedavg(**TRAINING), blobs()), model(nofed(**TRAINING), blobs())[:1])


def test_I3_with_identical_data_any_mixing_gives_the_same(blobs: Make) -> None:
    one = blobs((20,)).train
    twins = blobs((20,) * 4)
    twins = replace(
        twins, train=replace(twins.train, x=one.x.repeat(4, 1), y=one.y.repeat(4), offset=torch.arange(5) * 20)
    )
    training = TRAINING | {"batch": None}
    alone = model(nofed(**training), twins)
    for row in alone:
        assert_same(row, alone[0])
    for method in (
        fedavg(**training),
        fedavg(equal=True, **training),
        fedavg(select=Uniform(n=2), **training),
        fedavg(aggregate=TrimmedMean(0.3), **training),
        feddws(eps=1.0, **training),
    ):
        assert_same(model(method, twins)[0], alone[0])


def test_I6_permuting_clients_permutes_nothing_but_rows(blobs: Make) -> None:
    federation, order = blobs((8, 8, 8)), torch.tensor([2, 0, 1])
    split = federation.train
    place = torch.cat([torch.arange(8) + 8 * k for k in order.tolist()])
    permuted = replace(federation, train=replace(split, x=split.x[place], y=split.y[place]))
    training = TRAINING | {"batch": None}
    assert_same(model(nofed(**training), permuted), model(nofed(**training), federation)[order])
    assert_same(model(fedavg(**training), permuted), model(fedavg(**training), federation))


@pytest.mark.parametrize("split_first", [True, False])
def test_I7_a_client_in_two_halves_of_the_same_data_changes_nothing(split_first: bool, blobs: Make, made: Make) -> None:
    a, b = (blobs((12, 9)).train.of(k) for k in (0, 1))
    twice = [(a.x.repeat(2, 1), a.y.repeat(2))], [(a.x, a.y), (a.x, a.y)]  # the same loss, the same weight
    parts = [(b.x, b.y)]
    whole, halves = ((t + parts if split_first else parts + t) for t in twice)
    training = TRAINING | {"batch": None}
    assert_same(*(model(fedavg(**training), made(clients, classes=3)) for clients in (whole, halves)))


# -- FedProx -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implicit", [False, True])
def test_P1_fedprox_without_mu_is_fedavg(implicit: bool, blobs: Make) -> None:
    plain = model(fedavg(**TRAINING), blobs())
    assert_same(model(fedprox(mu=0.0, implicit=implicit, **TRAINING), blobs()), plain)
    assert differ(model(fedprox(mu=3.0, implicit=implicit, **TRAINING), blobs()), plain)


def test_P1_fedprox_is_fedavg_with_a_term(blobs: Make) -> None:
    training = TRAINING | {"terms": (Prox(0.7),)}
    assert_same(model(fedprox(mu=0.7, **TRAINING), blobs()), model(fedavg(**training), blobs()))


@pytest.mark.parametrize("mu", [0.1, 7.0])
def test_P2_with_one_local_step_fedprox_is_fedavg_for_every_mu(mu: float, blobs: Make) -> None:
    one = {"lr": 0.1, "steps": 1, "batch": 5}
    assert_same(model(fedprox(mu=mu, **one), blobs()), model(fedavg(**one), blobs()))


@pytest.mark.parametrize("mu", [1e3, 1e6, 1e9])
def test_P4_as_mu_grows_clients_stay_where_they_began(mu: float, blobs: Make) -> None:
    training = TRAINING | {"momentum": 0.0}
    start = model(nofed(**training), blobs(), rounds=0)
    alone = (model(nofed(**training), blobs()) - start).abs().max()
    tied = (model(fedprox(mu=mu, implicit=True, **training), blobs()) - start[:1]).abs().max()
    assert 0 < tied < 300 * alone / mu


# -- FedDist and FedDWS --------------------------------------------------------------------------------------


def test_R1_a_whole_step_is_averaging(blobs: Make) -> None:
    equal, weighted = model(fedavg(equal=True, **TRAINING), blobs()), model(fedavg(**TRAINING), blobs())
    assert_same(model(feddist(eps=1.0, **TRAINING), blobs()), equal)
    assert_same(model(feddws(eps=1.0, **TRAINING), blobs()), weighted)
    assert differ(equal, weighted)


@pytest.mark.parametrize("method", [feddist, feddws])
def test_R2_a_step_of_zero_changes_nothing(method: Callable[..., Method], blobs: Make) -> None:
    start = model(method(eps=0.0, **TRAINING), blobs(), rounds=0)
    assert torch.equal(model(method(eps=0.0, **TRAINING), blobs()), start)


def test_R3_with_equal_sizes_feddist_is_feddws(blobs: Make) -> None:
    a, b = (model(method(eps=0.3, **TRAINING), blobs((9, 9, 9))) for method in (feddist, feddws))
    assert_same(a, b)
    a, b = (model(method(eps=0.3, **TRAINING), blobs((2, 9, 30))) for method in (feddist, feddws))
    assert differ(a, b)


@pytest.mark.parametrize("eps", [0.3, 0.6, 1.5])
def test_R4_feddist_is_reptile_with_a_center_that_takes_sgd_steps(eps: float, blobs: Make) -> None:
    reptile = fedavg(equal=True, center=SGD(eps), **TRAINING)
    assert_same(model(feddist(eps=eps, **TRAINING), blobs()), model(reptile, blobs()))
    assert_same(model(feddws(eps=eps, **TRAINING), blobs()), model(fedavg(center=SGD(eps), **TRAINING), blobs()))


# -- parts that do nothing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("select", [Poisson(1.0), Uniform(share=1.0), Uniform(n=5), Stragglers(Everyone(), 0.0)])
def test_a_selection_of_all_is_everyone(select: Any, blobs: Make) -> None:
    assert torch.equal(model(fedavg(select=select, **TRAINING), blobs()), model(fedavg(**TRAINING), blobs()))


@pytest.mark.parametrize("method", [fedavg, fedprox])
def test_no_stragglers_is_none(method: Callable[..., Method], blobs: Make) -> None:
    none = model(method(stragglers=0.0, **TRAINING), blobs())
    assert torch.equal(none, model(method(**TRAINING), blobs()))
    assert differ(model(method(stragglers=0.6, **TRAINING | {"epochs": 5}), blobs()), none)


def test_fedavg_drops_stragglers_and_fedprox_takes_what_they_did(blobs: Make) -> None:
    federation = blobs((9,) * 10)
    asked: dict[str, Cohort] = {}
    for method in (fedavg(stragglers=0.3, **TRAINING), fedprox(stragglers=0.3, **TRAINING)):
        clients = prepare(method, federation, model=small).clients
        asked[method.name] = method.at(0)[0].select({}, clients.everyone(0))
    slow = asked["fedprox"].effort < 1
    assert int(slow.sum()) == 3
    assert asked["fedavg"].index.tolist() == asked["fedprox"].index[~slow].tolist()


@pytest.mark.parametrize("center", [SGD(1.0), SGD(1), Momentum(1.0, 0.0)])
def test_a_center_with_a_step_of_one_averages(center: Any, blobs: Make) -> None:
    assert_same(model(fedavg(center=center, **TRAINING), blobs()), model(fedavg(**TRAINING), blobs()))


@pytest.mark.parametrize("select", [Everyone(), Uniform(n=3)])
def test_a_trimmed_mean_that_trims_nothing_is_equal_weight_fedavg(select: Any, blobs: Make) -> None:
    trimmed = model(fedavg(aggregate=TrimmedMean(0.0), select=select, **TRAINING), blobs())
    assert_same(trimmed, model(fedavg(equal=True, select=select, **TRAINING), blobs()))


def test_a_fixed_denominator_of_all_clients_is_equal_weight_fedavg(blobs: Make) -> None:
    equal = fedavg(equal=True, **TRAINING)
    (exchange,) = equal.at(0)
    fixed = Method.of("fixed", replace(exchange, topology=Star(denominator=5)))
    assert_same(model(fixed, blobs()), model(equal, blobs()))


def test_weights_are_those_of_the_participants_not_of_all_clients(blobs: Make) -> None:
    federation, method = blobs(), fedavg(select=Uniform(n=2), **TRAINING)
    prepared = prepare(method, federation, model=small, dtype="float64")
    state, (trip,) = run_round(method, prepared.state, prepared.clients)
    alone = model(nofed(**TRAINING), federation, rounds=1)[trip.cohort.index]
    n = trip.cohort.sizes.double()
    assert_same(state.centers["model"][0], n @ alone / n.sum())


def test_one_example_of_a_client_is_one_step(blobs: Make) -> None:
    federation = blobs((1, 1, 1))
    a, b = (model(fedavg(lr=0.1, epochs=2, batch=batch), federation) for batch in (None, 7))
    assert_same(a, b)
