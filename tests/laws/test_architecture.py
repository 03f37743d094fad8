"""What the shape of the package promises: names, sizes, words, and what is never done."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polycentric
from polycentric import METHODS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/polycentric"
SOURCES = sorted(PACKAGE.rglob("*.py"))
RECIPES = sorted(
    set((PACKAGE / "methods").glob("*.py")) - {PACKAGE / f"methods/{name}.py" for name in ("__init__", "recipes")}
)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

WORDS = re.compile(r"\bserver|\bglobal model|\bstrateg", re.IGNORECASE)
QUOTED = (  # where somebody else's title or name, or the glossary itself, has one of these words
    "FedMes: speeding up federated learning with multiple edge servers",
    "*Server*, *global model*, *node*, *worker* and *strategy* are not",
)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _method(recipe: Path) -> str:
    """What a method is called: a dash is no letter of a Python name."""
    return recipe.stem.replace("_", "-")


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _page(recipe: Path) -> str:
    return ast.get_docstring(_tree(recipe)) or ""


# -- public names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", polycentric.__all__)
def test_a_public_name_is_there_and_explained(name: str) -> None:
    found = getattr(polycentric, name)
    if isinstance(found, dict):
        return
    page = found.__doc__ or ""
    assert page.strip() and not page.startswith(f"{name}("), f"{name} has no docstring of its own"
    assert name in dir(polycentric)


@pytest.mark.parametrize("name", polycentric.__all__)
def test_a_public_name_is_in_the_documentation(name: str) -> None:
    code = re.compile(rf"(?<![\w.]){name}\b|\bpc\.{name}\b|\bpolycentric\.{name}\b")
    assert any(code.search(text) for page in PAGES for text in _code_of(page)), f"no page shows {name}"


def _code_of(page: Path) -> list[str]:
    """The blocks and code spans of a page."""
    text = page.read_text("utf-8")
    blocks = re.findall(r"^ *```.*?^ *```", text, flags=re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`([^`]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE))
    return [*blocks, *spans]


def test_all_names_are_sorted_and_those_of_the_table() -> None:
    def place(name: str) -> tuple[int, str]:  # constants, classes, functions: as ruff sorts __all__
        return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

    assert polycentric.__all__ == sorted(polycentric.__all__, key=place)
    assert set(polycentric.__all__) == set(polycentric._HOME)
    assert len(polycentric._HOME) == sum(len(names.split()) for names in polycentric._HOMES.values())


def test_type_checkers_see_the_names_that_are_there() -> None:
    (guard,) = (node for node in _tree(PACKAGE / "__init__.py").body if isinstance(node, ast.If))
    seen = {alias.name for node in guard.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(polycentric.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fedavgg'"):
        polycentric.fedavgg  # noqa: B018


# -- methods -------------------------------------------------------------------------------------------------


def test_every_method_is_a_file_and_has_a_page() -> None:
    assert {_method(path) for path in RECIPES} == set(METHODS)
    assert set(METHODS) <= {page.stem for page in (ROOT / "docs/methods").glob("*.md")}


@pytest.mark.parametrize("recipe", RECIPES, ids=_name)
def test_a_method_says_what_it_reduces_to_and_where_it_is_from(recipe: Path) -> None:
    assert "Reduces to:" in _page(recipe)
    assert "Reference:" in _page(recipe) or recipe.stem == "nofed"
    assert "<-" in _page(recipe), "a method opens with its equations"
    assert inspect.getmodule(METHODS[_method(recipe)]).__file__ == str(recipe)  # type: ignore[union-attr]


@pytest.mark.parametrize("recipe", RECIPES, ids=_name)
def test_the_page_of_a_method_has_what_a_reader_looks_for(recipe: Path) -> None:
    text = (ROOT / f"docs/methods/{_method(recipe)}.md").read_text("utf-8")
    wanted = ["| word | part", "**Reduces to**", "## Details", "## Run it", "**Bytes per round:**", "**Look at**"]
    wanted += [f"polycentric run {_method(recipe)} ", "```python"] + ["**Reference:**"] * (recipe.stem != "nofed")
    assert [part for part in wanted if part not in text] == []


@pytest.mark.parametrize("recipe", RECIPES, ids=_name)
def test_a_method_is_short_and_knows_no_other(recipe: Path) -> None:
    assert len(recipe.read_text("utf-8").splitlines()) <= 80
    others = {path.stem for path in RECIPES} - {recipe.stem}
    assert not {module.split(".")[-1] for module in _imported(_tree(recipe))} & others


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def test_the_round_is_one_page_and_names_no_method() -> None:
    text = (PACKAGE / "round.py").read_text("utf-8")
    assert len(text.splitlines()) <= 150
    assert not [name for name in METHODS if re.search(rf"\b{name}\b", text, re.IGNORECASE)]
    assert not [module for module in _imported(ast.parse(text)) if "methods" in module]


@pytest.mark.parametrize("script", EXAMPLES, ids=_name)
def test_an_example_is_at_most_sixty_lines(script: Path) -> None:
    assert len(script.read_text("utf-8").splitlines()) <= 60


# -- words, and what is never done ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*SOURCES, *PAGES, *EXAMPLES], ids=_name)
def test_one_word_one_thing(path: Path) -> None:
    text = path.read_text("utf-8")
    for quotation in QUOTED:
        text = text.replace(quotation, "")
    assert not WORDS.findall(text), "see docs/glossary.md"


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_nothing_that_is_read_is_ever_executed(path: Path) -> None:
    tree = _tree(path)
    assert not {"pickle", "cPickle", "dill", "marshal", "shelve", "joblib"} & {
        module.split(".")[0] for module in _imported(tree)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            assert _called(node.func) not in FORBIDDEN, f"line {node.lineno}"
            assert all(_harmless(keyword) for keyword in node.keywords), f"line {node.lineno}"


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_nobody_asks_an_executor_for_its_class(path: Path) -> None:
    """Executors say what others need to know, and none is built on another."""
    executors = {"Executor", "Looped", "Stacked", "Compiled"}
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call) and _called(node.func) in ("isinstance", "issubclass", "type"):
            assert not executors & {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}, node.lineno
        if isinstance(node, ast.ClassDef):
            assert not (executors - {"Executor"}) & {_called(base) for base in node.bases}, node.lineno


FORBIDDEN = {"eval", "exec", "compile", "__import__", "torch.load", "yaml.load", "yaml.unsafe_load", "os.system"}


def _called(function: ast.expr) -> str:
    """The name of what is called, as far as it can be told: eval, torch.load."""
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{function.attr}"
    return ""


def _harmless(keyword: ast.keyword) -> bool:
    """allow_pickle=False is the one thing that may be said of pickles, and no process starts a shell."""
    value: Any = keyword.value
    refused = {"allow_pickle": False, "shell": False}
    return keyword.arg not in refused or (isinstance(value, ast.Constant) and value.value is refused[keyword.arg])
