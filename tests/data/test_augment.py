"""Images change in training by keys, the same under every executor, and never where they are scored."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import polycentric as pc
from polycentric.data import Augment, Crop, Federation, Flip
from polycentric.data.augment import pack, unpack
from polycentric.errors import UsageError
from polycentric.language import part_of
from polycentric.learn.batches import BatchSchedule, Plan
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.draw import bits

IMAGES = torch.randint(0, 256, (400, 2, 5, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
KEYS = bits(1, torch.arange(400))


@pytest.fixture(scope="module")
def digits() -> Federation:
    return pc.load("digits", clients=6, partition="quantity=1.5+sample=150")


def test_an_image_is_flipped_or_not() -> None:
    x = Flip()(IMAGES, KEYS)
    turned = (x == IMAGES.flip(-1)).flatten(1).all(1)
    assert (turned | (x == IMAGES).flatten(1).all(1)).all() and 150 < int(turned.sum()) < 250
    assert x.dtype == IMAGES.dtype


def test_an_image_is_moved_and_its_border_is_black() -> None:
    found = Crop(2)(IMAGES, KEYS)
    framed = torch.nn.functional.pad(IMAGES, (2, 2, 2, 2))
    moves: set[tuple[int, int]] = set()
    for image, frame in zip(found, framed, strict=True):
        places = [(r, c) for r in range(5) for c in range(5) if torch.equal(frame[:, r : r + 5, c : c + 6], image)]
        assert len(places) == 1
        moves |= set(places)
    assert len(moves) == 25  # every one of them


def test_one_after_the_other() -> None:
    both = part_of("augment", "flip+crop(2)", Augment)
    assert both == Crop(2, Flip()) == part_of("augment", "flip+crop=2", Augment)
    found, moved = both(IMAGES, KEYS), {}
    for name, x in (("plain", IMAGES), ("flipped", IMAGES.flip(-1))):
        moved[name] = (Crop(2, None)(x, KEYS) == found).flatten(1).all(1)
    assert (moved["plain"] ^ moved["flipped"]).all() and 150 < int(moved["flipped"].sum()) < 250
    again = both(IMAGES.view(20, 20, 2, 5, 6), KEYS.view(20, 20))
    assert torch.equal(again.view_as(found), found)


def test_keys_travel_with_positions_and_leave_them_alone() -> None:
    n, size = 3, 50
    cohort = Cohort(torch.tensor([4, 0, 2]), torch.full((n,), size), torch.ones(n), 9, 7, 1)
    index = torch.randint(0, 1 << 40, (6, n, 10))
    places, keys = unpack(pack(index, cohort))
    assert torch.equal(places, index) and len(torch.unique(keys)) == keys.numel() and (keys >= 0).all()
    _, of_one = unpack(pack(index[:, 1:2], cohort[torch.tensor([1])]))
    assert torch.equal(of_one, keys[:, 1:2])  # whoever else takes part
    _, later = unpack(pack(index, Cohort(cohort.index, cohort.sizes, cohort.effort, 9, 7, 2)))
    assert not (later == keys).any()


def test_who_only_looks_sees_images_as_they_are(digits: Federation) -> None:
    sizes = digits.train.sizes
    cohort = Cohort(torch.arange(6), sizes, torch.ones(6), 6, 0, 0)
    for shuffle in (True, False):
        schedule = BatchSchedule(digits.train, cohort, Plan(torch.full((6,), 2), 3, shuffle), Flip())
        assert (schedule.augment is None) == (not shuffle) == bool((schedule.index < len(digits.train)).all())


@pytest.mark.parametrize("method", ["fedavg", "maml"])
def test_executors_see_the_same_images(digits: Federation, method: str) -> None:
    how: dict[str, Any] = {
        "rounds": 2,
        "dtype": "float64",
        "fine_tune": 0,
        "augment": "flip+crop(1)",
        "model": "logistic",
    }
    runs = [pc.run(method, digits, executor=executor, **how) for executor in ("looped", "stacked")]
    rows = [run.state.centers["model"] for run in runs]
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-9, atol=1e-11)
    plain = pc.run(method, digits, executor="stacked", **(how | {"augment": None}))
    assert float((plain.state.centers["model"] - rows[0]).abs().max()) > 1e-4


def test_compiled_steps_see_the_same_images() -> None:
    """Of clients with equally many examples, so that there is little to compile."""
    digits = pc.load("digits", clients=3, partition="iid+sample=45")
    how: dict[str, Any] = {"rounds": 2, "dtype": "float64", "fine_tune": 0, "model": "logistic"}
    runs = [
        pc.run("fedavg", digits, executor=executor, augment="flip+crop(1)", **how)
        for executor in ("stacked", "compiled")
    ]
    assert runs[1].clients.compiled[0] > 0
    torch.testing.assert_close(*(run.state.centers["model"] for run in runs), rtol=1e-9, atol=1e-11)
    plain = pc.run("fedavg", digits, executor="stacked", **how)
    assert float((plain.state.centers["model"] - runs[1].state.centers["model"]).abs().max()) > 1e-4


def test_what_is_scored_is_as_it_is(digits: Federation) -> None:
    how: dict[str, Any] = {"rounds": 0, "executor": "looped", "fine_tune": 0, "seed": 3}
    scores = [pc.run("fedavg", digits, augment=augment, **how).history[-1] for augment in (None, "flip+crop(3)")]
    assert scores[0] == scores[1] and scores[0]["micro_loss"] > 0


@pytest.mark.parametrize(
    ("method", "data", "augment", "words"),
    [
        ("fedavg", "synthetic(0.5,0.5)", "flip", ["(60,)", "leave it out"]),
        ("fedavg", "digits", "crop(8)", ["crop(8)", "8x8"]),
        ("fedavg", "digits", "flip+crop(8)+flip", ["crop(8)"]),
        ("fedavg", "digits", "crop(0)", ["1 to 1024"]),
        ("fedavg", "digits", "spin", ["unknown augment 'spin'", "flip"]),
        ("mocha", "digits", "flip", ["mocha", "would do nothing"]),
    ],
)
def test_what_has_no_meaning_is_refused(method: str, data: str, augment: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        pc.run(method, data, augment=augment, clients=4, rounds=1)
    assert not [word for word in words if word not in str(caught.value)], caught.value
