"""Nodes that hang, are silent or dead, in a real federation: does every round end by its deadline and a second?

    python tests/reliability/hung.py 8       so many rounds

A server and four nodes as processes of their own, with keys and TLS, on this machine. Once all have come, one is
stopped amid its work (SIGSTOP to the process that trains), one's connection is (SIGSTOP to the engine's program there),
and one is killed with all of its processes. The server's deadline is four seconds; a round is what lies between the end
of one and of the next: one exchange, which asks for scores and training together.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from polycentric.deploy import first_look
from polycentric.deploy.engine.children import HERE, free_port
from polycentric.deploy.engine.link import Link
from polycentric.deploy.first_look import make_keys, nodes_beside
from polycentric.deploy.serve import Waiting, serve
from polycentric.round import Trip
from polycentric.runs.loop import Callback, Run
from polycentric.runs.settings import Settings
from reliability.forked import counted

NODES, DEADLINE, MORE = 4, 4.0, 1.0
NAMES = [f"ward-{k}" for k in range(NODES)]


def below(pid: int) -> list[int]:
    """Processes that one has started."""
    with suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


class Strike(Callback):
    """After the first round three of four nodes fall silent, each in its own way; times when rounds end."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids, self.ends, self.stopped = pids, list[float](), list[int]()

    def on_round(self, run: Run, trips: Sequence[Trip]) -> None:
        self.ends.append(time.monotonic())
        if len(self.ends) == 1:
            engine = [pid for pid in below(self.pids[1]) if str(HERE) in Path(f"/proc/{pid}/cmdline").read_text()]
            for pid in (self.pids[0], *engine):
                os.kill(pid, signal.SIGSTOP)
                self.stopped.append(pid)
            for pid in (self.pids[2], *below(self.pids[2])):
                os.kill(pid, signal.SIGKILL)
            self.ends[0] = time.monotonic()

    def wake(self) -> None:
        """Let those that were stopped end."""
        for pid in self.stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def hung(n: int, seed: int = 0, jobs: int = 1, only: int | None = None) -> dict[str, Any]:
    """How many of n rounds took longer than they may."""
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="hung-"))
    started: list[Any] = []
    real = first_look.subprocess.Popen

    def popen(*given: Any, **named: Any) -> Any:
        started.append(real(*given, **named))
        return started[-1]

    own = {
        "method": "fedavg",
        "model": "mlp",
        "rounds": n + 1,
        "evaluate_every": 1,
        "fine_tune": 0,
        "set": {"lr": 0.05},
    }
    data = {"method": "fedavg", "data": "digits", "partition": "iid", "clients": NODES}
    lines: list[str] = []
    strike = Strike([])
    try:
        keys, public = make_keys(root, NAMES)
        port, how = free_port(), Waiting(NODES, deadline=DEADLINE)
        with (
            warnings.catch_warnings(),
            Link(root / "engine", port=port, keys=keys, nodes=public, log=lines.append) as link,
            mock.patch.object(first_look.subprocess, "Popen", popen),
            nodes_beside(root, Settings.of(data), NAMES, port, trust=False),
        ):
            warnings.simplefilter("ignore")
            nodes = [one for one in started if "join" in one.args]
            strike.pids = [node.pid for node in nodes]
            try:
                ended = serve(
                    Settings.of(own), link, root / "run", how, names=NAMES, callbacks=[strike], log=lines.append
                )
            finally:
                strike.wake()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    took = [b - a for a, b in zip(strike.ends, strike.ends[1:], strict=False)]
    again = f"python tests/reliability/hung.py {n}"
    bad = [
        {"name": f"round {k + 1}", "wrong": f"{seconds:.2f} s, deadline {DEADLINE:g} s", "again": again}
        for k, seconds in enumerate(took)
        if seconds > DEADLINE + MORE
    ]
    if len(took) != n or ended.state.round != n + 1:
        bad.append({"name": "the run", "wrong": f"{len(took)} rounds", "again": again})
    waited = sum(seconds > DEADLINE / 2 for seconds in took)
    if not waited:
        bad.append({"name": "the run", "wrong": "nobody was waited for", "again": again})
    found = {"of": len(took), "bad": bad, "longest": round(max(took, default=0.0), 2), "waited": waited}
    found |= {"seconds": round(time.monotonic() - began, 1)}
    return found | ({"told": [*lines, *(f"{seconds:.2f} s" for seconds in took)]} if only is not None else {})


def told(found: dict[str, Any]) -> str:
    """The counts for people."""
    return (
        f"{found['of'] - len(found['bad'])} of {found['of']} rounds ended in time; the longest took "
        f"{found['longest']} s with a deadline of {DEADLINE:g} s, and {found['waited']} waited for it; "
        f"{found['seconds']:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(counted(hung, "rounds", 1, told))
