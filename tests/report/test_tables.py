"""Tables in words: nothing in a cell is obeyed by the form it is written in, and what is best is told."""

from __future__ import annotations

from typing import Any

from polycentric.report import tables
from polycentric.runs.settings import Settings


def test_the_best_of_a_column_is_in_bold() -> None:
    def row(name: str, accuracy: list[float], tuned: list[float]) -> dict[str, Any]:
        scores = {"micro_accuracy": accuracy, "worst_decile_accuracy": accuracy[::-1]}
        base: dict[str, Any] = {"method": name, "metrics": scores, "personalised": tuned, "work": None, "diverged": 0}
        return base | {"bytes_up": 0, "bytes_down": 0}

    rows = [row("a", [0.5, 0.6], [0.9, 0.9]), row("b", [0.7, 0.8], [0.1, 0.1]), row("c", [], [])]
    sheet = tables.comparison(rows, 2, Settings(method="a"))
    assert sheet.best == {(1, "micro"), (1, "worst tenth"), (0, "fine-tuned")}
    assert "| a | 55.0±7.1 | 55.0±7.1 | **90.0±0.0** |" in tables.markdown(sheet)
    assert r"b & \textbf{75.0$\pm$7.1} & \textbf{75.0$\pm$7.1} & 10.0$\pm$0.0" in tables.latex(sheet)
    assert sheet.only("micro").best == sheet.best and "**90" not in tables.markdown(sheet.only("micro"))
    assert tables.comparison(rows[:1], 2, Settings(method="a")).best == frozenset()


def test_a_sheet_escapes_what_its_form_would_obey() -> None:
    sheet = tables.TextTable("t", ("method", "x"), (("a_b|c&d", "1±2"),))
    assert tables.markdown(sheet).splitlines()[-1] == "| a_b\\|c&d | 1±2 |"
    assert tables.latex(sheet).splitlines()[5] == r"a\_b|c\&d & 1$\pm$2 \\"
    hostile = tables.TextTable("t\n\\input{x}", ("a",), (("\\write18{rm}\n|",),))
    assert tables.latex(hostile).splitlines()[:1] == ["% t \\input{x}"]
    assert r"\textbackslash{}write18\{rm\} | \\" in tables.latex(hostile)
    assert tables.markdown(hostile).splitlines()[-1] == "| \\write18{rm} \\| |"
    assert tables.as_csv([{"a": 1}, {"b": "x,y"}]) == 'a,b\n1,\n,"x,y"\n'


def test_labels_have_a_column_for_all_of_them_being_right() -> None:
    assert list(tables.shown_metrics(["micro_accuracy", "micro_exact", "micro_loss"]).values()) == [
        "micro",
        "all labels right",
    ]
    assert tables.shown_metrics(["micro_loss", "macro_loss"]) == {"micro_loss": "loss"}


def test_a_comparison_that_cannot_be_counted_shows_a_dash() -> None:
    row: dict[str, Any] = {"method": "a", "metrics": {}, "personalised": [], "work": None, "diverged": 1}
    sheet = tables.comparison([row | {"bytes_up": 0, "bytes_down": 0}], 1, Settings(method="a"))
    assert sheet.lines[0][-4:] == ("-", "-", "0 B", "0 B")
