"""A fixed short training: machines on which it ends in the same bits compute alike.

PyTorch promises no equal bits across processors, systems and versions. So a federation's models are promised to be
those of a simulation, bit for bit, only among machines whose `fixed_training` has the same digest; of others it is
told how far apart it ends.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..learn.gradient import grad
from ..stacks.draw import uniform

STEPS = 5


def fixed_training() -> Tensor:
    """All parameters of a small convolutional and a dense layer after five steps of SGD, (1, width) float32.

    Data and initial weights are counter-based draws, so they are the same everywhere; sums, products, exponentials and
    convolutions are whatever this machine makes of them.
    """
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 100, 10))
    drawn = {
        name: (uniform(0, name, torch.arange(rows.numel())).reshape(rows.shape).float() - 0.5) / rows[0].numel() ** 0.5
        for name, rows in model.named_parameters()
    }
    x = uniform(0, "x", torch.arange(64 * 144)).reshape(64, 1, 12, 12).float()
    y = (uniform(0, "y", torch.arange(64)) * 10).long()

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, parameters, (x,)), y)

    for _ in range(STEPS):
        step = grad(loss)(drawn)
        drawn = {name: rows - 0.1 * step[name] for name, rows in drawn.items()}
    return torch.cat([rows.flatten() for rows in drawn.values()])[None].detach()
