"""One HTML file: a skeleton, its style and script, plotly's script packed, and the data as JSON.

Nothing of a run is ever part of the markup or of a script: data are JSON in which no sign can end the element, and
page.js puts them into the page as text. The policy allows two scripts by their digests (ours and plotly's), pictures
within the page, and nothing else: no request, no frame, no form. Styles may be inline, since plotly sets style
attributes; a style alone can neither run anything nor fetch anything.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import require
from ...language.files import packaged
from ...runs.checkpoint import replace_file
from ...runs.loop import Run
from . import answer, clients, frames, groups, learning, made, models, nodes, topology
from .parts import Part
from .seen import Sight, looked_at, of_run

PANELS: tuple[Callable[[Sight], Part | None], ...] = (
    *(answer.who_gains, answer.compared, learning.curves, frames.frames, frames.recall, clients.distribution),
    clients.fine_tuning,
    *(topology.drawn, models.on_a_map, groups.over_rounds, groups.examples, models.alike, models.related),
    *(
        clients.labels,
        learning.privacy,
        clients.participation,
        nodes.online,
        learning.traffic,
        learning.lost,
        made.made,
    ),
)


def page_of(sight: Sight) -> dict[str, Any]:
    """All data of a page, as JSON can hold it: the answer, and the panels that these runs have something for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of runs that are not finished; the page says so
        panels = [found for panel in PANELS if (found := panel(sight))]
        return {"answer": answer.answer(sight), "panels": panels}


def html_of(data: dict[str, Any]) -> str:
    """The page."""
    style, script = (_file(name) for name in ("style.css", "page.js"))
    plotly, packed = _plotly()
    allowed = " ".join(f"'sha256-{_digest(text)}'" for text in (script.encode(), plotly))
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
    fields = {
        "policy": policy + "base-uri 'none'; form-action 'none'",
        "title": html.escape(f"{data['answer']['headline']} · polycentric"),
        "style": style,
        "data": escaped(data),
        "plotly": packed,
        "script": script,
    }
    first, *others = _file("page.html").split("{{")  # in one pass: what is filled in is never looked at again
    filled = (fields[name] + rest for name, _, rest in (other.partition("}}") for other in others))
    return "".join([first, *filled])


def escaped(data: Any) -> str:
    """JSON that can stand in a script element, whatever names are in it: no <, > or & is left.

    >>> escaped({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return packaged(str(__package__), name).decode("utf-8")


def _digest(raw: bytes) -> str:
    return base64.b64encode(hashlib.sha256(raw).digest()).decode()


@lru_cache(maxsize=1)
def _plotly() -> tuple[bytes, str]:
    """Plotly's script, from its wheel; and the same packed, as text."""
    raw = packaged("plotly", "package_data", "plotly.min.js")
    return raw, base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode()


def write_report(
    runs: Sequence[str | Path],
    path: str | Path = "report.html",
    *,
    against: str | None = None,
    trust: bool = False,
    quick: bool = False,
    examples: bool = True,
) -> Path:
    """Write one page on some runs; returns where it is.

    Arguments:
        runs: folders of runs, or folders that hold several.
        against: the label that the others are compared with; None: the first.
        trust: run code that the folders name as module:attribute.
        quick: from the runs' files only; no data are read, and nothing is computed anew.
        examples: whether single examples may be shown.
    """  # fmt: skip
    page_path(path)  # what is wrong is said before runs are opened
    sight = looked_at([Path(run) for run in runs], against=against, trust=trust, quick=quick, examples=examples)
    return write_page(sight, path)


def report_of(run: Run, path: str | Path | None = None, *, examples: bool = True) -> Path:
    """The page of one run; by default report.html in its folder."""
    require(
        path is not None or run.folder is not None, "a run without a folder needs a path: run.report('report.html')"
    )
    where = Path(path) if path is not None else run.folder.path / "report.html"  # type: ignore[union-attr]
    with of_run(run, examples) as sight:
        return write_page(sight, where)


def page_path(path: str | Path) -> Path:
    """Where a page is to be; refused where no browser would take it for one."""
    found = Path(path)
    require(found.suffix in (".html", ".htm"), f"a report's file must end in .html, got '{found}'")
    return found


def write_page(sight: Sight, path: str | Path) -> Path:
    """The page of what is looked at; whole or not at all."""
    target, text = page_path(path), html_of(page_of(sight))
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return target
