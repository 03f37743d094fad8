"""IFCA: K centers, and every client trains the one that fits its examples best.

    choose:     r_i   <-  argmin_k F_i(c_k)                       all K centers, by the loss on its training examples
    local:      w_i   <-  E epochs of SGD on F_i, from c_{r_i}
    center:     c_k   <-  mean of the w_i with r_i = k            a center that nobody chose keeps its model

Also known as HypCluster, which was found independently. A client is scored with the center that it would
choose by its training examples, never by those it is scored on.

Symbols:     K = `k`, r_i = `assignment`, c_k = row k of the centers.
Reduces to:  unweighted `fedavg` with k = 1; `fedavg` if also `weighted`. With `steps=1, batch=None, gradients=True` a
             center moves by lr/m times the sum of the gradients of those who chose it, m being all who take part.
Beware:      K models come down to every client. From random initial models a center may win all clients:
             `first="clustered"` begins as FeSEM does.
Reference:   Ghosh et al., An efficient framework for clustered federated learning, NeurIPS 2020,
             https://arxiv.org/abs/2006.04088; Mansour et al., Three approaches for personalization, 2020 (HypCluster)
"""

from dataclasses import replace
from typing import Any, Literal

from ..errors import require
from ..learn import Choose, Train, candidates
from ..method import (
    Aggregate,
    Average,
    Center,
    Everyone,
    Exchange,
    Mean,
    Method,
    NoPrivacy,
    Privacy,
    Select,
    recipe,
)
from ..topology import Choice, Seeding, TrimmedSeeding


@recipe
def ifca(
    *,
    k: int = 4,
    first: Literal["random", "clustered"] = "random",
    warm_up: int = 10,
    outliers: float = 0.0,
    weighted: bool = False,
    gradients: bool = False,
    select: Select = Everyone(),
    aggregate: Aggregate = Mean(),
    center: Center = Average(),
    privacy: Privacy = NoPrivacy(),
    **training: Any,
) -> Method:
    """IFCA with `k` centers; `training` are the arguments of `Train`.

    Arguments:
        k: how many centers.
        first: "random": every center begins from a draw of its own, as in the paper. "clustered": round 0 trains
            everybody from one model for `warm_up` epochs and clusters what they have learned, as FeSEM does.
        outliers: share of the clients that found no cluster in that round, such as that of the attackers: the rows
            farthest from all others are no seeds and count in no distance (trimmed k-means).
        weighted: centers count examples instead of clients.
        gradients: divide by all who take part, not by those who chose the center (the paper's gradient averaging).
        select: who takes part in a round.
        aggregate: `Mean()`, or a robust rule, which counts clients and not examples.
        privacy: `Gaussian(clip, noise, least=2)`: clients choose among centers that are noised already, and every
            center moves by a noised sum over a noised count; their choices are told to the centers and to nobody else.
    """
    require(first in ("random", "clustered"), f"first must be random or clustered, got {first!r}")
    require(
        not gradients or aggregate.linear,
        f"gradients=True divides a sum by all who take part, and {type(aggregate).__name__} is no sum: leave one out",
    )
    require(
        not outliers or first == "clustered",
        f"outliers={outliers:g} is of the clustering in round 0, which first='random' has not: use first='clustered'",
    )
    hidden = privacy.covers is not None
    require(
        not hidden or (first == "random" and not weighted and not gradients),
        "privacy needs first='random', weighted=False and gradients=False: a first clustering reads what clients send, "
        "and counts are noised",
    )
    train = Train(**training)
    topology = Choice(k, weighted, gradients, select.chance(1 << 20).rate if hidden else None)
    told: dict[str, Any] = {"receives": candidates(k), "tells": ("choice",), "unpack": (Choose(k),)}
    exchange = Exchange((train,), topology, select, aggregate, center, privacy, **told)
    if first == "random":
        return Method.of("ifca", exchange)
    trimmed = TrimmedSeeding(k, rule=aggregate, outliers=outliers, weighted=weighted)
    clustering = trimmed if outliers else Seeding(k, weighted=weighted)
    seed = Exchange((replace(train, epochs=warm_up, steps=None),), clustering, aggregate=aggregate)
    return Method("ifca", ((1, (seed,)), (1, (exchange,))))
