"""The file of a report: what it may do, how large it is, and that nothing of a run is more than text in it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import polycentric as pc
from polycentric.cli import outcome
from polycentric.report.page import html_of, looked_at, page_of, write_report
from polycentric.report.page.write import escaped

EMPTY = {"answer": {"headline": "x"}, "panels": []}
MEGABYTE = 1_000_000
Forged = Callable[..., Path]


def scripts(text: str) -> dict[str, str]:
    """The script elements of a page, as a browser finds them: by their id, ours without one."""
    found = re.findall(r"<script(?: type=\"[\w/]+\" id=\"(\w+)\")?>(.*?)</script", text, re.DOTALL | re.IGNORECASE)
    return dict(found)


def test_a_page_without_data_is_small_and_holds_plotly_as_its_wheel_has_it() -> None:
    text = html_of(EMPTY)
    assert len(text) <= 3 * MEGABYTE
    raw = gzip.decompress(base64.b64decode(scripts(text)["plotly"]))
    assert raw == (files("plotly") / "package_data" / "plotly.min.js").read_bytes()


def test_the_policy_allows_our_two_scripts_and_no_request() -> None:
    text = html_of(EMPTY)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'" and rules["img-src"] == "data:"
    plotly = gzip.decompress(base64.b64decode(scripts(text)["plotly"]))
    digests = [base64.b64encode(hashlib.sha256(raw).digest()).decode() for raw in (scripts(text)[""].encode(), plotly)]
    assert rules["script-src"] == " ".join(f"'sha256-{digest}'" for digest in digests)
    assert text.index("Content-Security-Policy") < text.index("<title>")
    assert not re.search(r"(src|href)\s*=\s*[\"']?(?!data:)\w+:", text.replace(scripts(text)["plotly"], ""))


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20) | st.sampled_from(
    ["</script>", "<!--", "<script>", "]]>", "{{data}}", "&lt;", "\u2028", "'\"`"]
)


@settings(max_examples=50)
@given(st.lists(st.dictionaries(TEXT, TEXT | st.floats(allow_nan=False, allow_infinity=False), max_size=3), max_size=3))
def test_data_are_text_whatever_is_in_them(found: list[dict[str, Any]]) -> None:
    text = escaped(found)
    assert json.loads(text) == found and not set("<>&") & set(text) and text.isascii()


def test_a_title_and_data_with_markup_end_no_element() -> None:
    hostile = "</title></script><script>alert(1)</script>{{plotly}}{{data}}"
    text = html_of({"answer": {"headline": hostile}, "panels": [hostile]})
    assert text.count("<script") == html_of(EMPTY).count("<script") and text.count("</title>") == 1
    assert json.loads(scripts(text)["data"])["panels"] == [hostile]


def test_ten_thousand_clients_fit(tmp_path: Path, forged: Forged) -> None:
    two = [
        forged(tmp_path / name, {"method": name}, clients=10_000, name="a client of a hospital")
        for name in ("fedavg", "fesem")
    ]
    for folder in two:
        places = [",".join(map(str, [r, *(np.arange(10_000) * r % 7).tolist()])) for r in range(1, 4)]
        (folder / "places.csv").write_text("\n".join(places) + "\n")
    size = write_report(two, tmp_path / "report.html", quick=True).stat().st_size
    assert size < 4 * MEGABYTE


def test_the_models_of_ten_thousand_clients_fit(tmp_path: Path) -> None:
    draw, n = np.random.default_rng(0), 10_000
    owner = np.repeat(np.arange(n), 3)
    x, y = draw.normal(size=(3 * n, 3)).astype(np.float32), draw.integers(0, 4, 3 * n)
    pool = pc.from_arrays(x, y, client=owner, test=np.arange(3 * n) % 3 == 0)
    run = pc.run("fedavg", pool, model="logistic", rounds=0, fine_tune=0, device="cpu", executor="stacked")
    path = run.report(tmp_path / "report.html")
    assert path.stat().st_size < 8 * MEGABYTE
    found = {panel["key"]: panel for panel in json.loads(scripts(path.read_text())["data"])["panels"]}
    drawn = found["topology"]["parts"][0]["parts"]["0"]
    assert len(drawn["clients"]["x"]) == 1200 and "1,200 of 10,000 clients are drawn" in drawn["words"]
    assert len(found["labels"]["parts"][0]["z"]) == 240


def test_numbers_that_are_no_numbers_are_left_out(tmp_path: Path, forged: Forged) -> None:
    folder = forged(tmp_path / "huge", {"method": "fedavg"})
    rows = [
        {"round": r, "micro_accuracy": a, "micro_loss": b}
        for r, (a, b) in enumerate([(0.1, 1e308), (None, None), (1e300, 2**62)])
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    other = forged(tmp_path / "other", {"seed": 1})
    text = html_of(page_of(looked_at([folder, other], quick=True)))
    assert "NaN" not in scripts(text)["data"] and "Infinity" not in scripts(text)["data"]


def test_the_command_names_the_page_and_what_it_leaves_out(
    tmp_path: Path, forged: Forged, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = forged(tmp_path / "run", {"data": "nowhere.npz"})
    assert outcome(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().err.splitlines()
    assert (
        said[0].startswith("note: fedavg is shown without its models and examples")
        and said[-1] == f"report: {tmp_path / 'page.html'}"
    )
    assert outcome(["report", str(folder), "--out", str(tmp_path / "page.pdf")]) == 2
    assert "must end in .html" in capsys.readouterr().err


def test_a_run_in_memory_and_one_in_a_folder_have_the_same_page(tmp_path: Path) -> None:
    how: dict[str, Any] = {"clients": 6, "rounds": 2, "model": "logistic", "device": "cpu", "sketch": True}
    kept = pc.run("fesem(k=2)", "digits", **how, out=tmp_path / "run")
    loose = pc.run("fesem(k=2)", "digits", **how)
    pages = [run.report(tmp_path / f"{k}.html") for k, run in enumerate((kept, loose))]
    found = [json.loads(scripts(page.read_text())["data"]) for page in pages]
    for one in found:
        assert one["panels"].pop()["key"] == "reproduce"  # where it is, and how long it took, as in the CSV
        assert one["panels"][0]["parts"][0]["copies"].pop("CSV")
    assert found[0] == found[1]
    assert kept.report() == tmp_path / "run" / "report.html" and not kept.folder.damaged()  # type: ignore[union-attr]
