"""A round of gossip between very many clients: seconds and memory, `python benchmarks/gossip.py --clients 10000`."""

from __future__ import annotations

import argparse
import json
import resource
import time

import torch

from polycentric import Exponential, Ring, SmallWorld, Torus, dpsgd
from polycentric.data import Federation, Split
from polycentric.round import run_round
from polycentric.runs.start import prepare
from polycentric.topology import weights_for

GRAPHS = {"ring": Ring(), "torus": Torus(), "small-world": SmallWorld(k=6, p=0.1), "exponential": Exponential()}


def federation(clients: int, examples: int) -> Federation:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(clients * examples, 16, generator=generator)
    y = torch.randint(0, 4, (clients * examples,), generator=generator)
    full = Split(x, y, torch.arange(clients + 1) * examples)
    none = Split(x[:0], y[:0], torch.zeros(clients + 1, dtype=torch.int64))
    return Federation("gossip", full, none, none, tuple("abcd"), tuple(map(str, range(clients))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--graphs", nargs="*", default=list(GRAPHS))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data = federation(asked.clients, 4)
    for name in asked.graphs:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        method = dpsgd(graph=GRAPHS[name], lr=0.1, batch=4)
        began = time.perf_counter()
        prepared = prepare(method, data, model="logistic")
        edges = (len(weights_for(GRAPHS[name], asked.clients).weight) - asked.clients) // 2
        made, state = time.perf_counter() - began, prepared.state
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            state, _ = run_round(method, state, prepared.clients)
            seconds.append(time.perf_counter() - began)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        row = {"graph": name, "clients": asked.clients, "edges": edges, "seconds_to_build": round(made, 2)}
        print(json.dumps(row | {"seconds_a_round": round(sorted(seconds)[1], 2), "peak_grew_mib": round(grown)}))


if __name__ == "__main__":
    main()
