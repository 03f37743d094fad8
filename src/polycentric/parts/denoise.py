"""What a center does to a noised update before it moves: smooth it, shrink it, or drop what is small.

    w  <-  w + denoise(heard - w),      nu the standard deviation of the noise on every number

It sees what was released already, so it costs no privacy.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import require, within
from ..language import register


class Denoise(ABC):
    """A function of a noised update; `whole`: of all numbers as one vector, or tensor by tensor."""

    whole: bool

    def __call__(self, update: Tensor, nu: Tensor, sizes: list[int]) -> Tensor:
        """The update (centers, width) of tensors of these sizes; `nu`: (centers,) of every center's noise."""
        known = self.whole or sum(sizes) == update.shape[-1]
        require(known, "which numbers belong to a tensor is known when a run begins: start it with `pc.run`")
        parts = [update] if self.whole else torch.split(update, sizes, -1)
        return torch.cat([self.of(part.double(), nu.to(update.device)[:, None]) for part in parts], -1).to(update)

    @abstractmethod
    def of(self, g: Tensor, nu: Tensor) -> Tensor:
        """One tensor of every center, (centers, d) float64."""


@dataclass(frozen=True)
class Laplacian(Denoise):
    """Laplacian smoothing: numbers that lie beside each other in a tensor become more alike.

        A g' = g,     A = I + sigma L,     L = circ(2, -1, 0, .., 0, -1)         the positive Laplacian of a cycle
        g' = F^-1 ( F g / (1 + 2 sigma (1 - cos(2 pi j / d))) )                   by a Fourier transform over d numbers

    The mean of a tensor stays, nothing grows longer, and the energy of noise shrinks by (1 + 2 sigma) / (1 + 4
    sigma)^1.5 as d grows: 0.27 at sigma = 1. (With d = 2 both neighbours are the same number, so L = [[2, -2],
    [-2, 2]]; one number is its own mean.)

    Symbols:     sigma = `sigma`.
    Reduces to:  nothing with sigma = 0; the mean of every tensor as sigma grows.
    Reference:   Liang et al., Differentially private federated learning with Laplacian smoothing, 2020,
                 https://arxiv.org/abs/2005.00218; Osher et al., Laplacian smoothing gradient descent, 2018
    """

    sigma: float = 1.0
    whole: bool = False

    def __post_init__(self) -> None:
        within(self, sigma="[0, inf); try 1")

    def of(self, g: Tensor, nu: Tensor) -> Tensor:
        """Divide every frequency."""
        d = g.shape[-1]
        if not self.sigma or not d:
            return g
        turn = 2 * math.pi / d * torch.arange(d // 2 + 1, dtype=torch.float64, device=g.device)
        smooth: Tensor = torch.fft.irfft(torch.fft.rfft(g) / (1 + 2 * self.sigma * (1 - turn.cos())), n=d)
        return smooth


@dataclass(frozen=True)
class JamesStein(Denoise):
    """Shrink towards zero by what noise alone would add: g max(0, 1 - (d - 2) nu^2 / |g|^2).

    Reference: James and Stein, Estimation with quadratic loss, 1961; Balle and Wang, ICML 2018, as here
    """

    whole: bool = False

    def of(self, g: Tensor, nu: Tensor) -> Tensor:
        """Never beyond zero."""
        noise = max(g.shape[-1] - 2, 0) * nu.double().square()
        length = g.square().sum(-1, keepdim=True)
        return g * (1 - noise / length.clamp(min=1e-300)).clamp(min=0)


@dataclass(frozen=True)
class SoftThreshold(Denoise):
    """Move every number towards zero by nu sqrt(2 ln d): of noise alone almost nothing is left.

    Reference: Donoho, De-noising by soft-thresholding, 1995; Balle and Wang, ICML 2018, as here
    """

    whole: bool = False

    def of(self, g: Tensor, nu: Tensor) -> Tensor:
        """What is smaller is zero."""
        bound = nu.double() * math.sqrt(2 * math.log(max(g.shape[-1], 1)))
        return g.sign() * (g.abs() - bound).clamp(min=0)


register(Denoise, "laplacian", Laplacian, short="sigma")
register(Denoise, "james-stein", JamesStein)
register(Denoise, "soft-threshold", SoftThreshold)
