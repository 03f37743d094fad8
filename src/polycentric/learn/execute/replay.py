"""A recorded step, ready to be taken again and again: operators called one after another on rows in their places.

settle(carried, held, constants)     once for some clients: views of their rows, and whatever stays as it is
take(settled, batch)                 one step of theirs, in place
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from .fuse_update import written_in_place
from .recording import recorded
from .tidy import acts, changed, overwritten, root, tidied

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
        new = list(cast(tuple[Node, ...], output.args[0]))
        graph.erase_node(output)
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        n, m = len(carried), len(carried) + len(held)
        places, batches = inputs[:n], inputs[m : m + len(batch)]
        constant = [node for node in inputs if node.name.startswith("held")]
        self.fuses = written_in_place(graph, places, new)
        graph.output(None)
        graph.eliminate_dead_code(acts)
        moved = {place for place, value in zip(places, new, strict=True) if value is not place}
        settled = _settled(graph, moved, set(batches))
        overwritten(graph, settled)
        before, later = (
            [node for node in graph.nodes if node.op == "call_function" and (node in settled) == first]
            for first in (True, False)
        )
        known = [*places, *inputs[n:m], *constant]
        shared = [node for node in (*known, *before) if any(user not in settled for user in node.users)]
        self.settle, self.take = _function(known, before, shared), _function([*shared, *batches], later, [])


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
