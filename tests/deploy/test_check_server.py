"""What the doctor finds about a server, seen from a node."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from polycentric.deploy.check_server import check_server
from polycentric.deploy.keys import make_server
from polycentric.errors import UsageError


@contextmanager
def listening(keys: Path | None, date: str = "", opened: str = "") -> Iterator[int]:
    """A server of HTTP, with TLS where there are keys; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in ("/health", opened) else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return date or super().date_time_string(timestamp)

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    if keys is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keys / "server.crt", keys / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def bad(port: int, ca: Path | None, insecure: bool = False) -> dict[str, str]:
    return {check.what: check.advice for check in check_server(f"127.0.0.1:{port}", ca, insecure) if not check.good}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor") / "server"
    make_server(folder, ["localhost"])
    return folder


def test_a_good_server_has_nothing_wrong(keys: Path) -> None:
    with listening(keys) as port:
        found = check_server(f"127.0.0.1:{port}", keys / "ca.crt")
    assert all(check.good for check in found)
    assert [check.what for check in found][1:] == [
        "versions",
        "server",
        "certificate",
        "engine",
        "clocks",
        "other routes",
    ]


def test_what_is_wrong_is_told_with_what_to_do(keys: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_server(other, ["elsewhere.example"], only=True)
    with listening(keys) as port:
        assert "another authority" in bad(port, other / "ca.crt")["certificate"]
        assert "--ca" in bad(port, None)["certificate"]
    with listening(other) as port:
        assert "renew --host" in bad(port, other / "ca.crt")["certificate"]
    with listening(None) as port:
        assert "--insecure" in bad(port, keys / "ca.crt")["certificate"]
        assert not bad(port, None, insecure=True)
    assert "polycentric serve" in bad(port, keys / "ca.crt")["server"]  # nobody listens there any more
    with listening(keys, date="Mon, 16 Nov 2020 21:00:00 GMT") as port:
        assert "clocks" in bad(port, keys / "ca.crt")
    with listening(keys, opened="/v1/control/start-run") as port:
        assert "begin runs" in bad(port, keys / "ca.crt")["other routes"]
    with pytest.raises(UsageError, match="write host:port"):
        check_server("hospital.example", None)
