"""What the check says in words is what its numbers say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import polycentric as pc
from conftest import blobs_of
from polycentric.runs.check_data import Check


@pytest.fixture(scope="module")
def rotated() -> Check:
    return pc.check_data(pc.load("digits", "rotations=4", clients=24))


def test_several_centers_are_recommended_where_they_pay(rotated: Check) -> None:
    _, _, several, alone, first, what = rotated.answers
    assert "beat one center for 24 of 24 clients" in several and several.endswith("; 4 groups")
    assert "several centers beat training alone" in alone and first == "try first: fesem(k=4)"
    assert "linear model" in what and "all 24 clients" in what and "nothing within two of them is claimed" in what


def test_the_words_are_the_numbers(rotated: Check) -> None:
    assert rotated.probe is not None
    found = rotated.probe.difference("several", "one")
    said = (
        f"(+{100 * found.mean:.1f} ± {100 * found.error:.1f} points: {100 * rotated.probe.score('several'):.1f} against"
    )
    assert said in str(rotated)
    for line, pair in zip(rotated.answers, (("one", "alone"), ("tuned", "alone")), strict=False):
        assert ("cannot be told" in line) == (rotated.probe.difference(*pair).sure == 0)


def test_json_has_all_of_it(rotated: Check) -> None:
    out = json.loads(json.dumps(rotated.as_json(), allow_nan=False))
    assert out["probe"]["k"] == 4 and len(out["probe"]["groups"]) == 24
    assert out["probe"]["differences"]["several - one"]["sure"] == 1
    assert {one["about"] for one in out["findings"]} >= {"sizes", "labels", "features", "duplicates"}
    assert out["answers"] == list(rotated.answers)


def test_one_center_is_recommended_to_clients_that_are_alike() -> None:
    check = pc.check_data(pc.load("digits", "iid", clients=20))
    assert check.answers[0].startswith("one center beats training alone for 20 of 20 clients")
    assert check.answers[-2] == "try first: fedavg"


def test_what_is_suspicious_is_said_with_the_rest() -> None:
    federation = pc.load("digits", "iid", clients=8)
    strange = replace(federation, classes=(*federation.classes, "ten"))
    assert "class ten has a name and no example" in [one.text for one in pc.check_data(strange).findings]


def test_small_clients_are_named() -> None:
    check = pc.check_data(blobs_of((23, 7, 12, 1, 30)))
    (sizes,) = (one for one in check.findings if one.about == "sizes")
    assert sizes.numbers["below_10"] == 2 and sizes.text.endswith("fewer than 10: client 1, client 3")
    assert "not tried" in check.answers[2] and "4 of 5 clients" in check.answers[-1]


def test_of_symbols_there_is_no_answer_and_it_says_why() -> None:
    check = pc.check_data(blobs_of((9, 9), symbols=7, dtype=torch.float32))
    assert check.probe is None and check.answers == (
        "no first answer: of sequences of symbols a linear model learns next to nothing",
    )
    assert check.as_json()["probe"] is None


def test_clients_that_share_their_examples_are_refused() -> None:
    with pytest.raises(pc.UsageError, match="share their examples"):
        pc.check_data(pc.load("digits", clients=4).tiled(8))
