"""A FedAvg round with 1,000 of N clients against N: seconds, memory and how they grow, `python benchmarks/scale.py`.

    python benchmarks/scale.py --clients 1000 10000 100000 1000000

Clients are ragged (1 to 8 examples of 16 numbers, 4 classes), the model is logistic. Every N is measured in a process
of its own, so that its largest resident memory is its own. Beside the whole round, its parts that see all clients are
timed: who there is, who is picked, and what the clock and the tally make of the trip. The exponent b is the slope of
log(value) against log(N), from the last two N and from all.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from polycentric import Federation, Uniform, fedavg
from polycentric.clock import Traffic, load_of, traffic
from polycentric.data import Split
from polycentric.loop import prepare
from polycentric.round import run_round

FEATURES, CLASSES = 16, 4


def federation(clients: int) -> Federation:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 9, (clients,), generator=generator)
    offset = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    n = int(offset[-1])
    x = torch.randint(0, 256, (n, FEATURES), generator=generator, dtype=torch.uint8)
    y = torch.randint(0, CLASSES, (n,), generator=generator)
    none = Split(x[:0], y[:0], torch.zeros(clients + 1, dtype=torch.int64))
    return Federation("ragged", Split(x, y, offset), none, none, tuple("abcd"), tuple(map(str, range(clients))))


def fastest(work: Callable[[], object], repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(clients: int, cohort: int, repeats: int) -> dict[str, float]:
    torch.set_num_threads(1)
    idle = mebibytes()
    data = federation(clients)
    with_data = mebibytes()
    method = fedavg(lr=0.1, batch=4, select=Uniform(n=min(cohort, clients)))
    run = prepare(method, data, model="logistic", executor="stacked")
    state, trips = run_round(method, run.state, run.clients)
    everyone, (exchange,) = run.clients.everyone(0), method.at(0)

    def account() -> None:
        times = run.tally.clients_times(clients)
        for trip in trips:
            times = run.clock.advance(times, load_of(trip, run.clients.task.width))
        run.tally.at(times)
        sum((traffic(trip) for trip in trips), start=Traffic())

    return {
        "clients": clients,
        "round": fastest(lambda: run_round(method, state, run.clients), repeats),
        "everyone": fastest(lambda: run.clients.everyone(1), repeats),
        "select": fastest(lambda: exchange.select(state.memory, everyone), repeats),
        "account": fastest(account, repeats),
        "data_mib": with_data - idle,
        "run_mib": mebibytes() - with_data,
    }


def exponent(rows: list[dict[str, float]], what: str) -> float:
    """The slope of log(value) against log(N), by least squares."""
    points = [(math.log(row["clients"]), math.log(max(row[what], 1e-9))) for row in rows]
    mx, my = (sum(p[i] for p in points) / len(points) for i in (0, 1))
    spread = sum((x - mx) ** 2 for x, _ in points)
    return sum((x - mx) * (y - my) for x, y in points) / spread if spread else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--cohort", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="measure in this process, and print JSON only")
    asked = parser.parse_args()
    if asked.alone:
        print(json.dumps(one(asked.clients[0], asked.cohort, asked.repeats)))
        return
    rows = []
    for n in asked.clients:
        words = [__file__, "--alone", "--clients", n, "--cohort", asked.cohort, "--repeats", asked.repeats]
        done = subprocess.run([sys.executable, *map(str, words)], stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(done.stdout))
        print(json.dumps({k: round(v, 5) for k, v in rows[-1].items()}), flush=True)
    large = [row for row in rows if row["clients"] >= asked.cohort]
    for name, some in (("all", large), ("last two", large[-2:])):
        if len(some) > 1:
            shown = {w: round(exponent(some, w), 2) for w in rows[0] if w != "clients"}
            print(json.dumps({"exponents": name, **shown}))


if __name__ == "__main__":
    main()
