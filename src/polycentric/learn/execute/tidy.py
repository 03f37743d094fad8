"""A recorded step with the same results and fewer operators.

Most of what `vmap` and `grad` call does nothing: views of what already has that shape, products with one, losses whose
value nobody asks for, the same mask four times. They are left out; a bias is added by the product it follows; and what
is read for the last time may be overwritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import getitem
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.fx import Graph, Node

aten: Any = torch.ops.aten
SEES = {aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.transpose.int, aten.permute.default}
SEES |= {aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.t.default, aten.alias.default}
SEES |= {aten.detach.default, aten.lift_fresh.default}  # views that begin where their source begins
FILLS = {aten.zeros_like.default: 0, aten.ones_like.default: 1, aten.new_zeros.default: 0, aten.new_ones.default: 1}
IN_PLACE: dict[Any, Any] = {
    aten.relu.default: torch.relu_,
    aten.mul.Tensor: torch.Tensor.mul_,
    aten.add.Tensor: torch.Tensor.add_,
    aten.neg.default: torch.neg_,
    aten.tanh.default: torch.tanh_,
    aten.sigmoid.default: torch.sigmoid_,
}


def tidied(graph: Graph) -> None:
    """Leave out what does nothing. The graph ends in an output."""
    written: set[Node] = set()  # by what came before: who reads it then reads something else
    lasting = {root(node) for node in graph.nodes if node.op == "call_function" for node in changed(node)}
    lasting -= {node for node in graph.nodes if node.op == "placeholder"}
    known: dict[object, Node] = {}
    for node in list(graph.nodes):
        if node.op == "call_function":
            written |= {root(change) for change in changed(node)}
        around = {root(n) for n in (node, *node.all_input_nodes)}
        if node.op != "call_function" or draws(node) or around & (written | lasting):
            continue
        same = _constant(graph, node) or node
        same = _same_view(same) or _other_than_one(same) or _with_bias(graph, same) or same
        same = known.setdefault((same.target, _key(same.args), _key(same.kwargs)), same)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    graph.eliminate_dead_code(acts)


def overwritten(graph: Graph, lasting: set[Node]) -> None:
    """Let operators work in place where they are the last to read; `lasting` are nodes of which others know."""
    for node in graph.nodes:
        if node.target not in IN_PLACE or node.kwargs:
            continue
        first = node.args[0]
        mine = isinstance(first, Node) and first.op == "call_function" and first not in lasting and root(first) is first
        if mine and len(first.users) == 1 and _form(first) == _form(node) and first not in node.args[1:]:
            node.target = IN_PLACE[node.target]


def root(node: Node) -> Node:
    """Whose memory it may share."""
    schema = getattr(node.target, "_schema", None)
    shares = node.target in SEES or node.target is getitem
    shares = shares or (schema is not None and any(found.alias_info for found in schema.returns))
    return root(node.all_input_nodes[0]) if node.op == "call_function" and shares else node


def source(node: Node) -> Node:
    """What is only seen in another way."""
    return source(node.all_input_nodes[0]) if node.target in SEES else node


def changed(node: Node) -> Iterator[Node]:
    """What an operator overwrites."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None and schema.is_mutable:
        for given, value in zip(schema.arguments, node.args, strict=False):
            if given.is_write:
                yield from _nodes(value)
        for given in schema.arguments:
            if given.is_write and given.name in node.kwargs:
                yield from _nodes(node.kwargs[given.name])


def acts(node: Node) -> bool:
    """Whether a node does more than give something: it draws, or overwrites, or is no operator."""
    if node.op != "call_function" or draws(node):
        return True
    own = not hasattr(node.target, "_schema") and getattr(node.target, "__name__", "").endswith("_")  # torch.relu_
    return own or any(True for _ in changed(node))


def draws(node: Node) -> bool:
    """Whether an operator gives something else every time."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def shape(node: Any) -> tuple[int, ...]:
    """Of what a node gives."""
    return tuple(node.meta["val"].shape)


def is_a(node: Any, target: Any) -> TypeGuard[Node]:
    """Whether a node is of an operator."""
    return isinstance(node, Node) and node.target is target


def same_form(a: Node, b: Node) -> bool:
    """Whether two nodes give tensors of one shape, which lie in memory alike."""
    return _form(a) == _form(b)


def _form(node: Node) -> tuple[object, ...]:
    value = node.meta["val"]  # how far it is to the next of one does not matter
    strides = tuple(step if n > 1 else 0 for n, step in zip(value.shape, value.stride(), strict=True))
    return tuple(value.shape), strides, value.dtype


def _constant(graph: Graph, node: Node) -> Node | None:
    """A tensor of one number, of which only the shape depends on anything."""
    fills: Any = {aten.new_full.default: 2, aten.full_like.default: 1}
    value = node.args[fills[node.target]] if node.target in fills else FILLS.get(node.target)
    if value is None or not node.meta["val"].is_contiguous():
        return None
    with graph.inserting_before(node):
        full = graph.call_function(aten.full.default, (list(shape(node)), value), {"dtype": node.meta["val"].dtype})
    full.meta["val"] = node.meta["val"]
    return full


def _same_view(node: Node) -> Node | None:
    """What is already seen so."""
    seen = node
    while seen.target in SEES:
        seen = seen.all_input_nodes[0]
        if _form(seen) == _form(node):
            return seen
    return None


def _other_than_one(node: Node) -> Node | None:
    """The other factor of a product with one; what is raised to the power of one."""
    if node.target is aten.pow.Tensor_Scalar and node.args[1] == 1:
        base = node.args[0]
        return base if isinstance(base, Node) and _stands_for(base, node) else None
    if node.target not in (aten.mul.Tensor, aten.mul.Scalar):
        return None
    first, second = node.args
    for one, other in ((first, second), (second, first)):
        is_one = (isinstance(one, int | float) and one == 1) or (
            isinstance(one, Node) and is_a(source(one), aten.full.default) and source(one).args[1] == 1
        )
        if is_one and isinstance(other, Node) and _stands_for(other, node):
            return other
    return None


def _stands_for(other: Node, node: Node) -> bool:
    """Whether one may be read for another: the same numbers, in an order of memory that all views of it can take."""
    value, was = other.meta["val"], node.meta["val"]
    return bool(value.shape == was.shape and value.dtype == was.dtype) and _can_be_seen(node, value)


def _can_be_seen(node: Node, value: Tensor) -> bool:
    """Whether a tensor in a node's place can be seen in every way in which the node is."""
    for user in node.users:
        if user.target in SEES:
            see: Any = user.target
            try:
                seen = see(value, *user.args[1:], **user.kwargs)
            except RuntimeError:
                return False
            if not _can_be_seen(user, seen):
                return False
        elif root(user) is not user:  # a view by strides
            return False
    return True


def _with_bias(graph: Graph, node: Node) -> Node | None:
    """A product that begins with a bias: A B + b."""
    if not is_a(node, aten.add.Tensor) or node.kwargs:
        return None
    first, second = node.args
    for product, bias in ((first, second), (second, first)):
        if not (is_a(product, aten.bmm.default) and len(product.users) == 1 and isinstance(bias, Node)):
            continue
        if _form(product) == _form(node) and bias.meta["val"].dtype == node.meta["val"].dtype:
            with graph.inserting_before(node):
                both = graph.call_function(aten.baddbmm.default, (bias, *product.args))
            both.meta["val"] = product.meta["val"]
            return both
    return None


def _nodes(value: Any) -> Iterable[Node]:
    return [value] if isinstance(value, Node) else [v for v in value if isinstance(v, Node)] if value else []


def _key(value: Any) -> object:
    """Something hashable that is equal for equal arguments; True and 1, and 0.0 and -0.0, are not."""
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(v)) for name, v in value.items())
    return value if isinstance(value, Node) else (type(value), repr(value))
