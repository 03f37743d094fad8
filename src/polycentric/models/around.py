"""What a method puts around the user's model: a second model beside it, a gate, a head of its own."""

from typing import NamedTuple, Protocol

from torch import nn


class MadeFor(NamedTuple):
    """What a module is made for."""

    shape: tuple[int, ...]  # of one example
    n_outputs: int
    seed: int  # of first parameters
    symbols: int = 0  # of a text; 0: the data are no text
    kind: str = "classes"  # what is learned: classes, labels or numbers
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()  # names and shapes, where the module is called with several
    n_protected: int = 0  # values of a protected attribute; 0: it is not known


class Wrap(Protocol):
    """Makes one module of the user's and a method's own; names of its submodules are those a `Cut` may use.

    The module may have `answers`, names of submodules that could answer alone, and are scored beside the whole; and
    `shares`, names of those that give every example a number in [0, 1], of which a histogram is shown; and `leaves`,
    the name of the only submodule that leaves a client with its model, where the others are of use at home alone.
    """

    def __call__(self, module: nn.Module, made_for: MadeFor) -> nn.Module:
        """The module that is trained and answers."""
