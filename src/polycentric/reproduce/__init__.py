"""Papers' tables, run again: their numbers beside ours, with the command that made them."""

from .fedavg_mnist import FEDAVG_MNIST
from .matcha import MATCHA
from .table import Claim, Row, Table, reproduce_table

TABLES: dict[str, Table] = {table.name: table for table in (FEDAVG_MNIST, MATCHA)}

__all__ = ["TABLES", "Claim", "Row", "Table", "reproduce_table"]
