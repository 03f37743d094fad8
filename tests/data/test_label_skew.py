"""The number between 0 and 1, and the pictures."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image
from rich.console import Console

from polycentric.data import (
    Dirichlet,
    Federation,
    Iid,
    Natural,
    Pool,
    deal,
    describe,
    heat_map,
    heterogeneity,
    label_counts,
    load,
    teacher,
)
from polycentric.errors import UsageError


def federation_of(counts: list[list[int]]) -> Federation:
    """A federation with these training labels: a row for each client."""
    table = torch.tensor(counts)
    y = torch.cat([torch.repeat_interleave(torch.arange(table.shape[1]), row) for row in table])
    client = torch.repeat_interleave(torch.arange(len(table)), table.sum(1))
    names = tuple(f"client {k}" for k in range(len(table)))
    pool = Pool("made", torch.zeros(len(y), 2), y, tuple("abcdefgh"[: table.shape[1]]), client=client, clients=names)
    return deal(pool, Natural(), test=0.0)


def shown(federation: Federation) -> str:
    console = Console(width=120, color_system=None, record=True, file=io.StringIO())
    console.print(describe(federation))
    return console.export_text()


def test_counts_are_counted() -> None:
    counts = [[3, 0, 1], [0, 2, 2], [1, 1, 1]]
    assert label_counts(federation_of(counts)).tolist() == counts


def test_known_distances() -> None:
    assert heterogeneity(federation_of([[5, 5], [50, 50]])) == pytest.approx(0)
    assert heterogeneity(federation_of([[4, 0], [0, 4]])) == pytest.approx(0.5)
    assert heterogeneity(federation_of([[4, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 0], [0, 0, 0, 4]])) == pytest.approx(0.75)
    assert heterogeneity(federation_of([[9, 0], [0, 1]])) == pytest.approx(0.9 * 0.1 + 0.1 * 0.9)


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=1, max_size=6))
def test_heterogeneity_lies_between_0_and_1(counts: list[list[int]]) -> None:
    counts[0][0] += 1
    assert 0 <= heterogeneity(federation_of(counts)) <= 1


def test_describe_says_what_matters() -> None:
    text = shown(load("digits", "rotations=4"))
    for part in (
        "digits",
        "1,437 train, 360 test",
        "40",
        "35 to 36",
        "90° (10)",
        "heterogeneity",
        "a row is a client",
    ):
        assert part in text
    assert text.count("\n") < 60


def test_describe_bins_many_clients_and_classes() -> None:
    n = 3_000
    y = torch.arange(n) % 100
    pool = Pool("wide", torch.zeros(n, 2), y, tuple(f"class {c}" for c in range(100)))
    text = shown(deal(pool, Dirichlet(150, 0.5)))
    assert "a row is 3 to 4 clients" in text
    assert "64 commonest classes" in text
    assert max(map(len, text.splitlines())) <= 120


def test_real_targets_are_described_without_labels() -> None:
    federation = deal(teacher(), Natural())
    assert "numbers to predict" in shown(federation)
    with pytest.raises(UsageError, match="numbers to predict"):
        heterogeneity(federation)


@pytest.mark.parametrize("clients", [3, 120])
def test_the_heat_map_is_a_picture(clients: int, tmp_path: Path) -> None:
    path = heat_map(load("digits", Iid(clients)), tmp_path / "map.png")
    with Image.open(path) as image:
        assert image.format == "PNG" and image.width > 600
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 50
