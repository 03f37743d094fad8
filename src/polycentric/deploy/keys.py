"""Keys and certificates, as Flower takes them: made where they are used, so that no secret ever travels.

    server    ca.key -> ca.crt (ten years), server.key -> server.crt (at most 825 days), signed by the authority ca.key
    node      NAME.key -> NAME.pub

Nodes are given ca.crt and so know the server; the server is given every NAME.pub and so knows the nodes. All keys are
on the curve P-384. A certificate is valid from an hour before it was made, for clocks that are behind.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from ..errors import UsageError, require
from .key_files import (
    AUTHORITY,
    KEY,
    NODE_KEY,
    NODE_PUBLIC,
    SERVER,
    ExtendedKeyUsageOID,
    KeyFile,
    ec,
    hashes,
    moment,
    names_of,
    private_key,
    same_key,
    seen,
    serialization,
    x509,
)
from .private_files import OPEN, SECRET, Writer, private_folder, read_small

YEARS_OF_AUTHORITY = 10
LONGEST, LONGEST_NAME, LONGEST_HOST, MOST_HOSTS = 825, 64, 253, 100  # days; letters; letters; names
SKEW = timedelta(hours=1)
HERE = ("localhost", "127.0.0.1")
OF_SERVER = {"ca.key": KEY, "ca.crt": AUTHORITY, "server.key": KEY, "server.crt": SERVER}
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


def make_server(
    folder: Path, hosts: Iterable[str], days: int = 365, only: bool = False, now: datetime | None = None
) -> dict[str, KeyFile]:
    """An authority and a server's certificate for these names, in four new files."""
    names, days, made = checked_hosts(hosts, only), checked_days(days), moment(now)
    require(bool(names), "say by which names the nodes reach this server: --host hospital.example --host 10.0.0.5")
    with private_folder(folder) as writer:
        _refuse_what_is_there(folder, OF_SERVER, f"polycentric keys renew {shlex.quote(str(folder))}")
        authority, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
        root = _root(authority, made)
        _write_key(writer, "ca.key", authority, serialization.PrivateFormat.PKCS8)
        writer.write("ca.crt", _pem(root), OPEN)
        _write_key(writer, "server.key", key, serialization.PrivateFormat.PKCS8)
        writer.write("server.crt", _pem(_signed(key.public_key(), names, days, made, root, authority)), OPEN)
    return {name: seen(folder / name) for name in OF_SERVER}


def make_node(folder: Path, name: str) -> dict[str, KeyFile]:
    """A node's key pair, in two new files."""
    check_name(name)
    wanted = {f"{name}.key": NODE_KEY, f"{name}.pub": NODE_PUBLIC}
    with private_folder(folder) as writer:
        _refuse_what_is_there(folder, wanted, "choose another --name or --out")
        key = ec.generate_private_key(ec.SECP384R1())
        _write_key(writer, f"{name}.key", key, serialization.PrivateFormat.OpenSSH)
        form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        writer.write(f"{name}.pub", key.public_key().public_bytes(*form) + f" {name}\n".encode(), OPEN)
    return {file: seen(folder / file) for file in wanted}


def renew(
    folder: Path, hosts: Sequence[str] = (), days: int = 365, only: bool = False, now: datetime | None = None
) -> tuple[KeyFile, Path | None]:
    """A new certificate for the server's key from the same authority; and where the old one is kept, if there was one.

    At every moment there is a server.crt: the new one is written under another name and takes its place.
    """
    days, made = checked_days(days), moment(now)
    require(bool(hosts) or not only, "--only says that --host names all there are: give --host, too")
    names, left = checked_hosts(hosts, only), folder / "server.crt.new"
    with private_folder(folder, create=False) as writer:
        typed = f"rm {shlex.quote(str(left))}, and renew again"
        require(not os.path.lexists(left), f"{left} was left by a renewal that was cut off: {typed}")
        root, authority = _authority_of(folder, days, made)
        key, old = private_key(folder / "server.key"), folder / "server.crt"
        before = read_small(old) if os.path.lexists(old) else None
        if not names:
            found = seen(old) if before is not None else None
            require(
                bool(found and found.kind == SERVER and found.names),
                f"{old} names no server: give --host, as for `keys server`",
            )
            assert found is not None and found.certificate is not None
            names = checked_hosts(names_of(found.certificate), only=True)
        kept = None if before is None else _free(folder, f"server.crt.OLD-{made:%Y-%m-%d}")
        if kept is not None and before is not None:
            writer.write(kept.name, before, OPEN)
        writer.write(left.name, _pem(_signed(key.public_key(), names, days, made, root, authority)), OPEN)
        writer.replace(left.name, old.name)
    return seen(folder / "server.crt"), kept


def _authority_of(folder: Path, days: int, made: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The authority in a folder, if it can sign for so many days."""
    there = (folder / "ca.key").exists()
    require(there, f"{folder / 'ca.key'} is not there, and only its owner can sign: put it back while you renew")
    root, key = seen(folder / "ca.crt"), private_key(folder / "ca.key")
    wrong = root.kind != AUTHORITY or not same_key(root.public, key.public_key())
    require(
        not wrong,
        f"{folder / 'ca.key'} is not the key of {folder / 'ca.crt'}: bring back the one that was made with it",
    )
    assert root.certificate is not None
    ends, left = root.certificate.not_valid_after_utc, root.days_left(made) or 0
    anew = "make another by `polycentric keys server --out NEW`, and give its ca.crt to all nodes"
    require(left >= 1, f"the authority {folder / 'ca.crt'} ends {ends:%Y-%m-%d}: {anew}")
    require(days <= left, f"--days {days} is longer than the authority lives, until {ends:%Y-%m-%d}: --days {left}")
    return root.certificate, key


def _free(folder: Path, name: str) -> Path:
    """A name that no file has yet."""
    for suffix in ("", *(f"-{n}" for n in range(2, 1000))):
        if not os.path.lexists(folder / f"{name}{suffix}"):
            return folder / f"{name}{suffix}"
    raise UsageError(f"{folder} holds a thousand old certificates of today: move them away")


def _refuse_what_is_there(folder: Path, wanted: dict[str, str], instead: str) -> None:
    """Nothing is overwritten; what a killed process left is told apart from what is whole."""
    there = [folder / name for name in wanted if os.path.lexists(folder / name)]
    if not there:
        return
    whole = [path for path in there if seen(path).kind == wanted[path.name]]
    listed = ", ".join(path.name for path in there)
    if len(whole) == len(wanted):
        raise UsageError(f"{folder} holds {listed} already, and nothing is overwritten: {instead}")
    lacks = ", ".join(name for name in wanted if folder / name not in whole)
    typed = f"rm {' '.join(shlex.quote(str(path)) for path in there)}"
    raise UsageError(f"{folder} is half made, it lacks a whole {lacks}: if nobody uses the rest, {typed}")


def checked_hosts(hosts: Iterable[str], only: bool = False) -> list[str]:
    """Names and addresses as a certificate has them, each once; this machine's own, too, unless `only` these are meant.

    >>> checked_hosts(["Hospital.example", "10.0.0.5"])
    ['hospital.example', '10.0.0.5', 'localhost', '127.0.0.1']
    """
    given = [checked_host(host) for host in hosts]
    require(len(given) <= MOST_HOSTS, f"at most {MOST_HOSTS} names fit into a certificate, got {len(given)}")
    return list(dict.fromkeys([*given, *(HERE if given and not only else ())]))


def checked_host(host: str) -> str:
    """A DNS name or an IP address, as a certificate has it."""
    try:
        address = ipaddress.ip_address(host) if "%" not in host else None
    except ValueError:
        address = None
    if address is not None:
        nobody = address.is_unspecified or address.is_multicast
        require(not nobody, f"--host {host}: nobody is reached by that address; give the one that nodes connect to")
        return str(address)
    labels = host.lower().split(".")
    good = all(map(_LABEL.fullmatch, labels)) and not labels[-1].isdigit() and len(host) <= LONGEST_HOST
    plain = "without https://, port, * or _" if host.isascii() else "in ASCII, as xn--..."
    require(good, f"--host takes a DNS name or an IP address, {plain}: hospital.example or 10.0.0.5, got '{host[:80]}'")
    return host.lower()


def check_name(name: str) -> None:
    """Refuse a name of a node that is no plain name of a file."""
    rule = f"1 to {LONGEST_NAME} letters, digits, dots, dashes and underscores, with a letter or digit at both ends"
    require(bool(_NAME.fullmatch(name)), f"--name takes {rule}: ward-3, got '{name[:80]}'")
    taken = name.lower() in ("ca", "server")
    require(not taken, f"--name {name} would be the name of a server's file: choose another, such as ward-3")


def checked_days(days: int) -> int:
    """For how long a server's certificate may be made."""
    require(1 <= days <= LONGEST, f"--days must be 1 to {LONGEST}, got {days}: try 365, and `polycentric keys renew`")
    return days


def _write_key(writer: Writer, name: str, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    writer.write(name, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()), SECRET)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _root(key: ec.EllipticCurvePrivateKey, made: datetime) -> x509.Certificate:
    """The authority's own certificate; its name tells it from other authorities."""
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = _called(f"polycentric authority {identifier.digest.hex()[:8]}")
    ends = made + timedelta(days=round(365.25 * YEARS_OF_AUTHORITY))
    usage = x509.BasicConstraints(ca=True, path_length=0)
    built = _built(key.public_key(), name, name, (made - SKEW, ends), usage, key)
    return built.sign(key, hashes.SHA384())


def _signed(
    public: ec.EllipticCurvePublicKey,
    names: Sequence[str],
    days: int,
    made: datetime,
    root: x509.Certificate,
    authority: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    """A server's certificate."""
    begins = max(made - SKEW, root.not_valid_before_utc)
    usage, times = x509.BasicConstraints(ca=False, path_length=None), (begins, made + timedelta(days=days))
    built = _built(public, _called("polycentric server"), root.subject, times, usage, authority)
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    built = built.add_extension(purpose, critical=False)
    alternative = x509.SubjectAlternativeName([_general(name) for name in names])
    return built.add_extension(alternative, critical=False).sign(authority, hashes.SHA384())


def _built(
    public: ec.EllipticCurvePublicKey,
    name: x509.Name,
    issuer: x509.Name,
    times: tuple[datetime, datetime],
    usage: x509.BasicConstraints,
    authority: ec.EllipticCurvePrivateKey,
) -> x509.CertificateBuilder:
    """What both certificates have: all that RFC 5280 asks for, since newer versions of Python check it."""
    rights = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
    of = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    return (
        x509.CertificateBuilder(issuer, name, public, x509.random_serial_number(), *times)
        .add_extension(usage, critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not usage.ca,
                key_cert_sign=usage.ca,
                crl_sign=usage.ca,
                encipher_only=False,
                decipher_only=False,
                **rights,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(of, critical=False)
    )


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
