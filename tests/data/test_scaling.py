"""Features in different units: noticed, and brought to one scale by training examples alone."""

from __future__ import annotations

import re
import warnings

import pytest
import torch

import polycentric as pc
from polycentric.data import Pool
from polycentric.data.suspicious import all_of
from polycentric.errors import UsageError

UNITS = torch.tensor([1.0, 5000.0, 0.0])


def pool(units: torch.Tensor = UNITS, y: torch.Tensor | None = None, n: int = 200) -> Pool:
    x = (torch.randn(n, 3, generator=torch.Generator().manual_seed(1)) + 2) * units
    y = torch.arange(n) % 2 if y is None else y
    classes = () if y.is_floating_point() else ("a", "b")
    names = ("age", "income", "nothing")
    return Pool("units", x, y, classes, client=torch.arange(n) % 5, clients=tuple("vwxyz"), columns=names)


def test_units_are_said_and_one_scale_is_not() -> None:
    with pytest.warns(UserWarning) as told:
        pc.load(pool())
    said = " ".join(str(warning.message) for warning in told)
    assert re.search(r"income is about .* and age about .* --standardise train", said)
    assert "nothing is the same in all training examples" in said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pc.load(pool(), standardise="train")
        pc.load(pool(torch.tensor([1.0, 5.0, 0.1])))


def test_only_training_examples_have_a_say() -> None:
    federation = pc.load(pool(), valid=0.2, standardise="train")
    train = federation.train.x.double()
    torch.testing.assert_close(train.mean(0), torch.zeros(3).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(train.std(0, unbiased=False), torch.tensor([1.0, 1.0, 0.0]).double(), atol=1e-6, rtol=0)
    assert float(federation.test.x.mean(0).abs().max()) > 1e-3  # theirs is another mean
    scaling, plain = federation.scaling, pc.load(pool(torch.ones(3)), valid=0.2)
    assert scaling is not None
    torch.testing.assert_close(scaling.mean[1] / 5000, plain.train.x.double().mean(0)[1])
    assert "standardised" in federation.note


def test_standardised_data_are_found_again_by_their_words(tmp_path: object) -> None:
    federation = pc.load("synthetic", standardise="train")
    assert federation.source is not None and federation.source.settings({})["standardise"] == "train"
    assert federation.fingerprint != pc.load("synthetic").fingerprint
    done = pc.run("fedavg", "synthetic", standardise="train", rounds=1, model="logistic")
    assert done.federation.fingerprint == federation.fingerprint


def test_images_are_not_standardised() -> None:
    with pytest.raises(UsageError, match="images"):
        pc.load("digits", standardise="train")


def test_what_is_suspicious_is_said() -> None:
    few = pool(torch.ones(3), y=(torch.arange(200) % 2).float())
    with pytest.warns(UserWarning, match=r"only 0, 1, kept as real numbers"):
        pc.load(few)
    n = 12
    y, test = torch.tensor([0, 1] * 5 + [2, 0]), torch.arange(n) >= 10
    names = ("p", "q", "r")
    made = Pool("odd", torch.randn(n, 2), y, ("a", "b", "c", "d"), torch.arange(n) % 3, names, test=test)
    with pytest.warns(UserWarning, match="class d has a name and no example; models put out 4 classes"):
        said = " ".join(all_of(pc.load(made)))
    assert "1 of 3 clients have no test example" in said and "2 of 3 clients have one test example" in said
    assert "class c occurs in test and never in training" in said and "class d has a name and no example" in said
