"""FedAvg as meta-learning: FedAvg(E) with momentum at the center, then Reptile(K) with Adam, then personalisation.

    phase 1, `rounds` rounds:   FedAvg(E), weights by data, center  v <- beta v + g,  w <- w - v
    phase 2, to the end:        Reptile(K), equal weights, center Adam
    at the end:                 every client fine-tunes for itself (`--fine-tune`), scored before and after

Symbols:     E = `epochs`, K = `steps`; g = w - mean of what was heard.
Reduces to:  `fedavg` in phase 1 with beta = 0.
Reference:   Jiang et al., Improving federated learning personalization via model agnostic meta learning, 2019,
             https://arxiv.org/abs/1909.12488
"""

from typing import Any

from ..errors import require
from ..learn import Train
from ..method import Aggregate, Center, Everyone, Exchange, Mean, Method, NoPrivacy, Privacy, Select, Star, recipe
from ..parts.optimizer import Adam, Momentum


@recipe
def meta(
    *,
    rounds: int = 100,
    epochs: int = 5,
    steps: int = 10,
    first: Center = Momentum(lr=1.0, beta=0.9),
    second: Center = Adam(lr=1e-3, eps=1e-5),
    select: Select = Everyone(),
    aggregate: Aggregate = Mean(),
    privacy: Privacy = NoPrivacy(),
    **training: Any,
) -> Method:
    """`rounds` of FedAvg(`epochs`), then Reptile(`steps`); `training` are the other arguments of `Train`."""
    require(rounds >= 1, f"rounds of the first phase must be at least 1, got {rounds}; for Reptile alone use reptile")
    average = Exchange((Train(epochs=epochs, **training),), Star(), select, aggregate, first, privacy)
    tune = Exchange((Train(steps=steps, **training),), Star(equal=True), select, aggregate, second, privacy)
    return Method("meta", ((rounds, (average,)), (1, (tune,))))
