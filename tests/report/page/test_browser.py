"""A report in a real browser: it opens from a file, asks for nothing, draws everything, and obeys its reader."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polycentric as pc
from report.accessible import barriers

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright, which drives a browser, is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium to open a page with"),
    pytest.mark.xdist_group("browser"),  # one worker: one browser
]

WIDE = "document.querySelector('#curves .main-svg').getBoundingClientRect().width"
GRID = "document.querySelector('#curves .plot').layout.xaxis.gridcolor"


class Opened:
    """A page in a tab without a network, and all that went wrong in it."""

    def __init__(self, browser: Any, path: Path, **how: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, "offline": True} | how)
        self.tab, self.said, self.asked = self.context.new_page(), list[str](), list[str]()
        self.tab.on("console", lambda message: self.said.append(message.text))
        self.tab.on("pageerror", lambda error: self.said.append(str(error)))
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.goto(path.as_uri())
        self.tab.wait_for_selector("html[data-ready]")
        self.until("!document.querySelector('.wait')")

    def run(self, script: str) -> Any:
        return self.tab.evaluate(script)

    def until(self, script: str) -> None:
        """Wait for something; the page's own policy forbids to do so within it."""
        for _ in range(200):
            if self.run(script):
                return
            self.tab.wait_for_timeout(50)
        pytest.fail(f"never: {script}")

    def text(self, where: str) -> str:
        return str(self.tab.locator(where).text_content())


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def opened(browser: Any, page: Path) -> Iterator[Opened]:
    """One tab for all tests that leave it as it may be."""
    found = Opened(browser, page, color_scheme="light", permissions=["clipboard-read", "clipboard-write"])
    yield found
    found.context.close()


def test_it_opens_offline_draws_everything_and_asks_for_nothing(opened: Opened, page: Path) -> None:
    found = json.loads(opened.text("#data"))
    shown = opened.run("[...document.querySelectorAll('section')].map((s) => s.id)")
    assert shown == [panel["key"] for panel in found["panels"]]
    assert opened.text("h1") == found["answer"]["headline"]
    assert opened.text(".bar.best .label").startswith(found["answer"]["bars"][0]["label"])
    assert opened.run("[...document.querySelectorAll('.plot')].every((p) => p.querySelector('.main-svg'))")
    assert opened.tab.locator("#topology svg circle[data-k]").count() == 8
    assert opened.said == [] and opened.asked == [page.as_uri()]


def test_the_switch_chooses_what_curves_are_over(opened: Opened) -> None:
    axis = "document.querySelector('#curves .plot').layout.xaxis.title.text"
    ends = "Math.max(...document.querySelector('#curves .plot').data.flatMap((t) => t.x))"
    assert opened.run(axis) == "rounds" and opened.run(ends) == 4
    opened.tab.click("#curves .choose button:has-text('bytes')")
    assert opened.run(axis) == "bytes moved, up and down" and opened.run(ends) > 1000
    assert opened.text("#curves .choose [aria-pressed=true]") == "bytes"
    opened.tab.select_option("#curves select", "worst decile accuracy")
    assert opened.run("document.querySelector('#curves .plot').layout.yaxis.title.text") == "worst decile accuracy"
    opened.tab.click("#curves .legend button:first-child")
    assert opened.run("document.querySelector('#curves .plot').data.filter((t) => t.visible === false).length") >= 1
    assert opened.run("document.querySelectorAll('#curves .main-svg').length") > 0 and opened.said == []


def test_the_slider_moves_models_through_the_rounds(opened: Opened) -> None:
    at = "JSON.stringify(document.querySelector('#map .plot').data.map((t) => [t.x, t.y]))"
    last = opened.run(at)
    assert opened.text("#map output") == "round 4"
    opened.tab.locator("#map input[type=range]").fill("0")
    assert opened.text("#map output") == "round 1" and opened.run(at) != last
    opened.tab.locator("#map input[type=range]").fill("3")
    assert opened.run(at) == last and opened.said == []


def test_a_trail_leads_every_client_from_where_it_was_first_to_where_it_is(opened: Opened) -> None:
    switch = next(panel for panel in json.loads(opened.text("#data"))["panels"] if panel["key"] == "map")["parts"][0]
    run = switch["options"][0]["values"].index(opened.text("#map .choose [aria-pressed=true] >> nth=0"))
    frames = [switch["parts"][f"{run}.0.{k}"]["series"] for k in range(4)]
    at = [{c: [s["x"][i], s["y"][i]] for s in frame for i, c in enumerate(s["who"])} for frame in frames]
    lines = opened.run("document.querySelector('#map .plot').data.filter((t) => t.mode === 'lines')")
    drawn = [[list(pair) for pair in zip(line["x"], line["y"], strict=True)] for line in lines]
    who = [c for series in frames[-1] for c in series["who"]]
    assert [p for line in drawn for p in line] == [p for c in who for p in [*(f[c] for f in at), [None, None]]]
    opened.tab.locator("#map input[type=range]").fill("0")
    assert opened.run("document.querySelector('#map .plot').data.every((t) => t.mode === 'markers')")
    opened.tab.locator("#map input[type=range]").fill("3")


def test_the_topology_names_clients_and_is_coloured_as_asked(opened: Opened) -> None:
    fills = "[...document.querySelectorAll('#topology svg circle[data-k]')].map((c) => c.getAttribute('fill'))"
    opened.tab.click("#topology .choose button:has-text('fedavg')")
    opened.tab.click("#topology .choose button:has-text('group')")
    assert len(set(opened.run(fills))) == 2
    opened.tab.hover("#topology svg circle[data-k='3']")
    assert opened.text("#topology .picture > p").startswith("client site 3: group")
    opened.tab.click("#topology .choose button:has-text('accuracy')")
    assert all(fill.startswith("rgb") for fill in opened.run(fills)) and opened.said == []


def test_tables_are_copied_as_csv_markdown_and_latex(opened: Opened) -> None:
    table = json.loads(opened.text("#data"))["panels"][1]["parts"][0]
    for form in ("CSV", "Markdown", "LaTeX"):
        opened.tab.locator("#scores .copies").first.get_by_text(form, exact=True).click()
        opened.until("[...document.querySelectorAll('#scores .copies button')].some((b) => b.textContent === 'copied')")
        assert opened.run("navigator.clipboard.readText()") == table["copies"][form]


def test_it_follows_the_reader_into_the_dark_and_prints_in_light(opened: Opened, tmp_path: Path) -> None:
    light, wide = opened.run(GRID), opened.run(WIDE)
    opened.tab.emulate_media(color_scheme="dark")
    opened.until(f"{GRID} !== '{light}'")
    opened.run(f"addEventListener('beforeprint', () => {{ window.printed = [{GRID}, {WIDE}]; }})")
    opened.tab.pdf(path=str(tmp_path / "report.pdf"), format="A4")
    assert opened.run("window.printed")[0] == light and opened.run("window.printed")[1] <= 700
    assert (tmp_path / "report.pdf").read_bytes()[:5] == b"%PDF-"
    opened.until(f"{GRID} !== '{light}' && {WIDE} === {wide}")  # and is as it was
    opened.tab.emulate_media(media="print")
    opened.run("dispatchEvent(new Event('beforeprint'))")
    ends = "[p, p.querySelector('.main-svg')].map((e) => e.getBoundingClientRect().bottom)"
    inside = f"[...document.querySelectorAll('.plot')].every((p) => (([a, b]) => b <= a + 1)({ends}))"
    assert opened.run(inside)  # no chart lies over what is below it
    opened.run("dispatchEvent(new Event('afterprint'))")
    opened.tab.emulate_media(media="screen")
    assert opened.said == []


def test_it_fits_a_phone_and_a_tablet_by_day_and_night(browser: Any, page: Path) -> None:
    opened = Opened(browser, page, viewport={"width": 390, "height": 844}, color_scheme="dark", has_touch=True)
    colours = "[...Array(8).keys()].map((k) => getComputedStyle(document.documentElement).getPropertyValue(`--c${k}`))"
    both = "[document.documentElement, document.body].map((e) => getComputedStyle(e))"
    ends = "Math.max(...[...document.querySelectorAll('.plot .main-svg')].map((s) => s.getBoundingClientRect().right))"
    for width, scheme in ((390, "dark"), (390, "light"), (820, "light")):
        opened.tab.set_viewport_size({"width": width, "height": 844})
        opened.tab.emulate_media(color_scheme=scheme)
        opened.until(f"{ends} <= {width + 1}")
        assert opened.run("document.documentElement.scrollWidth") <= width
        back, ink = opened.run(f"(([a, b]) => [a.backgroundColor, b.color])({both})")
        assert _contrast(back, ink) > 12 and (sum(_rgb(back)) < 150) == (scheme == "dark")
        for colour in opened.run(colours):  # every line can be seen
            assert _contrast(back, colour.strip()) > 2, f"{scheme} {colour}"
        assert barriers(opened.tab) == []
    assert opened.said == []
    opened.context.close()


HOSTILE = [
    '<img src=x onerror="window.harm=1">', "</script><script>window.harm=1</script>", "{{data}}", "`${window.harm=1}`",
    '<a href="javascript:window.harm=1">x</a>', "%{y}<extra></extra>", "&lt;b&gt;", "\u202e$\\href{javascript:1}{x}$",
]  # fmt: skip


def test_names_with_markup_are_shown_and_do_nothing(browser: Any, tmp_path: Path) -> None:
    draw, n = np.random.default_rng(0), len(HOSTILE)
    owner, y = np.repeat(np.arange(n), 9), np.tile(np.arange(3), 3 * n)
    x = (np.eye(3)[y] + draw.normal(size=(len(y), 3))).astype(np.float32)
    names = {"client": [HOSTILE[k] for k in owner], "group": [HOSTILE[k % 2] for k in owner], "classes": HOSTILE[:3]}
    pool = pc.from_arrays(x, y, test=np.arange(len(y)) % 9 < 3, name=HOSTILE[0], **names)
    run = pc.run("fesem(k=2)", pool, model="logistic", rounds=2, device="cpu", sketch=True)
    opened = Opened(browser, run.report(tmp_path / "<b>report.html"))
    text = opened.tab.locator("body").inner_text()
    assert HOSTILE[0] in text and HOSTILE[1] in text and opened.run("window.harm") is None
    odd = "document.querySelectorAll('main a, header a, img:not([src^=\"data:\"]), iframe, object').length"
    assert opened.run(odd) == 0
    rows = opened.run("document.querySelector('#labels .plot').data[0].text.flat().join(' ')")
    assert "<img" not in rows and "&lt;img" in rows
    for k in range(n):
        opened.tab.hover(f"#topology svg circle[data-k='{k}']")
        said = opened.text("#topology .picture > p").removeprefix("client ")
        assert said.startswith(run.federation.clients[k])
    assert opened.said == [] and len(opened.asked) == 1
    opened.context.close()


def _rgb(colour: str) -> list[float]:
    if colour.startswith("#"):
        return [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    return [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]


def _contrast(one: str, other: str) -> float:
    """How far two colours are apart in brightness, 1 to 21, by WCAG."""

    def bright(colour: str) -> float:
        each = [v / 255 for v in _rgb(colour)]
        r, g, b = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in each)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted([bright(one), bright(other)])
    return (high + 0.05) / (low + 0.05)
