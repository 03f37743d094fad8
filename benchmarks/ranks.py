"""What travels between ranks: bytes that the one that receives most receives in a round, and seconds.

    torchrun --standalone --nproc-per-node 2 benchmarks/ranks.py                         # FedAvg
    torchrun --standalone --nproc-per-node 4 benchmarks/ranks.py --method dpsgd          # any method
    torchrun --standalone --nproc-per-node 2 benchmarks/ranks.py --set aggregate=median  # any setting of it
    torchrun --standalone --nproc-per-node 2 benchmarks/ranks.py --data noise            # no data at hand

All clients take part in every round, with one epoch in batches of 10, in blocks of equal work. "Every row" is what it
would be if each rank were sent all that it has not learned itself. With --check one process does the same rounds
afterwards, and must come to the same bits. POLYCENTRIC_DATA says where unipen62.npz is.
"""

from __future__ import annotations

import argparse
import time

import torch
from cores import noise

from polycentric import join_ranks, load
from polycentric.round import run_round
from polycentric.runs.machine import keep_freed_memory
from polycentric.runs.recipes import build_method
from polycentric.runs.start import prepare
from polycentric.simulate import homes
from polycentric.simulate.ranks import ALONE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="unipen62", help="a data set, or noise")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the method")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    federation = noise() if asked.data == "noise" else load(asked.data)
    how = {"model": asked.model, "rounds": 100, "block": "work", "device": "cpu"}
    method = build_method(asked.method, {"lr": "0.1", "batch": "10"} | dict(word.split("=", 1) for word in asked.set))
    with join_ranks() as ranks:
        run = prepare(method, federation, ranks=ranks, **how)
        state, best, took = homes.spread(run.state, ranks, run.method.at_home), float("inf"), 0
        for _ in range(1 + asked.rounds):  # in the first, programs are made and some methods begin in another way
            before, began = ranks.counted["received"], time.perf_counter()
            state, trips = run_round(run.method, state, run.clients)
            best, took = min(best, time.perf_counter() - began), ranks.counted["received"] - before
        state = homes.gathered(state, ranks)
        each = torch.zeros(ranks.size, dtype=torch.int64)
        each[ranks.rank] = took
        ranks.add(each)
        took = int(each.max())
        n, sent = len(trips[-1].cohort), sum(state.centers[name].shape[1] for name in trips[-1].exchange.sends)
        every = n * (ranks.size - 1) / ranks.size * sent * run.clients.task.dtype.itemsize
        if ranks.first:
            blocks = len(run.clients.blocks(trips[-1].cohort))
            print(
                f"{method.name} {' '.join(asked.set)}: {ranks.size} ranks, {n} clients in {blocks} blocks: "
                f"{took / 1e6:.2f} MB a round, {took / max(every, 1):.1%} of every row; {best:.3f} s"
            )
    if ranks.first and asked.check:
        alone = prepare(method, federation, ranks=ALONE, workers=1, **how)
        mine = alone.state
        for _ in range(1 + asked.rounds):
            mine, _ = run_round(alone.method, mine, alone.clients)
        assert all(torch.equal(mine.centers[name], state.centers[name]) for name in mine.centers), "other bits"
        print("the bits of one process")


if __name__ == "__main__":
    main()
