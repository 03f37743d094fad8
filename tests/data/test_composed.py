"""Partitions on top of partitions: images turned at some of the clients, a sample of the examples."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polycentric.data import Dirichlet, Iid, Natural, Rotations, Sampled, Turned, deal, digits, load, parse, synthetic
from polycentric.data.rotations import turned
from polycentric.errors import UsageError


def test_turned_iid_is_rotations() -> None:
    a, b = Turned(Iid(12), 4)(digits(), 3), Rotations(4, 12)(digits(), 3)
    assert a.client is not None and b.client is not None and a.group is not None and b.group is not None
    assert torch.equal(a.x, b.x) and torch.equal(a.client, b.client) and torch.equal(a.group, b.group)
    assert a.group_names == b.group_names


def test_half_of_dirichlets_clients_see_their_images_upside_down() -> None:
    pool = digits()
    plain, both = Dirichlet(10, 1.0)(pool, 5), Turned(Dirichlet(10, 1.0), 2)(pool, 5)
    assert plain.client is not None and both.client is not None
    assert torch.equal(plain.client, both.client) and torch.equal(plain.y, both.y)
    even = both.client % 2 == 0
    assert torch.equal(both.x[even], pool.x[even]) and torch.equal(both.x[~even], turned(pool.x[~even], 180))
    assert deal(pool, Turned(Dirichlet(10, 1.0), 2), 5).group.tolist() == [0, 1] * 5  # type: ignore[union-attr]


def test_a_sample_has_its_size_and_is_drawn_without_replacement() -> None:
    pool = replace(digits(), test=torch.arange(1797) >= 1500)
    one, two = (deal(pool, Sampled(Iid(5), 200), seed) for seed in (0, 1))
    assert (len(one.train), len(one.test)) == (200, 200) and not torch.equal(one.train.x, two.train.x)
    every = deal(pool, Sampled(Iid(5), 5000), 0)
    assert (len(every.train), len(every.test)) == (1500, 297)
    marked = replace(pool, x=torch.arange(1797).view(-1, 1).float())
    drawn = deal(marked, Sampled(Iid(5), 200), 0)
    assert len(torch.unique(drawn.train.x)) == 200 and float(drawn.train.x.max()) < 1500 <= float(drawn.test.x.min())


def test_natural_clients_keep_their_own_test_examples() -> None:
    pool = synthetic(0.5, 0.5, clients=4)
    pool = replace(pool, common_test=torch.zeros(len(pool.y), dtype=torch.bool))
    assert len(deal(pool, Sampled(Natural(), 100_000), 0).test) == len(deal(pool, Natural(), 0).test) > 0


def test_they_are_written_after_a_plus() -> None:
    assert parse("dirichlet=1.0+sample=100+rotations=2", 10) == Turned(Sampled(Dirichlet(10, 1.0), 100), 2)
    assert parse("dirichlet=1e+3", 10) == Dirichlet(10, 1000.0)
    assert load("digits", "iid+rotations=2", clients=6).group_names == ("0°", "180°")
    assert load("digits", Turned(Iid(4), 2), clients=6).n_clients == 6
    for text, message in {
        "iid+rotate=2": "unknown addition",
        "iid+rotations=x": "partition.k must be a whole number",
        "iid+sample=0": "Sampled.examples must be",
        "iid+rotations=361": "at most 360",
    }.items():
        with pytest.raises(UsageError, match=message):
            parse(text)
    with pytest.raises(UsageError, match="square images"):
        Turned(Natural(), 2)(synthetic(0.5, 0.5, clients=3), 0)
