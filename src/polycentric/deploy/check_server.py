"""Whether a server can be reached as it should be, seen from a node: a line for each thing that may be wrong.

Looked at: the way there, the authority, names and dates of its certificate, whether anybody is behind it, the two
clocks, and that nothing but what nodes need can be reached: whoever reaches the rest of the engine can begin runs.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from .. import __version__
from ..errors import UsageError
from .arithmetic import fixed_training
from .check_keys import FEW_DAYS, KeyCheck
from .roster import digest_of_training

SECONDS = 10.0  # for an answer
SKEW = 60.0  # seconds that clocks may be apart: the engine refuses requests that are much older
CLOSED = ("/v1/control/start-run", "/v1/runtime/get-nodes", "/docs", "/")


def check_server(
    server: str, ca: Path | None, insecure: bool = False, now: Callable[[], float] = time.time
) -> list[KeyCheck]:
    """All there is to say about a server, as host:port, seen from here."""
    return list(_checks(server, ca, insecure, now))


def _checks(server: str, ca: Path | None, insecure: bool, now: Callable[[], float]) -> Iterator[KeyCheck]:
    host, port = _endpoint(server)
    trained = f"{digest_of_training(fixed_training())} (equal digests: equal bits)"
    yield KeyCheck("a fixed short training", trained)
    yield KeyCheck("versions", f"{_versions()} (the server says whose are others)")
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError:
        yield KeyCheck("server", f"no address of {host} is known", "check the name in --server, or your DNS")
        return
    try:
        socket.create_connection((host, port), SECONDS).close()
    except OSError as error:
        why = "nobody listens there" if isinstance(error, ConnectionRefusedError) else "no answer"
        yield KeyCheck(
            "server", f"{address}, port {port}: {why}", "start `polycentric serve --host`, open the firewall"
        )
        return
    yield KeyCheck("server", f"{address}, port {port}, is there")
    context = None
    if not insecure:
        context, told = _trusting(host, port, ca)
        yield told
        if context is None:
            return
    yield from _answers(host, port, context, now)


def _versions() -> str:
    """Of what both sides must have alike."""
    try:
        flower = version("flwr")
    except PackageNotFoundError:
        flower = "not installed"
    return f"polycentric {__version__}, torch {torch.__version__}, flwr {flower}"


def _endpoint(server: str) -> tuple[str, int]:
    host, colon, port = server.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"--server {server}: write host:port, such as hospital.example:8470")
    return host.strip("[]"), int(port)


def _trusting(host: str, port: int, ca: Path | None) -> tuple[ssl.SSLContext | None, KeyCheck]:
    """A context that the server's certificate stands up to, or what is wrong with it."""
    if ca is None:
        return None, KeyCheck("certificate", "not looked at", "say --ca with the ca.crt that the server gave you")
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError):
        return None, KeyCheck("certificate", f"{ca} cannot be read as an authority", "give the server's ca.crt")
    try:
        with (
            socket.create_connection((host, port), SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as tls,
        ):
            found, version = tls.getpeercert() or {}, tls.version()
    except ssl.SSLCertVerificationError as error:
        return None, KeyCheck("certificate", f"refused: {error.verify_message}", _remedy(error))
    except (OSError, ssl.SSLError):
        advice = "the server was started with --insecure, or something else listens there"
        return None, KeyCheck("certificate", "no TLS is spoken there", advice)
    ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(found["notAfter"])), UTC)
    days = (ends - datetime.now(UTC)).days
    names = ", ".join(str(pair[1]) for pair in found.get("subjectAltName", ()))
    advice = "" if days >= FEW_DAYS else "at the server: polycentric keys renew"
    return context, KeyCheck("certificate", f"{version}; for {names}; {days} more days", advice)


def _remedy(error: ssl.SSLCertVerificationError) -> str:
    text = error.verify_message.lower()
    if "expired" in text or "not yet valid" in text:
        return "at the server: polycentric keys renew; and look at both clocks"
    if "hostname" in text or "ip address" in text:
        return "at the server: polycentric keys renew --host with the name that nodes use"
    return "another authority has signed it: compare `polycentric keys show ca.crt` by phone"


def _answers(host: str, port: int, context: ssl.SSLContext | None, now: Callable[[], float]) -> Iterator[KeyCheck]:
    try:
        status, date = _asked(host, port, context, "/health")
    except (OSError, http.client.HTTPException):
        yield KeyCheck("engine", "no answer", "look at what `polycentric serve` says")
        return
    alive = status == 200
    yield KeyCheck("engine", f"answers {status}", "" if alive else "it is starting, or has ended: look at the server")
    if date:
        apart = now() - parsedate_to_datetime(date).timestamp()
        advice = "" if abs(apart) < SKEW else "set both clocks, such as by NTP"
        yield KeyCheck("clocks", f"{abs(apart):.0f} seconds apart", advice)
    reached = []
    for path in CLOSED:
        try:
            if _asked(host, port, context, path)[0] not in (400, 401, 403, 404, 405):
                reached.append(path)
        except (OSError, http.client.HTTPException):
            continue
    advice = "whoever reaches them can begin runs: let nodes connect to the port of `polycentric serve`, or a proxy"
    yield KeyCheck("other routes", f"open: {', '.join(reached)}" if reached else "closed", advice if reached else "")


def _asked(host: str, port: int, context: ssl.SSLContext | None, path: str) -> tuple[int, str]:
    kind: http.client.HTTPConnection = (
        http.client.HTTPConnection(host, port, timeout=SECONDS)
        if context is None
        else http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
    )
    try:
        kind.request("GET", path)
        reply = kind.getresponse()
        return reply.status, reply.getheader("date") or ""
    finally:
        kind.close()
