"""Judging claims: no mean where a seed is missing, no verdict within the noise, and the same verdict turned round."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given, strategies as st

from polycentric.reproduce.judge import (
    MISSING,
    as_good,
    claim,
    claim_by_seed,
    clearly,
    error_of,
    every,
    finite,
    less,
    listed,
    mean,
    reached,
    some,
)
from polycentric.runs.paired import margin, sentence

NUMBERS = st.lists(st.floats(-100, 100), min_size=2, max_size=6)


def test_a_mean_is_of_all_seeds_or_not_there():
    values = {"all": [1.0, 2.0], "some": [1.0, math.nan], "none": []}
    assert reached(values, "all") == [1.0, 2.0] and mean(values, "all") == 1.5
    for setting in ("some", "none", "never"):
        assert reached(values, setting) == [] and math.isnan(mean(values, setting))
    assert finite(values, "some") == [1.0] and finite(values, "never") == []


@given(NUMBERS)
def test_a_difference_turned_round_has_the_other_verdict(numbers):
    here, there = clearly(numbers), clearly([-x for x in numbers])
    assert (here is None) == (there is None) and (here is None or here != there)
    if here is not None:
        assert abs(statistics.fmean(numbers)) > margin(len(numbers)) * error_of(numbers)
    assert clearly(numbers[:2]) is None


@given(NUMBERS)
def test_a_table_judges_a_difference_as_compare_does(numbers):
    told = sentence("a", "b", numbers, "micro_accuracy")
    assert clearly(numbers) is (True if " beats " in told else False if " loses to " in told else None)


@pytest.mark.parametrize(("times", "clear"), [(4.2, None), (4.4, True)])
def test_three_seeds_want_more_than_four_standard_errors(times, clear):
    """The 97.5 % quantile of Student's t with two degrees of freedom is 4.303."""
    seeds = [times / 3**0.5 - 1, times / 3**0.5, times / 3**0.5 + 1]  # a standard error of 1 / sqrt(3)
    assert clearly(seeds) is clear


def test_as_good_means_clearly_no_further_below_than_that():
    theirs, near = [90.0, 92.0, 91.0], [89.9, 91.8, 90.9]
    assert as_good(near, theirs, 0.5) is True and as_good(near, theirs, 0.05) is None
    assert as_good([80.0, 81.5, 81.0], theirs, 1.0) is False
    assert as_good([95.0, 10.0, 95.0], theirs, 1.0) is None  # one seed that never learned
    assert as_good(near[:2], theirs, 5.0) is None


@pytest.mark.parametrize(("verdicts", "holds"), [((True, False), True), ((None, False), None), ((False,) * 2, False)])
def test_one_is_enough_and_all_must_fail(verdicts, holds):
    assert some(verdicts) is holds and some(reversed(verdicts)) is holds


@given(NUMBERS, st.floats(0.1, 10))
def test_less_by_the_same_in_every_seed_is_less(numbers, gap):
    above = [x + gap for x in numbers]
    assert less(numbers, above) is not False and less(above, numbers) is not True


@pytest.mark.parametrize(
    "verdicts, whole",
    [([], True), ([True, True], True), ([True, None], None), ([None, False], False), ([True, False], False)],
)
def test_one_failure_is_enough_and_one_doubt_leaves_it_open(verdicts, whole):
    assert every(verdicts) is whole


def test_a_claim_is_judged_by_means_where_all_are_there():
    judged = claim("A is above b.", {1: "a", 2: "b"}, lambda m: (m[1] > m[2], listed(m, "{}: {:.1f}"))).judge
    assert judged({"a": [2.0, 4.0], "b": [1.0]}) == (True, "1: 3.0, 2: 1.0")
    assert judged({"a": [0.0], "b": [1.0]})[0] is False
    for values in ({}, {"a": [1.0]}, {"a": [1.0], "b": [math.nan, 1.0]}):
        assert judged(values) == (None, MISSING)


def test_a_claim_by_seed_wants_so_many_seeds_of_every_row():
    def some(least, numbers):
        return claim_by_seed("Some.", {"a": "a", "b": "b"}, lambda m: (True, str(m["a"])), numbers, least).judge

    values = {"a": [2.0, math.nan, 4.0], "b": [1.0, 1.0]}
    assert some(2, finite)(values) == (True, "[2.0, 4.0]")
    assert some(3, finite)(values) == some(1, reached)(values) == (None, MISSING)
