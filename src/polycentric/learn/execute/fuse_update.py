"""A step's update taken out of its traced program, where it is a product of matrices.

A dense layer's gradient is a product, delta^T x, as large as the layer; a step writes it, reads it again, and reads and
writes the row:

    G = A B,        w <- w - lr G                  becomes              w <- w + (-lr A) B

which a matrix product does in place with w for its sum. The program gives -lr A and B, both small, instead of G. Parts
of the gradient that are no products are given as they are, times -lr, and added; what else the gradient is the sum of
(a penalty's) stays in the program. Equal to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

aten: Any = torch.ops.aten
VIEWS = {aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.select.int}
VIEWS |= {aten.transpose.int, aten.permute.default, aten.unsqueeze.default, aten.squeeze.dim}
MOST = 0.5  # of the row that must be products for it to be worth while


@dataclass(frozen=True)
class Operand:
    """A tensor that a program gives; or one it would give as it was taken, seen in another way."""

    output: int | None
    input: int = 0
    seen: tuple[tuple[int, ...], tuple[int, ...], int] = ((), (), 0)  # shape, strides, where it begins

    def of(self, flat: Sequence[Tensor], found: Sequence[Tensor]) -> Tensor:
        """From what a program took and gave."""
        if self.output is not None:
            return found[self.output]
        (shape, strides, first), taken = self.seen, flat[self.input]
        return taken.as_strided(shape, strides, taken.storage_offset() + first)


@dataclass(frozen=True)
class RowUpdate:
    """Adds a product, or a part as it is, to some columns of one of the program's inputs."""

    place: int  # which input
    columns: slice
    shape: tuple[int, ...]  # of the product
    given: tuple[Operand, ...]  # two factors, or the part

    def __call__(self, flat: Sequence[Tensor], found: Sequence[Tensor]) -> None:
        """After the program has run."""
        part = flat[self.place][:, self.columns]
        if len(self.given) == 1:
            part.add_(self.given[0].of(flat, found))
        else:
            a, b = (given.of(flat, found) for given in self.given)
            part.view(-1, *self.shape).baddbmm_(a, b)


def fused_updates(traced: GraphModule) -> list[RowUpdate]:
    """Rewrites a traced step to give its update in factors, and says what to do with them; nothing: left as it is."""
    graph = traced.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    updates: list[RowUpdate] = []
    outputs: list[Node] = []
    writes = [node for node in graph.nodes if node.target is aten.copy_.default and node.args[0] in inputs]
    still = [node for node in inputs if node not in [written.args[0] for written in writes]]
    for written in writes:
        place, new = written.args
        if not (_is(new, aten.addcmul.default) and new.args[0] is place and new.kwargs == {"value": -1}):
            continue
        gradient, rate, rest = new.args[1], new.args[2], None
        if _is(gradient, aten.add.Tensor) and not gradient.kwargs and len(gradient.users) == 1:
            sides = [side for side in gradient.args if _is(side, aten.cat.default)]
            if len(sides) == 1:
                (gradient,), (rest,) = sides, [side for side in gradient.args if side is not sides[0]]
        if not (_is(gradient, aten.cat.default) and gradient.args[1] in (1, -1) and len(_shape(place)) == 2):
            continue
        if len(gradient.users) > 1:  # it is written anyway
            continue
        parts = [(part, _product(part)) for part in gradient.args[0]]
        width = sum(_shape(part)[1] for part, _ in parts)
        if sum(_shape(part)[1] for part, product in parts if product) < MOST * width:
            continue
        with graph.inserting_before(written):
            minus, first = graph.call_function(aten.neg.default, (rate,)), 0
            for part, product in parts:
                last, shape = first + _shape(part)[1], _shape(product or part)[1:]
                factors = _scaled(graph, product, minus) if product else [_times(graph, part, minus)]
                given = tuple(_given(factor, inputs, still, outputs) for factor in factors)
                updates.append(RowUpdate(inputs.index(place), slice(first, last), shape, given))
                first = last
            if rest is not None:
                less = graph.call_function(aten.addcmul.default, (place, rest, rate), {"value": -1})
                graph.call_function(aten.copy_.default, (place, less))
        graph.erase_node(written)
    if updates:
        (output,) = [node for node in graph.nodes if node.op == "output"]
        output.args = (tuple(outputs),)
        graph.eliminate_dead_code()
        traced.recompile()
    return updates


def _scaled(graph: Graph, product: Node, by: Node) -> list[Node]:
    """The factors, the smaller one scaled; `by` is (clients, 1)."""
    a, b = (factor for factor in product.args if isinstance(factor, Node))
    each = graph.call_function(aten.unsqueeze.default, (by, 2))
    if torch.Size(_shape(a)).numel() <= torch.Size(_shape(b)).numel():
        return [_times(graph, a, each), b]
    return [a, _times(graph, b, each)]


def _times(graph: Graph, a: Any, b: Node) -> Node:
    return graph.call_function(aten.mul.Tensor, (a, b))


def _given(node: Node, inputs: list[Node], still: list[Node], outputs: list[Node]) -> Operand:
    """How to come by a tensor: an output, unless it is an input that stays as it is, seen in another way."""
    source, root = _source(node), _root(node)
    if source not in still:
        moves = root in inputs and root not in still  # it would be read when it has been written
        outputs.append(node.graph.call_function(aten.clone.default, (node,)) if moves else node)
        return Operand(len(outputs) - 1)
    was = source.meta["val"]
    seen = _seen(node, torch.empty_strided(was.shape, was.stride(), device="meta"))
    return Operand(None, inputs.index(source), (tuple(seen.shape), seen.stride(), int(seen.storage_offset())))


def _source(node: Node) -> Node:
    """What is only seen in another way."""
    return _source(node.all_input_nodes[0]) if node.target in VIEWS else node


def _root(node: Node) -> Node:
    """Whose memory it may share."""
    schema = getattr(node.target, "_schema", None)
    shares = node.target is getitem or (schema is not None and any(found.alias_info for found in schema.returns))
    return _root(node.all_input_nodes[0]) if node.op == "call_function" and shares else node


def _seen(node: Node, source: Tensor) -> Tensor:
    """A tensor in place of a node's source, seen as the node sees it."""
    if node.target not in VIEWS:
        return source
    see: Any = node.target
    seen: Tensor = see(_seen(node.all_input_nodes[0], source), *node.args[1:], **node.kwargs)
    return seen


def _product(part: Node) -> Node | None:
    """The batched product that a part (clients, numbers) of a gradient is, seen flat; None if it is none."""
    product = _source(part)
    if not _is(product, aten.bmm.default):
        return None
    numbers = torch.arange(torch.Size(_shape(product)).numel())  # where every number goes
    seen = _seen(part, numbers.view(_shape(product)))
    return product if torch.equal(seen.reshape(-1), numbers) else None


def _is(node: Any, target: Any) -> bool:
    return isinstance(node, Node) and node.target is target


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)
