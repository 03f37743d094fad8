"""Every line of code that a reader is shown is run, and all that is shown beside it is compared.

Python blocks of a page run from top to bottom in one namespace, in an empty folder. A comment right above a block
says what else the block is:

    <!-- run -->                            sh: commands of ours, which must succeed; `run: 2` expects exit code 2
    <!-- file: NAME -->                     is written into the folder under this name, not run
    <!-- output -->                         what the block before it printed (a failed command: on standard error)
    <!-- output: about -->                  the same, but numbers with a decimal point may be off by a tenth, or 0.1
    <!-- source: PATH:NAME -->              the text of a function or class, as it stands in the file

A table whose first heading is `line` stands under a source block: its first cells must be in that source.
`python tests/laws/test_documents.py` brings all outputs and sources in the pages up to date.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import io
import os
import pkgutil
import re
import runpy
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from rich.console import Console

import polycentric
from polycentric.cli import outcome, screen

ROOT = Path(__file__).parents[2]
WRITTEN = [ROOT / "README.md", ROOT / "README.zh.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in WRITTEN if not page.name.endswith(".zh.md")]  # a translation has the same blocks: test_pages
LINKED = [*WRITTEN, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MODULES = [m.name for m in pkgutil.walk_packages(polycentric.__path__, "polycentric.") if "__main__" not in m.name]
MARKS = ("run", "file", "output", "source")
_FENCE = re.compile(r"^( *)(`{3,})(\w*)\s*$")
_MARK = re.compile(r"<!-- (\w+)(?:: (.+))? -->")
_CODE = re.compile(r"(`+)(.+?)\1")
_FRAME = re.compile(r"[\u2500-\u257f]+")  # of a table in the terminal; its width is that of the numbers
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str
    line: int  # where the text begins, from 1
    indent: str
    mark: str  # run, file, output, source; empty where there is none
    what: str  # what follows the mark's colon


@dataclass(frozen=True)
class Shown:
    """A block that shows something, and what it must show."""

    block: Block
    right: str

    @property
    def agrees(self) -> bool:
        a, b = _tidy(self.block.text), _tidy(self.right)
        return _about(a, b) if self.block.what == "about" else a == b


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    mark, what, lines = "", "", iter(enumerate(page.read_text("utf-8").splitlines(), start=1))
    for number, line in lines:
        if fence := _FENCE.match(line):
            indent, ticks, language = fence.groups()
            inside = []
            for _, text in lines:
                if text.strip() == ticks:
                    break
                inside.append(text.removeprefix(indent))
            yield Block(language, "\n".join(inside), number + 1, indent, mark, what)
        if found := _MARK.fullmatch(line.strip()):
            mark, what = found[1], found[2] or ""
            assert mark in MARKS, f"{page.name}, line {number}: unknown mark {line.strip()}"
        elif line.strip():
            mark, what = "", ""


def played(page: Path, folder: Path) -> Iterator[Shown]:
    """Run a page from top to bottom; what it shows, beside what it must show."""
    names: dict[str, Any] = {"__name__": "__main__"}
    said = ""
    for block in blocks(page):
        if block.mark == "file":
            (folder / block.what).write_text(block.text + "\n", encoding="utf-8")
            sys.modules.pop(Path(block.what).stem, None)  # a module of that name may have been another test's
        elif block.mark == "source":
            yield Shown(block, source(block.what))
        elif block.mark == "output":
            yield Shown(block, said)
        elif block.mark == "run":
            said = "\n".join(commanded(line, int(block.what or 0)) for line in _commands(block.text))
        elif block.language == "python":
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, names)
            said = out.getvalue()


def commanded(line: str, code: int) -> str:
    """What a command prints: on standard output, or on standard error where it is meant to fail."""
    words = shlex.split(line, comments=True)
    given = {}
    while re.match(r"[A-Z_]+=", words[0]):
        name, _, given[name] = words.pop(0).partition("=")
    assert words.pop(0) == "polycentric", f"only commands of ours are run, not: {line}"
    path = [*given.get("PYTHONPATH", "").split(os.pathsep), *sys.path] if "PYTHONPATH" in given else sys.path
    console = Console(width=100, color_system=None, force_terminal=False)
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict(os.environ, given),
        mock.patch.object(sys, "path", [str(Path(p).resolve()) if p == "." else p for p in path]),
        mock.patch.object(screen, "stdout", console),
    ):
        came = outcome(words)
    assert came == code, f"{line}: exit code {came}, not {code}: {err.getvalue()}"
    return (err if code else out).getvalue()


def _commands(text: str) -> list[str]:
    lines = text.replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines if line.strip() and not line.startswith("#")]


def source(where: str) -> str:
    """The text of PATH:NAME; NAME may be a dotted path into classes."""
    path, _, name = where.partition(":")
    text = (ROOT / path).read_text("utf-8")
    found: Any = ast.parse(text)
    for part in name.split("."):
        found = next(n for n in found.body if getattr(n, "name", None) == part)
    first = min([found.lineno, *(d.lineno for d in found.decorator_list)])
    lines = text.splitlines()[first - 1 : found.end_lineno]
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    return "\n".join(line.removeprefix(indent) for line in lines)


def _tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def _about(a: str, b: str) -> bool:
    """The same words and whole numbers; numbers with a point within a tenth, or 0.1 (percent: 5)."""
    a, b = (_FRAME.sub(" ", text) for text in (a, b))
    least = 5.0 if "%" in b else 0.1
    if " ".join(_NUMBER.sub("#", a).split()) != " ".join(_NUMBER.sub("#", b).split()):
        return False
    pairs = zip(_NUMBER.findall(a), _NUMBER.findall(b), strict=True)
    return all(x == y or ("." in x + y and _near(x, y, least)) for x, y in pairs)


def _near(x: str, y: str, least: float) -> bool:
    one, other = (float(n.replace(",", "")) for n in (x, y))
    return abs(one - other) <= max(least, 0.1 * abs(other))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in, no data but the built-in ones."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POLYCENTRIC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_a_page_runs_and_shows_what_is_true(page: Path, elsewhere: Path) -> None:
    for shown in played(page, elsewhere):
        where = f"{_name(page)}, line {shown.block.line}, shows\n\n{shown.block.text}\n\nbut it is\n\n{shown.right}"
        assert shown.agrees, where + "\n(python tests/laws/test_documents.py mends it)"


def test_no_two_pages_write_to_one_place() -> None:
    """Nothing is overwritten: a reader who follows several pages in one folder would be refused."""
    places: dict[str, set[str]] = {}
    for page in PAGES:
        for block in blocks(page):
            if block.mark == "run" or (block.language == "python" and not block.mark):
                for place in re.findall(r"(?:--out |\bout=\")([\w/.-]+)", block.text):
                    places.setdefault(place, set()).add(_name(page))
    assert {place: pages for place, pages in places.items() if len(pages) > 1} == {}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_notes_are_about_lines_that_are_there(page: Path) -> None:
    quoted = {block.line: source(block.what) for block in blocks(page) if block.mark == "source"}
    inside = False
    for number, line in enumerate(page.read_text("utf-8").splitlines(), start=1):
        inside = line.startswith("|") and (inside or line.startswith("| line |"))
        if inside and (code := re.match(r"\| (`+)(.+?)\1", line)):
            text = [text for first, text in quoted.items() if first < number][-1]
            assert code[2].strip().replace("\\|", "|") in text, f"{_name(page)}, line {number}: not in the source"


@pytest.mark.parametrize("page", LINKED, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        path, _, anchor = link.partition("#")
        if re.match(r"https?:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists() and target.is_relative_to(ROOT), f"{_name(page)}: {link} leads nowhere"
        assert not anchor or anchor in _anchors(target), f"{_name(page)}: {link} has no such heading"


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_right(name: str) -> None:
    if name == "polycentric.learn.gpu.kernels":
        pytest.importorskip("triton", reason="Triton comes with torch where there is a GPU")
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    assert doctest.testmod(importlib.import_module(name), optionflags=flags).failed == 0


@pytest.mark.parametrize("script", EXAMPLES, ids=_name)
def test_an_example_runs_and_says_something(script: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()


def _prose(page: Path) -> str:
    """A page without its blocks and code."""
    text = re.sub(r"^( *)(`{3,}).*?^\1\2\s*$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return _CODE.sub("", text)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def bring_up_to_date(page: Path) -> None:
    """Write into a page what its output and source blocks must show."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": folder, "POLYCENTRIC_DATA": ""}):
            wrong = [shown for shown in played(page, Path(folder)) if not shown.agrees]
    lines = page.read_text("utf-8").splitlines()
    for block, right in reversed([(shown.block, _tidy(shown.right)) for shown in wrong]):
        first = block.line - 1
        last = first + len(block.text.splitlines())
        lines[first:last] = [(block.indent + line).rstrip() for line in right.splitlines()]
    if wrong:
        page.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{_name(page)}: {len(wrong)} blocks written")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for chosen in [Path(word).resolve() for word in sys.argv[1:]] or PAGES:
        bring_up_to_date(chosen)
