"""Gate: a general model that everybody shares under DP-SGD, a private one at every client, and a gate between them.

    answer:     y(x)  =  a_k(x) G(x) + (1 - a_k(x)) P_k(x),          a_k(x) = sigmoid(w_k . u + b_k),   u from x (fixed)
    client k:   P_k, w_k, b_k  <-  SGD on the loss of y, with decay/2 |w_k|^2, where G is the model received
                G_k            <-  DP-SGD on the loss of G alone:  1/n_b [ sum_e clip(g_e, C) + N(0, (z C)^2 I) ]
    center:     G              <-  sum_k (n_k / n) G_k;        P_k, w_k and b_k never leave the client

Probabilities are mixed, not logits (`models.gated`). Both trainings begin at the model received, as if they took their
steps at once. G follows its own loss and not that of the mixture: that one depends on P_k, which has seen the same
examples without noise, and one example could then change what all others add (`joint=True` does it nevertheless, and
nothing is promised).

Symbols:     C and z = `hide`, decay = `gate_decay`; `model`: G, `private`: P_k and b_k, `gate`: w_k.
Reduces to:  `fedavg` with the same `hide` for G, whatever the gate does: `fedsgd` with steps = 1, batch = None, hide =
             None; where the gate is shut (a = 0), P_k is trained as in `nofed`, and where it is open y is G.
Beware:      the private model and the gate overfit as any model does that is trained alone; scores tell of both.
Reference:   Peterson, Kanani, Marathe, Private federated learning with domain adaptation, 2019,
             https://arxiv.org/abs/1912.06733; DP-SGD: Abadi et al., CCS 2016, https://arxiv.org/abs/1607.00133
"""

import warnings
from dataclasses import replace
from typing import Any

from ..learn import Train
from ..method import Aggregate, Average, Center, Everyone, Exchange, Mean, Method, Select, Star, recipe
from ..models.gated import Gated
from ..parts.example_noise import ExampleNoise
from ..parts.objective import Ridge, Term
from ..stacks.stack import Cut

CUT = Cut({"gate": ("gate.*.weight",), "private": ("private.*", "gate.*.bias")})


@recipe
def gate(
    *,
    private: str = "same",
    hide: ExampleNoise | None = ExampleNoise(clip=1.0, noise=1.0),
    private_lr: float | None = None,
    gate_decay: float = 0.01,
    joint: bool = False,
    batch: int | None = 32,
    equal: bool = False,
    select: Select = Everyone(),
    center: Center = Average(),
    aggregate: Aggregate = Mean(),
    terms: tuple[Term, ...] = (),
    **training: Any,
) -> Method:
    """A general model, a private one and a gate; `training` are the arguments of `Train`, for both models.

    Arguments:
        private: the private model: "same" as the general one, or another by name, such as "logistic".
        hide: how the general model hides examples; None: not at all.
        private_lr: learning rate of the private model and the gate; None: `lr`.
        gate_decay: weight decay of the gate's w.
        joint: the general model follows the loss of the mixture: nothing is promised then.
        batch: examples in a step.
        equal: count every client the same instead of by its examples.
        terms: added to the loss of the general model.
    """
    general = Train(trains=("model",), part="" if joint else "general", hide=hide, batch=batch, terms=terms, **training)
    own = Train(trains=("private", "gate"), batch=batch, terms=(Ridge(gate_decay, "gate"),), **training)
    own = own if private_lr is None else replace(own, lr=private_lr)
    if joint and general.hides:
        warnings.warn(
            "joint=True: the general model follows a loss that depends on the private model, which has seen the same "
            "examples without noise; noise is added, but nothing is promised, and there is no epsilon",
            stacklevel=3,
        )
    exchange = Exchange((own, general), Star(equal), select, aggregate, center)
    return replace(Method.of("gate", exchange, cut=CUT), around=Gated(private))
