"""A recorded step, taken in C by one client after another.

    program: baddbmm, relu_, baddbmm, log_softmax, ...  ->  instructions: (PRODUCT, m, n, k, where), (RELU, ...), ...
    steps.c: for every client: for every step: for every instruction

Calling operators one by one costs as much as small models do, and torch's products use half of some processors. Where
every operator of a step is one of a few (products, rectifiers, softmax, sums and products of rows), some steps of some
clients are one call of C, and a client's model stays in the cache until they are done. A step that has other operators,
or tensors that lie in other ways, is taken operator by operator as before: equal to rounding.

Which tensors lie where is looked at once for tensors of the same forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.fx import Node

from .instructions import CannotList, StepList, storages
from .library import library
from .operators import listed


class StepsInC:
    """A step's operators, to be listed for values of any forms.

    Arguments:
        shared: nodes whose values are the same at every step, tensors or numbers.
        given: nodes whose values are of a step.
        nodes: the operators, in their order.
    """

    def __init__(self, shared: Sequence[Node], given: Sequence[Node], nodes: Sequence[Node]) -> None:
        self._nodes = shared, given, nodes
        self._lists: dict[object, StepList | None] = {}

    def take(self, shared: Sequence[Any], given: Sequence[Tensor]) -> bool:
        """Take all steps; False: they cannot be listed, and nothing was done. `given` are stacked by steps."""
        if not given or not len(given[0]) or library() is None:
            return False
        where = storages([*shared, *given])
        key = *map(_form, shared), *(_form(value[0]) for value in given), *map(where.index, where)  # who shares memory
        if key not in self._lists:
            self._lists[key] = self._listed(shared, given)
        found = self._lists[key]
        if found is None or found.better_by_torch:
            return False
        found.take(shared, given)
        return True

    def _listed(self, shared: Sequence[Any], given: Sequence[Tensor]) -> StepList | None:
        inputs, more, nodes = self._nodes
        try:
            found = StepList([*inputs, *more], [*shared, *(value[0] for value in given)])
            for node in nodes:
                found.known[node] = listed(found, node)
        except CannotList:
            return None
        return found


def _form(value: Any) -> object:
    return (value.shape, value.stride(), value.dtype, value.device.type) if isinstance(value, Tensor) else type(value)
