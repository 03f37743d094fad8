"""DP-Fed-LS: DP-FedAvg whose noised update is smoothed before the center moves.

    center:     w  <-  w + A_sigma^-1 [ 1/M (sum_k D_k + N(0, (z C)^2 I)) ],        A_sigma = I + sigma L

L is the Laplacian of a cycle over the numbers of a tensor: `parts.denoise.Laplacian`. Smoothing sees what was released
already, so epsilon does not depend on sigma. Clients are brought back to within C of their start after every step.

Symbols:     sigma = `sigma`; the others are those of `dp-fedavg`.
Reduces to:  `dp-fedavg` with sigma = 0, bit for bit (there with project=True).
Reference:   Liang, Wang, Gu, Osher, Yao, Differentially private federated learning with Laplacian smoothing, 2020,
             https://arxiv.org/abs/2005.00218
"""

from typing import Any, Literal

from ..learn import Train
from ..method import Average, Center, Exchange, Method, Select, Star, recipe
from ..parts.accountant import Neighbours
from ..parts.denoise import Laplacian
from ..parts.objective import Ball, Term
from ..parts.privacy import Gaussian
from ..parts.select import Poisson
from ..stacks.stack import WHOLE, Cut


@recipe
def dp_fed_ls(
    *,
    sigma: float = 1.0,
    whole: bool = False,
    select: Select = Poisson(0.1),
    clip: float = 1.0,
    noise: float | None = None,
    epsilon: float | None = None,
    neighbours: Neighbours | Literal["auto"] = "auto",
    project: bool = True,
    center: Center = Average(),
    terms: tuple[Term, ...] = (),
    cut: Cut = WHOLE,
    secret: bool = False,
    **training: Any,
) -> Method:
    """DP-FedAvg with Laplacian smoothing; `training` are the arguments of `Train`, all others those of `dp_fedavg`.

    Arguments:
        sigma: how much is smoothed; 0 smooths nothing.
        whole: smooth the whole model as one vector, instead of tensor by tensor.
        project: after every local step too, the model is brought back to within `clip` of its start.
    """
    noise = 1.0 if noise is None and epsilon is None else noise
    smooth = Laplacian(sigma, whole)
    privacy = Gaussian(clip, noise, epsilon, neighbours, denoise=smooth if sigma else None, secret=secret)
    train = Train(terms=(*terms, *((Ball(clip),) if project else ())), **training)
    exchange = Exchange((train,), Star.counting(select), select, optimizer=center, privacy=privacy)
    return Method.of("dp-fed-ls", exchange, cut=cut)
