"""Keys that TLS and OpenSSH take, files that only their owner reads, and nothing overwritten or shown."""

from __future__ import annotations

import base64
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="keys need the extra deploy")

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from polycentric.cli.listing import examine
from polycentric.deploy import keys
from polycentric.deploy.check_keys import check_keys
from polycentric.deploy.key_files import ssh_fingerprint
from polycentric.deploy.keys import checked_host, make_node, make_server, renew
from polycentric.errors import UsageError

HOSTS = ["hospital.example", "10.0.0.5", "2001:db8::7"]
NOW = datetime.now(UTC)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server's folder that no test changes."""
    folder = tmp_path_factory.mktemp("server") / "keys"
    make_server(folder, HOSTS)
    return folder


@pytest.fixture
def server(made: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    folder = tmp_path / "keys"
    shutil.copytree(made, folder)  # with its modes
    folder.chmod(0o700)
    return folder


@pytest.fixture
def node(tmp_path: Path) -> Path:
    make_node(tmp_path / "node", "ward-3")
    return tmp_path / "node"


def bytes_in(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {p.name: (p.read_bytes(), stat.S_IMODE(p.stat().st_mode)) for p in sorted(folder.iterdir())}


def refused(act: Callable[[], Any]) -> str:
    with pytest.raises(UsageError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- TLS -----------------------------------------------------------------------------------------------------


def handshake(folder: Path, trusted: Path, name: str) -> str:
    """What a client says that trusts an authority and calls a server by a name; empty: they shook hands."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "server.crt", folder / "server.key")
    asking = ssl.create_default_context(cafile=str(trusted))
    asking.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python does from 3.13 on
    here, there = socket.socketpair()
    for end in (here, there):
        end.settimeout(20)

    def serve() -> None:
        try:
            with serving.wrap_socket(there, server_side=True) as wrapped:
                wrapped.sendall(b"well met")
        except OSError:
            there.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with asking.wrap_socket(here, server_hostname=name) as wrapped:
            assert wrapped.recv(8) == b"well met"
        return ""
    except ssl.SSLCertVerificationError as error:
        return str(error.verify_message)
    finally:
        here.close()
        thread.join()


def test_a_client_that_trusts_the_authority_reaches_the_server_by_every_name(made: Path) -> None:
    for name in [*HOSTS, "localhost", "127.0.0.1"]:
        assert handshake(made, made / "ca.crt", name) == ""


def test_another_name_or_another_authority_is_refused(made: Path, server: Path, tmp_path: Path) -> None:
    for name in ("clinic.example", "a.hospital.example", "10.0.0.6"):
        assert "mismatch" in handshake(made, made / "ca.crt", name)
    make_server(tmp_path / "other", HOSTS)
    assert "issuer" in handshake(made, tmp_path / "other" / "ca.crt", HOSTS[0])


def test_only_leaves_this_machine_out(tmp_path: Path) -> None:
    make_server(tmp_path / "one", ["hospital.example"], only=True)
    assert handshake(tmp_path / "one", tmp_path / "one" / "ca.crt", "hospital.example") == ""
    assert "mismatch" in handshake(tmp_path / "one", tmp_path / "one" / "ca.crt", "localhost")


def test_an_expired_certificate_is_refused_until_it_is_renewed(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    make_server(folder, HOSTS, days=30, now=NOW - timedelta(days=31))
    assert "expired" in handshake(folder, folder / "ca.crt", HOSTS[0])
    trusted = (folder / "ca.crt").read_bytes()
    renew(folder)
    assert handshake(folder, folder / "ca.crt", HOSTS[0]) == ""
    assert (folder / "ca.crt").read_bytes() == trusted  # nodes need nothing new


def test_a_clock_that_is_behind_by_less_than_an_hour_is_no_trouble(tmp_path: Path) -> None:
    for ahead, good in ((55, True), (65, False)):
        folder = tmp_path / str(ahead)
        make_server(folder, HOSTS, now=datetime.now(UTC) + timedelta(minutes=ahead))
        assert (handshake(folder, folder / "ca.crt", HOSTS[0]) == "") == good


def test_openssl_and_ssh_keygen_say_the_same(made: Path, node: Path, say: Any) -> None:
    if not shutil.which("openssl") or not shutil.which("ssh-keygen"):
        pytest.skip("neither openssl nor ssh-keygen is here")

    def other(*words: str) -> str:
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    assert "OK" in other("openssl", "verify", "-x509_strict", "-CAfile", f"{made}/ca.crt", f"{made}/server.crt")
    fingerprint = other("openssl", "x509", "-in", f"{made}/ca.crt", "-noout", "-fingerprint", "-sha256")
    assert fingerprint.strip().partition("=")[2] in say("keys", "show", f"{made}/ca.crt").out
    for file in ("ward-3.key", "ward-3.pub"):
        listed = other("ssh-keygen", "-lf", f"{node}/{file}").split()
        assert listed[0] == "384" and listed[1] in say("keys", "show", f"{node}/{file}").out


# -- nodes ---------------------------------------------------------------------------------------------------


def test_a_nodes_key_is_read_again_and_signs(node: Path) -> None:
    key = serialization.load_ssh_private_key((node / "ward-3.key").read_bytes(), password=None)
    public = serialization.load_ssh_public_key((node / "ward-3.pub").read_bytes())
    assert isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(public, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp384r1"
    public.verify(key.sign(b"words", ec.ECDSA(hashes.SHA256())), b"words", ec.ECDSA(hashes.SHA256()))
    assert (node / "ward-3.pub").read_text().endswith(" ward-3\n")


def test_every_key_is_another(tmp_path: Path) -> None:
    prints = {make_node(tmp_path / "n", f"ward-{k}")[f"ward-{k}.pub"].fingerprint for k in range(3)}
    assert len(prints) == 3


# -- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_secrets_are_their_owners_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make_server(tmp_path / "a/b/keys", HOSTS)
        make_node(tmp_path / "a/b/keys", "ward-3")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / p).stat().st_mode) for p in ("a", "a/b", "a/b/keys")] == [0o700] * 3
    modes = {name: mode for name, (_, mode) in bytes_in(tmp_path / "a/b/keys").items()}
    assert modes == {
        **dict.fromkeys(("ca.key", "server.key", "ward-3.key"), 0o600),
        **dict.fromkeys(("ca.crt", "server.crt", "ward-3.pub"), 0o644),
    }


def test_nothing_is_overwritten(server: Path, node: Path) -> None:
    before = bytes_in(server), bytes_in(node)
    assert "polycentric keys renew" in refused(lambda: make_server(server, ["other.example"]))
    assert "choose another --name" in refused(lambda: make_node(node, "ward-3"))
    assert (bytes_in(server), bytes_in(node)) == before


def test_of_two_at_once_one_makes_the_keys_and_the_other_leaves_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other comes between the look at the folder and the first file."""
    folder, look = tmp_path / "keys", keys._refuse_what_is_there

    def late(*arguments: Any) -> None:
        look(*arguments)
        monkeypatch.setattr(keys, "_refuse_what_is_there", look)
        make_server(folder, HOSTS)
        first.update(bytes_in(folder))

    first: dict[str, Any] = {}
    monkeypatch.setattr(keys, "_refuse_what_is_there", late)
    assert "never overwritten" in refused(lambda: make_server(folder, ["other.example"]))
    assert len(first) == 4 and bytes_in(folder) == first


@pytest.mark.parametrize("files", range(1, 4))
def test_a_killed_process_leaves_what_the_next_one_says_to_remove(server: Path, files: int, say: Any) -> None:
    for name in list(keys.OF_SERVER)[files:]:
        (server / name).unlink()
    message = refused(lambda: make_server(server, HOSTS))
    assert "half made" in message and all(name in message for name in keys.OF_SERVER)
    for path in message.rpartition("rm ")[2].split():  # as it says
        Path(path).unlink()
    make_server(server, HOSTS)
    assert all(check.good for check in check_keys(server))


def test_a_file_that_was_cut_off_is_half_made_too(server: Path, node: Path) -> None:
    os.truncate(server / "server.crt", 100)
    assert "lacks a whole server.crt: " in refused(lambda: make_server(server, HOSTS))
    os.truncate(node / "ward-3.key", 0)
    assert "lacks a whole ward-3.key: " in refused(lambda: make_node(node, "ward-3"))


def test_where_something_fails_all_is_as_it_was(server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every file; a renewal, too, however far it came."""
    before, fchmod = bytes_in(server), os.fchmod

    def full_at(n: int) -> None:  # the file is there, and empty
        count = iter(range(100))

        def full(file: int, mode: int) -> None:
            if next(count) == n:
                raise OSError(28, "No space left on device")
            fchmod(file, mode)

        monkeypatch.setattr(os, "fchmod", full)

    for n in range(4):
        full_at(n)
        with pytest.raises(OSError, match="No space"):
            make_server(tmp_path / "new/keys", HOSTS)
        assert not (tmp_path / "new").exists()
    for n in range(2):
        full_at(n)
        with pytest.raises(OSError, match="No space"):
            renew(server)
        assert bytes_in(server) == before


def test_a_disk_that_does_not_keep_modes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fchmod", lambda file, mode: None)
    opened = os.open
    monkeypatch.setattr(os, "open", lambda *a, **k: opened(a[0], a[1], *([0o666] * (len(a) > 2)), **k))
    before = os.umask(0)
    try:
        assert "does not keep the modes" in refused(lambda: make_node(tmp_path / "keys", "ward-3"))
    finally:
        os.umask(before)
    assert not (tmp_path / "keys").exists()


def test_symbolic_links_and_folders_of_others_are_refused(server: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(server)
    assert "symbolic link" in refused(lambda: make_node(tmp_path / "link", "ward-3"))
    (server / "ward-3.key").symlink_to(tmp_path / "elsewhere")
    assert "symbolic link" in refused(lambda: make_node(server, "ward-3"))
    assert not (tmp_path / "elsewhere").exists()
    (server / "ward-3.key").unlink()
    for mode in (0o770, 0o707, 0o750, 0o755, 0o777):
        server.chmod(mode)
        assert f"chmod 700 {server}" in refused(lambda: make_node(server, "ward-3"))
        assert f"chmod 700 {server}" in refused(lambda: renew(server))
    server.chmod(0o700)
    shared = tmp_path / "shared"
    shared.mkdir()
    for mode, good in ((0o777, False), (0o775, False), (0o1777, True), (0o755, True)):
        shared.chmod(mode)
        if good:
            make_node(shared / f"{mode:o}", "ward-3")
        else:
            assert f"chmod go-w {shared}" in refused(lambda: make_node(shared / "keys", "ward-3"))
            assert list(shared.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert "no folder" in refused(lambda: make_node(tmp_path / "file", "ward-3"))


# -- renewal -------------------------------------------------------------------------------------------------


def test_a_renewal_keeps_the_old_certificate_the_keys_and_the_names(server: Path) -> None:
    before = bytes_in(server)
    certificate, kept = renew(server, days=700)
    assert kept is not None and re.fullmatch(r"server\.crt\.OLD-\d{4}-\d\d-\d\d", kept.name)
    after = bytes_in(server)
    assert after.pop(kept.name) == before["server.crt"]
    assert {name for name in before if before[name] != after.pop(name)} == {"server.crt"} and not after
    assert certificate.names == ["hospital.example", "localhost", "10.0.0.5", "2001:db8::7", "127.0.0.1"]
    assert certificate.days_left(NOW) in (699, 700)
    _, second = renew(server, ["clinic.example"])
    assert second is not None and second.name == f"{kept.name}-2"
    assert handshake(server, server / "ca.crt", "clinic.example") == ""
    assert "mismatch" in handshake(server, server / "ca.crt", "hospital.example")
    assert all(check.good for check in check_keys(server))


def test_a_renewal_that_cannot_be_is_refused_and_changes_nothing(server: Path, tmp_path: Path) -> None:
    make_server(tmp_path / "other", HOSTS)

    def says(words: str, **given: Any) -> None:
        before = bytes_in(server)
        assert words in refused(lambda: renew(server, **given))
        assert bytes_in(server) == before

    says("--days 3", now=NOW + timedelta(days=3652 - 3), days=365)
    says("make another", now=NOW + timedelta(days=3653))
    says("give --host", only=True)
    (server / "server.crt.new").write_text("")
    says(f"rm {server}/server.crt.new")
    (server / "server.crt.new").unlink()
    shutil.copy(tmp_path / "other" / "ca.key", server)
    says("ca.key is not the key of")
    (server / "ca.key").write_text("")
    says("holds no private key")
    (server / "ca.key").unlink()
    says("ca.key is not there")
    shutil.copy(tmp_path / "other" / "ca.key", server)
    shutil.copy(tmp_path / "other" / "ca.crt", server)
    os.truncate(server / "server.crt", 10)
    says("give --host")
    assert "cannot be opened" in refused(lambda: renew(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


# -- what is typed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["", ".", "a b", "a..b", "-a.example", "a-.example", "https://a.example", "a.example:8000", "*.example", "a_b",
     "a/b", "a\x1b[31m", "a\n", "ä.example", "10.0.0.500", "1.2.3", "fe80::1%eth0", "0.0.0.0", "::", "224.0.0.1",
     "a" * 64 + ".example", ".".join(["a" * 60] * 5)],
)  # fmt: skip
def test_what_is_no_host_is_refused(host: str, tmp_path: Path) -> None:
    assert "--host" in refused(lambda: make_server(tmp_path / "keys", [host]))
    assert not (tmp_path / "keys").exists()


def test_hosts_are_written_in_one_way() -> None:
    assert [checked_host(h) for h in ("A.Example", "2001:DB8:0::1", "x", "xn--bcher-kva.example")] == [
        "a.example", "2001:db8::1", "x", "xn--bcher-kva.example",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "a\\b", "a\x00", "a\n", "\x1b[31m", "a b", "-a", ".a", "a.", "ä", "CA",
             "server", "a" * 65]
)  # fmt: skip
def test_what_is_no_name_of_a_node_is_refused(name: str, tmp_path: Path) -> None:
    assert "--name" in refused(lambda: make_node(tmp_path / "keys", name))
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("days", [-1, 0, 826, 10**30])
def test_days_have_bounds(days: int, server: Path, tmp_path: Path) -> None:
    assert "1 to 825" in refused(lambda: make_server(tmp_path / "new", HOSTS, days=days))
    assert "1 to 825" in refused(lambda: renew(server, days=days))


def test_without_cryptography_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, say: Any, tmp_path: Path
) -> None:
    for module in [m for m in sys.modules if m.startswith(("cryptography", "polycentric.deploy."))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    ended = say("keys", "node", "--name", "ward-3", "--out", str(tmp_path / "keys"))
    assert ended.code == 2 and len(ended.lines) == 1 and "pip install 'polycentric[deploy]'" in ended.err
    assert not (tmp_path / "keys").exists()


# -- what is shown -------------------------------------------------------------------------------------------


def secrets_of(folder: Path) -> set[str]:
    """Pieces of every private key in a folder, in the forms in which one could be shown."""
    pieces = set()
    for path in folder.glob("*.key"):
        lines = path.read_text().splitlines()[1:-1]
        pieces |= {line[i : i + 16] for line in lines for i in range(0, len(line) - 16, 4)}
        ssh = "OPENSSH" in path.read_text()
        load = serialization.load_ssh_private_key if ssh else serialization.load_pem_private_key
        key = load(path.read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        number = key.private_numbers().private_value
        raw = number.to_bytes(48, "big")
        pieces |= {str(number), raw.hex(), base64.b64encode(raw).decode()[:40], raw.hex(":")[:40]}
        public = (
            key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
        )
        pieces = {piece for piece in pieces if piece not in public}  # OpenSSH's form holds the public part, too
    return pieces


def test_no_message_holds_a_secret(tmp_path: Path, say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = [say("keys", "server", "--host", "hospital.example"), say("keys", "node", "--name", "ward-3")]
    said += [say("keys", "server", "--host", "hospital.example"), say("keys", "node", "--name", "ward-3")]
    said += [say("keys", "renew", "keys"), say("keys", "show", "keys"), say("keys", "show", "keys", "--json")]
    said += [say("keys", "show", f"keys/{name}.key") for name in ("ca", "server", "ward-3")]
    assert [ended.code for ended in said] == [0, 0, 2, 2, 0, 0, 0, 0, 0, 0]
    assert all(len(ended.lines) == 1 and ended.err.startswith("error: ") for ended in said if ended.code)
    pieces = secrets_of(tmp_path / "keys")
    key = tmp_path / "keys/ward-3.key"
    whole = key.read_bytes()
    for damage in (whole[:-50], whole.replace(b"A", b"B"), whole.replace(b"OPENSSH", b"EC"), whole + whole, whole[40:]):
        key.write_bytes(damage)
        said += [
            say("keys", "show", "keys/ward-3.key"),
            say("keys", "show", "keys"),
            say("keys", "node", "--name", "ward-3"),
        ]
        shown = "".join(f"{check.what} {check.found} {check.advice}" for check in check_keys(tmp_path / "keys"))
        assert not [piece for piece in pieces if piece in shown]
    everything = "".join(ended.out + ended.err for ended in said)
    assert len(pieces) > 100 and not [piece for piece in pieces if piece in everything]


def test_which_file_travels_is_said(tmp_path: Path, say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    server = say("keys", "server", "--host", "hospital.example").out
    assert [line.split()[0] for line in server.splitlines() if "goes to" in line] == ["keys/ca.crt"]
    node = say("keys", "node", "--name", "ward-3").out
    assert [line.split()[0] for line in node.splitlines() if "goes to" in line] == ["keys/ward-3.pub"]
    public = serialization.load_ssh_public_key((tmp_path / "keys/ward-3.pub").read_bytes())
    assert ssh_fingerprint(public) in node


def test_whatever_a_file_holds_it_is_shown_in_words(tmp_path: Path, say: Any) -> None:
    for k, data in enumerate(
        (b"", b"\x00" * 99, b"-----BEGIN CERTIFICATE-----\n", b"ssh-rsa AAAA", b"PRIVATE KEY-----")
    ):
        (tmp_path / str(k)).write_bytes(data)
    ended = say("keys", "show", str(tmp_path))
    assert ended.code == 0 and ended.out.count("neither key nor certificate") == 5
    (tmp_path / "large").write_bytes(b"x" * (1 << 17))
    for what in ("large", "nowhere"):
        ended = say("keys", "show", str(tmp_path / what))
        assert ended.code == 2 and len(ended.lines) == 1


# -- the doctor ----------------------------------------------------------------------------------------------


def bad(folder: Path, now: datetime | None = None) -> dict[str, str]:
    """What is bad, and what to type."""
    return {check.what: f"{check.found}: {check.advice}" for check in check_keys(folder, now) if not check.good}


def test_good_keys_are_good(made: Path, node: Path) -> None:
    assert bad(made) == {} and bad(node) == {}
    shutil.copy(made / "ca.crt", node)  # what a node is given
    assert bad(node) == {}
    assert [check.what for check in check_keys(node)] == [
        "folder", "ca.crt", "ward-3.key", "ward-3.pub", "dates of ca.crt", "ward-3.key and ward-3.pub",
    ]  # fmt: skip


def test_the_authoritys_key_may_be_elsewhere(server: Path) -> None:
    (server / "ca.key").unlink()
    assert bad(server) == {}


@pytest.mark.parametrize(
    ("days", "found"), [(-1, "not valid before"), (300, None), (334, None), (336, "days left"), (366, "ended")]
)
def test_dates_are_looked_at(made: Path, days: int, found: str | None) -> None:
    said = bad(made, NOW + timedelta(days=days))
    if found is None:
        assert said == {}
    else:
        assert found in said["dates of server.crt"]
        assert days < 0 or f"polycentric keys renew {made}" in said["dates of server.crt"]


def test_the_authority_ends_too(made: Path, node: Path) -> None:
    shutil.copy(made / "ca.crt", node)
    later = NOW + timedelta(days=3640)
    assert "give its ca.crt to all nodes" in bad(made, later)["dates of ca.crt"]
    assert "ask the server" in bad(node, later)["dates of ca.crt"]


def test_modes_are_looked_at(server: Path) -> None:
    for name, mode, typed in (("server.key", 0o640, "600"), ("ca.key", 0o604, "600"), ("server.crt", 0o664, "644")):
        right = (server / name).stat().st_mode
        (server / name).chmod(mode)
        assert list(said := bad(server)) == [name] and said[name].endswith(f"chmod {typed} {server / name}")
        (server / name).chmod(right)
    server.chmod(0o755)
    assert list(said := bad(server)) == ["folder"] and said["folder"].endswith(f"chmod 700 {server}")


def test_files_that_do_not_belong_together_are_found(server: Path, node: Path, tmp_path: Path) -> None:
    make_server(tmp_path / "other", HOSTS)

    def with_others(*names: str) -> set[str]:
        kept = {name: (server / name).read_bytes() for name in names}
        for name in names:
            shutil.copy(tmp_path / "other" / name, server)
        found = set(bad(server))
        for name, data in kept.items():
            (server / name).write_bytes(data)
        return found

    assert with_others("server.key") == {"server.key and server.crt"}
    assert with_others("ca.key") == {"ca.key and ca.crt"}
    assert with_others("server.key", "server.crt") == {"server.crt by ca.crt"}
    assert with_others("ca.key", "ca.crt") == {"server.crt by ca.crt"}
    assert with_others("ca.crt") == {"server.crt by ca.crt", "ca.key and ca.crt"}
    make_node(tmp_path / "other", "ward-3")
    shutil.copy(tmp_path / "other" / "ward-3.pub", node)
    assert set(bad(node)) == {"ward-3.key and ward-3.pub"}


def test_a_wrong_server_key_is_mended_as_the_doctor_says(server: Path, tmp_path: Path) -> None:
    make_server(tmp_path / "other", HOSTS)
    shutil.copy(tmp_path / "other" / "server.key", server)
    assert f"polycentric keys renew {server}" in bad(server)["server.key and server.crt"]
    renew(server)
    assert bad(server) == {}


def test_what_is_missing_damaged_or_left_over_is_found(server: Path, node: Path, tmp_path: Path) -> None:
    before = bytes_in(server)

    def after(damage: Callable[[Path], object], name: str) -> str:
        damage(server / name)
        found = bad(server)
        for path in server.iterdir():
            path.unlink()
        for file, (data, mode) in before.items():
            (server / file).write_bytes(data)
            (server / file).chmod(mode)
        assert list(found) == [name]
        return found[name]

    for name in ("ca.crt", "server.key", "server.crt"):
        assert "not there" in after(Path.unlink, name)
    for name in before:
        assert "damaged" in after(lambda path: os.truncate(path, 60), name)
        assert "right file" in after(lambda path: path.write_bytes((node / "ward-3.pub").read_bytes()), name)
        assert "no regular file" in after(lambda path: (path.unlink(), path.symlink_to(node / "ward-3.pub")), name)
    assert f"rm {server}/server.crt.new" in after(lambda path: path.write_text(""), "server.crt.new")
    (node / "ward-3.pub").unlink()
    assert "not there" in bad(node)["ward-3.pub"]
    (tmp_path / "empty").mkdir(0o700)
    assert "polycentric keys server" in bad(tmp_path / "empty")["keys"]
    assert "cannot be opened" in bad(tmp_path / "nowhere")["folder"]


def test_a_key_that_flower_cannot_take_is_found(node: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (node / "ward-3.key").write_bytes(key.private_bytes(*form, serialization.BestAvailableEncryption(b"words")))
    assert "without one" in bad(node)["ward-3.key"]


def test_the_doctor_shows_them_and_exits_by_them(server: Path, say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polycentric.cli.listing._far_from_looped", lambda *_: 0.0)
    assert examine(server)[0]
    (server / "server.key").chmod(0o644)
    ended = say("doctor", "--keys", str(server))
    assert ended.code == 1 and "chmod 600" in " ".join(ended.out.split()) and "bad:" in ended.out
