"""Panels, bands, points and legends: what is drawn where, what is left out, and the same bytes for the same figure."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from polycentric.report import figure
from polycentric.report.figure import Drawn, Heat, Points, band, colour, grid, heat, panels, target

EMPTY = Drawn(lambda axis: pytest.fail("drawn"), there=False)


def line(x, y, label=None, **dress):
    return Drawn(lambda axis: (axis.plot(x, y, label=label), axis.set(**dress)))


@pytest.fixture
def seen(monkeypatch):
    """The axes of every figure that was written."""
    found = []

    @contextmanager
    def watched(*args, **how):
        with panels(*args, **how) as axes:
            yield axes
            found.append(axes)

    monkeypatch.setattr(figure, "panels", watched)
    return found


@settings(max_examples=10, deadline=None)
@given(st.lists(st.lists(st.floats(-9, 9), min_size=3, max_size=3), min_size=1, max_size=4))
def test_a_band_is_the_mean_and_one_deviation_about_it(tmp_path_factory, curves):
    with panels(tmp_path_factory.mktemp("band") / "a.png") as axes:
        band(axes[0, 0], [0, 1, 2], curves, 3, "seeds", linestyle="--")
        (drawn,) = axes[0, 0].lines
        assert drawn.get_color() == colour(3) and drawn.get_linestyle() == "--"
        np.testing.assert_allclose(drawn.get_ydata(), np.mean(curves, 0))
        assert len(axes[0, 0].collections) == (len(curves) > 1)


def test_nothing_to_draw_is_no_file(tmp_path):
    path = tmp_path / "a.png"
    assert not grid(path, [[EMPTY, EMPTY]]) and not grid(path, []) and not path.exists()
    assert not Points({"a": {1.0: [], 2.0: []}}).there and Points({"a": {1.0: [0.5]}}).there


def test_empty_rows_and_columns_are_left_out(tmp_path, seen):
    one = line([0, 1], [0, 1])
    assert grid(tmp_path / "a.png", [[EMPTY, one, one], [EMPTY] * 3, [EMPTY, EMPTY, one]])
    (axes,) = seen
    assert axes.shape == (2, 2)
    assert [axis.get_visible() for axis in axes.flat] == [True, True, False, True]


def test_axes_are_named_once_and_lines_too(tmp_path, seen):
    one = line([0, 1], [0, 1], "fedavg", xlabel="rounds", ylabel="accuracy")
    other = line([0, 1], [0, 1], "fesem", xlabel="rounds", ylabel="loss")
    assert grid(tmp_path / "a.png", [[one, one, other], [one, one, one]])
    (axes,) = seen
    assert [axis.get_ylabel() for axis in axes.flat] == ["accuracy", "", "loss", "accuracy", "", ""]
    assert [axis.get_xlabel() for axis in axes.flat] == [""] * 3 + ["rounds"] * 3
    (legend,) = axes[0, 0].figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["fedavg", "fesem"]


def test_one_line_and_panels_with_their_own_legend_need_none(tmp_path, seen):
    own = Drawn(lambda axis: (axis.plot([0], [0], label="a"), axis.plot([1], [1], label="b"), axis.legend()))
    assert grid(tmp_path / "a.png", [[line([0], [0], "alone"), own]])
    assert not seen[0][0, 0].figure.legends


def test_a_legend_is_not_wider_than_its_figure(tmp_path, seen):
    many = [line([0, 1], [0, k], f"cloud every {k} rounds, and farther") for k in range(7)]
    assert grid(tmp_path / "a.png", [[Drawn(lambda axis: [one.draw(axis) for one in many])]])
    whole = seen[0][0, 0].figure
    box = whole.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.x1 <= whole.bbox.width


def test_points_are_means_over_as_many_seeds_as_all_places_have(tmp_path):
    points = Points({"a": {1.0: [1.0, 3.0], 2.0: [5.0, 7.0, 99.0], 3.0: []}, "b": {1.0: []}}, apart=0.5)
    with panels(tmp_path / "a.png") as axes:
        points.draw(axes[0, 0])
        (drawn,) = axes[0, 0].lines
        assert drawn.get_xdata().tolist() == [1, 2] and drawn.get_ydata().tolist() == [2, 6]
        assert axes[0, 0].get_xticks().tolist() == [1, 2, 3]


def test_points_that_cover_each_other_can_be_moved_apart(tmp_path):
    with panels(tmp_path / "a.png") as axes:
        Points({"a": {1.0: [1.0]}, "b": {1.0: [1.0]}}, apart=0.5).draw(axes[0, 0])
        assert [line.get_xdata()[0] for line in axes[0, 0].lines] == [1.0, 1.5]


def test_heat_maps_and_targets(tmp_path):
    with panels(tmp_path / "a.png", 1, 2) as axes:
        image = heat(axes[0, 0], np.eye(3), (0, 1), "viridis")
        assert image.get_clim() == (0, 1) and image.get_array().shape == (3, 3)
        Heat(np.eye(3), "correlation", {"title": "tasks"}).draw(axes[0, 1])
        assert axes[0, 1].get_title(loc="left") == "tasks" and len(axes[0, 1].figure.axes) == 3
        target(axes[0, 0], 2.0)
        assert set(axes[0, 0].lines[0].get_ydata()) == {2.0}


def test_the_same_figure_has_the_same_bytes(tmp_path):
    for name in ("one.png", "two.png"):
        assert grid(tmp_path / name, [[Points({"a": {1.0: [1.0, 2.0], 2.0: [2.0, 2.5]}}), Heat(np.eye(2), "bar")]])
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
