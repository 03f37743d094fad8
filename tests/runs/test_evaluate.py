"""A score is what every client's own model says of its own examples, whichever way it is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch import nn

from polycentric import Cells, Federation, KeepPrivate, Method, State, Train, Uniform, fedavg, fedprox, nofed, run_round
from polycentric.data import Split
from polycentric.runs.evaluate import evaluate
from polycentric.runs.loop import Run
from polycentric.runs.start import prepare
from polycentric.tasks.scores import Scores
from support import Make, small

TRAINING: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch": 5}
METHODS: dict[str, Callable[[], Method]] = {
    "one model": lambda: fedavg(**TRAINING),
    "everyone's own": lambda: nofed(**TRAINING),
    "private body": lambda: fedavg(cut=KeepPrivate("dense*"), **TRAINING),
    "private head": lambda: fedavg(cut=KeepPrivate("head*"), **TRAINING),
}
every_method = pytest.mark.parametrize("kind", METHODS)


def trained(method: Method, federation: Federation, rounds: int = 2, **how: Any) -> Run:
    done = prepare(method, federation, **({"model": small, "dtype": "float64"} | how))
    for _ in range(rounds):
        done.state, _ = run_round(method, done.state, done.clients)
    return done


def ragged(blobs: Make, test: tuple[int, ...] = (9, 0, 3, 17, 1), **how: Any) -> Federation:
    """Clients with different numbers of test examples; some have none."""
    federation = blobs(test=max(test), **how)
    keep = torch.cat([torch.arange(max(test)) < n for n in test])
    split = federation.test
    part = Split.gathered(split.x[keep], split.y[keep], split.owner[keep], len(test))
    return replace(federation, test=part)


def score_by_path(done: Run, path: str) -> Scores:
    """The scores computed by a way of our choice."""
    if path == "shared":
        return evaluate(done.method, done.state, done.clients, done.federation.test)
    # Something kept, by whatever name, forbids the short way.
    kept = {"nothing": torch.zeros(done.federation.n_clients, 1)}
    clients = replace(done.clients, executor=path, block=2)
    return evaluate(done.method, replace(done.state, kept=kept), clients, done.federation.test)


def assert_same(a: Scores, b: Scores) -> None:
    assert a.count.tolist() == b.count.tolist()
    np.testing.assert_allclose(a.loss, b.loss, rtol=1e-10)
    np.testing.assert_array_equal(a.accuracy, b.accuracy)
    np.testing.assert_array_equal(a.f1, b.f1)
    assert a.pooled == b.pooled


# -- every way the same --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["one model", "everyone's own"])
def test_the_short_way_equals_the_stack_and_the_loop(kind: str, blobs: Make) -> None:
    done = trained(METHODS[kind](), ragged(blobs))
    short, stacked, looped = (score_by_path(done, path) for path in ("shared", "stacked", "looped"))
    assert_same(short, stacked)
    assert_same(stacked, looped)


@every_method
@pytest.mark.parametrize("chunks", [(1, 1), (7, 5), (1 << 12, 1 << 14)])
def test_the_size_of_a_piece_does_not_matter(
    kind: str, chunks: tuple[int, int], blobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = trained(METHODS[kind](), ragged(blobs))
    whole = evaluate(done.method, done.state, done.clients, done.federation.test)
    monkeypatch.setattr("polycentric.runs.evaluate.CHUNK", chunks[0])
    monkeypatch.setattr("polycentric.runs.evaluate.RECTANGLE", chunks[1])
    assert_same(evaluate(done.method, done.state, done.clients, done.federation.test), whole)


@every_method
@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_scores_are_those_of_predicting_by_hand(kind: str, executor: str, blobs: Make) -> None:
    done = trained(METHODS[kind](), ragged(blobs), executor=executor)
    scores = evaluate(done.method, done.state, done.clients, done.federation.test)
    predicted = []
    for client in range(done.federation.n_clients):
        mine = done.federation.test.of(client)
        outputs = done.model_of(client)(mine.x).detach()
        predicted.append(outputs.argmax(1))
        assert scores.count[client] == len(mine)
        if not len(mine):
            assert np.isnan(scores.loss[client]) and np.isnan(scores.accuracy[client])
            continue
        assert scores.loss[client] == pytest.approx(float(nn.functional.cross_entropy(outputs, mine.y)), rel=1e-10)
        assert scores.accuracy[client] == pytest.approx(float((outputs.argmax(1) == mine.y).double().mean()))
        assert scores.f1[client] == pytest.approx(f1_score(mine.y, outputs.argmax(1), average="macro"))
    right = torch.cat(predicted) == done.federation.test.y
    assert scores.summary()["micro_accuracy"] == pytest.approx(float(right.double().mean()))


def test_clients_in_several_cells_are_scored_with_the_model_they_receive(blobs: Make) -> None:
    federation = ragged(blobs)
    (exchange,) = fedavg(**TRAINING).at(0)
    cells = Cells(torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1]]))
    done = trained(Method.of("cells", replace(exchange, topology=cells)), federation)
    scores = evaluate(done.method, done.state, done.clients, federation.test)
    bridge = federation.test.of(2)
    outputs = done.model_of(2)(bridge.x).detach()
    assert scores.loss[2] == pytest.approx(float(nn.functional.cross_entropy(outputs, bridge.y)), rel=1e-10)
    assert not torch.allclose(*done.state.centers["model"])


def test_the_models_of_two_clients_are_two_modules(blobs: Make) -> None:
    done = trained(nofed(**TRAINING), blobs())
    x = done.federation.test.x
    first = done.model_of(0)
    before = first(x)
    second = done.model_of(1)
    assert torch.equal(first(x), before)
    assert not torch.allclose(second(x), before)


def test_asking_for_a_model_does_not_change_where_the_next_run_begins(blobs: Make) -> None:
    net = small((6,), 3)
    start = {name: value.clone() for name, value in net.state_dict().items()}
    trained(fedavg(**TRAINING), blobs(), model=net, dtype="float32").model_of(0)
    assert all(torch.equal(value, start[name]) for name, value in net.state_dict().items())


def test_regressions_are_scored_by_their_loss(quadratics: Make, made: Make) -> None:
    train, test = quadratics().train, quadratics(seed=1).train

    def parts(split: Split) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(split.of(k).x, split.of(k).y) for k in range(4)]

    done = trained(fedavg(lr=0.1), made(parts(train), parts(test)))
    scores = evaluate(done.method, done.state, done.clients, done.federation.test)
    errors = {f"{over}_{name}" for over in ("micro", "macro", "worst_decile") for name in ("rmse", "mae")}
    assert scores.summary().keys() == {"micro_loss", "macro_loss", "r2", "clients_without_examples", *errors}
    for client in range(4):
        mine = done.federation.test.of(client)
        errors = done.model_of(client)(mine.x).detach().squeeze(-1) - mine.y
        assert scores.loss[client] == pytest.approx(float(errors.square().mean() / 2), rel=1e-10)


# -- with some training of one's own -------------------------------------------------------------------------


@every_method
@pytest.mark.filterwarnings("ignore:client 'client 3' never took part")  # it has no training examples
@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_fine_tuning_is_a_round_of_training_alone(kind: str, executor: str, blobs: Make) -> None:
    federation = ragged(blobs, sizes=(23, 7, 12, 0, 30))  # client 3 has nothing to train on, and 17 to be tested on
    done = trained(METHODS[kind](), federation, executor=executor)
    tuned = evaluate(done.method, done.state, done.clients, federation.test, Train(lr=0.3, epochs=2, batch=5))

    rows = torch.stack([torch.nn.utils.parameters_to_vector(done.model_of(k).parameters()) for k in range(5)])
    alone = nofed(lr=0.3, epochs=2, batch=5)
    by_hand = prepare(alone, federation, model=small, dtype="float64", executor=executor)
    state = State({"model": rows.detach()}, {}, {}, round=done.state.round)
    state, _ = run_round(alone, state, by_hand.clients)
    assert_same(tuned, evaluate(alone, state, by_hand.clients, federation.test))
    before = evaluate(done.method, done.state, done.clients, federation.test)
    assert tuned.loss[3] == pytest.approx(before.loss[3], rel=1e-12)
    assert tuned.loss[0] != before.loss[0]


@every_method
def test_evaluation_leaves_the_state_as_it_was(kind: str, blobs: Make) -> None:
    done = trained(METHODS[kind](), ragged(blobs))
    stacks = done.state.centers | done.state.kept
    before = {name: rows.clone() for name, rows in stacks.items()}
    evaluate(done.method, done.state, done.clients, done.federation.test)
    evaluate(done.method, done.state, done.clients, done.federation.test, Train(lr=0.5, epochs=3))
    assert all(torch.equal(rows, before[name]) for name, rows in stacks.items())


@every_method
def test_fine_tuning_at_the_end_changes_no_model(kind: str, blobs: Make) -> None:
    def done(fine_tune: int) -> Run:
        schedule = dict(rounds=2, fine_tune=fine_tune)
        return prepare(METHODS[kind](), ragged(blobs), model=small, **schedule).go()

    without, with_it = done(0), done(2)
    stacks = (without.state.centers | without.state.kept, with_it.state.centers | with_it.state.kept)
    assert all(torch.equal(rows, stacks[1][name]) for name, rows in stacks[0].items())
    assert without.metrics == with_it.metrics
    assert "personalised" not in without.scores
    assert without.summary()["personalised"] is None
    assert with_it.scores["personalised"].loss[0] != with_it.scores["in_use"].loss[0]


def test_fine_tuning_with_a_learning_rate_of_zero_changes_no_score(blobs: Make) -> None:
    done = trained(fedavg(**TRAINING), ragged(blobs))
    plain = evaluate(done.method, done.state, done.clients, done.federation.test)
    assert_same(evaluate(done.method, done.state, done.clients, done.federation.test, Train(lr=0.0)), plain)


def test_the_last_evaluation_tunes_as_the_method_trains_but_without_its_terms(blobs: Make) -> None:
    method, federation = fedprox(mu=5.0, **TRAINING), ragged(blobs)
    done = prepare(method, federation, model=small, dtype="float64", rounds=2, fine_tune=3).go()
    plain = Train(lr=0.1, epochs=3, batch=5)
    assert_same(done.scores["personalised"], evaluate(method, done.state, done.clients, federation.test, plain))


def test_fine_tuning_is_at_the_rate_of_the_first_round(blobs: Make) -> None:
    """However far the learning rate has decayed by then."""
    method, federation = fedavg(decay=0.5, **TRAINING), ragged(blobs)
    done = prepare(method, federation, model=small, dtype="float64", rounds=4, fine_tune=2).go()
    first, last = (
        evaluate(method, done.state, done.clients, federation.test, Train(lr=0.1, epochs=2, batch=5, decay=decay))
        for decay in (1.0, 0.5)
    )
    assert_same(done.scores["personalised"], first)
    assert not np.allclose(first.loss[0], last.loss[0])


# -- nobody, nothing, noise ----------------------------------------------------------------------------------


@every_method
def test_clients_without_test_examples_count_nowhere_and_are_counted(kind: str, blobs: Make) -> None:
    done = trained(METHODS[kind](), ragged(blobs))
    scores = evaluate(done.method, done.state, done.clients, done.federation.test)
    there = [0, 2, 3, 4]
    assert scores.there.tolist() == [True, False, True, True, True]
    summary = scores.summary()
    assert summary["clients_without_examples"] == 1
    assert summary["macro_accuracy"] == pytest.approx(scores.accuracy[there].mean())
    assert summary["micro_accuracy"] == pytest.approx(scores.count[there] @ scores.accuracy[there] / 30)
    assert not any(np.isnan(value) for value in summary.values())


@every_method
def test_nobody_has_test_examples(kind: str, blobs: Make) -> None:
    done = prepare(METHODS[kind](), blobs(test=0), model=small, rounds=2).go()
    assert done.metrics == {"clients_without_examples": 5}


def test_who_takes_part_does_not_matter_for_who_is_scored(blobs: Make) -> None:
    done = trained(fedavg(select=Uniform(n=1), **TRAINING), ragged(blobs))
    scores = evaluate(done.method, done.state, done.clients, done.federation.test)
    assert scores.count.tolist() == [9, 0, 3, 17, 1]


@pytest.mark.parametrize("kind", ["one model", "private head"])
@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_nothing_is_dropped_out_of_a_model_that_is_scored(kind: str, executor: str, blobs: Make) -> None:
    class Dropping(nn.Module):
        def __init__(self, shape: tuple[int, ...], n_outputs: int) -> None:
            super().__init__()
            self.dense, self.dropout, self.head = nn.Linear(*shape, 8), nn.Dropout(0.5), nn.Linear(8, n_outputs)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.dropout(self.dense(x)))
            return out

    done = trained(METHODS[kind](), blobs(), model=Dropping, executor=executor)
    scores = evaluate(done.method, done.state, done.clients, done.federation.test)
    assert_same(scores, evaluate(done.method, done.state, done.clients, done.federation.test))
    mine = done.federation.test.of(0)
    outputs = done.model_of(0).eval()(mine.x).detach()
    assert scores.loss[0] == pytest.approx(float(nn.functional.cross_entropy(outputs, mine.y)), rel=1e-10)
