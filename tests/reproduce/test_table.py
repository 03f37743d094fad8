"""A paper's table as data: run once, written for people and programs, its claims judged by its own numbers."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polycentric.data import parse
from polycentric.errors import UsageError
from polycentric.models import MODELS
from polycentric.report.curves import Curves
from polycentric.reproduce import TABLES, Claim, Row, Table, reproduce_table
from polycentric.reproduce.rows import history
from polycentric.reproduce.table import Runs, figure
from polycentric.runs.loop import Run
from polycentric.runs.settings import Settings
from polycentric.runs.start import built_attack, built_method

KEYS = ["what", "setting", "data", "paper", "ours_mean", "ours_std", "each", "seeds", "holds", "note", "command"]
COMMON: dict[str, Any] = {
    "data": "digits", "clients": 3, "model": "logistic", "rounds": 2, "fine_tune": 0, "executor": "looped",
}  # fmt: skip


def better(values: Any) -> tuple[bool | None, str]:
    if not values.get("together") or not values.get("alone"):
        return None, "a row was not run"
    gain = statistics.fmean(values["together"]) - statistics.fmean(values["alone"])
    return gain > 0, f"{gain:.3f} more"


TINY = Table(
    name="tiny",
    title="A tiny table",
    reference="Nobody, Nowhere, 2026.",
    data="digits",
    what="accuracy",
    measure=lambda summary: summary["metrics"]["micro_accuracy"],
    rows=(
        Row("together", COMMON | {"method": "fedavg"}, 0.5),
        Row("alone", COMMON | {"method": "nofed"}, 0.999),
        Row("no number", COMMON | {"method": "fedavg", "set": {"lr": 0.2}}),
    ),
    claims=(
        Claim("Together is better.", better),
        Claim("Together is worse.", lambda values: (not better(values)[0], "the same numbers")),
        Claim("Nobody can tell.", lambda values: (None, "nobody asked")),
    ),
    seeds=2,
    holds=lambda paper, ours: ours >= paper,
)


@contextmanager
def bar(total: int) -> Iterator[Any]:
    yield lambda done, of, summary: None


def made(table: Table, folder: Path, **more: Any) -> tuple[list[dict[str, Any]], str]:
    path = reproduce_table(table, folder / "out", folder / "runs", device="cpu", bar=bar, **more).path
    assert path == folder / "out" / f"{table.name}.md"
    return json.loads(path.with_suffix(".json").read_text()), path.read_text()


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tiny table was run."""
    folder = tmp_path_factory.mktemp("tiny")
    made(TINY, folder)
    return folder


@pytest.fixture
def done(ran: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder, where nothing is run again."""

    def refuse(self: Run, watch: Any = None) -> None:
        raise AssertionError("this cell was run again")

    monkeypatch.setattr(Run, "go", refuse)
    return ran


def test_rows_have_the_agreed_keys_and_are_not_run_again(done):
    rows, _ = made(TINY, done)
    assert [list(row) for row in rows] == [KEYS] * 3
    assert [row["setting"] for row in rows] == ["together", "alone", "no number"]
    assert [row["seeds"] for row in rows] == [2, 2, 2] and all(row["note"] == "" for row in rows)
    assert [row["holds"] for row in rows] == [True, False, None] and rows[2]["paper"] is None
    assert rows[0]["command"] == 'polycentric reproduce tiny --only "together"'
    found = [json.loads(p.read_text()) for p in sorted((done / "runs" / "tiny").glob("nofed-*/summary.json"))]
    accuracies = [summary["metrics"]["micro_accuracy"] for summary in found]
    assert len(accuracies) == 2
    assert rows[1]["ours_mean"] == pytest.approx(statistics.fmean(accuracies), abs=1e-15)
    assert rows[1]["ours_std"] == pytest.approx(statistics.stdev(accuracies), abs=1e-15)


def test_the_page_shows_numbers_and_claims(done):
    rows, page = made(TINY, done)
    assert page.startswith("# A tiny table\n") and "polycentric reproduce tiny" in page
    for row in rows:
        assert f"| {row['setting']} |" in page and f"{row['ours_mean']:.4g} ± {row['ours_std']:.3g}" in page
    assert "- Together is better. **holds**" in page
    assert "- Together is worse. **does not hold**" in page
    assert "- Nobody can tell. **cannot be told**: nobody asked" in page


def test_captions_and_notes_stay_and_a_new_page_says_where_they_are(done, tmp_path):
    shutil.copytree(done / "runs", tmp_path / "runs")
    drawn = replace(TINY, figures={name: lambda path, runs: path.write_text("drawn") for name in ("a.png", "b.png")})
    _, page = made(drawn, tmp_path)
    numbers, new, told = page.partition("![a.png](a.png)\n\n![b.png](b.png)\n\n## Notes\n\n")
    assert new and told == "- What figures show, settings and doubts are told in `docs/results/tiny.md`.\n"
    by_hand = "![What a shows.](a.png)\n\nWhat a shows.\n\n## Notes\n\n- By hand.\n\n## More\n"
    (tmp_path / "out" / "tiny.md").write_text(numbers.replace("better", "worse") + by_hand)
    for _ in range(2):
        assert made(drawn, tmp_path)[1] == numbers + "![b.png](b.png)\n\n" + by_hand


def test_only_runs_some_rows_and_writes_every_row_that_was_run(done):
    whole = made(TINY, done)
    assert made(TINY, done, only=["TOGETHER"]) == whole == made(TINY, done, only=["alone"], cached=True)
    with pytest.raises(UsageError, match="zzz; there are: together; alone; no number"):
        made(TINY, done, only=["zzz"])


def test_rows_that_were_not_run_are_on_the_page_and_told(tmp_path):
    one = replace(TINY, seeds=1)
    written = reproduce_table(one, tmp_path, tmp_path / "runs", device="cpu", bar=bar, only=["alone"])
    rows, page = json.loads((tmp_path / "tiny.json").read_text()), written.path.read_text()
    assert written.missing == ("together", "no number") and [row["seeds"] for row in rows] == [0, 1, 0]
    assert "| together |" not in page and "Not run: together; no number." in page
    assert "- Together is better. **cannot be told**: a row was not run" in page
    written = reproduce_table(one, tmp_path, tmp_path / "runs", device="cpu", bar=bar, only=["together", "number"])
    assert (
        written.missing == () and [row["seeds"] for row in json.loads((tmp_path / "tiny.json").read_text())] == [1] * 3
    )


def test_a_page_with_more_runs_than_are_here_is_not_written_over(done, tmp_path):
    shutil.copytree(done / "out", tmp_path / "out")
    shutil.copytree(done / "runs", tmp_path / "runs")
    for folder in (tmp_path / "runs" / "tiny").glob("nofed-*"):
        shutil.rmtree(folder)
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    for asked in ({"only": ["together"]}, {"cached": True}, {"seeds": 1, "only": ["alone"]}):
        with pytest.raises(UsageError, match=r"has more runs than .* of alone: writing it would lose them"):
            made(TINY, tmp_path, **asked)
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_rows_of_another_machine_keep_their_numbers_and_claims_are_judged_with_them(done, tmp_path):
    shutil.copytree(done / "runs", tmp_path / "runs")
    rows, page = made(TINY, tmp_path)
    for folder in (tmp_path / "runs" / "tiny").glob("nofed-*"):
        shutil.rmtree(folder)
    drawn = replace(TINY, figures={"a.png": lambda path, runs: path.write_text("of some of the runs")})
    assert made(drawn, tmp_path, cached=True, keep=True) == (rows, page)
    assert not (tmp_path / "out" / "a.png").exists()
    shutil.rmtree(tmp_path / "runs")  # a page alone is judged again, by other rules
    later = replace(TINY, claims=(Claim("All seeds count.", lambda values: (len(values["alone"]) == 2, "2 seeds")),))
    assert "- All seeds count. **holds**: 2 seeds" in made(later, tmp_path, cached=True, keep=True)[1]
    (tmp_path / "out" / "tiny.json").write_text("[{}]")
    with pytest.raises(UsageError, match="does not list every seed of every row, so nothing can be kept"):
        made(TINY, tmp_path, cached=True, keep=True)
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(UsageError, match="nothing to write"):
        made(TINY, tmp_path, cached=True, keep=True)


def test_one_seed_has_no_deviation_and_seeds_that_are_there_are_shown(done, tmp_path):
    assert made(TINY, done, seeds=1) == made(TINY, done)
    shutil.copytree(done / "runs", tmp_path / "runs")
    rows, page = made(replace(TINY, seeds=1), tmp_path)
    assert [row["ours_std"] for row in rows] == [None] * 3 and "±" not in page.split("|---")[1]


def test_cached_runs_nothing_and_says_what_is_missing(done, tmp_path):
    with pytest.raises(UsageError, match="nothing to write: leave out --cached"):
        made(TINY, tmp_path, cached=True)  # an empty page over a full one would lose numbers
    assert not list(tmp_path.rglob("*.md"))
    rows, _ = made(TINY, done, cached=True, seeds=3)
    assert rows[0]["seeds"] == 2 and rows[0]["note"] == "1 of 3 seeds not run" and rows[0]["ours_mean"] is not None


def test_a_target_that_is_not_reached_has_no_mean(done):
    never = replace(TINY, measure=lambda summary: math.nan if summary["seed"] else 3.0)
    rows, page = made(never, done)
    assert rows[0]["ours_mean"] is None and rows[0]["holds"] is None
    assert rows[0]["note"].startswith("1 of 2 seeds") and "not reached" in page
    json.loads(json.dumps(rows, allow_nan=False))


@pytest.mark.parametrize("name", TABLES)
def test_every_table_can_be_run(name):
    table = TABLES[name]
    assert table.name == name and table.rows and table.seeds >= 1
    settings = [row.setting for row in table.rows]
    assert len(set(settings)) == len(settings)
    for row in table.rows:
        asked = Settings.of({**row.settings, "seed": 0})
        built_method(asked)
        built_attack(asked)
        assert asked.model is None or asked.model in MODELS
        if asked.partition:
            parse(asked.partition, asked.clients)
        assert "seed" not in row.settings and "rounds" in row.settings and row.setting.isprintable()


@pytest.mark.parametrize("name", TABLES)
def test_every_claim_is_judged_by_what_there_is(name):
    table = TABLES[name]
    for values in ({}, *({row.setting: [math.nan] * n for row in table.rows} for n in (0, 2))):
        for claim in table.claims:
            holds, why = claim.judge(values)
            assert holds is None and why
    papers = {row.setting: [row.paper] * 2 for row in table.rows if row.paper is not None}
    assert all(table.holds(value[0], value[0]) is not False for value in papers.values())
    for claim in table.claims:  # the paper agrees with itself
        assert claim.judge(papers)[0] is not False, claim.text


def test_a_measure_can_read_the_history_of_a_run_that_was_moved(done, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    shutil.copytree(done / "runs", tmp_path / "elsewhere" / "runs")
    seen = []

    def measure(summary):
        seen.append(Path(summary["run_dir"]))
        return float(len(history(summary["run_dir"])))

    rows, _ = made(replace(TINY, measure=measure), tmp_path / "elsewhere")
    assert all(path.is_relative_to(tmp_path) for path in seen) and len(seen) == 6
    assert [row["ours_mean"] for row in rows] == [3, 3, 3]  # before the first round, and after each of two


def test_figures_are_drawn_from_folders_and_values_or_stay_as_they_were(done, tmp_path):
    shutil.copytree(done / "runs", tmp_path / "runs")
    seen = []

    def draw(path, runs):
        seen.append((list(runs["together"]), runs.numbers("together"), runs["never"], runs.numbers("never")))
        path.write_text("drawn")

    def refuse(path, runs):
        runs.first("never")

    figures = {"a.png": draw, "b.png": refuse, "c.png": refuse}
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b.png").write_text("as it was")
    rows, page = made(replace(TINY, figures=figures), tmp_path)
    ((folders, numbers, *nothing),) = seen
    assert len(folders) == 2 and all((folder / "metrics.jsonl").is_file() for folder in folders)
    assert statistics.fmean(numbers) == rows[0]["ours_mean"] and nothing == [(), ()]
    assert "![a.png](a.png)" in page and "![b.png](b.png)" in page and "c.png" not in page
    assert (tmp_path / "out" / "b.png").read_text() == "as it was"


def test_a_figure_of_panels_is_written_where_runs_are_there(done, tmp_path):
    draw = figure(lambda runs: [[Curves({name: runs[name] for name in ("together", "alone")})]])
    folders = {name: sorted((done / "runs" / "tiny").glob(f"{name}-*")) for name in ("fedavg", "nofed")}
    assert draw(tmp_path / "a.png", Runs({"together": folders["fedavg"], "alone": folders["nofed"]}, {}))
    assert (tmp_path / "a.png").is_file()
    assert not draw(tmp_path / "b.png", Runs({}, {})) and not (tmp_path / "b.png").exists()


@pytest.mark.parametrize("name", TABLES)
def test_every_table_without_runs_draws_nothing_or_says_so(name, tmp_path):
    for file, draw in TABLES[name].figures.items():
        try:
            drawn = draw(tmp_path / file, Runs({}, {}))
        except UsageError:
            drawn = False
        assert bool(drawn) == (file in ("matcha-plans.png", "matcha-graph.png"))  # these need no runs


def test_a_target_that_one_of_two_methods_reaches_counts_for_it():
    claim = TABLES["fedcurv"].claims[0]

    def judge(mine, theirs):
        return claim.judge({f"E=20, rounds to 90 %, {m}": v for m, v in (("FedCurv", mine), ("FedAvg", theirs))})

    assert judge([10.0, 12.0, 11.0], [20.0, 21.0, 20.0])[0] and not judge([20.0, 21.0, 20.0], [10.0, 12.0, 11.0])[0]
    assert judge([10.0, 12.0], [20.0, math.nan])[0] and judge([math.nan, 5.0], [99.0, 99.0])[0] is False
    assert judge([math.nan], [math.nan])[0] is None
    assert judge([10.0, 21.0, 15.0], [20.0, 12.0, 15.0])[0] is None  # now this one, now that one
    assert judge([10.0, 12.0], [20.0, 21.0])[0] is None  # two seeds are too few
