"""Many models as one tensor: a row is a model, a layout says which slice is which layer.

    W  (models, width)      row k is model k, all its trained parameters end to end

A distance is then one `cdist`, a mixing one matrix product, a penalty one expression, a checkpoint one
tensor. Frozen parameters are not in the row: they are kept once, in the module, and shared by all models.

A method moves more than one thing: models, gradients, Fisher sums, private layers. `Stacks` holds them by
name; every stack has one row for each center, or one for each client.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..errors import require
from ..language import register

Stacks = dict[str, Tensor]  # name -> (rows, width)
LINE = 64  # bytes: what addresses of fresh tensors are multiples of


@dataclass(frozen=True)
class Layout:
    """The names and shapes of the tensors that lie end to end in a row.

    >>> layout = Layout.of(nn.Linear(3, 2))
    >>> layout.width, layout.names
    (8, ('weight', 'bias'))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(module: nn.Module) -> Layout:
        """The trained parameters of a module, in the module's own order."""
        trained = [(name, tuple(p.shape)) for name, p in module.named_parameters() if p.requires_grad]
        return Layout(tuple(name for name, _ in trained), tuple(shape for _, shape in trained))

    @property
    def sizes(self) -> list[int]:
        """Numbers in every tensor."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return sum(self.sizes)

    def views(self, row: Tensor) -> dict[str, Tensor]:
        """The tensors of one row (width,), or of a stack (models, width), without copying."""
        parts = torch.split(row, self.sizes, -1)
        return {
            name: torch.unflatten(part, -1, shape) if shape else part.squeeze(-1)
            for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }

    def row(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The row (width,) that holds these tensors end to end."""
        if not self.names:
            return torch.zeros(0)
        return torch.cat([tensors[name].detach().reshape(-1) for name in self.names])

    def spans(self, features: str) -> tuple[tuple[int, int], ...]:
        """Where some of the tensors lie in a row, as (first, last) columns.

        `features` is "all", "last_layer" (the tensors of the module that comes last), or patterns of names with commas
        between them.

        >>> Layout.of(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))).spans("last_layer")
        ((9, 12), (12, 13))
        """
        chosen = self.matching(features)
        ends = list(itertools.accumulate(self.sizes))
        found = tuple(
            (end - size, end) for name, size, end in zip(self.names, self.sizes, ends, strict=True) if name in chosen
        )
        require(bool(found), f"no parameter matches features='{features}'; the model has {', '.join(self.names)}")
        return found

    def matching(self, features: str, inside: str = "") -> tuple[str, ...]:
        """Names by the words of `spans`; patterns are of what follows `inside`, where a method put the model there."""
        last = self.names[-1].rpartition(".")[0].removeprefix(inside) if self.names else ""
        patterns = {"all": ["*"], "last_layer": [f"{last}.*" if last else "*"]}.get(features, features.split(","))
        own = {name: name.removeprefix(inside) for name in self.names}
        return tuple(n for n in own if any(fnmatch.fnmatchcase(own[n], pattern.strip()) for pattern in patterns))

    def only(self, names: Iterable[str]) -> Layout:
        """The layout of some of the tensors."""
        wanted = set(names)
        kept = [(n, s) for n, s in zip(self.names, self.shapes, strict=True) if n in wanted]
        return Layout(tuple(n for n, _ in kept), tuple(s for _, s in kept))


@dataclass(frozen=True)
class Cut:
    """Which parameters go under which name; what no pattern takes is called `model`.

    `Cut({"private": ("conv*",)})` makes two stacks of one module: `private`, all parameters whose names
    match `conv*`, and `model`, the rest. An exchange then says which names travel.
    """

    patterns: Mapping[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        require(
            "model" not in self.patterns,
            "a Cut cannot have a part named 'model': that is the name of all parameters that no pattern matches",
        )

    def layouts(self, whole: Layout) -> dict[str, Layout]:
        """The layout of every name; together they hold each parameter exactly once."""
        left, out = list(whole.names), {}
        for name, patterns in self.patterns.items():
            taken = [n for n in left if any(fnmatch.fnmatchcase(n, p) for p in patterns)]
            there = f"the model has {', '.join(whole.names)}"
            require(bool(taken), f"no parameter matches {' or '.join(map(repr, patterns))} for '{name}'; {there}")
            left = [n for n in left if n not in taken]
            out[name] = whole.only(taken)
        return {"model": whole.only(left)} | out


@dataclass(frozen=True)
class LastLayer(Cut):
    """The last layer under a name of its own (by default `task`), the rest under `model`.

    The last layer is all that shares the last parameter's module: `head.weight` and `head.bias`. A model of one layer
    is a last layer only, and nothing of it is shared.
    """

    patterns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    name: str = "task"

    def layouts(self, whole: Layout) -> dict[str, Layout]:
        """Two layouts; with patterns, as they say."""
        if self.patterns:
            return super().layouts(whole)
        module = [name.rpartition(".")[0] for name in whole.names]
        last = [name for name, home in zip(whole.names, module, strict=True) if home == module[-1]]
        return {"model": whole.only(set(whole.names) - set(last)), self.name: whole.only(last)}


@dataclass(frozen=True)
class ShareOnly(Cut):
    """What `shares` names is shared, under `model`; the rest is a client's own, under `local`.

    `shares` are the words of `Layout.spans`: "last_layer", or patterns with commas between them. `inside`: what stands
    before the names of the user's parameters, where a method put its model into another; `patterns` take what else is
    there.
    """

    patterns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shares: str = "last_layer"
    inside: str = ""

    def layouts(self, whole: Layout) -> dict[str, Layout]:
        """Two layouts, neither empty, and those of the patterns."""
        others = super().layouts(whole)
        own = others.pop("model")
        chosen = own.matching(self.shares, self.inside)
        there = f"the model has {', '.join(name.removeprefix(self.inside) for name in own.names)}"
        require(bool(chosen), f"no parameter matches shares='{self.shares}', so nothing would be shared; {there}")
        rest = [name for name in own.names if name not in chosen]
        require(
            bool(rest),
            f"shares='{self.shares}' takes every parameter, so clients would keep nothing of their own, which is "
            f"fedavg: use it, or share less; {there}",
        )
        return {"model": own.only(chosen), "local": own.only(rest)} | others


WHOLE = Cut({})  # one stack, `model`, with all parameters


def KeepPrivate(*patterns: str) -> Cut:
    """Parameters whose names match stay with the client under the name `private`; the rest is shared.

    `KeepPrivate("conv*")` keeps the convolutions at home and shares the head; `KeepPrivate("*")` shares
    nothing, which is training alone.
    """
    require(bool(patterns), "KeepPrivate needs a pattern of parameter names, for example KeepPrivate('conv*')")
    return Cut({"private": patterns})


def take(stacks: Stacks, index: Tensor, device: torch.device | None = None) -> Stacks:
    """Rows of every stack; on a device, where they may be kept elsewhere."""
    return {name: rows[to_device_of(rows, index)].to(device or rows.device) for name, rows in stacks.items()}


def to_device_of(rows: Tensor, told: Tensor) -> Tensor:
    """A small tensor of the host where some rows are; nobody waits for a GPU that is at work."""
    return told.to(rows.device, non_blocking=True)


def aligned(stacks: Stacks) -> Stacks:
    """The same stacks from an address that a fresh tensor would have: rows end to end, or each at a line of memory.

    Vector instructions group sums by where in memory numbers lie; a stack that was read or received must give the bits
    of the one it is a copy of.
    """
    fresh = {name: rows if apart(rows) else rows.contiguous() for name, rows in stacks.items()}
    return {name: rows.clone() if rows.data_ptr() % LINE else rows for name, rows in fresh.items()}


def apart(rows: Tensor) -> int:
    """How many numbers further every row begins, where each begins at a line of memory of a processor; else 0.

    >>> apart(torch.zeros(3, 16)[:, :10]), apart(torch.zeros(3, 10)), apart(torch.zeros(1, 10).expand(3, 10))
    (16, 0, 0)
    """
    if rows.dim() != 2 or len(rows) < 2 or rows.stride(1) != 1 or rows.device.type != "cpu":
        return 0
    step = rows.stride(0)
    return step if step > rows.shape[1] and step * rows.element_size() % LINE == 0 else 0


def spread(rows: Tensor, step: int) -> Tensor:
    """Rows of one's own, `step` numbers from one to the next; 0: end to end."""
    return rows.new_empty(len(rows), step)[:, : rows.shape[1]].copy_(rows) if step else rows


class Draft:
    """Stacks some rows of which are being replaced, block by block; the stacks given stay as they are."""

    def __init__(self, stacks: Stacks) -> None:
        self.stacks = dict(stacks)
        self._fresh: set[str] = set()

    def write(self, index: Tensor, rows: Stacks) -> None:
        """Replace rows: what is written need not be held any longer."""
        for name, new in rows.items():
            if name not in self._fresh:  # one copy of a stack, however many blocks write to it
                self.stacks[name] = self.stacks[name].clone()
                self._fresh.add(name)
            self.stacks[name][to_device_of(self.stacks[name], index)] = new.to(self.stacks[name])


def write(stacks: Stacks, changes: Iterable[tuple[Tensor, Stacks]]) -> Stacks:
    """The stacks with some rows replaced, (index, rows) by (index, rows); the stacks given stay as they are."""
    draft = Draft(stacks)
    for index, rows in changes:
        draft.write(index, rows)
    return draft.stacks


def _private(cut: Cut) -> tuple[str, ...] | None:
    """What `KeepPrivate` was given; None for other cuts."""
    return cut.patterns["private"] if list(cut.patterns) == ["private"] else None


register(Cut, "whole", lambda: WHOLE)
register(Cut, "private", KeepPrivate, undo=_private)
