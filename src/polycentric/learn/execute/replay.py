"""A recorded step, ready to be taken again and again: operators called one after another on rows in their places.

begin(carried, held, constants)      once for some clients: views of their rows, and whatever stays as it is; gives
prepare(batches)                     what can be done with the batches of several steps at once
take(batch)                          one step of theirs, in place
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from ..cpu.steps import StepsInC
from ..gpu.fuse_moves import moves_fused
from .fuse_update import RatesDiffer, written_in_place
from .lift import liftable, lifted
from .recording import recorded
from .tidy import acts, changed, overwritten, root, same_form, source, tidied

aten: Any = torch.ops.aten
PLAIN: dict[Any, Any] = {  # functions that take the same arguments, and are called faster
    aten.bmm.default: torch.bmm,
    aten.baddbmm.default: torch.baddbmm,
    aten.relu.default: torch.relu,
    aten.mul.Tensor: torch.mul,
    aten.add.Tensor: torch.add,
    aten.sub.Tensor: torch.sub,
    aten.neg.default: torch.neg,
    aten.where.self: torch.where,
    aten.ne.Scalar: torch.ne,
    aten.sum.dim_IntList: torch.sum,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.transpose.int: torch.transpose,
    aten.view.default: torch.Tensor.view,
    aten.addcmul.default: torch.addcmul,
    aten.scatter.value: torch.scatter,
    aten.cat.default: torch.cat,
    aten._log_softmax.default: torch._log_softmax,
    aten._log_softmax_backward_data.default: torch._log_softmax_backward_data,
}


Function = Callable[..., Any]


class Begun(NamedTuple):
    """A step of some clients, ready to be taken."""

    prepare: Function  # tensors of the batches of several steps, stacked -> what `take` wants of them, stacked
    take: Callable[..., None]  # one step, of what `prepare` gave for it
    take_all: Callable[[Sequence[Tensor]], bool]  # all steps in C, of what `prepare` gave; False: it cannot

    def along(self, batches: Sequence[Tensor]) -> None:
        """The steps on some batches, one after another."""
        prepared = self.prepare(*batches)
        if self.take_all(prepared):
            return
        each = zip(*(part.unbind() for part in prepared), strict=True) if prepared else repeat((), len(batches[0]))
        for given in each:
            self.take(*given)


class Replay:
    """The program of a step.

    Arguments:
        step: of carried rows, of rows that it only reads, and of a batch's tensors: the new carried rows.
        carried, held, batch: tensors of the shapes it is for; nothing is done to them.
    """

    def __init__(
        self,
        step: Callable[..., Sequence[Tensor]],
        carried: Sequence[Tensor],
        held: Sequence[Tensor],
        batch: Sequence[Tensor],
    ) -> None:
        self._graph, new, self.constants = recorded(step, [*carried, *held, *batch])
        self._graph.output(tuple(map(at_its_place, self._graph.nodes, new)))
        tidied(self._graph)
        moves_fused(self._graph)
        self._sizes = len(carried), len(held), len(batch)
        self._programs: dict[bool, Program] = {}
        self.fuses = self._program(True).fuses

    def begin(self, *known: Tensor, looks: bool = True) -> Begun:
        """The steps of the clients that have these rows, carried and held.

        `looks`: whether it looks if they move at one rate, which saves time on a processor and cannot be captured.
        """
        try:
            program = self._program(looks)
            settled = program.settle(*known, *self.constants)
        except RatesDiffer:
            program = self._program(False)
            settled = program.settle(*known, *self.constants)
        return Begun(program.prepare, partial(program.take, *settled), partial(program.in_c.take, settled))

    def _program(self, same: bool) -> Program:
        """For clients that move at one rate, or each at its own."""
        if same not in self._programs:
            self._programs[same] = Program.of(self._graph, self._sizes, same)
        return self._programs[same]


def at_its_place(place: Node, value: Node) -> Node:
    """The place itself, where a new value stands in it already and is only seen so."""
    return place if source(value) is place and same_form(value, place) else value


class Program(NamedTuple):
    """A step in three functions, and for C."""

    settle: Function  # once for some rows
    prepare: Function  # once for some batches
    take: Function
    fuses: bool  # whether any gradient is left unwritten
    in_c: StepsInC

    @staticmethod
    def of(recorded: Graph, sizes: tuple[int, int, int], same: bool) -> Program:
        """From what was recorded, which is left as it is."""
        graph, (n, more, batch) = Graph(), sizes
        new = list(cast(tuple[Node, ...], graph.graph_copy(recorded, {})))
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        m = n + more
        places, batches = inputs[:n], inputs[m : m + batch]
        constant = [node for node in inputs if node.name.startswith("held")]
        fuses = written_in_place(graph, places, new, batches, same)
        graph.output(None)
        graph.eliminate_dead_code(acts)
        moved = {place for place, value in zip(places, new, strict=True) if value is not place}
        settled = _settled(graph, moved, set(batches))
        calls = [node for node in graph.nodes if node.op == "call_function"]
        ahead = liftable(calls, batches)
        overwritten(graph, settled | set(ahead))
        before, later = [c for c in calls if c in settled], [c for c in calls if c not in settled and c not in ahead]
        known = [*places, *inputs[n:m], *constant]
        shared = [node for node in (*known, *before) if any(user in later for user in node.users)]
        given = [node for node in (*batches, *ahead) if any(user in later for user in node.users)]
        settle, take = _function(known, before, shared), _function([*shared, *given], later, [])
        return Program(settle, lifted(batches, ahead, given), take, fuses, StepsInC(shared, given, later))


def _settled(graph: Graph, moved: set[Node], batches: set[Node]) -> set[Node]:
    """What is the same at every step: all that reads neither a batch nor numbers that move; and views of those places.

    What a step makes and overwrites it must make every time.
    """
    written = {root(node) for change in graph.nodes for node in changed(change)}
    moved = moved | {node for node in written if node.op == "placeholder"}
    scratch = written - moved
    settled: set[Node] = set()
    for node in graph.nodes:
        given = node.all_input_nodes
        if node in batches or any(one not in settled for one in given) or (acts(node) and node.op != "placeholder"):
            continue
        if root(node) in scratch or (root(node) is node and any(root(one) in moved for one in given)):
            continue
        settled.add(node)
    return settled


def _function(inputs: Sequence[Node], nodes: Sequence[Node], outputs: Sequence[Node]) -> Callable[..., Any]:
    """Some nodes of a graph as a function of others."""
    graph = Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].target = PLAIN.get(node.target, node.target)
    graph.output(tuple(copies[node] for node in outputs))
    function: Callable[..., Any] = GraphModule({}, graph).forward
    return function
