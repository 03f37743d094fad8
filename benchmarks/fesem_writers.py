"""FeSEM(4) over all 317 writers of unipen62 against the same samples without client borders.

    python benchmarks/fesem_writers.py                                       # on the GPU, with the FEMNIST CNN
    python benchmarks/fesem_writers.py --profile                             # and the kernels of one round
    python benchmarks/fesem_writers.py --device cpu --writers 4 --most 30    # does it work at all?

`ours` is a whole round after the first: every writer trains one epoch in batches of 20 from its center, the E-step
finds everybody's nearest center, the M-step makes the means. `learning` is the training in it alone. `limit` is one
module trained one epoch on the examples of all writers together, in steps of up to 2,048, with the same optimizer.
Writers have 16 to 3,908 training examples: that, and steps of 20, is what client borders cost.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import time

import torch
from gpu import Way, arguments, in_turns, kernels, told, wait
from torch.nn.functional import cross_entropy

from polycentric import Federation, fesem, load
from polycentric.data import Split
from polycentric.round import run_round
from polycentric.runs.bench import LR, TOGETHER
from polycentric.runs.loop import Run
from polycentric.runs.machine import device_of
from polycentric.runs.start import prepare


def fewer(federation: Federation, writers: int | None, most: int | None) -> Federation:
    """The first writers, and the first examples of each."""
    if writers is None and most is None:
        return federation
    n = min(writers or federation.n_clients, federation.n_clients)

    def part(split: Split) -> Split:
        every = [split.of(k) for k in range(n)]
        x, y = (torch.cat([getattr(one, name)[:most] for one in every]) for name in ("x", "y"))
        return Split(x, y, torch.tensor([0, *(len(one.y[:most]) for one in every)]).cumsum(0))

    parts = {name: part(getattr(federation, name)) for name in ("train", "test", "valid")}
    return dataclasses.replace(federation, clients=federation.clients[:n], group=None, protected=None, **parts)


def without_borders(run: Run) -> Way:
    """One module on everybody's examples, one epoch in a fixed shuffled order."""
    task, data = run.clients.task, run.federation.train
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).to(task.device)

    def epoch() -> None:
        module = copy.deepcopy(task.module)
        optimizer = torch.optim.SGD(module.parameters(), lr=LR)
        for index in order.split(TOGETHER):
            optimizer.zero_grad()
            cross_entropy(module(task.inputs(data.x[index])), task.targets(data.y[index])).backward()
            optimizer.step()

    return epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="femnist-cnn")
    parser.add_argument("--centers", type=int, default=4)
    parser.add_argument("--writers", type=int, help="only the first so many")
    parser.add_argument("--most", type=int, help="only the first so many examples of each")
    asked = arguments(parser, seconds=30.0)
    device, began = device_of(asked.device), time.perf_counter()
    data = fewer(load("unipen62"), asked.writers, asked.most)
    print(f"{data!r}: {time.perf_counter() - began:.1f} s", flush=True)
    method = fesem(k=asked.centers, lr=LR, batch=asked.batch, epochs=1, warm_up=None, restarts=1)
    run = prepare(method, data, model=asked.model, device=asked.device)
    state = run.state
    for _ in range(3):  # the clustering, and two rounds in which shapes that come often are captured
        state, trips = run_round(run.method, state, run.clients)
        wait(device)
        print(f"round {state.round}, {len(trips[-1].arrived)} writers: {time.perf_counter() - began:.1f} s", flush=True)
    exchange, everyone = run.method.at(state.round)[-1], run.clients.everyone(state.round)
    ways: dict[str, Way] = {
        "ours": lambda: run_round(run.method, state, run.clients),
        "learning": lambda: [None for _ in run.clients.answers(exchange, state, everyone)],
        "limit": without_borders(run),
    }
    ways["limit"]()
    told(
        in_turns(ways, device, asked.seconds),
        device,
        work=f"{method.name}({asked.centers}), {data.n_clients} writers, {len(data.train)} examples, {asked.model}",
        executor=run.clients.executor,
        blocks=-(-data.n_clients // run.clients.block_size),
        graphs=len(getattr(getattr(run.clients.run, "scan", None), "graphs", ())),
    )
    if asked.profile:
        print(f"one round of ours:\n{kernels(ways['ours'], device)}", flush=True)


if __name__ == "__main__":
    main()
