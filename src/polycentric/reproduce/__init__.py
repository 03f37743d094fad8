"""Papers' tables, run again: their numbers beside ours, with the command that made them."""

from .cfl import CFL_TABLE
from .fedavg_mnist import FEDAVG_MNIST
from .fesem_figures import FESEM_CLUSTERS, FESEM_CONVERGENCE
from .fesem_table2 import FESEM_TABLE2
from .robust import ROBUST
from .table import Claim, Row, Table, reproduce_table

TABLES: dict[str, Table] = {
    table.name: table for table in (FEDAVG_MNIST, FESEM_TABLE2, FESEM_CONVERGENCE, FESEM_CLUSTERS, CFL_TABLE, ROBUST)
}

__all__ = ["TABLES", "Claim", "Row", "Table", "reproduce_table"]
