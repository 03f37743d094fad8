"""What is learned, of one's own: a loss and a metric in ten lines, here how long a wait may become (a quantile)."""

import torch
from torch import Tensor

import polycentric as pc

SHARE = 0.9  # of the waits that should be shorter than what is predicted


class Quantile(pc.Goal):
    """The pinball loss, least where a share of 0.9 of the targets lies below the output."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        off = targets - outputs.squeeze(-1)
        return torch.maximum(SHARE * off, (SHARE - 1) * off)


def shorter(outputs: Tensor, targets: Tensor) -> Tensor:
    return targets < outputs.squeeze(-1)


def waits(clients: int = 8, each: int = 250) -> pc.Federation:
    """Minutes in the queues of some counters: longer with more people, and not everywhere alike."""
    draw = torch.Generator().manual_seed(0)
    people = torch.rand(clients * each, 1, generator=draw)
    client = torch.arange(clients * each) % clients
    mean = 1 + 3 * people[:, 0] + 0.2 * client
    wait = -mean * torch.rand(clients * each, generator=draw).log()
    return pc.load(pc.from_arrays(people, wait, client=client.tolist(), columns=["people"], targets=["wait"]))


if __name__ == "__main__":
    federation, method = waits(), pc.fedavg(lr=0.3, epochs=2, decay=0.95)
    for goal in (None, Quantile):
        run = pc.run(method, federation, model="logistic", rounds=40, goal=goal, metrics=[shorter], fine_tune=0)
        name = "the mean" if goal is None else f"a quantile of {SHARE:.0%}"
        print(f"{name:20} {run.metrics['micro_shorter']:.0%} of the waits are shorter than predicted")
