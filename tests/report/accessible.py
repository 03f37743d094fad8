"""Whether everybody can use a page, by axe: contrast, names for what is read aloud, keys for what scrolls."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest

ASKED = "axe.run(document, { resultTypes: ['violations'] })"
TOLD = "(found) => found.violations.flatMap((v) => v.nodes.map((n) => `${v.id}: ${n.target} ${n.html.slice(0, 90)}`))"


def barriers(tab: Any) -> list[str]:
    """What axe finds in a page as it stands."""
    pytest.importorskip("axe_playwright_python", reason="axe, which judges pages, is not installed")
    tab.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    return list(tab.evaluate(f"{ASKED}.then({TOLD})"))
