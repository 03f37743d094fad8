"""A recorded step's moves, made by the kernels that make their gradients.

    G = g^T x,   v <- beta v + G + decay w,   w <- w - lr v         becomes one kernel, which never writes G

`in_place` moves a row along a gradient given in parts, a part for each layer. A part that is the product of one of our
kernels, and that nobody else reads, is not written: the kernel moves the layer's columns itself. A product is then made
when its layer moves, so its factors must be what they were: none may be a view of a row that moves. Other parts stay
where they are.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.fx import Graph, Node

from ..execute.fuse_update import seen_flat
from ..execute.tidy import SEES, acts, changed, root, shape
from .convolve import convolution_in_w, convolution_in_w_moves_
from .in_place import move_
from .linear import outer, outer_moves_

aten: Any = torch.ops.aten
MOVES: dict[Any, Any] = {  # what makes a gradient, and what moves along it
    outer: outer_moves_,
    convolution_in_w: convolution_in_w_moves_,
}


def moves_fused(graph: Graph) -> None:
    """Let kernels that make a part of a gradient move it."""
    written = {root(one) for node in graph.nodes for one in changed(node)}
    for node in [node for node in graph.nodes if node.target is move_]:
        w, v, lr, parts, beta, decay = cast(tuple[Any, ...], node.args)
        makers = [_maker(part, node, written) for part in parts]
        if not any(makers):
            continue
        with graph.inserting_before(node):
            first = 0
            for part, maker in zip(parts, makers, strict=True):
                last = first + shape(part)[1]
                columns = [_columns(graph, row, first, last) for row in (w, v)]
                if maker is None:
                    graph.call_function(move_, (*columns, lr, [part], beta, decay))
                else:
                    graph.call_function(MOVES[maker.target], (*columns, lr, *maker.args, beta, decay))
                first = last
        graph.erase_node(node)
    graph.eliminate_dead_code(acts)


def _columns(graph: Graph, row: Node | None, first: int, last: int) -> Node | None:
    if row is None:
        return None
    columns = graph.call_function(aten.slice.Tensor, (row, 1, first, last))
    columns.meta["val"] = row.meta["val"][:, first:last]
    return columns


def _maker(part: Node, move: Node, written: set[Node]) -> Node | None:
    """The kernel that makes a part for this move alone, of numbers that nobody overwrites; None: there is none."""
    seen, user = part, move
    while set(seen.users) == {user}:
        if seen.target in MOVES:
            last = not any(root(factor) in written for factor in seen.all_input_nodes)
            return seen if last and seen_flat(part, seen) else None
        if len(seen.all_input_nodes) != 1 or seen.target not in SEES:
            return None
        seen, user = seen.all_input_nodes[0], seen
    return None
