"""Metrics: the same numbers as scikit-learn's, and what they come to over unequal clients."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from polycentric.runs.metrics import gini, participation, share_below
from polycentric.tasks.classification import area_under_roc, score_classes as score
from polycentric.tasks.multi_label import score_labels
from polycentric.tasks.regression import score_numbers
from polycentric.tasks.scores import Scores, worst_decile
from polycentric.topology.clusters.assignment import agreement

LAW = settings(max_examples=50)
CLASSES = 4


def answers(sizes, seed):
    """(predicted, labels, losses, owner), in mixed order."""
    r = np.random.default_rng(seed)
    owner = r.permutation(np.repeat(np.arange(len(sizes)), sizes))
    labels = r.integers(0, CLASSES, len(owner))
    predicted = np.where(r.random(len(owner)) < 0.5, labels, r.integers(0, CLASSES, len(owner)))
    return predicted, labels, r.random(len(owner)), owner


def f1(labels, predicted):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's own, about classes nobody predicted
        return f1_score(labels, predicted, average="macro", zero_division=0)


sizes = st.lists(st.integers(0, 12), min_size=1, max_size=8)
seeds = st.integers(0, 10**6)


@LAW
@given(sizes, seeds)
def test_every_clients_scores_are_scikit_learns(sizes, seed):
    predicted, labels, losses, owner = answers(sizes, seed)
    scores = score(predicted, labels, losses, owner, len(sizes), CLASSES)
    assert scores.count.tolist() == sizes
    for k, n in enumerate(sizes):
        mine = owner == k
        if n:
            assert scores.accuracy[k] == pytest.approx(accuracy_score(labels[mine], predicted[mine]), abs=1e-12)
            assert scores.f1[k] == pytest.approx(f1(labels[mine], predicted[mine]), abs=1e-12)
            assert scores.loss[k] == pytest.approx(losses[mine].mean(), abs=1e-12)
        else:
            assert np.isnan(scores.accuracy[k])
            assert np.isnan(scores.loss[k])
    if sum(sizes):
        assert scores.pooled["pooled_f1"] == pytest.approx(f1(labels, predicted), abs=1e-12)


@LAW
@given(sizes.filter(any), seeds)
def test_micro_and_macro_are_their_formulas(sizes, seed):
    predicted, labels, losses, owner = answers(sizes, seed)
    summary = score(predicted, labels, losses, owner, len(sizes), CLASSES).summary()
    n = np.array(sizes)
    there = [k for k in range(len(sizes)) if sizes[k]]
    a = np.array([accuracy_score(labels[owner == k], predicted[owner == k]) for k in there])
    f = np.array([f1(labels[owner == k], predicted[owner == k]) for k in there])
    assert summary["micro_accuracy"] == pytest.approx(accuracy_score(labels, predicted), abs=1e-12)  # pooled
    assert summary["macro_accuracy"] == pytest.approx(a.mean(), abs=1e-12)
    assert summary["micro_f1"] == pytest.approx(n[there] @ f / n.sum(), abs=1e-12)
    assert summary["macro_f1"] == pytest.approx(f.mean(), abs=1e-12)
    assert summary["micro_loss"] == pytest.approx(losses.mean(), abs=1e-12)
    assert summary["accuracy_std"] == pytest.approx(a.std(), abs=1e-12)
    assert summary["accuracy_p50"] == pytest.approx(np.median(a), abs=1e-12)
    assert summary["clients_without_examples"] == sizes.count(0)


@LAW
@given(st.integers(1, 6), st.integers(1, 9), seeds)
def test_with_equal_sizes_micro_is_macro(clients, n, seed):
    summary = score(*answers([n] * clients, seed), clients, CLASSES).summary()
    for name in ("accuracy", "f1", "loss"):
        assert summary[f"micro_{name}"] == pytest.approx(summary[f"macro_{name}"], abs=1e-12)


@LAW
@given(sizes.filter(any), seeds)
def test_the_usual_micro_f1_is_nothing_but_accuracy(sizes, seed):
    predicted, labels, losses, owner = answers(sizes, seed)
    summary = score(predicted, labels, losses, owner, len(sizes), CLASSES).summary()
    assert summary["micro_accuracy"] == pytest.approx(f1_score(labels, predicted, average="micro"), abs=1e-12)


@LAW
@given(sizes.filter(any), seeds)
def test_the_numbering_of_the_clients_does_not_matter(sizes, seed):
    predicted, labels, losses, owner = answers(sizes, seed)
    order = np.random.default_rng(seed).permutation(len(sizes))
    a = score(predicted, labels, losses, owner, len(sizes), CLASSES)
    b = score(predicted, labels, losses, order[owner], len(sizes), CLASSES)
    np.testing.assert_array_equal(b.accuracy[order], a.accuracy)
    np.testing.assert_array_equal(b.f1[order], a.f1)
    assert b.summary() == pytest.approx(a.summary(), abs=1e-12)


@LAW
@given(sizes.filter(any), seeds)
def test_the_order_of_the_examples_does_not_matter(sizes, seed):
    parts = answers(sizes, seed)
    order = np.random.default_rng(seed).permutation(len(parts[0]))
    a = score(*parts, len(sizes), CLASSES).summary()
    b = score(*(part[order] for part in parts), len(sizes), CLASSES).summary()
    assert a == pytest.approx(b, abs=1e-12)


@LAW
@given(sizes.filter(any), seeds)
def test_a_client_without_examples_counts_nowhere_and_is_counted(sizes, seed):
    parts = answers(sizes, seed)
    without = score(*parts, len(sizes), CLASSES).summary()
    beside = score(*parts, len(sizes) + 3, CLASSES).summary()
    assert beside.pop("clients_without_examples") == without.pop("clients_without_examples") + 3
    assert beside == pytest.approx(without, abs=1e-12)


def test_nobody_with_examples_has_nothing_to_say():
    nothing = np.zeros(0, dtype=np.int64)
    scores = score(nothing, nothing, np.zeros(0), nothing, 3, CLASSES)
    assert scores.summary() == {"clients_without_examples": 3.0}


def test_numbers_are_scored_by_their_errors():
    answers, y = np.array([[1.0], [4.0], [1.0]]), np.array([0.0, 1.0, 5.0])
    scores = score_numbers(answers, y, np.array([1.0, 2.0, 6.0]), np.array([0, 0, 2]), 3)
    found = scores.summary()
    assert found["micro_loss"] == 3.0 and found["macro_loss"] == 3.75 and found["clients_without_examples"] == 1.0
    assert found["micro_rmse"] == pytest.approx(np.sqrt((1 + 9 + 16) / 3))
    assert found["macro_rmse"] == pytest.approx((np.sqrt(5) + 4) / 2) and found["worst_decile_rmse"] == 4.0
    assert found["micro_mae"] == pytest.approx(8 / 3) and found["macro_mae"] == 3.0
    assert found["r2"] == pytest.approx(1 - 26 / ((y - 2) ** 2).sum())
    assert scores.served.tolist()[::2] == [-1.5, -6.0]  # less loss is better


def test_several_labels_are_scored_one_by_one():
    y = np.array([[1, 0], [1, 1], [0, 1]])
    told = np.array([[1, 0], [1, 0], [0, 0]])
    scores = score_labels(told, y, np.zeros(3), np.array([0, 0, 1]), 2)
    assert scores.accuracy.tolist() == [0.75, 0.5] and scores.summary()["micro_exact"] == pytest.approx(1 / 3)
    assert scores.f1.tolist() == [0.5, 0.0]  # the first label 1, the second 0; then only the second occurs
    assert scores.pooled["pooled_f1"] == 0.5


@pytest.mark.parametrize("n", [1, 5, 9, 10, 19, 20, 35])
def test_the_worst_decile_is_the_mean_of_the_worst_tenth_and_of_one_at_least(n):
    accuracy = np.random.default_rng(n).permutation(np.arange(n) / n)
    worst = max(1, n // 10)
    assert worst_decile(accuracy) == pytest.approx(sum(range(worst)) / worst / n, abs=1e-12)


def test_share_below_counts_clients_that_lose_by_taking_part():
    def scores(accuracy):
        there = ~np.isnan(accuracy)
        return Scores(there.astype(np.int64), accuracy, accuracy, accuracy)

    together = scores(np.array([0.5, 0.5, 0.5, np.nan, 0.5]))
    alone = scores(np.array([0.4, 0.5, 0.6, 0.9, np.nan]))
    assert share_below(together, alone) == pytest.approx(1 / 3)


@LAW
@given(st.lists(st.integers(0, 3), min_size=2, max_size=12), st.permutations(range(4)))
def test_relabelled_groups_are_the_same_groups(group, names):
    relabelled = np.array([names[g] for g in group])
    assert agreement(relabelled, np.array(group)) == 1


@LAW
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 6), seeds)
def test_the_area_under_the_roc_curve_is_scikit_learns_and_sees_only_the_order(n1, n0, steps, seed):
    r = np.random.default_rng(seed)
    positive = r.permutation(np.arange(n1 + n0) < n1)
    margin = r.integers(-steps, steps + 1, n1 + n0) / 2  # many ties
    area = area_under_roc(margin, positive)
    assert area == pytest.approx(roc_auc_score(positive, margin), abs=1e-12)
    assert area_under_roc(np.exp(3 * margin) - 7, positive) == pytest.approx(area, abs=1e-12)
    assert area_under_roc(-margin, positive) == pytest.approx(1 - area, abs=1e-12)
    assert area_under_roc(margin, ~positive) == pytest.approx(1 - area, abs=1e-12)


def test_the_area_cannot_be_told_from_one_class_or_without_a_score():
    assert np.isnan(area_under_roc(np.array([0.1, 0.2]), np.array([True, True])))
    assert np.isnan(area_under_roc(np.array([0.1, 0.2]), np.array([False, False])))
    assert np.isnan(area_under_roc(np.array([0.1, np.nan]), np.array([False, True])))
    assert area_under_roc(np.array([np.inf, -np.inf]), np.array([True, False])) == 1
    assert area_under_roc(np.zeros(5), np.array([True, False, False, True, True])) == 0.5


def test_two_classes_have_an_area_and_the_recall_of_the_rarer_one():
    labels, predicted = np.array([1, 1, 0, 0, 0]), np.array([1, 0, 0, 0, 1])
    margin, owner = np.array([2.0, -1.0, -2.0, -3.0, 1.0]), np.array([0, 0, 1, 1, 1])
    scores = score(predicted, labels, np.ones(5), owner, 2, 2, margin)
    assert scores.pooled["auc"] == pytest.approx(5 / 6) and scores.pooled["minority_recall"] == 0.5
    assert scores.summary()["auc"] == scores.pooled["auc"] and scores.summary()["minority_recall"] == 0.5
    assert not {"auc", "minority_recall"} & scores.only(np.array([True, False])).summary().keys()  # pooled over all
    turned = score(1 - predicted, 1 - labels, np.ones(5), owner, 2, 2, -margin)
    assert (
        turned.pooled["auc"] == pytest.approx(scores.pooled["auc"])
        and turned.pooled["minority_recall"] == scores.pooled["minority_recall"]
    )
    assert not {"auc", "minority_recall"} & score(predicted, labels, np.ones(5), owner, 2, 3).summary().keys()


@LAW
@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.integers(1, 9))
def test_gini_is_the_mean_difference_over_twice_the_mean(counts: list[int], scale: int) -> None:
    x = np.array(counts, dtype=float)
    expected = np.abs(x[:, None] - x).sum() / (2 * len(x) * x.sum()) if x.sum() else 0.0
    assert gini(counts) == pytest.approx(expected, abs=1e-12)
    assert gini(scale * x) == pytest.approx(gini(x), abs=1e-12) and gini(counts[::-1]) == gini(counts)


@LAW
@given(st.lists(st.integers(0, 500), min_size=1, max_size=40))
def test_participation_counts_every_client_once(counts: list[int]) -> None:
    told = participation(counts)
    edges = [*told["rounds"], max(told["most"] + 1, told["rounds"][-1] + 1)]
    assert sum(told["clients"]) == len(counts) and len(told["clients"]) == len(told["rounds"]) <= 20
    for low, high, n in zip(edges, edges[1:], told["clients"], strict=False):
        assert n == sum(low <= c < high for c in counts)
    assert (told["least"], told["most"], told["never"]) == (min(counts), max(counts), counts.count(0))
    assert participation([]) == {}
