"""Instructions for C: what is done to which matrices of every client, and where those lie.

    TensorLayout how a tensor lies in memory: whose memory, its shape, how far it is from one number to the next
    Operand      the same as C reads it; Instruction: a kind, sizes, a factor, operands
    StepList     the instructions of a step, for tensors that lie in some ways

What is computed in between stands in memory that clients have one after another.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int64, c_void_p
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.profiler import record_function
from torch.fx import Node

from .library import library

KINDS = (
    "PRODUCT SUM RELU RELU_BACK LOG_SOFTMAX LOG_SOFTMAX_BACK ADD MULTIPLY DIVIDE ADD_PRODUCT SHIFT ROOT POWER".split()
)
PRODUCT, SUM, RELU, RELU_BACK, LOG_SOFTMAX, LOG_SOFTMAX_BACK = range(6)
BY_ONE = ADD, MULTIPLY, DIVIDE, ADD_PRODUCT, SHIFT, ROOT, POWER = range(6, len(KINDS))  # one number may stand for many
NOWHERE = -1
LINE = 16  # numbers of a line of memory
SMALL = 3e7  # operations of a client's step that torch does no faster where it has several threads


class CannotList(Exception):
    """A step that has other operators, or tensors that lie in other ways."""


class Operand(ctypes.Structure):
    """Where a matrix of every client lies."""

    _fields_ = tuple((name, c_int64) for name in ("memory", "client", "row", "column"))


class Instruction(ctypes.Structure):
    """An operator."""

    _fields_ = (
        *((name, c_int64) for name in ("kind", "m", "n", "k", "number")),
        *((name, Operand) for name in ("out", "start", "a", "b")),
    )


class TensorLayout(NamedTuple):
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

    def flat(self) -> Operand:
        """All numbers of a client one after another; a single one stands for as many as are wanted."""
        if all(size == 1 or not stride for size, stride in zip(self.shape[1:], self.strides[1:], strict=True)):
            return Operand(self.memory, self.strides[0], 0, 0)
        if not self.whole:
            raise CannotList
        return Operand(self.memory, self.strides[0], 0, 1)

    def matrix(self) -> Operand:
        """Rows and columns."""
        if len(self.shape) != 3:
            raise CannotList
        return Operand(self.memory, *self.strides)


Number = tuple[float, int | None]  # a number, or which of the values it is


class StepList:
    """The instructions of a step whose values have some forms; the last of them is a batch, (clients, ...)."""

    def __init__(self, inputs: Sequence[Node], values: Sequence[Any]) -> None:
        self.known: dict[Node, TensorLayout | int | None] = {}  # a number: which value it is; None: it cannot be read
        self.clients = int(values[-1].shape[0]) if values[-1].dim() else 0
        for i, (node, value) in enumerate(zip(inputs, values, strict=True)):
            self.known[node] = _seen(i, value, self.clients)
        self.storage = storages(values)
        self.between, self.begins = 0, list[int]()  # numbers that stand in between, and where each piece of them begins
        self.numbers, self.instructions = list[Number](), list[Instruction]()
        self.operations = 0  # of a client's step

    @property
    def better_by_torch(self) -> bool:
        """Whether a client's step is so large that torch does it faster with its threads."""
        return self.operations > SMALL and torch.get_num_threads() > 1

    def take(self, shared: Sequence[Any], given: Sequence[Tensor]) -> None:
        """All steps."""
        held = [value.data_ptr() if isinstance(value, Tensor) else None for value in shared]
        places = [*held, *(value.data_ptr() for value in given)]
        moves = [*[0] * len(held), *(value.stride(0) for value in given), *[0] * len(self.begins)]
        numbers = [number if at is None else shared[at] for number, at in self.numbers]
        own = torch.empty(self.between, dtype=torch.float32, device="cpu")
        memory = [*places, *(own.data_ptr() + 4 * begin for begin in self.begins)]
        with record_function("steps in C"):  # so that a profile has a line for them
            cast(Any, library()).polycentric_take(
                self._table,
                c_int64(len(self.instructions)),
                (c_void_p * len(memory))(*memory),
                (c_int64 * len(moves))(*moves),
                (c_float * len(numbers))(*numbers),
                c_int64(self.clients),
                c_int64(len(given[0])),
            )

    @cached_property
    def _table(self) -> Any:
        return (Instruction * len(self.instructions))(*self.instructions)

    def seen(self, value: Any) -> TensorLayout:
        """How what an operator is given lies."""
        found = self.known.get(value) if isinstance(value, Node) else None
        if not isinstance(found, TensorLayout):
            raise CannotList
        return found

    def new(self, *shape: int) -> TensorLayout:
        """What an operator makes: a client's at a time."""
        place = TensorLayout(len(self.storage) + len(self.begins), (self.clients, *shape), (0, *contiguous(shape)))
        self.begins.append(self.between)
        self.between += -(-place.each // LINE) * LINE
        return place

    def within(self, begin: int, like: TensorLayout) -> TensorLayout:
        """A part of what an operator makes, which begins at some number of it."""
        self.begins.append(begin)
        return TensorLayout(len(self.storage) + len(self.begins) - 1, like.shape, (0, *contiguous(like.shape[1:])))

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

    def call(self, kind: int, m: int, n: int, k: int = 0, factor: Any = 1.0, **places: Operand) -> None:
        """One more. What it reads it may overwrite only where it does so number by number."""
        nowhere, out = Operand(NOWHERE, 0, 0, 0), places["out"]
        alone = kind == PRODUCT  # what is added up may not be overwritten meanwhile
        for name, place in places.items():
            ours = place.memory == out.memory
            if not ours and self.held(place.memory) == self.held(out.memory) is not None:
                raise CannotList
            if alone and ours and name in "ab":
                raise CannotList
            stands_for_many = m * n > 1 and kind not in (PRODUCT, SUM) and not place.column
            if stands_for_many and (name == "out" or kind not in BY_ONE):
                raise CannotList
        operands = (places.get(name, nowhere) for name in ("out", "start", "a", "b"))
        self.instructions.append(Instruction(kind, m, n, k, self.number(factor), *operands))


def _seen(i: int, value: Any, clients: int) -> TensorLayout | int | None:
    if not isinstance(value, Tensor):
        return i
    fits = value.dtype == torch.float32 and value.device.type == "cpu" and value.dim() and len(value) == clients
    return TensorLayout(i, tuple(value.shape), value.stride()) if fits else None


def storages(values: Sequence[Any]) -> list[int | None]:
    """Where the memory of every tensor begins: who shares it."""
    return [value.untyped_storage().data_ptr() if isinstance(value, Tensor) else None for value in values]


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """How far it is to the next of every axis, where numbers lie side by side."""
    return tuple(torch.Size(shape[i + 1 :]).numel() for i in range(len(shape)))
