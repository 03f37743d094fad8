"""Which of torch's operators C knows, and the instructions that each becomes.

An operator that is only another view of a tensor becomes none. What C does not know, or not for tensors that lie so,
raises `CannotList`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
from torch.fx import Node

from .instructions import (
    ADD,
    ADD_PRODUCT,
    DIVIDE,
    LINE,
    LOG_SOFTMAX,
    LOG_SOFTMAX_BACK,
    MULTIPLY,
    POWER,
    PRODUCT,
    RELU,
    RELU_BACK,
    ROOT,
    SHIFT,
    SUM,
    CannotList,
    StepList,
    TensorLayout,
    contiguous,
)

aten: Any = torch.ops.aten


def _transposed(step: StepList, x: Any, first: int, second: int) -> TensorLayout:
    seen = step.seen(x)
    shape, strides = list(seen.shape), list(seen.strides)
    first, second = first % len(shape), second % len(shape)
    if not first or not second:
        raise CannotList
    for given in (shape, strides):
        given[first], given[second] = given[second], given[first]
    return TensorLayout(seen.memory, tuple(shape), tuple(strides))


def _viewed(step: StepList, x: Any, shape: Sequence[int]) -> TensorLayout:
    seen = step.seen(x)
    if not seen.whole or not shape or shape[0] != step.clients or torch.Size(shape[1:]).numel() != seen.each:
        raise CannotList
    return TensorLayout(seen.memory, tuple(shape), (seen.strides[0], *contiguous(shape[1:])))


def _expanded(step: StepList, x: Any, shape: Sequence[int]) -> TensorLayout:
    seen = step.seen(x)
    if len(shape) != len(seen.shape) or shape[0] not in (-1, step.clients):
        raise CannotList
    sizes = tuple(old if new == -1 else new for old, new in zip(seen.shape, shape, strict=True))
    strides = (far if old == new else 0 for old, new, far in zip(seen.shape, sizes, seen.strides, strict=True))
    return TensorLayout(seen.memory, sizes, tuple(strides))


def _unsqueezed(step: StepList, x: Any, axis: int) -> TensorLayout:
    seen = step.seen(x)
    at = axis % (len(seen.shape) + 1)
    if not at:
        raise CannotList
    return TensorLayout(
        seen.memory, (*seen.shape[:at], 1, *seen.shape[at:]), (*seen.strides[:at], 1, *seen.strides[at:])
    )


def _squeezed(step: StepList, x: Any, axes: Sequence[int]) -> TensorLayout:
    seen = step.seen(x)
    gone = {axis % len(seen.shape) for axis in axes}
    if 0 in gone:
        raise CannotList
    left = [i for i, size in enumerate(seen.shape) if i not in gone or size != 1]
    return TensorLayout(seen.memory, tuple(seen.shape[i] for i in left), tuple(seen.strides[i] for i in left))


def _product(
    step: StepList, a: Any, b: Any, start: TensorLayout | None = None, out: TensorLayout | None = None, alpha: Any = 1.0
) -> TensorLayout:
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


def _sum_and_product(in_place: bool) -> Callable[..., TensorLayout]:
    def listed(step: StepList, start: Any, a: Any, b: Any, alpha: Any = 1.0, beta: Any = 1.0) -> TensorLayout:
        begin = step.seen(start)
        if isinstance(beta, Node) or beta != 1:
            raise CannotList
        return _product(step, a, b, begin, begin if in_place else None, alpha)

    return listed


def _each(
    step: StepList, kind: int, like: TensorLayout, out: TensorLayout | None, factor: Any = 1.0, **given: TensorLayout
) -> TensorLayout:
    """What is done to every number by itself."""
    out = step.new(*like.shape[1:]) if out is None else out
    if out.each != like.each or any(value.each not in (1, out.each) for value in given.values()):
        raise CannotList
    step.call(kind, 1, out.each, 0, factor, out=out.flat(), **{name: value.flat() for name, value in given.items()})
    return out


def _relu(step: StepList, x: Any) -> TensorLayout:
    return _each(step, RELU, step.seen(x), None, a=step.seen(x))


def _relu_in_place(step: StepList, x: Any) -> TensorLayout:
    return _each(step, RELU, step.seen(x), step.seen(x), a=step.seen(x))


def _relu_back(step: StepList, gradient: Any, x: Any, threshold: float) -> TensorLayout:
    if threshold != 0 or step.seen(gradient).shape != step.seen(x).shape:
        raise CannotList
    return _each(step, RELU_BACK, step.seen(x), None, a=step.seen(gradient), b=step.seen(x))


def _rows(step: StepList, kind: int, axis: int, *given: TensorLayout) -> TensorLayout:
    """What is done to every row."""
    shape = given[0].shape
    if (
        axis not in (-1, len(shape) - 1)
        or not shape[-1]
        or any(other.shape != shape for other in given)
        or len(shape) < 2
    ):
        raise CannotList
    out, n = step.new(*shape[1:]), shape[-1]
    places = {name: value.flat() for name, value in zip("ab", given, strict=False)}
    step.call(kind, out.each // n, n, 0, 1.0, out=out.flat(), **places)
    return out


def _log_softmax(step: StepList, x: Any, axis: int, half: bool) -> TensorLayout:
    return _rows(step, LOG_SOFTMAX, axis, step.seen(x))


def _log_softmax_back(step: StepList, gradient: Any, y: Any, axis: int, dtype: torch.dtype) -> TensorLayout:
    if dtype != torch.float32:
        raise CannotList
    return _rows(step, LOG_SOFTMAX_BACK, axis, step.seen(gradient), step.seen(y))


def _widest(*seen: TensorLayout) -> TensorLayout:
    """Of numbers and rows of them, a row, whose axes are as many; nothing else is seen as if it were wider."""
    widest = max(seen, key=lambda one: one.each)
    if any(len(one.shape) != len(widest.shape) or (one.each > 1 and one.shape != widest.shape) for one in seen):
        raise CannotList
    return widest


def _sum(sign: float, in_place: bool) -> Callable[..., TensorLayout]:
    def listed(step: StepList, a: Any, b: Any, alpha: Any = 1.0) -> TensorLayout:
        first = step.seen(a)
        out = first if in_place else None
        if isinstance(b, int | float) and isinstance(alpha, int | float):
            return _each(step, SHIFT, first, out, sign * alpha * b, a=first)
        if isinstance(alpha, Node) and sign != 1:
            raise CannotList
        factor, second = alpha if isinstance(alpha, Node) else sign * alpha, step.seen(b)
        return _each(step, ADD, _widest(first, second), out, factor, a=first, b=second)

    return listed


def _times(in_place: bool) -> Callable[..., TensorLayout]:
    def listed(step: StepList, a: Any, b: Any) -> TensorLayout:
        first = step.seen(a)
        out = first if in_place else None
        if isinstance(b, int | float):
            return _each(step, MULTIPLY, first, out, b, a=first)
        return _each(step, MULTIPLY, _widest(first, step.seen(b)), out, a=first, b=step.seen(b))

    return listed


def _divided(step: StepList, a: Any, b: Any) -> TensorLayout:
    if isinstance(b, int | float):
        if not 1e-37 < abs(b) < 1e37:  # what is one divided by it must be a number, too
            raise CannotList
        return _each(step, MULTIPLY, step.seen(a), None, 1 / b, a=step.seen(a))
    first, second = step.seen(a), step.seen(b)
    return _each(step, DIVIDE, _widest(first, second), None, a=first, b=second)


def _copied(step: StepList, a: Any, memory_format: Any = None) -> TensorLayout:
    return _each(step, MULTIPLY, step.seen(a), None, a=step.seen(a))


def _copied_to(step: StepList, place: Any, a: Any) -> TensorLayout:
    return _each(step, MULTIPLY, _widest(step.seen(place), step.seen(a)), step.seen(place), a=step.seen(a))


def _joined(step: StepList, parts: Sequence[Any], axis: int = 0) -> TensorLayout:
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


def _added_up(step: StepList, a: Any, axes: Sequence[int], keep: bool = False, dtype: Any = None) -> TensorLayout:
    """The sum over the rows of a matrix."""
    seen = step.seen(a)
    if dtype not in (None, torch.float32) or len(seen.shape) != 3 or list(axes) not in ([1], [-2]):
        raise CannotList
    (_, m, n), place = seen.shape, seen.matrix()
    if n > 1 and place.column != 1:
        raise CannotList
    out = step.new(1, n) if keep else step.new(n)
    step.call(SUM, m, n, 0, 1.0, out=out.flat(), a=place)
    return out


def _negative(in_place: bool) -> Callable[..., TensorLayout]:
    def listed(step: StepList, a: Any) -> TensorLayout:
        return _each(step, MULTIPLY, step.seen(a), step.seen(a) if in_place else None, -1.0, a=step.seen(a))

    return listed


def _power(step: StepList, a: Any, exponent: Any) -> TensorLayout:
    if exponent != 2:
        raise CannotList
    return _each(step, MULTIPLY, step.seen(a), None, a=step.seen(a), b=step.seen(a))


def _power_of(step: StepList, base: Any, exponent: Any) -> TensorLayout:
    if not isinstance(base, int | float) or base < 0:
        raise CannotList
    return _each(step, POWER, step.seen(exponent), None, base, a=step.seen(exponent))


def _root(step: StepList, a: Any) -> TensorLayout:
    return _each(step, ROOT, step.seen(a), None, a=step.seen(a))


def _taken_from(step: StepList, a: Any, number: Any, alpha: Any = 1) -> TensorLayout:
    if not isinstance(number, int | float) or alpha != 1:
        raise CannotList
    away = _each(step, MULTIPLY, step.seen(a), None, -1.0, a=step.seen(a))
    return _each(step, SHIFT, away, away, number, a=away)


def _sum_product(in_place: bool) -> Callable[..., TensorLayout]:
    def listed(step: StepList, start: Any, a: Any, b: Any, value: Any = 1.0) -> TensorLayout:
        begin, first, second = step.seen(start), step.seen(a), step.seen(b)
        out = begin if in_place else None
        return _each(step, ADD_PRODUCT, _widest(begin, first, second), out, value, start=begin, a=first, b=second)

    return listed


OPERATORS: dict[Any, Callable[..., TensorLayout]] = {
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
    aten.pow.Scalar: _power_of,
    aten.sqrt.default: _root,
    aten.add.Scalar: _sum(1, False),
    aten.rsub.Scalar: _taken_from,
    aten.clone.default: _copied,
    torch.Tensor.copy_: _copied_to,
    aten.cat.default: _joined,
    aten.sum.dim_IntList: _added_up,
    aten.addcmul.default: _sum_product(False),
    torch.Tensor.addcmul_: _sum_product(True),
}


def listed(step: StepList, node: Node) -> TensorLayout:
    """The instructions of an operator, and where what it gives lies."""
    operator = OPERATORS.get(node.target)
    if operator is None:
        raise CannotList
    try:
        given = signature(operator).bind(step, *node.args, **node.kwargs)
    except TypeError as error:  # a word that changes what it does
        raise CannotList from error
    return operator(*given.args, **given.kwargs)
