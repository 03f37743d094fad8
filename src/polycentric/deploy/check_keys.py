"""Whether keys can be used, found out before a federation starts: a line for each thing that may be wrong.

Looked at: who can read or replace the files; the dates and names of certificates; whether the authority has signed the
server's; whether every private key belongs to the certificate, or the public key, beside it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from .key_files import LOCKED, MOST_FILES, NEITHER, NODE_KEY, NODE_PUBLIC, SECRETS, KeyFile, moment, same_key, seen
from .keys import HERE, OF_SERVER
from .private_files import OPEN, SECRET, file_fault, folder_fault

FEW_DAYS = 30  # left of a certificate: time to renew it
CURVES = ("secp256r1", "secp384r1", "secp521r1")  # that both Flower and OpenSSH take
ENDINGS = (".key", ".crt", ".pub")


@dataclass(frozen=True)
class KeyCheck:
    """What was looked at, what was found; advice, what to type, where it is bad."""

    what: str
    found: str
    advice: str = ""

    @property
    def good(self) -> bool:
        """Nothing has to be done."""
        return not self.advice


def check_keys(folder: Path, now: datetime | None = None) -> list[KeyCheck]:
    """All there is to say about a server's or a node's folder of keys."""
    fault = folder_fault(folder)
    first = KeyCheck("folder", fault.wrong if fault else f"{folder}, yours alone", fault.advice if fault else "")
    if folder.is_symlink() or not folder.is_dir():
        return [first]
    return [first, *_checks(folder, moment(now))]


def _checks(folder: Path, now: datetime) -> Iterator[KeyCheck]:
    paths = sorted(path for path in folder.iterdir() if path.suffix in ENDINGS)[:MOST_FILES]
    files: dict[str, KeyFile] = {}
    for path in paths:
        if path.is_symlink() or not path.is_file():
            yield KeyCheck(path.name, "no regular file", "put the file itself there")
        else:
            files[path.name] = seen(path)
            yield _kept(files[path.name])
    left = folder / "server.crt.new"
    if left.exists():
        yield KeyCheck(left.name, "left by a renewal that was cut off", f"rm {shlex.quote(str(left))}")
    if not paths:
        yield KeyCheck("keys", "none", "make them: polycentric keys server --help, polycentric keys node --help")
    yield from _of_server(folder, files, now)
    for file in files.values():
        if file.kind == NODE_KEY:
            yield from _of_node(file, files.get(f"{file.path.stem}.pub"))


def _kept(file: KeyFile) -> KeyCheck:
    """What a file is, and who can read it."""
    name, path = file.path.name, shlex.quote(str(file.path))
    if file.kind == NEITHER:
        return KeyCheck(
            name, "cannot be read as a key or certificate", f"it is damaged: bring back a copy, or rm {path}"
        )
    if file.kind == LOCKED:
        return KeyCheck(name, file.kind, "programs cannot ask for it: put the key there without one")
    wanted = OF_SERVER.get(name)
    if wanted and file.kind != wanted:
        return KeyCheck(name, f"{file.kind}, should be: {wanted}", "bring the right file back")
    fault = file_fault(file.path, SECRET if file.kind in SECRETS else OPEN)
    return KeyCheck(name, fault.wrong if fault else f"{file.kind}, mode {file.mode:04o}", fault.advice if fault else "")


def _of_server(folder: Path, files: dict[str, KeyFile], now: datetime) -> Iterator[KeyCheck]:
    """Dates, names, signature and keys of the certificates; a node has only the authority's."""
    right = {name: file for name, file in files.items() if file.kind == OF_SERVER.get(name)}
    root, server = right.get("ca.crt"), right.get("server.crt")
    renewal = f"polycentric keys renew {shlex.quote(str(folder))}"
    serves = any(name in files for name in ("ca.key", "server.key", "server.crt"))
    for name in ("ca.crt", "server.key", "server.crt"):
        if serves and not os.path.lexists(folder / name):
            advice = "bring back a copy" if name != "server.crt" else f"bring back a copy, or {renewal} --host NAME"
            yield KeyCheck(name, "not there", advice)
    if root:
        anew = "make another by `polycentric keys server --out NEW`, and give its ca.crt to all nodes"
        yield _dates(root, now, anew if serves else "ask the server for a new ca.crt")
    if server:
        yield _dates(server, now, renewal)
        names = ", ".join(server.names)
        alone = " (this machine only)" if set(server.names) <= set(HERE) else ""
        yield KeyCheck("names of the server", names + alone or "none", "" if names else f"{renewal} --host NAME")
    if root and server:
        signed = _is_signed(server, root)
        yield KeyCheck("server.crt by ca.crt", "signed" if signed else "not signed by it", "" if signed else renewal)
    for part, advice in (("server", renewal), ("ca", "bring back the ca.key that was made with ca.crt")):
        key, certificate = right.get(f"{part}.key"), right.get(f"{part}.crt")
        if key and certificate:
            yield _fits(key, certificate, advice)


def _dates(file: KeyFile, now: datetime, advice: str) -> KeyCheck:
    """Whether a certificate is valid, and will be for a while."""
    assert file.certificate is not None
    begins, ends = file.certificate.not_valid_before_utc, file.certificate.not_valid_after_utc
    what, left = f"dates of {file.path.name}", file.days_left(now) or 0
    if now < begins:
        return KeyCheck(what, f"not valid before {begins:%Y-%m-%d %H:%M} UTC", "set this machine's clock, or wait")
    if now > ends:
        return KeyCheck(what, f"ended {ends:%Y-%m-%d %H:%M} UTC", advice)
    return KeyCheck(what, f"until {ends:%Y-%m-%d}, {left} days left", advice if left < FEW_DAYS else "")


def _is_signed(server: KeyFile, root: KeyFile) -> bool:
    assert server.certificate is not None and root.certificate is not None
    try:
        server.certificate.verify_directly_issued_by(root.certificate)
    except Exception:  # a wrong name, another key, a kind of signature that nobody has: cryptography has many ways
        return False
    return True


def _fits(key: KeyFile, other: KeyFile, advice: str) -> KeyCheck:
    """Whether a private key is the one of a certificate or a public key."""
    fits = same_key(key.public, other.public)
    what = f"{key.path.name} and {other.path.name}"
    return KeyCheck(what, "belong together" if fits else "do not belong together", "" if fits else advice)


def _of_node(key: KeyFile, public: KeyFile | None) -> Iterator[KeyCheck]:
    """A node's pair."""
    again = f"polycentric keys node --name NEW --out {shlex.quote(str(key.path.parent))}"
    if key.curve not in CURVES:
        yield KeyCheck(f"curve of {key.path.name}", key.curve, f"it must be P-256, P-384 or P-521: {again}")
    if public is None:
        yield KeyCheck(f"{key.path.stem}.pub", "not there", f"bring back a copy, or make a new pair: {again}")
    elif public.kind == NODE_PUBLIC:
        yield _fits(key, public, f"bring back the right copy, or make a new pair: {again}")
