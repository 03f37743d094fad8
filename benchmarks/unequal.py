"""Clients of unequal size, looped, stacked and traced, `python benchmarks/unequal.py`.

A round of FedAvg with an MLP 784-128-10 on noise, batches of 10, one epoch. First a few clients of equal size: how many
it takes before a stack pays. Then one client of 20,000 examples beside twenty of 50. Seconds are those of the
processor, of one thread; the fastest of five rounds, the ways taken in turns.
"""

from __future__ import annotations

import time

import torch

from polycentric import Federation, fedavg
from polycentric.data import Split
from polycentric.learn import Stacked
from polycentric.round import run_round
from polycentric.runs.start import prepare

CASES = {f"{n} x 2,000": [2000] * n for n in (1, 2, 3, 4, 8)} | {"20,000 + 20 x 50": [20_000] + [50] * 20}
WAYS = ("looped", "stacked throughout", "stacked", "traced")


def federation_of(sizes: list[int]) -> Federation:
    """Noise."""
    generator = torch.Generator().manual_seed(0)
    clients = tuple(map(str, range(len(sizes))))

    def part(sizes: list[int]) -> Split:
        n, offset = sum(sizes), torch.tensor([0, *sizes]).cumsum(0)
        x, y = torch.rand(n, 784, generator=generator), torch.randint(10, (n,), generator=generator)
        return Split(x, y, offset)

    none = part([0] * len(sizes))
    return Federation("noise", part(sizes), none, none, tuple("0123456789"), clients)


def main() -> None:
    """One line for each case."""
    torch.set_num_threads(1)
    for case, sizes in CASES.items():
        federation, runs, seconds = federation_of(sizes), {}, {way: float("inf") for way in WAYS}
        for way in WAYS:
            runs[way] = prepare(fedavg(), federation, model="mlp", executor=way.partition(" ")[0], device="cpu")
            if way == "stacked throughout":
                assert isinstance(runs[way].clients.run, Stacked)
                runs[way].clients.run.few = 0
        for _ in range(5):
            for way, made in runs.items():
                began = time.process_time()
                run_round(made.method, made.state, made.clients)
                seconds[way] = min(seconds[way], time.process_time() - began)
        print(f"{case:18}" + "".join(f"{way:>20} {spent:.2f} s" for way, spent in seconds.items()), flush=True)


if __name__ == "__main__":
    main()
