"""A federation: every client's examples, in contiguous tensors with offsets, no padding.

    x       (examples, *shape)      all clients' examples, one client after another
    y       (examples,)             labels, or real targets
    offset  (clients + 1,)          client k owns examples offset[k] .. offset[k+1]

Images are stored as bytes and become numbers in [0, 1] when a batch is taken.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from ..errors import Mistake, require


@dataclass(frozen=True, eq=False)
class Split:
    """One part (train, valid or test) of every client's examples."""

    x: Tensor  # (examples, *shape), uint8, integer symbols or floats
    y: Tensor  # (examples,)
    offset: Tensor  # (clients + 1,) int64

    def __post_init__(self) -> None:
        require(len(self.x) == len(self.y), f"a split has {len(self.x)} examples but {len(self.y)} labels")
        require(
            int(self.offset[0]) == 0 and int(self.offset[-1]) == len(self.y),
            f"offsets run from {int(self.offset[0])} to {int(self.offset[-1])}, not from 0 to {len(self.y)}",
        )

    @cached_property
    def sizes(self) -> Tensor:
        """Examples of every client, (clients,)."""
        return self.offset.diff()

    @cached_property
    def owner(self) -> Tensor:
        """The client of every example, (examples,)."""
        return torch.repeat_interleave(torch.arange(len(self.sizes), device=self.offset.device), self.sizes)

    def __len__(self) -> int:
        return len(self.y)

    def of(self, client: int) -> Split:
        """One client's examples, as a split of one client."""
        first, last = int(self.offset[client]), int(self.offset[client + 1])
        return Split(self.x[first:last], self.y[first:last], torch.tensor([0, last - first]))

    def to(self, device: torch.device | str) -> Split:
        """The same examples on a device; offsets stay where the schedule is made, on the host."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))

    @staticmethod
    def gathered(x: Tensor, y: Tensor, client: Tensor, n_clients: int) -> Split:
        """Sort examples by client, keeping their order within a client."""
        order = torch.argsort(client, stable=True)
        sizes = torch.bincount(client, minlength=n_clients)
        offset = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        return Split(x[order].contiguous(), y[order].contiguous(), offset)


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients and their data; built once, never changed."""

    name: str
    train: Split
    test: Split
    valid: Split
    classes: tuple[str, ...]  # names of the classes; empty for a regression
    clients: tuple[str, ...]  # names of the clients
    group: Tensor | None = None  # (clients,) known population of each client: to judge by, never to learn from
    group_names: tuple[str, ...] = ()
    protected: Tensor | None = None  # (clients,) protected attribute, for fairness
    note: str = ""  # what the reader of a number must know about these data
    symbols: int = 0  # size of the alphabet where x holds symbols

    def __post_init__(self) -> None:
        n = len(self.clients)
        require(n > 0, f"federation '{self.name}' has no clients")
        for part in ("train", "test", "valid"):
            split: Split = getattr(self, part)
            require(len(split.sizes) == n, f"{part} has {len(split.sizes)} clients, not {n}")
            _check_values(self.name, part, split, len(self.classes))
        require(len(self.train) > 0, f"federation '{self.name}' has no training examples")

    @property
    def n_clients(self) -> int:
        """How many clients, with or without data."""
        return len(self.clients)

    @property
    def n_outputs(self) -> int:
        """Numbers a model must put out: one for each class, or one real value."""
        return len(self.classes) or 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example; images are (channels, height, width)."""
        return tuple(self.train.x.shape[1:])

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all examples, labels and owners; two runs compare only if theirs agree."""
        digest = hashlib.sha256()
        for split in (self.train, self.valid, self.test):
            for tensor in (split.x, split.y, split.offset):
                digest.update(str((tensor.dtype, tuple(tensor.shape))).encode())
                digest.update(tensor.contiguous().cpu().numpy().data)
        return digest.hexdigest()[:16]

    def to(self, device: torch.device | str) -> Federation:
        """The same federation with its examples on a device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device), valid=self.valid.to(device))

    def __repr__(self) -> str:
        sizes = self.train.sizes
        return (
            f"Federation({self.name!r}, {self.n_clients} clients, {len(self.classes)} classes, "
            f"{len(self.train)} train / {len(self.valid)} valid / {len(self.test)} test examples, "
            f"{int(sizes.min())} to {int(sizes.max())} a client)"
        )


@dataclass(frozen=True, eq=False)
class Pool:
    """Examples before they are dealt to clients: what a source gives, what a partition takes."""

    name: str
    x: Tensor  # (examples, *shape)
    y: Tensor  # (examples,)
    classes: tuple[str, ...]
    client: Tensor | None = None  # (examples,) natural client; None: must be partitioned
    clients: tuple[str, ...] = ()  # names of the natural clients
    test: Tensor | None = None  # (examples,) bool; None: 80/20 at every client
    common_test: Tensor | None = None  # (examples,) bool, the set's usual test part where clients are not natural
    group: Tensor | None = None  # (examples,)
    group_names: tuple[str, ...] = ()
    protected: Tensor | None = None  # (examples,)
    note: str = ""
    symbols: int = 0
    extra: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part in ("y", "client", "test", "common_test", "group", "protected"):
            value = getattr(self, part)
            require(
                value is None or len(value) == len(self.x),
                f"data '{self.name}': {part} has {0 if value is None else len(value)} entries "
                f"for {len(self.x)} examples",
            )


def _check_values(name: str, part: str, split: Split, n_classes: int) -> None:
    if not len(split):
        return
    if split.x.is_floating_point() and not bool(split.x.isfinite().all()):
        at = int((~split.x.flatten(1).isfinite().all(1)).nonzero()[0])
        raise Mistake(
            f"data '{name}': {part} example {at} of client {int(split.owner[at])} holds NaN or infinity; "
            "remove or fill such values before loading"
        )
    if split.y.is_floating_point():
        require(bool(split.y.isfinite().all()), f"data '{name}': a {part} target is NaN or infinite")
        return
    low, high = int(split.y.min()), int(split.y.max())
    require(
        0 <= low and high < n_classes,
        f"data '{name}': {part} labels run from {low} to {high}, but there are {n_classes} classes "
        f"(0 to {n_classes - 1})",
    )
