"""Federated learning for clients whose data are not alike, with no center, one center, or many."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .aggregate import GeometricMedian, Krum, Mean, Median, TrimmedMean
    from .attack import LabelFlip, LargeNorm, NotANumber, SameValue, SignFlip
    from .choose import choose_k
    from .clients import Simulation
    from .clock import Delays, Normalised, Physical
    from .coverage import CellMap, CellRegions, CellTable, Overlap, RingCells
    from .data import Classes, Dirichlet, Federation, Iid, InCells, Natural, Quantity, Rotations, Shards, load
    from .errors import Diverged, Lost, Mistake
    from .graphs import Complete, Edges, ErdosRenyi, Exponential, Geometric, Hub, Line, Ring, SmallWorld, Torus
    from .learn import Looped, Stacked, Train
    from .loop import Run, run
    from .method import Exchange, Method, State
    from .methods import METHODS
    from .methods.cfl import cfl
    from .methods.dpa_sgd import dpa_sgd
    from .methods.dpsgd import dpsgd
    from .methods.fedavg import fedavg
    from .methods.fedcurv import fedcurv
    from .methods.feddane import feddane
    from .methods.feddist import feddist
    from .methods.feddws import feddws
    from .methods.fedmes import fedmes
    from .methods.fedprox import fedprox
    from .methods.fedsgd import fedsgd
    from .methods.fesem import fesem
    from .methods.fomaml import fomaml
    from .methods.hierarchical import hierarchical
    from .methods.ifca import ifca
    from .methods.maml import maml
    from .methods.matcha import matcha
    from .methods.meta import meta
    from .methods.mocha import mocha
    from .methods.mtl import mtl
    from .methods.nofed import nofed
    from .methods.reptile import reptile
    from .methods.tkm import tkm
    from .mixing import Mixing
    from .objective import Curvature, Prox
    from .optimizer import SGD, Adam, Average, Momentum
    from .privacy import Gaussian
    from .ranks import join_ranks
    from .round import run_round
    from .select import Active, ByCell, Churn, Everyone, Poisson, Stragglers, Uniform
    from .stack import KeepPrivate
    from .task import Task
    from .topology import Alone, Cells, Clusters, Gossip, Graph, Matchings, Star, TwoLevel, metropolis

_HOMES = {  # public names by the module they live in; a module is imported when one of its names is first used
    "aggregate": "GeometricMedian Krum Mean Median TrimmedMean",
    "attack": "LabelFlip LargeNorm NotANumber SameValue SignFlip",
    "choose": "choose_k",
    "clients": "Simulation",
    "clock": "Delays Normalised Physical",
    "coverage": "CellMap CellRegions CellTable Overlap RingCells",
    "data": "Classes Dirichlet Federation Iid InCells Natural Quantity Rotations Shards load",
    "errors": "Diverged Lost Mistake",
    "graphs": "Complete Edges ErdosRenyi Exponential Geometric Hub Line Ring SmallWorld Torus",
    "learn": "Looped Stacked Train",
    "loop": "Run run",
    "method": "Exchange Method State",
    "methods": "METHODS cfl dpa_sgd dpsgd fedavg fedcurv feddane feddist feddws fedmes fedprox fedsgd fesem fomaml "
    "hierarchical ifca maml matcha meta mocha mtl nofed reptile tkm",
    "mixing": "Mixing",
    "objective": "Curvature Prox",
    "optimizer": "SGD Adam Average Momentum",
    "privacy": "Gaussian",
    "ranks": "join_ranks",
    "round": "run_round",
    "select": "Active ByCell Churn Everyone Poisson Stragglers Uniform",
    "stack": "KeepPrivate",
    "task": "Task",
    "topology": "Alone Cells Clusters Gossip Graph Matchings Star TwoLevel metropolis",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'polycentric' has no attribute '{name}'")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "METHODS",
    "SGD",
    "Active",
    "Adam",
    "Alone",
    "Average",
    "ByCell",
    "CellMap",
    "CellRegions",
    "CellTable",
    "Cells",
    "Churn",
    "Classes",
    "Clusters",
    "Complete",
    "Curvature",
    "Delays",
    "Dirichlet",
    "Diverged",
    "Edges",
    "ErdosRenyi",
    "Everyone",
    "Exchange",
    "Exponential",
    "Federation",
    "Gaussian",
    "Geometric",
    "GeometricMedian",
    "Gossip",
    "Graph",
    "Hub",
    "Iid",
    "InCells",
    "KeepPrivate",
    "Krum",
    "LabelFlip",
    "LargeNorm",
    "Line",
    "Looped",
    "Lost",
    "Matchings",
    "Mean",
    "Median",
    "Method",
    "Mistake",
    "Mixing",
    "Momentum",
    "Natural",
    "Normalised",
    "NotANumber",
    "Overlap",
    "Physical",
    "Poisson",
    "Prox",
    "Quantity",
    "Ring",
    "RingCells",
    "Rotations",
    "Run",
    "SameValue",
    "Shards",
    "SignFlip",
    "Simulation",
    "SmallWorld",
    "Stacked",
    "Star",
    "State",
    "Stragglers",
    "Task",
    "Torus",
    "Train",
    "TrimmedMean",
    "TwoLevel",
    "Uniform",
    "cfl",
    "choose_k",
    "dpa_sgd",
    "dpsgd",
    "fedavg",
    "fedcurv",
    "feddane",
    "feddist",
    "feddws",
    "fedmes",
    "fedprox",
    "fedsgd",
    "fesem",
    "fomaml",
    "hierarchical",
    "ifca",
    "join_ranks",
    "load",
    "maml",
    "matcha",
    "meta",
    "metropolis",
    "mocha",
    "mtl",
    "nofed",
    "reptile",
    "run",
    "run_round",
    "tkm",
]
