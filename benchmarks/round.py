"""One round against a plain PyTorch loop on the same work, in one process: `python benchmarks/round.py`.

Both train the same clients from the same model on the same batches and average the results. The plain loop is
what one writes by hand: for every client copy the model, run `torch.optim.SGD` over its batches, add up.
Times are the median of several rounds, taken in turns, on one core; what counts is the ratio.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time

import torch
from torch.nn.functional import cross_entropy

from polycentric import Simulation, Task, Train, fedavg
from polycentric.data import Federation, Split
from polycentric.learn import Schedule
from polycentric.machine import keep_freed_memory
from polycentric.round import run_round

WORK = {  # model: (shape, classes)
    "mlp": ((1, 28, 28), 62),
    "femnist-cnn": ((1, 28, 28), 62),
    "logistic": ((1, 28, 28), 62),
    "mnist-cnn": ((1, 28, 28), 10),
    "lg-lenet": ((3, 32, 32), 10),
    "har-cnn": ((6, 128), 6),
}


def federation(shape: tuple[int, ...], classes: int, clients: int, examples: int) -> Federation:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(clients * examples, *shape, generator=generator)
    y = torch.randint(0, classes, (clients * examples,), generator=generator)
    full = Split(x, y, torch.arange(clients + 1) * examples)
    none = Split(x[:0], y[:0], torch.zeros(clients + 1, dtype=torch.int64))
    return Federation("noise", full, none, none, tuple(map(str, range(classes))), tuple(map(str, range(clients))))


def plain(task: Task, data: Split, batches: torch.Tensor, lr: float) -> dict[str, torch.Tensor]:
    """FedAvg by hand. `batches` are (steps, clients, batch) positions in the data."""
    total: dict[str, torch.Tensor] = {}
    n = batches.shape[1]
    for client in range(n):
        model = copy.deepcopy(task.module)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        for step in range(batches.shape[0]):
            index = batches[step, client]
            optimizer.zero_grad()
            cross_entropy(model(data.x[index]), data.y[index]).backward()
            optimizer.step()
        for name, value in model.state_dict().items():
            total[name] = total.get(name, 0) + value / n
    return total


def compare(name: str, clients: int, steps: int, batch: int, repeats: int, executor: str) -> dict[str, object]:
    shape, classes = WORK[name]
    fed = federation(shape, classes, clients, steps * batch)
    task, train = Task.of(fed, name), {"lr": 0.1, "batch": batch, "epochs": 1}
    method = fedavg(**train)
    sim = Simulation(fed, task, executor=executor)
    state = method.begin(task.start(), fed.n_clients)
    batches = Schedule(fed.train, sim.everyone(0), Train(**train).plan(sim.everyone(0))).index
    ours, theirs = [], []
    for repeat in range(repeats + 1):
        tick = time.perf_counter()
        new, _ = run_round(method, state, sim)
        ours.append(time.perf_counter() - tick)
        tick = time.perf_counter()
        reference = plain(task, fed.train, batches, 0.1)
        theirs.append(time.perf_counter() - tick)
        if repeat == 0:
            row = task.layouts["model"].row(reference)
            assert torch.allclose(new.centers["model"][0], row, atol=1e-5), "not the same work"
    ours, theirs = ours[1:], theirs[1:]  # the first one warms up
    return {
        "model": name,
        "executor": sim.executor,
        "block": sim.block_size,
        "ours_s": round(statistics.median(ours), 4),
        "plain_loop_s": round(statistics.median(theirs), 4),
        "ratio": round(statistics.median(ours) / statistics.median(theirs), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=["mlp", "femnist-cnn"], choices=WORK)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--executor", default="auto", choices=["auto", "looped", "stacked"])
    args = parser.parse_args()
    keep_freed_memory()  # for both sides
    torch.set_num_threads(1)
    for name in args.models:
        print(
            json.dumps(compare(name, args.clients, args.steps, args.batch, args.repeats, args.executor)),
            flush=True,
        )


if __name__ == "__main__":
    main()
