"""FeSEM: K centers, learned together with the matching between clients and centers.

    E-step:     r     <-  the best K groups of the D_i = w_i(a) - a,  a = mean_k c_k        "anchor", every T rounds
                r_i   <-  argmin_k |w_i - c_k|^2                  "distance": the nearest center, in every round
                r_i   <-  argmin_k F_i(c_k)                       "loss": as IFCA; all K centers come down
    M-step:     c_k   <-  mean of the w_i with r_i = k            every center becomes the mean of its clients
    local:      w_i   <-  E epochs of SGD on F_i (+ pull/2 |w - c_{r_i}|^2),  from c_{r_i}

The first round begins from one model: clients train, what they learned is clustered from 20 different seeds, and the
clustering with the smallest intra-cluster distance makes the K centers. (Without training first, every distance
would be zero.) A client that comes later, or is only scored, goes to the center that fits its training examples best.

With `k="auto"` all begin at one center, and how many there are is found in round 1, and again every T rounds, from what
clients learn on two halves of their examples (`HowMany` has the equations): centers split, merge, or stay one.

The paper's E-step is "distance". A client trains from its own center, so its model stays nearest to it, and a wrong
group is hardly ever left. With "anchor" all clients train once more every T rounds, from one model, and are grouped by
the ways they go; it sends one model each way.

Symbols:     K = `k`, T = `every`, r_i = `assignment`, c_k = row k of the centers, w_i(a) what client i learns from a;
             `pull` = lambda of the paper's second version.
Reduces to:  unweighted `fedavg` with k = 1 and warm_up = None; `fedavg` if also `weighted`. The unweighted M-step is an
             orthogonal projection: the mean over all clients is kept.
Beware:      distances mean something only between models grown from a common ancestor; a center that nobody chooses
             keeps its model.
Reference:   Xie et al., Multi-center federated learning, 2020, https://arxiv.org/abs/2005.01026
"""

from dataclasses import replace
from typing import Any, Literal

from ..errors import require
from ..learn import HALVES, Choose, GainOnHalf, Train, TrainOnHalf, TryEach, candidates
from ..method import Aggregate, Average, Center, Everyone, Exchange, Held, Mean, Method, Select, recipe
from ..parts.objective import Prox, Term
from ..parts.select import Sometimes
from ..topology import (
    Anchored,
    ByWays,
    Choice,
    Clusters,
    HowMany,
    IfItPays,
    NewcomerAssignment,
    Newcomers,
    Proposed,
    Seeding,
)


@recipe
def fesem(
    *,
    k: int | Literal["auto"] = 4,
    most: int = 12,
    pull: float = 0.0,
    weighted: bool = False,
    restarts: int = 20,
    seeding: Literal["kmeans++", "random"] = "kmeans++",
    warm_up: int | None = 10,
    features: str = "all",
    absent: Literal["out", "last"] = "out",
    reseed: bool = False,
    newcomers: Literal["loss", "steps"] | None = None,
    match: Literal["anchor", "distance", "loss"] = "anchor",
    every: int = 5,
    by: Literal["cosine", "distance"] = "cosine",
    first: Select = Everyone(),
    select: Select = Everyone(),
    aggregate: Aggregate = Mean(),
    center: Center = Average(),
    terms: tuple[Term, ...] = (),
    **training: Any,
) -> Method:
    """FeSEM with `k` centers; `training` are the arguments of `Train`.

    Arguments:
        k: how many centers; more than there are clients are not made. "auto": as many as there are groups.
        most: with k="auto", how many there may be.
        pull: ties a client to its center while it trains (0: version 1 of the paper).
        weighted: centers count examples instead of clients.
        restarts, seeding, first: of the clustering in round 0, and who takes part in it.
        warm_up: epochs of that round; too few, and the groups are not yet apart. None: as in the other rounds.
        features: distances are between "all" parameters, those of the "last_layer", or of names: "head.*,conv2.*".
        absent: clients away in a round count in their center by the row they sent "last", or stay "out".
        reseed: a center without clients begins again at the row farthest from its own center.
        match: how clients find their center after round 0: by their updates from an "anchor", the mean of the centers;
            by the "distance" of their models (the paper); or by their "loss" (IFCA).
        every: rounds from one anchored exchange to the next, in which the clients of `first` take part.
        by: what makes updates alike: "cosine", the direction alone, or "distance".
        newcomers: go to the center of the lowest "loss" (None: this), or train from each and go where those "steps"
            move them least. With k="auto" they train from one model, and go where clients have learned most alike.
        select: who takes part in the rounds after the first.
        aggregate: `Mean()`, or a robust rule, which counts clients and not examples.
    """
    require(
        warm_up is None or warm_up >= 1,
        f"warm_up must be at least 1 or None, got {warm_up}: all models would be the same; try 5",
    )
    require(match in ("anchor", "distance", "loss"), f"match must be anchor, distance or loss, got {match!r}")
    require(match != "loss" or absent == "out", "absent='last' goes with match='anchor' or 'distance': leave it out")
    require(not reseed or match == "distance", f"reseed goes with match='distance' only, got {match!r}: leave it out")
    require(
        absent == "out" or center == Average(),
        "absent='last' goes with center=Average() only: leave center out, or use absent='out'",
    )
    train = Train(terms=((Prox(pull),) if pull else ()) + terms, **training)
    steady = replace(train, inertia=0.0)  # of trainings that only find who belongs where
    long = train if warm_up is None else replace(train, epochs=warm_up, steps=None)
    require(k == "auto" or most == 12, f"most={most} is for k='auto': give it so, or leave most out, got k={k}")
    if k == "auto":
        wrong = {"match": match != "anchor", "absent": absent != "out", "seeding": seeding != "kmeans++"}
        wrong |= {"newcomers": newcomers is not None}
        bad = ", ".join(name for name, is_wrong in wrong.items() if is_wrong)
        require(not bad, f"{bad} cannot be chosen with k='auto': leave it out, or give the number of centers, as k=4")
        own: dict[str, Any] = {"features": features, "together": True}
        learn = Exchange((train,), Clusters(most, weighted, frozen=True, **own), select, aggregate, center)
        group_by = HowMany(most, restarts=restarts, by=by, **own)
        find, find_again = (
            Exchange(
                (TrainOnHalf(how, 0), TrainOnHalf(how, 1)), group_by, who, sends=HALVES, holds={"anchor": Held(None)}
            )
            for how, who in ((replace(long, inertia=0.0), first), (steady, Sometimes(every, first)))
        )
        both: dict[str, Any] = {"receives": ("own0", "own1", "one0", "one1"), "tells": ("gain0", "gain1")}
        judge = Exchange((GainOnHalf(0), GainOnHalf(1)), IfItPays(most, **own), Proposed(), sends=(), **both)
        place = Exchange((steady,), ByWays(most, **own), Newcomers(), sends=(), tells=("model",))
        return Method("fesem", ((1, (learn,)), (1, (find, judge, learn)), (1, (place, find_again, judge, learn))))
    seed = Seeding(k, restarts, seeding=seeding, weighted=weighted, features=features, absent=absent)
    look = TryEach(k, steady) if newcomers == "steps" else Choose(k)
    greet = NewcomerAssignment(k, absent=absent)
    place = Exchange((look,), greet, Newcomers(), receives=candidates(k), sends=(), tells=("choice",))
    start = (1, (Exchange((long,), seed, first, aggregate),))
    if match == "loss":
        told: dict[str, Any] = {"receives": candidates(k), "tells": ("choice",), "unpack": (Choose(k),)}
        return Method(
            "fesem", (start, (1, (Exchange((train,), Choice(k, weighted), select, aggregate, center, **told),)))
        )
    clusters = Clusters(k, weighted, features=features, absent=absent, reseed=reseed, frozen=match == "anchor")
    learn = Exchange((train,), clusters, select, aggregate, center)
    if match == "distance":
        return Method("fesem", (start, (1, (place, learn))))
    anchored = Anchored(k, features=features, absent=absent, by=by)
    group = Exchange((replace(train, inertia=0.0),), anchored, Sometimes(every, first), sends=(), tells=("model",))
    return Method("fesem", (start, (1, (place, group, learn))))
