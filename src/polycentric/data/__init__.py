"""Data of many clients: where they come from, how they are dealt, and what they look like."""

from .dealing import Partition
from .federation import Federation, Pool, Split
from .formats import cifar, folders, hugging_face, idx
from .generated import minority, mixture, synthetic, teacher
from .label_skew import Classes, Dirichlet, Shards
from .layout import npz
from .leaf_json import leaf
from .loading import deal, load
from .partition import Iid, Natural, Quantity, Skewed, parse
from .show import describe, heat_map, heterogeneity, label_counts
from .sources import available, digits, find, install, read
from .turned import Rotations, Sampled, Turned

__all__ = [
    "Classes",
    "Dirichlet",
    "Federation",
    "Iid",
    "Natural",
    "Partition",
    "Pool",
    "Quantity",
    "Rotations",
    "Sampled",
    "Shards",
    "Skewed",
    "Split",
    "Turned",
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
    "minority",
    "mixture",
    "npz",
    "parse",
    "read",
    "synthetic",
    "teacher",
]
