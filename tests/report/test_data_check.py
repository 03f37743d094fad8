"""The figure of a check, for every kind of data."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

import polycentric as pc
from conftest import blobs_of, quadratics_of
from polycentric.report.data_check import draw_check

KINDS = {
    "classes": lambda: pc.load("digits", "rotations=2", clients=8),
    "numbers": quadratics_of,
    "symbols": lambda: blobs_of((9, 400), symbols=7, shape=(30,)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_check_is_drawn_and_always_the_same(kind: str, tmp_path: Path) -> None:
    check = pc.check_data(KINDS[kind]())
    for name in ("a.png", "b.png"):
        draw_check(check, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as image:
        wide, high = image.size
    assert (high > 0.6 * wide) == (check.probe is not None)  # two rows of panels where there was a probe
