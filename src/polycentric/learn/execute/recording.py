"""A step written down as it runs: every operator that reaches the processor, with what it was given.

Below `vmap` and `grad` there are plain operators on plain tensors. `recorded` runs a function once and notes them in a
graph, which does the same to other tensors of the same shapes, without going through `vmap`, `grad` and autograd.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakTensorKeyDictionary

aten: Any = torch.ops.aten
LOOKS = {aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default, aten.nonzero.default}


class CannotRecord(Exception):
    """A step that asks for a number and goes on in Python by what it is: it would go on by that for ever."""


class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator that reaches the processor."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here: else torch loads its compiler to ask it to stay away (`learn.gradient`)."""
        return False


class Counting(Watching):  # type: ignore[no-untyped-call]
    """Adds up what operators compute, as far as torch has a formula for it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """One operator; of several in one, each."""
        kwargs = kwargs or {}
        with self:
            found = func.decompose(*args, **kwargs)
        if found is NotImplemented:
            found = func(*args, **kwargs)
            formula = flop_registry.get(func._overloadpacket)
            self.operations += formula(*args, **kwargs, out_val=found) if formula else 0
        return found


class Recording(Watching):  # type: ignore[no-untyped-call]
    """Notes operators in a graph; `node.meta["val"]` is what one gave, without its numbers."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self.held: list[Tensor] = []  # tensors that are no inputs: a module's buffers, and constants
        self.nodes: MutableMapping[Tensor, Node] = WeakTensorKeyDictionary()  # of every tensor that is still there
        self.inside: dict[int, StorageWeakRef] = {}  # memory of what was computed; a reference keeps its name its own
        for i, value in enumerate(inputs):
            self.note(self.graph.placeholder(f"input_{i}"), value)

    def note(self, node: Node, value: Tensor) -> None:
        """Which node a tensor is."""
        self.nodes.setdefault(value, node)
        node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """One operator."""
        kwargs = kwargs or {}
        if func in LOOKS:
            raise CannotRecord(f"its step looks at the numbers in a tensor ({func})")
        given, named = map_aggregate(args, self.seen), map_aggregate(kwargs, self.seen)
        found = func(*args, **kwargs)
        node = self.graph.call_function(func, given, named)  # type: ignore[arg-type]
        for at, value in [(None, found)] if isinstance(found, Tensor) else list(enumerate(found or ())):
            if isinstance(value, Tensor):
                self.note(node if at is None else self.graph.call_function(getitem, (node, at)), value)
                memory = _memory(value)
                self.inside[memory.cdata] = memory
        return found

    def seen(self, value: Any) -> Any:
        """The node of a tensor; anything else as it is."""
        if isinstance(value, torch.Generator):
            raise CannotRecord("its step draws from a generator of its own")
        if not isinstance(value, Tensor):
            return value
        if value not in self.nodes:
            if _memory(value).cdata in self.inside:
                raise CannotRecord("its step reads what was computed in a way that cannot be followed")
            self.held.append(value)
            self.note(self.graph.placeholder(f"held_{len(self.held)}"), value)
        return self.nodes[value]


def _memory(value: Tensor) -> StorageWeakRef:
    return StorageWeakRef(value.untyped_storage())  # type: ignore[no-untyped-call]


def operations(function: Callable[[], object]) -> float:
    """How many numbers a function adds or multiplies; nothing of what it draws is missed."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), Counting() as counting:
        function()
    return float(counting.operations)


def recorded(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]
) -> tuple[Graph, list[Node], list[Tensor]]:
    """What a function of tensors does: a graph, the nodes that it returns, and the tensors it holds beside its inputs.

    Nodes that begin the graph are the inputs, in their order; those of what it holds come where they are first used.
    """
    recording = Recording(inputs)
    try:
        gpus = {value.get_device() for value in inputs if value.is_cuda}
        with torch.no_grad(), torch.random.fork_rng(devices=gpus), recording:
            found = function(*inputs)
    except CannotRecord:
        raise
    except Exception as error:  # it is run as it is then, and says what is wrong
        raise CannotRecord(" ".join(str(error).split())[:160]) from error
    outputs = [recording.seen(value) for value in found]
    return recording.graph, outputs, recording.held
