"""Papers' tables, run again: their numbers beside ours, with the command that made them."""

from .dpa_sgd import DPA_SGD
from .fedavg_mnist import FEDAVG_MNIST
from .matcha import MATCHA
from .mocha import MOCHA
from .table import Claim, Row, Table, reproduce_table

TABLES: dict[str, Table] = {table.name: table for table in (FEDAVG_MNIST, MATCHA, DPA_SGD, MOCHA)}

__all__ = ["TABLES", "Claim", "Row", "Table", "reproduce_table"]
