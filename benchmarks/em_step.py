"""FeSEM's E- and M-step for very many clients, block by block: how long, and how much memory.

    python benchmarks/em_step.py --clients 10000 --centers 16 --width 1000000 --block 256

Rows are made block by block (a center and some noise), as answers arrive in a round; nothing of size clients x centers
x width, or even clients x width, is ever there. Prints the seconds and the largest resident memory.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch

from polycentric.parts.aggregate import Mean
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.stack import write
from polycentric.topology import Clusters


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("clients", 10_000), ("centers", 16), ("width", 1_000_000), ("block", 256)):
        words.add_argument(f"--{name}", type=int, default=value)
    given = words.parse_args()
    n, k, width = given.clients, given.centers, given.width

    draw = torch.Generator().manual_seed(0)
    centers = {"model": torch.randn(k, width, generator=draw)}
    group = torch.arange(n) % k
    noise = torch.randn(given.block, width, generator=draw)  # the same for every block: drawing is not what is measured
    topology, rule = Clusters(k), Mean()
    memory = topology.remembers(n)
    everyone = Cohort(torch.arange(n), torch.ones(n, dtype=torch.int64), torch.ones(n).double(), n, seed=0, round=0)

    began, steps = time.perf_counter(), {"make": 0.0, "E": 0.0, "M": 0.0}
    heard = rule.start(topology.up(memory, everyone[:0], "model"), centers["model"])
    for block in everyone.blocks(given.block):
        t = [time.perf_counter()]
        rows = centers["model"][group[block.index]].add_(noise[: len(block)], alpha=0.5)
        t.append(time.perf_counter())
        memory = write(memory, [(block.index, topology.place(memory, block, centers, {"model": rows}))])
        t.append(time.perf_counter())
        rule.add(heard, topology.up(memory, block, "model"), rows)
        t.append(time.perf_counter())
        steps = {name: steps[name] + t[i + 1] - t[i] for i, name in enumerate(steps)}
    new = rule.settle(heard, centers["model"]).values
    seconds = time.perf_counter() - began

    assert torch.equal(memory["assignment"], group), "every row must find the center it was made from"
    assert float((new - centers["model"]).abs().max()) < 4, "every center must be the mean of its rows"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    parts = ", ".join(f"{name} {value:.1f} s" for name, value in steps.items())
    print(f"{n:,} clients, {k} centers, {width:,} parameters, blocks of {given.block}: {seconds:.1f} s ({parts})")
    print(f"largest resident memory {peak:.2f} GiB; clients x width alone would be {4 * n * width / (1 << 30):.1f} GiB")


if __name__ == "__main__":
    main()
