"""The pages of `polycentric watch`, on this machine only: nothing is written, nothing is run, nothing leaves.

A browser asks for runs by short names that are no paths. Requests that name another host than this machine are refused,
so that no other page can read through a browser what is here; the policy allows scripts and data of this server only.
"""

from __future__ import annotations

import html
import socket
from asyncio import to_thread
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...language.files import packaged
from ..page.seen import looked_at
from ..page.write import escaped, page_of
from .runs import RunList, as_event
from .stream import Gone, lines_of, rows_of_list

try:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route
except ImportError as missing:
    raise UsageError("watching needs starlette and uvicorn: pip install 'polycentric[watch]'") from missing

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
HOSTS = ["127.0.0.1", "localhost", "[::1]"]
SCRIPTS = {"page.js": "page", "style.css": "page", "list.js": "live", "list.css": "live"}
NOWHERE = PlainTextResponse("there is nothing by that name", 404, headers=HEADERS)
KINDS = {"js": "text/javascript", "css": "text/css"}


class Pages:
    """What a browser can ask for, of one folder of runs."""

    def __init__(self, root: Path, ending: Callable[[], bool]) -> None:
        self.runs, self.ending = RunList(root.resolve()), ending

    def _left(self, request: Request) -> Gone:
        """Whether nobody listens any longer: the browser is gone, or the server is about to go."""

        async def gone() -> bool:
            return self.ending() or await request.is_disconnected()

        return gone

    async def listed(self, request: Request) -> Response:
        """The list of runs."""
        return HTMLResponse(_list_page(self.runs.root.name), headers=HEADERS)

    async def rows(self, request: Request) -> Response:
        """What the list shows, whenever it changes."""
        found = rows_of_list(lambda: as_event(self.runs.rows()), self._left(request))
        return StreamingResponse(found, media_type="text/event-stream", headers=HEADERS)

    async def shown(self, request: Request) -> Response:
        """A run's page."""
        id, folder = self._asked(request)
        if folder is None:
            return NOWHERE
        metrics = folder / "metrics.jsonl"
        place = metrics.stat().st_size if metrics.is_file() else 0  # lines that the page has already
        return HTMLResponse(_run_page(id, place, await to_thread(_data, folder)), headers=HEADERS)

    async def data(self, request: Request) -> Response:
        """What a run's page shows now."""
        _, folder = self._asked(request)
        return NOWHERE if folder is None else JSONResponse(await to_thread(_data, folder), headers=HEADERS)

    async def lines(self, request: Request) -> Response:
        """A run's lines, behind those that the browser has."""
        id, folder = self._asked(request)
        if folder is None:
            return NOWHERE
        said = request.headers.get("last-event-id", request.query_params.get("from", "0"))
        place = int(said) if said.isascii() and said.isdigit() and len(said) < 16 else 0

        def status() -> str:
            return next((row.status for row in self.runs.rows() if row.id == id), "gone")

        found = lines_of(folder / "metrics.jsonl", place, status, self._left(request))
        return StreamingResponse(found, media_type="text/event-stream", headers=HEADERS)

    def _asked(self, request: Request) -> tuple[str, Path | None]:
        id = str(request.path_params["id"])
        return id, self.runs.folder_of(id)


async def file(request: Request) -> Response:
    """A script or a style."""
    name = request.path_params["name"]
    if name == "plotly.js":
        kept = HEADERS | {"cache-control": "max-age=3600"}
        return Response(_plotly(), media_type="text/javascript", headers=kept)
    if name not in SCRIPTS:
        return NOWHERE
    return Response(_file(SCRIPTS[name], name), media_type=KINDS[name.rpartition(".")[2]], headers=HEADERS)


def app_of(root: Path, ending: Callable[[], bool] = lambda: False) -> Starlette:
    """The application for a folder of runs; streams close when the server is `ending`."""
    pages = Pages(root, ending)
    routes = [
        Route("/", pages.listed),
        Route("/rows", pages.rows),
        Route("/run/{id:str}", pages.shown),
        Route("/run/{id:str}/data", pages.data),
        Route("/run/{id:str}/lines", pages.lines),
        Route("/file/{name:str}", file),
    ]
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)])


def _data(folder: Path) -> dict[str, Any]:
    """What a run's page shows now, from its files alone; before its first scores, that it has none."""
    try:
        return page_of(looked_at([folder], quick=True, examples=False))
    except (UsageError, OSError, ValueError, KeyError, IndexError) as error:
        answer = {"headline": f"{folder.name} has no scores yet", "lead": str(error)[:300], "bars": [], "told": []}
        return {"answer": answer | {"notes": [], "metric": "", "share": True, "lower": False}, "panels": []}


def _run_page(id: str, place: int, data: dict[str, Any]) -> str:
    return f"""<!doctype html>
<html lang="en" data-events="/run/{id}/lines?from={place}" data-from="/run/{id}/data">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{html.escape(data["answer"]["headline"])} · polycentric</title>
<link rel="stylesheet" href="/file/style.css"></head>
<body><header></header><nav aria-label="panels"></nav><main></main><footer></footer>
<script type="application/json" id="data">{escaped(data)}</script>
<script src="/file/plotly.js"></script><script src="/file/page.js"></script></body></html>
"""


def _list_page(name: str) -> str:
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{html.escape(name)} · polycentric watch</title>
<link rel="stylesheet" href="/file/style.css"><link rel="stylesheet" href="/file/list.css"></head>
<body><header><p class="brand">polycentric</p><h1>Runs</h1>
<p class="lead" id="said" data-folder="{html.escape(name, quote=True)}">looking ...</p>
<p class="find"><label>find <input id="find" type="search" autocomplete="off"></label></p></header>
<main><div class="scroll"><table id="runs"><thead><tr></tr></thead><tbody></tbody></table></div></main>
<script src="/file/list.js"></script></body></html>
"""


def _file(where: str, name: str) -> str:
    return packaged(f"{__package__.rpartition('.')[0]}.{where}", name).decode("utf-8")


@lru_cache(maxsize=1)
def _plotly() -> bytes:
    return packaged("plotly", "package_data", "plotly.min.js")


def listening(port: int) -> socket.socket:
    """A port of this machine, and nobody else's, that takes visitors from now on: they wait until they are served."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(("127.0.0.1", port))
    except OSError as error:
        found.close()
        raise UsageError(f"port {port} cannot be used ({error.strerror}): choose another, --port {port + 1}") from error
    found.listen()
    return found


def serve(root: Path, door: socket.socket) -> None:
    """Until it is stopped."""
    import uvicorn

    app = app_of(root, lambda: server.should_exit)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
    with suppress(KeyboardInterrupt):  # Ctrl-C is how it is ended
        server.run(sockets=[door])
