"""A live page: lines come once, in order, also after a cut; lists follow the files; nothing else is served."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from polycentric.errors import UsageError
from polycentric.report.live.runs import RunList, last_line
from polycentric.report.live.stream import event, lines_of, read_from
from report.accessible import barriers
from report.page.conftest import forged_run

pytest.importorskip("starlette")
CHROMIUM = shutil.which("chromium")


def line(round: int, accuracy: float = 0.5) -> str:
    row = {"round": round, "bytes_up": round, "bytes_down": round, "simulated_seconds": 1.0, "micro_accuracy": accuracy}
    return json.dumps(row) + "\n"


@contextmanager
def serving(root: Path) -> Iterator[int]:
    """A server that watches a folder; its port."""
    import uvicorn

    from polycentric.report.live.server import app_of, listening

    door = listening(0)
    server = uvicorn.Server(uvicorn.Config(app_of(root), log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([door],), daemon=True)
    thread.start()
    try:
        yield int(door.getsockname()[1])  # who comes early waits
    finally:
        server.should_exit = True
        thread.join(10)


def asked(port: int, path: str, verb: str = "GET", **headers: str) -> tuple[int, str, Any]:
    """Status, text and headers of a reply."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(verb, path, headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode(), reply.headers
    finally:
        connection.close()


# -- lines -----------------------------------------------------------------------------------------------------


def test_every_line_comes_once_with_the_place_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(0) + line(1) + '{"round": 2, "half')
    lines, shorter = read_from(path, 0)
    assert [json.loads(text)["round"] for _, text in lines] == [0, 1] and not shorter
    assert [place for place, _ in lines] == [len(line(0)), len(line(0) + line(1))]
    assert read_from(path, lines[-1][0]) == ([], False)  # a half line is none yet
    path.write_text(line(0) + line(1) + line(2))
    assert [json.loads(text)["round"] for _, text in read_from(path, lines[-1][0])[0]] == [2]
    path.write_text(line(0))  # resumed from an earlier checkpoint
    assert read_from(path, lines[-1][0]) == ([], True)
    assert read_from(tmp_path / "none", 0) == ([], False) and read_from(tmp_path / "none", 9) == ([], True)


def test_a_browser_that_was_cut_off_loses_and_doubles_nothing(tmp_path: Path) -> None:
    path, seen = tmp_path / "metrics.jsonl", list[dict[str, Any]]()
    path.write_text("".join(map(line, range(5))))

    async def visit(place: int, most: int) -> int:
        left = [most]

        async def gone() -> bool:
            return left[0] <= 0

        async for said in lines_of(path, place, lambda: "running", gone):
            if said.startswith("id:"):
                id, _, data = said.strip().split("\n")
                seen.append(json.loads(data.removeprefix("data: ")))
                place = int(id.removeprefix("id: "))
                left[0] -= 1
                if left[0] <= 0:
                    return place
        return place

    place = asyncio.run(visit(0, 3))
    with path.open("a") as file:
        file.write(line(5) + line(6))
    asyncio.run(visit(place, 4))
    assert [row["round"] for row in seen] == list(range(7))
    assert event("line", "{}", 7) == "id: 7\nevent: line\ndata: {}\n\n"


# -- the list ----------------------------------------------------------------------------------------------------


def test_the_list_says_how_far_runs_are_and_reads_only_what_changed(tmp_path: Path) -> None:
    forged_run(tmp_path / "done", {})
    forged_run(tmp_path / "compare" / "going", {"seed": 1}, ended=False)
    (tmp_path / "no run").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    runs = RunList(tmp_path)
    rows = {row.name: row for row in runs.rows()}
    assert set(rows) == {"done", "compare/going"}
    assert (rows["done"].status, rows["compare/going"].status) == ("finished", "stopped")
    assert (rows["done"].round, rows["done"].rounds, rows["compare/going"].value) == (3, 3, 0.7)
    assert runs.rows()[0] is runs.rows()[0]
    with (tmp_path / "compare" / "going" / "metrics.jsonl").open("a") as file:
        file.write(line(4, 0.25))
    assert next(row for row in runs.rows() if "going" in row.name).value == 0.25
    assert runs.folder_of(rows["done"].id) == tmp_path / "done"
    assert runs.folder_of("../../etc") is None and runs.folder_of("") is None


def test_the_last_whole_line_is_found(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(0) + line(1) + '{"ro')
    assert last_line(path)["round"] == 1
    path.write_text("")
    assert last_line(path) == {} == last_line(tmp_path / "none")


def test_a_thousand_runs_are_listed_quickly_and_long_ones_thinned(tmp_path: Path) -> None:
    for k in range(1000):
        folder = tmp_path / f"run-{k}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"method": "fedavg", "seed": k, "rounds": 9}))
        (folder / "metrics.jsonl").write_text(line(k % 9))
    runs = RunList(tmp_path)
    assert len(runs.rows()) == 1000
    again = runs.rows()
    assert all(a is b for a, b in zip(again, runs.rows(), strict=True))
    (tmp_path / "run-0" / "metrics.jsonl").write_text("".join(line(k, 0.5) for k in range(20_000)))
    with serving(tmp_path) as port:
        status, text, _ = asked(port, f"/run/{runs.id_of(tmp_path / 'run-0')}/data")
    assert status == 200 and len(text) < 1_000_000


# -- the server ----------------------------------------------------------------------------------------------------


def test_nothing_but_runs_by_their_names_is_served(tmp_path: Path) -> None:
    forged_run(tmp_path / "runs" / "<b>one", {})
    (tmp_path / "secret").write_text("secret")
    there = {path.name for path in (tmp_path / "runs").rglob("*")}
    with serving(tmp_path / "runs") as port:
        id = RunList(tmp_path / "runs").rows()[0].id
        status, text, headers = asked(port, f"/run/{id}")
        assert status == 200 and "<b>one" not in text
        assert "default-src 'none'" in headers["content-security-policy"]
        assert json.loads(asked(port, f"/run/{id}/data")[1])["answer"]["bars"]
        for path in ("/run/x", "/run/..%2f..%2fsecret", "/file/..%2fwrite.py", "/file/page.html", "/secret"):
            assert asked(port, path)[0] == 404, path
        assert asked(port, f"/run/{id}", "POST")[0] == 405
        for name in ("page.js", "style.css", "list.js", "list.css", "plotly.js"):
            assert asked(port, f"/file/{name}")[0] == 200
        assert asked(port, "/", Host="evil.example")[0] == 400
    assert there == {path.name for path in (tmp_path / "runs").rglob("*")}


def test_a_port_is_this_machines_and_one_servers(tmp_path: Path) -> None:
    from polycentric.report.live.server import listening

    with listening(0) as door:
        host, port = door.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(UsageError, match=f"port {port} .*--port {port + 1}"):
            listening(port)


def test_a_run_without_scores_has_a_page_that_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"method": "fedavg"}))
    with serving(tmp_path) as port:
        found = json.loads(asked(port, f"/run/{RunList(tmp_path).id_of(folder)}/data")[1])
    assert "scored yet" in found["answer"]["headline"]


# -- a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder of two runs, and a server that watches it."""
    root = tmp_path_factory.mktemp("watched")
    forged_run(root / "done", {})
    forged_run(root / "going", {"seed": 1, "rounds": 50}, ended=False)
    with serving(root) as port:
        yield root, f"http://127.0.0.1:{port}"


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not here")
def test_a_new_point_appears_within_two_seconds_and_nothing_else_is_asked_for(watched: tuple[Path, str]) -> None:
    api = pytest.importorskip("playwright.sync_api")
    root, address = watched
    errors, wanted = list[str](), list[str]()
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: wanted.append(request.url))
        page.goto(address)
        page.wait_for_selector("#runs tbody tr[data-status=finished]")
        assert page.locator("#runs tbody tr").count() == 2
        assert barriers(page) == []
        page.fill("#find", "going")
        assert page.locator("#runs tbody tr").count() == 1
        page.click("#runs tbody a")
        page.wait_for_selector("html[data-ready=true] section")
        before = page.locator("h1").inner_text()
        began = time.monotonic()
        with (root / "going" / "metrics.jsonl").open("a") as file:
            file.write(line(4, 0.99))
        page.locator("h1", has_text="99.0").wait_for(timeout=5000)
        took = time.monotonic() - began
        assert took < 2.0 and page.locator("h1").inner_text() != before
        assert barriers(page) == []
        browser.close()
    assert errors == [] and all(url.startswith((address, "data:", "blob:")) for url in wanted)
