"""What every core is worth: rounds of FedAvg over writers of unequal size, by one worker and by more.

    python benchmarks/cores.py                                  # MLP, on all cores of the machine
    python benchmarks/cores.py --model femnist-cnn --rounds 1   # convolutions, looped
    python benchmarks/cores.py --method dpsgd        # any method; --set aggregate=median: any setting of it
    python benchmarks/cores.py --data noise          # no data at hand: clients of noise, as unequal

Six rounds of one epoch, batches of 10, all clients in every round, blocks of equal work as a long run has them; no
evaluation. The numbers of workers take turns, the fastest round of each counts, and all must end with the same bits.
Two bounds are told beside it: the work of one worker shared out evenly, or the largest block if that takes longer
(without any communication); and the seconds that the first process's main thread is busy by itself, which no number
of cores makes less. POLYCENTRIC_DATA says where unipen62.npz is.
"""

from __future__ import annotations

import argparse
import time

import torch

from polycentric import load
from polycentric.data import Federation, Split
from polycentric.round import run_round
from polycentric.runs.machine import keep_freed_memory
from polycentric.runs.recipes import build_method
from polycentric.runs.start import prepare
from polycentric.simulate.share_out import cores, one_math_thread


def noise(n_clients: int = 317) -> Federation:
    """Clients whose sizes fall as those of the writers do: a few large ones, many small."""
    sizes = [max(20, int(4000 / (1 + k) ** 0.75)) for k in range(n_clients)]
    draw = torch.Generator().manual_seed(0)
    offset = torch.tensor([0, *sizes]).cumsum(0)
    x, y = torch.rand(sum(sizes), 1, 28, 28, generator=draw), torch.randint(62, (sum(sizes),), generator=draw)
    none = Split(x[:0], y[:0], torch.zeros(n_clients + 1, dtype=torch.int64))
    classes, names = tuple(map(str, range(62))), tuple(map(str, range(n_clients)))
    return Federation("noise", Split(x, y, offset), none, none, classes, names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="unipen62", help="a data set, or noise")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the method")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--workers", type=int, nargs="+", help="[default: 1, 2, 4, ... up to the cores there are]")
    asked = parser.parse_args()
    there = cores()
    numbers = asked.workers or sorted({1, there, *(n for n in (2, 4, 8, 16, 32, 64) if n < there)})
    keep_freed_memory()
    torch.set_num_threads(1)
    federation = noise() if asked.data == "noise" else load(asked.data)
    how = {"model": asked.model, "rounds": 100, "block": "work", "device": "cpu"}
    method = build_method(asked.method, {"lr": "0.1", "batch": "10"} | dict(word.split("=", 1) for word in asked.set))
    runs = {n: prepare(method, federation, workers=n, **how) for n in numbers}
    states, best = {n: run.state for n, run in runs.items()}, dict.fromkeys(runs, float("inf"))
    alone = dict(best)
    for turn in range(2 + asked.rounds):  # the first make programs and forks, and some methods begin in another way
        for n, run in runs.items():
            began, mine = time.perf_counter(), time.thread_time()
            with one_math_thread(True, n):
                states[n], _ = run_round(run.method, states[n], run.clients)
            if turn > 1:
                alone[n] = min(alone[n], time.thread_time() - mine)
                best[n] = min(best[n], time.perf_counter() - began)
    first = runs[numbers[0]]
    assert all(torch.equal(state.centers["model"], states[numbers[0]].centers["model"]) for state in states.values())
    last = states[numbers[0]]
    exchange, blocks = first.method.at(last.round)[-1], first.clients.blocks(first.clients.everyone(last.round))
    each = []
    for block in blocks:
        began = time.perf_counter()
        first.clients.answer(exchange, last, block, first.clients.run)
        each.append(time.perf_counter() - began)
    print(
        f"{method.name}, {asked.data}, {asked.model}, {first.clients.executor}: "
        f"{len(blocks)} blocks of {federation.n_clients} clients"
    )
    for n in numbers:
        limit = max(sum(each) / n, max(each))
        print(
            f"{n:3} workers: {best[n]:7.3f} s a round, {best[numbers[0]] / best[n]:5.2f} times {numbers[0]}; "
            f"without any communication at best {sum(each) / limit:5.2f} times"
            + (f"; {alone[n]:.3f} s of it in the first process alone" if n > 1 else "")
        )
        runs[n].clients.close()


if __name__ == "__main__":
    main()
