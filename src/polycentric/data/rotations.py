"""Clients whose images are turned, in known groups; and partitions of a sample of the examples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from ..errors import require, within
from ..language import register
from ..stacks import draw
from .dealing import Partition, check_count, for_training, some_of
from .federation import Pool
from .partition import Iid


@dataclass(frozen=True)
class Rotations:
    """IID clients whose square images are rotated: those of client i by 360 g/k degrees, g = i mod k.

    The groups g are known, so clusters that a method finds can be judged. k = 1 is IID. Quarter turns are
    exact; others are interpolated.

    Arguments:
        k: how many groups.
        clients: how many.
        upright: share of the clients that are not rotated, the first of all; the others are in the other groups in
            turn. None: all groups are equal.
    """

    k: int = 4
    clients: int = 40
    upright: float | None = None

    def __post_init__(self) -> None:
        check_count("Rotations.k", self.k)
        check_count("Rotations.clients", self.clients)
        good = self.k <= min(self.clients, 360)
        require(good, f"Rotations.k must be at most the number of clients ({self.clients}) and 360, got {self.k}")
        within(self, upright="(0, 1); try 0.8")
        require(self.upright is None or self.k > 1, "Rotations.upright is for two groups or more: leave it out")

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool, dealt and turned."""
        dealt, every = Iid(self.clients)(pool, seed), torch.arange(self.clients)
        group = every % self.k
        if self.upright is not None:
            group = torch.where(every < round(self.upright * self.clients), 0, 1 + every % (self.k - 1))
        return _turned_by_group(dealt, self.k, "Rotations", group)


@dataclass(frozen=True)
class Turned:
    """Clients as another partition makes them, their square images turned: client i by 360 g/k degrees, g = i mod k.

    `Turned(Iid(40), 4)` is `Rotations(4, 40)`. In a text: dirichlet=1+rotations=2.

    Arguments:
        deal: who gets which examples.
        k: how many groups.
    """

    deal: Partition
    k: int = 2

    def __post_init__(self) -> None:
        check_count("Turned.k", self.k)
        require(self.k <= 360, f"Turned.k must be at most 360, got {self.k}")

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool, dealt and turned."""
        dealt = self.deal(pool, seed)
        return _turned_by_group(dealt, self.k, "Turned", torch.arange(len(dealt.clients)) % self.k)


@dataclass(frozen=True)
class Sampled:
    """Clients as another partition makes them, of a sample of the examples, drawn by the seed.

    Where there are fewer, all are kept. In a text: dirichlet=1+sample=10000.

    Arguments:
        deal: who gets which examples.
        examples: how many for training, and as many for testing where the source says which those are.
    """

    deal: Partition
    examples: int

    def __post_init__(self) -> None:
        check_count("Sampled.examples", self.examples)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """A part of the pool, dealt."""
        kept = torch.zeros(len(pool.y), dtype=torch.bool)
        for purpose, mask in (("train", for_training(pool)), ("test", ~for_training(pool))):
            examples = mask.nonzero()[:, 0]
            order = draw.bits(seed, "sample", purpose, examples).argsort()
            kept[examples[order[: self.examples]]] = True
        return self.deal(some_of(pool, kept), seed)


def _turned_by_group(dealt: Pool, k: int, what: str, of_client: Tensor) -> Pool:
    size = tuple(dealt.x.shape[1:])
    require(
        len(size) == 3 and size[1] == size[2] and not dealt.symbols,
        f"{what} turns square images, but an example of '{dealt.name}' is {'x'.join(map(str, size))}; "
        "choose another partition",
    )
    require(
        dealt.kind != "boxes",
        f"{what} turns images and not the boxes in them, which '{dealt.name}' has; choose another partition",
    )
    assert dealt.client is not None
    group = of_client[dealt.client]
    x = dealt.x.clone()
    for g in range(1, k):
        x[group == g] = turned(dealt.x[group == g], 360 * g / k)
    return replace(dealt, x=x, group=group, group_names=tuple(f"{360 * g / k:g}°" for g in range(k)))


def turned(images: Tensor, degrees: float) -> Tensor:
    """Square images (n, channels, side, side) turned counter-clockwise; black comes in at the corners."""
    if degrees % 90 == 0:
        return torch.rot90(images, int(degrees // 90), (2, 3))
    if not len(images):
        return images
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = torch.tensor([[cosine, -sine, 0.0], [sine, cosine, 0.0]])
    parts = []
    for part in torch.split(images, 4_096):  # in parts: the sampling grid is larger than the images
        grid = affine_grid(turn.expand(len(part), 2, 3), list(part.shape), align_corners=False)
        parts.append(grid_sample(part.float(), grid, mode="bilinear", align_corners=False))
    sampled = torch.cat(parts)
    return sampled.round().clamp(0, 255).to(torch.uint8) if images.dtype == torch.uint8 else sampled


register(Partition, "rotations", Rotations, short="k")
register(Partition, "rotations", Turned, short="k", then="deal")
register(Partition, "sample", Sampled, short="examples", then="deal")
