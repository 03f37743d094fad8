"""Tables: what a column is guessed to be, what is done about gaps, and that later rows go the same way."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import polycentric as pc
from polycentric.cli import outcome
from polycentric.data import (
    Natural,
    Pool,
    deal,
    from_frame,
    npz,
    read,
    read_rows,
    rows_to_inputs,
    rows_to_targets,
    table,
    table_report,
)
from polycentric.data.npz_file import save
from polycentric.data.table_file import read_sheet
from polycentric.errors import UsageError

VISITS = '''patient_id,site,age,sex,smoker,bmi,visited,zip,note,outcome
a1,north,34,f,yes,22.5,2021-03-01,01234,"fine, well",healthy
a2,north,51,m,no,,2021-03-05,01234,"said ""no""",ill
a3,south,NA,f,no,31.0,2021-04-02,99999,x,ill
a4,south,47,m,yes,27.25,?,01234,y,healthy
a5,south,60,,no,25.5,2021-05-02,99999,z,
a6,,60,f,no,25.5,2021-05-02,99999,w,ill
a7,north,61,f,no,25.5,2021-05-02,99999,v,ill
'''


@pytest.fixture
def kept(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str | bytes, name: str = "visits.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


class Frame(dict[str, list[Any]]):
    """As much of a data frame as is asked for."""

    @property
    def columns(self) -> list[str]:
        return list(self)


def frame(n: int = 12, **columns: list[Any]) -> Frame:
    """Two clients, a number that varies, a class, and what a test is about."""
    plain = {"site": ["a", "b"] * (n // 2), "x": [0.5 * (k % 5) for k in range(n)], "y": ["u", "u", "v"] * (n // 3)}
    return Frame(plain | columns)


def of(n: int = 12, /, types: Any = None, **columns: list[Any]) -> Pool:
    return from_frame(frame(n, **columns), client="site", target="y", types=types)


def kinds(pool: Pool) -> dict[str, str]:
    return {name: kind for name, kind, _, _ in table_report(pool)[0]}


def refused(do: Callable[[], Any], *words: str) -> None:
    with pytest.raises(UsageError) as caught:
        do()
    assert "\n" not in str(caught.value) and not [word for word in words if word not in str(caught.value)], caught.value


# --- columns


def test_a_table_becomes_a_pool(kept: Callable[..., Path]) -> None:
    pool = table(kept(VISITS), client="site", target="outcome")
    assert kinds(pool) == {
        "age": "number", "sex": "category", "smoker": "boolean", "bmi": "number", "visited": "date",
        "zip": "category", "patient_id": "left out", "note": "left out",
    }  # fmt: skip
    assert pool.columns == (
        *("age", "age missing", "sex=f", "sex=m", "smoker", "bmi", "bmi missing"),
        *("visited", "visited missing", "zip=01234", "zip=99999"),
    )
    assert (pool.classes, pool.y.tolist(), pool.clients) == (("healthy", "ill"), [0, 1, 1, 0, 1], ("north", "south"))
    assert pool.note == "rows left out: 1 without target, 1 without client, of 7"
    days = pool.x[:, pool.columns.index("visited")]
    assert days[[0, 1, 2, 4]].tolist() == [0, 4, 32, 62] and days[3].isnan()
    lines = table_report(pool)[1]
    assert "2 clients by site, 2 to 3 rows" in lines and "target outcome: 2 classes: healthy (2), ill (3)" in lines


def test_what_a_column_is_may_be_said(kept: Callable[..., Path]) -> None:
    said = "age=category, zip=number,note=category,patient_id=skip"
    pool = table(kept(VISITS), client="site", target="outcome", types=said)
    found = kinds(pool)
    assert (found["age"], found["zip"], found["note"]) == ("category", "number", "category")
    path = kept(VISITS)
    how = {"client": "site", "target": "outcome"}
    refused(lambda: table(path, **how, types="sex=number"), "line 2", "'sex'", "'f'", "sex=category")
    refused(lambda: table(path, **how, types="sex=text"), "unknown kind of column 'text'", "category")
    refused(lambda: table(path, **how, types="sexx=number"), "no column 'sexx'", "sex")
    refused(lambda: table(path, **how, types="site=number"), "'site'", "not learned from")
    refused(lambda: table(path, **how, types="number"), "age=number", "got 'number'")
    refused(lambda: table(path, **how, types="sex=labels"), "for a target")


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "2.5", "-3e2"], "number"),
        (["0", "1", "1"], "boolean"),
        (["True", "False", "True"], "boolean"),
        (["f", "m", "f"], "category"),
        (["f", "t", "f"], "boolean"),
        (["f", "f", "f"], "category"),
        (["01", "10", "10"], "category"),
        (["1", "1", "1"], "number"),
        (["1", "2", "3"], "left out"),
        (["2020-01-02", "2020-02-03T10:00", "2020-01-01"], "date"),
        (["2020/1/2", "2020/2/3", "2020/1/1"], "date"),
        (["31.12.2020", "1.2.2020", "2.2.2020"], "date"),
        (["12/31/2020", "1/2/2020", "2/2/2020"], "date"),
        (["2020-13-01", "2020-13-01", "x"], "category"),
        (["", "NA", "null"], "left out"),
        (["red", "blue", "green"], "left out"),
    ],
)
def test_what_a_column_looks_like(cells: list[str], kind: str) -> None:
    cells = [*cells, *cells[:1] * 2 * (kind != "left out")]  # otherwise a column of three texts is a name each
    n = len(cells) * 2
    assert (
        kinds(of(n, c=(cells * 2) if kind != "left out" else [*cells, *[""] * 3], y=["u", "v"] * (n // 2)))["c"] == kind
    )


def test_numbers_that_name_the_rows_are_left_out() -> None:
    odd = [7 * k % 31 for k in range(12)]
    found = kinds(of(12, patient_id=odd, dose=odd, row=[*range(12)]))
    assert (found["patient_id"], found["dose"], found["row"]) == ("left out", "number", "left out")
    assert kinds(of(12, patient_id=odd, types={"patient_id": "number"}))["patient_id"] == "number"


def test_a_slip_in_a_column_of_numbers_is_no_category() -> None:
    numbers = [*map(str, (5 * k % 37 for k in range(23))), "12o"]
    refused(lambda: of(24, dose=numbers), "'12o'", "row 23", "dose=category")
    assert kinds(of(24, dose=numbers, types="dose=skip"))["dose"] == "left out"


@pytest.mark.parametrize("cells", [["inf", "1"], ["1_000", "2"], ["0", "1", "2", "3+"], ["<0.5"] * 8 + ["0.7"]])
def test_a_column_of_numbers_and_texts_is_asked_about(cells: list[str]) -> None:
    column = (cells * 36)[:36]
    refused(lambda: of(36, lab=column), "--types lab=number (such cells count as missing)", "lab=category", "lab=skip")
    assert kinds(of(36, lab=column, types="lab=category"))["lab"] == "category"
    pool = of(36, lab=column, types="lab=number")
    texts = [not cell.replace(".", "").isdigit() for cell in column]
    assert pool.x[:, 1].isnan().tolist() == texts == pool.x[:, 2].bool().tolist()
    assert f"column 'lab' holds a text that is no number in {sum(texts)} of 36 rows" in pool.note
    recipe = deal(pool, Natural()).recipe or {}
    assert rows_to_inputs(recipe, [{"x": 1, "lab": "?!"}])[0, 1:].tolist() == [recipe["columns"][1]["fill"], 1]


def test_a_few_numbers_among_texts_are_texts() -> None:
    street = ["mill", "lane", "hill"] * 11 + ["7", "8", "7"]
    assert kinds(of(36, street=street))["street"] == "category"


def test_a_target_that_is_no_number_is_a_row_without_one() -> None:
    y = ["<0.5" if k % 4 == 0 else f"{k / 8}" for k in range(24)]
    rows = frame(24, y=y)
    refused(lambda: from_frame(rows, client="site", target="y"), "'<0.5'", "--types y=number")
    pool = from_frame(rows, client="site", target="y", types="y=number")
    assert pool.kind == "numbers" and len(pool.y) == 18 and "6 without target, of 24" in pool.note
    refused(lambda: rows_to_targets(pool.recipe or {}, [{"y": "1.5"}, {"y": "<0.5"}]), "row 1 has no target in 'y'")


def test_every_target_has_its_range_and_a_larger_one_is_said() -> None:
    pool = from_frame(frame(12, u=[k / 12 for k in range(12)], v=[7 * k % 12 * 30.0 for k in range(12)],
                            w=[k % 5 * 0.4 for k in range(12)]), client="site", target="u,v,w")  # fmt: skip
    said = table_report(pool)[1]
    assert "target u, v, w: numbers, u 0 to 0.916667, v 0 to 330, w 0 to 1.6" in said
    assert any("the range of v is 360 times that of u, so it dominates the loss" in line for line in said)
    some = from_frame(frame(12, u=[k / 12 for k in range(12)], v=[k % 5 * 0.4 for k in range(12)]), target="u,v")
    assert not [line for line in table_report(some)[1] if "dominates" in line]
    one = from_frame(Frame({"a": [0.5, 2.5, 1.5], "y": ["u", "v", "u"]}), target="y")
    assert table_report(one)[1][0] == "3 rows, 1 feature"


def test_a_date_of_two_readings_is_asked_about() -> None:
    days = ["01/04/2021", "02/06/2021"] * 6
    refused(lambda: of(12, seen=days), "01/04/2021", "seen=dmy", "seen=mdy")
    gaps = [of(12, seen=days, types={"seen": order}).x[:, 1] for order in ("dmy", "mdy")]
    assert [gap.max() for gap in gaps] == [62, 33]  # 1 April to 2 June; 4 January to 6 February


def test_a_time_zone_is_taken_to_greenwich() -> None:
    pool = of(12, at=["2021-01-01T00:00+00:00", "2021-01-01T12:00-12:00"] * 6)
    assert pool.x[:2, 1].tolist() == [0, 1]


def test_too_many_categories_are_refused_or_left_out() -> None:
    words = [f"w{k}" for k in range(1200)] * 3
    y = ["u", "v"] * 1800
    site = ["a", "b"] * 1800
    many = Frame(site=site, w=words, x=[k % 7 / 2 for k in range(3600)], y=y)
    assert kinds(from_frame(many, client="site", target="y"))["w"] == "left out"
    refused(lambda: from_frame(many, client="site", target="y", types="w=category"), "1,200", "w=skip")


# --- gaps


def test_gaps_are_filled_by_training_examples_alone() -> None:
    n = 40
    dose = [float(k) if k % 4 else "" for k in range(n)]
    pool = from_frame(frame(n, site=["a", "b"] * 20, x=[k % 5 / 2 for k in range(n)], y=["u", "v"] * 20,
                            dose=dose), client="site", target="y")  # fmt: skip
    assert int(pool.x[:, 1].isnan().sum()) == 10
    federation = deal(pool, Natural(), seed=3, valid=0.2)
    known = federation.train.x[federation.train.x[:, 2] == 0, 1]
    median = float(known.median())
    for split in (federation.train, federation.valid, federation.test):
        assert (split.x[split.x[:, 2] == 1, 1] == median).all()
    assert federation.recipe is not None and federation.recipe["columns"][1]["fill"] == median
    other = deal(pool, Natural(), seed=4)
    assert other.recipe["columns"][1]["fill"] != median  # type: ignore[index]


def test_test_rows_decide_nothing() -> None:
    test = [False] * 9 + [True] * 3
    colour: list[Any] = ["r", "g", "b"] * 3 + ["violet"] * 3
    dose: list[Any] = [1.0, 2.0, 3.0] * 3 + [1000.0] * 3
    day = ["2021-01-05"] * 9 + ["2020-01-01"] * 3
    pool = from_frame(frame(colour=colour, dose=dose, day=day, t=test), client="site", target="y", test="t")
    colour[9:], dose[9:], day[9:] = ["w", "w", ""], ["", "", ""], ["", "", "1999-01-01"]
    again = from_frame(frame(colour=colour, dose=dose, day=day, t=test), client="site", target="y", test="t")
    assert pool.recipe == again.recipe and pool.columns == again.columns
    assert pool.test is not None and pool.test.tolist() == test
    hot = pool.x[:, [pool.columns.index(f"colour={c}") for c in "bgr"]]
    assert hot[:9].sum() == 9 and hot[9:].sum() == 0  # a value nobody was trained on is none of them
    federation = deal(again, Natural())
    assert (federation.test.x[:, again.columns.index("dose")] == 2.0).all()


def test_a_category_that_is_missing_is_a_value() -> None:
    pool = of(12, c=["r", "", "g"] * 4)
    assert pool.columns[1:] == ("c=g", "c=r", "c missing") and pool.x[:, 3].sum() == 4
    assert pool.x[:, 1:].sum(1).tolist() == [1] * 12


# --- targets


@pytest.mark.parametrize(
    ("target", "kind", "classes", "y"),
    [
        (["no", "yes", "yes"], "classes", ("no", "yes"), [0, 1, 1]),
        (["T", "F", "T"], "classes", ("F", "T"), [1, 0, 1]),
        ([3, 1, 3], "classes", ("1", "3"), [1, 0, 1]),
        ([3.0, 11.0, 3.0], "classes", ("3", "11"), [0, 1, 0]),
        ([1.5, 2.0, 2.5], "numbers", (), [1.5, 2.0, 2.5]),
        (["a|b", "c", "|"], "labels", ("a", "b", "c"), [[1, 1, 0], [0, 0, 1], [0, 0, 0]]),
    ],
)
def test_what_is_to_be_predicted(target: list[Any], kind: str, classes: tuple[str, ...], y: list[Any]) -> None:
    pool = from_frame(frame(y=target * 4), client="site", target="y")
    assert (pool.kind, pool.classes, pool.y[:3].tolist()) == (kind, classes, y)
    assert pool.targets == (("y",) if kind == "numbers" else ())
    rows = [{"y": value} for value in target]
    assert torch.equal(rows_to_targets(pool.recipe or {}, rows), pool.y[:3])


def test_what_is_to_be_predicted_may_be_said() -> None:
    def goal(**how: Any) -> Pool:
        return from_frame(frame(y=[1, 2, 3] * 4, z=[0, 1, 1] * 4, w=[0, 0, 0] * 4), client="site", **how)

    assert goal(target="y").kind == "classes"
    assert goal(target="y", types="y=number").y.tolist()[:3] == [1, 2, 3]
    assert goal(target="y,z").kind == "numbers" and goal(target=["y", "z"]).targets == ("y", "z")
    assert goal(target="z,w").kind == "labels" and goal(target="z,w", types="z=number").kind == "numbers"
    assert goal(target="z,w", labels=True).classes == ("z", "w")
    refused(lambda: goal(target="y,z", labels=True), "'y' holds '2'", "no boolean")
    refused(lambda: goal(target="y,z", types="y=category"), "numbers or labels")
    refused(lambda: goal(target="y", types="y=skip"), "skip", "a number, a category or labels")
    refused(lambda: goal(target="w"), "'0' in all rows")
    refused(lambda: goal(target="y", test="y"), "'y'", "something else")
    refused(lambda: goal(target="q"), "no column 'q'")
    refused(lambda: from_frame(frame(y=["2021-01-02", "2021-01-03"] * 6), target="y"), "dates")
    words = [f"w{k}" for k in range(60)]
    refused(lambda: from_frame(Frame(x=[*range(0, 120, 2)], y=words), target="y"), "60 different values")


def test_a_number_that_was_said_to_be_one_is_not_doubted(recwarn: pytest.WarningsRecorder) -> None:
    pc.load(from_frame(frame(y=[1, 2, 3] * 4), client="site", target="y", types="y=number"))
    assert not [w for w in recwarn if "classes" in str(w.message)]


def test_groups_and_clients() -> None:
    pool = from_frame(frame(site=["a", "b", "c"] * 4, g=["x", "y", ""] * 4), client="site", target="y", group="g")
    assert pool.group_names == ("missing", "x", "y") and "g" not in pool.columns
    assert deal(pool, Natural()).group.tolist() == [1, 2, 0]  # type: ignore[union-attr]
    refused(lambda: pc.load(from_frame(frame(), target="y")), "which client", "--partition")
    refused(lambda: from_frame(frame(t=["maybe"] * 12), target="y", test="t"), "row 0", "'maybe'")
    refused(lambda: from_frame(frame(t=["test"] * 12), target="y", test="t"), "true in all rows")
    refused(
        lambda: from_frame(Frame(y=["u", "v"], i=["p", "q"]), target="y"), "no column to learn from", "another text"
    )
    refused(lambda: from_frame([1, 2], target="y"), "data frame", "from_arrays")


# --- later rows


def test_later_rows_go_the_same_way(kept: Callable[..., Path]) -> None:
    path = kept(VISITS)
    pool = table(path, client="site", target="outcome")
    federation = deal(pool, Natural())
    recipe = json.loads(json.dumps(federation.recipe))  # as a file would hold it
    x = rows_to_inputs(recipe, [row for row in read_rows(path) if row["site"] and row["outcome"]])
    whole = torch.cat([federation.train.x, federation.test.x])
    assert torch.equal(x[x[:, 0].argsort()], whole[whole[:, 0].argsort()])


def test_later_rows_that_are_unlike() -> None:
    pool = of(12, c=["r", "g", "g"] * 4, dose=[1.0, 3.0, ""] * 4)
    recipe = deal(pool, Natural()).recipe or {}
    rows = [{"x": 1, "c": "violet", "dose": None}, {"x": None, "c": "", "dose": 7, "more": "?"}]
    fill = {spec["name"]: spec.get("fill") for spec in recipe["columns"]}
    assert rows_to_inputs(recipe, rows).tolist() == [[1, 0, 0, fill["dose"], 1], [fill["x"], 0, 0, 7, 0]]
    refused(lambda: rows_to_inputs(recipe, [{"x": 1}]), "row 0", "'c'")
    refused(lambda: rows_to_inputs(recipe, [rows[0], rows[1] | {"dose": "much"}]), "row 1", "'dose'", "'much'")
    refused(lambda: rows_to_targets(recipe, [{"y": "w"}]), "'w'", "u, v")
    refused(lambda: rows_to_targets(recipe, [{"y": ""}]), "row 0 has no target")
    refused(lambda: rows_to_inputs({}, rows), "no columns")
    for damage in (
        {"columns": [{}]},
        {"columns": [{"kind": "number", "name": "x"}]},
        {"columns": 3},
        {"columns": ["a"]},
    ):
        refused(lambda damage=damage: rows_to_inputs(damage, rows), "damaged")  # type: ignore[misc]


def test_a_pool_of_a_table_is_kept_with_its_gaps(tmp_path: Path) -> None:
    pool = of(12, dose=[1.0, 3.0, ""] * 4)
    save(pool, tmp_path / "t.npz")
    again = npz(tmp_path / "t.npz")
    assert torch.equal(again.x.nan_to_num(-1), pool.x.nan_to_num(-1))
    assert (again.recipe, again.columns) == (pool.recipe, pool.columns)
    assert deal(again, Natural()).fingerprint == deal(pool, Natural()).fingerprint
    np.savez(tmp_path / "u.npz", x=pool.x.numpy(), y=pool.y.numpy())
    refused(lambda: npz(tmp_path / "u.npz"), "NaN")
    recipe = {**(pool.recipe or {}), "columns": (pool.recipe or {})["columns"][:1]}
    arrays = {"x": pool.x.numpy(), "y": pool.y.numpy(), "client": np.zeros(12, int)}
    np.savez(tmp_path / "v.npz", **arrays, recipe=np.array(json.dumps(recipe)))
    refused(lambda: pc.load(tmp_path / "v.npz"), "another x")


# --- files


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_the_same_table_in_many_forms(kept: Callable[..., Path], delimiter: str, end: str, mark: str) -> None:
    rows = [
        row.split(",") for row in VISITS.replace('"fine, well"', "fine").replace('"said ""no"""', "no").splitlines()
    ]
    first = f'"{rows[0][0]}"'
    text = end.join(delimiter.join([first if row is rows[0] else row[0], *row[1:]]) for row in rows)
    found = read_sheet(kept(mark + text))
    assert list(found.columns) == rows[0] and [*map(list, zip(*found.columns.values(), strict=True))] == rows[1:]


def test_a_decimal_comma(kept: Callable[..., Path]) -> None:
    text = "site;w;t;y\n" + "\n".join(
        f"{s};{w};{s}{w};{y}" for s, w, y in zip("abab", ("1,5", "2", "-0,25", "7"), "uvuv", strict=True)
    )
    path = kept(text)
    pool = table(path, client="site", target="y")
    assert pool.x[:, 0].tolist() == [1.5, 2, -0.25, 7]
    assert rows_to_inputs(pool.recipe or {}, [{"w": "3,5"}]).tolist() == [[3.5]]
    refused(lambda: table(kept(text.replace(";", ",").replace("1,5", '"1,5"').replace("-0,25", '"-0,25"')), target="y"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["empty"]),
        ("a,b\n", ["no rows"]),
        ("a,b,a\n1,2,3\n", ["columns 1 and 3", "'a'"]),
        ("a,b\n1,2\n\n1,2,3\n", ["line 4", "3 cells", "2 columns"]),
        ('a,b\n"1\n2",3\n4\n', ["line 4", "1 cells"]),
        ('a,b\n1,2\n"3,4\n', ["line 3", "quotation mark"]),
        ('a,b\n1,"2"x\n', ["line 2", "quotation mark"]),
        (b"a,b\n1,\xff\n", ["line 2", "UTF-8"]),
        ("a,b\n1,2\n".encode("utf-16"), ["UTF-8"]),
        (b"a,b\n1,\x00\n", ["UTF-8"]),
        (b"PK\x03\x04 and so on", ["zip"]),
        ("a,b\n1," + "x" * 200_000, ["field larger"]),
        (",".join(f"c{k}" for k in range(10_001)) + "\n", ["10,001 columns"]),
    ],
)
def test_files_that_are_no_tables(kept: Callable[..., Path], text: str | bytes, words: list[str]) -> None:
    path = kept(text)
    refused(lambda: read_sheet(path), "visits.csv", *words)


def test_a_file_that_is_too_large_is_not_read(kept: Callable[..., Path]) -> None:
    path = kept(VISITS)
    refused(lambda: table(path, target="outcome", limit=100), "more than the limit of 100")
    with (path.parent / "huge.csv").open("wb") as stream:
        stream.truncate(1 << 40)  # a hole: nothing is on the disk
    refused(lambda: read_rows(path.parent / "huge.csv"), "limit")


@settings(max_examples=60)
@given(st.text(alphabet='ab1.,;"\n\r\t|-', max_size=60))
def test_whatever_a_file_holds(tmp_path: Path, text: str) -> None:
    path = tmp_path / "any.csv"
    path.write_text("site,y\n" + text, "utf-8", newline="")
    try:
        pool = table(path, client="site", target="y")
        assert len(pool.x) == len(pool.y) == len(pool.client)  # type: ignore[arg-type]
    except UsageError as mistake:
        assert "\n" not in str(mistake) and len(str(mistake)) < 500


def test_parquet_says_what_it_needs(kept: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(lambda: read_rows(kept(b"PAR1", "t.parquet")), "pyarrow", "polycentric[tables]", "CSV")


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    whole = {"site": ["a", "b"] * 6, "x": [1.5, None, 2.0] * 4, "on": [True, False, None] * 4, "y": [0, 1] * 6}
    parquet.write_table(pyarrow.table(whole), path)
    pool = table(path, client="site", target="y")
    same = from_frame(Frame(whole), client="site", target="y")
    assert pool.recipe == same.recipe and torch.equal(pool.x.nan_to_num(-1), same.x.nan_to_num(-1))
    parquet.write_table(pyarrow.table({"x": [[1], [2]], "y": [0, 1]}), path)
    refused(lambda: table(path, target="y"), "'x' holds list")
    refused(lambda: table(path, target="y", limit=10), "limit of 10")
    path.write_bytes(path.read_bytes()[:-9])
    refused(lambda: table(path, target="y"), "t.parquet")


def test_a_data_frame_of_pandas() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is nobody's dependency here")
    when = pandas.to_datetime(["2021-01-01", "2021-01-03", None] * 4)
    whole = pandas.DataFrame({"site": ["a", "b"] * 6, "when": when, "n": pandas.array([1, None, 3] * 4, dtype="Int64"),
                              "on": [True, False] * 6, "c": pandas.Categorical(["r", "g", None] * 4),
                              "y": [0, 1] * 6})  # fmt: skip
    pool = from_frame(whole, client="site", target="y")
    assert kinds(pool) == {"when": "date", "n": "number", "on": "boolean", "c": "category"}
    assert pool.x[:2, 0].tolist() == [0, 2] and int(pool.x[:, 0].isnan().sum()) == 4
    twice = pandas.DataFrame([[1, 2, "u"]], columns=["a", "a", "y"])
    refused(lambda: from_frame(twice, target="y"), "both called 'a'")


# --- the command


@pytest.mark.filterwarnings("ignore:.*different units")
def test_a_table_is_imported_shown_and_run(
    kept: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = kept("\n".join([VISITS.splitlines()[0], *VISITS.splitlines()[1:] * 5]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(path.parent / "cache"))
    monkeypatch.delenv("POLYCENTRIC_DATA", raising=False)
    monkeypatch.chdir(path.parent)

    def done(*words: str) -> tuple[int, str, str]:
        code = outcome(list(words))
        return code, *capsys.readouterr()

    code, _, err = done("run", "fedavg", "--data", "visits.csv")
    assert code == 2 and "data import visits.csv --client COLUMN --target COLUMN" in err
    code, out, err = done("data", "import", "visits.csv", "--client", "site", "--target", "outcome")
    assert code == 0 and "decimal" not in out and "smoker" in out and "rows left out: 5 without target" in out
    assert err.endswith("next: polycentric run fedavg --data visits --standardise train\n")
    assert (
        done(
            "run", "fedavg", *"--data visits --rounds 1 --quiet --executor looped --standardise train --out r".split()
        )[0]
        == 0
    )
    assert "visits" in done("data", "list")[1] and done("data", "show", "visits")[0] == 0
    code, _, err = done("data", "import", "visits.csv", "--target", "outcome", "--force")
    assert code == 0 and "--partition iid" in err
    code, _, err = done("data", "import", "visits.csv", "--target", "outcome", "--size", "4x4", "--force")
    assert (code, err.count("\n")) == (2, 1) and "size is for pictures" in err
    np.savez("c.npz", x=np.zeros((3, 2), np.float32), y=np.zeros(3, int), clients=np.arange(3))
    code, _, err = done("data", "import", "c.npz")
    assert (
        (code, err.count("\n")) == (2, 1) and "'clients'" in err and "did you mean 'client'" in err and "rename" in err
    )
    code, _, err = done("data", "import", "c.npz", "--client", "site")
    assert (code, err.count("\n")) == (2, 1) and "client is for tables" in err


def test_a_table_beside_others_is_not_taken_for_a_name(
    kept: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept(VISITS)
    monkeypatch.setenv("XDG_CACHE_HOME", str(path.parent / "cache"))  # whoever tests may have data of that name
    monkeypatch.setenv("POLYCENTRIC_DATA", str(path.parent))
    assert "visits" not in [found.name for found in pc.data.available()]  # type: ignore[attr-defined]
    refused(lambda: read(path), "--target COLUMN")
