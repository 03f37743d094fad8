"""Papers' tables, run again: their numbers beside ours, with the command that made them."""

from .active import ACTIVE
from .cfl import CFL_TABLE
from .dp_fed_ls import DP_FED_LS, PRIVATE_CENTERS
from .dpa_sgd import DPA_SGD
from .fedavg_mnist import FEDAVG_MNIST
from .fedcurv import FEDCURV
from .fedmes import FEDMES
from .fedprox import FEDPROX
from .fesem_figures import FESEM_CLUSTERS, FESEM_CONVERGENCE
from .fesem_table2 import FESEM_MATCHED, FESEM_TABLE2
from .gate import GATE_TABLE
from .hostile import HOSTILE
from .how_many import HOW_MANY
from .lg_fedavg import LG_FEDAVG
from .matcha import MATCHA
from .matching import MATCHING
from .meta import META
from .mocha import MOCHA
from .robust import ROBUST
from .street import STREET
from .table import Claim, Row, Table, reproduce_table

ONE_CENTER = (FEDAVG_MNIST, FEDPROX, FEDCURV, ACTIVE, META, LG_FEDAVG, GATE_TABLE)
FESEM = (FESEM_TABLE2, FESEM_MATCHED, FESEM_CONVERGENCE, FESEM_CLUSTERS, MATCHING, HOW_MANY)
MANY_CENTERS = (*FESEM, CFL_TABLE, ROBUST, HOSTILE)
EDGES = (FEDMES,)
BOXES = (STREET,)
HIDDEN = (DP_FED_LS, PRIVATE_CENTERS)
NO_CENTER = (MATCHA, DPA_SGD, MOCHA)
TABLES: dict[str, Table] = {
    table.name: table for table in ONE_CENTER + MANY_CENTERS + EDGES + NO_CENTER + HIDDEN + BOXES
}

__all__ = ["TABLES", "Claim", "Row", "Table", "reproduce_table"]
