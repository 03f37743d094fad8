"""What the shape of the package promises: names, sizes, words, and what is never done."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polycentric
from polycentric import METHODS
from polycentric.language import kinds

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/polycentric"
SOURCES = sorted(PACKAGE.rglob("*.py"))
RECIPES = sorted(path for path in (PACKAGE / "methods").glob("*.py") if path.name != "__init__.py")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)


def _method(recipe: Path) -> str:
    """What a method is called: a dash is no letter of a Python name."""
    return recipe.stem.replace("_", "-")


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _page(recipe: Path) -> str:
    return ast.get_docstring(_tree(recipe)) or ""


# -- public names --------------------------------------------------------------------------------------------


def test_public_names_are_there_and_explained() -> None:
    found = {name: getattr(polycentric, name) for name in polycentric.__all__}
    pages = {name: thing.__doc__ or "" for name, thing in found.items() if not isinstance(thing, dict)}
    assert [name for name, page in pages.items() if not page.strip() or page.startswith(f"{name}(")] == []
    assert set(found) <= set(dir(polycentric))


def test_public_names_are_in_the_documentation() -> None:
    code = "\n".join(text for page in PAGES for text in _code_of(page))
    shown = {name: rf"(?<![\w.]){name}\b|\bpc\.{name}\b|\bpolycentric\.{name}\b" for name in polycentric.__all__}
    assert [name for name, pattern in shown.items() if not re.search(pattern, code)] == []


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


@every_recipe
def test_a_method_says_what_it_reduces_to_and_where_it_is_from(recipe: Path) -> None:
    assert "Reduces to:" in _page(recipe)
    assert "Reference:" in _page(recipe) or recipe.stem == "nofed"
    assert "<-" in _page(recipe), "a method opens with its equations"
    assert inspect.getmodule(METHODS[_method(recipe)]).__file__ == str(recipe)  # type: ignore[union-attr]


@every_recipe
def test_the_page_of_a_method_has_what_a_reader_looks_for(recipe: Path) -> None:
    text = (ROOT / f"docs/methods/{_method(recipe)}.md").read_text("utf-8")
    wanted = ["| word | part", "**Reduces to**", "## Details", "## Run it", "**Bytes per round:**", "**Look at**"]
    wanted += [f"polycentric run {_method(recipe)} ", "```python"] + ["**Reference:**"] * (recipe.stem != "nofed")
    assert [part for part in wanted if part not in text] == []


@every_recipe
def test_a_method_knows_no_other(recipe: Path) -> None:
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


# -- rooms ---------------------------------------------------------------------------------------------------

SHOW = ("cli", "report", "reproduce")  # rooms that name a file after what they run or draw


def test_the_hall_holds_the_round_the_method_the_errors_and_the_public_names() -> None:
    here = {path.name for path in PACKAGE.glob("*.py")}
    assert here == {"__init__.py", "__main__.py", "errors.py", "method.py", "round.py"}


def test_no_two_modules_and_no_two_classes_have_one_name() -> None:
    modules, classes = Counter[str](), Counter[str]()
    for path in SOURCES:
        if path.relative_to(PACKAGE).parts[0] not in SHOW:
            modules[path.stem] += path.stem != "__init__"
        classes.update(node.name for node in _tree(path).body if isinstance(node, ast.ClassDef))
    assert [name for name, count in (modules + classes).items() if count > 1] == []


def test_the_import_contract_covers_every_module() -> None:
    (contract,) = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    listed = [layer.strip().removeprefix("polycentric.") for line in contract["layers"] for layer in line.split("|")]
    modules = [".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__") for path in SOURCES]
    free = {"__init__", "__main__", "parts"}  # the names themselves; and a room whose modules are listed one by one
    assert [m for m in modules if m not in free and not any(f"{m}.".startswith(f"{layer}.") for layer in listed)] == []


def test_a_run_loads_no_library_that_only_some_methods_and_figures_need() -> None:
    code = "import sys, polycentric.runs.start; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"scipy", "networkx", "matplotlib", "plotly", "sklearn"} & set(done.stdout.split()) == set()


def test_a_run_from_start_to_end_loads_neither_a_compiler_nor_scikit_learn() -> None:
    runs = "for m in ('fedavg', 'fesem'): pc.run(m, 'digits', partition='rotations=2', clients=8, rounds=1)"
    code = f"import sys, polycentric as pc\n{runs}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch._dynamo", "torch._inductor", "sympy", "sklearn"} & set(done.stdout.split()) == set()


def test_a_module_that_is_long_says_why() -> None:
    long = [path for path in SOURCES if "reproduce" not in path.parts and len(path.read_text().splitlines()) > 450]
    assert [_name(path) for path in long if "long" not in (ast.get_docstring(_tree(path)) or "")] == []


def test_tests_stand_where_the_source_does() -> None:
    own = {"laws", "benchmarks", "reliability", "supply"}  # what all owe; and programs beside the package
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    assert [str(f) for f in folders if f.parts[:1] not in [(o,) for o in own] and not (PACKAGE / f).is_dir()] == []
    assert list((ROOT / "tests").glob("test_*.py")) == []


# -- one place for a new thing; where it has a name, two -----------------------------------------------------


def test_a_part_is_registered_where_it_is_defined() -> None:
    for kind, found in kinds().items():
        for name, entry in found.items():
            assert entry.build.__module__.startswith("polycentric."), f"{kind} {name}"
            text = Path(str(inspect.getsourcefile(entry.build))).read_text("utf-8")
            assert re.search(rf'register\(\s*\w+,\s*"{re.escape(name)}"', text), f"{name} is not registered beside it"


def test_a_method_takes_its_file_and_one_line() -> None:
    text = {path: path.read_text("utf-8") for path in SOURCES}
    for recipe in RECIPES:
        asks = [path for path in text if re.search(rf"\bfrom [.\w]*methods\.{recipe.stem} import", text[path])]
        assert {_name(path) for path in asks} <= {"src/polycentric/__init__.py"}, recipe.stem
        assert f"from .{recipe.stem} import" in text[PACKAGE / "methods/__init__.py"]


def test_a_table_takes_its_file_and_one_line() -> None:
    from polycentric.reproduce import TABLES

    homes = {sys.modules[type(table).__module__].__name__ for table in TABLES.values()}
    assert homes == {"polycentric.reproduce.table"}
    init = (PACKAGE / "reproduce/__init__.py").read_text("utf-8")
    for path in (PACKAGE / "reproduce").glob("*.py"):
        if re.search(r"^[A-Z_0-9]+ = Table\(", path.read_text("utf-8"), re.MULTILINE):
            assert f"from .{path.stem} import" in init


def test_an_option_of_a_run_is_written_once() -> None:
    """Its name stands in quotation marks, or as a field, in one module that asks a user for it."""
    asking = [PACKAGE / "cli", PACKAGE / "runs/settings.py"]
    files = [file for place in asking for file in ([place] if place.is_file() else place.rglob("*.py"))]
    for option in ("evaluate_every", "held_out_seed", "checkpoint_every", "optimistic", "dissimilarity", "data_seed"):
        homes = [file for file in files if re.search(rf"^    {option}: ", file.read_text("utf-8"), re.MULTILINE)]
        assert [_name(file) for file in homes] == ["src/polycentric/runs/settings.py"]


# -- what is never done --------------------------------------------------------------------------------------


def test_nothing_that_is_read_is_ever_executed() -> None:
    pickles = {"pickle", "cPickle", "dill", "marshal", "shelve", "joblib"}
    wrong = []
    for path in SOURCES:
        tree = _tree(path)
        wrong += [f"{_name(path)} imports {m}" for m in _imported(tree) if m.split(".")[0] in pickles]
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if _called(node.func) in FORBIDDEN or not all(map(_harmless, node.keywords)):
                wrong.append(f"{_name(path)}, line {node.lineno}")
    assert wrong == []


def test_nobody_asks_an_executor_for_its_class() -> None:
    """Executors say what others need to know, and none is built on another."""
    executors, wrong = {"Executor", "Looped", "Stacked", "Traced"}, []
    for path in SOURCES:
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Call) and _called(node.func) in ("isinstance", "issubclass", "type"):
                named = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} & executors
            elif isinstance(node, ast.ClassDef):
                named = {_called(base) for base in node.bases} & (executors - {"Executor"})
            else:
                continue
            wrong += [f"{_name(path)}, line {node.lineno}"] * bool(named)
    assert wrong == []


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
