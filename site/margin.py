"""Notes beside the lines they are about: where a table of notes stands below quoted source, both become one table.

On GitHub the source comes first and its notes below it (docs/one-page.md); on the site a line has its note beside it.
"""

from __future__ import annotations

import re
from typing import Any

from markdown import markdown as to_html
from mkdocs.structure.pages import Page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

_NOTED = re.compile(
    r"<!-- source: \S+ -->\n```python\n(?P<source>(?:(?!```).)*)\n```\n\n"
    r"\| line \| note \|\n\|---\|---\|\n(?P<notes>(?:\|[^\n]*\n?)+)",
    re.DOTALL,
)
_NOTE = re.compile(r"^\| (`+)(.+?)\1 \| (.+) \|$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Quoted source with a table of notes becomes lines with notes in the margin."""
    return _NOTED.sub(lambda found: _beside(found["source"], found["notes"]) + "\n\n", markdown)


def _beside(source: str, notes: str) -> str:
    colored = highlight(source, PythonLexer(), HtmlFormatter(nowrap=True)).rstrip("\n").split("\n")
    margin: dict[int, list[str]] = {}
    begun = 0
    for _, code, note in _NOTE.findall(notes):
        code = code.strip().replace("\\|", "|")
        at = source.index(code, begun) if code in source[begun:] else source.index(code)
        begun = at
        html = to_html(note).removeprefix("<p>").removesuffix("</p>")
        margin.setdefault(source[:at].count("\n"), []).append(html)
    rows = []
    for at, line in enumerate(colored):
        note = "<br>".join(margin.get(at, []))
        rows.append(f'<tr><td class="code"><code>{line or "&nbsp;"}</code></td><td class="note">{note}</td></tr>')
    return f'<div class="margin highlight"><table>{"".join(rows)}</table></div>'
