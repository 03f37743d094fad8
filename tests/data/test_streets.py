"""Drawn streets: the same for a seed on every machine, unlike between devices, with boxes that hold what they say."""

from __future__ import annotations

import pytest
import torch

import polycentric as pc
from polycentric.data import Pool, find, heterogeneity, label_counts
from polycentric.data.streets import CLASSES, streets
from polycentric.errors import UsageError


@pytest.fixture(scope="module")
def drawn() -> Pool:
    return streets()


def test_sizes_are_fixed(drawn: Pool) -> None:
    assert drawn.x.shape == (400, 3, 96, 128) and drawn.x.dtype == torch.uint8 and drawn.classes == CLASSES
    twenty, five = pc.load(drawn), pc.load("streets", partition="natural=device5")
    assert twenty.clients[:2] == ("device 1", "device 2") and (len(twenty.train), len(twenty.test)) == (318, 82)
    assert twenty.train.sizes.tolist() == SIZES and five.train.sizes.tolist() == [100, 66, 56, 49, 47]
    assert int(twenty.test.sizes.min()) > 0 and twenty.group_names == tuple(f"place {g}" for g in range(1, 6))
    assert label_counts(five).sum(0).tolist() == COUNTS and twenty.group is not None
    assert int(((drawn.y[..., 0] < 0).all(1)).sum()) == 15  # images in which nothing is


SIZES = [63, 37, 29, 24, 22, 20, 13, 11, 10, 10, 10, 9, 9, 8, 8, 7, 7, 7, 7, 7]
COUNTS = [95, 104, 137, 82, 146, 145, 99]


def test_the_seed_decides_what_is_there_and_not_where(drawn: Pool) -> None:
    again, other = streets(), streets(seed=1)
    assert torch.equal(again.x, drawn.x) and torch.equal(again.y, drawn.y)
    assert not torch.equal(other.y, drawn.y) and drawn.client is not None and other.client is not None
    assert torch.equal(other.client, drawn.client)
    own = drawn.client == 7  # one camera: where nothing stands, its images differ by light alone
    still = [pool.x[own].double().flatten(1)[:, : 128 * 8] for pool in (drawn, other)]
    alike = torch.corrcoef(torch.stack([part.mean(0) for part in still]))[0, 1]
    assert float(alike) > 0.95


def test_devices_are_unlike(drawn: Pool) -> None:
    twenty = pc.load(drawn)
    dealt = pc.load(drawn, partition="iid", clients=20)
    assert heterogeneity(twenty) > 1.5 * heterogeneity(dealt)
    light = [float(twenty.train.of(k).x.double().mean()) for k in range(20)]
    assert max(light) - min(light) > 50  # of 255


def test_a_box_holds_its_thing_exactly() -> None:
    """Of the same image with and without it, the pixels that differ span the box."""
    from polycentric.data.streets import _background, _drawn

    height, width = 60, 80
    scene = _background(3, height, width)
    for label in range(len(CLASSES)):
        thing = (float(label), 0.25, 0.3, 0.55, 0.7, 250.0, 20.0, 250.0, 0.0)
        bare, none = _drawn(scene, [], 3, height, width)
        image, kept = _drawn(scene, [thing], 3, height, width)
        assert not none and kept == [thing]
        free = scene[1] == 0  # but for the post before it
        at = torch.from_numpy((abs(image - bare).max(2) > 0.2 * 255) & free).nonzero()
        assert 18 - 1 <= int(at[:, 0].min()) <= 19 and 41 - 1 <= int(at[:, 0].max()) <= 42
        assert 20 - 1 <= int(at[:, 1].min()) <= 21 and 42 <= int(at[:, 1].max()) <= 44


def test_what_is_hidden_is_not_there() -> None:
    from polycentric.data.streets import _background, _drawn

    scene = _background(3, 60, 80)
    behind = (2.0, 0.4, 0.4, 0.5, 0.6, 250.0, 20.0, 250.0, 0.0)
    before = (2.0, 0.35, 0.4, 0.55, 0.65, 20.0, 20.0, 250.0, 0.0)
    outside = (2.0, -0.3, 0.4, 0.1, 0.6, 250.0, 20.0, 250.0, 0.0)
    assert _drawn(scene, [behind, outside, before], 3, 60, 80)[1] == [before]


def test_more_and_larger_ones() -> None:
    pool = find("streets(104,48x64,seed=2)")
    assert pool.x.shape == (104, 3, 48, 64) and pool.name == "streets" and pool.test is not None
    assert pool.recipe == {"pictures": {"size": [48, 64], "channels": 3}} and len(set(pool.client.tolist())) == 20  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("streets(50)", "104 to 1,000,000"),
        ("streets(size=9x9)", "at least 32x32"),
        ("streets(size=large)", "HEIGHTxWIDTH"),
        ("streets(100000,1000x1000)", "fewer or smaller"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find(name)
