"""Your own nn.Module, and what a client does with it after the run."""

import torch
from torch import nn

import polycentric as pc


class Net(nn.Module):
    """Called with the shape of an example and the number of outputs; GroupNorm, since BatchNorm cannot be averaged."""

    def __init__(self, shape: tuple[int, ...], n_outputs: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.conv = nn.Conv2d(channels, 8, 3, padding=1)
        self.norm = nn.GroupNorm(4, 8)
        self.head = nn.Linear(8 * (height // 2) * (width // 2), n_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.norm(self.conv(x)).relu(), 2)
        return self.head(x.flatten(1))


federation = pc.load("digits", partition=pc.Dirichlet(10, alpha=0.5))
run = pc.run(pc.fedavg(lr=0.1, epochs=2), federation, model=Net, rounds=5)
print(f"{run.clients.task.width} parameters, accuracy {run.metrics['micro_accuracy']:.1%}")

model = run.model_of(client=3)  # an ordinary module, ready to predict
mine = federation.test.of(3)
with torch.no_grad():
    right = (model(mine.x / 255).argmax(1) == mine.y).float().mean()
print(f"client 3 by hand: {right:.1%}, by the run: {run.scores['in_use'].accuracy[3]:.1%}")
