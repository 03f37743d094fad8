"""FedAvg and FeSEM by hand in plain PyTorch: one client after another, `torch.optim.SGD`, torch's own threads."""

from __future__ import annotations

import copy

import numpy as np
import torch
from job import Job, Phases, folder, say
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

RESTARTS, LLOYD = 20, 50


class Clients:
    """Everybody's examples, and what is done with them."""

    def __init__(self, job: Job) -> None:
        self.job, self.model = job, job.module()
        self.x, self.y = torch.as_tensor(job.x), torch.as_tensor(job.y)
        self.test_x, self.test_y = torch.as_tensor(job.test_x), torch.as_tensor(job.test_y)

    def train(self, start: torch.Tensor, client: int, epochs: int = 1) -> torch.Tensor:
        """The model that a client sends, as a vector."""
        module, mine = copy.deepcopy(self.model), self.job.of(client)
        vector_to_parameters(start.clone(), module.parameters())  # they become views of it
        optimizer = torch.optim.SGD(module.parameters(), lr=self.job.lr)
        x, y = self.x[mine], self.y[mine]
        for _ in range(epochs):
            for index in torch.randperm(len(y)).split(self.job.batch):
                optimizer.zero_grad()
                cross_entropy(module(x[index]), y[index]).backward()
                optimizer.step()
        return parameters_to_vector(module.parameters()).detach()

    @torch.no_grad()
    def right(self, model: torch.Tensor, examples: slice) -> int:
        """How many of these test examples a model gets right."""
        vector_to_parameters(model, self.model.parameters())
        return int((self.model(self.test_x[examples]).argmax(1) == self.test_y[examples]).sum())


def fedavg(job: Job, clients: Clients, draw: np.random.Generator, phases: Phases) -> float:
    center, accuracy = parameters_to_vector(clients.model.parameters()).detach(), 0.0
    sizes = np.diff(job.offset)
    for number in range(1, job.rounds + 1):
        cohort = draw.choice(job.n_clients, job.cohort, replace=False)
        total = torch.zeros_like(center)
        for client in cohort:
            total += clients.train(center, client) * (sizes[client] / sizes[cohort].sum())
        center = total
        phases.mark("rounds")
        if number % job.every == 0 or number == job.rounds:
            accuracy = clients.right(center, slice(None)) / len(job.test_y)
            phases.mark("evaluation")
    return accuracy


def grouped(rows: torch.Tensor, k: int, draw: np.random.Generator) -> torch.Tensor:
    """k-means with the seeds of k-means++: the group of every row, the best of some restarts."""
    rows = (rows - rows.mean(0)).double()
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    rows = vectors * values.clamp(min=0).sqrt()  # the same distances in as many dimensions as there are rows
    best, found = float("inf"), torch.zeros(len(rows), dtype=torch.int64)
    for _ in range(RESTARTS):
        centers = rows[[int(draw.integers(len(rows)))]]
        while len(centers) < k:
            away = (torch.cdist(rows, centers).min(1).values ** 2).numpy()
            centers = torch.cat([centers, rows[[int(draw.choice(len(rows), p=away / away.sum()))]]])
        group = torch.full((len(rows),), -1)
        for _ in range(LLOYD):
            away, now = torch.cdist(rows, centers).min(1)
            if torch.equal(now, group):
                break
            group = now
            centers = means(rows, group, centers)
        if float((away**2).sum()) < best:
            best, found = float((away**2).sum()), group
    return found


def means(rows: torch.Tensor, group: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """The mean of every group; an empty one keeps its center."""
    return torch.stack([rows[group == k].mean(0) if (group == k).any() else before[k] for k in range(len(before))])


def fesem(job: Job, clients: Clients, draw: np.random.Generator, phases: Phases) -> float:
    """The paper's algorithm: the first round clusters what all learn from one model, later ones go to the nearest."""
    k, accuracy = int(job.told["centers"]), 0.0
    centers = parameters_to_vector(clients.model.parameters()).detach().repeat(k, 1)
    group = torch.zeros(job.n_clients, dtype=torch.int64)
    for number in range(1, job.rounds + 1):
        epochs = int(job.told["warm_up"]) if number == 1 else 1
        rows = torch.stack([clients.train(centers[group[c]], c, epochs) for c in range(job.n_clients)])
        group = grouped(rows, k, draw) if number == 1 else torch.cdist(rows, centers).argmin(1)
        centers = means(rows, group, centers)
        phases.mark("rounds")
        if number % job.every == 0 or number == job.rounds:
            right = sum(clients.right(centers[group[c]], job.test_of(c)) for c in range(job.n_clients))
            accuracy = right / len(job.test_y)
            phases.mark("evaluation")
    return accuracy


def main() -> None:
    phases = Phases()
    phases.mark("import")
    job = Job(folder())
    torch.manual_seed(job.seed)
    clients = Clients(job)
    phases.mark("data")
    way, draw = {"fedavg": fedavg, "fesem": fesem}[job.told["method"]], np.random.default_rng(job.seed)
    accuracy = way(job, clients, draw, phases)
    say(accuracy, torch.__version__, phases)


if __name__ == "__main__":
    main()
