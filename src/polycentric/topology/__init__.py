"""Who averages with whom: every topology is a pair of matrices and two verbs beside them.

    down(memory, cohort, name)  -> Mixing (cohort x centers)    what every client receives
    place(memory, cohort, centers, sent) -> rows of memory      where these clients belong, from what they sent
    up(memory, cohort, name)    -> Mixing (centers x cohort)    what every center hears
    meet(memory, arrived, centers) -> memory, centers           what centers do among themselves, once an exchange

A client's model is always `down @ centers`; from one round to the next clients hear each other through
`down @ up`. Four clients, in every topology (n_k: examples of client k, rows of `up` before division):

    Star    up  n0 n1 n2 n3     Clusters  up  1 . 1 .      Cells  up  n0 n1 a*n2 .    Graph  up  2/3 1/3  .   .
            down 1 1 1 1 (a column)           . 1 . 1                 .  .  a*n2 n3   (path)     1/3 1/3 1/3  .
                                                                      client 2 is in both cells   .  1/3 1/3 1/3
    Alone   up  the identity, down the identity                                                   .   .  1/3 2/3
"""

from .base import Topology as Topology, Wires as Wires
from .cells.anchored import AnchoredCells as AnchoredCells
from .cells.weights import CellClusters as CellClusters, Cells as Cells, TwoLevel as TwoLevel
from .clusters.anchor import Anchored as Anchored
from .clusters.assignment import Clusters as Clusters
from .clusters.candidates import Choice as Choice, NewcomerAssignment as NewcomerAssignment, Newcomers as Newcomers
from .clusters.how_many import ByWays as ByWays, HowMany as HowMany, IfItPays as IfItPays, Proposed as Proposed
from .clusters.seeding import Seeding as Seeding, TrimmedSeeding as TrimmedSeeding
from .clusters.splitting import Splitting as Splitting, bipartition as bipartition, similarities as similarities
from .graphs.gossip import Gossip as Gossip, Graph as Graph, metropolis as metropolis, weights_for as weights_for
from .graphs.matchings import Matchings as Matchings
from .heads.related import Duals as Duals, TaskGraph as TaskGraph, TaskStar as TaskStar
from .star import Alone as Alone, Star as Star
