"""What a round costs above what the engine takes to carry its bytes: both in turn, over the same nodes.

    python tests/reliability/overhead.py 30      so many rounds, and as many bare exchanges

A server and three nodes with keys and TLS on this machine; each node has a few examples and a model of two layers. In
turn a round of FedAvg is run (letters written, sent, trained, replied, checked, mixed, the round put on the disk), and
as many bytes are carried there and back with nothing done to them, by the same engine, to the same nodes. Told are the
medians and their ratio, and that of the processor time of all processes together, which a busy machine leaves alone.
The training, tiny as it is, counts as ours, and so does waiting for the disk.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from polycentric import load
from polycentric.deploy.engine.children import free_port
from polycentric.deploy.engine.link import Link
from polycentric.deploy.engine.member import Member
from polycentric.deploy.first_look import make_keys
from polycentric.deploy.joining import one_of
from polycentric.deploy.participant import Participant
from polycentric.deploy.serve import Waiting, serve
from polycentric.round import Trip
from polycentric.runs.loop import Callback, Run
from polycentric.runs.settings import Settings
from reliability.forked import counted

NODES, MOST = 3, 0.1
NAMES = [f"ward-{k}" for k in range(NODES)]
BARE = b"bare"


class InTurn(Callback):
    """After every round as many bytes there and back; how long both took."""

    def __init__(self, link: Link) -> None:
        self.link, self.began, self.members = link, 0.0, list[Member]()
        self.work = [0.0, 0.0]  # processor seconds: of rounds, of bare exchanges
        self.worked = 0.0
        self.rounds: list[float] = []
        self.bare: list[float] = []
        self.sizes: list[int] = []  # of the parcels of a round

    def on_round(self, run: Run, trips: Sequence[Trip]) -> None:
        worked = self.processor()
        if self.began:
            self.rounds.append(time.monotonic() - self.began)
            self.work[0] += worked - self.worked
        began, got = time.monotonic(), 0
        self.link.send({peer.id: [BARE, os.urandom(self.sizes[-1])] for peer in self.link.peers()}, 60)
        while got < NODES:
            got += len(self.link.fetch())
            time.sleep(0.01)
        self.bare.append(time.monotonic() - began)
        self.worked = self.processor()
        self.work[1] += self.worked - worked
        self.began = time.monotonic()

    def processor(self) -> float:
        """Seconds that this process and the engine's programs have worked."""
        machinery, ticks = self.link._machinery, 0
        for child in (machinery.superlink, machinery.door, *(member.supernode for member in self.members)):
            assert child is not None
            words = Path(f"/proc/{child.pid}/stat").read_text().rpartition(") ")[2].split()
            ticks += int(words[11]) + int(words[12])
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def overhead(n: int, seed: int = 0, jobs: int = 1, only: int | None = None) -> dict[str, Any]:
    """The medians of n rounds and bare exchanges, and how much more a round takes."""
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="overhead-"))
    torch.set_num_threads(1)
    data = load("digits", "iid+sample=90", clients=NODES)
    stop, threads = threading.Event(), list[threading.Thread]()
    try:
        keys, public = make_keys(root, NAMES)
        port = free_port()
        with Link(root / "engine", port=port, keys=keys, nodes=public, log=lambda line: None) as link:
            turns = InTurn(link)
            for k, name in enumerate(NAMES):
                node = Participant(one_of(data, k), root / f"kept-{k}", name=name)

                def answer(parcel: Sequence[bytes], node: Participant = node) -> list[bytes]:
                    return [parcel[1]] if parcel[0] == BARE else node.answer(parcel)

                own: dict[str, Any] = {"ca": keys / "ca.crt", "key": root / name / f"{name}.key"}
                member = Member(root / f"m-{k}", answer, server=f"127.0.0.1:{port}", **own, log=lambda line: None)
                turns.members.append(member)
                threads.append(threading.Thread(target=member.run, args=(stop,)))
                threads[-1].start()
            real = Link.send

            def send(self: Link, parcels: Any, seconds: float) -> None:
                sizes = [sum(map(len, parcel)) for parcel in parcels.values() if parcel[0] != BARE]
                turns.sizes += sizes[:1]
                real(self, parcels, seconds)

            words = {"method": "fedavg", "model": "mlp", "rounds": n + 1, "evaluate_every": n + 1, "fine_tune": 0}
            asked = Settings.of({**words, "set": {"lr": 0.05, "epochs": 1}})
            with warnings.catch_warnings(), mock.patch.object(Link, "send", send):
                warnings.simplefilter("ignore")
                serve(asked, link, root / "run", Waiting(NODES, deadline=60), names=NAMES, callbacks=[turns])
            stop.set()
            for thread in threads:
                thread.join(20)
    finally:
        stop.set()
        shutil.rmtree(root, ignore_errors=True)
    ours, bare = statistics.median(turns.rounds), statistics.median(turns.bare)
    more, work = ours / bare - 1, turns.work[0] / len(turns.rounds) / (turns.work[1] / len(turns.bare)) - 1
    again = f"python tests/reliability/overhead.py {n}"
    bad = [{"name": "a round", "wrong": f"{more:.0%} more than the bytes alone", "again": again}] if more > MOST else []
    found = {
        "of": len(turns.rounds),
        "bad": bad,
        "ours": round(ours, 3),
        "bare": round(bare, 3),
        "more": round(more, 3),
        "work": round(work, 3),
    }
    found |= {"bytes": turns.sizes[-1], "seconds": round(time.monotonic() - began, 1)}
    return found | (
        {"told": [f"{a:.3f} {b:.3f}" for a, b in zip(turns.rounds, turns.bare, strict=False)]}
        if only is not None
        else {}
    )


def told(found: dict[str, Any]) -> str:
    """The medians for people."""
    return (
        f"a round {found['ours']} s, its {found['bytes']:,} bytes there and back {found['bare']} s: "
        f"{found['more']:+.1%}, and {found['work']:+.1%} of the processors' time; "
        f"medians of {found['of']}; {found['seconds']:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(counted(overhead, "rounds", 1, told))
