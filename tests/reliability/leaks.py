"""After everything has gone wrong: what of secrets and data is in logs, the run's folder, and what the server received?

    python tests/reliability/leaks.py 1           one federation that fails in many ways
    python tests/reliability/leaks.py 1 --only 0  the same, with what everybody said

A server, and three nodes as processes of their own, with keys and TLS, on this machine; each node has a table of its
own with numbers that nobody else has. Failures are provoked: a model of the user's own that raises an error with the
examples in its words, one node that does not agree to the method, one whose files are damaged, letters that are none,
and a key that is not known. Then everything is searched that the server received, wrote or logged, and what the
engine's programs logged on either side:

    secrets   private keys, what the programs on a machine share, and what noise is drawn from: in no log, in nothing
              that was received, and in no folder of a run
    data      numbers of the examples, as text and as bytes of two kinds, words of the errors, and paths of nodes: with
              the server nowhere
    code      `pickle`, its relatives, and `torch.load` in the library's source
"""

from __future__ import annotations

import ast
import shutil
import struct
import sys
import tempfile
import threading
import time
import warnings
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import polycentric
from polycentric.deploy.engine.children import free_port
from polycentric.deploy.engine.link import Link
from polycentric.deploy.engine.member import Member
from polycentric.deploy.keys import make_node, make_server
from polycentric.deploy.serve import Waiting, serve
from polycentric.errors import Diverged, UsageError
from polycentric.runs.settings import Settings
from reliability.forked import counted, dice_of

NODES, ROWS = 3, 40
WORDS = "patient 4711 of ward 9"  # said by errors
OWN = '''
import os
import torch
from torch import nn


class Net(nn.Module):
    """Fails with the examples in its words, as long as a file is there."""

    def __init__(self, shape, n_outputs):
        super().__init__()
        self.first, self.layer = nn.Linear(shape[0], 5), nn.Linear(5, n_outputs)

    def forward(self, x):
        if torch.is_grad_enabled() and os.path.exists(os.environ.get("LEAK", "")):
            raise ValueError(f"{words}: {{x[:2].tolist()}} in {{os.getcwd()}}")
        return self.layer(self.first(x).relu())
'''


class Place:
    """Keys, tables, nodes as processes, and all that is said and received."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.port, self.dice = root, free_port(), dice_of("leaks", seed)
        self.received: list[bytes] = []
        self.lines: list[str] = []
        self.numbers: list[float] = []
        self.processes: list[Any] = []
        make_server(root / "server-keys", ["localhost"])
        (root / "public").mkdir(mode=0o700)
        (root / "code").mkdir()
        (root / "code" / "mine_leaks.py").write_text(OWN.format(words=WORDS))
        for k in range(NODES + 1):
            home = root / f"home-{k}"
            home.mkdir()
            make_node(home / "key", f"ward-{k}")
            if k < NODES:
                shutil.copy(home / "key" / f"ward-{k}.pub", root / "public")
            rows = [[round(self.dice.uniform(-3, 3), 6) for _ in range(4)] for _ in range(ROWS)]
            self.numbers += [value for row in rows[:8] for value in row]
            lines = [",".join([*(f"{value:.6f}" for value in row), "yes" if sum(row) > 0 else "no"]) for row in rows]
            (home / "patients.csv").write_text("a,b,c,d,label\n" + "\n".join(lines) + "\n")

    def join(self, k: int, *more: str) -> None:
        """Start a node, with its log in its own home."""
        import os
        import subprocess

        home = self.root / f"home-{k}"
        command = [sys.executable, "-m", "polycentric", "join", "--server", f"127.0.0.1:{self.port}", "--trust"]
        command += [
            "--data",
            "patients.csv",
            "--target",
            "label",
            "--ca",
            str(self.root / "server-keys/ca.crt"),
            "--state",
            "state",
        ]
        command += ["--key", f"key/ward-{k}.key", *more]
        path = os.pathsep.join([str(self.root / "code"), os.environ.get("PYTHONPATH", "")])
        env = os.environ | {"PYTHONPATH": path, "LEAK": str(self.root / "fails"), "OMP_NUM_THREADS": "1"}
        with (home / "said.log").open("ab") as said:
            self.processes.append(subprocess.Popen(command, cwd=home, env=env, stdout=said, stderr=said))

    def heard(self, line: str) -> None:
        self.lines.append(line)
        if "asked again" in line:
            (self.root / "fails").unlink(missing_ok=True)

    def leave(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            with suppress(Exception):
                process.wait(20)
            process.kill()
        self.processes.clear()


def trouble(place: Place) -> None:
    """Runs of which much goes wrong, and one that ends."""
    root, out = place.root, place.root / "runs"
    own: dict[str, Any] = {"model": "mine_leaks:Net", "rounds": 3, "evaluate_every": 1, "fine_tune": 0}
    names = [f"ward-{k}" for k in range(NODES)]
    with ExitStack() as stack:
        link = Link(
            root / "server" / "engine", port=place.port, keys=root / "server-keys", nodes=root / "public",
            log=place.heard,
        )  # fmt: skip
        (root / "server").mkdir(mode=0o700)
        stack.enter_context(link)
        stack.callback(place.leave)
        stack.enter_context(mock.patch.object(Link, "fetch", _listening(place, Link.fetch)))
        sys.path.insert(0, str(root / "code"))
        stack.callback(lambda: sys.path.remove(str(root / "code")))
        for k in range(NODES):
            place.join(k, *(["--method", "fedavg"] if k == 1 else []))
        (root / "fails").touch()  # every training fails, with the examples in its words, until it is asked for again

        def served(method: str, name: str, deadline: float, **words: Any) -> str:
            asked = Settings.of({"method": method, **own, "set": {"lr": 0.1, **words}})
            how = Waiting(2, wait=90, deadline=deadline)
            try:
                serve(asked, link, out / name, how, names=names, log=place.heard, trust=True)
            except (UsageError, Diverged) as error:
                place.lines.append(str(error))
                return str(error)
            return ""

        served("fedavg", "first", 4.0)
        served("lg-fedavg", "second", 4.0)  # ward-1 refuses it
        for path in (root / "home-0" / "state" / "kept").rglob("*"):
            if path.is_file() and path.name != "secret":
                path.write_bytes(path.read_bytes()[:20])
        served("fedavg", "third", 4.0, hide="dp-sgd(clip=1, noise=1)")
        for peer in link.peers():
            link.send({peer.id: [b"no letter", b"nor this"]}, 5)
        stop, said = threading.Event(), list[str]()
        keys = {"ca": root / "server-keys/ca.crt", "key": root / f"home-{NODES}/key/ward-{NODES}.key"}
        stranger = Member(
            root / f"home-{NODES}" / "engine", lambda parcel: [], server=f"127.0.0.1:{place.port}", **keys,
            log=said.append,
        )  # fmt: skip
        thread = threading.Thread(target=stranger.run, args=(stop,))
        thread.start()
        end = time.monotonic() + 15
        while time.monotonic() < end and not any("let this node in" in line for line in said):
            link.fetch()
            time.sleep(0.1)
        stop.set()
        thread.join(20)
        place.secrets = [root / "server/engine/secret", *(root / f"home-{k}/state/engine/secret" for k in range(NODES))]
        place.shared = [path.read_bytes() for path in place.secrets if path.is_file()]


def _listening(place: Place, real: Callable[[Link], Any]) -> Callable[[Link], Any]:
    def fetch(link: Link) -> Any:
        found = real(link)
        place.received += [one for _, parcel in found for one in parcel]
        return found

    return fetch


# -- what is looked for, and where -------------------------------------------------------------------------------


def secrets_of(place: Place) -> dict[str, list[bytes]]:
    """Every secret in the forms in which it could be written."""
    found: dict[str, list[bytes]] = {}
    for path in sorted(place.root.rglob("*.key")):
        lines = [line for line in path.read_text().splitlines() if line and "-----" not in line]
        body = b64decode("".join(lines))
        found[str(path.relative_to(place.root))] = [lines[len(lines) // 2].encode(), body[-60:-20], b"PRIVATE KEY"]
    raw = {str(path.relative_to(place.root)): path.read_bytes() for path in place.root.rglob("secret")}
    raw |= {path.name: path.read_bytes() for path in (place.root / "runs").glob("*.secret")}
    raw |= {f"shared {k}": data for k, data in enumerate(place.shared)}
    for name, data in raw.items():
        found[name] = [data, data.hex().encode(), b64encode(data).rstrip(b"=")]
    return found


def data_of(place: Place) -> dict[str, list[bytes]]:
    """Numbers of examples, words of errors, paths of nodes."""
    found = {"the words of an error": [WORDS.encode(), b"Traceback"]}
    found |= {f"a path of ward-{k}": [str(place.root / f"home-{k}").encode()] for k in range(NODES + 1)}
    found |= {"the name of a file": [b"patients.csv"]}
    for value in place.numbers:
        forms = [f"{value:.6f}".encode()[:9], struct.pack("<f", value), struct.pack("<d", value)]
        forms.append(repr(struct.unpack("<f", struct.pack("<f", value))[0])[:10].encode())
        found[f"the number {value}"] = forms
    return found


def places_of(place: Place) -> Iterator[tuple[str, bytes, bool]]:
    """(where, what stands there, whether it is with the server)."""
    yield "what the server received", b"\n".join(place.received), True
    yield "what the server said", "\n".join(place.lines).encode(), True
    kept = {"server-keys", "public", "code"}
    for path in sorted(place.root.rglob("*")):
        name = str(path.relative_to(place.root))
        if (
            not path.is_file()
            or name.partition("/")[0] in kept
            or path.name == "secret"
            or path.suffix in (".key", ".secret")
        ):
            continue
        if name.startswith(("server/", "runs/")):
            yield name, path.read_bytes(), True
        elif path.suffix in (".log", ".old"):
            yield name, path.read_bytes(), False


def found_in(place: Place) -> list[str]:
    """Every secret and piece of data that is where it should not be."""
    secret, data, wrong = secrets_of(place), data_of(place), []
    for where, text, with_server in places_of(place):
        for what, forms in (secret | (data if with_server else {})).items():
            wrong += [f"{what} in {where}" for form in forms if form in text][:1]
    return wrong


def code_in_library() -> list[str]:
    """Where the library could run what it reads."""
    pickles, wrong = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}, []
    package = Path(polycentric.__file__).parent
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong += [f"{path.name} imports {name}" for name in names if name.partition(".")[0] in pickles]
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "torch.save"):
                wrong.append(f"{path.name} names {ast.unparse(node)}")
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
                wrong.append(f"{path.name} allows pickles")
    return wrong


def leaks(n: int, seed: int = 0, jobs: int = 1, only: int | None = None) -> dict[str, Any]:
    """How many secrets and pieces of data were found in so many federations, and what of the library runs code."""
    began, bad, told, looked, size = time.monotonic(), list[str](), list[str](), 0, 0
    for number in range(n):
        root = Path(tempfile.mkdtemp(prefix="leaks-")).resolve()
        place = Place(root, seed + number)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trouble(place)
            bad += found_in(place)
            looked += len(secrets_of(place)) + len(data_of(place))
            size += sum(len(text) for _, text, _ in places_of(place))
            said = [path.read_text() for path in sorted(root.glob("home-*/said.log"))]
            told += [*place.lines, *said]
            if not any(WORDS in text for text in said) or not place.received:
                bad.append("nothing went wrong, so nothing was found")  # an instrument that is broken
            if "left out" not in "\n".join(place.lines) or "refused" not in "\n".join(said):
                bad.append("nobody was left out, or refused")
        finally:
            shutil.rmtree(root, ignore_errors=True)
    bad += code_in_library()
    again = f"python tests/reliability/leaks.py 1 --seed {seed} --only 0"
    found = {"of": looked, "bad": [{"name": "leak", "wrong": one, "again": again} for one in bad], "bytes": size}
    found |= {"seconds": round(time.monotonic() - began, 1)}
    return found | ({"told": told} if only is not None else {})


def told(found: dict[str, Any]) -> str:
    """The counts for people."""
    return (
        f"{len(found['bad'])} of {found['of']} secrets and pieces of data, or code in data, were found in "
        f"{found['bytes']:,} bytes; {found['seconds']:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(counted(leaks, "federations", 1, told))
