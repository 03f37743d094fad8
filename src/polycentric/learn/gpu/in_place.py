"""Steps of a stack of clients in place, a layer at a time: for a GPU, where a row costs what it takes to read it.

A model is one row, its layers are views of it. The gradient in a row is the gradients in its layers end to end, and to
lay them so is a pass over all of them; another writes the row that follows. Here each layer is differentiated by
itself, and moves its own columns of the row where they stand:

    v <- beta v + g + weight_decay w           w <- w - lr v           g the gradient in a layer

A penalty may depend on the row as such as well; then its gradient is added, layer by layer. What is carried is
overwritten: a scan takes its first step on a copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ...parts.optimizer import SGD, Momentum
from ...stacks.stack import Stacks
from ...tasks.task import Task, parameter_key
from ..gradient import grad
from ..learner import Objective, UpdateSpec, moments_of
from .launch import Moved, able, has_triton, in_front, on, operator, power

BLOCK = 1024  # numbers that a program moves


def descend(task: Task, objective: Objective, params: Stacks, moments: Stacks, lr: Tensor, spec: UpdateSpec) -> Stacks:
    """One step; params and moments are overwritten, and returned."""
    layouts = {name: task.layouts[name] for name in params if name in task.layouts}
    layers = {parameter_key(k): v for name, layout in layouts.items() for k, v in layout.views(params[name]).items()}
    whole = {name: w for name, w in params.items() if name not in layouts or not spec.through_task}
    gradients = grad(lambda free: objective(params | free))(layers | whole)
    new: Stacks = {}
    for name, w in params.items():
        mine, rest = moments_of(name, moments), gradients.get(name)
        parts = [gradients[parameter_key(k)].reshape(-1) for k in layouts[name].names] if name in layouts else [rest]
        if name in layouts and rest is not None:
            sizes = layouts[name].sizes
            parts = [part + more for part, more in zip(parts, rest.split(sizes), strict=True)]
        rate = lr * spec.rate(name) if spec.rates else lr
        w, *after = _Move.apply(Move(spec, tuple(mine)), w, rate, *mine.values(), *parts)  # type: ignore[no-untyped-call]
        new[name] = w
        new |= {f"{name}.{moment}": value for moment, value in zip(mine, after, strict=True)}
    return new


@dataclass(frozen=True)
class Move:
    """How a row is moved, and which moments come with it."""

    spec: UpdateSpec
    moments: tuple[str, ...]


class _Move(Function):
    """Moves rows (..., width) and their moments along a gradient given in parts (..., columns), end to end."""

    @staticmethod
    def forward(how: Move, w: Tensor, lr: Tensor, *others: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        n = len(how.moments)
        moments, parts = dict(zip(how.moments, others[:n], strict=True)), others[n:]
        (by_kernel if _by_kernel(how, w, *moments.values(), *parts) else by_torch)(how, w, lr, moments, parts)
        return (w, *moments.values())

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_dirty(inputs[1], *inputs[3 : 3 + len(inputs[0].moments)])

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], how: Move, w: Tensor, lr: Tensor, *others: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        each = zip((w, lr, *others), in_dims[1:], strict=True)
        stacks = [in_front(t, axis, info.batch_size) for t, axis in each]
        moved = _Move.apply(how, *stacks)  # type: ignore[no-untyped-call]
        return moved, (0,) * (1 + len(how.moments))


def by_torch(how: Move, w: Tensor, lr: Tensor, moments: Stacks, parts: tuple[Tensor, ...]) -> None:
    """Any rule, a part at a time; moments that are no rows, such as a count of steps, belong to all parts."""
    rule, decay = how.spec.rule, how.spec.weight_decay
    rows = [moment for moment, v in moments.items() if v.shape == w.shape]
    after, first = moments, 0
    for part in parts:
        at = slice(first, first := first + part.shape[-1])
        here = w[..., at]
        step, after = rule.update(
            part + decay * here if decay else part,
            {moment: v[..., at] if moment in rows else v for moment, v in moments.items()},
        )
        here.addcmul_(step, lr[..., None], value=-1)
        for moment in rows:
            moments[moment][..., at] = after[moment]
    for moment in after.keys() - set(rows):
        moments[moment].copy_(after[moment])


def by_kernel(how: Move, w: Tensor, lr: Tensor, moments: Stacks, parts: tuple[Tensor, ...]) -> None:
    """SGD, with momentum or without: one pass over each part, by our kernel."""
    rule = how.spec.rule
    beta = rule.beta if isinstance(rule, Momentum) else 0.0
    alone = w.dim() == 1
    w, lr = (w[None], lr.reshape(1)) if alone else (w, lr)
    v = moments.get("velocity")
    v, parts = (None if v is None else v.view_as(w)), tuple(part.reshape(len(w), -1) for part in parts)
    move_(w, v, lr, parts, beta, how.spec.weight_decay)


@operator("move_(Tensor(a!) w, Tensor(b!)? v, Tensor lr, Tensor[] parts, float beta, float decay) -> ()")
def move_(w: Tensor, v: Tensor | None, lr: Tensor, parts: Sequence[Tensor], beta: float, decay: float) -> None:
    """Rows (clients, width) along a gradient in parts (clients, columns), end to end; v: their velocity."""
    from . import kernels

    lr, first = lr.contiguous(), 0
    for g in parts:
        n = g.shape[1]
        at = slice(first, first := first + n)
        g = g if g.stride(1) == 1 or n == 1 else g.contiguous()
        block = min(BLOCK, max(32, power(n)))
        tiles = -(-n // block)
        moved = Moved(w[:, at], None if v is None else v[:, at], lr, beta, decay)
        with on(w):
            kernels.move[(tiles * len(w),)](*(moved.w, g, n, tiles, g.stride(0), *moved.arguments, *moved.how, block))


def _by_kernel(how: Move, w: Tensor, *others: Tensor) -> bool:
    rule = how.spec.rule
    known = isinstance(rule, SGD | Momentum) and rule.lr == 1
    return known and w.dim() <= 2 and has_triton() and able(w) and all(t.dtype == torch.float32 for t in (w, *others))
