"""Server and nodes on one machine, each a process of its own, with keys and TLS: a federation for a first look."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..language.files import read_bytes
from ..runs.settings import Settings
from .keys import make_node, make_server

DEALT = ("data", "partition", "clients", "valid", "data_seed")  # what is said to the nodes


def without_data(settings: Settings) -> Settings:
    """The settings of the run without those of the data, which the nodes are told."""
    return settings.changed(**{name: Settings.model_fields[name].default for name in DEALT})


def make_keys(folder: Path, names: list[str]) -> tuple[Path, Path]:
    """Keys of a server on this machine and of its nodes; returns the server's folder and that of the public keys."""
    server, public = folder / "server-keys", folder / "public-keys"
    if not server.exists():
        make_server(server, ["localhost"])
        public.mkdir(mode=0o700)
        for name in names:
            make_node(folder / name, name)
            (public / f"{name}.pub").write_bytes(read_bytes(folder / name / f"{name}.pub"))
    return server, public


@contextmanager
def nodes_beside(folder: Path, settings: Settings, names: list[str], port: int, trust: bool) -> Iterator[None]:
    """Nodes as processes of their own, each with one client of the data, while the block lasts."""
    running, seed = [], settings.seed if settings.data_seed is None else settings.data_seed
    try:
        for number, name in enumerate(names):
            command = [sys.executable, "-m", "polycentric", "join", "--server", f"127.0.0.1:{port}"]
            command += ["--data", settings.data, "--client", str(number), "--clients", str(len(names))]
            command += ["--seed", str(seed), "--valid", str(settings.valid)]
            command += ["--partition", settings.partition] if settings.partition else []
            command += ["--ca", str(folder / "server-keys" / "ca.crt"), "--key", str(folder / name / f"{name}.key")]
            command += ["--state", str(folder / f"{name}-state"), *(["--trust"] if trust else [])]
            with (folder / f"{name}.log").open("ab") as log:
                env = {"OMP_NUM_THREADS": "1"} | dict(os.environ)  # many on one machine
                running.append(subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True))
        yield
    finally:
        for node in running:
            node.terminate()
        for node in running:
            try:
                node.wait(20)
            except subprocess.TimeoutExpired:
                node.kill()
