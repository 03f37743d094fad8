"""Features in different units, brought to one scale.

    mean_j   = sum_k sum_i x_kij / n,      spread_j = sqrt(sum_k sum_i (x_kij - mean_j)^2 / n)
    x_kij   <- (x_kij - mean_j) / spread_j

over the training examples i of all clients k, n in all, for every feature j (every channel of a series). Both are made
of sums over clients, one after the other, so that clients who keep their data can do the same. A feature that is
constant in training becomes 0 there: its spread counts as 1.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..errors import require
from .federation import Federation, Scaling, Split


def standardised(federation: Federation) -> Federation:
    """The same clients with features about zero and of one scale, by their training examples alone."""
    has = "symbols" if federation.symbols else "images from 0 to 1 already"
    good = scalable(federation)
    require(
        good, f"standardise is for features and series of real numbers; '{federation.name}' has {has}: leave it out"
    )
    mean, spread = moments(federation.train)
    spread = torch.where(spread > 0, spread, 1.0)
    scaling = Scaling(mean, spread)

    def scaled(split: Split) -> Split:
        return replace(split, x=scaling(split.x))

    train, valid, test = map(scaled, (federation.train, federation.valid, federation.test))
    note = f"{federation.note}; " if federation.note else ""
    kinds = (federation.recipe or {}).get("inputs", {})
    pixels = [f"'{name}'" for name, kind in kinds.items() if kind == "uint8"]
    among = f", among them every pixel of {' and '.join(pixels)}" if pixels else ""
    said = f"{note}features standardised by all training examples{among}"
    return replace(federation, train=train, valid=valid, test=test, scaling=scaling, note=said)


def scalable(federation: Federation) -> bool:
    """Whether examples are real numbers: features (features,) or series (channels, time)."""
    x = federation.train.x
    return not federation.symbols and x.is_floating_point() and x.dim() in (2, 3)


def moments(train: Split) -> tuple[Tensor, Tensor]:
    """Mean and spread of every feature over all training examples, (features,) each, or (channels, 1) of series."""
    x = train.x.double()
    over = (0,) if x.dim() == 2 else (0, 2)
    n = x.numel() // x.shape[1]
    mean = x.sum(over) / n
    about = mean if x.dim() == 2 else mean[:, None]
    spread = ((x - about).square().sum(over) / n).sqrt()
    # Of a constant such as 0.1 rounding leaves a little.
    spread = torch.where(spread > 1e-9 * mean.abs(), spread, 0.0)
    return about, spread if x.dim() == 2 else spread[:, None]
