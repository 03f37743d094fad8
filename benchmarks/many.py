"""Many clients, or many centers: seconds and memory of two rounds of a method.

    python benchmarks/many.py fesem 100000
    python benchmarks/many.py fesem 10000 k=1000

Clients are four groups of the same task, of four examples each; logistic regression with 21 parameters, so that what
grows with clients and centers is what takes time.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch

from polycentric import run
from polycentric.data import Pool

asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
asked.add_argument("method")
asked.add_argument("clients", type=int)
asked.add_argument("settings", nargs="*", metavar="NAME=VALUE")
given = asked.parse_args()
settings = dict(word.split("=", 1) for word in given.settings)

each, source = 4, torch.Generator().manual_seed(0)
y = torch.randint(3, (given.clients * each,), generator=source)
owner = torch.arange(given.clients).repeat_interleave(each)
x = torch.randn(len(y), 6, generator=source) + 3 * torch.eye(6)[(y + owner) % 4]
names = tuple(map(str, range(given.clients)))
pool = Pool("many", x, y, ("a", "b", "c"), client=owner, clients=names)

began = time.perf_counter()
done = run(given.method, pool, rounds=2, model="logistic", set=settings, evaluate_every=2, fine_tune=0)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
accuracy = 100 * done.metrics["micro_accuracy"]
print(
    f"{given.method}, {given.clients:,} clients: {time.perf_counter() - began:.1f} s ({time.process_time():.1f} s of a "
    f"processor with all imports), {peak:.0f} MiB, accuracy {accuracy:.1f} %"
)
