"""Real federations whose wires are disturbed: do they end with the very bits of a simulation, and in time?

    python tests/reliability/wires.py 12 --seed 0            12 runs, each disturbed once
    python tests/reliability/wires.py 12 --seed 0 --only 7   one of them again, with what everybody said

`polycentric serve` and three `polycentric join` as processes of their own, with keys and TLS, on this machine, and
between them a program that passes bytes on (`wire.py`). Once a share of the bytes of an undisturbed run has passed, so
that a seed finds the same moment again, the wires of one node or of all

    reset, close    end, by RST or FIN, and no new ones come about for up to five seconds
    stall           stay open at both ends, while nothing passes, one way or both; some for longer than a node waits
    slow            pass few bytes a second, each of them late

and are well again. The deadline is two minutes, so that every reply can be used: a run must end with exit code 0, in
the time of an undisturbed one and the deadline at most, with the record of a simulation, tensor by tensor, and all else
that it leaves that of the undisturbed one.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from reliability.deployed_kills import LONGEST, NODES, Place, Struck
from reliability.forked import counted, dice_of, warm

METHODS = ("fedavg", "fesem", "fedmes", "dpa-sgd")
KINDS = ("reset", "stall", "slow", "close", "stall", "reset", "stall", "slow", "close", "stall", "slow", "stall")
DEADLINE = 120.0
LONG = 35.0  # seconds: Flower's clients give a call up after 30


class Wires:
    """The program between, and what it is told."""

    def __init__(self, behind: int, ports: list[int]) -> None:
        words = [sys.executable, "-P", str(Path(__file__).with_name("wire.py")), str(behind), *map(str, ports)]
        self._program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._hear()

    def _hear(self) -> str:
        assert self._program.stdout is not None
        return self._program.stdout.readline()

    def _tell(self, order: dict[str, Any]) -> None:
        assert self._program.stdin is not None
        self._program.stdin.write(json.dumps(order) + "\n")
        self._program.stdin.flush()

    def order(self, order: dict[str, Any]) -> None:
        """Disturb from some moment on; the count of bytes begins anew."""
        self._tell(order)

    def told(self) -> dict[str, Any]:
        """Bytes since the last order, connections that were disturbed, and how many there were at a time."""
        self._tell({})
        found: dict[str, Any] = json.loads(self._hear())
        return found

    def end(self) -> None:
        """Let it go."""
        assert self._program.stdin is not None and self._program.stdout is not None
        self._program.stdin.close()
        self._program.wait(10)
        self._program.stdout.close()


def drawn(kind: str, number: int, whole: int, dice: random.Random) -> dict[str, Any]:
    """When, whom and how long."""
    who = list(range(NODES)) if dice.random() < 0.5 else [dice.randrange(NODES)]
    order: dict[str, Any] = {"kind": kind, "at": int(dice.uniform(0.05, 0.85) * whole), "who": who}
    if kind == "stall":
        order["ways"] = dice.choice((["up"], ["down"], ["up", "down"]))
        return order | {"seconds": LONG if number % 4 == 1 else round(dice.uniform(2, 9), 1)}
    if kind == "slow":
        slow = {"rate": dice.choice((4_000, 20_000)), "latency": dice.choice((0.05, 0.3))}
        return order | slow | {"seconds": round(dice.uniform(8, 20), 1)}
    return order | {"seconds": dice.choice((0.0, 0.5, 2.0, 5.0))}


class Disturbed:
    """Runs of one place, each disturbed once."""

    def __init__(self, place: Place, wires: Wires, seed: int) -> None:
        self.place, self.wires, self.seed = place, wires, seed
        self.struck = Struck(place, seed)
        self.bytes: dict[str, int] = {}
        self.seconds: dict[str, float] = {}

    def _undisturbed(self, method: str) -> None:
        if method not in self.bytes:
            self.wires.order({"kind": "", "at": 0, "who": [], "seconds": 0.0})
            began = time.monotonic()
            self.struck.undisturbed(method)
            self.seconds[method] = time.monotonic() - began
            self.bytes[method] = self.wires.told()["bytes"]

    def case(self, number: int) -> dict[str, Any]:
        """One run: disturbed, and compared."""
        dice, method = dice_of("wires", self.seed, number), METHODS[number % len(METHODS)]
        self._undisturbed(method)
        out, kind = self.place.root / f"run-{number}", KINDS[number % len(KINDS)]
        order = drawn(kind, number, self.bytes[method], dice)
        self.wires.order(order)
        began = time.monotonic()
        ended = self.place.serve(method, out).wait(LONGEST)
        took, told = time.monotonic() - began, self.wires.told()
        wrong = f"exit code {ended.code}: {ended.err.strip()[-300:]}" if ended.code else ""
        wrong = wrong or ("" if told["struck"] else "it was not disturbed") or self.struck.wrong(method, out)
        if not wrong and took > self.seconds[method] + DEADLINE:
            wrong = f"it took {took:.0f} s, and {self.seconds[method]:.0f} s undisturbed"
        shutil.rmtree(out, ignore_errors=True)
        how = ", ".join(f"{key} {value}" for key, value in order.items() if key != "kind")
        name = f"{method}: {kind}, {how}: {told['struck']} connections struck, {told['peak']} at a time, {took:.0f} s"
        return {"number": number, "name": name, "wrong": wrong, "took": took, "told": [ended.out, ended.err]}


def wires(n: int, seed: int = 0, jobs: int = 1, only: int | None = None, first: int = 0) -> dict[str, Any]:
    """How many of n disturbed runs ended as if nobody had disturbed them, and which did not."""
    from polycentric.deploy.engine.children import free_port

    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="wires-"))
    try:
        warm(root)
        place = Place(root)
        place.doors = [free_port() for _ in range(NODES)]
        between = Wires(place.port, place.doors)
        try:
            for k in range(NODES):
                place.join(k)
            runs = Disturbed(place, between, seed)
            found = []
            for number in range(first, first + n) if only is None else [only]:
                found.append(runs.case(number))
                print(found[-1]["name"], found[-1]["wrong"], flush=True)
        finally:
            place.end()
            between.end()
        if any(place.codes):
            found.append({"number": -1, "name": "nodes", "wrong": f"they ended with {place.codes}", "took": 0.0})
        heard = [path.read_text("utf-8", "replace") for path in root.glob("said * ward-*.err")]
        if any("Traceback" in text for text in heard):
            found.append({"number": -1, "name": "nodes", "wrong": "a traceback in what they said", "took": 0.0})
    finally:
        shutil.rmtree(root, ignore_errors=True)
    again = f"python tests/reliability/wires.py 1 --seed {seed} --only"
    bad = [
        {"name": one["name"], "wrong": one["wrong"], "again": f"{again} {one['number']}"}
        for one in found
        if one["wrong"]
    ]
    return {
        "of": sum(one["number"] >= 0 for one in found),
        "bad": bad,
        "longest": round(max(one["took"] for one in found), 1),
        "seconds": round(time.monotonic() - began, 1),
        **({"told": [*found[0]["told"], *heard]} if only is not None else {}),
    }


def told(found: dict[str, Any]) -> str:
    """The counts for people."""
    return (
        f"{found['of'] - len(found['bad'])} of {found['of']} disturbed runs ended bit for bit, the longest in "
        f"{found['longest']:.0f} s; {found['seconds']:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(counted(wires, "runs", 1, told))
