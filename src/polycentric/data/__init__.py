"""Data of many clients: where they come from, how they are dealt, and what they look like."""

from .federation import Federation, Pool, Split
from .formats import cifar, folders, hugging_face, idx
from .generated import synthetic, teacher
from .layout import npz
from .leaf_json import leaf
from .loading import deal, load
from .partition import Classes, Dirichlet, Iid, InCells, Natural, Partition, Quantity, Rotations, Shards, parse
from .show import describe, heat_map, heterogeneity, label_counts
from .sources import available, digits, find, install, read

__all__ = [
    "Classes",
    "Dirichlet",
    "Federation",
    "Iid",
    "InCells",
    "Natural",
    "Partition",
    "Pool",
    "Quantity",
    "Rotations",
    "Shards",
    "Split",
    "available",
    "cifar",
    "deal",
    "describe",
    "digits",
    "find",
    "folders",
    "heat_map",
    "heterogeneity",
    "hugging_face",
    "idx",
    "install",
    "label_counts",
    "leaf",
    "load",
    "npz",
    "parse",
    "read",
    "synthetic",
    "teacher",
]
