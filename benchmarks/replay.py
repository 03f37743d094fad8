"""Dense models looped, stacked and traced, `python benchmarks/replay.py`: what a round costs, and recording it.

Ten steps of FedAvg on noise. Milliseconds are those of the processor, of one thread, the fastest of several rounds; the
last column is what the first traced round took more.
"""

from __future__ import annotations

import time

import torch

from polycentric import Federation, Simulation, Task, fedavg
from polycentric.data import Split
from polycentric.models import mlp
from polycentric.round import run_round
from polycentric.runs.machine import keep_freed_memory

LAYERS = ((64, 10), (784, 62), (64, 32, 10), (784, 128, 62), (784, 200, 200, 10), (784, 512, 256, 256, 128, 10))
CASES = ((1, 10), (3, 10), (10, 10), (100, 10), (10, 50))  # clients, batch
STEPS = 10


def federation_of(clients: int, examples: int, features: int, classes: int) -> Federation:
    """Noise."""
    generator, n = torch.Generator().manual_seed(0), clients * examples
    x, y = torch.rand(n, features, generator=generator), torch.randint(0, classes, (n,), generator=generator)
    none = Split(x[:0], y[:0], torch.zeros(clients + 1, dtype=torch.int64))
    full = Split(x, y, torch.arange(clients + 1) * examples)
    return Federation("noise", full, none, none, tuple(map(str, range(classes))), tuple(map(str, range(clients))))


def main() -> None:
    """One line for each case."""
    keep_freed_memory()
    torch.set_num_threads(1)
    print(f"{'layers':28s}{'clients':>8s}{'batch':>7s}{'looped':>10s}{'stacked':>10s}{'traced':>10s}{'recording':>11s}")
    for features, *hidden, classes in LAYERS:
        for clients, batch in CASES:
            federation = federation_of(clients, STEPS * batch, features, classes)
            task = Task.of(federation, lambda shape, n, hidden=tuple(hidden): mlp(shape, n, hidden=hidden))
            line = f"{'-'.join(map(str, (features, *hidden, classes))):28s}{clients:8d}{batch:7d}"
            for executor in ("looped", "stacked", "traced"):
                method, seen = fedavg(lr=0.1, batch=batch), []
                asked = Simulation(federation, task, executor=executor)  # type: ignore[arg-type]
                state = method.begin(task.start(), clients)
                for _ in range(7 if clients > 10 else 13):
                    began = time.process_time()
                    run_round(method, state, asked)
                    seen.append(1e3 * (time.process_time() - began))
                line += f"{min(seen[1:]):10.1f}"
            print(f"{line}{seen[0] - min(seen[1:]):11.1f}", flush=True)


if __name__ == "__main__":
    main()
