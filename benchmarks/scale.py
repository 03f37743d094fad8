"""Seconds and memory of a round against clients, cohort, parameters and centers, `python benchmarks/scale.py`.

    python benchmarks/scale.py --write docs/results             # all four curves, tables, scale.json and scale.png
    python benchmarks/scale.py --curves clients centers         # some of them

One thing grows at a time:

    clients       100 .. 1,000,000       FedAvg, 1,000 of them in a round (or all), logistic model
    cohort        10 .. 10,000           FedAvg, of 100,000 clients, logistic model
    parameters    1e3 .. 1e7             FedAvg, 20 of 100 clients, one hidden layer as wide as it takes
    centers       1 .. 64                FeSEM, 1,000 clients in every round, 10,004 parameters

Clients are ragged (1 to 8 examples of 16 numbers, 4 classes; batches of 4, one epoch). Every point is measured in a
process of its own, so that its largest resident memory is its own. Seconds are those of the processor, of one thread,
so that work beside it matters less; the fastest of 50 rounds, or of two seconds of them, counts.
Memory is told apart: `data` is what the examples and the clients' names take, `run` all that comes on top of it.

The exponent b in value ~ n^b is the gradient of log(value) against log(n) by least squares over the last three points.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from polycentric import Federation, Method, Uniform, fedavg, fesem
from polycentric.data import Split
from polycentric.models import mlp
from polycentric.round import run_round
from polycentric.runs.machine import keep_freed_memory
from polycentric.runs.start import prepare
from polycentric.simulate.clock import Traffic, load_of, traffic

FEATURES, CLASSES, UPPER = 16, 4, 3
PATIENCE = 2.0  # seconds of rounds after which a point has been measured often enough
Row = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Point:
    """What a round is made of."""

    clients: int = 100_000
    cohort: int = 1_000
    parameters: int | None = None  # None: the logistic model, which has 68
    centers: int | None = None  # None: FedAvg


CURVES: dict[str, list[Point]] = {
    "clients": [Point(clients=n) for n in (100, 1_000, 10_000, 100_000, 1_000_000)],
    "cohort": [Point(cohort=n) for n in (10, 100, 1_000, 10_000)],
    "parameters": [Point(100, 20, parameters=n) for n in (1_000, 10_000, 100_000, 1_000_000, 10_000_000)],
    "centers": [Point(1_000, 1_000, 10_000, centers=n) for n in (1, 2, 4, 8, 16, 32, 64)],
}


TITLES = {
    "clients": "FedAvg, 1,000 in a round",
    "cohort": "FedAvg, of 100,000 clients",
    "parameters": "FedAvg, 20 in a round",
    "centers": "FeSEM, 1,000 in a round",
}


def federation(clients: int) -> Federation:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 9, (clients,), generator=generator)
    offset = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    n = int(offset[-1])
    x = torch.randint(0, 256, (n, FEATURES), generator=generator, dtype=torch.uint8)
    y = torch.randint(0, CLASSES, (n,), generator=generator)
    none = Split(x[:0], y[:0], torch.zeros(clients + 1, dtype=torch.int64))
    return Federation("ragged", Split(x, y, offset), none, none, tuple("abcd"), tuple(map(str, range(clients))))


def hidden(parameters: int | None) -> tuple[int, ...]:
    """The hidden layer that makes a model as large as asked for."""
    return () if parameters is None else (round((parameters - CLASSES) / (FEATURES + 1 + CLASSES)),)


def method_of(point: Point) -> Method:
    select = Uniform(n=min(point.cohort, point.clients))
    if point.centers is None:
        return fedavg(lr=0.1, batch=4, select=select)
    return fesem(k=point.centers, lr=0.1, batch=4, restarts=1, warm_up=None, select=select)


def fastest(work: Callable[[], object], repeats: int) -> float:
    """Of so many times, or as many as patience allows."""
    taken: list[float] = []
    while len(taken) < repeats and (sum(taken) < PATIENCE or len(taken) < 2):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)


def mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(point: Point, repeats: int) -> Row:
    """A round after the first, its parts that see all clients, and the memory."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as the command does
    idle = mebibytes()
    data = federation(point.clients)
    with_data = mebibytes()
    model = partial(mlp, (FEATURES,), CLASSES, hidden=hidden(point.parameters))
    run = prepare(method_of(point), data, model=lambda: model(), executor="stacked")
    state, _ = run_round(run.method, run.state, run.clients)
    state, trips = run_round(run.method, state, run.clients)
    everyone, exchange = run.clients.everyone(state.round), run.method.at(state.round)[-1]

    def account() -> None:
        times = run.tally.clients_times(point.clients)
        for trip in trips:
            times = run.clock.advance(times, load_of(trip, run.clients.task.width))
        run.tally.at(times)
        sum((traffic(trip) for trip in trips), start=Traffic())

    return {
        "round": fastest(lambda: run_round(run.method, state, run.clients), repeats),
        "select": fastest(lambda: exchange.select(state.memory, everyone), repeats),
        "account": fastest(account, repeats),
        "data_mib": with_data - idle,
        "run_mib": mebibytes() - with_data,
        "parameters": run.clients.task.width,
    }


def exponent(n: list[float], values: list[float]) -> float:
    """The gradient of log(value) against log(n), by least squares."""
    x, y = [math.log(v) for v in n], [math.log(max(v, 1e-9)) for v in values]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)


def fits(rows: list[Row]) -> dict[str, float]:
    """The exponents over the upper range, and the bytes that one more of it takes there."""
    last = rows[-UPPER:]
    n = [row["n"] for row in last]
    more = (last[-1]["run_mib"] - last[0]["run_mib"]) * 2**20 / (n[-1] - n[0])
    return {"from": n[0], "to": n[-1], "run_bytes_each": more} | {
        what: exponent(n, [row[what] for row in last]) for what in ("round", "run_mib")
    }


def alone(point: Point, repeats: int) -> Row:
    """One point in a process of its own."""
    words = [__file__, "--alone", json.dumps(dataclasses.asdict(point)), "--repeats", str(repeats)]
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1e3 * seconds:.2g} ms"


def curve(name: str, repeats: int) -> list[Row]:
    """Measures a curve and prints it as it grows, as a table for a page."""
    print(f"\n| {name} | a round | of it picking | clock and bytes | data | the run beside its data |", flush=True)
    print("|---|---|---|---|---|---|", flush=True)
    rows: list[Row] = []
    for point in CURVES[name]:
        row = {"n": float(getattr(point, name)), **alone(point, repeats)}
        rows.append(row)
        seconds = " | ".join(milliseconds(row[what]) for what in ("round", "select", "account"))
        print(f"| {row['n']:,.0f} | {seconds} | {row['data_mib']:.0f} MiB | {row['run_mib']:.0f} MiB |", flush=True)
    fit = fits(rows)
    print(
        f"\nFrom {fit['from']:,.0f} to {fit['to']:,.0f} {name}: seconds ~ n^{fit['round']:.2f}, memory of the run ~ "
        f"n^{fit['run_mib']:.2f}, {fit['run_bytes_each']:,.0f} bytes for one more.",
        flush=True,
    )
    return rows


def draw(curves: dict[str, list[Row]], path: Path) -> None:
    """Seconds above, memory below, with the fitted lines; decades that all panels of a line share."""
    from matplotlib.ticker import NullFormatter

    from polycentric.report.figure import colour, panels

    with panels(path, 2, len(curves), size=(2.9, 2.5)) as axes:
        for line, (what, unit) in enumerate((("round", "seconds a round"), ("run_mib", "MiB beside the data"))):
            every = [row[what] for rows in curves.values() for row in rows]
            decades = [10.0 ** f(math.log10(v)) for f, v in ((math.floor, min(every)), (math.ceil, max(every)))]
            for axis, (name, rows) in zip(axes[line], curves.items(), strict=True):
                n, values = [row["n"] for row in rows], [row[what] for row in rows]
                axis.loglog(n, values, "o-", color=colour(line), markersize=4)
                upper, high = n[-UPPER:], values[-UPPER:]
                b, middle, at = exponent(upper, high), geometric(high), geometric(upper)
                axis.loglog(upper, [middle * (v / at) ** b for v in upper], "--", color="#333333", linewidth=1.1)
                axis.text(0.04, 0.92, f"$n^{{{b:.2f}}}$", transform=axis.transAxes, va="top", color="#333333")
                axis.set_ylim(*decades)
                axis.yaxis.set_minor_formatter(NullFormatter())
                if n[-1] < 100:
                    axis.set_xticks(n, [f"{v:.0f}" for v in n])
                    axis.xaxis.set_minor_formatter(NullFormatter())
                if line == 0:
                    axis.set_title(TITLES[name])
                else:
                    axis.set_xlabel(name)
            axes[line, 0].set_ylabel(unit)


def geometric(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--curves", nargs="+", default=list(CURVES), choices=CURVES)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--write", type=Path, help="a folder for scale.json and scale.png")
    parser.add_argument("--alone", help="measure this point (JSON) in this process, and print JSON only")
    asked = parser.parse_args()
    if asked.alone:
        print(json.dumps(one(Point(**json.loads(asked.alone)), asked.repeats)))
        return
    curves = {name: curve(name, asked.repeats) for name in asked.curves}
    if asked.write:
        found: dict[str, Any] = {name: {"points": rows, "fit": fits(rows)} for name, rows in curves.items()}
        (asked.write / "scale.json").write_text(json.dumps(found, indent=1) + "\n")
        draw(curves, asked.write / "scale.png")


if __name__ == "__main__":
    main()
