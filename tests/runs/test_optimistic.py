"""A rule that chooses centers by the test labels: an upper bound to show, never a result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import polycentric as pc
from polycentric import Federation, KeepPrivate, Method, fedavg, fesem, nofed
from polycentric.runs.evaluate import evaluate
from polycentric.runs.loop import Run
from polycentric.runs.models_apart import optimistic
from support import Make


def trained(method: Method, federation: Federation, **how: Any) -> Run:
    return pc.run(method, federation, model="logistic", rounds=3, dtype="float64", **how)


@pytest.fixture(scope="module")
def many(blobs: Make) -> Run:
    return trained(fesem(k=3, lr=0.2, warm_up=1), blobs((20, 15, 25, 9, 30, 12), test=11, classes=4))


def test_one_center_is_the_ordinary_score(blobs: Make) -> None:
    run = trained(fedavg(lr=0.2), blobs(test=9))
    found = optimistic(run.method, run.state, run.clients, run.federation.test)
    assert found is not None
    for scores in found:
        assert scores.summary() == pytest.approx(run.scores["in_use"].summary(), abs=1e-12)


def test_no_client_is_below_its_own_center_and_the_best_is_found_by_hand(many: Run) -> None:
    found = optimistic(many.method, many.state, many.clients, many.federation.test)
    assert found is not None
    each, one = found
    by_hand = []
    for center in range(3):  # everybody at one center
        memory = many.state.memory | {"assignment": torch.full((6,), center)}
        state = replace(many.state, memory=memory)
        by_hand.append(evaluate(many.method, state, many.clients, many.federation.test))
    table = np.stack([scores.accuracy for scores in by_hand])
    assert (each.accuracy >= many.scores["in_use"].accuracy).all()
    assert np.array_equal(each.accuracy, table.max(0))
    best = max(by_hand, key=lambda scores: scores.summary()["micro_accuracy"])
    assert one.summary() == pytest.approx(best.summary(), abs=1e-12)
    assert each.summary()["micro_accuracy"] >= one.summary()["micro_accuracy"]
    chosen = table.argmax(0)
    assert each.f1 == pytest.approx([by_hand[c].f1[i] for i, c in enumerate(chosen)], abs=1e-12)


def test_the_order_of_centers_does_not_matter(many: Run) -> None:
    turned = replace(many.state, centers={"model": many.state.centers["model"].flip(0)})
    a, b = (optimistic(many.method, s, many.clients, many.federation.test) for s in (many.state, turned))
    assert a is not None and b is not None
    for x, y in zip(a, b, strict=True):
        assert x.summary()["micro_accuracy"] == y.summary()["micro_accuracy"]


@pytest.mark.parametrize("method", [nofed(lr=0.1), fedavg(lr=0.1, cut=KeepPrivate("head*"))], ids=["alone", "private"])
def test_clients_that_share_no_whole_model_have_none(blobs: Make, method: Method) -> None:
    run = pc.run(method, blobs(test=5), model="mlp", rounds=1, dtype="float64", optimistic=True)
    assert optimistic(run.method, run.state, run.clients, run.federation.test) is None
    assert run.summary()["optimistic"] is None


def test_the_summary_has_it_only_where_it_is_asked_for(many: Run, blobs: Make) -> None:
    assert "optimistic" not in many.summary()
    asked = trained(fesem(k=3, lr=0.2, warm_up=1), many.federation, optimistic=True).summary()
    assert asked["metrics"] == many.summary()["metrics"]  # it changes nothing else
    assert asked["optimistic"]["micro_accuracy"] >= asked["metrics"]["micro_accuracy"]
    assert asked["optimistic"]["micro_accuracy"] >= asked["optimistic"]["one_center"]["micro_accuracy"]
    del blobs
