"""Aggregates: a mean that streams, and rules that a few attackers cannot move."""

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from torch.testing import assert_close

from polycentric.errors import UsageError
from polycentric.parts.aggregate import GeometricMedian, Krum, Mean, Median, TrimmedMean
from polycentric.stacks.all_rows import squares_between
from polycentric.stacks.mixing import Mixing
from support import random

LAW = settings(max_examples=50)
RULES = (Mean(), TrimmedMean(0.2), Median(), Krum(0.2), Krum(0.2, keep=2), GeometricMedian())
ROBUST = RULES[1:]


def close(a, b, tolerance=1e-10):
    assert_close(a, b, rtol=tolerance, atol=tolerance)


def heard(rule, up, rows, own, block=None):
    """What the centers `own` hear of `rows` through the matrix `up`, block by block."""
    block = block or max(1, len(rows))
    total = rule.start(Mixing.dense(up.weight[:, :0], up.rest), own)
    for first in range(0, len(rows), block):
        piece = slice(first, first + block)
        rule.add(total, rule.part(Mixing.dense(up.weight[:, piece], up.rest), rows[piece]))
    return rule.settle(total, own)


def everyone(rule, rows):
    """What one center makes of all rows."""
    up, own = Mixing.dense(torch.ones(1, len(rows))), torch.full((1, rows.shape[1]), torch.nan).to(rows)
    return heard(rule, up, rows, own).values[0]


def not_tied(rule, n):
    """With one neighbour to look at, the two rows nearest to each other tie, and Krum takes the first."""
    return not isinstance(rule, Krum) or n - int(rule.attackers * n) - 2 > 1


# -- the mean ------------------------------------------------------------------------------------------------


@LAW
@given(st.sampled_from(["share", "keep", "none"]), st.integers(0, 10**6), st.integers(1, 7))
def test_the_mean_is_its_formula_and_blocks_do_not_matter(rest, seed, block):
    weight, rows, own = random(seed, 3, 7).abs() / 7, random(seed + 1, 7, 4), random(seed + 2, 3, 4)
    formula = {
        "share": weight @ rows / weight.sum(1, keepdim=True),
        "keep": weight @ rows + (1 - weight.sum(1, keepdim=True)) * own,
        "none": weight @ rows,
    }[rest]
    values, mask = heard(Mean(), Mixing.dense(weight, rest), rows, own, block)
    close(values, formula)
    assert bool(mask.all())


def test_a_mean_in_float32_comes_back_in_float32():
    own = torch.zeros(1, 2)
    assert heard(Mean(), Mixing.dense(torch.ones(1, 3)), torch.ones(3, 2), own).values.dtype == torch.float32


@pytest.mark.parametrize("rest", ["share", "keep"])
def test_an_empty_cohort_gives_every_center_its_own_back(rest):
    own = random(0, 3, 4)
    values, mask = heard(Mean(), Mixing.dense(torch.zeros(3, 0), rest), torch.zeros(0, 4).double(), own)
    assert torch.equal(values, own)
    assert bool(mask.any()) == (rest == "keep")  # who keeps what is missing has heard itself


def test_a_sum_over_nobody_is_zero():
    own = random(0, 2, 4)
    values, _ = heard(Mean(), Mixing.dense(torch.zeros(2, 0), "none"), torch.zeros(0, 4).double(), own)
    assert torch.equal(values, torch.zeros_like(own))


# -- every rule ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_center_that_hears_nobody_keeps_its_own(rule):
    rows, own = random(0, 5, 4), random(1, 3, 4)
    up = Mixing.dense(torch.tensor([[1.0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 1, 1, 1]]))
    values, mask = heard(rule, up, rows, own, block=2)
    assert mask.tolist() == [True, False, True]
    assert torch.equal(values[1], own[1])
    assert bool(values.isfinite().all())


@pytest.mark.parametrize("blocks", ["no block", "an empty block"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_nothing_heard_is_never_nan(rule, blocks):
    own, nobody = random(0, 2, 4), Mixing.dense(torch.zeros(2, 0))
    total = rule.start(nobody, own)
    if blocks == "an empty block":
        rule.add(total, rule.part(nobody, own[:0]))
    values, mask = rule.settle(total, own)
    assert torch.equal(values, own)
    assert not bool(mask.any())


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_clients_that_agree_are_believed(rule, n):
    row = random(0, 4)
    close(everyone(rule, row.expand(n, -1)), row)


@LAW
@given(st.sampled_from(RULES), st.integers(1, 12), st.integers(0, 10**6), st.integers(1, 12))
def test_neither_order_nor_blocks_of_the_clients_matter(rule, n, seed, block):
    assume(not_tied(rule, n))
    rows, own = random(seed, n, 3), random(seed + 1, 1, 3)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    up = Mixing.dense(torch.ones(1, n))
    close(heard(rule, up, rows[order], own, block).values, heard(rule, up, rows, own).values)


@LAW
@given(st.sampled_from(RULES), st.integers(1, 12), st.integers(0, 10**6), st.floats(-100, 100))
def test_every_rule_moves_with_its_rows(rule, n, seed, by):  # T4
    assume(not_tied(rule, n))
    rows, shift = random(seed, n, 3), by * random(seed + 1, 3)
    close(everyone(rule, rows + shift), everyone(rule, rows) + shift)


@LAW
@given(st.integers(1, 12), st.integers(0, 10**6))
def test_robust_rules_do_not_look_at_weights(n, seed):
    rows, own = random(seed, n, 3), random(seed + 1, 1, 3)
    weight = random(seed + 2, 1, n).abs() + 0.1
    for rule in ROBUST:
        bought = heard(rule, Mixing.dense(weight), rows, own).values[0]
        assert torch.equal(bought, everyone(rule, rows))


# -- robust rules --------------------------------------------------------------------------------------------


@LAW
@given(st.integers(1, 25), st.sampled_from([0.0, 0.125, 0.25, 0.375, 0.4375]), st.data(), st.integers(0, 10**6))
def test_up_to_floor_beta_n_liars_stay_in_the_honest_range(n, beta, data, seed):  # T3
    attackers = data.draw(st.integers(0, int(beta * n)))
    rows, lie = random(seed, n, 4), data.draw(st.sampled_from([1e9, -1e9, 1e-3]))
    honest = rows[attackers:].clone()
    rows[:attackers] *= lie
    out = everyone(TrimmedMean(beta), rows)
    assert bool((out >= honest.min(0).values - 1e-12).all())
    assert bool((out <= honest.max(0).values + 1e-12).all())


def test_beta_means_the_decimal_that_was_written():
    rows = torch.cat([torch.full((29, 1), 1e9), torch.zeros(71, 1)]).double()
    assert float(everyone(TrimmedMean(0.29), rows)) == 0


@pytest.mark.parametrize("n", range(1, 7))
def test_trimming_all_that_can_be_is_the_median(n):
    rule, rows = TrimmedMean(0.5 - 1e-12), random(n, n, 3)
    close(rule.of(rows), Median().of(rows))
    assert rule.stands(n) == (n - 1) // 2


@LAW
@given(st.integers(1, 12), st.integers(0, 10**6))
def test_trimming_nothing_is_the_mean(n, seed):
    rows = random(seed, n, 3)
    close(everyone(TrimmedMean(0), rows), rows.mean(0))
    close(everyone(TrimmedMean(0), rows), everyone(Mean(), rows))


@LAW
@given(st.integers(1, 12), st.integers(0, 10**6))
def test_the_median_has_half_of_the_rows_on_either_side(n, seed):
    rows = random(seed, n, 3)
    middle = everyone(Median(), rows)
    close(middle, rows.quantile(0.5, 0))
    close(middle, everyone(TrimmedMean(0.5 - 1e-6), rows))  # as beta tends to 1/2


@LAW
@given(st.integers(5, 20), st.sampled_from([1, 2]), st.integers(0, 10**6))
def test_krum_picks_an_honest_row_under_far_outliers(n, keep, seed):
    attackers = int(0.25 * n)
    rows = random(seed, n, 4) + 5
    rows[:attackers] = 1e6 * (1 + random(seed + 1, attackers, 4))
    out = everyone(Krum(0.25, keep), rows)
    honest = rows[attackers:]
    if keep == 1:
        assert any(torch.equal(out, row) for row in honest)
    assert bool((out >= honest.min(0).values).all())
    assert bool((out <= honest.max(0).values).all())


def test_krum_minimises_the_sum_over_its_nearest_neighbours():
    rows, f = random(3, 9, 4), 2  # floor(0.25 * 9)
    squares = (rows[:, None] - rows[None]).square().sum(2)
    scores = [sorted(squares[i].tolist())[1 : 1 + 9 - f - 2] for i in range(9)]
    best = sorted(range(9), key=lambda i: sum(scores[i]))
    close(everyone(Krum(0.25), rows), rows[best[0]])
    close(everyone(Krum(0.25, keep=3), rows), rows[best[:3]].mean(0))
    close(everyone(Krum(0.25, keep=99), rows), rows.mean(0))


# -- the geometric median ------------------------------------------------------------------------------------


def distances(rows, point):
    return (rows - point).norm(dim=1)


@LAW
@given(st.integers(2, 12), st.integers(0, 10**6))
def test_no_other_point_has_a_smaller_sum_of_distances(n, seed):
    rows = random(seed, n, 3)
    best = everyone(GeometricMedian(1000), rows)
    others = [*rows, rows.mean(0), everyone(Median(), rows), *(best + 1e-2 * random(seed + 1, 20, 3))]
    assert all(distances(rows, best).sum() <= distances(rows, other).sum() * (1 + 1e-6) for other in others)


@LAW
@given(st.integers(3, 12), st.integers(0, 10**6), st.floats(0.01, 100))
def test_the_geometric_median_turns_and_grows_with_its_rows(n, seed, by):
    rows, turn = random(seed, n, 3), torch.linalg.qr(random(seed + 1, 3, 3)).Q
    rule = GeometricMedian(5000)
    close(everyone(rule, by * rows @ turn), by * everyone(rule, rows) @ turn, 1e-5 * max(1, by))


def test_the_coordinate_wise_median_does_not_turn_with_its_rows():
    rows, turn = random(0, 9, 3), torch.linalg.qr(random(1, 3, 3)).Q
    assert not torch.allclose(everyone(Median(), rows @ turn), everyone(Median(), rows) @ turn, atol=0.01)


@LAW
@given(st.integers(3, 25), st.integers(0, 10**6), st.sampled_from([1e-3, 10.0, 1e6, 1e12, 1e40, 1e200]), st.booleans())
def test_fewer_than_half_cannot_move_the_geometric_median_far(n, seed, lie, together):
    bad = (n - 1) // 2
    rows = random(seed, n, 4)
    rows[:bad] = lie * (random(seed + 1, 1, 4) if together else random(seed + 1, bad, 4))
    share, farthest = bad / n, rows[bad:].norm(dim=1).max()
    moved = everyone(GeometricMedian(), rows).norm()
    assert moved <= 1.001 * farthest * 2 * (1 - share) / (1 - 2 * share)


def test_half_of_the_rows_can():
    rows = torch.cat([random(0, 5, 3), 1e6 + random(1, 6, 3)])
    assert everyone(GeometricMedian(), rows).norm() > 1e5


def test_the_geometric_median_of_points_on_a_line_is_their_median():
    for n in (1, 3, 7):
        rows = random(n, n, 1) * torch.tensor([3.0, -4.0, 12.0]).double()
        close(everyone(GeometricMedian(2000), rows), rows.sort(0).values[n // 2], 1e-4)


def test_the_geometric_median_of_known_figures():
    triangle = torch.tensor([[1.0, 0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]], dtype=torch.float64)
    close(everyone(GeometricMedian(), triangle), torch.zeros(2).double(), 1e-9)
    square = torch.tensor([[0.0, 0], [2, 0], [2, 2], [0, 2]]).double()
    close(everyone(GeometricMedian(), square), torch.ones(2).double(), 1e-9)
    inside = torch.cat([3 * triangle, torch.tensor([[0.1, 0.2]]).double()])  # a row inside the others is the answer
    close(everyone(GeometricMedian(2000), inside), inside[3], 1e-4)


def test_more_than_half_of_the_rows_in_one_place_are_the_answer():
    rows = torch.cat([torch.full((6, 3), 2.0), 1e9 * torch.ones(5, 3)])
    assert torch.equal(everyone(GeometricMedian(), rows), rows[0])


# -- rows that are no numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ROBUST, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_is_not_heard(rule, bad):
    rows, own = random(0, 6, 4), random(1, 2, 4)
    rows[2, 1] = bad
    good = torch.tensor([0, 1, 3, 4, 5])
    up = torch.ones(2, 6)
    up[1] = 0
    up[1, 2] = 1  # the second center hears that row alone
    values, mask = heard(rule, Mixing.dense(up), rows, own)
    close(values[0], everyone(rule, rows[good]))
    assert torch.equal(values[1], own[1]) and mask.tolist() == [True, False]


@LAW
@given(st.sampled_from(ROBUST), st.integers(0, 10**6))
def test_wide_rows_are_decided_coordinate_by_coordinate(rule, seed):
    if isinstance(rule, Krum | GeometricMedian):
        return
    rows = random(seed, 5, 3).repeat(1, 30_000)  # more columns than are sorted at once
    close(everyone(rule, rows), everyone(rule, rows[:, :3]).repeat(30_000))


def test_distances_between_rows_that_are_far_from_zero_do_not_cancel():
    rows = random(0, 30, 4)  # so many that their distances come from products
    plain = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    close(squares_between(rows + 1e7), plain, 1e-6)


@pytest.mark.parametrize("rule", [Krum(0.2), Krum(0.2, keep=2), GeometricMedian()], ids=str)
def test_distances_add_up_over_pieces_of_the_width(rule):
    rows = random(7, 6, 3)
    wide = rows.repeat(1, 30_000)  # all distances grow by the same factor
    close(everyone(rule, wide), everyone(rule, rows).repeat(30_000), 1e-9)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: TrimmedMean(0.5), "TrimmedMean.beta must be in [0, 0.5), got 0.5; try 0.1"),
        (lambda: TrimmedMean(-0.1), "TrimmedMean.beta must be in [0, 0.5), got -0.1; try 0.1"),
        (lambda: TrimmedMean(float("nan")), "TrimmedMean.beta must be in [0, 0.5), got nan; try 0.1"),
        (lambda: Krum(0.5), "Krum.attackers must be in [0, 0.5), got 0.5; try 0.1"),
        (lambda: Krum(keep=0), "Krum.keep must be at least 1, got 0"),
        (lambda: GeometricMedian(0), "GeometricMedian.iterations must be at least 1, got 0; try 200"),
        (lambda: GeometricMedian(smooth=0.0), "GeometricMedian.smooth must be in (0, 1), got 0.0; try 1e-6"),
    ],
)
def test_a_rule_without_a_majority_is_refused(build, text):
    with pytest.raises(UsageError) as wrong:
        build()
    assert str(wrong.value) == text


@pytest.mark.parametrize(
    ("rule", "n", "stands"),
    [
        (Mean(), 9, 0),
        *((Median(), n, stands) for n, stands in ((1, 0), (2, 0), (3, 1), (8, 3), (9, 4))),
        (TrimmedMean(0.2), 10, 2),
        (TrimmedMean(0.49), 2, 0),  # of two rows none can be dropped on either side
        (Krum(0.25), 8, 2),
        (Krum(0.4), 10, 0),  # 2 f + 2 < n does not hold
        (Krum(0.2, keep=8), 10, 2),
        (Krum(0.2, keep=9), 10, 0),  # one of those averaged may be an attacker
    ],
)
def test_a_rule_stands_as_many_as_its_condition_allows(rule, n, stands):
    assert rule.stands(n) == stands


@pytest.mark.parametrize(
    ("rule", "n", "attackers", "text"),
    [
        (TrimmedMean(0.0), 9, 4, ""),
        (TrimmedMean(0.1), 10, 1, ""),
        (TrimmedMean(0.1), 7, 2, "trimmed-mean stands 0 of 7 clients, and 2 attack: use beta=0.29"),
        (TrimmedMean(0.1), 10, 3, "trimmed-mean stands 1 of 10 clients, and 3 attack: use beta=0.3"),
        (
            TrimmedMean(0.1),
            10,
            5,
            "trimmed-mean stands 1 of 10 clients, and 5 attack: no rule stands half of the clients",
        ),
        (Krum(0.2), 10, 3, "krum(attackers=0.2) stands 2 of 10 clients, and 3 attack: use attackers=0.3"),
        (Krum(0.2), 10, 4, "krum(attackers=0.2) stands 2 of 10 clients, and 4 attack: use geometric-median"),
        (Krum(0.2, keep=8), 10, 3, "krum(attackers=0.2, keep=8) stands 2 of 10 clients, and 3 attack: use keep=7"),
        (Krum(0.0), 2, 0, ""),
        (
            Krum(0.4),
            10,
            0,
            "krum(attackers=0.4) needs 2 f + 2 < n, and of n = 10 clients it is to stand f = 4: use geometric-median",
        ),
    ],
)
def test_what_a_rule_does_not_stand_is_said_with_what_to_set(rule, n, attackers, text):
    assert rule.beware(n, attackers) == text
