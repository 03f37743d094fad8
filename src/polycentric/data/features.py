"""Features of series: a few dozen numbers that say of a window what a linear model can use.

    find("features(har)")                    every window as 119 numbers, all classes
    find("features(har,SITTING)")            one class against all others
    find("features(har,SITTING,shuffled)")   the same; some of every client's windows, drawn at random, are for testing

Of every channel, and of the length |(x, y, z)| of every three channels in a row: mean, deviation, smallest and largest
value, quartiles, mean square of the differences from one moment to the next, and the shares of energy in five bands of
frequency (octaves, up to half the rate of samples); and the correlation of every two channels. Deviations and mean
squares are on a logarithmic scale. Last, every feature has mean zero and deviation one over the training examples.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from ..errors import UsageError, require, unknown
from .federation import Pool

BANDS = 5
SMALL = 1e-6  # below what a sensor can tell


def features(pool: Pool, one: str = "", how: str = "") -> Pool:
    """A pool of series (channels, time) as standardised features, perhaps of one class against the rest.

    Arguments:
        pool: series.
        one: name of the class that is told from all others; empty: all classes.
        how: "shuffled" forgets which examples the source meant for testing. Where windows overlap, neighbours of a
            test example are then in training: scores are too good, as they are in papers that do the same.
    """
    if pool.x.dim() != 3 or not pool.x.is_floating_point():
        raise UsageError(
            f"features are made of series of shape (channels, time), but '{pool.name}' has examples of shape "
            f"{tuple(pool.x.shape[1:])}; use the data as they are"
        )
    require(how in ("", "shuffled"), f"features({pool.name},CLASS,shuffled) is what can be asked for, got '{how}'")
    if one:
        good = pool.kind == "classes"
        require(good, f"features({pool.name},CLASS) is for data with one class an example; leave the class out")
        if one not in pool.classes:
            raise unknown(f"class of {pool.name}", one, pool.classes)
        label = (pool.y == pool.classes.index(one)).long()
        pool = replace(pool, y=label, classes=("others", one))
    found = torch.cat([described(part.double()) for part in torch.split(pool.x, 4096)])
    test = pool.test if pool.test is not None else torch.zeros(len(found), dtype=torch.bool)
    mean, spread = found[~test].mean(0), found[~test].std(0).clamp(min=SMALL)
    words = ",".join(word for word in (pool.name, one, how) if word)
    made = replace(pool, name=f"features({words})", x=((found - mean) / spread).float())
    return replace(made, test=None, common_test=None) if how else made


def described(x: Tensor) -> Tensor:
    """Features of series (examples, channels, time), not yet standardised."""
    lengths = [part.square().sum(1).sqrt() for part in torch.split(x, 3, 1) if part.shape[1] == 3]
    every = torch.cat([x, *(length[:, None] for length in lengths)], 1)
    mean, spread = every.mean(2), every.std(2)
    order = every.sort(2).values
    n = order.shape[2]
    quartiles = [order[:, :, int(q * (n - 1))] for q in (0.25, 0.5, 0.75)]
    change = every.diff(dim=2).square().mean(2)
    power = torch.fft.rfft(every - mean[:, :, None]).abs().square()[:, :, 1:]
    edges = [0, *(max(1, power.shape[2] >> (BANDS - 1 - b)) for b in range(BANDS))]
    total = power.sum(2) + SMALL
    bands = [power[:, :, a:b].sum(2) / total for a, b in pairwise(edges)]
    sizes = [(spread + SMALL).log(), (change + SMALL).log()]
    parts = [mean, order[:, :, 0], order[:, :, -1], *quartiles, *sizes, *bands]
    centered = x - x.mean(2, keepdim=True)
    unit = centered / (centered.norm(dim=2, keepdim=True) + SMALL)
    upper = torch.triu_indices(x.shape[1], x.shape[1], 1)
    return torch.cat([*parts, (unit @ unit.mT)[:, upper[0], upper[1]]], 1)
