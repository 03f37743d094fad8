"""How examples are dealt: systematic sampling in given proportions, and what partitions check and keep of a pool."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from ..errors import require
from ..stacks import draw
from .federation import Pool


class Partition(Protocol):
    """Anything that gives every example of a pool a client."""

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool with `client` and `clients` filled in."""
        ...


def enough(pool: Pool, clients: int) -> Tensor:
    """Which examples are for training, (examples,); refused where there are fewer of them than clients."""
    train = for_training(pool)
    require(
        int(train.sum()) >= clients,
        f"data '{pool.name}' have {int(train.sum())} training examples for {clients} clients; "
        f"ask for at most {int(train.sum())} clients",
    )
    return train


def shared_out(pool: Pool, clients: int, stratum: Tensor, share: Tensor, seed: int) -> Pool:
    """Deal the examples of every stratum in given proportions, the training and the test part alike.

    Arguments:
        stratum: which of the rows of `share` an example goes by, (examples,).
        share: proportions, rows sum to 1, (strata, clients).
    """
    train = enough(pool, clients)
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


def for_training(pool: Pool) -> Tensor:
    """Which examples are for training, (examples,) bool."""
    return torch.ones(len(pool.y), dtype=torch.bool) if pool.test is None else ~pool.test


def sizes_of(pool: Pool, mask: Tensor) -> Tensor:
    """How many of some examples each client has, (clients,)."""
    assert pool.client is not None
    return torch.bincount(pool.client[mask], minlength=len(pool.clients))


def crossed(rows: Tensor, columns: Tensor, n_rows: int, n_columns: int) -> Tensor:
    """How often each pair occurs, (n_rows, n_columns)."""
    return torch.bincount(rows * n_columns + columns, minlength=n_rows * n_columns).view(n_rows, n_columns)


def hashed(names: tuple[str, ...]) -> Tensor:
    """A number for every name, to key draws by, (names,)."""
    return torch.tensor([zlib.crc32(name.encode("utf-8", "surrogatepass")) for name in names])


def some_of(pool: Pool, kept: Tensor) -> Pool:
    """Some of the examples of a pool."""
    columns = ("x", "y", "client", "test", "common_test", "group", "protected")
    fewer = {key: value[kept] for key in columns if (value := getattr(pool, key)) is not None}
    return replace(pool, **fewer, divisions={key: (of[kept], names) for key, (of, names) in pool.divisions.items()})


def some_of_each(pool: Pool, among: Tensor, how_many: Callable[[Tensor], Tensor], *key: int | str) -> Tensor:
    """Some of the examples `among` those of every client, (examples,) bool; no client's depend on another's."""
    assert pool.client is not None
    examples = among.nonzero()[:, 0]
    examples = examples[torch.argsort(pool.client[examples], stable=True)]
    owner = pool.client[examples]
    n = sizes_of(pool, among)
    rank = torch.arange(len(examples)) - (n.cumsum(0) - n)[owner]
    order = draw.shuffled(owner, *key, hashed(pool.clients)[owner], rank)
    chosen = torch.zeros_like(among)
    chosen[examples[order[rank < how_many(n)[owner]]]] = True
    return chosen


def only_classes(pool: Pool, kept: Tensor) -> Pool:
    """The examples of some classes."""
    if bool(kept.all()):
        return pool
    lost = ", ".join(name for name, there in zip(pool.classes, kept.tolist(), strict=True) if not there)
    note = f"{pool.note}; " if pool.note else ""
    return replace(some_of(pool, kept[pool.y]), note=f"{note}no cell has class {lost}: left out")


def check_labels(what: str, pool: Pool) -> None:
    """Refuse a pool whose examples have not one class each."""
    has = {"numbers": "real targets", "boxes": "several boxes in an image", "symbols": "a symbol at every position"}
    said = has.get(pool.kind, "real targets")
    good = pool.kind == "classes" and not pool.y.is_floating_point()
    require(good, f"{what} deals by label, but '{pool.name}' has {said}; choose natural, iid or quantity")


def check_count(what: str, value: object, least: int = 1) -> None:
    """Refuse what is no whole number from `least` up."""
    good = isinstance(value, int) and not isinstance(value, bool) and value >= least
    require(good, f"{what} must be a whole number of at least {least}, got {value!r}")


def check_real(what: str, value: object, low: float, high: float) -> None:
    """Refuse what is no number from `low` to `high`."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    require(good, f"{what} must be a number from {low:g} to {high:g}, got {value!r}")
