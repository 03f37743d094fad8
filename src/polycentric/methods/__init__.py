"""Methods by name: every one is a sentence of parts, in a file of its own."""

from collections.abc import Callable

from ..method import Method
from .cfl import cfl as cfl
from .dp_fed_ls import dp_fed_ls as dp_fed_ls
from .dp_fedavg import dp_fedavg as dp_fedavg
from .dpa_sgd import dpa_sgd as dpa_sgd
from .dpsgd import dpsgd as dpsgd
from .fedavg import fedavg as fedavg
from .fedcurv import fedcurv as fedcurv
from .feddane import feddane as feddane
from .feddist import feddist as feddist
from .feddws import feddws as feddws
from .fedmes import fedmes as fedmes
from .fedprox import fedprox as fedprox
from .fedsgd import fedsgd as fedsgd
from .fesem import fesem as fesem
from .fomaml import fomaml as fomaml
from .gate import gate as gate
from .hierarchical import hierarchical as hierarchical
from .ifca import ifca as ifca
from .lg_fedavg import lg_fedavg as lg_fedavg
from .maml import maml as maml
from .matcha import matcha as matcha
from .meta import meta as meta
from .mocha import mocha as mocha
from .mtl import mtl as mtl
from .nofed import nofed as nofed
from .reptile import reptile as reptile
from .tkm import tkm as tkm

METHODS: dict[str, Callable[..., Method]] = {
    recipe.__name__.replace("_", "-"): recipe
    for recipe in (
        *(nofed, fedsgd, fedavg, fedprox, feddane, feddist, feddws, fedcurv, dp_fedavg, dp_fed_ls),
        *(reptile, maml, fomaml, meta),
        *(lg_fedavg, gate),
        *(fesem, tkm, ifca, cfl, dpsgd, matcha, dpa_sgd, mtl, mocha, fedmes, hierarchical),
    )
}
"""Every method by the name that commands and config files have for it: `METHODS["fedprox"](mu=0.1)`."""
