"""Methods by name: every one is a sentence of parts, in a file of its own."""

from __future__ import annotations

from collections.abc import Callable

from ..method import Method
from .fedavg import fedavg
from .feddist import feddist
from .feddws import feddws
from .fedprox import fedprox
from .fedsgd import fedsgd
from .nofed import nofed

METHODS: dict[str, Callable[..., Method]] = {
    "nofed": nofed,
    "fedsgd": fedsgd,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "feddist": feddist,
    "feddws": feddws,
}

__all__ = ["METHODS", "fedavg", "feddist", "feddws", "fedprox", "fedsgd", "nofed"]
