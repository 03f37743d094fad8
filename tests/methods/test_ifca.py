"""IFCA: the laws of choosing, and of the centers that are chosen."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import polycentric as pc
from polycentric import UsageError
from polycentric.data import Federation, mixture
from polycentric.learn import Choose, candidates
from polycentric.models import mlp
from polycentric.round import opened, receive
from polycentric.runs.evaluate import all_clients
from polycentric.runs.start import prepare
from support import small


@pytest.fixture(scope="module")
def rotated() -> Federation:
    return pc.load("digits", partition=pc.Rotations(4), clients=40)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("executor", ["looped", "stacked"])
def test_one_center_is_fedavg(rotated: Federation, weighted: bool, executor: str) -> None:
    how: dict[str, Any] = {"rounds": 3, "dtype": "float64", "executor": executor, "fine_tune": 0}
    one = pc.run(pc.ifca(k=1, weighted=weighted, lr=0.1), rotated, **how)
    average = pc.run(pc.fedavg(equal=not weighted, lr=0.1), rotated, **how)
    torch.testing.assert_close(one.state.centers["model"], average.state.centers["model"], rtol=1e-10, atol=1e-10)
    assert one.metrics["micro_accuracy"] == average.metrics["micro_accuracy"]


def test_centers_begin_apart_and_the_first_as_every_other_method(rotated: Federation) -> None:
    start = prepare(pc.ifca(k=3), rotated).state.centers["model"]
    assert torch.equal(start[0], prepare(pc.fedavg(), rotated).state.centers["model"][0])
    assert not torch.allclose(start[0], start[1]) and not torch.allclose(start[1], start[2])
    assert float(start[1].std()) == pytest.approx(float(start[0].std()), rel=0.1)


def test_a_model_given_with_its_numbers_cannot_begin_apart(rotated: Federation) -> None:
    module = mlp((1, 8, 8), 10)
    with pytest.raises(UsageError, match=r"begin differently.*name, its class"):
        prepare(pc.ifca(k=2), rotated, model=module)
    prepare(pc.ifca(k=2, first="clustered"), rotated, model=module)


@pytest.mark.parametrize("executor", ["looped", "stacked"])
def test_a_client_chooses_by_its_mean_training_loss_alone(blobs: Any, executor: str) -> None:
    federation = blobs((23, 7, 12, 300, 0))
    run = prepare(pc.ifca(k=3), federation, model=small, dtype="float64", executor=executor, block=2)
    exchange = run.method.at(0)[0]
    everyone = all_clients(run.clients, run.state)
    received = receive(exchange, run.state, everyone)
    assert set(received) == set(candidates(3))
    rows = opened(exchange, received, run.clients.run, everyone)
    centers, task = run.state.centers["model"], run.clients.task
    for k in range(4):
        mine = federation.train.of(k)
        losses = [
            float(task.loss(task.predict({"model": c}, task.inputs(mine.x)), mine.y).mean().detach()) for c in centers
        ]
        best = min(range(3), key=lambda j: losses[j])
        assert int(rows["choice"][k]) == best
        assert torch.equal(rows["model"][k], centers[best])
    assert int(rows["choice"][4]) == -1  # no examples: the first
    assert torch.equal(rows["model"][4], centers[0])


def test_ties_go_to_the_first_and_a_loss_that_is_not_finite_never_wins(blobs: Any) -> None:
    run = prepare(pc.ifca(k=4), blobs(), model=small, dtype="float64")
    everyone = run.clients.everyone(0)
    c = run.state.centers["model"].clone()
    c[0], c[2], c[3] = math.nan, c[1], math.inf
    rows = {name: c[j].expand(len(everyone), -1) for j, name in enumerate(candidates(4))}
    chosen = run.clients.run(Choose(4), rows, everyone)
    assert chosen["choice"].flatten().tolist() == [1.0] * 5
    broken = run.clients.run(Choose(2), {n: torch.full_like(rows[n], math.nan) for n in candidates(2)}, everyone)
    assert broken["choice"].flatten().tolist() == [-1.0] * 5


def test_scores_are_those_of_the_center_that_training_examples_choose(rotated: Federation) -> None:
    """Never the best on the test examples."""
    run = pc.run(pc.ifca(k=4, lr=0.1), rotated, rounds=2, fine_tune=0)
    exchange, everyone = run.method.at(2)[0], run.clients.everyone(2)
    rows = opened(exchange, receive(exchange, run.state, everyone), run.clients.run, everyone)
    right = 0
    for k in range(40):
        mine = rotated.test.of(k)
        outputs = run.clients.task.predict({"model": rows["model"][k]}, run.clients.task.inputs(mine.x))
        right += int((outputs.argmax(-1) == mine.y).sum())
    assert run.metrics["micro_accuracy"] == pytest.approx(right / len(rotated.test))


def test_a_center_that_nobody_chose_keeps_its_model_and_the_others_are_means(rotated: Federation) -> None:
    run = prepare(pc.ifca(k=2, lr=0.1), rotated, dtype="float64")
    centers = run.state.centers["model"].clone()
    centers[1] *= 1e3  # an awful center
    state = type(run.state)({"model": centers}, {}, run.state.memory, 0)
    answers = list(run.clients.answers(run.method.at(0)[0], state, run.clients.everyone(0)))
    sent = torch.cat([answer.sent["model"] for answer in answers])
    after, _ = pc.run_round(run.method, state, run.clients)
    assert after.memory["assignment"].tolist() == [0] * 40
    assert torch.equal(after.centers["model"][1], centers[1])
    torch.testing.assert_close(after.centers["model"][0], sent.mean(0), rtol=1e-10, atol=1e-10)


def test_gradient_averaging_moves_a_center_by_the_share_that_chose_it(rotated: Federation) -> None:
    step: dict[str, Any] = {"k": 3, "lr": 0.1, "steps": 1, "batch": None}
    runs = [prepare(pc.ifca(gradients=g, **step), rotated, dtype="float64") for g in (False, True)]
    start = runs[0].state.centers["model"]
    (by_model, _), (by_gradient, _) = (pc.run_round(r.method, r.state, r.clients) for r in runs)
    share = torch.bincount(by_model.memory["assignment"], minlength=3).double() / 40
    assert 0 < float(share[0]) < 1
    moved = [state.centers["model"] - start for state in (by_model, by_gradient)]
    torch.testing.assert_close(moved[1], share[:, None] * moved[0], rtol=1e-9, atol=1e-12)


def test_k_models_come_down_and_one_goes_up_with_a_number(rotated: Federation) -> None:
    run = pc.run(pc.ifca(k=3), rotated, rounds=2, fine_tune=0)
    d = run.state.centers["model"].shape[1]
    assert run.tally.bytes_down == 2 * 40 * 3 * d * 4
    assert run.tally.bytes_up == 2 * 40 * (d + 1) * 4


@pytest.mark.parametrize("first", ["random", "clustered"])
def test_more_centers_than_clients_are_not_made_and_that_is_said(blobs: Any, first: Any) -> None:
    """K = 9 of 5 clients is K = 5, in its numbers and in its bytes."""
    training: dict[str, Any] = {"first": first, "lr": 0.1}
    with pytest.warns(UserWarning, match="9 centers were asked for, but there are only 5 clients"):
        many = pc.run(pc.ifca(k=9, **training), blobs(), model=small, rounds=3)
    five = pc.run(pc.ifca(k=5, **training), blobs(), model=small, rounds=3)
    assert many.state.centers["model"].shape[0] == 5 and many.history == five.history
    assert torch.equal(many.state.centers["model"], five.state.centers["model"])
    assert many.tally.links == five.tally.links and many.tally.seconds == five.tally.seconds


def test_who_never_trained_is_scored_under_the_center_its_examples_choose(rotated: Federation) -> None:
    run = pc.run(pc.ifca(k=4, first="clustered", lr=0.1, epochs=5), rotated, rounds=8, held_out=0.25, fine_tune=0)
    average = pc.run(pc.fedavg(lr=0.1, epochs=5), rotated, rounds=8, held_out=0.25, fine_tune=0)
    assert run.summary()["held_out"]["in_use"]["micro_accuracy"] > (
        average.summary()["held_out"]["in_use"]["micro_accuracy"] + 0.05
    )


def test_bad_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="k must be at least 1, got 0"):
        pc.ifca(k=0)
    with pytest.raises(UsageError, match="first must be random or clustered, got 'x'"):
        pc.ifca(first="x")  # type: ignore[arg-type]


def found_groups(seed: int) -> float:
    federation = pc.load("digits", partition=pc.Rotations(4), clients=40, seed=seed)
    method = pc.ifca(k=4, first="clustered", lr=0.1, epochs=5)
    return pc.run(method, federation, rounds=10, seed=seed, evaluate_every=10, fine_tune=0).metrics["ari"]


def test_true_groups_are_found() -> None:
    assert found_groups(0) >= 0.95


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 5))
def test_true_groups_are_found_with_other_seeds(seed: int) -> None:
    assert found_groups(seed) >= 0.95


def test_choosing_among_more_centers_is_more_work(blobs: Any) -> None:
    """K losses without their gradients cost as much as K/3 epochs; there are never more than clients."""
    mean = blobs().train.sizes.double().mean().item()
    for k in (1, 2, 4):
        run = pc.run(pc.ifca(k=k, lr=0.1, epochs=2), blobs(), model=small, rounds=1, fine_tune=0)
        assert run.tally.work["examples"] == pytest.approx((2 + k / 3) * mean)


def test_outliers_get_no_center_of_their_own() -> None:
    groups = pc.load(mixture(k=2, clients=24))
    how: dict[str, Any] = {"model": "logistic", "rounds": 3, "fine_tune": 0, "attack": pc.LargeNorm(0.2, 30.0)}
    training: dict[str, Any] = {"k": 2, "first": "clustered", "warm_up": 30, "lr": 0.3, "steps": 1, "batch": None}
    rule = pc.NearestNeighbours(pc.Median(), 0.4)
    captured = pc.run(pc.ifca(aggregate=rule, **training), groups, **how).metrics
    trimmed = pc.run(pc.ifca(aggregate=rule, outliers=0.25, **training), groups, **how).metrics
    assert captured["ari"] == 0 and trimmed["ari"] == 1
    assert trimmed["macro_loss"] < 0.1 * captured["macro_loss"]
    with pytest.raises(pc.UsageError, match=r"outliers=0.2 is of the clustering in round 0"):
        pc.ifca(outliers=0.2)
