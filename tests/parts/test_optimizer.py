"""Optimizers: the rules of torch, for a stack of models, at a client and at a center."""

import pytest
import torch
from torch.testing import assert_close

from polycentric.errors import UsageError
from polycentric.parts.optimizer import SGD, Adam, AdaptiveMu, Average, Momentum
from polycentric.stacks.mixing import Heard
from support import random

RULES = (SGD(0.3), Momentum(0.3, 0.8), Adam(0.3, 0.8, 0.9, 1e-6))


def torch_rule(rule, parameters):
    if isinstance(rule, SGD):
        return torch.optim.SGD(parameters, lr=rule.lr)
    if isinstance(rule, Momentum):
        return torch.optim.SGD(parameters, lr=rule.lr, momentum=rule.beta)
    return torch.optim.Adam(parameters, lr=rule.lr, betas=(rule.beta1, rule.beta2), eps=rule.eps)


def everybody(values, mask=None):
    return {"model": Heard(values, torch.ones(len(values), dtype=torch.bool) if mask is None else mask)}


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("shape", [(5,), (3, 5)])
def test_at_a_client_a_rule_is_torchs_own(rule, shape):
    w = random(0, *shape)
    reference = w.clone().requires_grad_()
    optimizer, moments = torch_rule(rule, [reference]), rule.moments(w)
    for step in range(6):
        gradient = random(step + 1, *shape)
        reference.grad = gradient.clone()
        optimizer.step()
        update, moments = rule.update(gradient, moments)
        w = w - update
        assert_close(w, reference.detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_at_a_center_the_gradient_is_center_minus_heard(rule):
    centers = {"model": random(0, 2, 5)}
    reference = centers["model"].clone().requires_grad_()
    optimizer = torch_rule(rule, [reference])
    for step in range(6):
        heard = random(step + 1, 2, 5)
        reference.grad = reference.detach() - heard
        optimizer.step()
        centers = rule.step(centers, everybody(heard))
        assert_close(centers["model"], reference.detach(), rtol=1e-10, atol=1e-10)


def test_sgd_with_rate_one_is_averaging():
    centers, heard = {"model": random(0, 3, 5)}, everybody(random(1, 3, 5))
    assert_close(SGD(1).step(centers, heard)["model"], Average().step(centers, heard)["model"], rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("lr", [1.0, 0.3])
def test_momentum_without_memory_is_sgd(lr):
    a = b = {"model": random(0, 3, 5)}
    for step in range(4):
        heard = everybody(random(step + 1, 3, 5))
        a, b = SGD(lr).step(a, heard), Momentum(lr, beta=0).step(b, heard)
    assert torch.equal(a["model"], b["model"])


@pytest.mark.parametrize("rule", [SGD(0), Momentum(0), Adam(0)], ids=str)
def test_rate_zero_stands_still(rule):
    centers = {"model": random(0, 3, 5)}
    for step in range(3):
        stepped = rule.step(centers, everybody(random(step + 1, 3, 5)))
        assert torch.equal(stepped["model"], centers["model"])


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_neither_a_center_that_heard_nobody_nor_its_moments_move(rule):
    """A center skipped for some rounds ends where it would have ended without those rounds."""
    here, alone = {"model": random(0, 2, 5)}, {"model": random(0, 2, 5)[1:]}
    for step in range(6):
        heard, there = random(step + 1, 2, 5), step % 2 == 0
        before = here
        mask = torch.tensor([True, there])
        here = rule.step(here, everybody(heard, mask))
        if there:
            alone = rule.step(alone, everybody(heard[1:]))
        elif len(before) == len(here):
            assert all(torch.equal(here[name][1], before[name][1]) for name in here)
    assert here.keys() == alone.keys()
    for name in here:
        assert_close(here[name][1:], alone[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", [Average(), *RULES], ids=str)
def test_other_names_are_taken_as_heard(rule):
    centers = {"model": random(0, 2, 5), "fisher": random(1, 2, 3), "quiet": random(2, 2, 1)}
    fisher = random(3, 2, 3)
    after = rule.step(centers, {"fisher": Heard(fisher, torch.ones(2, dtype=torch.bool))})
    assert torch.equal(after["fisher"], fisher)
    assert torch.equal(after["model"], centers["model"])
    assert torch.equal(after["quiet"], centers["quiet"])
    assert after.keys() == centers.keys()


@pytest.mark.parametrize("rule", [Average(), *RULES], ids=str)
def test_a_step_changes_nothing_in_place(rule):
    centers, heard = {"model": random(0, 2, 5)}, random(1, 2, 5)
    centers = rule.step(centers, everybody(heard))
    before = {name: rows.clone() for name, rows in centers.items()}
    rule.step(centers, everybody(heard))
    assert all(torch.equal(before[name], centers[name]) for name in centers)
    assert torch.equal(heard, random(1, 2, 5))


def test_mu_rises_with_the_loss_and_falls_after_enough_falls_in_a_row():
    centers = {
        name: torch.full((1, 1), value)
        for name, value in zip(("model", "loss", "mu", "falls"), (0.0, torch.inf, 0.5, 0.0), strict=True)
    }
    steps = [(3, 0.5, 0), (4, 0.6, 0), (4, 0.6, 0), (3, 0.6, 1), (2, 0.5, 0), (1, 0.5, 1), (1, 0.5, 0), (5, 0.6, 0)]
    for loss, mu, falls in steps:  # the first has nothing before it to fall from
        told = {name: everybody(torch.full((1, 1), float(loss)))["model"] for name in ("model", "loss")}
        centers = AdaptiveMu(Average(), by=0.1, patience=2).step(centers, told)
        assert float(centers["mu"]) == pytest.approx(mu) and float(centers["falls"]) == falls


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_center_steps_by_itself(rule):
    both, apart = {"model": random(0, 2, 5)}, [{"model": random(0, 2, 5)[k : k + 1]} for k in range(2)]
    for step in range(3):
        heard = random(step + 1, 2, 5)
        both = rule.step(both, everybody(heard))
        apart = [rule.step(one, everybody(heard[k : k + 1])) for k, one in enumerate(apart)]
    for name in both:
        assert torch.equal(both[name], torch.cat([one[name] for one in apart]))


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: SGD(-1), "SGD.lr must be >= 0, got -1; try 1"),
        (lambda: SGD(float("nan")), "SGD.lr must be >= 0, got nan; try 1"),
        (lambda: Momentum(-1), "Momentum.lr must be >= 0, got -1; try 1"),
        (lambda: Momentum(1, 1.0), "Momentum.beta must be in [0, 1), got 1.0; try 0.9"),
        (lambda: Adam(-1), "Adam.lr must be >= 0, got -1; try 0.001"),
        (lambda: Adam(beta1=1.0), "Adam.beta1 must be in [0, 1), got 1.0; try 0.9"),
        (lambda: Adam(beta2=-0.1), "Adam.beta2 must be in [0, 1), got -0.1; try 0.999"),
        (lambda: Adam(eps=0), "Adam.eps must be positive, got 0; try 1e-5"),
    ],
)
def test_a_mistake_is_named(build, text):
    with pytest.raises(UsageError) as wrong:
        build()
    assert str(wrong.value) == text
