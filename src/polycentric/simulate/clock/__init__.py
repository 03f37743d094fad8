"""What a round costs: bytes by link, and simulated seconds. Both are functions of the matrices that did the work.

traffic.py   messages and work of an exchange, and the bytes that moved
seconds.py   how exchanges become time: synchronous rounds, deadlines, neighbours who wait for each other
kinds.py     clocks: Normalised, Delays, Physical
"""

from .kinds import Delays as Delays, Normalised as Normalised, Physical as Physical
from .seconds import Clock as Clock, Punctual as Punctual, check as check
from .traffic import (
    Hops as Hops,
    Load as Load,
    Pairs as Pairs,
    Traffic as Traffic,
    load_of as load_of,
    traffic as traffic,
)
