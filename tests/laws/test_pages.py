"""What the pages of the documentation owe each other: a place in the site, the same commands in every language, the
equations of a method and its numbers as they stand elsewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from polycentric import METHODS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
METHOD_PAGES = {name: DOCS / f"methods/{name}.md" for name in METHODS}
TRANSLATED = sorted([*ROOT.glob("*.zh.md"), *DOCS.rglob("*.zh.md")])
every_method = pytest.mark.parametrize("method", METHODS)


def _made() -> set[str]:
    """Pages that the site makes from something else: the README, the reference, the gallery."""
    tree = ast.parse((ROOT / "site/hooks.py").read_text("utf-8"))
    found = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Dict)
    }
    assert all((ROOT / origin).exists() for origin in found["MADE"].values())
    rooms = {f"reference/{room}.md" for room in found["REFERENCE"]}
    return {*found["MADE"], *rooms, "reference/index.md", "gallery.md"}


def test_the_site_names_every_page_once_and_no_other() -> None:
    nav = (ROOT / "site/mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    named = re.findall(r"([\w./-]+\.md)$", nav, flags=re.MULTILINE)
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert sorted(named) == sorted(there | _made())


# -- in another language -------------------------------------------------------------------------------------


def _blocks(page: Path) -> list[str]:
    """Fenced blocks with the marks above them."""
    return re.findall(r"(?:^<!-- [^\n]* -->\n)?^```.*?^```$", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda page: page.name)
def test_a_translation_has_the_commands_of_the_page_it_translates(page: Path) -> None:
    """So it is enough to run one of the two."""
    original = page.with_name(page.name.replace(".zh.md", ".md"))
    assert _blocks(page) and _blocks(page) == _blocks(original)
    assert f"[English]({original.name})" in page.read_text("utf-8")
    assert f"[中文]({page.name})" in original.read_text("utf-8")


def test_a_translation_has_the_numbers_of_the_table_it_translates() -> None:
    one, other = (
        [
            re.findall(r"\d+(?:[.,]\d+)*", line)
            for line in (ROOT / name).read_text("utf-8").splitlines()
            if line[:2] == "| "
        ]
        for name in ("README.md", "README.zh.md")
    )
    assert len(one) == len(other) > 5
    assert [sorted(row) for row in one][1:] == [sorted(row) for row in other][1:]


# -- pages of methods ----------------------------------------------------------------------------------------


def _formulas(page: Path) -> str:
    return "\n".join(re.findall(r"\$\$(.+?)\$\$", page.read_text("utf-8"), flags=re.DOTALL))


def _equations(method: str) -> str:
    """The indented lines of a method's docstring before its symbols."""
    source = ROOT / f"src/polycentric/methods/{method.replace('-', '_')}.py"
    opening = re.split(r"^(?:Symbols|Reduces to):", ast.get_docstring(ast.parse(source.read_text())) or "", flags=re.M)[
        0
    ]
    return "\n".join(line for line in opening.splitlines() if line.startswith("    "))


@every_method
def test_the_equations_of_a_page_are_those_of_the_docstring(method: str) -> None:
    text, formulas = _equations(method), _formulas(METHOD_PAGES[method])
    assert formulas.count(r"\leftarrow") == text.count("<-")
    greek = "alpha beta gamma theta lambda mu rho sigma tau Omega Sigma"
    signs = {word: "\\" + word for word in greek.split()} | {"argmin": "argmin", "argmax": "argmax", "grad": r"\nabla"}
    used = {
        name for name in signs if re.search(rf"(?<![a-z]){name}(?![a-z])", text, flags=re.IGNORECASE * (name == "grad"))
    }
    assert {name for name in used if signs[name] not in formulas} == set()
    assert formulas.count(r"\begin{") == formulas.count(r"\end{") and formulas.count("{") == formulas.count("}")


@every_method
def test_a_page_of_a_method_has_equations_symbols_and_numbers_beside_the_papers(method: str) -> None:
    text = METHOD_PAGES[method].read_text("utf-8")
    assert [part for part in ("$$\n", "**Symbols:** ", "## Beside the paper\n") if part not in text] == []


@pytest.mark.parametrize("page", sorted((DOCS / "methods").glob("*.md")), ids=lambda page: page.stem)
def test_numbers_beside_the_papers_stand_on_the_page_of_results(page: Path) -> None:
    section = re.search(
        r"^## Beside the paper\n(.*?)(?=^## |^<!-- run)", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert section
    linked = re.findall(r"\]\(\.\./results/([\w-]+\.md)\)", section[1])
    shown = "\n".join((DOCS / "results" / name).read_text("utf-8") for name in linked)
    rows = [line.split(" | ") for line in section[1].splitlines() if line.startswith("| ") and "| paper |" not in line]
    assert bool(rows) == bool(linked)
    for row in rows:
        for number in re.findall(r"\d[\d.]*(?: ± [\d.]+)?", " ".join(row[1:3])):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", shown), f"{number} is not in {linked}"


# -- results, and the round ----------------------------------------------------------------------------------


def test_every_page_of_results_has_one_line() -> None:
    folder = DOCS / "results"
    lines = re.findall(
        r"^\| \[([\w-]+)\]\(\1\.md\) \| [^|]+ \| [^|]+ \|$", (folder / "README.md").read_text(), re.MULTILINE
    )
    assert sorted(lines) == sorted(page.stem for page in folder.glob("*.md") if page.name != "README.md")


def test_every_line_of_the_round_has_a_note() -> None:
    text = (DOCS / "one-page.md").read_text("utf-8")
    for source, notes in re.findall(r"^```python\n(def .*?)^```\n\n((?:^\|.*\n)+)", text, re.DOTALL | re.MULTILINE):
        codes = [code.replace("\\|", "|") for code in re.findall(r"^\| `(.+?)` \|", notes, re.MULTILINE)]
        bare = [line for line in source.splitlines() if line.strip() and '"""' not in line]
        assert [line for line in bare if not any(code.strip() in line for code in codes)] == []
