"""What is hidden: something done to what leaves a client, and something to what a center has heard.

A privacy part must cover every name that leaves a client; an exchange that sends a bare one beside it is
refused when it is built.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import require, within
from ..language import register
from ..stacks import Cohort, Heard, Mixing, Stacks
from ..stacks.draw import normal

COLUMNS = 1 << 15  # numbers of a row drawn, or widened to float64, at once
Ups = Callable[[Cohort, str], Mixing]


@dataclass(frozen=True)
class Privacy:
    """The two sides of a mechanism; by default neither does anything, and nothing is promised."""

    covers: ClassVar[tuple[str, ...] | None] = None  # names it protects; None: nothing is promised

    @property
    def rho(self) -> float:
        """What an exchange costs, in zero-concentrated differential privacy; infinite: nothing is promised."""
        return math.inf

    def at_clients(self, rows: Stacks) -> Stacks:
        """Before anything leaves: clip."""
        return rows

    def at_centers(
        self, heard: dict[str, Heard], centers: Stacks, up: Ups, everyone: Cohort, arrived: Cohort
    ) -> dict[str, Heard]:
        """Before a center looks: noise. `up(who, name)` are the weights of some clients; `everyone` might have come."""
        return heard


@dataclass(frozen=True)
class NoPrivacy(Privacy):
    """Models travel as they are."""


@dataclass(frozen=True)
class Gaussian(Privacy):
    """Client-level differential privacy with trusted centers: updates are clipped, and every mean gets noise.

        client k:   D_k    <-  (w_k - start) min(1, C / |w_k - start|)
        center i:   w^(i)  <-  sum_k a_ik (start + D_k)  +  N(0, (z C s_i)^2 I),     s_i = max_k a_ik sqrt(c_k)

    a_ik is the weight of client k in the sum of center i, and c_k the number of centers that hear k. A client that two
    edges hear moves both, so what counts is the norm over all centers together: sum_i (a_ik C / (z C s_i))^2 <= 1 / z^2
    for every client, because each of its c_k terms is at most 1 / (c_k z^2). Where centers share no clients, s_i is the
    largest weight of a client in the sum of center i.

    Neighbours are federations in which the update of one client is zero in one of the two; who takes part, and how
    many examples each has, is no secret. Then an exchange costs rho = 1 / (2 z^2), T of them T times that, and
    `epsilon` says what that means. With a fixed denominator (`Star(denominator=...)`) the weights are those of
    everyone who might have come; otherwise those of the ones who came, over their sum.

    An update that is not finite is sent as none, so that nobody's absence tells. Noise is drawn by (seed, round,
    center): whoever knows the seed of a simulation can take it away again.

    Symbols:     C = `clip`, z = `noise`.
    Reduces to:  `NoPrivacy()`, bit for bit, with clip = inf and noise = 0.
    Reference:   McMahan et al., Learning differentially private recurrent language models, ICLR 2018,
                 https://arxiv.org/abs/1710.06963; Bun, Steinke, Concentrated differential privacy, TCC 2016
    """

    clip: float
    noise: float
    covers = ("model",)  # nothing else has a start to measure from

    def __post_init__(self) -> None:
        within(self, clip="> 0; try 1", noise="[0, inf); try 1")
        finite = not self.noise or self.clip < math.inf
        require(
            finite,
            "Gaussian with noise needs a finite clip, got clip=inf, which guarantees no privacy; try clip=1",
        )

    @property
    def rho(self) -> float:
        """1 / (2 z^2)."""
        return 1 / (2 * self.noise**2) if self.noise else math.inf

    def at_clients(self, rows: Stacks) -> Stacks:
        """Clip what was learned to length C."""
        if self.clip == math.inf:
            return rows
        start, model = rows["start"], rows["model"]
        for _ in range(2):  # once more where rounding has put a row outside again
            length = _distance(model, start)
            shorter = torch.where(length <= self.clip, 1.0, self.clip / length * (1 - 1e-7))[:, None]
            moved = start + shorter.to(model.dtype) * (model - start)
            model = torch.where(shorter == 1, model, moved)
        inside = _distance(model, start) <= self.clip * (1 + 1e-6)  # false for what is not finite, too
        return rows | {"model": torch.where(inside[:, None], model, start)}

    def at_centers(
        self, heard: dict[str, Heard], centers: Stacks, up: Ups, everyone: Cohort, arrived: Cohort
    ) -> dict[str, Heard]:
        """Noise on every center that heard somebody, or whose denominator is fixed."""
        if not self.noise:
            return heard
        values, mask = heard["model"]
        mixing = up(arrived, "model")
        scale = self.noise * self.clip * reach(mixing if mixing.rest == "share" else up(everyone, "model"))
        out = values.clone()
        for center in (mask & (scale > 0)).nonzero()[:, 0].tolist():
            for first in range(0, values.shape[1], COLUMNS):
                columns = torch.arange(first, min(first + COLUMNS, values.shape[1]))
                drawn = scale[center] * normal(*everyone.key, "privacy", center, columns)
                out[center, columns.to(out.device)] += drawn.to(out)
        return heard | {"model": Heard(out, mask)}


def reach(up: Mixing) -> Tensor:
    """How far one client can move every center, at most, all centers together being moved by one: (centers,).

    s_i = max_k a_ik sqrt(c_k), with the weights a as they are mixed: divided by their sum where the mixing is a mean.
    """
    receiver, sender, weight = up.links
    share = weight.abs() / up.total[receiver] if up.rest == "share" else weight.abs()
    heard_by = torch.bincount(sender, minlength=up.shape[1])[sender].double()
    out = torch.zeros(up.shape[0], dtype=torch.float64)
    return out.scatter_reduce(0, receiver, share * heard_by.sqrt(), "amax")


def epsilon(rho: float, delta: float) -> float:
    """The epsilon of (epsilon, delta)-differential privacy that zero-concentrated privacy rho gives.

    rho + 2 sqrt(rho ln(1 / delta)), Bun and Steinke's proposition 1.3. Rounds are added up as if everybody took part in
    all of them: an upper bound, without any gain from sampling.

    >>> round(epsilon(0.5, 1e-5), 3)
    5.299
    """
    require(0 < delta < 1, f"delta must be in (0, 1), got {delta}; try 1e-5")
    return rho + 2 * math.sqrt(rho * math.log(1 / delta)) if rho < math.inf else math.inf


def _distance(rows: Tensor, start: Tensor) -> Tensor:
    """|row - start|, (rows,) float64, some columns at a time."""
    out = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for first in range(0, rows.shape[1], COLUMNS):
        out += (rows[:, first : first + COLUMNS].double() - start[:, first : first + COLUMNS].double()).square().sum(1)
    return out.sqrt()


register(Privacy, "none", NoPrivacy)
register(Privacy, "gaussian", Gaussian)
