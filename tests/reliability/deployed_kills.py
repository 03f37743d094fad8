"""Real federations whose server or nodes are killed: do they end with the very bits of a simulation?

    python tests/reliability/deployed_kills.py 20 --seed 0            20 runs, each struck by kill -9
    python tests/reliability/deployed_kills.py 20 --seed 0 --only 7   one of them again, with what everybody said

`polycentric serve` and three `polycentric join` as processes of their own, with keys and TLS, on this machine. In every
run one of them is killed,

    the server   before, amid or after a touch of the run's folder (see `kills.py`), or at a random moment
    a node       as a letter comes, once it is counted, amid and after what it keeps, once it has answered, or at random
    the engine   the server's superlink or door, or a node's supernode, at a random moment: they are started again

and whoever was killed is started again by the same command. The run must end with exit code 0, its record must be that
of a simulation in blocks of one, tensor by tensor, and all else that it leaves that of a served run that nobody
disturbed. Nodes go on from run to run; in the end they are told to stop, and must.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from net import command, differences
from reliability.forked import Child, counted, dice_of, found_in, start, warm
from reliability.kills import Touches

NODES, ROUNDS, LONGEST = 3, 3, 200.0
NAMES = [f"ward-{k}" for k in range(NODES)]
DATA = "--data digits --partition dirichlet=1+sample=240 --clients 3".split()
METHODS = {
    "fedavg": "lr = 0.1",
    "lg-fedavg": "lr = 0.1",
    "fesem": "k = 2",
    "dpa-sgd": "lr = 0.05",
    "fedmes": 'cells = "regions(0:1 1:1 0+1:1)"',
    "feddane": "lr = 0.01",
}
AT_NODE = ("as it comes", "counted", "amid keeping", "kept", "answered")
WHO = [
    "server",
    "node",
    "server, at random",
    "node",
    "server",
    "node, at random",
    "superlink",
    "server",
    "node",
    "door",
]
WHO += ["server", "node", "server, at random", "supernode"]


def dying(point: str, nth: int) -> None:
    """In a node's process: death at the nth time that it comes to a point."""
    from polycentric.deploy import node as at_node
    from polycentric.deploy.node import Keeper
    from polycentric.deploy.participant import Participant

    count = Counter[str]()

    def at(here: str) -> bool:
        count[here] += 1
        return here == point and count[here] == nth

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    answer, ask, renamed = Participant.answer, Keeper.ask, at_node.renamed

    def answering(self: Participant, parcel: Any) -> Any:
        letters = len(parcel) > 1  # a greeting is none
        if letters and at("as it comes"):
            die()
        found = answer(self, parcel)
        if letters and at("answered"):
            die()
        return found

    def asking(self: Keeper, *given: Any) -> None:
        ask(self, *given)
        if at("counted"):
            die()

    def keeping(path: Path, write: Callable[[Path], object]) -> str:
        if at("amid keeping"):
            path.with_name(f".{path.name}.half.tmp").write_bytes(b"half")
            die()
        found = renamed(path, write)
        if at("kept"):
            die()
        return found

    Participant.answer, Keeper.ask, at_node.renamed = answering, asking, keeping  # type: ignore[method-assign]


class Place:
    """Keys, a port, and three nodes that stay."""

    def __init__(self, root: Path) -> None:
        from polycentric.deploy.engine.children import free_port
        from polycentric.deploy.first_look import make_keys

        self.root, self.port, self.n = root, free_port(), 0
        self.doors = [self.port] * NODES  # where every node knocks
        self.states = [root / f"{name} state" for name in NAMES]
        self.waits = {"--deadline": "120", "--wait": "120"}
        self.keys, self.public = make_keys(root, NAMES)
        self.nodes: dict[int, Child] = {}
        self.codes: list[int] = []  # of nodes that were told to stop

    def said(self, what: str) -> Path:
        self.n += 1
        return self.root / f"said {self.n} {what}"

    def join(self, k: int, before: Callable[[], object] | None = None) -> None:
        """Start a node."""
        name = NAMES[k]
        words = ["join", "--server", f"127.0.0.1:{self.doors[k]}", *DATA, "--client", str(k)]
        words += ["--ca", str(self.keys / "ca.crt"), "--key", str(self.root / name / f"{name}.key")]
        words += ["--state", str(self.states[k]), "--device", "cpu"]
        self.nodes[k] = start(words, self.said(name), before)

    def leave(self, k: int) -> None:
        """Tell a node to stop."""
        self.nodes[k].kill(signal.SIGTERM)
        self.codes.append(self.nodes.pop(k).wait(30).code)

    def serve(self, method: str, out: Path, before: Callable[[], object] | None = None) -> Child:
        """Start a server."""
        config = self.root / f"{method}.toml"
        config.write_text(
            f'method = "{method}"\nmodel = "mlp"\nrounds = {ROUNDS}\nevaluate_every = 1\nfine_tune = 0\n'
            f"set = {{{METHODS[method]}}}\n"
        )
        words = ["serve", str(config), "--keys", str(self.keys), "--nodes", str(self.public), "--quiet"]
        words += ["--port", str(self.port), *chain.from_iterable(self.waits.items()), "--out", str(out)]
        return start(words, self.said("server"), before)

    def end(self) -> None:
        for k in list(self.nodes):
            self.leave(k)


def alive(child: Child) -> bool:
    """Whether our child runs; it is not reaped by asking."""
    found = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return found is None


def programs(child: Child, name: str) -> list[int]:
    """Processes that ours has started, by the name of their program."""
    found = []
    with suppress(OSError):
        for word in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split():
            if name in Path(f"/proc/{word}/cmdline").read_bytes().decode("utf-8", "replace").split("\0"):
                found.append(int(word))
    return found


class Struck:
    """Runs of one place, each struck once."""

    def __init__(self, place: Place, seed: int) -> None:
        self.place, self.seed = place, seed
        self.whole: dict[str, dict[str, Any]] = {}
        self.touches: dict[str, int] = {}

    def undisturbed(self, method: str) -> dict[str, Any]:
        """What a served run leaves that nobody disturbs; it is the simulated one."""
        if method not in self.whole:
            out, record = self.place.root / f"whole-{method}", self.place.root / "touches"
            ended = self.place.serve(method, out, Touches(out, record=record).install).wait(LONGEST)
            assert ended.code == 0, f"{method} does not run: {ended.err[-500:]}"
            self.touches = json.loads(record.read_text())
            plain = self.place.root / f"plain-{method}"
            config = str(self.place.root / f"{method}.toml")
            words = ["--executor", "looped", "--block", "1", "--record", "--quiet", "--device", "cpu"]
            command("run", config, *DATA, *words, "--out", str(plain))
            self.whole[method] = {"found": left_by(out), "plain": plain}
            assert not (wrong := self.wrong(method, out)), f"{method}, undisturbed: {wrong}"
        return self.whole[method]

    def wrong(self, method: str, out: Path) -> str:
        """What a run has other than a simulation and an undisturbed run; empty: nothing."""
        if other := self.other_bits(method, out):
            return other
        moved = differences(self.whole[method]["found"], left_by(out))
        return f"{len(moved)} results have moved: {'; '.join(moved[:3])}" if moved else ""

    def other_bits(self, method: str, out: Path) -> str:
        """What was sent, or came of it, that a simulation has otherwise, tensor by tensor; empty: nothing."""
        from polycentric.runs.record import verify

        found = verify(out, self.whole[method]["plain"])
        if found.difference is not None:
            return f"another {found.difference.tensor} of {found.difference.what} in round {found.difference.round}"
        return "" if found.rounds == ROUNDS else f"{found.rounds} rounds in its record"

    def case(self, number: int) -> dict[str, Any]:
        """One run: struck, gone on with, compared."""
        dice, method = dice_of("deployed", self.seed, number), list(METHODS)[number % len(METHODS)]
        self.undisturbed(method)
        place, who = self.place, WHO[number % len(WHO)]
        told, out = "", place.root / f"run-{number}"
        for turn in range(3):  # a moment that does not come is drawn again
            k, struck = dice.randrange(NODES), ""
            shutil.rmtree(out, ignore_errors=True)
            before = self._armed(who, method, k, dice, out, turn)
            server = place.serve(method, out, before)
            if before is None:
                struck = self._strike(who, server, k, out, dice)
            end = time.monotonic() + LONGEST
            while alive(server) and alive(place.nodes[k]) and time.monotonic() < end:
                time.sleep(0.02)
            dead = "" if alive(place.nodes[k]) else "node"
            if dead:
                place.nodes.pop(k).wait()
                place.join(k)
                struck = struck or self.point
            code = server.wait(LONGEST)
            if code.code == -signal.SIGKILL:
                struck = struck or self.point
                code = place.serve(method, out).wait(LONGEST)
            told += f"{who}, {struck or 'not struck'}: {code.code} {code.err.strip()[-300:]}\n"
            if struck or code.code:
                break
        wrong = f"exit code {code.code}: {code.err.strip()[-300:]}" if code.code else ""
        wrong = wrong or ("" if struck else "it was not struck") or self.wrong(method, out)
        shutil.rmtree(out, ignore_errors=True)
        return {"number": number, "name": f"{method}: {who}, {struck}", "wrong": wrong, "told": told.splitlines()}

    def _armed(
        self, who: str, method: str, k: int, dice: random.Random, out: Path, turn: int
    ) -> Callable[[], object] | None:
        """What the server dies of, at a touch; a node that will die at a point is started anew."""
        self.point = ""
        if who == "server":
            kinds = sorted(self.touches)
            kind = dice.choice([one for one in kinds if "lock" not in one] if dice.random() < 0.9 else kinds)
            nth = 1 if turn else dice.randint(1, self.touches[kind])
            self.point = f"{kind}, {nth}"
            return Touches(out, {"signal": signal.SIGKILL, "at": kind, "nth": nth}).install
        if who == "node":
            keeps = method in ("lg-fedavg",)
            point, nth = dice.choice(AT_NODE if keeps else (AT_NODE[0], AT_NODE[1], AT_NODE[4])), dice.randint(1, 3)
            self.point = f"{point}, {nth}"
            self.place.leave(k)
            self.place.join(k, lambda: dying(point, nth))
            return int  # a server that is as ever
        return None

    def _strike(self, who: str, server: Child, k: int, out: Path, dice: random.Random) -> str:
        """Kill somebody at a random moment: while it starts, or in some round."""
        done, more = dice.randint(0, ROUNDS), dice.random()
        while alive(server) and rounds_of(out) < done:
            time.sleep(0.05)
        time.sleep(more * (1.0 if done else 8.0 if who == "server, at random" else 3.0))
        if not alive(server):
            return ""
        moment = f"{more:.2f} into {f'round {done}' if done else 'the beginning'}"
        if who == "server, at random":
            server.kill()
            return moment
        if who == "node, at random":
            self.place.nodes[k].kill()
            return moment
        child, mark = (self.place.nodes[k], "supernode") if who == "supernode" else (server, who)
        found = programs(child, "superlink" if mark == "superlink" else mark) or programs(child, _file(mark))
        for pid in found[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return moment if found else ""


def rounds_of(out: Path) -> int:
    """How many lines of metrics a run has written."""
    with suppress(OSError):
        return len((out / "metrics.jsonl").read_bytes().splitlines())
    return 0


def _file(name: str) -> str:
    from polycentric.deploy.engine.children import HERE

    return str(HERE / f"{name}.py")


def left_by(out: Path) -> dict[str, Any]:
    """What a run left but for its times, and for nodes.json, which says who was there when."""
    found = found_in(out)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    found["metrics.jsonl"] = [{key: row[key] for key in row if key != "simulated_seconds"} for row in rows]
    found["summary"].pop("simulated_seconds", None)
    found["files"].pop("nodes.json", None)
    return found


def deployed_kills(n: int, seed: int = 0, jobs: int = 1, only: int | None = None, first: int = 0) -> dict[str, Any]:
    """How many of n struck runs ended as if nobody had disturbed them, and which did not."""
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="deployed-"))
    try:
        warm(root)
        place = Place(root)
        try:
            for k in range(NODES):
                place.join(k)
            runs = Struck(place, seed)
            found = [runs.case(number) for number in (range(first, first + n) if only is None else [only])]
        finally:
            place.end()
        if any(place.codes):
            found.append({"number": -1, "name": "nodes", "wrong": f"they ended with {place.codes}", "told": []})
    finally:
        shutil.rmtree(root, ignore_errors=True)
    again = f"python tests/reliability/deployed_kills.py 1 --seed {seed} --only"
    bad = [
        {"name": one["name"], "wrong": one["wrong"], "again": f"{again} {one['number']}"}
        for one in found
        if one["wrong"]
    ]
    return {
        "of": sum(one["number"] >= 0 for one in found),
        "bad": bad,
        "moments": [one["name"] for one in found],
        "seconds": round(time.monotonic() - began, 1),
        **({"told": found[0]["told"]} if only is not None else {}),
    }


def told(found: dict[str, Any]) -> str:
    """The counts for people."""
    lines = [*found["moments"], f"{found['of'] - len(found['bad'])} of {found['of']} struck runs ended bit for bit"]
    return "\n".join(lines) + f"; {found['seconds']:.0f} s"


if __name__ == "__main__":
    sys.exit(counted(deployed_kills, "runs", 1, told))
