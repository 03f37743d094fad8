"""What is unlike is found and named, and clients that are alike are not accused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import federation_of
from polycentric import Federation, load
from polycentric.data.federation import Scaling
from polycentric.data.unlike import Finding, feature_shifts, shifts, unlike


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def alike(seed: int = 0, clients: int = 12, n: int = 30, d: int = 4, classes: int = 3) -> Federation:
    """Clients drawn from one distribution."""
    x, y = normal(seed, clients, n, d), torch.arange(n) % classes
    return federation_of([(x[k], y) for k in range(clients)], classes=classes)


def about(federation: Federation, what: str) -> Finding:
    (found,) = (one for one in unlike(federation) if one.about == what)
    return found


def with_x(federation: Federation, x: Tensor, **more: Any) -> Federation:
    return replace(federation, train=replace(federation.train, x=x), **more)


def test_the_numbers_are_those_of_an_analysis_of_variance() -> None:
    sizes = torch.tensor([3, 8, 5])
    owner = torch.repeat_interleave(torch.arange(3), sizes)
    v = normal(0, 16, 1) + 5 * owner[:, None]
    found = shifts(("a",), v, owner, 3)
    parts = torch.split(v[:, 0], sizes.tolist())
    within = sum(((part - part.mean()) ** 2).sum() for part in parts) / (16 - 3)
    apart = sum(len(part) * (part.mean() - v.mean()) ** 2 for part in parts) / 2
    n0 = (16 - sum(len(part) ** 2 for part in parts) / 16) / 2
    assert float(found.between[0]) == pytest.approx(float(((apart - within) / n0 / within).sqrt()))
    middle = sorted(float(part.mean()) for part in parts)[1]
    assert float(found.shift[0, 0]) == pytest.approx(float((parts[0].mean() - middle) / within.sqrt()))


def test_units_do_not_matter() -> None:
    federation = alike()
    x = federation.train.x + 2 * (federation.train.owner == 3)[:, None]
    found, other = (feature_shifts(with_x(federation, each)) for each in (x, 1000 * x - 7))
    assert found is not None and other is not None
    torch.testing.assert_close(found.shift, other.shift)
    torch.testing.assert_close(found.between, other.between)


def test_clients_that_are_alike_are_not_accused() -> None:
    said = [about(alike(seed), "features") for seed in range(20)]
    assert sum("no more than chance" in one.text for one in said) >= 18  # one in twenty may be, for each of two tests
    assert "alike in their labels" in about(alike(), "labels").text


def test_a_shifted_client_is_named_with_the_feature_that_is() -> None:
    federation = alike()
    x = federation.train.x.clone()
    x[federation.train.owner == 7, 2] += 3
    found = about(with_x(federation, x, columns=("age", "weight", "dose", "pulse")), "features")
    assert found.numbers["clients_shifted"] == 1
    (one,) = found.numbers["shifted"]
    assert (one["client"], one["name"]) == ("client 7", "dose") and 2 < one["shift"] < 4
    assert "client 7 in dose (+" in found.text and list(found.numbers["between"]) == ["dose"]


def test_a_feature_that_names_the_client_is_told() -> None:
    federation = alike()
    x = federation.train.x.clone()
    x[:, 1] = 0.1 * federation.train.owner
    assert about(with_x(federation, x), "features").numbers["names_the_client"] == ["feature 1"]
    x[:, 1] = 0.1
    assert about(with_x(federation, x), "features").numbers["names_the_client"] == []


def test_a_class_at_one_client_only_is_told_with_the_client() -> None:
    federation = alike()
    y = federation.train.y.clone()
    y[federation.train.owner == 4] = 3
    changed = replace(federation, train=replace(federation.train, y=y), classes=tuple("abcd"))
    assert about(changed, "classes").numbers == {"only_at": {"d": "client 4"}}
    assert "farthest from everybody's: client 4 (0.9" in about(changed, "labels").text
    assert not [one for one in unlike(federation) if one.about == "classes"]


def test_clients_that_are_tested_on_what_they_never_saw() -> None:
    federation = alike(clients=2)
    x, y = federation.train.x[:2], torch.tensor([0, 2])
    test = federation_of([(x, y), (x, y)], classes=3).train
    train = replace(federation.train, y=torch.where(federation.train.owner == 1, 0, federation.train.y))
    (found,) = (one for one in unlike(replace(federation, train=train, test=test)) if "lacking" in one.numbers)
    assert found.numbers["lacking"] == 1 and found.text.endswith("no training example of: client 1")


def test_missing_values_are_counted_scaled_or_not() -> None:
    federation = alike(d=2)
    x = federation.train.x.clone()
    x[:, 1] = ((federation.train.owner == 5) & (torch.arange(len(x)) % 2 == 0)).double()
    named = with_x(federation, x, columns=("age", "age missing"))
    expected = {"age": {"share": pytest.approx(1 / 24), "worst_client": "client 5", "worst_share": 0.5}}
    assert about(named, "missing").numbers == expected
    scaling = Scaling(x.mean(0), x.std(0))
    assert about(with_x(named, scaling(x), scaling=scaling), "missing").numbers == expected


def test_numbers_to_predict_are_compared_as_features_are() -> None:
    federation = load("teacher")
    y = federation.train.y + 50 * (federation.train.owner == 2)
    found = about(replace(federation, train=replace(federation.train, y=y)), "targets")
    assert [one["client"] for one in found.numbers["shifted"]] == ["2"]
    assert "no more than chance" in about(federation, "targets").text


@pytest.mark.parametrize(
    "shape, name", [((1, 8, 8), "brightness"), ((3, 8, 8), "channel 1"), ((3, 20), "mean of channel 1")]
)
def test_images_and_series_have_features_too(shape: tuple[int, ...], name: str) -> None:
    x, owner = normal(0, 120, *shape) + 10, torch.arange(120) // 20
    x[owner == 4, min(1, shape[0] - 1)] += 2
    federation = federation_of([(x[owner == k], torch.zeros(20)) for k in range(6)])
    found = feature_shifts(federation)
    assert found is not None and len(found.names) == found.shift.shape[1]
    at = found.names.index(name)
    assert found.sure[:, at].nonzero()[:, 0].tolist() == [4]


def test_symbols_have_no_means() -> None:
    x = torch.randint(5, (20, 7))
    assert feature_shifts(federation_of([(x, torch.zeros(20, dtype=torch.int64))] * 2, classes=2, symbols=5)) is None
