"""Hierarchical federated learning: clients at one edge each, and a cloud that averages the edges every few rounds.

    edge i:     w^(i)  <-  sum_k n_k w_k / N_i          over the clients at edge i, N_i = sum n_k
    cloud:      w^(i)  <-  sum_j N_j w^(j) / sum_j N_j  for every i, at the end of every T-th round, N_j since the last

A client that several edges cover is given to one of them: every overlap is split evenly; on a map, to the nearest.

Symbols:     T = `every`; 0 is never.
Reduces to:  `fedavg` with T = 1 (a mean of means by data is the mean), and with one edge; isolated cells with T = 0,
             which is `fedmes` without overlaps.
Beware:      between two such rounds the edges drift apart where their cells' data differ.
Reference:   Liu et al., Client-edge-cloud hierarchical federated learning, ICC 2020, https://arxiv.org/abs/1905.06641
"""

from typing import Any

from ..learn import Train
from ..method import Aggregate, Average, Center, Everyone, Exchange, Mean, Method, NoPrivacy, Privacy, Select, recipe
from ..topology import TwoLevel
from ..topology.cells.coverage import Geometry
from ..topology.cells.shapes import Attached, Overlap
from ..topology.cells.tables import geometry


@recipe
def hierarchical(
    *,
    cells: Geometry = Overlap(20, 10),
    every: int = 5,
    select: Select = Everyone(),
    center: Center = Average(),
    aggregate: Aggregate = Mean(),
    privacy: Privacy = NoPrivacy(),
    **training: Any,
) -> Method:
    """Edges and a cloud; `training` are the arguments of `Train` (lr, epochs, batch, ...).

    Arguments:
        cells: who is covered by whom, as in `fedmes`.
        every: rounds between meetings in the cloud; 0: they never meet.
        select: who takes part; `ByCell(20)` asks 20 clients of every edge.
        center: what every edge does with its mean.
        aggregate: `Mean()`, or a robust rule, by itself at every edge.
        privacy: `Gaussian(clip, noise)` hides what any one client sends, from all edges together.
    """
    topology = TwoLevel(Attached(geometry(cells)), every=every)
    return Method.of("hierarchical", Exchange((Train(**training),), topology, select, aggregate, center, privacy))
