"""LaTeX between dollars becomes MathML when the site is built: browsers show it without any script.

A formula is taken out of a page before Markdown sees its underscores, and put back when the page is HTML.
"""

from __future__ import annotations

import re
from typing import Any

from hooks import outside_code
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page

_DISPLAY = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
_INLINE = re.compile(r"(?<![\\$\w])\$(?=[^\s$])([^$\n]+?)(?<=\S)\$(?![\w$])")
_MARK = "formula{}of{}"
_SCRIPT = {"F": "ℱ", "N": "𝒩"}  # letters that are in use; browsers know no other way to write them
_found: dict[str, list[str]] = {}


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Every formula becomes a word that Markdown leaves alone."""
    formulas = _found[page.file.src_uri] = []

    def taken(display: str) -> Any:
        def one(match: re.Match[str]) -> str:
            formulas.append(mathml(match[1], display, page.file.src_uri))
            return _MARK.format(len(formulas) - 1, "page")

        return one

    def both(text: str) -> str:
        return _INLINE.sub(taken("inline"), _DISPLAY.sub(taken("block"), text))

    return outside_code(both, markdown)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """The words become formulas again."""
    for at, formula in enumerate(_found.pop(page.file.src_uri, [])):
        word = _MARK.format(at, "page")
        if 'display="block"' in formula:
            html = html.replace(f"<p>{word}</p>", word)
            formula = f'<div class="formula">{formula}</div>'
        html = html.replace(word, formula)
    return html


def mathml(latex: str, display: str, where: str) -> str:
    """MathML of a formula, in the part of it that browsers know (MathML Core)."""
    latex = re.sub(r"\\begin\{aligned\}", r"\\begin{array}{rlrl}", " ".join(latex.split()))
    latex = latex.replace(r"\end{aligned}", r"\end{array}")
    found = convert(latex, display=display)
    found = found.replace("<mtable>", '<mtable displaystyle="true">')
    space = r"(?<!<msub>)(?<!<munder>)<mo>([A-Za-z]+)</mo>(?=<(?:mi|mn|ms|mu))"  # a function's name, and what it is of
    found = re.sub(
        r"<mo>([A-Za-z]+)</mo>", r"<mi>\1</mi>", re.sub(space, r'<mi>\1</mi><mspace width="0.17em" />', found)
    )
    found = re.sub(r'<mi mathvariant="script">([FN])</mi>', lambda letter: f"<mi>{_SCRIPT[letter[1]]}</mi>", found)
    if wrong := re.search(r"<m[io]>\\\w+|<m[io]>&</m|mathvariant=\"(?!normal|bold|monospace)\w+", found):
        raise PluginError(f"{where}: not understood: {wrong[0]} in {latex}")
    return found
