"""From a name to a federation: find the data, deal them to clients, split each client's into train and test.

load("digits", "rotations=4")           40 clients in four groups
load("unipen62", clients=100)           100 of its writers
deal(pool, Dirichlet(20, 0.1))          a pool that is at hand
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..errors import UsageError, require
from ..language import NoWords, spell
from .columns import filled
from .dealing import Partition, crossed, for_training, some_of_each
from .federation import Federation, Pool, Source, Split
from .partition import Natural, Skewed, parse
from .rotations import Sampled, Turned
from .scaling import standardised
from .sources import built_in, find, read
from .suspicious import warn, warn_of_absent_classes

_SMALL = 10_000  # a pool with fewer examples is dealt to 40 clients unless told otherwise, others to 100


def load(
    data: str | Path | Pool | Federation,
    partition: str | Partition | None = None,
    *,
    clients: int | None = None,
    seed: int = 0,
    valid: float = 0.0,
    standardise: str = "no",
) -> Federation:
    """Load a federation, all clients and their data, by name or path.

    Arguments:
        data: a name (see `available`), a path, a pool, or a federation, which is returned as it is.
        partition: how to deal the examples, as a text (see `parse`) or an object; None keeps natural clients. Data
            of your own without clients need one; sets that come with this package are dealt IID without.
        clients: how many; by default all natural ones, else 100, or 40 for fewer than 10,000 examples.
        seed: of all draws.
        valid: fraction of every client's training examples kept for validation.
        standardise: "train" brings every feature to mean 0 and deviation 1 over all training examples; see `scaling`.

    >>> load("digits", "rotations=4").n_clients
    40
    """
    if isinstance(data, Federation):
        good = partition is None and clients is None and standardise == "no"
        require(
            good,
            f"federation '{data.name}' is partitioned already; to partition again, pass the name of the data or a Pool",
        )
        return data
    pool = data if isinstance(data, Pool) else find(data) if isinstance(data, str) else read(data)
    warn_of_absent_classes(pool)
    require(standardise in ("no", "train"), f"standardise must be no or train, got {standardise!r}")
    source = None if isinstance(data, Pool) else _source(str(data), partition, clients, seed, valid, standardise)
    if partition is None:
        partition = _without_partition(pool, data)
    if isinstance(partition, str):
        small = len(pool.y) < _SMALL and not partition.strip().startswith(("natural", "skewed"))
        partition = parse(partition, clients, 40 if small else None)
    elif clients is not None:
        partition = _with_clients(partition, clients)
    federation = replace(deal(pool, partition, seed, valid=valid), source=source)
    federation = standardised(federation) if standardise == "train" else federation
    warn(federation)
    return federation


def _without_partition(pool: Pool, data: str | Path | Pool) -> str:
    """Natural clients, or IID ones for sets that are built in; other data must say which."""
    if pool.client is not None:
        return "natural"
    require(
        isinstance(data, str) and built_in(data),
        f"data '{pool.name}' do not say which client an example belongs to: name the clients (an array or column "
        "`client`), or say how to deal the examples, such as --partition iid or --partition dirichlet=0.5 (in Python "
        "partition='iid')",
    )
    return "iid"


def _source(
    data: str, partition: str | Partition | None, clients: int | None, seed: int, valid: float, standardise: str
) -> Source | None:
    """The words that load the same again; None where a partition has none."""
    try:
        words = partition if isinstance(partition, str) or partition is None else spell(partition, Partition)
    except NoWords:
        return None
    return Source(data, words, clients, seed, valid, standardise)


def deal(pool: Pool, partition: Partition, seed: int = 0, *, valid: float = 0.0, test: float = 0.2) -> Federation:
    """Deal a pool to clients and split what each has into train, valid and test.

    Where the source says which examples are for testing, those are; where a partition deals the examples, those that
    it names for that case, if it does. Otherwise a part of every client's examples is held out.

    Arguments:
        pool: the examples.
        partition: who gets which.
        seed: of all draws.
        valid: fraction of every client's training examples kept for validation.
        test: fraction of every client's examples kept for testing, where the source does not say which.
    """
    for what, fraction in (("valid", valid), ("test", test)):
        require(0 <= fraction < 1, f"{what} must be a fraction from 0 to below 1, got {fraction!r}; try 0.2")
    inner: object = partition
    while isinstance(inner, Turned | Sampled):
        inner = inner.deal
    if not isinstance(inner, Natural | Skewed) and pool.common_test is not None:
        pool = replace(pool, test=pool.common_test)
    if isinstance(inner, Skewed) and pool.test is None and pool.client is not None:  # what is tested stays whole
        pool = replace(pool, test=_held_out(pool, test, seed, "test"))
    pool = partition(pool, seed)
    client = pool.client
    if client is None:
        raise UsageError(f"partition {partition!r} gave '{pool.name}' no clients; return a Pool with client set")
    is_test = _held_out(pool, test, seed, "test") if pool.test is None else pool.test
    is_valid = _held_out(replace(pool, test=is_test), valid, seed, "valid")
    pool = filled(pool, ~is_test & ~is_valid)

    values = None if pool.protected is None else torch.unique(pool.protected, return_inverse=True)[1]  # from 0 up

    def part(mask: Tensor) -> Split:
        protected = None if values is None else values[mask]
        return Split.gathered(pool.x[mask], pool.y[mask], client[mask], len(pool.clients), protected)

    return Federation(
        name=pool.name,
        train=part(~is_test & ~is_valid),
        test=part(is_test),
        valid=part(is_valid),
        classes=pool.classes,
        clients=pool.clients,
        group=_majority(pool.group, client, len(pool.clients)),
        group_names=pool.group_names,
        protected=_majority(pool.protected, client, len(pool.clients)),
        note=pool.note,
        symbols=pool.symbols,
        targets=pool.targets,
        columns=pool.columns,
        inputs=pool.inputs,
        recipe=pool.recipe,
    )


def _with_clients(partition: Partition, clients: int) -> Partition:
    """The same partition for another number of clients."""
    if isinstance(partition, Turned | Sampled):
        return replace(partition, deal=_with_clients(partition.deal, clients))
    if is_dataclass(partition) and not isinstance(partition, type):
        if any(field.name == "clients" for field in fields(partition)):
            return replace(partition, clients=clients)
    raise UsageError(f"partition {partition!r} sets its own number of clients; leave out clients={clients}")


def _held_out(pool: Pool, fraction: float, seed: int, purpose: str) -> Tensor:
    """A fraction of every client's training examples, at least one of two."""

    def how_many(n: Tensor) -> Tensor:
        return torch.where(n > 1, (fraction * n).round().long().clamp(min=1).minimum(n - 1), 0)

    none = torch.zeros(len(pool.y), dtype=torch.bool)
    return some_of_each(pool, for_training(pool), how_many, seed, "hold out", purpose) if fraction else none


def _majority(values: Tensor | None, client: Tensor, n_clients: int) -> Tensor | None:
    """The commonest value among each client's examples, (clients,)."""
    if values is None:
        return None
    found: Tensor
    found, index = torch.unique(values, return_inverse=True)
    return found[crossed(client, index, n_clients, len(found)).argmax(1)]
