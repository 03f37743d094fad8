"""How well members are told from others: rates by hand, errors, what an epsilon allows, and what trials prove of it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import norm

from polycentric import UsageError
from polycentric.parts.accountant import Release, epsilon
from polycentric.runs.separation import least_epsilon, most_auc, most_tpr, of_a_part, of_each, separation


def drawn(seed: int, n: int, apart: float = 0.0) -> tuple[Any, Any]:
    source = np.random.default_rng(seed)
    return np.concatenate([source.normal(apart, 1, n), source.normal(0, 1, n)]), np.arange(2 * n) < n


def test_rates_by_hand() -> None:
    score, member = [3.0, 1.0, 2.0, 2.0, 0.0], [True, True, True, False, False]
    found = separation(score, member, at=(0.0, 0.5))
    # Pairs of a member and another: 3 > 2, 3 > 0, 1 < 2, 1 > 0, 2 = 2 (one half), 2 > 0.
    assert found.auc == pytest.approx(4.5 / 6)
    assert found.tpr == {0.0: pytest.approx(1 / 3), 0.5: pytest.approx(1.0)}  # above 2; above or at 1
    assert (found.members, found.others) == (3, 2)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 20), st.integers(2, 20))
def test_the_auc_is_the_share_of_pairs_in_order(seed: int, m: int, n: int) -> None:
    score = np.random.default_rng(seed).integers(0, 6, m + n).astype(float)  # with ties
    member = np.arange(m + n) < m
    pairs = score[:m, None] - score[None, m:]
    assert of_each(score, member, np.zeros(m + n), 1)[0][0] == pytest.approx(
        (pairs > 0).mean() + (pairs == 0).mean() / 2
    )


def test_errors_are_those_of_repeated_samples() -> None:
    """The bootstrap, and Hanley and McNeil's formula, against the spread over samples."""
    repeats = [drawn(seed, 60, 1.0) for seed in range(200)]
    aucs = [of_each(score, member, np.zeros(120), 1)[0] for score, member in repeats]
    spread = float(np.std([auc for auc, _ in aucs]))
    assert spread == pytest.approx(float(np.mean([error for _, error in aucs])), rel=0.15)
    found = separation(*repeats[0])
    assert found.error == pytest.approx(spread, rel=0.3) and found.sure == 1
    assert np.mean([auc for auc, _ in aucs]) == pytest.approx(norm.cdf(1 / math.sqrt(2)), abs=0.01)


def test_examples_of_a_client_are_not_independent() -> None:
    """Copies of every example tell nothing new: drawing clients, the error stays; drawing examples, it would shrink."""
    score, member = drawn(0, 50)
    client = np.arange(100)
    once = separation(score, member, client)
    copied = separation(np.repeat(score, 16), np.repeat(member, 16), np.repeat(client, 16))
    assert copied.auc == pytest.approx(once.auc) and copied.error == pytest.approx(once.error)
    assert separation(np.repeat(score, 16), np.repeat(member, 16)).error < once.error / 2


def test_two_attacks_on_the_same_examples_are_compared_pair_by_pair() -> None:
    score, member = drawn(0, 200, 0.5)
    one, same = separation(score, member), separation(2 * score + 1, member)
    assert one.above(same) == (pytest.approx(0.0), pytest.approx(0.0))
    nothing = separation(np.random.default_rng(1).normal(size=400), member)
    gain, error = one.above(nothing)
    assert gain == pytest.approx(one.auc - nothing.auc) and error < one.error + nothing.error
    assert nothing.sure == 0


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(UsageError, match="needs members and others"):
        separation([1.0, 2.0], [True, True])
    with pytest.raises(UsageError, match="some are NaN"):
        separation([1.0, math.nan], [True, False])
    with pytest.raises(UsageError, match="20 trials of each world or more, got 3"):
        least_epsilon([1, 2, 3], [1, 2, 3], 0.1)


# -- what an epsilon allows ----------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.floats(0, 6), st.floats(0, 0.5))
def test_the_largest_auc_is_the_area_under_the_largest_rates(eps: float, delta: float) -> None:
    rates = np.linspace(0, 1, 2_001)
    curve = [most_tpr(eps, rate, delta) for rate in rates]
    assert np.trapezoid(curve, rates) == pytest.approx(most_auc(eps, delta), abs=1e-3)
    assert all(a <= b + 1e-12 for a, b in pairwise(curve))


def test_the_best_attack_on_normal_noise_stays_below() -> None:
    """The likelihood ratio test of N(1, z^2) against N(0, z^2), at the (epsilon, delta) of that mechanism."""
    for z, delta in ((0.5, 1e-3), (1.0, 1e-5), (4.0, 1e-2)):
        eps = epsilon([Release(z)], delta)
        for fpr in (1e-3, 0.01, 0.1, 0.5):
            assert norm.sf(norm.isf(fpr) - 1 / z) <= most_tpr(eps, fpr, delta) + 1e-9
        assert norm.cdf(1 / (z * math.sqrt(2))) <= most_auc(eps, delta)


def test_a_promise_to_clients_is_worth_less_to_their_examples_unless_clients_are_replaced() -> None:
    """(2 epsilon, (1 + e^epsilon) delta), measured: the sum moves from one end of the clip to the other."""
    assert of_a_part(1.5, 1e-3, "replace") == (1.5, 1e-3)
    for z, delta in ((1.0, 1e-4), (3.0, 1e-3)):
        eps = epsilon([Release(z)], delta)
        twice, more = of_a_part(eps, delta, "zero")
        assert epsilon([Release(z / 2)], more) <= twice + 1e-6
        assert (twice, more) == (2 * eps, pytest.approx((1 + math.exp(eps)) * delta))


# -- what trials prove ---------------------------------------------------------------------------------------


def test_a_lower_bound_is_below_the_truth_and_comes_near_it() -> None:
    """Randomised response: exactly log(p / (1 - p)) at delta 0. Of 200 bounds at most 5 % may be above, or nearly."""
    truth, above, bounds = math.log(3), 0, []
    for seed in range(200):
        source = np.random.default_rng(seed)
        bounds.append(least_epsilon(source.random(1000) < 0.75, source.random(1000) < 0.25, 0.0))
        above += bounds[-1] > truth
    assert above <= 0.05 * 200 + 6 and np.median(bounds) > 0.75 * truth


def test_a_lower_bound_takes_delta_off_and_is_never_below_zero() -> None:
    source = np.random.default_rng(0)
    same = [source.normal(size=400) for _ in range(2)]
    assert least_epsilon(*same, 0.0) <= 0.2
    apart = np.zeros(400), np.ones(400)
    with_delta, without = least_epsilon(*apart, 0.5), least_epsilon(*apart, 0.0)
    assert with_delta < without == least_epsilon(*apart[::-1], 0.0)  # either world may be guessed
    assert without == pytest.approx(math.log((0.025 ** (1 / 200)) / (1 - 0.025 ** (1 / 200))))  # Clopper and Pearson
