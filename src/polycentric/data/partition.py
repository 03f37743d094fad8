"""A partition deals a pool of examples to clients; how unlike the clients become is its whole point.

    Natural()            whoever made an example owns it
    Iid(100)             equal sizes, labels at random
    Dirichlet(100, 0.5)  every class is shared out in its own random proportions; small alpha, unlike clients
    Shards(100, 2)       sorted by label and cut: a client sees about two classes
    Classes(100, 2)      two classes a client, sizes of all magnitudes
    Quantity(100, 1.5)   sizes by a power law, labels at random
    Rotations(4, 40)     alike clients, but a quarter of them each see their images turned: four true groups
    InCells(90, "c")     cells of edges that see classes of their own, and clients that see two of them
    Turned(deal, 2)      any other partition, and then half of the clients see their images upside down
    Sampled(deal, 10000) any other partition, of so many examples

A partition takes a `Pool` and a seed and gives the pool back with a client for every example. Training and
test examples are dealt by the same rule in the same proportions, so a client's test labels follow its
training labels.
Every draw is a function of its key (see `draw`): the same seed deals the same cards on every machine.
"""

from __future__ import annotations

import math
import re
import warnings
import zlib
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from ..errors import UsageError, require, unknown
from ..stacks import draw
from .federation import Pool

_ATTEMPTS = 1_000


class Partition(Protocol):
    """Anything that gives every example of a pool a client."""

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool with `client` and `clients` filled in."""
        ...


@dataclass(frozen=True)
class Natural:
    """Every example stays with the client that made it.

    Arguments:
        clients: keep that many clients, chosen by the seed; None keeps all.
    """

    clients: int | None = None

    def __post_init__(self) -> None:
        if self.clients is not None:
            _check_count("Natural.clients", self.clients)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool as it is, or the part of it that belongs to the chosen clients."""
        if pool.client is None:
            raise UsageError(
                f"data '{pool.name}' have no natural clients; choose a partition such as iid or dirichlet=0.5"
            )
        there = len(pool.clients)
        if self.clients is None or self.clients == there:
            return pool
        if self.clients > there:
            warnings.warn(
                f"data '{pool.name}' have {there} natural clients, not {self.clients}: all are kept",
                stacklevel=2,
            )
            return pool
        # By name, so that a client's luck does not depend on who else is there.
        chosen = draw.bits(seed, "natural", hashed(pool.clients)).argsort(stable=True)
        chosen = chosen[: self.clients].sort().values
        new = torch.full((there,), -1).index_copy(0, chosen, torch.arange(self.clients))
        kept = new[pool.client] >= 0
        return replace(
            _part(pool, kept),
            client=new[pool.client[kept]],
            clients=tuple(pool.clients[k] for k in chosen.tolist()),
        )


@dataclass(frozen=True)
class Iid:
    """Equal sizes (to one example) and labels at random: all clients are alike.

    Arguments:
        clients: how many.
    """

    clients: int = 100

    def __post_init__(self) -> None:
        _check_count("Iid.clients", self.clients)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool, dealt."""
        share = torch.full((1, self.clients), 1 / self.clients, dtype=torch.float64)
        return _shared_out(pool, self.clients, torch.zeros_like(pool.y, dtype=torch.int64), share, seed)


@dataclass(frozen=True)
class Dirichlet:
    """Each class c is shared out over the clients in proportions p_c ~ Dirichlet(alpha, ..., alpha).

    Large alpha approaches equal clients; at 0.1 most clients see few classes, and sizes differ too.

    Arguments:
        clients: how many.
        alpha: concentration.
        at_least: draw again until every client has so many training examples (before any are held out).

    Reference: Yurochkin et al., Bayesian nonparametric federated learning of neural networks, ICML 2019.
    """

    clients: int = 100
    alpha: float = 0.5
    at_least: int = 1

    def __post_init__(self) -> None:
        _check_count("Dirichlet.clients", self.clients)
        _check_real("Dirichlet.alpha", self.alpha, 1e-6, 1e9)
        _check_count("Dirichlet.at_least", self.at_least, least=0)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool, dealt."""
        _check_labels("Dirichlet", pool)
        train = _training(pool)
        require(
            int(train.sum()) >= self.clients * self.at_least,
            f"Dirichlet: {int(train.sum())} training examples of '{pool.name}' do not give "
            f"{self.clients} clients {self.at_least} each; ask for fewer clients",
        )
        for attempt in range(_ATTEMPTS):
            source = np.random.default_rng(draw.seed_of(seed, "dirichlet", attempt))
            share = source.dirichlet(np.full(self.clients, self.alpha), len(pool.classes))
            dealt = _shared_out(pool, self.clients, pool.y, torch.from_numpy(share), seed)
            if int(_sizes(dealt, train).min()) >= self.at_least:
                return dealt
        raise UsageError(
            f"Dirichlet(clients={self.clients}, alpha={self.alpha}, at_least={self.at_least}): no draw of "
            f"{_ATTEMPTS:,} gave every client {self.at_least} of {int(train.sum())} training examples; "
            "raise alpha, or lower clients or at_least"
        )


@dataclass(frozen=True)
class Shards:
    """Examples are sorted by label and cut into equal shards; every client gets a few at random.

    Arguments:
        clients: how many.
        per_client: shards of each, and so about as many classes.

    Reference: McMahan et al., Communication-efficient learning of deep networks from decentralized data,
    AISTATS 2017, section 3 (the pathological non-IID partition).
    """

    clients: int = 100
    per_client: int = 2

    def __post_init__(self) -> None:
        _check_count("Shards.clients", self.clients)
        _check_count("Shards.per_client", self.per_client)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool, dealt."""
        _check_labels("Shards", pool)
        train = _training(pool).nonzero()[:, 0]
        n_shards = self.clients * self.per_client
        require(
            len(train) >= n_shards,
            f"Shards: {len(train)} training examples of '{pool.name}' do not make {n_shards} shards; "
            "ask for fewer clients",
        )
        order = train[torch.argsort(draw.bits(seed, "shards", train))]
        order = order[torch.argsort(pool.y[order], stable=True)]
        shard = torch.arange(len(order)) * n_shards // len(order)
        owner = draw.bits(seed, "shard owners", torch.arange(n_shards)).argsort() // self.per_client
        client = torch.zeros(len(pool.y), dtype=torch.int64).index_copy(0, order, owner[shard])

        # A class's test examples go to its owners in proportion; where nobody trains on it, to all by size.
        counts = crossed(pool.y[train], client[train], len(pool.classes), self.clients).double()
        counts = torch.where(counts.sum(1, keepdim=True) > 0, counts, counts.sum(0))
        dealt = _shared_out(pool, self.clients, pool.y, counts / counts.sum(1, keepdim=True), seed)
        assert dealt.client is not None
        return replace(dealt, client=torch.where(_training(pool), client, dealt.client))


@dataclass(frozen=True)
class Classes:
    """Every client has a few classes, and sizes differ by orders of magnitude.

    Client i has the classes i, i + 1 + i // C, ... (mod C), so that all classes and most pairs occur; the examples of
    a class are shared out over its clients in proportion to lognormal(0, spread) draws.

    Arguments:
        clients: how many.
        per_client: classes of each.
        spread: standard deviation of the logarithm of the sizes; 0 makes them equal.

    Reference: Li et al., Federated optimization in heterogeneous networks, MLSys 2020 (its MNIST: 1,000 clients).
    """

    clients: int = 100
    per_client: int = 2
    spread: float = 2.0

    def __post_init__(self) -> None:
        _check_count("Classes.clients", self.clients)
        _check_count("Classes.per_client", self.per_client)
        _check_real("Classes.spread", self.spread, 0.0, 10.0)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool, dealt."""
        _check_labels("Classes", pool)
        n_classes, client = len(pool.classes), torch.arange(self.clients)
        require(
            self.per_client <= n_classes,
            f"Classes.per_client is {self.per_client}, but '{pool.name}' has {n_classes} classes; ask for fewer",
        )
        share = torch.zeros(n_classes, self.clients, dtype=torch.float64)
        for j in range(self.per_client):
            mine = (client + j * (1 + client // n_classes % max(n_classes - 1, 1))) % n_classes
            while bool((taken := share[mine, client] > 0).any()):  # a class counts once: take the next
                mine = torch.where(taken, (mine + 1) % n_classes, mine)
            share[mine, client] = (self.spread * draw.normal(seed, "classes", client, j)).exp()
        empty = share.sum(1, keepdim=True) == 0  # a class nobody has, where there are few clients: all share it
        share = torch.where(empty, 1.0, share)
        return _shared_out(pool, self.clients, pool.y, share / share.sum(1, keepdim=True), seed)


@dataclass(frozen=True)
class Quantity:
    """Sizes follow a power law, n_k ~ rank^-skew with ranks at random; labels at random.

    Arguments:
        clients: how many; every one gets at least one training example.
        skew: 0 for equal sizes; at 1.5 the largest of 100 clients has some 40 % of all examples.
    """

    clients: int = 100
    skew: float = 1.5

    def __post_init__(self) -> None:
        _check_count("Quantity.clients", self.clients)
        _check_real("Quantity.skew", self.skew, 0, 10)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool, dealt."""
        n = int(_training(pool).sum())
        rank = 1 + draw.bits(seed, "quantity", torch.arange(self.clients)).argsort().argsort()
        share = rank.double() ** -self.skew
        share = (1 + max(n - self.clients, 0) * share / share.sum()) / max(n, self.clients)
        stratum = torch.zeros_like(pool.y, dtype=torch.int64)
        return _shared_out(pool, self.clients, stratum, share[None], seed)


@dataclass(frozen=True)
class Skewed:
    """Natural clients, some of which have lost most of their training examples; test examples stay as they are.

        n_k  ->  n_k u_k,     log u_k uniform on [-log ratio, 0],     at least two

    Arguments:
        clients: keep that many clients, chosen by the seed; None keeps all.
        ratio: how many times fewer examples the poorest client keeps.
    """

    clients: int | None = None
    ratio: float = 100.0

    def __post_init__(self) -> None:
        _check_real("Skewed.ratio", self.ratio, 1, 1e6)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool without the examples that were lost."""
        pool = Natural(self.clients)(pool, seed)
        client, training = pool.client, _training(pool)
        assert client is not None
        key = hashed(pool.clients)
        share = self.ratio ** -draw.uniform(seed, "skewed", key)
        size = torch.bincount(client[training], minlength=len(pool.clients))
        keep = (share * size).round().long().clamp(min=2)
        examples = training.nonzero()[:, 0]
        examples = examples[torch.argsort(client[examples], stable=True)]
        owner = client[examples]
        rank = torch.arange(len(examples)) - (size.cumsum(0) - size)[owner]
        order = draw.shuffled(owner, seed, "skewed", key[owner], rank)
        kept = ~training
        kept[examples[order[rank < keep[owner]]]] = True
        parts = ("x", "y", "client", "test", "common_test", "group", "protected")
        some = {name: value[kept] for name in parts if (value := getattr(pool, name)) is not None}
        return replace(pool, **some, extra={name: value[kept] for name, value in pool.extra.items()})


@dataclass(frozen=True)
class Rotations:
    """Alike clients with their square images turned: those of client i by 360 g/k degrees, g = i mod k.

    The groups g are known, so clusters that a method finds can be judged. k = 1 is IID. Quarter turns are
    exact; others are interpolated.

    Arguments:
        k: how many groups.
        clients: how many.
    """

    k: int = 4
    clients: int = 40

    def __post_init__(self) -> None:
        _check_count("Rotations.k", self.k)
        _check_count("Rotations.clients", self.clients)
        require(
            self.k <= min(self.clients, 360),
            f"Rotations.k must be at most the number of clients ({self.clients}) and 360, got {self.k}",
        )

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool, dealt and turned."""
        return _turned_by_group(Iid(self.clients)(pool, seed), self.k, "Rotations")


@dataclass(frozen=True)
class Turned:
    """Clients as another partition makes them, their square images turned: client i by 360 g/k degrees, g = i mod k.

    `Turned(Iid(40), 4)` is `Rotations(4, 40)`. In a text: dirichlet=1+rotations=2.

    Arguments:
        deal: who gets which examples.
        k: how many groups.
    """

    deal: Partition
    k: int = 2

    def __post_init__(self) -> None:
        _check_count("Turned.k", self.k)
        require(self.k <= 360, f"Turned.k must be at most 360, got {self.k}")

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool, dealt and turned."""
        return _turned_by_group(self.deal(pool, seed), self.k, "Turned")


@dataclass(frozen=True)
class Sampled:
    """Clients as another partition makes them, of a sample of the examples, drawn by the seed.

    Where there are fewer, all are kept. In a text: dirichlet=1+sample=10000.

    Arguments:
        deal: who gets which examples.
        examples: how many for training, and as many for testing where the source says which those are.
    """

    deal: Partition
    examples: int

    def __post_init__(self) -> None:
        _check_count("Sampled.examples", self.examples)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """A part of the pool, dealt."""
        kept = torch.zeros(len(pool.y), dtype=torch.bool)
        for purpose, mask in (("train", _training(pool)), ("test", ~_training(pool))):
            examples = mask.nonzero()[:, 0]
            order = draw.bits(seed, "sample", purpose, examples).argsort()
            kept[examples[order[: self.examples]]] = True
        return self.deal(_part(pool, kept), seed)


def _turned_by_group(dealt: Pool, k: int, what: str) -> Pool:
    size = tuple(dealt.x.shape[1:])
    require(
        len(size) == 3 and size[1] == size[2] and not dealt.symbols,
        f"{what} turns square images, but an example of '{dealt.name}' is {'x'.join(map(str, size))}; "
        "choose another partition",
    )
    assert dealt.client is not None
    group = dealt.client % k
    x = dealt.x.clone()
    for g in range(1, k):
        x[group == g] = turned(dealt.x[group == g], 360 * g / k)
    return replace(dealt, x=x, group=group, group_names=tuple(f"{360 * g / k:g}°" for g in range(k)))


def _part(pool: Pool, kept: Tensor) -> Pool:
    """Some of the examples of a pool."""
    part = {
        key: value[kept]
        for key in ("x", "y", "client", "test", "common_test", "group", "protected")
        if (value := getattr(pool, key)) is not None
    }
    return replace(pool, **part, extra={key: value[kept] for key, value in pool.extra.items()})


def _only_classes(pool: Pool, kept: Tensor) -> Pool:
    """The examples of some classes."""
    if bool(kept.all()):
        return pool
    mine = kept[pool.y]
    part = {
        key: value[mine]
        for key in ("x", "y", "client", "test", "common_test", "group", "protected")
        if (value := getattr(pool, key)) is not None
    }
    lost = ", ".join(name for name, there in zip(pool.classes, kept.tolist(), strict=True) if not there)
    note = f"{pool.note}; " if pool.note else ""
    return replace(
        pool,
        **part,
        extra={key: value[mine] for key, value in pool.extra.items()},
        note=f"{note}no cell has class {lost}: left out",
    )


def turned(images: Tensor, degrees: float) -> Tensor:
    """Square images (n, channels, side, side) turned counter-clockwise; black comes in at the corners."""
    if degrees % 90 == 0:
        return torch.rot90(images, int(degrees // 90), (2, 3))
    if not len(images):
        return images
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = torch.tensor([[cosine, -sine, 0.0], [sine, cosine, 0.0]])
    parts = []
    for part in torch.split(images, 4_096):  # in parts: the sampling grid is larger than the images
        grid = affine_grid(turn.expand(len(part), 2, 3), list(part.shape), align_corners=False)
        parts.append(grid_sample(part.float(), grid, mode="bilinear", align_corners=False))
    sampled = torch.cat(parts)
    return sampled.round().clamp(0, 255).to(torch.uint8) if images.dtype == torch.uint8 else sampled


# name -> the partition, and the field that NAME=value sets
_BY_NAME: dict[str, tuple[type[Any], str]] = {
    "natural": (Natural, ""),
    "iid": (Iid, ""),
    "dirichlet": (Dirichlet, "alpha"),
    "shards": (Shards, "per_client"),
    "classes": (Classes, "per_client"),
    "quantity": (Quantity, "skew"),
    "skewed": (Skewed, "ratio"),
    "rotations": (Rotations, "k"),
}


_THEN: dict[str, Any] = {"rotations": Turned, "sample": Sampled}  # what may follow a partition after a +


def parse(text: str, clients: int | None = None) -> Partition:
    """A partition from a text: natural, iid, dirichlet=0.5, shards=2, classes=2, quantity=1.5,
    skewed=100, rotations=4, cells=c or cells(setting=c, u=20, v=10); after a + what else is done, rotations=2 or
    sample=10000.

    >>> parse("dirichlet=0.1", 20)
    Dirichlet(clients=20, alpha=0.1, at_least=1)
    >>> parse("iid+rotations=2", 10)
    Turned(deal=Iid(clients=10), k=2)
    """
    first, *others = re.split(r"\+(?=\s*[a-z])", text)  # not the + of 1e+3
    made = _parsed(first, clients)
    for other in others:
        name, _, value = other.strip().partition("=")
        if name not in _THEN:
            raise unknown("addition to a partition", name, _THEN)
        example = "rotations=2" if name == "rotations" else "sample=10000"
        good = value.isascii() and value.isdigit()
        require(good, f"partition '{text}': '{value}' is not a whole number; type {first.strip()}+{example}")
        made = _THEN[name](made, int(value))
    return made


def _parsed(text: str, clients: int | None) -> Partition:
    from ..topology.cells.deal import InCells, _in_cells

    if match := re.fullmatch(r"\s*cells\s*\((.*)\)\s*", text, re.DOTALL):
        return _in_cells(match[1], clients)
    name, equals, value = text.strip().partition("=")
    if name == "cells":
        return InCells(clients, value.strip().lower() if equals else "c")  # type: ignore[arg-type]
    if name not in _BY_NAME:
        raise unknown("partition", name, _BY_NAME)
    kind, field = _BY_NAME[name]
    fields: dict[str, Any] = {} if clients is None else {"clients": clients}
    if equals:
        default = getattr(kind, field, None)
        require(default is not None, f"partition '{text}': {name} takes no value; type {name}")
        try:
            fields[field] = int(value) if isinstance(default, int) else float(value)
        except ValueError:
            wanted = "whole number" if isinstance(default, int) else "number"
            raise UsageError(f"partition '{text}': '{value}' is not a {wanted}; type {name}={default}") from None
    made: Partition = kind(**fields)
    return made


# --- dealing


def _shared_out(pool: Pool, clients: int, stratum: Tensor, share: Tensor, seed: int) -> Pool:
    """Deal the examples of every stratum in given proportions, the training and the test part alike.

    Arguments:
        stratum: which of the rows of `share` an example goes by, (examples,).
        share: proportions, rows sum to 1, (strata, clients).
    """
    train = _training(pool)
    require(
        int(train.sum()) >= clients,
        f"data '{pool.name}' have {int(train.sum())} training examples for {clients} clients; "
        f"ask for at most {int(train.sum())} clients",
    )
    client = torch.empty(len(stratum), dtype=torch.int64)
    for purpose, mask in (("train", train), ("test", ~train)):
        examples = mask.nonzero()[:, 0]
        client[examples] = _systematic(stratum[examples], share, examples, seed, purpose)
    return replace(pool, client=client, clients=tuple(map(str, range(clients))))


def _systematic(stratum: Tensor, share: Tensor, examples: Tensor, seed: int, purpose: str) -> Tensor:
    """A client for every example: systematic sampling, which rounds every count up or down by less than one.

    The shuffled examples of a stratum lie evenly on a line, from a random start; the clients' shares cut it.
    The start keeps the rounding of small strata from favouring the same clients every time.
    """
    order = torch.argsort(draw.bits(seed, "deal", purpose, examples))
    order = order[torch.argsort(stratum[order], stable=True)]
    n = torch.bincount(stratum, minlength=len(share))
    here = stratum[order]
    rank = torch.arange(len(order)) - (n.cumsum(0) - n)[here]
    place = (rank + draw.uniform(seed, "start", purpose, torch.arange(len(share)))[here]) / n[here]
    # One search serves all strata: row s of the cumulated shares is moved to [s, s + 1].
    ends = share.double().cumsum(1)
    ends = ends / ends[:, -1:]
    row = torch.arange(len(share), dtype=torch.float64)[:, None]
    cut = torch.searchsorted((ends + row).flatten(), place + here, right=True)
    owner = (cut - here * share.shape[1]).clamp(0, share.shape[1] - 1)  # s + 0.999... may round to s + 1
    return torch.empty_like(order).index_copy(0, order, owner)


def _training(pool: Pool) -> Tensor:
    return torch.ones(len(pool.y), dtype=torch.bool) if pool.test is None else ~pool.test


def _sizes(pool: Pool, mask: Tensor) -> Tensor:
    assert pool.client is not None
    return torch.bincount(pool.client[mask], minlength=len(pool.clients))


def crossed(rows: Tensor, columns: Tensor, n_rows: int, n_columns: int) -> Tensor:
    """How often each pair occurs, (n_rows, n_columns)."""
    return torch.bincount(rows * n_columns + columns, minlength=n_rows * n_columns).view(n_rows, n_columns)


def hashed(names: tuple[str, ...]) -> Tensor:
    """A number for every name, to key draws by, (names,)."""
    return torch.tensor([zlib.crc32(name.encode("utf-8", "surrogatepass")) for name in names])


# --- checks


def _check_labels(what: str, pool: Pool) -> None:
    require(
        bool(pool.classes) and not pool.y.is_floating_point(),
        f"{what} deals by label, but '{pool.name}' has real targets; choose natural, iid or quantity",
    )


def _check_count(what: str, value: object, least: int = 1) -> None:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= least
    require(good, f"{what} must be a whole number of at least {least}, got {value!r}")


def _check_real(what: str, value: object, low: float, high: float) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    require(good, f"{what} must be a number from {low:g} to {high:g}, got {value!r}")
