"""NoFed: every client trains alone, without any communication; the baseline.

    client k:   w_k  <-  E epochs of SGD on F_k, from its own w_k

The baseline that a federation must beat at every client, not only on average.

Reduces to:  plain SGD at each client. In `start = down @ centers`, both matrices are the identity.
"""

from typing import Any

from ..learn import Train
from ..method import Everyone, Exchange, Method, Select, recipe
from ..topology import Alone


@recipe
def nofed(*, select: Select = Everyone(), **training: Any) -> Method:
    """Training alone; `training` are the arguments of `Train`."""
    return Method.of("nofed", Exchange((Train(**training),), Alone(), select))
