"""FedAvg in Flower's simulation: an actor of Ray for each core, its strategy and sampler, evaluation at the server."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

from job import Job, Phases, say

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "JOB_FOLDER": sys.argv[1]}

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from job_flower_client import client


def main() -> None:
    phases = Phases()
    phases.mark("import")
    job, center, accuracies = Job(sys.argv[1]), ServerApp(), list[float]()
    x, y, module = torch.as_tensor(job.test_x), torch.as_tensor(job.test_y), job.module()
    first = ArrayRecord(module.state_dict())
    phases.mark("data")

    @torch.no_grad()
    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        if number == 0 or (number % job.every and number != job.rounds):
            return None
        module.load_state_dict(arrays.to_torch_state_dict())
        accuracies.append(float((module(x).argmax(1) == y).float().mean()))
        return MetricRecord({"accuracy": accuracies[-1]})

    @center.main()
    def serve(grid: Grid, context: Context) -> None:
        rule = FedAvg(
            fraction_train=job.cohort / job.n_clients,
            fraction_evaluate=0.0,
            min_train_nodes=job.cohort,
            min_evaluate_nodes=0,
            min_available_nodes=job.n_clients,
        )
        rule.start(grid, first, num_rounds=job.rounds, evaluate_fn=evaluate)
        phases.mark("rounds and evaluation")

    run_simulation(
        server_app=center,
        client_app=client,
        num_supernodes=job.n_clients,
        backend_config={
            "init_args": {
                "num_cpus": job.cores,
                "num_gpus": 0,
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
            },
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    phases.mark("end of the simulation")
    say(accuracies[-1], f"{version('flwr')}, ray {version('ray')}", phases)


if __name__ == "__main__":
    main()
