"""A federation: every client's examples, in contiguous tensors with offsets, no padding.

    x       (examples, *shape)      all clients' examples, one client after another
    y       (examples,)             classes as whole numbers, or a number to predict
            (examples, targets)     several numbers to predict, or 0 and 1 for each of several labels
            (examples, length)      whole numbers: a symbol to predict at every position, -1 where there is none
            (examples, most, 5)     boxes (class, x0, y0, x1, y1) in shares of the image's sides, from the left and
                                    from the top; class -1 and zeros where an image has fewer than the most
    offset  (clients + 1,)          client k owns examples offset[k] .. offset[k+1]

Where clients share examples, `piece` says which run offset[p] .. offset[p+1] each of them reads, and there are as many
runs as different clients: a million clients with the examples of a few hundred take no more memory for them.

Images are stored as bytes and become numbers in [0, 1] when a batch is taken.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import UsageError, require

MOST_VALUES = 1000  # of a protected attribute
# One of several classes; any of several labels; numbers; boxes in images, each of a class; a symbol at every position.
Kind = Literal["classes", "labels", "numbers", "boxes", "symbols"]
Inputs = tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes of several inputs that lie end to end in one row


@dataclass(frozen=True, eq=False)
class Split:
    """One part (train, valid or test) of every client's examples."""

    x: Tensor  # (examples, *shape), uint8, integer symbols or floats
    y: Tensor  # (examples,), (examples, targets), (examples, length) or (examples, most, 5)
    offset: Tensor  # (clients + 1,) int64
    piece: Tensor | None = None  # (clients,) int64, the run of examples a client reads; None: client k reads run k
    protected: Tensor | None = None  # (examples,) int64, a protected attribute; None: it is not known

    def __post_init__(self) -> None:
        require(len(self.x) == len(self.y), f"a split has {len(self.x)} examples but {len(self.y)} labels")
        good = int(self.offset[0]) == 0 and int(self.offset[-1]) == len(self.y)
        require(good, f"offsets run from {int(self.offset[0])} to {int(self.offset[-1])}, not from 0 to {len(self.y)}")
        if self.piece is not None and len(self.piece):
            low, high, runs = int(self.piece.min()), int(self.piece.max()), len(self.offset) - 1
            require(0 <= low and high < runs, f"pieces run from {low} to {high}, but there are runs 0 to {runs - 1}")

    @cached_property
    def first(self) -> Tensor:
        """Where every client's examples begin, (clients,)."""
        return self.offset[:-1] if self.piece is None else self.offset[self.piece]

    @cached_property
    def sizes(self) -> Tensor:
        """Examples of every client, (clients,)."""
        return self.offset.diff() if self.piece is None else self.offset.diff()[self.piece]

    @cached_property
    def owner(self) -> Tensor:
        """The client of every example, (examples,)."""
        require(self.piece is None, "these clients share their examples, so an example has no single owner")
        return torch.repeat_interleave(torch.arange(len(self.sizes), device=self.offset.device), self.sizes)

    def __len__(self) -> int:
        return len(self.y)

    def of(self, client: int) -> Split:
        """One client's examples, as a split of one client."""
        first = int(self.first[client])
        last = first + int(self.sizes[client])
        protected = None if self.protected is None else self.protected[first:last]
        return Split(self.x[first:last], self.y[first:last], torch.tensor([0, last - first]), protected=protected)

    def only(self, mask: Tensor) -> Split:
        """Some of the examples, (examples,) bool; a client may be left with none."""
        owner = self.owner[mask.to(self.owner.device)]
        sizes = torch.bincount(owner, minlength=len(self.sizes))
        there = mask.to(self.x.device)
        return Split(self.x[there], self.y[there], torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))

    def to(self, device: torch.device | str) -> Split:
        """The same examples on a device; offsets stay where the schedule is made, on the host."""
        protected = None if self.protected is None else _moved(self.protected, device)
        return replace(self, x=_moved(self.x, device), y=_moved(self.y, device), protected=protected)

    @staticmethod
    def gathered(x: Tensor, y: Tensor, client: Tensor, n_clients: int, protected: Tensor | None = None) -> Split:
        """Sort examples by client, keeping their order within a client."""
        order = torch.argsort(client, stable=True)
        sizes = torch.bincount(client, minlength=n_clients)
        offset = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        protected = None if protected is None else protected[order]
        return Split(x[order].contiguous(), y[order].contiguous(), offset, protected=protected)


@dataclass(frozen=True, eq=False)
class Scaling:
    """Features about zero and of one scale: (x - mean) / spread, feature by feature."""

    mean: Tensor  # (features,) float64, or (channels, 1) of series
    spread: Tensor  # the same, nowhere zero

    def __call__(self, x: Tensor) -> Tensor:
        """Scaled examples."""
        return ((x.double() - self.mean) / self.spread).float()


def kind_of(y: Tensor, classes: tuple[str, ...]) -> Kind:
    """What is learned from such targets."""
    if not classes:
        return "numbers"
    if y.dim() == 2:
        return "labels" if y.is_floating_point() else "symbols"
    return "boxes" if y.dim() == 3 else "classes"


def classes_in(y: Tensor) -> Tensor:
    """The class of every box, symbol or example of targets that have one, (examples, places); -1: there is none.

    >>> classes_in(torch.tensor([[[2, 0.1, 0.1, 0.5, 0.5], [-1, 0, 0, 0, 0]]]))
    tensor([[ 2, -1]])
    """
    return y[..., 0].long() if y.dim() == 3 else y if y.dim() == 2 else y[:, None]


def renamed(y: Tensor, to: Tensor) -> Tensor:
    """Targets with class c called to[c], (classes,); where there is none it stays so.

    >>> renamed(torch.tensor([[0, -1, 1]]), torch.tensor([5, 7]))
    tensor([[ 5, -1,  7]])
    """
    label = y[..., 0].long() if y.dim() == 3 else y
    other = torch.where(label >= 0, to[label.clamp(min=0)], -1)
    return torch.cat([other[..., None].to(y.dtype), y[..., 1:]], -1) if y.dim() == 3 else other


def class_counts(split: Split, n_classes: int) -> Tensor:
    """How many examples, boxes or symbols of every class each client has, (clients, classes)."""
    label = classes_in(split.y.cpu())
    cell = (split.owner.cpu()[:, None] * n_classes + label)[label >= 0]
    return torch.bincount(cell, minlength=len(split.sizes) * n_classes).view(-1, n_classes)


@dataclass(frozen=True)
class Source:
    """The words that load a federation again."""

    data: str
    partition: str | None
    clients: int | None
    seed: int
    valid: float
    standardise: str = "no"

    def settings(self, others: Mapping[str, Any]) -> dict[str, Any]:
        """As settings of a run; its own seed deals the data where it is the same."""
        words = {"data": self.data, "partition": self.partition, "clients": self.clients, "valid": self.valid}
        words |= {} if self.standardise == "no" else {"standardise": self.standardise}
        return words | ({} if self.seed == others.get("seed", 0) else {"data_seed": self.seed})


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
    protected: Tensor | None = None  # (clients,) the commonest protected attribute of a client's examples
    note: str = ""  # what the reader of a number must know about these data
    symbols: int = 0  # size of the alphabet where x holds symbols
    targets: tuple[str, ...] = ()  # names of the numbers to predict, where they have any
    columns: tuple[str, ...] = ()  # names of the features, where they have any
    inputs: Inputs = ()  # where a model takes several inputs: how x is cut
    scaling: Scaling | None = None  # what was done to the features
    recipe: Mapping[str, Any] | None = None  # how a table, pictures or several inputs became x: as JSON
    source: Source | None = None  # how it was loaded, where words say it
    absent: str = ""  # the fingerprint of the examples, where they are not here: see `outline`

    def __post_init__(self) -> None:
        n = len(self.clients)
        require(n > 0, f"federation '{self.name}' has no clients")
        for part in ("train", "test", "valid"):
            split: Split = getattr(self, part)
            require(len(split.sizes) == n, f"{part} has {len(split.sizes)} clients, not {n}")
            if not self.absent:  # zeros stand for examples that are elsewhere: as many as there are would be made
                _check_values(self.name, part, split, len(self.classes))
        if self.inputs:
            wide, width = tuple(self.train.x.shape[1:]), sum(math.prod(shape) for _, shape in self.inputs)
            require(wide == (width,), f"federation '{self.name}': inputs are {width} numbers, but x has shape {wide}")
        require(len(self.train) > 0, f"federation '{self.name}' has no training examples")

    @property
    def n_clients(self) -> int:
        """How many clients, with or without data."""
        return len(self.clients)

    @property
    def n_outputs(self) -> int:
        """Numbers a model must put out: one for each class or label, or one for each number to predict.

        For boxes and for symbols they are needed at every place; how many places there are is the model's own.
        """
        return len(self.classes) or (self.train.y.shape[1] if self.train.y.dim() == 2 else 1)

    @property
    def n_protected(self) -> int:
        """Values that the protected attribute of an example may have, 0 and up; 0: it is not known."""
        parts = [s.protected for s in (self.train, self.valid, self.test) if s.protected is not None and len(s)]
        if self.train.protected is None or not parts:
            return 0
        low, high = min(int(z.min()) for z in parts), max(int(z.max()) for z in parts)
        good = 0 <= low and high < MOST_VALUES
        require(
            good, f"data '{self.name}': a protected attribute is a number from 0 up, not {low} to {high}: renumber it"
        )
        return high + 1

    @property
    def kind(self) -> Kind:
        """What is learned."""
        return kind_of(self.train.y, self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example; images are (channels, height, width)."""
        return tuple(self.train.x.shape[1:])

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all examples, labels and owners; two runs compare only if theirs agree."""
        if self.absent:
            return self.absent
        digest = hashlib.sha256()
        for split in (self.train, self.valid, self.test):
            for tensor in (split.x, split.y, split.offset, *([] if split.piece is None else [split.piece])):
                digest.update(str((tensor.dtype, tuple(tensor.shape))).encode())
                digest.update(tensor.contiguous().cpu().numpy().data)
        return digest.hexdigest()[:16]

    def to(self, device: torch.device | str) -> Federation:
        """The same federation with its examples on a device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device), valid=self.valid.to(device))

    def tiled(self, n_clients: int) -> Federation:
        """`n_clients` clients with the training examples of these: client k has those of client k mod the number here.

        No example is copied. Only the first of those who share hold test and validation examples, so that each is
        scored once. For studies of scale: copies of a person are not persons.
        """
        require(n_clients >= self.n_clients, f"{self.n_clients} clients cannot be tiled to fewer: {n_clients}")
        like = torch.arange(n_clients) % self.n_clients
        piece = like if self.train.piece is None else self.train.piece[like]

        def once(split: Split) -> Split:
            none = split.offset[-1:].expand(n_clients - self.n_clients)
            return replace(split, offset=torch.cat([split.offset, none]))

        return replace(
            self,
            name=f"{self.name} tiled",
            source=None,
            train=replace(self.train, piece=piece),
            test=once(self.test),
            valid=once(self.valid),
            clients=tuple(f"{self.clients[k % self.n_clients]}/{k // self.n_clients}" for k in range(n_clients)),
            group=None if self.group is None else self.group[like],
            protected=None if self.protected is None else self.protected[like],
            note=f"{self.note} Training examples of {self.n_clients} clients are shared by {n_clients}.".strip(),
        )

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
    y: Tensor  # as in a split
    classes: tuple[str, ...]
    client: Tensor | None = None  # (examples,) natural client; None: must be partitioned
    clients: tuple[str, ...] = ()  # names of the natural clients
    # Where there are several kinds of natural clients: each by its name, as (client, clients); `natural=NAME`.
    divisions: Mapping[str, tuple[Tensor, tuple[str, ...]]] = field(default_factory=dict)
    test: Tensor | None = None  # (examples,) bool; None: 80/20 at every client
    common_test: Tensor | None = None  # (examples,) bool, the same where a partition deals the examples, if it differs
    group: Tensor | None = None  # (examples,)
    group_names: tuple[str, ...] = ()
    protected: Tensor | None = None  # (examples,)
    note: str = ""
    symbols: int = 0
    targets: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    inputs: Inputs = ()
    scaling: Scaling | None = None
    recipe: Mapping[str, Any] | None = None

    @property
    def kind(self) -> Kind:
        """What is learned."""
        return kind_of(self.y, self.classes)

    def __post_init__(self) -> None:
        for part in ("y", "client", "test", "common_test", "group", "protected"):
            value = getattr(self, part)
            require(
                value is None or len(value) == len(self.x),
                f"data '{self.name}': {part} has {0 if value is None else len(value)} entries "
                f"for {len(self.x)} examples",
            )
        for name, (client, _) in self.divisions.items():
            good = len(client) == len(self.x)
            require(good, f"data '{self.name}': {name} has {len(client)} entries for {len(self.x)} examples")


def _moved(rows: Tensor, device: torch.device | str) -> Tensor:
    """Rows on a device; one row that is seen many times, in place of examples that are elsewhere, stays one."""
    one = len(rows) > 1 and rows.stride(0) == 0
    return rows[:1].to(device).expand(rows.shape) if one else rows.to(device)


def _check_values(name: str, part: str, split: Split, n_classes: int) -> None:
    if not len(split):
        return
    if split.x.is_floating_point() and not bool(split.x.isfinite().all()):
        at = int((~split.x.flatten(1).isfinite().all(1)).nonzero()[0])
        raise UsageError(
            f"data '{name}': {part} example {at} of client {int(split.owner[at])} holds NaN or infinity; "
            "remove or fill such values before loading"
        )
    if split.y.is_floating_point():
        require(bool(split.y.isfinite().all()), f"data '{name}': a {part} target is NaN or infinite")
        if split.y.dim() == 3:
            _check_boxes(f"data '{name}': {part}", split.y, n_classes)
        elif n_classes:
            good = (
                split.y.dim() == 2 and split.y.shape[1] == n_classes and bool(((split.y == 0) | (split.y == 1)).all())
            )
            require(good, f"data '{name}': {n_classes} labels need {part} targets of 0 and 1, (examples, {n_classes})")
        return
    low, high, least = int(split.y.min()), int(split.y.max()), -1 if split.y.dim() == 2 else 0
    nothing = ", or -1 where there is no target" if least else ""
    require(
        least <= low and high < n_classes,
        f"data '{name}': {part} labels run from {low} to {high}, but there are {n_classes} classes "
        f"(0 to {n_classes - 1}{nothing})",
    )


def _check_boxes(what: str, y: Tensor, n_classes: int) -> None:
    good = y.shape[2] == 5 and n_classes > 0
    require(good, f"{what} targets of shape {tuple(y.shape)} are no boxes: (examples, most, 5) and named classes are")
    kind, box = y[..., 0], y[..., 1:]
    there = kind >= 0
    wrong = {
        f"a class that is none of -1 and 0 to {n_classes - 1}": (kind != kind.round())
        | (kind < -1)
        | (kind >= n_classes),
        "a place outside of 0 to 1, in shares of the image's sides": ((box < 0) | (box > 1)).any(-1),
        "no area: x0 < x1 and y0 < y1 must hold": there & (box[..., 2:] <= box[..., :2]).any(-1),
        "class -1, which is no box, and places that are not zero": ~there & (box != 0).any(-1),
    }
    for said, at in wrong.items():
        if bool(at.any()):
            example, place = at.nonzero()[0].tolist()
            row = ", ".join(f"{number:.4g}" for number in y[example, place].tolist())
            raise UsageError(f"{what} example {example}, box {place} is ({row}), with {said}")
