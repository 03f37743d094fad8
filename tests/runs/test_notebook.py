"""Runs in a notebook: they show themselves, and the example notebook runs from top to bottom."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polycentric import fedavg, run
from support import Make, small

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_look.ipynb"


def test_a_run_shows_itself_and_names_are_text(blobs: Make) -> None:
    data = replace(blobs((9, 7)), name="<script>bad</script>")
    ended = run(fedavg(lr=0.1), data, model=small, rounds=1)
    shown = ended._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown
    assert f"{ended.metrics['micro_accuracy']:.1%}" in shown and "after fine-tuning" in shown


def test_the_example_notebook_runs_and_its_last_lines_have_something_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells)
    for cell in cells:
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, str(NOTEBOOK), "exec"), names)
        if last is not None and isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)
            assert value is None or hasattr(value, "_repr_html_") or repr(value)
    assert "<table>" in names["one"]._repr_html_() and (tmp_path / "two.html").stat().st_size > 100_000
