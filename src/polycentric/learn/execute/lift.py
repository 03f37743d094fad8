"""What a recorded step does with its batch alone, done for the batches of several steps at once.

Labels become rows of a mask, weights change their sign, images become rows: that depends on no client's model, so it
need not be done again at every step. Only operators for which it is plain what they do to a stack of steps are lifted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from .tidy import changed, root

aten: Any = torch.ops.aten


def seen_as(x: Tensor, shape: Sequence[int]) -> Tensor:
    """`view`, of every step."""
    return x.reshape(len(x), *shape)


def with_axis(x: Tensor, at: int) -> Tensor:
    """`unsqueeze`, of every step."""
    return x.unsqueeze(at if at < 0 else at + 1)


def scattered(to: Tensor, axis: int, index: Tensor, values: Tensor) -> Tensor:
    """`scatter_add` to the same numbers, of every step."""
    return to.expand(len(index), *to.shape).scatter_add(axis if axis < 0 else axis + 1, index, values)


def marked(to: Tensor, axis: int, index: Tensor, value: float) -> Tensor:
    """`scatter` of a number, of every step."""
    return to.expand(len(index), *to.shape).scatter(axis if axis < 0 else axis + 1, index, value)


LIFTS: dict[Any, Callable[..., Tensor]] = {
    aten.view.default: seen_as,
    aten._unsafe_view.default: seen_as,
    aten.unsqueeze.default: with_axis,
    aten.neg.default: torch.neg,
    aten.scatter_add.default: scattered,
    aten.scatter.value: marked,
    aten.ne.Scalar: torch.ne,
    aten.mul.Tensor: torch.mul,
    aten.where.self: torch.where,
}
BEGINS = {aten.scatter_add.default, aten.scatter.value}  # what they are done to may be the same at every step
BROADCASTS = {aten.mul.Tensor, aten.where.self}


def liftable(calls: Sequence[Node], batches: Sequence[Node]) -> list[Node]:
    """The operators, in their order, that read a batch and nothing else but numbers that are always the same.

    What a step overwrites it must read when it does.
    """
    written = {root(node) for call in calls for node in changed(call)}
    found, known = list[Node](), {node for node in batches if node not in written}
    for node in calls:
        given = node.all_input_nodes
        if node.target not in LIFTS or node.kwargs or not given or not all(one in known or full(one) for one in given):
            continue
        if root(node) in written or not _lifts(node, known):
            continue
        found.append(node)
        known.add(node)
    return found


def _lifts(node: Node, known: set[Node]) -> bool:
    """Whether a stack of steps goes the same way: what is the same at every step must stand where it can."""
    given = node.all_input_nodes
    same = [one for one in given if one not in known]
    if node.target in BROADCASTS:  # axes are counted from the last, but a stack has one more before the first
        axes = {one.meta["val"].dim() if "val" in one.meta else None for one in (node, *given) if one not in same}
        return same != given and len(axes) == 1 and None not in axes
    return same == [node.args[0]] != given if node.target in BEGINS else not same


def full(node: Node) -> bool:
    """Whether a node is a tensor of one number."""
    return node.target in (aten.full.default, aten.scalar_tensor.default)


def lifted(batches: Sequence[Node], ahead: Sequence[Node], given: Sequence[Node]) -> Callable[..., tuple[Tensor, ...]]:
    """What a step is given, as a function of batches; all stacked by steps."""
    graph = Graph()
    copies = {node: graph.placeholder(node.name) for node in batches}
    for node in ahead:
        for one in node.all_input_nodes:
            if one not in copies:
                copies[one] = graph.node_copy(one)
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].target = LIFTS[node.target]
    graph.output(tuple(copies[node] for node in given))
    function: Callable[..., tuple[Tensor, ...]] = GraphModule({}, graph).forward
    return function
