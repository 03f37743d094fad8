"""FedMes: several edges with overlapping cells; clients in an overlap carry models from cell to cell, without a cloud.

    edge i:     w^(i)  <-  sum_k gamma_k^(i) w_k        over the clients it heard: gamma_k^(i) ~ alpha_u n_k where it
                                                        alone covers k, alpha_v n_k in an overlap; they sum to one
    client k:   start  <-  sum_i N_i w^(i) / sum_i N_i  over the edges that cover it, N_i the data edge i heard
                w_k    <-  E epochs of SGD on F_k, from there
    at the end: w^f    <-  1/L sum_i w^(i)              every edge counts the same (`average_accuracy`)

Symbols:     L = number of edges, alpha_u = `alpha_u`, alpha_v = `alpha_v` (only their ratio matters), m_s = n of
             `ByCell(n)`: clients heard by each edge, an overlap's clients picked once for all its edges.
Reduces to:  `fedavg` with one edge, or where all edges cover everybody; isolated cells, `hierarchical(every=0)`, where
             none overlap; FedAvg of its own cell at every edge with alpha_u = alpha_v; with one edge and several
             `models` to weighted `fesem`.
Beware:      what clients learn is averaged without bias only if alpha_u = 2 alpha_v (equal cells and clients); more
             weight on bridges makes edges agree sooner and tilts the model to the bridges' data.
Reference:   Han et al., FedMes: speeding up federated learning with multiple edge servers, IEEE JSAC 2021
"""

import math
from dataclasses import replace
from typing import Any, Literal

from ..errors import require
from ..learn import Train
from ..method import Aggregate, Average, Center, Everyone, Exchange, Mean, Method, NoPrivacy, Privacy, Select, recipe
from ..parts.select import Sometimes
from ..topology import AnchoredCells, CellClusters, Cells
from ..topology.cells.coverage import Geometry
from ..topology.cells.shapes import Overlap
from ..topology.cells.tables import geometry


@recipe
def fedmes(
    *,
    cells: Geometry = Overlap(20, 10),
    alpha_u: float = 1.0,
    alpha_v: float = 1.0,
    models: int = 1,
    match: Literal["distance", "anchor"] = "distance",
    every: int = 5,
    select: Select = Everyone(),
    center: Center = Average(),
    aggregate: Aggregate = Mean(),
    privacy: Privacy = NoPrivacy(),
    **training: Any,
) -> Method:
    """FedMes; `training` are the arguments of `Train` (lr, epochs, batch, ...).

    Arguments:
        cells: who is covered by whom: `Overlap(u, v, w)`, `RingCells()`, `CellRegions()`, `CellTable()`, `CellMap()`.
        alpha_u: weight of a client that one edge alone covers.
        alpha_v: weight of a client in an overlap.
        models: of every edge; with several, clients find theirs at each edge that covers them, as in FeSEM.
        match: how they find it after round 0: the one at the smallest "distance", in every round, or by their updates
            from the mean of the edges' models, an "anchor", every so many rounds.
        every: rounds from one anchored exchange to the next.
        select: who takes part; `ByCell(20)` is the paper's rule; `ByCell(20, of=Active(1))` prefers high losses.
        center: what every edge does with its mean.
        aggregate: `Mean()`, or a robust rule, by itself at every edge.
        privacy: `Gaussian(clip, noise)` hides what any one client sends, from all edges together.
    """
    for name, alpha in (("alpha_u", alpha_u), ("alpha_v", alpha_v)):
        require(0 < alpha < math.inf, f"{name} must be positive, got {alpha}; only alpha_v / alpha_u matters, try 1")
    cells = geometry(cells)
    require(models >= 1, f"models must be at least 1, got {models}")
    require(models <= 1000, f"models must be at most 1,000 at every edge, got {models}")
    require(match in ("distance", "anchor"), f"match must be distance or anchor, got {match!r}")
    good = models > 1 or (match == "distance" and every == 5)
    require(good, f"match={match} and every={every} are for several models at an edge: say models=2, or leave them out")
    require(match == "anchor" or every == 5, f"every={every} goes with match='anchor': say that, or leave it out")
    bridge = alpha_v / alpha_u
    exchange = Exchange((Train(**training),), Cells(cells, bridge), select, aggregate, center, privacy)
    if models == 1:
        return Method.of("fedmes", exchange)
    several = CellClusters(cells, bridge, models, frozen=match == "anchor")
    seed = replace(exchange, topology=CellClusters(cells, bridge, models, seeds=True), select=Everyone())
    learn = replace(exchange, topology=several)
    if match == "distance":
        return Method("fedmes", ((1, (seed,)), (1, (learn,))))
    anchored = AnchoredCells(cells, bridge, models)
    steady = replace(Train(**training), inertia=0.0)
    group = Exchange((steady,), anchored, Sometimes(every), sends=(), tells=("model",))
    return Method("fedmes", ((1, (seed,)), (1, (group, learn))))
