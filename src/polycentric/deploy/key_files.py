"""What a file of keys holds: a certificate, a private key, or a node's public key. Nothing here shows a secret.

    ca.crt, ca.key           the authority: an X.509 certificate, and the key that signs others
    server.crt, server.key   the server, for TLS
    NAME.key, NAME.pub       a node: an EC key in OpenSSH's form

What cryptography says of a file that it cannot read is not passed on: it may quote the file.
"""

from __future__ import annotations

import base64
import hashlib
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ..errors import UsageError, require
from ..language.files import why
from .private_files import read_small

try:  # here only: who makes keys takes it from here, so that one line says what is missing
    from cryptography import x509 as x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes as hashes, serialization as serialization
    from cryptography.hazmat.primitives.asymmetric import ec as ec
    from cryptography.x509.oid import ExtendedKeyUsageOID as ExtendedKeyUsageOID
except ImportError as missing:
    raise UsageError(
        "keys need the package cryptography, which is not installed: pip install 'polycentric[deploy]'"
    ) from missing

AUTHORITY, SERVER = "certificate of an authority", "certificate of a server"
KEY, NODE_KEY, NODE_PUBLIC = "private key", "private key of a node", "public key of a node"
LOCKED, NEITHER, NO_FILE = "private key with a passphrase", "neither key nor certificate", "no regular file"
SECRETS = (KEY, NODE_KEY, LOCKED)
MOST_FILES = 500  # of a folder that are looked at


@dataclass(frozen=True)
class KeyFile:
    """What is in a file; of a private key, its public part only."""

    path: Path
    kind: str
    mode: int
    certificate: x509.Certificate | None = None
    public: Any = None  # the public key, of any kind that cryptography knows

    @property
    def fingerprint(self) -> str:
        """Of a certificate as openssl shows it, of a key as ssh-keygen does; empty where there is none."""
        if self.certificate:
            return self.certificate.fingerprint(hashes.SHA256()).hex(":").upper()
        return ssh_fingerprint(self.public) if self.public else ""

    @property
    def names(self) -> list[str]:
        """By which names a server may be reached; of an authority, what it is called."""
        if self.certificate and self.kind == AUTHORITY:
            return [self.certificate.subject.rfc4514_string()]
        return names_of(self.certificate) if self.certificate else []

    @property
    def curve(self) -> str:
        """What kind of key it is."""
        return self.public.curve.name if isinstance(self.public, ec.EllipticCurvePublicKey) else "no elliptic curve"

    def days_left(self, now: datetime | None = None) -> int | None:
        """Whole days until a certificate ends, negative afterwards; None of a key, which does not end."""
        return (self.certificate.not_valid_after_utc - moment(now)) // timedelta(days=1) if self.certificate else None

    def rows(self, now: datetime | None = None) -> dict[str, str]:
        """What there is to say, by name."""
        found = {"kind": self.kind, "fingerprint": self.fingerprint, "mode": f"{self.mode:04o}"}
        if self.public and not self.certificate:
            found["curve"] = self.curve
        if self.certificate:
            begins, ends = self.certificate.not_valid_before_utc, self.certificate.not_valid_after_utc
            left = self.days_left(now) or 0
            said = f"{left} days left" if moment(now) <= ends else f"ended {-left} days ago"
            found["key"] = ssh_fingerprint(self.public)
            found["names"] = ", ".join(self.names) or "none"
            found["valid"] = f"{begins:%Y-%m-%d %H:%M} to {ends:%Y-%m-%d %H:%M} UTC; {said}"
        order = ("kind", "fingerprint", "key", "curve", "names", "valid", "mode")
        return {name: found[name] for name in order if found.get(name)}


def moment(now: datetime | None) -> datetime:
    """Now, unless another time is meant; certificates know whole seconds."""
    return (now or datetime.now(UTC)).replace(microsecond=0)


def seen(path: Path) -> KeyFile:
    """What is in a file."""
    data = read_small(path)
    mode = stat.S_IMODE(path.lstat().st_mode)
    try:
        return _parsed(path, mode, data)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return KeyFile(path, NEITHER, mode)


def shown(path: Path) -> list[KeyFile]:
    """What is in a file, or in all files of a folder."""
    if path.is_symlink() or not path.is_dir():
        return [seen(path)]
    try:
        inside = sorted(path.iterdir())[:MOST_FILES]
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({why(error)}): do this as its owner") from None
    require(bool(inside), f"{path} is empty: make keys by `polycentric keys server` or `polycentric keys node`")
    return [seen(one) if stat.S_ISREG(one.lstat().st_mode) else _other(one) for one in inside]


def _other(path: Path) -> KeyFile:
    """A folder, a pipe, or a symbolic link, which is not followed."""
    return KeyFile(path, NO_FILE, stat.S_IMODE(path.lstat().st_mode))


def _parsed(path: Path, mode: int, data: bytes) -> KeyFile:
    if b"PRIVATE KEY-----" in data:  # first: what holds a secret is one, whatever else it holds
        ssh = b"BEGIN OPENSSH" in data
        try:
            return KeyFile(path, NODE_KEY if ssh else KEY, mode, public=_loaded(data).public_key())
        except TypeError:  # how cryptography says that it needs a passphrase
            return KeyFile(path, LOCKED, mode)
        except (ValueError, UnsupportedAlgorithm):
            return KeyFile(path, LOCKED if b"ENCRYPTED" in data else NEITHER, mode)
    if b"-----BEGIN CERTIFICATE-----" in data:
        found = x509.load_pem_x509_certificate(data)
        found.not_valid_before_utc, names_of(found), found.subject.rfc4514_string()
        return KeyFile(path, AUTHORITY if is_authority(found) else SERVER, mode, found, found.public_key())
    return KeyFile(path, NODE_PUBLIC, mode, public=serialization.load_ssh_public_key(data))


def _loaded(data: bytes) -> Any:
    load = serialization.load_ssh_private_key if b"BEGIN OPENSSH" in data else serialization.load_pem_private_key
    return load(data, password=None)


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The key itself, to sign with."""
    try:
        key = _loaded(read_small(path))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UsageError(f"{path} holds no private key without a passphrase: bring the right file back") from None
    require(isinstance(key, ec.EllipticCurvePrivateKey), f"{path} holds no EC key: bring the right file back")
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def is_authority(certificate: x509.Certificate) -> bool:
    """Whether a certificate may sign others."""
    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except x509.ExtensionNotFound:
        return False


def names_of(certificate: x509.Certificate) -> list[str]:
    """DNS names and addresses that a certificate is for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def same_key(one: Any, other: Any) -> bool:
    """Whether two public keys are one."""
    return _spki(one) == _spki(other)


def _spki(public: Any) -> bytes:
    return bytes(public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))


def ssh_fingerprint(public: Any) -> str:
    """The SHA256 of a public key, as ssh-keygen shows it; empty for kinds that OpenSSH does not have."""
    try:
        line = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    except (ValueError, UnsupportedAlgorithm):
        return ""
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
