"""Frames with boxes, precision over recall, and what a trained detector sees in pictures of any size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import polycentric as pc
from polycentric.errors import UsageError
from polycentric.report.boxes import as_image, draw_frames, drawn, frames_of, recall_curves, stairs
from polycentric.report.detect import detect_in
from polycentric.report.page import write_report
from polycentric.report.paper import draw_figure
from polycentric.tasks.average_precision import Curve


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pc.Run:
    """A detector after a few rounds: it is unsure of all it sees."""
    out = tmp_path_factory.mktemp("boxes") / "run"
    how = {"model": "yolo", "rounds": 6, "fine_tune": 0, "out": out}
    data = pc.load("streets(104,64x64)", partition="natural=device5")
    return pc.run(pc.fedavg(momentum=0.9), data, **how)  # type: ignore[arg-type]


def test_a_found_box_has_the_colour_of_its_class_and_a_true_one_is_white() -> None:
    black = Image.new("RGB", (200, 100))
    found = torch.tensor([[1, 0.9, 0.5, 0.5, 0.9, 0.9], [0, 0.1, 0, 0, 0.2, 0.2], [-1, 0, 0, 0, 0, 0]])
    truth = torch.tensor([[0, 0.1, 0.2, 0.4, 0.6]])
    page = np.array(drawn(black, found, ("a", "b"), truth))
    assert page[20, 40].tolist() == [255, 255, 255]  # the true box begins at (0.1, 0.2)
    assert page[89, 140].tolist() == [0xD5, 0x5E, 0x00]  # the lower side of class 1
    assert page[2, 2].tolist() == [0, 0, 0]  # too unsure to be drawn
    assert np.array(black).sum() == 0  # the picture itself stays


def test_boxes_that_a_model_turned_around_are_drawn_all_the_same() -> None:
    found = torch.tensor([[0, 0.9, 0.9, 0.9, 0.1, 0.1]])
    assert np.array(drawn(Image.new("RGB", (64, 64)), found, ("a",))).any()


def test_frames_are_of_the_clients_with_most_images_and_the_same_again(run: pc.Run) -> None:
    test = run.federation.test
    frames, again = frames_of(run, clients=2, images=3), frames_of(run, clients=2, images=3)
    largest = torch.argsort(test.sizes, descending=True, stable=True)[:2].sort().values.tolist()
    assert [one.client for one in frames] == [run.federation.clients[k] for k in largest]
    assert all(len(one.images) == 3 for one in frames)
    assert np.array_equal(np.array(frames[0].images[0]), np.array(again[0].images[0]))


def test_a_curve_is_stairs_that_end_where_nothing_more_is_found() -> None:
    curve = Curve(np.array([0.5, 0.5, 1.0]), np.array([1.0, 0.5, 2 / 3]), np.array([0.9, 0.8, 0.7]), 2)
    x, y = stairs(curve)
    assert x.tolist() == [0, 0.5, 0.5, 1, 1] and y.tolist() == pytest.approx([1, 1, 2 / 3, 2 / 3, 0])
    area = (np.diff(x) * y[:-1]).sum()
    assert area == pytest.approx(0.5 + 0.5 * 2 / 3)  # the AP itself
    nothing = Curve(np.zeros(0), np.zeros(0), np.zeros(0), 2)
    assert [part.tolist() for part in stairs(nothing)] == [[0], [0]]


def test_figures_and_report_of_a_detector(run: pc.Run, tmp_path: Path) -> None:
    assert run.folder is not None
    for name in ("frames", "recall", "curves"):  # curves: of what boxes are compared by
        assert draw_figure(name, [run.folder.path], tmp_path / f"{name}.png").stat().st_size > 5000
    with pytest.raises(UsageError, match=r"--format png"):
        draw_figure("frames", [run.folder.path], tmp_path / "frames.pdf")
    assert len(recall_curves(run)) == 7
    text = write_report([run.folder.path], tmp_path / "r.html").read_text(encoding="utf-8")
    assert "What the cameras see" in text and "Precision over recall" in text and "data:image/jpeg" in text
    hidden = write_report([run.folder.path], tmp_path / "h.html", examples=False).read_text(encoding="utf-8")
    assert "What the cameras see" not in hidden


def test_detect_draws_into_copies_of_pictures_of_any_size(run: pc.Run, tmp_path: Path) -> None:
    as_image(run.federation.test.x[0], 3).save(tmp_path / "large.png")
    Image.new("L", (80, 50), 128).save(tmp_path / "grey.jpg")
    seen = detect_in(run, [tmp_path], tmp_path / "seen", least=0.0)
    assert [one.picture.name for one in seen] == ["grey.jpg", "large.png"]
    with Image.open(seen[1].written) as page:
        assert page.size == (192, 192) and len(seen[1].boxes) > 0
    boxes = np.array([one["box"] for one in seen[1].boxes])
    assert boxes.min() >= 0 and boxes.max() <= 192 and json.dumps(seen[1].to_json())
    with pytest.raises(UsageError, match="there already"):
        detect_in(run, [tmp_path / "grey.jpg"], tmp_path / "seen")
    with pytest.raises(UsageError, match="no file or folder"):
        detect_in(run, [tmp_path / "none.jpg"], tmp_path / "other")
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    with pytest.raises(UsageError, match=r"broken\.jpg is not a readable"):
        detect_in(run, [tmp_path / "broken.jpg"], tmp_path / "other")


def test_what_has_no_boxes_is_told_where_to_go(tmp_path: Path) -> None:
    digits = pc.run(pc.fedavg(), pc.load("digits", clients=4, partition="iid"), rounds=1, fine_tune=0)
    with pytest.raises(UsageError, match="polycentric predict"):
        detect_in(digits, [tmp_path], tmp_path)
    assert not draw_frames(digits, tmp_path / "x.png")
