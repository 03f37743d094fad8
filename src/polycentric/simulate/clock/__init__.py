"""What a round costs: bytes by link, and simulated seconds. Both are functions of the matrices that did the work.

traffic.py   messages and work of an exchange, and the bytes that moved
seconds.py   how exchanges become time: synchronous rounds, deadlines, neighbours who wait for each other
kinds.py     clocks: Normalised, Delays, Physical
"""

from .kinds import Delays, Normalised, Physical
from .seconds import Clock, Punctual, check, load_of
from .traffic import Hops, Load, Pairs, Traffic, traffic

__all__ = [
    "Clock",
    "Delays",
    "Hops",
    "Load",
    "Normalised",
    "Pairs",
    "Physical",
    "Punctual",
    "Traffic",
    "check",
    "load_of",
    "traffic",
]
