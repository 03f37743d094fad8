"""Methods by name: every one is a sentence of parts, in a file of its own."""

from __future__ import annotations

from collections.abc import Callable

from ..method import Method
from .cfl import cfl
from .dpa_sgd import dpa_sgd
from .dpsgd import dpsgd
from .fedavg import fedavg
from .fedcurv import fedcurv
from .feddane import feddane
from .feddist import feddist
from .feddws import feddws
from .fedmes import fedmes
from .fedprox import fedprox
from .fedsgd import fedsgd
from .fesem import fesem
from .fomaml import fomaml
from .hierarchical import hierarchical
from .ifca import ifca
from .maml import maml
from .matcha import matcha
from .meta import meta
from .mocha import mocha
from .mtl import mtl
from .nofed import nofed
from .reptile import reptile
from .tkm import tkm

METHODS: dict[str, Callable[..., Method]] = {
    "nofed": nofed,
    "fedsgd": fedsgd,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "feddane": feddane,
    "feddist": feddist,
    "feddws": feddws,
    "fedcurv": fedcurv,
    "reptile": reptile,
    "maml": maml,
    "fomaml": fomaml,
    "meta": meta,
    "fesem": fesem,
    "tkm": tkm,
    "ifca": ifca,
    "cfl": cfl,
    "dpsgd": dpsgd,
    "matcha": matcha,
    "dpa-sgd": dpa_sgd,
    "mtl": mtl,
    "mocha": mocha,
    "fedmes": fedmes,
    "hierarchical": hierarchical,
}

__all__ = [
    "METHODS",
    "cfl",
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
    "maml",
    "matcha",
    "meta",
    "mocha",
    "mtl",
    "nofed",
    "reptile",
    "tkm",
]
