"""Rounds of 100 clients x 10 steps x 20 examples in absolute time, `python benchmarks/gpu.py`.

    python benchmarks/gpu.py                               # the MLP and the CNN 5x5x32-5x5x64-512-62 on the GPU
    python benchmarks/gpu.py --models mlp --profile        # and the kernels of one round, by their share of the time
    python benchmarks/gpu.py --device cpu --clients 3 --steps 2 --seconds 1           # does it work at all?

`ours` is a whole round of FedAvg (stacked; on a GPU a captured graph), `plain` a loop over clients by hand, `limit`
one module on the same samples without client borders, in steps of up to 2,048. They take turns, for so many seconds a
model; the fastest and the median of each are told. Clocks are read when the device has finished.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from peers import race_of

from polycentric.learn.execute.captured import Captured
from polycentric.runs.machine import device_of, keep_freed_memory

Way = Callable[[], object]
TURN = 0.2  # seconds of a quick way's turn


def timed(way: Way, device: torch.device) -> float:
    """Seconds from an idle device to an idle device."""
    wait(device)
    began = time.perf_counter()
    way()
    wait(device)
    return time.perf_counter() - began


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def in_turns(ways: dict[str, Way], device: torch.device, seconds: float) -> dict[str, list[float]]:
    """In turns until the time is up, and each at least twice; what is quick is done several times in its turn."""
    ends = time.perf_counter() + seconds
    taken = {name: [timed(way, device)] for name, way in ways.items()}
    often = {name: max(1, min(20, int(TURN / max(first[0], 1e-6)))) for name, first in taken.items()}
    while time.perf_counter() < ends or any(len(values) < 2 for values in taken.values()):
        for name, way in ways.items():
            taken[name] += [timed(way, device) for _ in range(often[name])]
    return taken


def arguments(parser: argparse.ArgumentParser, seconds: float) -> argparse.Namespace:
    """What both scripts ask, and a process as our command has it."""
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=seconds, help="for the turns")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--profile", action="store_true")
    keep_freed_memory()
    torch.set_num_threads(1)
    return parser.parse_args()


def told(taken: dict[str, list[float]], device: torch.device, **more: object) -> None:
    """One line of JSON: milliseconds, how they compare, and where it was."""
    cuda = device.type == "cuda"
    more |= {"device": torch.cuda.get_device_name(device) if cuda else "cpu", "torch": torch.__version__}
    more["peak_mib"] = round(torch.cuda.max_memory_allocated(device) / 2**20) if cuda else None
    best = {name: min(values) for name, values in taken.items()}
    row = {"ms": {name: round(1e3 * value, 3) for name, value in best.items()}}
    row["median_ms"] = {name: round(1e3 * statistics.median(values), 3) for name, values in taken.items()}
    ratios = {f"ours_over_{name}": round(best["ours"] / value, 3) for name, value in best.items() if name != "ours"}
    print(
        json.dumps({**more, **row, **ratios, "rounds": {name: len(values) for name, values in taken.items()}}),
        flush=True,
    )


def kernels(way: Way, device: torch.device, rows: int = 14) -> str:
    """What one round spends its time on: kernels on a GPU, operators on a processor, by their share.

    Of a GPU also how long it was idle: the fastest of some rounds that nobody watched, less its kernels.
    """
    from torch.profiler import ProfilerActivity, profile

    cuda = device.type == "cuda"
    whole = 1e3 * min(timed(way, device) for _ in range(5))
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])], acc_events=True
    ) as seen:
        way()
        wait(device)
    parts = []
    for event in seen.key_averages():
        on_gpu = "CUDA" in str(event.device_type)
        own = event.self_device_time_total if cuda and on_gpu else 0 if cuda else event.self_cpu_time_total
        if own > 0:
            parts.append((own, event.count, event.key))
    total = sum(part[0] for part in parts) or 1
    lines = [f"{'share':>6} {'ms':>9} {'calls':>6}  what"]
    for own, count, name in sorted(parts, reverse=True)[:rows]:
        lines.append(f"{own / total:>6.1%} {own / 1e3:>9.3f} {count:>6}  {name[:90]}")
    lines.append(f"{'':>6} {total / 1e3:>9.3f} ms in all")
    if cuda:
        idle = whole - total / 1e3
        lines.append(f"{idle / whole:>6.1%} {idle:>9.3f} ms idle, of a round of {whole:.3f} ms")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["mlp", "mnist-cnn"], help="mlp, mnist-cnn, femnist-cnn, ...")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10)
    asked = arguments(parser, seconds=12.0)
    device = device_of(asked.device)
    for model in asked.models:
        race = race_of(model, asked.clients, asked.steps, asked.batch, device)
        ours, clients = race.ours("stacked")
        scan = getattr(clients.run, "scan", None)
        ways: dict[str, Way] = {"ours": ours, **race.others()}
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        began = time.perf_counter()
        mine, hand = ours().flatten(), ways["plain"]().flatten()  # type: ignore[attr-defined]
        ours(), ways["limit"]()
        wait(device)
        print(f"{model}: warm after {time.perf_counter() - began:.1f} s", flush=True)
        told(
            in_turns(ways, device, asked.seconds),
            device,
            model=model,
            parameters=race.task.width,
            work=f"{asked.clients} x {asked.steps} x {asked.batch}",
            graphs=sum(len(graphs.replays) for graphs in scan.graphs.values()) if isinstance(scan, Captured) else 0,
            apart=float(f"{float((mine - hand).abs().max()):.2g}"),
        )
        if asked.profile:
            print(f"{model}, one round of ours:\n{kernels(ours, device)}", flush=True)


if __name__ == "__main__":
    main()
