"""Figures for a paper: as wide as its columns, with letters that stay letters, and the same bytes every time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

import polycentric as pc
from polycentric.cli import outcome
from polycentric.errors import UsageError
from polycentric.report.figure import PAPER, on_paper, panels
from polycentric.report.paper import FIGURES, draw_figure


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paper") / "run"
    how = {"clients": 8, "rounds": 3, "model": "logistic", "device": "cpu"}
    pc.run("fesem(k=2)", "digits", partition="rotations=2", out=folder, **how)
    return folder


@pytest.mark.parametrize("columns", [1, 2])
def test_a_figure_is_as_wide_as_the_columns_of_a_paper(run: Path, tmp_path: Path, columns: int) -> None:
    for name in ("curves", "participation", "rounds", "topology"):
        path = draw_figure(name, [run], tmp_path / f"{name}.png", columns=columns)
        with Image.open(path) as picture:
            assert picture.width == pytest.approx(300 * PAPER[columns], abs=1)
        again = draw_figure(name, [run], tmp_path / "again.png", columns=columns)
        assert again.read_bytes() == path.read_bytes()


def test_panels_stand_below_each_other_where_they_have_no_room(tmp_path: Path) -> None:
    for columns, shape in ((1, "below"), (2, "beside")):
        with on_paper(columns), panels(tmp_path / "a.png", 1, 3) as axes:
            assert axes.shape == (1, 3)
            boxes = [axis.get_position() for axis in axes[0]]
        assert (boxes[0].y0 > boxes[1].y0) == (shape == "below") and (boxes[1].x0 > boxes[0].x0) == (shape == "beside")


def test_all_forms_are_written_and_letters_stay_letters(run: Path, tmp_path: Path) -> None:
    for form, head in (("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89PNG")):
        out = tmp_path / f"curves.{form}"
        assert outcome(["figure", "curves", str(run), "--format", form, "--out", str(out)]) == 0
        assert out.read_bytes().startswith(head)
    assert b"/CreationDate" not in (tmp_path / "curves.pdf").read_bytes()
    assert re.search(rb"/FontType ?42|/Type0|/CIDFontType2", (tmp_path / "curves.pdf").read_bytes())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "unknown figure 'nothing'"),
        (["curves", "--format", "gif"], "unknown format 'gif'"),
        (["curves", "--columns", "3"], "1 or 2 columns"),
        (["curves", "--over", "years"], "unknown axis 'years'"),
        (["participation", "--metric", "macro_f1"], "are of curves, not of participation"),
        (["splits"], "has nothing to draw for splits: try curves, participation, topology, rounds, map"),
    ],
)
def test_what_cannot_be_drawn_is_said(run: Path, tmp_path: Path, capsys, monkeypatch, words, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert outcome(["figure", words[0], str(run), *words[1:]]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1 and not list(tmp_path.iterdir())


def test_a_topology_is_drawn_of_cells_and_graphs(tmp_path: Path) -> None:
    for name, method in (("graph", "dpsgd"), ("cells", "fedmes(cells=overlap(u=2, v=1))")):
        how = {"clients": 9, "rounds": 0, "model": "logistic", "device": "cpu", "out": tmp_path / name}
        pc.run(method, "digits", **how)
        assert draw_figure("topology", [tmp_path / name], tmp_path / f"{name}.png").is_file()
    with pytest.raises(UsageError, match="is of one run, got 2"):
        draw_figure("map", [tmp_path / "graph", tmp_path / "cells"], tmp_path / "map.png")
    assert len(FIGURES) == len(set(FIGURES))
