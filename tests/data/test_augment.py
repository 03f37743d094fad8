"""Images change in training by keys, the same under every executor, and never where they are scored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import polycentric as pc
from polycentric.data import Augment, Colour, Crop, Federation, Flip, Scale, Split
from polycentric.data.augment import pack, unpack
from polycentric.errors import UsageError
from polycentric.language import part_of
from polycentric.learn.batches import BatchSchedule, Plan, batch_at
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


def test_replayed_steps_see_the_same_images() -> None:
    digits = pc.load("digits", clients=2, partition="iid+sample=30")
    how: dict[str, Any] = {"rounds": 2, "dtype": "float64", "fine_tune": 0, "model": "logistic"}
    runs = [
        pc.run("fedavg", digits, executor=executor, augment="flip+crop(1)", **how) for executor in ("stacked", "traced")
    ]
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


# --- boxes move with their images

HEIGHT, WIDTH = 40, 60
WAYS = ["flip", "crop(9)", "scale(1.6)", "flip+scale(1.3)+crop(5)", "colour(0.5)+flip"]


def white_boxes(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images that are black but for one white box each, and those boxes, with a place that is empty."""
    images, boxes = torch.zeros(n, 3, HEIGHT, WIDTH, dtype=torch.uint8), torch.zeros(n, 2, 5)
    boxes[:, 1, 0] = -1
    for i in range(n):
        low, left = int(bits(0, "low", i)) % (HEIGHT - 12), int(bits(0, "left", i)) % (WIDTH - 15)
        high, wide = 4 + int(bits(0, "high", i)) % 8, 5 + int(bits(0, "wide", i)) % 10
        images[i, :, low : low + high, left : left + wide] = 255
        place = [left / WIDTH, low / HEIGHT, (left + wide) / WIDTH, (low + high) / HEIGHT]
        boxes[i, 0] = torch.tensor([i % 3, *place])
    return images, boxes


@pytest.mark.parametrize("way", WAYS)
def test_a_moved_box_bounds_what_it_bounded(way: str) -> None:
    images, boxes = white_boxes(200)
    augment: Augment = part_of("augment", way, Augment)
    key = bits(5, torch.arange(200))
    seen, moved = augment(images, key), augment.moved(boxes, key, (HEIGHT, WIDTH))
    assert moved.shape == boxes.shape and (moved[:, 1] == torch.tensor([-1.0, 0, 0, 0, 0])).all()
    kept = 0
    for image, (box, _), old in zip(seen, moved, boxes[:, 0], strict=True):
        at = (image[0] > 60).nonzero()
        if box[0] < 0:
            assert not box[1:].any() and len(at) < 0.6 * 2.6 * HEIGHT * WIDTH * float((old[3:] - old[1:3]).prod())
            continue
        kept += 1
        assert box[0] == old[0]
        low, high = at.min(0).values, at.max(0).values + 1
        bound = torch.tensor([low[1] / WIDTH, low[0] / HEIGHT, high[1] / WIDTH, high[0] / HEIGHT])
        assert ((bound - box[1:]).abs() * torch.tensor([WIDTH, HEIGHT, WIDTH, HEIGHT]) <= 1).all(), (box, bound)
    assert kept > 150 and not torch.equal(moved, boxes)


def test_boxes_flipped_twice_are_where_they_were() -> None:
    _, boxes = white_boxes(50)
    odd = next(key for key in KEYS if not torch.equal(Flip().moved(boxes, key.expand(50), (HEIGHT, WIDTH)), boxes))
    once = Flip().moved(boxes, odd.expand(50), (HEIGHT, WIDTH))
    torch.testing.assert_close(Flip().moved(once, odd.expand(50), (HEIGHT, WIDTH)), boxes, rtol=0, atol=1e-6)


def test_what_the_border_leaves_less_than_a_quarter_of_is_no_box() -> None:
    class Right(Augment):
        def changed(self, x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return x

        def corners(self, box: torch.Tensor, key: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
            return box + torch.tensor([0.5, 0, 0.5, 0])

    boxes = torch.tensor([[[1, 0.3, 0.1, 0.7, 0.3], [0, 0.42, 0.1, 0.82, 0.3], [2, 0.1, 0.5, 0.4, 1.0]]])
    moved = Right().moved(boxes, KEYS[:1], (10, 10))[0]
    torch.testing.assert_close(moved[0], torch.tensor([1, 0.8, 0.1, 1, 0.3]))
    assert moved[1].tolist() == [-1, 0, 0, 0, 0]
    torch.testing.assert_close(moved[2], torch.tensor([2, 0.6, 0.5, 0.9, 1]))


def test_scale_zooms_about_the_middle() -> None:
    x = torch.zeros(300, 1, 21, 21, dtype=torch.uint8)
    x[:, :, 9:12, 9:12] = 255
    found = Scale(2.0)(x, KEYS[:300])
    assert (found[:, 0, 10, 10] == 255).all() and found.dtype == torch.uint8
    assert set((found > 0).flatten(1).sum(1).tolist()) == {1, 9, 25}  # a square stays one
    whole = Scale(2.0)(torch.full_like(x, 7), KEYS[:300])
    smaller = (whole == 0).flatten(1).any(1)
    assert 100 < int(smaller.sum()) < 200  # half of them, with a black border


def test_colour_changes_light_and_nothing_else() -> None:
    x = IMAGES[:, :1].expand(-1, 3, -1, -1) // 4 + 96
    found = Colour(0.4)(x, KEYS)
    assert found.dtype == torch.uint8 and not torch.equal(found, x)
    share = (found.double().mean((1, 2, 3)) / x.double().mean((1, 2, 3))).sort().values
    assert 0.58 < float(share[0]) < 0.7 and 1.3 < float(share[-1]) < 1.42
    assert (found[:, 0] - found[:, 1]).abs().max() == 0  # grey stays grey
    floats = Colour(0.4)(x.double() / 255, KEYS) * 255
    assert float((floats.clamp(0, 255) - found.double()).abs().max()) <= 0.5001
    together = Colour(0.4)(x.reshape(20, 20, 3, 5, 6), KEYS.view(20, 20)).reshape(x.shape)
    assert torch.equal(together, found)


def test_a_batch_moves_its_targets_where_they_are_places() -> None:
    images, boxes = white_boxes(12)
    split = Split(images, boxes, torch.tensor([0, 7, 12]))
    cohort = Cohort(torch.arange(2), split.sizes, torch.ones(2), 2, 0, 3)
    schedule = BatchSchedule(split, cohort, Plan(torch.full((2,), 2), 3), Flip())

    def task(placed: bool) -> Any:
        def same(thing: torch.Tensor) -> torch.Tensor:
            return thing

        goal = SimpleNamespace(placed=placed)
        return SimpleNamespace(goal=goal, inputs=same, targets=same, auxiliary=False, dtype=torch.float32)

    for step in range(2):
        how = schedule.augment, schedule.index[step], schedule.weight[step]
        batch, still = batch_at(task(True), split, *how), batch_at(task(False), split, *how)
        index, key = unpack(schedule.index[step])
        assert torch.equal(still.y, boxes[index]) and torch.equal(still.x, batch.x)
        assert torch.equal(batch.y, Flip().moved(boxes[index], key, (HEIGHT, WIDTH)))
        assert not torch.equal(batch.y, still.y)


@pytest.mark.parametrize("words", ["scale(1)", "scale(9)", "colour(0)", "colour(2)"])
def test_too_little_or_too_much_is_refused(words: str) -> None:
    with pytest.raises(UsageError, match="try"):
        part_of("augment", words, Augment)
