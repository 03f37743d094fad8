"""Papers' tables, run again: their numbers beside ours, with the command that made them."""

from .active import ACTIVE
from .fedavg_mnist import FEDAVG_MNIST
from .fedcurv import FEDCURV
from .fedprox import FEDPROX
from .meta import META
from .table import Claim, Row, Table, reproduce_table

TABLES: dict[str, Table] = {table.name: table for table in (FEDAVG_MNIST, FEDPROX, FEDCURV, ACTIVE, META)}

__all__ = ["TABLES", "Claim", "Row", "Table", "reproduce_table"]
