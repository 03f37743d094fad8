"""The tables about many centers: one budget for all, pages that show every number, claims that can go either way."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polycentric.reproduce import TABLES, Row, Table, reproduce_table
from polycentric.reproduce.fesem_figures import FESEM_CLUSTERS, FESEM_CONVERGENCE
from polycentric.reproduce.fesem_table2 import (
    BY_EPOCHS,
    CLIENTS,
    COHORT,
    FESEM_TABLE2,
    PAPER,
    ROUNDS,
    above,
    cell,
    setting,
)
from polycentric.reproduce.judge import MISSING
from polycentric.runs.loop import Run

COMMON: dict[str, Any] = {
    "data": "digits", "clients": 6, "partition": "rotations=2", "model": "logistic", "rounds": 2, "executor": "looped",
    "optimistic": True,
}  # fmt: skip


@contextmanager
def bar(total: int) -> Iterator[Any]:
    yield lambda done, of, summary: None


def made(table: Table, folder: Path, **more: Any) -> tuple[list[dict[str, Any]], str]:
    path = reproduce_table(table, folder / "out", folder / "runs", device="cpu", seeds=2, bar=bar, **more).path
    return json.loads(path.with_suffix(".json").read_text()), path.read_text()


def small() -> Table:
    methods = {"FedAvg": {"method": "fedavg"}, "FeSEM(2)": {"method": "fesem", "set": {"k": 2, "warm_up": 1}}}
    rows = []
    for name, own in methods.items():
        for metric in ("micro_accuracy", "macro_f1"):
            for section in ("first", "second"):
                rows.append(
                    Row(
                        f"{name}, {section}, {metric}",
                        COMMON | own,
                        50.0 if metric == "micro_accuracy" else None,
                        lambda s, m=metric: 100 * s["metrics"][m],  # type: ignore[misc]
                        section=section,
                        line=name,
                        column=metric,
                    )
                )
    return replace(FESEM_TABLE2, name="small", rows=tuple(rows), claims=())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small")
    made(small(), path)
    return path


def test_a_wide_page_has_a_line_for_each_method_and_every_number(folder: Path) -> None:
    rows, page = made(small(), folder, cached=True)
    assert len(rows) == 8 and page.count("### ") == 2
    for section in page.split("### ")[1:]:
        lines = [line for line in section.splitlines() if line.startswith("| Fe")]
        assert len(lines) == 2 and all(line.count("|") == 6 for line in lines)
        assert section.splitlines()[2] == "| | micro_accuracy: paper | ours | macro_f1 | seeds |"
    for row in rows:
        assert f"{row['ours_mean']:.1f} ± {row['ours_std']:.1f}" in page


def test_a_page_that_is_not_whole_says_so(folder: Path) -> None:
    _, page = made(small(), folder, cached=True, only=["FeSEM"])
    assert "| FedAvg" in page and "not run" not in page
    written = reproduce_table(small(), folder / "more", folder / "runs", device="cpu", seeds=3, cached=True, bar=bar)
    assert "FedAvg: 1 of 3 seeds not run" in written.path.read_text() and len(written.missing) == 8


def test_a_table_can_look_at_the_runs_of_another(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Run, watch: Any = None) -> None:
        raise AssertionError("run again")

    monkeypatch.setattr(Run, "go", refuse)
    seen: list[str] = []

    def measure(summary: dict[str, Any]) -> float:
        seen.append(summary["run_dir"])
        return float((Path(summary["run_dir"]) / "metrics.jsonl").is_file())

    other = replace(
        small(), name="other", shares="small", rows=tuple(replace(r, measure=measure) for r in small().rows)
    )
    rows, _ = made(other, folder)
    assert all(row["ours_mean"] == 1.0 for row in rows) and all("/runs/small/" in path for path in seen)
    assert FESEM_CONVERGENCE.shares == FESEM_CLUSTERS.shares == "fesem-table2"
    theirs = [json.dumps(row.settings, sort_keys=True) for row in FESEM_TABLE2.rows]
    for table in (FESEM_CONVERGENCE, FESEM_CLUSTERS):
        assert all(json.dumps(row.settings, sort_keys=True) in theirs for row in table.rows)


@pytest.mark.parametrize("data", CLIENTS)
@pytest.mark.parametrize("name", [*PAPER, *BY_EPOCHS])
def test_every_method_has_the_same_budget(name: str, data: str) -> None:
    if name in BY_EPOCHS and data != "unipen62":
        return
    asked, cohort = cell(name, data), COHORT
    own = asked["set"]
    visits = asked["rounds"] * cohort
    if "warm_up" in own:
        assert own["warm_up"] == "none"  # the first round is a visit of everybody
        visits = CLIENTS[data] + (asked["rounds"] - 1) * cohort
    if name == "NoFed":
        visits = asked["rounds"] * CLIENTS[data]
        assert visits >= ROUNDS * cohort  # more than the others, never less
    else:
        assert abs(visits - ROUNDS * cohort) <= cohort
    assert own.get("match", "distance") == "distance"  # the paper's
    others = {k for k in own if k not in ("k", "match", "warm_up", "select", "lr", "batch", "steps", "epochs")}
    assert not others  # nothing else is tuned for anybody
    if data == "unipen62" and name not in BY_EPOCHS and name != "FedSGD":
        assert own["steps"] == 13 and own["batch"] == 20
    if data == "celeba-smile" and name != "FedSGD":
        assert own["epochs"] == 10 and own["batch"] == 10


def test_a_claim_needs_more_than_noise() -> None:
    a, b = (setting(name, "unipen62", "own center", "micro_accuracy") for name in ("FeSEM(4)", "FedAvg"))
    assert above({a: [80.0, 82.0, 81.0], b: [70.0, 71.0, 70.0]}, a, b)[0] is True
    assert above({a: [60.0, 62.0, 61.0], b: [70.0, 71.0, 70.0]}, a, b)[0] is False
    assert above({a: [80.0, 60.0, 71.0], b: [70.0, 71.0, 70.0]}, a, b)[0] is None
    assert above({a: [80.0, math.nan], b: [math.nan, 70.0]}, a, b) == (None, MISSING)


def test_the_papers_numbers_are_where_they_belong() -> None:
    found = {row.setting: row.paper for row in FESEM_TABLE2.rows}
    assert found[setting("FeSEM(4)", "unipen62", "own center", "micro_accuracy")] == 90.3
    assert found[setting("FeSEM(4)", "celeba-smile", "fine-tuned", "macro_f1")] == 69.5
    assert found[setting("Clustered", "unipen62", "best center", "micro_f1")] == 64.3
    assert found[setting("FedAvg by epochs", "unipen62", "own center", "micro_f1")] is None
    assert all(row.section for row in FESEM_TABLE2.rows) and "cfl" in TABLES
    chosen = [row for row in FESEM_TABLE2.rows if "best center" in row.setting or "one center" in row.setting]
    assert all(row.section.partition(": ")[2].startswith("not a result") for row in chosen)
