"""LG-FedAvg: every client has a representation of its own, and the center averages what reads it (or the reverse).

    client m:   theta_m   <-  theta_m - eta_l grad L_m          its own, kept from round to round
                theta^g_m <-  theta^g_m - eta_g grad L_m        in the same steps, from theta^g
    center:     theta^g   <-  sum_m (n_m / n) theta^g_m

Adversarial: a small model a_m on the representation h predicts a protected attribute, and stays at home as well:

    min over (theta_m, theta^g)  max over a_m   L_m - lambda L^a_m,     the epochs of a_m, then those of the others

Symbols:     theta^g = `model`, what `shares` names; theta_m = `local`, the rest; a_m = `auxiliary`; eta_g = `lr`,
             eta_l = `local_lr`, lambda = `adversary`.
Reduces to:  `fedavg` with the same parameters kept private; `fedavg` itself while it warms up, and where all are
             shared; `nofed` where none are. lambda = 0 leaves all but a_m as it is without, bit for bit.
Beware:      a device that was never seen has no part of its own: `unseen` scores three ways around that. A client all
             of whose examples have one value of the attribute teaches its adversary nothing.
Reference:   Liang et al., Think locally, act globally: federated learning with local and global representations,
             2020, https://arxiv.org/abs/2001.01523
"""

from dataclasses import replace
from typing import Any

from ..errors import require
from ..learn import Learner, Train, TrainWithAuxiliary
from ..method import Aggregate, Average, Center, Everyone, Exchange, Mean, Method, NoPrivacy, Privacy, Select, recipe
from ..models.auxiliary import Auxiliary
from ..stacks.stack import ShareOnly
from ..topology import Star


@recipe
def lg_fedavg(
    *,
    shares: str = "last_layer",
    local_lr: float | None = None,
    warm_up: int = 0,
    adversary: float | None = None,
    auxiliary: float | None = None,
    hidden: int = 32,
    select: Select = Everyone(),
    center: Center = Average(),
    aggregate: Aggregate = Mean(),
    privacy: Privacy = NoPrivacy(),
    equal: bool = False,
    **training: Any,
) -> Method:
    """LG-FedAvg; `training` are the arguments of `Train`.

    Arguments:
        shares: the parameters that are shared: "last_layer", or patterns of their names with commas between them.
        local_lr: learning rate of the others; None: `lr`.
        warm_up: rounds of FedAvg before; then everybody receives the other parameters once, and keeps them.
        adversary: lambda; the representation hides a protected attribute. None: there is no second model.
        auxiliary: weight of a second model's loss that is minimised; the representation shows the attribute.
        hidden: width of the second model.
        select, center, aggregate, privacy: as in `fedavg`.
        equal: count every client the same instead of by its examples.
    """
    require(warm_up >= 0, f"warm_up must be 0 rounds or more, got {warm_up}; 0 begins with shared and local parts")
    for name, strength in (("adversary", adversary), ("auxiliary", auxiliary)):
        require(strength is None or 0 <= strength < 1e30, f"{name} must be >= 0, got {strength}; try 0.1")
    require(adversary is None or auxiliary is None, "adversary and auxiliary do the opposite: choose one of them")
    training |= {} if local_lr is None else {"rates": (("local", local_lr),)}
    learn: tuple[Learner, ...] = (Train(**training),)
    cut, second = ShareOnly(shares=shares), None
    if adversary is not None:
        own = TrainWithAuxiliary(**training, trains=("auxiliary",), alone=True)
        against: dict[str, Any] = training | {"trains": ("model", "local")}
        learn = (own, TrainWithAuxiliary(**against, strength=-adversary) if adversary else Train(**against))
    if auxiliary is not None:
        learn = (TrainWithAuxiliary(**training, strength=auxiliary),)
    if adversary is not None or auxiliary is not None:
        second = Auxiliary(cut, hidden)
        cut = ShareOnly({"auxiliary": ("auxiliary.*",)}, shares, "model.")
    exchange = Exchange(learn, Star(equal), select, aggregate, center, privacy)
    phases: list[tuple[int, tuple[Exchange, ...]]] = [(1, (exchange,))]
    if warm_up:
        both = ("model", "local")
        whole = replace(exchange, receives=both, sends=both)
        hand_over = Exchange((), Star(), receives=("local",), sends=(), keeps=("local",))
        phases = [(1, (whole, hand_over)), *phases]
        phases = [(warm_up - 1, (whole,)), *phases] if warm_up > 1 else phases
    return Method("lg-fedavg", tuple(phases), cut, second)
