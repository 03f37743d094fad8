"""Features of series, one class against the rest, and natural clients with skewed sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polycentric import UsageError
from polycentric.data import Pool, Skewed, deal, load, parse
from polycentric.data.features import described, features


def waves(n: int = 60, clients: int = 3) -> Pool:
    generator = torch.Generator().manual_seed(0)
    time = torch.arange(64) / 64
    y = torch.arange(n) % 3
    x = torch.sin(2 * torch.pi * (2 ** (1 + y))[:, None, None] * time) * torch.tensor([1.0, 2, 3])[:, None]
    x = x + 0.1 * torch.randn(n, 3, 64, generator=generator)
    client = torch.arange(n) % clients
    names = tuple(f"c{k}" for k in range(clients))
    return Pool("waves", x, y, ("slow", "middle", "fast"), client, names, test=torch.arange(n) // clients % 5 == 0)


def test_features_have_mean_zero_and_deviation_one_over_the_training_examples() -> None:
    made = features(waves())
    train = made.x[~waves().test]  # type: ignore[operator]
    assert made.x.shape == (60, 4 * 13 + 3) and made.x.dtype == torch.float32
    torch.testing.assert_close(train.mean(0), torch.zeros(55), atol=1e-5, rtol=0)
    spread = train.std(0)
    assert ((spread - 1).abs() < 1e-4).all()
    assert made.name == "features(waves)" and made.classes == ("slow", "middle", "fast")


def test_no_feature_depends_on_another_example_before_scaling() -> None:
    x = waves().x.double()
    torch.testing.assert_close(described(x)[7:9], described(x[7:9]))


def test_what_a_feature_is() -> None:
    time = torch.arange(64).double() / 64
    x = torch.stack([torch.sin(2 * torch.pi * 3 * time), 5 + 0 * time, torch.sin(2 * torch.pi * 3 * time)])[None]
    found = described(x)[0]
    assert found[1] == pytest.approx(5)  # the mean of the second channel
    bands = found[4 * 8 : 4 * 13].view(5, 4)  # shares of energy: frequency 3 is in the band (2, 4]
    assert bands[:, 0].tolist() == pytest.approx([0, 1, 0, 0, 0], abs=1e-6)
    assert found[-3:].tolist() == pytest.approx([0, 1, 0], abs=1e-3)  # correlations of (0, 1), (0, 2), (1, 2)


def test_one_class_against_the_rest() -> None:
    made = features(waves(), "fast")
    assert made.classes == ("others", "fast")
    assert torch.equal(made.y, (waves().y == 2).long())
    assert torch.equal(made.test, waves().test)  # type: ignore[arg-type]
    assert features(waves(), "fast", "shuffled").test is None


def test_features_by_name_and_what_is_refused() -> None:
    with pytest.raises(UsageError, match="series of shape"):
        load("features(digits)")
    with pytest.raises(UsageError, match=r"features needs source: write data=features\(source=...\)"):
        load("features()")
    with pytest.raises(UsageError, match=r"unknown class of waves 'fats'.*fast"):
        features(waves(), "fats")
    with pytest.raises(UsageError, match="got 'sorted'"):
        features(waves(), "fast", "sorted")


def test_skewed_clients_lose_training_examples_only_and_as_many_as_it_says() -> None:
    pool = waves(3000, 30)
    whole, poor = deal(pool, parse("natural"), 1), deal(pool, parse("skewed=100"), 1)
    assert torch.equal(poor.test.sizes, whole.test.sizes)
    share = poor.train.sizes / whole.train.sizes
    assert 0.01 <= float(share.min()) < 0.1 and float(share.max()) <= 1
    assert int(poor.train.sizes.min()) >= 2
    assert not torch.equal(deal(pool, parse("skewed=100"), 2).train.sizes, poor.train.sizes)
    assert torch.equal(deal(pool, Skewed(ratio=1), 1).train.x, whole.train.x)


def test_skewed_clients_are_tested_on_as_much_where_the_source_has_no_test_part() -> None:
    pool = replace(waves(3000, 30), test=None)
    assert torch.equal(deal(pool, Skewed(ratio=50), 1).test.x, deal(pool, parse("natural"), 1).test.x)


def test_a_ratio_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Skewed.ratio must be"):
        Skewed(ratio=0.5)
