"""Federated learning for clients whose data are not alike, with no center, one center, or many."""

from .aggregate import Krum, Mean, Median, TrimmedMean
from .clients import Simulation
from .data import Dirichlet, Federation, Iid, Natural, Quantity, Rotations, Shards, load
from .errors import Diverged, Mistake
from .learn import Looped, Stacked, Train
from .method import Exchange, Method, State
from .methods import METHODS, fedavg, feddist, feddws, fedprox, fedsgd, nofed
from .mixing import Mixing
from .objective import Prox
from .optimizer import SGD, Adam, Average, Momentum
from .round import run_round
from .run import Run, run
from .select import Everyone, Poisson, Stragglers, Uniform
from .stack import KeepPrivate
from .task import Task
from .topology import Alone, Cells, Clusters, Graph, Star, TwoLevel, metropolis

__all__ = [
    "METHODS",
    "SGD",
    "Adam",
    "Alone",
    "Average",
    "Cells",
    "Clusters",
    "Dirichlet",
    "Diverged",
    "Everyone",
    "Exchange",
    "Federation",
    "Graph",
    "Iid",
    "KeepPrivate",
    "Krum",
    "Looped",
    "Mean",
    "Median",
    "Method",
    "Mistake",
    "Mixing",
    "Momentum",
    "Natural",
    "Poisson",
    "Prox",
    "Quantity",
    "Rotations",
    "Run",
    "Shards",
    "Simulation",
    "Stacked",
    "Star",
    "State",
    "Stragglers",
    "Task",
    "Train",
    "TrimmedMean",
    "TwoLevel",
    "Uniform",
    "fedavg",
    "feddist",
    "feddws",
    "fedprox",
    "fedsgd",
    "load",
    "metropolis",
    "nofed",
    "run",
    "run_round",
]
