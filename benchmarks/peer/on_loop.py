"""FedAvg by hand in plain PyTorch, as a peer: what the measurement itself adds can be seen in it."""

from __future__ import annotations

import copy

import torch
from torch.nn.functional import cross_entropy
from turns import Turns, Work, take_part


def play(work: Work, turns: Turns) -> None:
    torch.set_num_threads(1)
    x, y = (torch.as_tensor(value).to(work.device) for value in (work.x, work.y))
    center = work.module()
    while turns.wait():
        total = {name: torch.zeros_like(value) for name, value in center.state_dict().items()}
        for inputs, targets in zip(x, y, strict=True):
            module = copy.deepcopy(center)
            optimizer = torch.optim.SGD(module.parameters(), lr=work.lr)
            for batch in zip(inputs.split(work.batch), targets.split(work.batch), strict=True):
                optimizer.zero_grad()
                cross_entropy(module(batch[0]), batch[1]).backward()
                optimizer.step()
            for name, value in module.state_dict().items():
                total[name] += value / work.n_clients
        center.load_state_dict(total)
        if x.is_cuda:
            torch.cuda.synchronize()
        turns.ended(
            lambda: {name: value.cpu().numpy() for name, value in center.state_dict().items()}, torch.__version__
        )


if __name__ == "__main__":
    take_part(play)
