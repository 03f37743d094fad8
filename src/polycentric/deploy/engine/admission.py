"""Who is let in: a server by its certificate, nodes by the public keys in a folder."""

from __future__ import annotations

import ipaddress
import shlex
import ssl
from collections.abc import Callable
from pathlib import Path

from ...errors import UsageError, require
from ..private_files import SECRET, file_fault, folder_fault


def check_server(keys: Path, nodes: Path) -> None:
    """Refuse keys of a server that cannot be used, or that others can read."""
    fault = folder_fault(keys) or file_fault(keys / "server.key", SECRET)
    require(fault is None, str(fault))
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(keys / "server.crt", keys / "server.key")
    except (OSError, ssl.SSLError):
        raise UsageError(
            f"{keys} holds no certificate with its key: polycentric doctor --keys {shlex.quote(str(keys))}"
        ) from None
    require(nodes.is_dir(), f"{nodes} is no folder: put NAME.pub of every node that may join into one")


def is_here(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_node(ca: Path, key: Path) -> None:
    """Refuse keys of a node that cannot be used, or that others can read."""
    from ..key_files import AUTHORITY, private_key, seen

    fault = file_fault(key, SECRET)
    require(fault is None, str(fault))
    private_key(key)
    require(seen(ca).kind == AUTHORITY, f"{ca} is no certificate of an authority: ask the server for its ca.crt")


def allowed(folder: Path, say: Callable[[str], None]) -> dict[bytes, tuple[str, str]]:
    """The public keys in a folder, as Flower keeps them, with fingerprint and name; what is none is told."""
    from ..key_files import MOST_FILES, NODE_PUBLIC, ec, seen
    from .office import key_bytes

    found: dict[bytes, tuple[str, str]] = {}
    paths = sorted(folder.glob("*.pub"))
    if len(paths) > MOST_FILES:
        say(f"{folder} holds {len(paths)} keys, and the first {MOST_FILES} are let in")
    for path in paths[:MOST_FILES]:
        try:
            file = seen(path)
        except UsageError as error:
            say(str(error))
            continue
        if file.kind != NODE_PUBLIC or not isinstance(file.public, ec.EllipticCurvePublicKey):
            say(f"{path} is no public key of a node: make one by `polycentric keys node`")
        elif (key := key_bytes(file.public)) in found:
            say(f"{path} is the key of {found[key][1]}.pub once more: it is left out")
        else:
            found[key] = (file.fingerprint, path.stem)
    return found
