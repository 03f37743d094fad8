"""A step's update as products in place.

A dense layer's gradient is a product, delta^T x, as large as the layer; a step writes it, reads it again, and reads and
writes the row:

    G = A B,        w <- w - lr G                  becomes              w <- w + (-lr A) B

which a matrix product does in place with w for its sum: G is never written. Parts of the gradient that are no products
are added to their columns; what else the gradient is the sum of (a penalty's) is taken off the row first. Any other new
row is copied to its place. Equal to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph, Node

from .tidy import SEES, is_a, root, shape, source

aten: Any = torch.ops.aten
MOST = 0.5  # of the row that must be products for it to be worth while


def written_in_place(graph: Graph, places: Sequence[Node], new: Sequence[Node]) -> bool:
    """End a graph with what overwrites its places by what is new; whether any gradient is left unwritten.

    All that is computed is computed before the first write; what is only another view of a place is copied by then.
    """
    writes: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []  # operator, what it is given
    moved, fused = {place for place, value in zip(places, new, strict=True) if value is not place}, False

    def call(target: Any, *args: Any, **named: Any) -> Node:
        return graph.call_function(target, args, named)

    def still(node: Node) -> Node:
        return call(aten.clone.default, node) if root(node) in moved else node

    for place, value in zip(places, new, strict=True):
        if value is place:
            continue
        found = _gradient(place, value)
        if found is None and is_a(value, aten.addcmul.default) and value.args[0] is place and not value.users:
            given = (still(node) for node in cast(tuple[Node, ...], value.args)[1:])
            writes.append((torch.Tensor.addcmul_, (place, *given), dict(value.kwargs)))
            continue
        if found is None:
            writes.append((torch.Tensor.copy_, (place, still(value)), {}))
            continue
        parts, rest, rate, fused = *found, True
        minus, first = call(aten.neg.default, rate), 0
        if rest is not None:
            writes.append((torch.Tensor.addcmul_, (place, still(rest), minus), {}))
        for part in parts:
            last, product = first + shape(part)[1], _product(part)
            columns = call(aten.slice.Tensor, place, 1, first, last)
            if product is None:
                writes.append((torch.Tensor.addcmul_, (columns, still(part), minus), {}))
            else:
                a, b = cast(tuple[Node, Node], product.args)
                columns = call(aten.view.default, columns, list(shape(product)))
                each = call(aten.unsqueeze.default, minus, 2)
                if torch.Size(shape(a)).numel() <= torch.Size(shape(b)).numel():
                    a, b = call(aten.mul.Tensor, a, each), still(b)
                else:
                    a, b = still(a), call(aten.mul.Tensor, b, each)
                writes.append((torch.Tensor.baddbmm_, (columns, a, b), {}))
            first = last
    for target, args, named in writes:
        graph.call_function(target, args, named)
    return fused


def _gradient(place: Node, value: Node) -> tuple[list[Node], Node | None, Node] | None:
    """(parts side by side, what is added to them, rate) of a row w - rate gradient; None: it is not, or not mostly."""
    if not (is_a(value, aten.addcmul.default) and value.args[0] is place and value.kwargs == {"value": -1}):
        return None
    rest: Any = None
    gradient: Any
    _, gradient, rate = cast(tuple[Any, ...], value.args)
    if is_a(gradient, aten.add.Tensor) and not gradient.kwargs and len(gradient.users) == 1:
        sides = [side for side in gradient.args if is_a(side, aten.cat.default)]
        if len(sides) == 1:
            (gradient,), (rest,) = sides, [side for side in gradient.args if side is not sides[0]]
    if not (is_a(gradient, aten.cat.default) and gradient.args[1] in (1, -1) and len(shape(place)) == 2):
        return None
    if len(gradient.users) > 1 or value.users:  # it is written anyway
        return None
    parts = list(cast(list[Node], gradient.args[0]))
    width = sum(shape(part)[1] for part in parts)
    products = sum(shape(part)[1] for part in parts if _product(part))
    return (parts, rest, rate) if products >= MOST * width else None


def _product(part: Node) -> Node | None:
    """The batched product that a part (clients, numbers) of a gradient is, seen flat; None if it is none."""
    product = source(part)
    if not is_a(product, aten.bmm.default):
        return None
    numbers = torch.arange(torch.Size(shape(product)).numel())  # where every number goes
    seen = _seen(part, numbers.view(shape(product)))
    return product if torch.equal(seen.reshape(-1), numbers) else None


def _seen(node: Node, source: Tensor) -> Tensor:
    """A tensor in place of a node's source, seen as the node sees it."""
    if node.target not in SEES:
        return source
    see: Any = node.target
    seen: Tensor = see(_seen(node.all_input_nodes[0], source), *node.args[1:], **node.kwargs)
    return seen
