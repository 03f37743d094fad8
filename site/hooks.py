"""What mkdocs is told beside docs/: pages made from other files, and links that lead out of docs/.

The README and its like become pages, a file of code that a page links to becomes one, the reference is made from the
public names, and the gallery from docs/results. Functions named `on_...` are called by mkdocs; `formulas`, `margin` and
`checks` have others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import griffe
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ASSETS = Path(__file__).parent / "assets"
MADE = {  # pages of the site that are files outside docs/
    "index.md": "README.md",
    "index.zh.md": "README.zh.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "changelog.md": "CHANGELOG.md",
}
REFERENCE = {  # pages of public names, by the package they live in
    "runs": "Runs: start, resume, open, compare",
    "data": "Data and partitions",
    "methods": "Methods",
    "method": "What a method is made of",
    "parts": "Parts: who, objective, optimizer, aggregate, privacy, attack",
    "topology": "Topologies: who averages with whom",
    "learn": "What a client does",
    "stacks": "Rows and the matrices between them",
    "tasks": "What is learned",
    "simulate": "Simulated clients and clocks",
    "round": "The round",
    "errors": "Errors",
}
CODE = re.compile(r"(^ *(`{3,}).*?^ *\2[ \t]*$|(`+)[^`].*?\3)", re.DOTALL | re.MULTILINE)  # blocks and spans
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
_ITEM = re.compile(r"(\d+\. |- )")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are no files of docs/."""

    def add(name: str, content: str, inclusion: InclusionLevel = InclusionLevel.UNDEFINED) -> None:
        files.append(File.generated(config, name, content=content, inclusion=inclusion))

    for name, origin in MADE.items():
        add(name, (ROOT / origin).read_text("utf-8"))
    for name, text in reference():
        add(name, text)
    add("gallery.md", gallery())
    for path in sorted(ASSETS.iterdir()):
        add(f"assets/{path.name}", path.read_text("utf-8"))
    for path in sorted(_linked_files()):
        language = {".py": "python", ".yaml": "yaml", ".conf": "nginx"}.get(path.suffix, "")
        text = f"# {path.name}\n\n`{_of(path)}`\n\n````{language}\n{path.read_text('utf-8')}````\n"
        add(f"{_of(path)}.md", text, InclusionLevel.NOT_IN_NAV)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links lead to pages of the site, and lists are indented as this Markdown wants them."""
    name = page.file.src_uri
    here = ROOT / MADE[name] if name in MADE else DOCS / name
    if name.startswith("results/"):
        page.meta["search"] = {"boost": 0.1}  # tables of numbers come after the pages that explain

    def moved(link: re.Match[str]) -> str:
        if re.match(r"\w+:", link[0]) or not (target := (here.parent / link[0]).resolve()).is_file():
            return link[0]
        return os.path.relpath(_page_of(target), PurePosixPath(name).parent)

    return _indented(outside_code(lambda text: _LINK.sub(moved, text), markdown))


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Docstrings have lines that begin with a word and a colon (`Reduces to:`); each stays a line of its own."""
    begins = re.compile(r"\n(?=[A-Z][a-z]+(?: [a-z]+)?: )")
    return begins.sub("<br>\n", html) if page.file.src_uri.startswith("reference/") else html


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """A page in Chinese says so, for the sake of fonts and readers' programs."""
    return output.replace('<html lang="en"', '<html lang="zh-Hans"', 1) if ".zh." in page.file.src_uri else output


def outside_code(change: Any, markdown: str) -> str:
    """A page with all that is not code changed."""
    pieces = CODE.split(markdown)  # text, and what CODE's three groups found, in turn
    return "".join(
        change(pieces[at]) + (pieces[at + 1] if at + 1 < len(pieces) else "") for at in range(0, len(pieces), 4)
    )


def _page_of(target: Path) -> str:
    """The page, or other file of the site, that a file of the repository becomes."""
    named = {ROOT / origin: name for name, origin in MADE.items()}
    if target in named:
        return named[target]
    return _of(target, DOCS) if target.is_relative_to(DOCS) else f"{_of(target)}.md"


def _of(path: Path, folder: Path = ROOT) -> str:
    return path.relative_to(folder).as_posix()


def _linked_files() -> set[Path]:
    """Files outside docs/ that pages link to, and that are no pages already."""
    pages = [*DOCS.rglob("*.md"), *(ROOT / origin for origin in MADE.values())]
    found: set[Path] = set()
    for page in pages:
        text = CODE.sub("", page.read_text("utf-8"))
        links = (link for link in _LINK.findall(text) if not re.match(r"\w+:", link))
        found |= {target for link in links if (target := (page.parent / link).resolve()).is_file()}
    return {path for path in found if not path.is_relative_to(DOCS) and _of(path) not in MADE.values()}


def _indented(markdown: str) -> str:
    """The lines of a list's items moved to four spaces: GitHub takes two or three, this Markdown does not."""
    lines, width, inside = [], 0, ""
    for line in markdown.split("\n"):
        fence = re.match(r" *(`{3,})", line)
        if not inside and (item := _ITEM.match(line)):
            width = len(item[0])
        elif width and line.startswith(" " * width):
            line = "    " + line[width:]
        elif line.strip():
            width = 0
        if fence:
            inside = "" if inside and line.strip() == inside else inside or fence[1]
        lines.append(line)
    return "\n".join(lines)


def reference() -> Iterator[tuple[str, str]]:
    """Pages with every public name, from its docstring; a name without one ends the build."""
    package = griffe.load("polycentric", search_paths=[str(ROOT / "src")], allow_inspection=False)
    rooms: dict[str, dict[str, str]] = {room: {} for room in REFERENCE}
    for name in sorted(package.exports or (), key=str.lower):
        path = _path(package, str(name))
        rooms[path.split(".")[1]][str(name)] = path
    table = ["# Reference", "", "Every public name of `polycentric`, from its docstring.", ""]
    for room, title in REFERENCE.items():
        names = rooms[room]
        table += [f"## [{title}]({room}.md)", "", " · ".join(f"[`{n}`]({room}.md#{p})" for n, p in names.items()), ""]
        text = [f"# {title}", ""]
        for name, path in names.items():
            text += [f"::: {path}", ""]
            page = DOCS / f"methods/{name.replace('_', '-')}.md"
            if page.exists():
                text += [f"Equations, settings and details: [its page](../methods/{page.name}).", ""]
        yield f"reference/{room}.md", "\n".join(text)
    yield "reference/index.md", "\n".join(table)


def _path(package: Any, name: str) -> str:
    """Where a public name is defined."""
    if name not in package.members:
        raise PluginError(f"polycentric.{name} is in __all__ and nowhere else")
    found = package[name]
    found = found.final_target if found.is_alias else found
    if found.is_module:  # a method has the name of its file
        found = found[name]
    if not (found.docstring and found.docstring.value.strip()):
        raise PluginError(f"polycentric.{name} has no docstring: {found.path}")
    return str(found.path)


def gallery() -> str:
    """Every page of results: its first figure, its title, and its line of docs/results/README.md."""
    table = (DOCS / "results/README.md").read_text("utf-8")
    cards = []
    for name, paper, line in re.findall(r"^\| \[([\w-]+)\]\(\S+\) \| (.+?) \| (.+) \|$", table, re.MULTILINE):
        text = (DOCS / f"results/{name}.md").read_text("utf-8")
        title = f"[{text.partition(chr(10))[0].removeprefix('# ')}](results/{name}.md)"
        figure = re.search(r"!\[[^\]]*\]\(([^)]+)\)", text)
        picture = f"[![{name}](results/{figure[1]})](results/{name}.md)" if figure else ""
        cards += ['<div class="card" markdown>', picture, f"**{title}**", f"{paper}: {line}", "</div>"]
    return "\n\n".join(
        ["---\nhide: [toc]\n---", "# Gallery of results", '<div class="cards" markdown>', *cards, "</div>"]
    )
