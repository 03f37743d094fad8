"""What a second core is worth: to two processes, and to two workers of one run, in blocks of several sizes.

    python benchmarks/workers.py              # "two cores" in docs/speed.md, nothing else running
    python benchmarks/workers.py --repeats 3  # does it work at all?

Two processes, each pinned to a core, share nothing but memory: what they do together, of what one does alone, is the
most that two workers could. The workers are `--workers 2` of the traced executor, MLP, 100 clients x 3 steps x 20.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import torch

from polycentric import fedavg
from polycentric.round import run_round
from polycentric.runs.bench import Race
from polycentric.runs.machine import keep_freed_memory
from polycentric.simulate.clients import Simulation

BLOCKS = (4, 8, 24, 50)
SECONDS = 4.0


def pieces() -> dict[str, tuple[str, object]]:
    """Work for a process by itself: what it is, and a call."""
    w, x, g = torch.randn(100, 784, 128), torch.randn(100, 20, 784), torch.randn(100, 20, 128)
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    long, other = torch.randn(16_000_000), torch.randn(16_000_000)
    return {
        "step": ("a step's products", lambda: (torch.bmm(x, w), w.baddbmm_(x.mT, g, alpha=-1e-9))),
        "cache": ("products in the cache", lambda: [a @ b for _ in range(50)]),
        "copy": ("copies of 64 MB", lambda: other.copy_(long)),
    }


def calls(piece: str) -> int:
    """How often a piece of work is done in some seconds."""
    torch.set_num_threads(1)
    _, work = pieces()[piece]
    assert callable(work)
    for _ in range(3):
        work()
    end, n = time.perf_counter() + SECONDS, 0
    while time.perf_counter() < end:
        work()
        n += 1
    return n


def to_device_of(piece: str, processes: int) -> int:
    """The same by several processes at once, each on a core of its own."""
    words = [sys.executable, __file__, "--piece", piece]
    begun = [
        subprocess.Popen(["taskset", "-c", str(core), *words], stdout=subprocess.PIPE, text=True)
        for core in range(processes)
    ]
    return sum(int(process.communicate()[0]) for process in begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30, help="rounds of every block size, taken in turns")
    parser.add_argument("--piece", choices=pieces(), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.piece:
        print(calls(asked.piece))
        return
    for piece, (words, _) in pieces().items():
        one, two = (max(to_device_of(piece, n) for _ in range(2)) for n in (1, 2))
        print(f"two processes, {words}: {two / one:.2f} times one", flush=True)
    torch.set_num_threads(1)
    keep_freed_memory()
    race = Race.of("mlp", device="cpu")
    method, ways = fedavg(**race.settings), {}
    state = method.begin(race.task.start(), race.federation.n_clients)
    for block in BLOCKS:
        for workers in (1, 2):
            ways[block, workers] = Simulation(
                race.federation, race.task, executor="traced", workers=workers, block=block
            )
    best = dict.fromkeys(ways, float("inf"))
    for turn in range(3 + asked.repeats):
        for way, clients in ways.items():
            began = time.perf_counter()
            run_round(method, state, clients)
            if turn >= 3:  # programs are made in the first
                best[way] = min(best[way], time.perf_counter() - began)
    for block in BLOCKS:
        one, two = (1e3 * best[block, workers] for workers in (1, 2))
        print(f"blocks of {block:2}: one worker {one:.1f} ms, two {two:.1f} ms, {one / two:.2f} times")


if __name__ == "__main__":
    main()
