"""What occurs twice is counted, where it does harm."""

from __future__ import annotations

import torch
from torch import Tensor

from conftest import federation_of
from polycentric import load
from polycentric.data.duplicates import duplicates


def client(k: int, n: int = 6) -> tuple[Tensor, Tensor]:
    return 100.0 * k + torch.arange(2.0 * n).view(n, 2), torch.zeros(n, dtype=torch.int64)


def told(*parts: tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]) -> list[tuple[str, int, str]]:
    """(about, examples, the client with most of them) of every finding."""
    ((train, test),) = parts
    found = duplicates(federation_of(train, test, classes=2))
    return [
        (one.about, one.numbers["examples"], one.text.split(": ")[1].split(" (")[0]) for one in found if one.numbers
    ]


def test_nothing_is_said_where_nothing_occurs_twice() -> None:
    (found,) = duplicates(load("digits", "iid"))
    assert found.text == "no example occurs twice"


def test_a_test_example_in_training_is_a_leak() -> None:
    (x0, y0), (x1, y1) = client(0), client(1)
    train = [(x0[:4], y0[:4]), (x1[:4], y1[:4])]
    own = torch.cat([x1[4:], x1[:1]])
    assert told((train, [(x0[4:], y0[4:]), (own, y1[:3])])) == [("leak", 1, "client 1")]
    others = torch.cat([x0[4:], x1[:1]])
    assert told((train, [(others, y0[:3]), (x1[4:], y1[4:])])) == [("leak", 1, "client 0")]


def test_within_and_across_clients() -> None:
    (x0, y0), (x1, y1) = client(0), client(1)
    none = [(x0[:0], y0[:0])] * 2
    assert told(([(torch.cat([x0, x0[:2]]), torch.cat([y0, y0[:2]])), (x1, y1)], none)) == [
        ("duplicates", 2, "client 0")
    ]
    across = told(([(x0, y0), (torch.cat([x1, x0[:1]]), torch.cat([y1, y0[:1]]))], none))
    assert across == [("duplicates", 2, "client 0")]  # the one and its copy


def test_one_example_with_two_targets() -> None:
    x, y = client(0)
    found = duplicates(federation_of([(torch.cat([x, x[:1]]), torch.cat([y, y[:1] + 1]))], classes=2))
    assert "another target" in found[-1].text and found[-1].numbers["examples"] == 2


def test_zero_has_no_sign() -> None:
    x = torch.tensor([[0.0, 1.0], [-0.0, 1.0]])
    (found,) = duplicates(federation_of([(x, torch.zeros(2, dtype=torch.int64))], classes=1))
    assert found.numbers["examples"] == 1
