"""FedAvg in Flower's simulation: an actor of Ray for each core, all clients in every round, no evaluation."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

from flower_client import FOLDER, client
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from turns import Turns, Work, take_part

MANY = 10**6


def play(work: Work, turns: Turns) -> None:
    os.environ[FOLDER] = sys.argv[1]
    n, center = work.n_clients, ServerApp()

    def gate(number: int, arrays: ArrayRecord) -> None:
        if number:
            said = f"{version('flwr')}, ray {version('ray')}"
            turns.ended(lambda: {k: v.numpy() for k, v in arrays.to_torch_state_dict().items()}, said)
        if not turns.wait():
            raise StopIteration("no more rounds are wanted")

    @center.main()
    def main(grid: Grid, context: Context) -> None:
        rule = FedAvg(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=n, min_evaluate_nodes=0, min_available_nodes=n
        )
        try:
            rule.start(grid, ArrayRecord(work.module().state_dict()), num_rounds=MANY, evaluate_fn=gate)
        except StopIteration:
            return

    run_simulation(
        server_app=center,
        client_app=client,
        num_supernodes=n,
        backend_config={
            "init_args": {"num_cpus": int(work.told["cores"]), "num_gpus": 0, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    take_part(play)
