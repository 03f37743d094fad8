"""A run over a million clients on one machine, `python benchmarks/million.py`.

    python benchmarks/million.py                                # made data
    python benchmarks/million.py --data unipen62                # handwriting of 317 writers, shared by a million

Both are whole runs: rounds, clock, bytes, evaluations. Made clients have 1 to 8 examples of 16 numbers and a logistic
model. The writers' examples are shared by index (`Federation.tiled`), not copied: client k has those of writer k mod
317, with a shuffle of its own; the test examples belong to the first copy of each writer. The model there is the MLP.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from typing import Any

import torch
from scale import federation, mebibytes

from polycentric import Callback, Run, Uniform, fedavg, load, run
from polycentric.runs.machine import keep_freed_memory


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="made", help="made, or the name of a data set that is tiled")
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--cohort", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, help="by default 100 of made clients, 10 of others")
    parser.add_argument("--lr", type=float, default=0.1)
    asked = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    idle, began = mebibytes(), time.perf_counter()
    made = asked.data == "made"
    data = federation(asked.clients) if made else load(asked.data).tiled(asked.clients)
    with_data, rounds = mebibytes(), asked.rounds or (100 if made else 10)
    print(f"{data!r}: {time.perf_counter() - began:.1f} s, {with_data - idle:.0f} MiB", flush=True)
    method = fedavg(lr=asked.lr, batch=4 if made else 20, select=Uniform(n=asked.cohort))
    moments, used = [time.perf_counter()], [time.process_time()]

    class Stopwatch(Callback):
        def on_round(self, run: Run, trips: Any) -> None:
            moments.append(time.perf_counter())
            used.append(time.process_time())
            row, round = run.history[-1], run.state.round
            if row["round"] == round:
                score = f", test accuracy {row['micro_accuracy']:.3f}" if len(data.test) else ""
                print(f"round {round} of {rounds}: {moments[-1] - moments[0]:.1f} s{score}", flush=True)

    done = run(method, data, model="logistic" if made else "mlp", rounds=rounds, callbacks=[Stopwatch()], fine_tune=0,
               evaluate_every=max(1, rounds // 5))  # fmt: skip
    middle = [statistics.median(b - a for a, b in itertools.pairwise(times[1:])) for times in (moments, used)]
    print(
        json.dumps(
            {
                "clients": data.n_clients,
                "distinct": len(data.train.offset) - 1,
                "rounds": done.state.round,
                "visits": asked.cohort * rounds,
                "seconds": round(done.seconds, 2),
                "median_round_seconds": round(middle[0], 4),
                "of_the_processor": round(middle[1], 4),
                "data_mib": round(with_data - idle),
                "run_mib": round(mebibytes() - with_data),
                "bytes_up": done.tally.bytes_up,
                "executor": done.clients.executor,
            }
        )
    )


if __name__ == "__main__":
    main()
