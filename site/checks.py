"""The site that was built, looked at once more: links lead to pages and headings, and nothing comes from elsewhere."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mkdocs.exceptions import PluginError


class Links(HTMLParser):
    """What a page of HTML loads, links to, and can be linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Sort the addresses of one tag."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if "href" in given:
            (self.leads if tag == "a" else self.loads).append(given["href"])
        self.loads += [given["src"]] if "src" in given else []


def on_post_build(config: Any) -> None:
    """End the build where a page loads something from another host, or a link leads nowhere."""
    built = Path(config.site_dir)
    pages = {path: Links() for path in sorted(built.rglob("*.html"))}
    for path, page in pages.items():
        page.feed(path.read_text("utf-8"))
    wrong = []
    for path, page in pages.items():
        if path.name == "404.html":  # of a server, with addresses from its root
            continue
        name = path.relative_to(built)
        wrong += [f"{name} loads {address}" for address in page.loads if urlsplit(address).netloc]
        for address in page.loads + page.leads:
            to = urlsplit(address)
            if to.scheme or to.netloc:
                continue
            target = (path.parent / unquote(to.path)).resolve() if to.path else path
            if not target.is_file():
                wrong.append(f"{name}: {address} leads nowhere")
            elif to.fragment and target in pages and unquote(to.fragment) not in pages[target].anchors:
                wrong.append(f"{name}: {address} has no such heading")
    if wrong:
        raise PluginError("\n".join(["the site is not whole:", *wrong]))
