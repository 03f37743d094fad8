"""DP-FedAvg: FedAvg whose center learns no more of any one client than a stated epsilon.

    cohort:     every client by a coin of its own (Poisson), or a fixed number of them (uniform)
    client k:   D_k  <-  (w_k - w) min(1, C / |w_k - w|),       w_k from a few epochs of SGD
    center:     w    <-  w + 1/M [ sum_k D_k  +  N(0, (z C)^2 I) ],     M = q m (Poisson), or the cohort's size

Every client counts the same, whatever it has, and M is no secret: it does not depend on who came. Under Poisson an
empty cohort releases noise. Neighbours, and what epsilon means, are in `parts.accountant`: a client added or removed
(Poisson), or replaced by another (fixed size), which moves the sum twice as far.

Symbols:     q = `select.rate`, C = `clip`, z = `noise`, m = clients that have data.
Reduces to:  `fedavg` with equal weights, where clip = inf, noise = 0 and all take part.
Beware:      noise on the mean falls with one over M: a few dozen clients are too few for a useful model.
Reference:   McMahan et al., Learning differentially private recurrent language models, ICLR 2018,
             https://arxiv.org/abs/1710.06963; Andrew et al., NeurIPS 2021, https://arxiv.org/abs/1905.03871
"""

from typing import Any, Literal

from ..errors import require
from ..learn import Train
from ..method import Average, Center, Exchange, Method, Select, Star, recipe
from ..parts.accountant import Neighbours
from ..parts.denoise import Denoise
from ..parts.objective import Ball, Term
from ..parts.privacy import Gaussian
from ..parts.select import Poisson
from ..stacks.stack import WHOLE, Cut


@recipe
def dp_fedavg(
    *,
    select: Select = Poisson(0.1),
    clip: float = 1.0,
    noise: float | None = None,
    epsilon: float | None = None,
    neighbours: Neighbours | Literal["auto"] = "auto",
    quantile: float | None = None,
    pace: float = 0.2,
    denoise: Denoise | None = None,
    project: bool = False,
    center: Center = Average(),
    terms: tuple[Term, ...] = (),
    cut: Cut = WHOLE,
    secret: bool = False,
    **training: Any,
) -> Method:
    """FedAvg with client-level differential privacy; `training` are the arguments of `Train`.

    Arguments:
        select: who takes part: `Poisson(q)`, or `Uniform(share=q)` for cohorts of fixed size.
        clip: length that no update exceeds.
        noise: standard deviation of the noise on the sum, over the clip; 1 where no epsilon is given.
        epsilon: in place of noise: as much as the rounds of the run need for it.
        neighbours: "auto": what the sampling allows; "zero": who takes part is no secret, and sampling gains nothing.
        quantile: the clip follows this quantile of the updates' lengths, from `clip`.
        pace: of the clip's steps.
        denoise: what the center does to a noised update, such as `Laplacian(1)`.
        project: after every local step too, the model is brought back to within `clip` of its start.
        center: what the center does with the mean: `Average()`, `SGD(lr)`, `Momentum(lr, beta)`, `Adam(lr)`.
        cut: parameters that stay at home, such as `KeepPrivate("conv*")`.
        secret: noise that no seed tells, from the operating system.
    """
    noise = 1.0 if noise is None and epsilon is None else noise
    privacy = Gaussian(clip, noise, epsilon, neighbours, quantile, pace, denoise=denoise, secret=secret)
    require(not project or quantile is None, "project=True needs a clip that stays: leave out quantile, or project")
    train = Train(terms=(*terms, *((Ball(clip),) if project else ())), **training)
    exchange = Exchange((train,), Star.counting(select), select, optimizer=center, privacy=privacy)
    return Method.of("dp-fedavg", exchange, cut=cut)
