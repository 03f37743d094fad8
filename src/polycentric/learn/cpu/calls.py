"""A recorded step as a list of calls, which C takes for one client after another.

    program: baddbmm, relu_, baddbmm, log_softmax, ...  ->  calls: (PRODUCT, m, n, k, where), (RELU, ...), ...
    steps.c: for every client: for every step: for every call

Calling operators one by one costs as much as small models do, and torch's products use half of some processors. Where
every operator of a step is one of a few (products, rectifiers, softmax, sums and products of rows), some steps of some
clients are one call of C, and a client's model stays in the cache until they are done. A step that has other operators,
or tensors that lie in other ways, is taken operator by operator as before: equal to rounding.

Which tensors lie where is looked at once for tensors of the same forms; what is computed in between stands in memory
that clients have one after another.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_float, c_int64, c_void_p
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.fx import Node

from .library import library

aten: Any = torch.ops.aten
KINDS = (
    "PRODUCT",
    "RELU",
    "RELU_BACK",
    "LOG_SOFTMAX",
    "LOG_SOFTMAX_BACK",
    "ADD",
    "MULTIPLY",
    "DIVIDE",
    "ADD_PRODUCT",
    "SUM",
)
PRODUCT, RELU, RELU_BACK, LOG_SOFTMAX, LOG_SOFTMAX_BACK, ADD, MULTIPLY, DIVIDE, ADD_PRODUCT, SUM = range(len(KINDS))
NOWHERE = -1
LINE = 16  # numbers of a line of memory
SMALL = 3e7  # operations of a client's step that torch does no faster where it has several threads


class CannotList(Exception):
    """A step that has other operators, or tensors that lie in other ways."""


class Place(ctypes.Structure):
    """Where a matrix of every client lies."""

    _fields_ = tuple((name, c_int64) for name in ("memory", "client", "row", "column"))


class Call(ctypes.Structure):
    """An operator."""

    _fields_ = (
        *((name, c_int64) for name in ("kind", "m", "n", "k", "number")),
        *((name, Place) for name in ("out", "start", "a", "b")),
    )


class Seen(NamedTuple):
    """How a tensor lies: the first axis are clients."""

    memory: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def each(self) -> int:
        """Numbers of a client."""
        return torch.Size(self.shape[1:]).numel()

    @property
    def whole(self) -> bool:
        """Whether a client's numbers lie side by side, in their order."""
        following = 1
        for size, stride in zip(self.shape[:0:-1], self.strides[:0:-1], strict=True):
            if size != 1 and stride != following:
                return False
            following *= size
        return True

    def flat(self) -> Place:
        """All numbers of a client one after another; a single one stands for as many as are wanted."""
        if all(size == 1 or not stride for size, stride in zip(self.shape[1:], self.strides[1:], strict=True)):
            return Place(self.memory, self.strides[0], 0, 0)
        if not self.whole:
            raise CannotList
        return Place(self.memory, self.strides[0], 0, 1)

    def matrix(self) -> Place:
        """Rows and columns."""
        if len(self.shape) != 3:
            raise CannotList
        return Place(self.memory, *self.strides)


Number = tuple[float, int | None]  # a number, or which of the values it is


class Calls:
    """A step's operators, to be listed for values of any forms.

    Arguments:
        shared: nodes whose values are the same at every step, tensors or numbers.
        given: nodes whose values are of a step.
        nodes: the operators, in their order.
    """

    def __init__(self, shared: Sequence[Node], given: Sequence[Node], nodes: Sequence[Node]) -> None:
        self._nodes = shared, given, nodes
        self._lists: dict[object, CallList | None] = {}

    def take(self, shared: Sequence[Any], given: Sequence[Tensor]) -> bool:
        """Take all steps; False: they cannot be listed, and nothing was done. `given` are stacked by steps."""
        if not given or not len(given[0]) or library() is None:
            return False
        key = tuple(_form(value) for value in shared), tuple(_form(value[0]) for value in given)
        if key not in self._lists:
            self._lists[key] = self._listed(shared, given)
        found = self._lists[key]
        if found is None or found.better_by_torch:
            return False
        found.take(shared, given)
        return True

    def _listed(self, shared: Sequence[Any], given: Sequence[Tensor]) -> CallList | None:
        inputs, more, nodes = self._nodes
        try:
            return CallList([*inputs, *more], [*shared, *(value[0] for value in given)], nodes)
        except CannotList:
            return None


def _form(value: Any) -> object:
    return (value.shape, value.stride(), value.dtype, value.device.type) if isinstance(value, Tensor) else type(value)


class CallList:
    """The calls of a step whose values have some forms."""

    def __init__(self, inputs: Sequence[Node], values: Sequence[Any], nodes: Sequence[Node]) -> None:
        self.known: dict[Node, Seen | int] = {}  # a number: which of the values it is
        self.clients = next((len(v) for v in values if isinstance(v, Tensor) and v.dim()), 0)
        for i, (node, value) in enumerate(zip(inputs, values, strict=True)):
            self.known[node] = _seen(i, value, self.clients)
        self.storage = [v.untyped_storage().data_ptr() if isinstance(v, Tensor) else None for v in values]
        self.between, self.sizes = 0, list[int]()  # numbers that stand in between, and where each piece of them begins
        self.numbers, self.calls = list[Number](), list[Call]()
        self.operations = 0  # of a client's step
        for node in nodes:
            if node.target not in LISTED:
                raise CannotList
            self.known[node] = LISTED[node.target](self, *node.args, **node.kwargs)
        self._calls = (Call * len(self.calls))(*self.calls)

    @property
    def better_by_torch(self) -> bool:
        """Whether a client's step is so large that torch does it faster with its threads."""
        return self.operations > SMALL and torch.get_num_threads() > 1

    def take(self, shared: Sequence[Any], given: Sequence[Tensor]) -> None:
        """All steps."""
        held = [value.data_ptr() if isinstance(value, Tensor) else None for value in shared]
        places = [*held, *(value.data_ptr() for value in given)]
        moves = [*[0] * len(held), *(value.stride(0) for value in given), *[0] * len(self.sizes)]
        numbers = [number if at is None else shared[at] for number, at in self.numbers]
        own = torch.empty(self.between)
        memory = [*places, *(own.data_ptr() + own.element_size() * begin for begin in self.sizes)]
        cast(Any, library()).polycentric_take(
            self._calls,
            c_int64(len(self.calls)),
            (c_void_p * len(memory))(*memory),
            (c_int64 * len(moves))(*moves),
            (c_float * len(numbers))(*numbers),
            c_int64(self.clients),
            c_int64(len(given[0])),
        )

    def seen(self, value: Any) -> Seen:
        """How what an operator is given lies."""
        found = self.known.get(value) if isinstance(value, Node) else None
        if not isinstance(found, Seen):
            raise CannotList
        return found

    def new(self, *shape: int) -> Seen:
        """What an operator makes: a client's at a time."""
        place = Seen(len(self.storage) + len(self.sizes), (self.clients, *shape), (0, *_contiguous(shape)))
        self.sizes.append(self.between)
        self.between += -(-place.each // LINE) * LINE
        return place

    def within(self, begin: int, like: Seen) -> Seen:
        """A part of what an operator makes, which begins at some number of it."""
        self.sizes.append(begin)
        return Seen(len(self.storage) + len(self.sizes) - 1, like.shape, (0, *_contiguous(like.shape[1:])))

    def held(self, memory: int) -> int | None:
        """Whose storage it is; None: it is our own."""
        return self.storage[memory] if memory < len(self.storage) else None

    def number(self, value: Any) -> int:
        """A factor."""
        at = self.known.get(value) if isinstance(value, Node) else None
        if isinstance(value, Node) and not isinstance(at, int):
            raise CannotList
        self.numbers.append((0.0, at) if isinstance(at, int) else (float(value), None))
        return len(self.numbers) - 1

    def call(self, kind: int, m: int, n: int, k: int = 0, factor: Any = 1.0, **places: Place) -> None:
        """One more, which may read what it overwrites only where it does so number by number."""
        nowhere, out = Place(NOWHERE, 0, 0, 0), places["out"].memory
        for name, place in places.items():
            same = place.memory == out and (kind != PRODUCT or name in ("out", "start"))
            if not same and self.held(place.memory) == self.held(out) is not None:
                raise CannotList
        self.calls.append(
            Call(kind, m, n, k, self.number(factor), *(places.get(p, nowhere) for p in ("out", "start", "a", "b")))
        )


def _seen(i: int, value: Any, clients: int) -> Seen | int:
    if not isinstance(value, Tensor):
        return i
    if value.dtype != torch.float32 or value.device.type != "cpu" or not value.dim() or len(value) != clients:
        raise CannotList
    return Seen(i, tuple(value.shape), value.stride())


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(torch.Size(shape[i + 1 :]).numel() for i in range(len(shape)))


def _transposed(step: CallList, x: Any, first: int, second: int) -> Seen:
    seen = step.seen(x)
    shape, strides = list(seen.shape), list(seen.strides)
    first, second = first % len(shape), second % len(shape)
    if not first or not second:
        raise CannotList
    for given in (shape, strides):
        given[first], given[second] = given[second], given[first]
    return Seen(seen.memory, tuple(shape), tuple(strides))


def _viewed(step: CallList, x: Any, shape: Sequence[int]) -> Seen:
    seen = step.seen(x)
    if not seen.whole or shape[0] != step.clients or torch.Size(shape[1:]).numel() != seen.each:
        raise CannotList
    return Seen(seen.memory, tuple(shape), (seen.strides[0], *_contiguous(shape[1:])))


def _expanded(step: CallList, x: Any, shape: Sequence[int]) -> Seen:
    seen = step.seen(x)
    if len(shape) != len(seen.shape) or shape[0] not in (-1, step.clients):
        raise CannotList
    sizes = tuple(old if new == -1 else new for old, new in zip(seen.shape, shape, strict=True))
    strides = (far if old == new else 0 for old, new, far in zip(seen.shape, sizes, seen.strides, strict=True))
    return Seen(seen.memory, sizes, tuple(strides))


def _unsqueezed(step: CallList, x: Any, axis: int) -> Seen:
    seen = step.seen(x)
    at = axis % (len(seen.shape) + 1)
    if not at:
        raise CannotList
    return Seen(seen.memory, (*seen.shape[:at], 1, *seen.shape[at:]), (*seen.strides[:at], 1, *seen.strides[at:]))


def _squeezed(step: CallList, x: Any, axes: Sequence[int]) -> Seen:
    seen = step.seen(x)
    gone = {axis % len(seen.shape) for axis in axes}
    if 0 in gone:
        raise CannotList
    left = [i for i, size in enumerate(seen.shape) if i not in gone or size != 1]
    return Seen(seen.memory, tuple(seen.shape[i] for i in left), tuple(seen.strides[i] for i in left))


def _product(
    step: CallList, a: Any, b: Any, start: Seen | None = None, out: Seen | None = None, alpha: Any = 1.0
) -> Seen:
    """out = start + alpha a b."""
    (_, m, k), (_, _, n) = step.seen(a).shape, step.seen(b).shape
    left, right = step.seen(a).matrix(), step.seen(b).matrix()
    along = (left.column == 1 or k == 1) and (right.row == 1 or k == 1)  # what is added up lies side by side
    if right.column == 1 or (n == 1 and not along):
        right.column = 1
    elif not along:
        raise CannotList
    if n == 1 and along:
        right.column = max(k, 2)
    out = step.new(m, n) if out is None else out
    places = {"out": out.matrix(), "a": left, "b": right}
    if start is not None:
        places["start"] = start.matrix()
        if start.shape[1] == 1:
            places["start"].row = 0
        if start.shape != (step.clients, start.shape[1], n) or start.shape[1] not in (1, m):
            raise CannotList
    if any(n > 1 and places[name].column != 1 for name in ("out", "start") if name in places):
        raise CannotList
    step.call(PRODUCT, m, n, k, alpha, **places)
    step.operations += 2 * m * n * k
    return out


def _sum_and_product(in_place: bool) -> Callable[..., Seen]:
    def listed(step: CallList, start: Any, a: Any, b: Any, alpha: Any = 1.0, beta: Any = 1.0) -> Seen:
        begin = step.seen(start)
        if isinstance(beta, Node) or beta != 1:
            raise CannotList
        return _product(step, a, b, begin, begin if in_place else None, alpha)

    return listed


def _each(step: CallList, kind: int, like: Seen, out: Seen | None, factor: Any = 1.0, **given: Seen) -> Seen:
    """What is done to every number by itself."""
    out = step.new(*like.shape[1:]) if out is None else out
    if out.each != like.each or any(value.each not in (1, out.each) for value in given.values()):
        raise CannotList
    step.call(kind, 1, out.each, 0, factor, out=out.flat(), **{name: value.flat() for name, value in given.items()})
    return out


def _relu(step: CallList, x: Any) -> Seen:
    return _each(step, RELU, step.seen(x), None, a=step.seen(x))


def _relu_in_place(step: CallList, x: Any) -> Seen:
    return _each(step, RELU, step.seen(x), step.seen(x), a=step.seen(x))


def _relu_back(step: CallList, gradient: Any, x: Any, threshold: float) -> Seen:
    if threshold != 0 or step.seen(gradient).shape != step.seen(x).shape:
        raise CannotList
    return _each(step, RELU_BACK, step.seen(x), None, a=step.seen(gradient), b=step.seen(x))


def _rows(step: CallList, kind: int, axis: int, *given: Seen) -> Seen:
    """What is done to every row."""
    shape = given[0].shape
    if axis not in (-1, len(shape) - 1) or any(other.shape != shape for other in given) or len(shape) < 2:
        raise CannotList
    out, n = step.new(*shape[1:]), shape[-1]
    places = {name: value.flat() for name, value in zip("ab", given, strict=False)}
    step.call(kind, out.each // n, n, 0, 1.0, out=out.flat(), **places)
    return out


def _log_softmax(step: CallList, x: Any, axis: int, half: bool) -> Seen:
    return _rows(step, LOG_SOFTMAX, axis, step.seen(x))


def _log_softmax_back(step: CallList, gradient: Any, y: Any, axis: int, dtype: torch.dtype) -> Seen:
    if dtype != torch.float32:
        raise CannotList
    return _rows(step, LOG_SOFTMAX_BACK, axis, step.seen(gradient), step.seen(y))


def _widest(*seen: Seen) -> Seen:
    """Of numbers and rows of them, a row, whose axes are as many; nothing else is seen as if it were wider."""
    widest = max(seen, key=lambda one: one.each)
    if any(len(one.shape) != len(widest.shape) or (one.each > 1 and one.shape != widest.shape) for one in seen):
        raise CannotList
    return widest


def _sum(sign: float, in_place: bool) -> Callable[..., Seen]:
    def listed(step: CallList, a: Any, b: Any, alpha: Any = 1.0) -> Seen:
        first, second = step.seen(a), step.seen(b)
        if isinstance(alpha, Node) and sign != 1:
            raise CannotList
        factor = alpha if isinstance(alpha, Node) else sign * alpha
        out = first if in_place else None
        return _each(step, ADD, _widest(first, second), out, factor, a=first, b=second)

    return listed


def _times(in_place: bool) -> Callable[..., Seen]:
    def listed(step: CallList, a: Any, b: Any) -> Seen:
        first = step.seen(a)
        out = first if in_place else None
        if isinstance(b, int | float):
            return _each(step, MULTIPLY, first, out, b, a=first)
        return _each(step, MULTIPLY, _widest(first, step.seen(b)), out, a=first, b=step.seen(b))

    return listed


def _divided(step: CallList, a: Any, b: Any) -> Seen:
    if isinstance(b, int | float) and b:
        return _each(step, MULTIPLY, step.seen(a), None, 1 / b, a=step.seen(a))
    first, second = step.seen(a), step.seen(b)
    return _each(step, DIVIDE, _widest(first, second), None, a=first, b=second)


def _copied(step: CallList, a: Any) -> Seen:
    return _each(step, MULTIPLY, step.seen(a), None, a=step.seen(a))


def _copied_to(step: CallList, place: Any, a: Any) -> Seen:
    return _each(step, MULTIPLY, _widest(step.seen(place), step.seen(a)), step.seen(place), a=step.seen(a))


def _joined(step: CallList, parts: Sequence[Any], axis: int = 0) -> Seen:
    """Rows end to end, (clients, numbers) each."""
    given = [step.seen(part) for part in parts]
    if axis not in (1, -1) or any(len(part.shape) != 2 for part in given):
        raise CannotList
    whole, first = step.new(sum(part.each for part in given)), step.between
    first -= -(-whole.each // LINE) * LINE
    for part in given:
        _each(step, MULTIPLY, part, step.within(first, part), a=part)
        first += part.each
    return whole


def _added_up(step: CallList, a: Any, axes: Sequence[int], keep: bool = False) -> Seen:
    """The sum over the rows of a matrix."""
    seen = step.seen(a)
    if len(seen.shape) != 3 or list(axes) not in ([1], [-2]):
        raise CannotList
    (_, m, n), place = seen.shape, seen.matrix()
    if n > 1 and place.column != 1:
        raise CannotList
    out = step.new(1, n) if keep else step.new(n)
    step.call(SUM, m, n, 0, 1.0, out=out.flat(), a=place)
    return out


def _negative(in_place: bool) -> Callable[..., Seen]:
    def listed(step: CallList, a: Any) -> Seen:
        return _each(step, MULTIPLY, step.seen(a), step.seen(a) if in_place else None, -1.0, a=step.seen(a))

    return listed


def _power(step: CallList, a: Any, exponent: Any) -> Seen:
    if exponent != 2:
        raise CannotList
    return _each(step, MULTIPLY, step.seen(a), None, a=step.seen(a), b=step.seen(a))


def _sum_product(in_place: bool) -> Callable[..., Seen]:
    def listed(step: CallList, start: Any, a: Any, b: Any, value: Any = 1.0) -> Seen:
        begin, first, second = step.seen(start), step.seen(a), step.seen(b)
        out = begin if in_place else None
        return _each(step, ADD_PRODUCT, _widest(begin, first, second), out, value, start=begin, a=first, b=second)

    return listed


LISTED: dict[Any, Callable[..., Seen]] = {
    aten.transpose.int: _transposed,
    aten.view.default: _viewed,
    aten.expand.default: _expanded,
    aten.unsqueeze.default: _unsqueezed,
    aten.squeeze.dims: _squeezed,
    aten.bmm.default: _product,
    aten.baddbmm.default: _sum_and_product(False),
    torch.Tensor.baddbmm_: _sum_and_product(True),
    aten.relu.default: _relu,
    torch.relu_: _relu_in_place,
    aten.threshold_backward.default: _relu_back,
    aten._log_softmax.default: _log_softmax,
    aten._log_softmax_backward_data.default: _log_softmax_back,
    aten.add.Tensor: _sum(1, False),
    torch.Tensor.add_: _sum(1, True),
    aten.sub.Tensor: _sum(-1, False),
    aten.mul.Tensor: _times(False),
    aten.mul.Scalar: _times(False),
    torch.Tensor.mul_: _times(True),
    aten.div.Tensor: _divided,
    aten.neg.default: _negative(False),
    torch.neg_: _negative(True),
    aten.pow.Tensor_Scalar: _power,
    aten.clone.default: _copied,
    torch.Tensor.copy_: _copied_to,
    aten.cat.default: _joined,
    aten.sum.dim_IntList: _added_up,
    aten.addcmul.default: _sum_product(False),
    torch.Tensor.addcmul_: _sum_product(True),
}
