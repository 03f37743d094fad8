"""Rules around rules: what they compute, what they reduce to, and whom they warn of."""

import warnings

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.testing import assert_close

import polycentric as pc
from polycentric.errors import UsageError
from polycentric.language import part_of, spell
from polycentric.method import Aggregate
from polycentric.parts.aggregate import GeometricMedian, Known, Krum, Mean, Median, TrimmedMean
from polycentric.parts.before_rule import Bucketing, Clipping, NearestNeighbours, Quorum
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.mixing import Mixing
from support import Make, random, small

LAW = settings(max_examples=40)
RULES = (Mean(), TrimmedMean(0.2), Median(), Krum(0.2), GeometricMedian())
some_rule = st.sampled_from(RULES)


def close(a, b, tolerance=1e-9):
    assert_close(a, b, rtol=tolerance, atol=tolerance)


def heard(rule, rows, own, clients=None, round=0, up=None):
    """What centers with models `own` make of rows that these clients sent."""
    clients = torch.arange(len(rows)) if clients is None else clients
    block = Cohort(clients, torch.ones(len(rows)).long(), torch.ones(len(rows)).double(), 99, 3, round)
    up = torch.ones(len(own), len(rows)) if up is None else up
    total = rule.start(Mixing.dense(up[:, :0]), own)
    rule.add(total, rule.part(Mixing.dense(up), rows, block))
    return rule.settle(total, own)


# -- nearest-neighbour mixing --------------------------------------------------------------------------------


@LAW
@given(st.integers(3, 14), st.integers(0, 10**6), some_rule)
def test_mixing_averages_the_nearest_of_every_row(n, seed, rule):
    rows, near = random(seed, n, 3), n - int(0.25 * n)
    square = (rows[:, None] - rows).square().sum(2)
    mixed = torch.stack([rows[square[i].argsort()[:near]].mean(0) for i in range(n)])
    close(NearestNeighbours(rule, 0.25).of(rows), rule.of(mixed))


@LAW
@given(st.integers(1, 12), st.integers(0, 10**6), some_rule)
def test_mixing_with_nobody_to_fear_is_the_mean(n, seed, rule):
    rows = random(seed, n, 3)
    close(NearestNeighbours(rule, 0.0).of(rows), rows.mean(0))


def test_a_client_that_alone_knows_something_counts_after_mixing():
    """Nine zeros and two ones, of which the median is zero: mixing gives the two a voice, and outliers none."""
    rows = torch.zeros(11, 2).double()
    rows[:2, 0] = 1.0
    assert float(Median().of(rows)[0]) == 0
    assert float(NearestNeighbours(TrimmedMean(0.0), 0.2).of(rows)[0]) > 0
    rows[:2] = 1e9
    close(NearestNeighbours(TrimmedMean(0.2), 0.2).of(rows), torch.zeros(2).double())


# -- bucketing -----------------------------------------------------------------------------------------------


@LAW
@given(st.integers(1, 12), st.integers(0, 10**6), some_rule)
def test_buckets_of_one_are_the_rule_and_one_bucket_is_the_mean(n, seed, rule):
    rows = random(seed, n, 3)
    order = torch.argsort(pc_draw(n))
    close(Bucketing(rule, 1).of(rows), rule.of(rows[order]))
    close(Bucketing(rule, n).of(rows), rows.mean(0))


def pc_draw(n):
    from polycentric.stacks.draw import uniform

    return uniform("bucket", torch.arange(n))


def test_buckets_are_drawn_by_client_and_round_whatever_the_order():
    rows, own, clients = random(0, 9, 3), random(1, 1, 3), torch.arange(9) + 20
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    one = heard(Bucketing(Median(), 3), rows, own, clients).values
    close(heard(Bucketing(Median(), 3), rows[order], own, clients[order]).values, one)
    rounds = {tuple(heard(Bucketing(Median(), 3), rows, own, clients, round).values[0].tolist()) for round in range(8)}
    assert len(rounds) > 1


@LAW
@given(st.integers(6, 15), st.integers(0, 10**6))
def test_an_attacker_spoils_one_bucket(n, seed):
    rows = random(seed, n, 3)
    rows[0] = 1e9
    assert Bucketing(Median(), 2).of(rows).abs().max() < 100


# -- clipping ------------------------------------------------------------------------------------------------


@LAW
@given(st.integers(1, 12), st.integers(0, 10**6), some_rule)
def test_no_radius_is_too_small_for_a_rule_at_infinity(n, seed, rule):
    rows, center = random(seed, n, 3), random(seed + 1, 3)
    close(Clipping(rule, radius=float("inf")).of(rows, Known(center)), rule.of(rows))


def test_where_most_rows_are_the_center_nobody_moves_it():
    rows = torch.tensor([[1.0, 2.0]] * 3 + [[7.0, -5.0], [1e200, 1e200]], dtype=torch.float64)
    assert Clipping(attackers=0.4).of(rows, Known(rows[0])).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("n", "stands"), [(1, 0), (2, 0), (3, 1), (8, 3), (9, 4)])
def test_a_radius_that_is_set_holds_fewer_than_half(n, stands):
    assert Clipping(radius=1.0).stands(n) == stands and Clipping(attackers=0.25).stands(n) == n // 4


@LAW
@given(st.integers(2, 12), st.integers(0, 10**6), st.floats(0.1, 3))
def test_clipping_is_its_formula(n, seed, radius):
    rows, center = random(seed, n, 3), random(seed + 1, 3)
    away = rows - center
    length = away.norm(dim=1, keepdim=True)
    once = center + (away * (radius / length).clamp(max=1)).mean(0)
    close(Clipping(radius=radius).of(rows, Known(center)), once)
    close(Clipping(radius=radius, iterations=2).of(rows, Known(center)), Clipping(radius=radius).of(rows, Known(once)))
    assert (once - center).norm() <= radius * (1 + 1e-9)
    kept = float(length.flatten().sort().values[n - int(0.2 * n) - 1])
    close(Clipping(attackers=0.2).of(rows, Known(center)), Clipping(radius=kept).of(rows, Known(center)))


@pytest.mark.parametrize("lie", [1e3, 1e30, 1e200])
def test_a_lie_however_long_goes_no_farther_than_honest_rows_do(lie):
    rows, center = random(0, 11, 4), random(1, 4)
    rows[:2] = lie
    farthest = (rows[2:] - center).norm(dim=1).max()
    moved = Clipping().of(rows, Known(center)) - Clipping().of(rows[2:], Known(center))
    assert moved.norm() <= 2 * farthest


# -- a quorum ------------------------------------------------------------------------------------------------


def test_a_center_that_hears_too_few_keeps_its_model():
    rows, own = random(0, 6, 3), random(1, 3, 3)
    up = torch.tensor([[1.0, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]])
    for rule in (Quorum(Median(), 3), NearestNeighbours(Quorum(Median(), 3))):
        values, mask = heard(rule, rows, own, up=up)
        assert mask.tolist() == [False, True, False]
        assert torch.equal(values[0], own[0]) and torch.equal(values[2], own[2])
    close(heard(Quorum(Median(), 3), rows, own, up=up).values[1], Median().of(rows[2:]))
    close(heard(Quorum(Median(), 1), rows, own, up=up).values[0], Median().of(rows[:2]))


# -- from words, and what they refuse ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("nnm", NearestNeighbours()),
        ("nnm(median)", NearestNeighbours(Median())),
        ("nnm(krum(0.3, keep=2), attackers=0.3)", NearestNeighbours(Krum(0.3, 2), 0.3)),
        ("bucketing(geometric-median, size=3)", Bucketing(GeometricMedian(), 3)),
        ("clipping(nnm(median), radius=2)", Clipping(NearestNeighbours(Median()), radius=2.0)),
        ("quorum(bucketing(nnm), least=5)", Quorum(Bucketing(NearestNeighbours()), 5)),
    ],
)
def test_a_rule_around_a_rule_is_written_as_it_is_said(words, rule):
    found = part_of("aggregate", words, Aggregate)
    assert found == rule
    assert part_of("aggregate", spell(found), Aggregate) == rule


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: NearestNeighbours(attackers=0.5), "NearestNeighbours.attackers must be in [0, 0.5), got 0.5; try 0.2"),
        (lambda: Clipping(attackers=-0.1), "Clipping.attackers must be in [0, 0.5), got -0.1; try 0.2"),
        (lambda: Clipping(radius=0.0), "Clipping.radius must be positive, got 0.0; try 1"),
        (lambda: Bucketing(size=0), "Bucketing.size must be at least 1, got 0; try 2"),
        (lambda: Quorum(least=0), "Quorum.least must be at least 1, got 0; try 3"),
        (lambda: pc.ifca(gradients=True, aggregate=Median()), "gradients=True divides a sum by all who take part"),
    ],
)
def test_a_bad_rule_is_refused(build, text):
    with pytest.raises(UsageError) as wrong:
        build()
    assert str(wrong.value).startswith(text)


# -- more attackers than a rule stands -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (TrimmedMean(0.1), "trimmed-mean stands 1 of 11 clients, and 2 attack: use beta=0.19"),
        (TrimmedMean(0.19), ""),
        (Median(), ""),
        (Krum(0.1), "krum stands 1 of 11 clients, and 2 attack: use attackers=0.19"),
        (Krum(0.2, keep=10), "krum(attackers=0.2, keep=10) stands 0 of 11 clients, and 2 attack: use keep=9"),
        (
            Krum(0.46),
            "krum(attackers=0.46) needs 2 f + 2 < n, and of n = 11 clients it is to stand f = 5: use geometric-median",
        ),
        (
            NearestNeighbours(Median(), 0.1),
            "nnm(rule=median, attackers=0.1) stands 1 of 11 clients, and 2 attack: use ",
        ),
        (NearestNeighbours(Mean()), "nnm(rule=mean) stands 0 of 11 clients, and 2 attack: use median in place of mean"),
        (
            Bucketing(TrimmedMean(0.2)),
            "bucketing(rule=trimmed-mean(beta=0.2)) stands 1 of 11 clients, and 2 attack: use",
        ),
        (Bucketing(Median(), 2), ""),
        (Bucketing(Median(), 3), "bucketing(size=3) stands 1 of 11 clients, and 2 attack: use size=1, or more clients"),
        (Clipping(), ""),
        (Clipping(attackers=0.1), "clipping(attackers=0.1) stands 1 of 11 clients, and 2 attack: use attackers=0.19"),
        (Quorum(TrimmedMean(0.1)), "quorum(rule=trimmed-mean) stands 1 of 11 clients, and 2 attack: use beta=0.19"),
        (Mean(), ""),
        (TrimmedMean(0.0), ""),
    ],
    ids=str,
)
def test_a_rule_says_whom_it_does_not_stand(rule, says):
    assert rule.beware(11, 2).startswith(says) and bool(rule.beware(11, 2)) == bool(says)


@LAW
@given(st.integers(1, 40), st.data())
def test_what_it_tells_to_set_is_enough(n, data):
    bad = data.draw(st.integers(0, (n - 1) // 2))
    for rule, field in ((TrimmedMean(1e-9), "beta"), (Krum(0.0), "attackers"), (Clipping(attackers=0.0), "attackers")):
        said = rule.beware(n, bad)
        if f"use {field}=" in said:
            share = float(said.rpartition("=")[2])
            assert type(rule)(**{field: share}).beware(n, bad) == ""


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (pc.fedavg(aggregate=TrimmedMean(0.1)), "stands 0 of 5 clients, and 2 attack"),
        (pc.dpsgd(graph=pc.Ring(), aggregate=Median()), "stands 1 of 3 clients, and 2 attack"),
        (pc.ifca(k=2, aggregate=TrimmedMean(0.1)), "stands 0 of 5 clients, and 2 attack"),
    ],
    ids=["star", "ring", "clusters"],
)
def test_a_run_says_so_before_it_begins(method, words, blobs: Make):
    with pytest.warns(UserWarning, match=words):
        pc.run(method, blobs((9, 8, 7, 6, 5)), model=small, rounds=1, fine_tune=0, attack=pc.SignFlip(0.4), seed=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pc.run(pc.fedavg(), blobs((9, 8, 7, 6, 5)), model=small, rounds=1, fine_tune=0, attack=pc.SignFlip(0.4))
