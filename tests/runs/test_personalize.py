"""Beside the round: clients held out of training, fine-tuning curves, and how unlike the clients are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import polycentric as pc
from polycentric.data import Federation, Split
from polycentric.learn import Gradient
from polycentric.runs.evaluate import evaluate
from polycentric.runs.models_apart import dissimilarity
from polycentric.runs.personalize import personalize
from polycentric.runs.start import prepare

EXECUTORS = ["looped", "stacked"]


@pytest.fixture(scope="module")
def digits() -> Federation:
    return pc.load("digits", partition=pc.Dirichlet(12, 0.5, at_least=4), seed=1)


def test_held_out_clients_never_train_and_are_scored_apart(digits: Federation) -> None:
    how = {"dtype": "float64", "held_out": 0.25, "rounds": 3, "fine_tune": 1}
    run = pc.run(pc.fedavg(lr=0.1), digits, **how)
    new = run.clients.held_out_mask
    assert int(new.sum()) == 3
    assert not set(run.clients.everyone(0).index.tolist()) & set(new.nonzero()[:, 0].tolist())

    # Nothing the new clients have reaches the model: garbage in their training data changes no bit.
    x = digits.train.x.clone()
    x[new[digits.train.owner]] = 255
    other = pc.run(pc.fedavg(lr=0.1), replace(digits, train=Split(x, digits.train.y, digits.train.offset)), **how)
    assert torch.equal(run.state.centers["model"], other.state.centers["model"])

    scores = run.scores["in_use"]
    count, accuracy = scores.count, np.nan_to_num(scores.accuracy)
    for which, told in ((~new.numpy(), run.metrics), (new.numpy(), run.summary()["held_out"]["in_use"])):
        expected = (count * accuracy)[which].sum() / count[which].sum()
        assert told["micro_accuracy"] == pytest.approx(expected, abs=1e-12)
    assert run.history[-1]["held_out_macro_accuracy"] == run.summary()["held_out"]["in_use"]["macro_accuracy"]


def test_runs_of_several_seeds_can_hold_out_the_same_clients(digits: Federation) -> None:
    def new(seed: int, chosen: int | None) -> list[bool]:
        run = prepare(pc.fedavg(), digits, held_out=0.5, seed=seed, held_out_seed=chosen)
        return list(run.clients.held_out_mask.tolist())

    assert new(3, 0) == new(4, 0) == new(0, None) != new(3, None)


def test_who_is_held_out_depends_on_the_seed_alone(digits: Federation) -> None:
    def new(seed: int, method: pc.Method) -> torch.Tensor:
        return prepare(method, digits, held_out=0.5, seed=seed).clients.held_out_mask

    assert torch.equal(new(3, pc.fedavg()), new(3, pc.nofed()))
    assert not torch.equal(new(3, pc.fedavg()), new(4, pc.fedavg()))
    with pytest.raises(pc.UsageError, match="held_out in the arguments: input should be less than 1"):
        prepare(pc.fedavg(), digits, held_out=1.0)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_no_steps_is_the_model_in_use_and_the_run_stays_as_it_is(digits: Federation, executor: str) -> None:
    run = pc.run(pc.fedavg(lr=0.1), digits, rounds=3, executor=executor, fine_tune=0)
    before = {name: rows.clone() for name, rows in run.state.centers.items()}
    points = personalize(run, (0, 1, 4))
    assert np.array_equal(points[0].scores.accuracy, run.scores["in_use"].accuracy, equal_nan=True)
    assert points[0].share_worse == 0.0
    assert all(torch.equal(before[name], run.state.centers[name]) for name in before)
    worse = points[2].scores.accuracy < points[0].scores.accuracy
    assert points[2].share_worse == pytest.approx(worse[points[0].scores.there].mean())


def test_steps_of_fine_tuning_are_the_clients_own_training(digits: Federation) -> None:
    """Training alone for one more round of s steps, from the model in use, ends at the same scores."""
    run = pc.run(pc.fedavg(lr=0.1, batch=None), digits, rounds=2, dtype="float64")
    point = personalize(run, (3,))[0]
    alone = pc.nofed(lr=0.1, batch=None, steps=3)
    lonely = prepare(alone, digits, dtype="float64")
    start = lonely.state.centers["model"].copy_(run.state.centers["model"].expand(digits.n_clients, -1))
    state, _ = pc.run_round(alone, replace(lonely.state, centers={"model": start}, round=2), lonely.clients)
    expected = evaluate(alone, state, lonely.clients, digits.test)
    assert np.array_equal(point.scores.accuracy, expected.accuracy, equal_nan=True)
    np.testing.assert_allclose(point.scores.loss, expected.loss, rtol=1e-10)


def test_maml_is_personalised_by_its_inner_steps(digits: Federation) -> None:
    run = pc.run(pc.maml(lr=0.05, steps=2), digits, rounds=2)
    assert run.summary()["personalised"]["micro_accuracy"] >= 0
    assert len(personalize(run, (0, 2))) == 2


@pytest.mark.parametrize("executor", EXECUTORS)
def test_dissimilarity_is_its_formula(digits: Federation, executor: str) -> None:
    run = prepare(pc.fedavg(), digits, dtype="float64", executor=executor, block=5)
    everyone = run.clients.everyone(0)
    rows = {"model": run.state.centers["model"].expand(len(everyone), -1)}
    gradients = run.clients.run(Gradient(), rows, everyone)["gradient"]
    mean = (everyone.weights / everyone.weights.sum()) @ gradients
    expected = float((gradients - mean).square().sum(1).mean())
    assert dissimilarity(run.method, run.state, run.clients) == pytest.approx(expected, rel=1e-9)


def test_identical_clients_are_not_dissimilar(digits: Federation) -> None:
    one = digits.train.of(int(digits.train.sizes.argmax()))
    n = len(one)
    twins = Split(one.x.repeat(3, 1, 1, 1), one.y.repeat(3), torch.arange(4) * n)
    empty = Split(one.x[:0], one.y[:0], torch.zeros(4, dtype=torch.int64))
    federation = replace(digits, train=twins, test=twins, valid=empty, clients=("a", "b", "c"), group=None)
    run = pc.run(pc.fedavg(), federation, rounds=1, dtype="float64", evaluate_every=1, fine_tune=0)
    assert dissimilarity(run.method, run.state, run.clients) < 1e-12


def test_a_few_classes_a_client_and_sizes_of_all_magnitudes() -> None:
    federation = pc.load("digits", partition=pc.Classes(60, 2), seed=0)
    labels = [set(federation.train.of(k).y.tolist()) for k in range(60)]
    assert max(map(len, labels)) == 2
    assert len({frozenset(mine) for mine in labels if len(mine) == 2}) > 20  # many pairs, not a few
    sizes = federation.train.sizes.double()
    assert float(sizes.max() / sizes.median()) > 5
    alike = pc.load("digits", partition=pc.Classes(20, 2, spread=0.0), seed=0).train.sizes.double()
    assert float(alike.max() / alike.min()) < 1.3
    assert len(federation.train) + len(federation.test) == 1797


def test_all_classes_a_client_is_every_class() -> None:
    federation = pc.load("digits", partition=pc.Classes(5, 10, spread=0.0), seed=0)
    assert all(len(set(federation.train.of(k).y.tolist())) == 10 for k in range(5))
    with pytest.raises(pc.UsageError, match="10 classes; ask for fewer"):
        pc.load("digits", partition=pc.Classes(5, 11))
