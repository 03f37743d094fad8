"""What hides every single example of a client while it trains: its gradient is clipped, and every step gets noise.

    step on a batch b of n_b examples:    g_e  =  the gradient of the loss of example e, all trained names as one row

        g  =  1/n_b [ sum_e  g_e min(1, C / |g_e|)  +  N(0, (z C)^2 I) ]

Then the optimizer's rule, with weight decay and penalties, which read no example. An example whose gradient is not
finite counts as zero, so that nothing can move a sum by more than C. Noise is drawn by (seed, round, exchange, client,
step, column) and from nothing else, so that no other draw of a run changes with it; whoever knows the seed of a
simulation can take it away again. A client of a real federation draws it from a secret of its own (`secured`).

Symbols:     C = `clip`, z = `noise`.
Reduces to:  plain training, bit for bit, with clip = inf and noise = 0.
Reference:   Abadi et al., Deep learning with differential privacy, CCS 2016, https://arxiv.org/abs/1607.00133
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import require, within
from ..language import register
from ..stacks.draw import bits, normals, secret_normal

ROOM = 32 << 20  # bytes of gradients of single examples that a client's step holds at once
SAFE = 1 - 1e-6  # a row is clipped a little shorter: rounding must not make it longer than C


@dataclass(frozen=True)
class ExampleNoise:
    """DP-SGD: every example's gradient is clipped to length `clip`, and a step's sum gets noise of `noise` * `clip`."""

    clip: float
    noise: float

    def __post_init__(self) -> None:
        within(self, clip="> 0; try 1", noise="[0, inf); try 1")
        require(
            not self.noise or self.clip < math.inf,
            f"dp-sgd with noise={self.noise:g} needs a finite clip, got clip=inf, which hides nothing; try clip=1",
        )

    @property
    def acts(self) -> bool:
        """Whether a step is any other than a plain one."""
        return self.noise > 0 or self.clip < math.inf

    def at_once(self, width: int, itemsize: int, batch: int | None) -> int:
        """Examples whose gradients are held together; a function of the model alone, so that blocks change nothing."""
        fits = max(1, ROOM // max(1, width * itemsize))
        return fits if batch is None else min(batch, fits)

    def summed(self, each: Tensor, weight: Tensor) -> Tensor:
        """sum_e weight_e g_e min(1, C / |g_e|), from gradients (examples, width) and weights (examples,)."""
        length = each.square().sum(-1).sqrt()
        known = length.isfinite()
        shorter = torch.where(length > self.clip * SAFE, self.clip * SAFE / length, 1.0).to(each.dtype)
        return (weight * torch.where(known, shorter, 0.0)) @ torch.where(known[:, None], each, 0.0)

    def drawn(self, key: Tensor, step: Tensor, like: Tensor, n: Tensor) -> Tensor:
        """The noise of one step on n examples: N(0, (z C / n)^2 I), as wide as `like`."""
        return (self.noise * self.clip * normals(bits(key, step), like.shape[-1])).to(like.dtype) / n

    def secured(self, key: bytes) -> "ExampleNoise":
        """The same with noise that only who has a secret key can draw, for a client whose seed others know."""
        return SecretExampleNoise(self.clip, self.noise, key)


@dataclass(frozen=True)
class SecretExampleNoise(ExampleNoise):
    """DP-SGD where the server knows the seed: noise from a secret of the client's own. One client at a time."""

    key: bytes = field(repr=False)

    def __repr__(self) -> str:
        """As in a run's folder: whoever opens it does not have the secret."""
        return repr(ExampleNoise(self.clip, self.noise))

    def drawn(self, key: Tensor, step: Tensor, like: Tensor, n: Tensor) -> Tensor:
        """The noise of one step on n examples."""
        unit = secret_normal(like.shape[-1], self.key + f" {int(key)} {int(step)}".encode())
        return (self.noise * self.clip * unit).to(like) / n


register(ExampleNoise, "dp-sgd", ExampleNoise)
