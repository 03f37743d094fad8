"""Files to start servers and nodes with: their commands are ours, the units are valid, and nginx passes nodes only."""

from __future__ import annotations

import http.client
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from polycentric.cli.app import app
from polycentric.deploy.engine.link import Link
from polycentric.deploy.engine.member import Member
from polycentric.deploy.first_look import make_keys

FILES = Path(__file__).parents[2] / "deployment"
UNITS = sorted(path.name for path in FILES.glob("*.service"))


def commands() -> Iterator[tuple[str, list[str]]]:
    """(file, words) of every command that a file starts, and of those that its comments name in full."""
    for path in sorted(FILES.iterdir()):
        for line in re.sub(r">-\n\s+", "", path.read_text()).splitlines():
            if found := re.search(r"(?:ExecStart=\S*/polycentric|command:|#\s+polycentric) ((?:serve|join) .*)", line):
                yield path.name, shlex.split(found[1])


@pytest.mark.parametrize(("file", "words"), commands(), ids=lambda it: it if isinstance(it, str) else " ".join(it)[:40])
def test_every_command_that_a_file_starts_can_be_typed(file: str, words: list[str]) -> None:
    name, *options = words
    command: Any = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    command.make_context(name, options)


def test_there_are_such_commands() -> None:
    assert {file for file, _ in commands()} == {"compose.yaml", "nginx.conf", *UNITS}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not here")
@pytest.mark.parametrize("name", UNITS)
def test_units_are_valid(name: str, tmp_path: Path) -> None:
    text = (FILES / name).read_text().replace("/opt/polycentric/bin/polycentric", sys.executable)
    (tmp_path / name).write_text(text.replace("User=polycentric", "User=root"))
    found = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / name)], capture_output=True, text=True, timeout=60
    )
    said = [line for line in (found.stdout + found.stderr).splitlines() if name in line]
    assert not said, said


def test_containers_run_as_nobody_in_particular_and_fetch_nothing_when_they_start() -> None:
    text = (FILES / "Dockerfile").read_text()
    last = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER polycentric$", last, re.M) and "pip install" not in last
    assert not re.search(r"^(ADD|ARG|ENV) .*(http|KEY|SECRET|TOKEN)", text, re.M)
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((FILES / "compose.yaml").read_text())["services"]
    for service in services.values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert all(volume.endswith(":ro") or volume.endswith("-state:/state") for volume in service["volumes"])


def test_the_image_is_given_all_that_an_installation_needs() -> None:
    project = tomllib.loads((FILES.parent / "pyproject.toml").read_text())
    needed = {"pyproject.toml", "src", project["project"]["readme"], *project["project"]["license-files"]}
    needed |= {hook["path"] for hook in project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"].values()}
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", (FILES / "Dockerfile").read_text(), re.M)
    assert needed <= {word for line in copied for word in line.split()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not here")
def test_nodes_come_through_nginx_and_nothing_else_does(tmp_path: Path) -> None:
    """The example as it stands, with other paths and ports."""
    pytest.importorskip("flwr")
    keys, public = make_keys(tmp_path, ["ward-0"])
    inner, outer = free_port(), free_port()
    text = (FILES / "nginx.conf").read_text()
    for old, new in (
        ("/etc/polycentric/server", str(keys)),
        ("/run/polycentric-nginx.pid", str(tmp_path / "nginx.pid")),
        ("/var/log/nginx/polycentric.log", str(tmp_path / "nginx.log")),
        ("127.0.0.1:8470", f"127.0.0.1:{inner}"),
        ("listen 8443", f"listen 127.0.0.1:{outer}"),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "nginx.conf").write_text(text)
    command = ["nginx", "-e", str(tmp_path / "nginx.log"), "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    subprocess.run([*command, "-t"], check=True, capture_output=True, timeout=30)
    nginx = subprocess.Popen([*command, "-g", "daemon off;"])
    stop = threading.Event()
    try:
        with Link(tmp_path / "engine", port=inner, keys=keys, nodes=public, log=lambda line: None) as link:
            member = Member(
                tmp_path / "member",
                lambda parcel: [bytes(reversed(one)) for one in parcel],
                server=f"127.0.0.1:{outer}",
                ca=keys / "ca.crt",
                key=tmp_path / "ward-0" / "ward-0.key",
                log=lambda line: None,
            )
            thread = threading.Thread(target=member.run, args=(stop,))
            thread.start()
            try:
                assert exchanged(link, [b"abc", b"x" * (20 << 20)]) == [b"cba", b"x" * (20 << 20)]
            finally:
                stop.set()
                thread.join(60)
            context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
            for path, status in (
                ("/health", 200),
                ("/v1/control/start-run", 404),
                ("/docs", 404),
                ("/v1/fleet/../control", 404),
            ):
                connection = http.client.HTTPSConnection("127.0.0.1", outer, context=context, timeout=10)
                connection.putrequest("GET", path, skip_host=False)
                connection.endheaders()
                found = connection.getresponse().status
                connection.close()
                assert found == status, path
    finally:
        stop.set()
        nginx.terminate()
        nginx.wait(30)


def exchanged(link: Link, parcel: list[bytes]) -> list[bytes]:
    """What the one node answers, once it is there."""
    end = time.monotonic() + 90
    while not any(peer.online for peer in link.peers()) and time.monotonic() < end:
        time.sleep(0.1)
    (peer,) = link.peers()
    link.send({peer.id: parcel}, 60)
    while time.monotonic() < end:
        for _, replies in link.fetch():
            return replies
        time.sleep(0.05)
    raise AssertionError("no reply")
