"""Papers' tables, run again: their numbers beside ours, with the command that made them."""

from .fedavg_mnist import FEDAVG_MNIST
from .fedmes import FEDMES
from .table import Claim, Row, Table, reproduce_table

TABLES: dict[str, Table] = {table.name: table for table in (FEDAVG_MNIST, FEDMES)}

__all__ = ["TABLES", "Claim", "Row", "Table", "reproduce_table"]
