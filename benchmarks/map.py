"""A large map: 100 edges, 100,000 clients that walk. Prints seconds and memory of what a round asks of it.

python benchmarks/map.py [edges] [clients]
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable

import torch

from polycentric import ByCell, CellMap
from polycentric.cohort import Cohort
from polycentric.coverage import covered
from polycentric.edge_theory import edge_facts
from polycentric.topology import Cells

edges, clients = (int(word) for word in [*sys.argv[1:], "100", "100000"][:2])
geometry = CellMap(edges, speed=0.01)
topology, select = Cells(geometry, 1.3), ByCell(20, cells=geometry)
everyone = Cohort(torch.arange(clients), torch.ones(clients).long(), torch.ones(clients), clients, seed=0, round=0)


def timed(what: str, work: Callable[[], object]) -> None:
    began = time.perf_counter()
    work()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what:42} {time.perf_counter() - began:7.2f} s   {peak:7.0f} MiB at most so far")


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
