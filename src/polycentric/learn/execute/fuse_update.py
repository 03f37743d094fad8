"""A step's update as products in place.

A dense layer's gradient is a product, delta^T x, as large as the layer; a step writes it, reads it again, and reads and
writes the row:

    G = A B,        w <- w - lr G                  becomes              w <- w + (-lr A) B

which a matrix product does in place with w for its sum: G is never written. Where all clients have one rate, which is
so as a rule, it is a number that the product takes along; and the gradient of a bias, a sum over examples, is a product
with ones. Other parts of the gradient are added to their columns; what else the gradient is the sum of (a penalty's) is
taken off the row first. Any other new row is copied to its place. Equal to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph, Node

from .tidy import draws, is_a, root, shape, source

aten: Any = torch.ops.aten
Call = Callable[..., Node]  # (operator, what it is given) -> its node
Write = tuple[Any, tuple[Any, ...], dict[str, Any]]  # operator, what it is given
MOST = 0.5  # of the row that must be products for it to be worth while


class RatesDiffer(Exception):
    """Clients of a stack do not move at one rate."""


def one_rate(rates: Tensor) -> float:
    """The rate of all clients."""
    first = rates.reshape(-1)[0]
    if not bool((rates == first).all()):
        raise RatesDiffer
    return float(first)


def written_in_place(
    graph: Graph, places: Sequence[Node], new: Sequence[Node], batches: Sequence[Node], same: bool
) -> bool:
    """End a graph with what overwrites its places by what is new; whether any gradient is left unwritten.

    All that is computed is computed before the first write; what is only another view of a place is copied by then.
    `same`: all clients are taken to move at one rate, and whoever begins with others is told (`RatesDiffer`).
    """
    writes: list[Write] = []
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
        one = call(one_rate, minus) if same and _lasts(rate, moved | set(batches)) else None
        if rest is not None:
            writes.append((torch.Tensor.addcmul_, (place, still(rest), minus), {}))
        for part in parts:
            last = first + shape(part)[1]
            columns = call(aten.slice.Tensor, place, 1, first, last)
            writes.append(_part_added(call, still, part, columns, minus if one is None else one))
            first = last
    for target, args, named in writes:
        graph.call_function(target, args, named)
    return fused


def _part_added(call: Call, still: Callable[[Node], Node], part: Node, columns: Node, rate: Node) -> Write:
    """How a part of a gradient is added to its columns: `rate` is a number of all clients, or each one's, negative."""
    product, added, alike = _product(part), _added_up(part), rate.target is one_rate
    if product is None and (added is None or not alike):
        if alike:
            return torch.Tensor.add_, (columns, still(part)), {"alpha": rate}
        return torch.Tensor.addcmul_, (columns, still(part), rate), {}
    if product is None:
        assert added is not None
        n, examples, width = shape(added)
        ones = call(aten.full.default, [n, 1, examples], 1, dtype=added.meta["val"].dtype)
        columns = call(aten.view.default, columns, [n, 1, width])
        return torch.Tensor.baddbmm_, (columns, ones, still(added)), {"alpha": rate}
    a, b = cast(tuple[Node, Node], product.args)
    columns = call(aten.view.default, columns, list(shape(product)))
    if alike:
        return torch.Tensor.baddbmm_, (columns, still(a), still(b)), {"alpha": rate}
    each = call(aten.unsqueeze.default, rate, 2)
    if torch.Size(shape(a)).numel() <= torch.Size(shape(b)).numel():
        return torch.Tensor.baddbmm_, (columns, call(aten.mul.Tensor, a, each), still(b)), {}
    return torch.Tensor.baddbmm_, (columns, still(a), call(aten.mul.Tensor, b, each)), {}


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
    return product if is_a(product, aten.bmm.default) and seen_flat(part, product) else None


def _added_up(part: Node) -> Node | None:
    """What a part (clients, numbers) is the sum of over examples, (clients, examples, numbers); None: of nothing."""
    total = source(part)
    if not is_a(total, aten.sum.dim_IntList) or total.kwargs:
        return None
    summed, axes = cast(tuple[Node, list[int]], total.args[:2])
    whole = summed.meta["val"].dim() == 3 and list(axes) in ([1], [-2])
    same = summed.meta["val"].dtype == total.meta["val"].dtype
    return summed if whole and same and seen_flat(part, total) else None


def seen_flat(part: Node, source: Node) -> bool:
    """Whether a part, a view of its source that begins where it does, has its numbers in their order."""
    seen, whole = part.meta["val"], source.meta["val"]
    return bool(seen.is_contiguous() and whole.is_contiguous() and seen.numel() == whole.numel())


def _lasts(node: Node, changing: set[Node]) -> bool:
    """Whether a node is the same at every step: it is made of nothing that changes, and not drawn."""
    return node not in changing and not draws(node) and all(_lasts(one, changing) for one in node.all_input_nodes)
