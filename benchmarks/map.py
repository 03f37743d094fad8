"""A large map: 100 edges, 100,000 clients that walk. Seconds and memory of what a round asks of it, and of rounds.

    python benchmarks/map.py [edges] [clients]

The rounds are FedMes's, 20 clients asked by every edge, logistic regression; the clients share the images of a hundred
people of `digits`, so that memory is that of the map.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import TypeVar

import torch

from polycentric import ByCell, CellMap, fedmes, load, run
from polycentric.stacks.cohort import Cohort
from polycentric.topology import Cells
from polycentric.topology.cells.consensus import edge_facts
from polycentric.topology.cells.coverage import covered

T = TypeVar("T")
asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
asked.add_argument("edges", type=int, nargs="?", default=100)
asked.add_argument("clients", type=int, nargs="?", default=100_000)
edges, clients = vars(asked.parse_args()).values()
geometry = CellMap(edges, speed=0.01)
topology, select = Cells(geometry, 1.3), ByCell(20, cells=geometry)
everyone = Cohort(torch.arange(clients), torch.ones(clients).long(), torch.ones(clients), clients, seed=0, round=0)


def timed(what: str, work: Callable[[], T]) -> T:
    began = time.perf_counter()
    done = work()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what:42} {time.perf_counter() - began:7.2f} s   {peak:7.0f} MiB at most so far")
    return done


memory = topology.remembers(clients)
width = 100
centers = torch.zeros(edges, width)
timed("nothing", lambda: None)
timed("coverage of round 0", lambda: covered(geometry, clients, 0, 0))
timed("coverage of round 200", lambda: covered(geometry, clients, 0, 200))
print(f"{len(covered(geometry, clients).edge):,} pairs, {len(covered(geometry, clients).regions.edges):,} regions")
timed("selection by cell", lambda: select(memory, everyone))
timed(f"down to everybody, {width} parameters", lambda: topology.down(memory, everyone, "model") @ centers)
timed("up from everybody", lambda: topology.up(memory, everyone, "model") @ torch.zeros(clients, width))
timed("zeta and column sums", lambda: edge_facts(topology, clients))

method = fedmes(cells=geometry, select=ByCell(20), alpha_v=1.3, lr=0.1, batch=10)
data = timed("data", lambda: load("digits", clients=100).tiled(clients))
done = timed("five rounds, scored before and after", lambda: run(method, data, rounds=5, model="logistic"))
was, now = (100 * done.history[at]["average_accuracy"] for at in (0, -1))
print(f"{done.history[-1]['clients']:,} clients asked in the last; the mean of all edges: {was:.1f} -> {now:.1f} %")
