"""What a round costs: bytes by link, and simulated seconds. Both are functions of the matrices that did the work.

traffic.py   messages and work of an exchange, and the bytes that moved
seconds.py   how exchanges become time: synchronous rounds, deadlines, neighbours who wait for each other
kinds.py     clocks: Normalised, Delays, Physical
"""

from .kinds import Delays as Delays
from .kinds import Normalised as Normalised
from .kinds import Physical as Physical
from .seconds import Clock as Clock
from .seconds import Punctual as Punctual
from .seconds import check as check
from .traffic import Hops as Hops
from .traffic import Load as Load
from .traffic import Pairs as Pairs
from .traffic import Traffic as Traffic
from .traffic import load_of as load_of
from .traffic import traffic as traffic
