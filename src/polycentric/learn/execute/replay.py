"""A recorded step, ready to be taken again and again: operators called one after another on rows in their places.

    settle(carried, held)                once for some clients: views of their rows, and whatever stays as it is
    take(settled, batch)                 one step of theirs, in place
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from .fuse_update import written_in_place
from .record import recorded
from .tidy import changed, draws, overwritten, root, tidied

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
}


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
        graph, new, self.constants = recorded(step, [*carried, *held, *batch])
        graph.output(tuple(new))
        tidied(graph)
        (output,) = [node for node in graph.nodes if node.op == "output"]
        new = list(output.args[0])
        graph.erase_node(output)
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        n, m = len(carried), len(carried) + len(held)
        places, batches = inputs[:n], inputs[m : m + len(batch)]
        constant = [node for node in inputs if node.name.startswith("held")]
        self.fuses = written_in_place(graph, places, new)
        graph.output(None)
        graph.eliminate_dead_code(lambda node: node.op != "call_function" or _acts(node))
        moved = {place for place, value in zip(places, new, strict=True) if value is not place}
        settled = _settled(graph, moved, set(batches))
        shared = [node for node in settled if any(user not in settled for user in node.users)]
        overwritten(graph, settled)
        self.settle = _function([*places, *inputs[n:m], *constant], settled, shared)
        self.take = _function([*shared, *batches], [node for node in graph.nodes if node not in settled], None)

    def over(self, carried: Sequence[Tensor], held: Sequence[Tensor], batches: Sequence[Sequence[Tensor]]) -> None:
        """Some steps; what is carried is overwritten."""
        settled = self.settle(*carried, *held, *self.constants)
        for batch in batches:
            self.take(*settled, *batch)


def _acts(node: Node) -> bool:
    """Whether an operator does more than give something."""
    name = getattr(node.target, "__name__", "")
    return draws(node) or any(True for _ in changed(node)) or (not hasattr(node.target, "_schema") and name.endswith("_"))


def _settled(graph: Graph, moved: set[Node], batches: set[Node]) -> set[Node]:
    """What is the same at every step: all that reads neither a batch nor numbers that move; and views of those places.

    What a step makes and overwrites it must make every time.
    """
    scratch = {root(node) for change in graph.nodes for node in changed(change)} - moved
    settled: set[Node] = set()
    for node in graph.nodes:
        given = node.all_input_nodes
        if node in batches or node.op == "output" or _acts(node) or any(one not in settled for one in given):
            continue
        if root(node) in scratch or (root(node) is node and any(root(one) in moved for one in given)):
            continue
        settled.add(node)
    return settled


def _function(inputs: Sequence[Node], nodes: Any, outputs: Sequence[Node] | None) -> Callable[..., Any]:
    """Some nodes of a graph as a function of others."""
    graph, copies = Graph(), {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
    order = {node: i for i, node in enumerate(inputs[0].graph.nodes)} if inputs else {}
    for node in sorted(nodes, key=order.__getitem__):
        if node.op == "call_function":
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].target = PLAIN.get(node.target, node.target)
    graph.output(None if outputs is None else tuple(copies[node] for node in outputs))
    return GraphModule({}, graph).forward  # type: ignore[no-any-return]
