"""Federated learning for clients whose data are not alike, with no center, one center, or many."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .data import Classes, Dirichlet, Federation, Iid, Natural, Quantity, Rotations, Shards, from_arrays

    # isort: split
    from .data import from_dataset, from_frame, load
    from .errors import Diverged, Lost, UsageError
    from .learn import Looped, Stacked, Train
    from .method import Exchange, Method, State
    from .methods import (
        METHODS,
        cfl,
        dp_fed_ls,
        dp_fedavg,
        dpa_sgd,
        dpsgd,
        fedavg,
        fedcurv,
        feddane,
        feddist,
        feddws,
        fedmes,
        fedprox,
    )

    # isort: split
    from .methods import fedsgd, fesem, fomaml, gate, hierarchical, ifca, lg_fedavg, maml, matcha, meta, mocha, mtl

    # isort: split
    from .methods import nofed, reptile, tkm
    from .parts.aggregate import GeometricMedian, Krum, Mean, Median, TrimmedMean
    from .parts.attack import Collusion, Honest, InnerProduct, LabelFlip, LargeNorm, LittleIsEnough, NotANumber

    # isort: split
    from .parts.attack import OneCoordinate, SameValue, SignFlip, Stale, Zeros
    from .parts.before_rule import Bucketing, Clipping, NearestNeighbours, Quorum
    from .parts.denoise import JamesStein, Laplacian, SoftThreshold
    from .parts.example_noise import ExampleNoise
    from .parts.objective import Ball, Curvature, Prox
    from .parts.optimizer import SGD, Adam, Average, Momentum
    from .parts.privacy import Gaussian
    from .parts.select import Active, Churn, Everyone, Poisson, Stragglers, Uniform
    from .round import run_round
    from .runs.check_data import Check, check_data
    from .runs.choose_k import choose_k
    from .runs.grid import compare
    from .runs.layers import layers
    from .runs.loop import Callback, Run
    from .runs.observers import Moment
    from .runs.settings import Settings
    from .runs.start import open, resume, run
    from .runs.trackers import tracker
    from .simulate.clients import Simulation
    from .simulate.clock import Delays, Normalised, Physical
    from .simulate.ranks import join_ranks
    from .stacks.mixing import Mixing
    from .stacks.stack import KeepPrivate
    from .tasks.goal import Goal
    from .tasks.metric import Metric
    from .tasks.task import Task
    from .topology import Alone, Cells, Clusters, Gossip, Graph, Matchings, Star, TwoLevel, metropolis
    from .topology.cells.by_cell import ByCell
    from .topology.cells.deal import InCells
    from .topology.cells.map import CellMap
    from .topology.cells.shapes import CellRegions, Overlap, RingCells
    from .topology.cells.tables import CellTable
    from .topology.graphs.networks import Complete, Edges, ErdosRenyi, Exponential, Geometric, PathGraph, Ring

    # isort: split
    from .topology.graphs.networks import SmallWorld, StarGraph, Torus

_HOMES = {  # public names by the module they live in; a module is imported when one of its names is first used
    "errors": "Diverged Lost UsageError",
    "method": "Exchange Method State",
    "round": "run_round",
    "data": "Classes Dirichlet Federation Iid Natural Quantity Rotations Shards from_arrays from_dataset "
    "from_frame load",
    "learn": "Looped Stacked Train",
    "methods": "METHODS cfl dp_fed_ls dp_fedavg dpa_sgd dpsgd fedavg fedcurv feddane feddist feddws fedmes fedprox "
    "fedsgd fesem fomaml gate hierarchical ifca lg_fedavg maml matcha meta mocha mtl nofed reptile tkm",
    "parts.aggregate": "GeometricMedian Krum Mean Median TrimmedMean",
    "parts.attack": (
        "Collusion Honest InnerProduct LabelFlip LargeNorm LittleIsEnough NotANumber OneCoordinate SameValue SignFlip "
        "Stale Zeros"
    ),
    "parts.before_rule": "Bucketing Clipping NearestNeighbours Quorum",
    "parts.denoise": "JamesStein Laplacian SoftThreshold",
    "parts.example_noise": "ExampleNoise",
    "parts.objective": "Ball Curvature Prox",
    "parts.optimizer": "SGD Adam Average Momentum",
    "parts.privacy": "Gaussian",
    "parts.select": "Active Churn Everyone Poisson Stragglers Uniform",
    "runs.check_data": "Check check_data",
    "runs.choose_k": "choose_k",
    "runs.grid": "compare",
    "runs.layers": "layers",
    "runs.loop": "Callback Run",
    "runs.observers": "Moment",
    "runs.settings": "Settings",
    "runs.start": "open resume run",
    "runs.trackers": "tracker",
    "simulate.clients": "Simulation",
    "simulate.clock": "Delays Normalised Physical",
    "simulate.ranks": "join_ranks",
    "stacks.mixing": "Mixing",
    "stacks.stack": "KeepPrivate",
    "tasks.goal": "Goal",
    "tasks.metric": "Metric",
    "tasks.task": "Task",
    "topology": "Alone Cells Clusters Gossip Graph Matchings Star TwoLevel metropolis",
    "topology.cells.by_cell": "ByCell",
    "topology.cells.deal": "InCells",
    "topology.cells.map": "CellMap",
    "topology.cells.shapes": "CellRegions Overlap RingCells",
    "topology.cells.tables": "CellTable",
    "topology.graphs.networks": "Complete Edges ErdosRenyi Exponential Geometric PathGraph Ring SmallWorld "
    "StarGraph Torus",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("polycentric")
        except PackageNotFoundError:  # run from a source tree that was not installed
            return "unknown"
    if name not in _HOME:
        raise AttributeError(f"module 'polycentric' has no attribute '{name}'")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__


__all__ = ["METHODS", "SGD", "Active", "Adam", "Alone", "Average", "Ball", "Bucketing", "ByCell", "Callback", "CellMap"]
__all__ += ["CellRegions", "CellTable", "Cells", "Check", "Churn", "Classes", "Clipping", "Clusters", "Collusion"]
__all__ += ["Complete", "Curvature", "Delays", "Dirichlet", "Diverged", "Edges", "ErdosRenyi", "Everyone"]
__all__ += ["ExampleNoise", "Exchange", "Exponential", "Federation", "Gaussian", "Geometric", "GeometricMedian"]
__all__ += ["Goal", "Gossip", "Graph", "Honest", "Iid", "InCells", "InnerProduct", "JamesStein", "KeepPrivate", "Krum"]
__all__ += ["LabelFlip", "Laplacian", "LargeNorm", "LittleIsEnough", "Looped", "Lost", "Matchings", "Mean", "Median"]
__all__ += ["Method", "Metric", "Mixing", "Moment", "Momentum", "Natural", "NearestNeighbours", "Normalised"]
__all__ += ["NotANumber", "OneCoordinate", "Overlap", "PathGraph", "Physical", "Poisson", "Prox", "Quantity", "Quorum"]
__all__ += ["Ring", "RingCells", "Rotations", "Run", "SameValue", "Settings", "Shards", "SignFlip", "Simulation"]
__all__ += ["SmallWorld", "SoftThreshold", "Stacked", "Stale", "Star", "StarGraph", "State", "Stragglers", "Task"]
__all__ += ["Torus", "Train", "TrimmedMean", "TwoLevel", "Uniform", "UsageError", "Zeros", "cfl", "check_data"]
__all__ += ["choose_k", "compare", "dp_fed_ls", "dp_fedavg", "dpa_sgd", "dpsgd", "fedavg", "fedcurv", "feddane"]
__all__ += ["feddist", "feddws", "fedmes", "fedprox", "fedsgd", "fesem", "fomaml", "from_arrays", "from_dataset"]
__all__ += ["from_frame", "gate", "hierarchical", "ifca", "join_ranks", "layers", "lg_fedavg", "load", "maml", "matcha"]
__all__ += ["meta", "metropolis", "mocha", "mtl", "nofed", "open", "reptile", "resume", "run", "run_round", "tkm"]
__all__ += ["tracker"]
