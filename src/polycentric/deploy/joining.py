"""A node's own data: all of a file, or one client of data that have several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data import Federation, Pool, load, table
from ..data.table_file import SUFFIXES
from ..errors import UsageError, require, unknown


def own_data(
    data: str,
    *,
    client: str | None = None,
    partition: str | None = None,
    clients: int | None = None,
    valid: float = 0.0,
    seed: int = 0,
    target: str | None = None,
    types: str | None = None,
) -> Federation:
    """The examples of one client, as a federation of one.

    Arguments:
        data: a name or path, as for a simulation.
        client: a name or number of one of the data's clients; None: all examples are this node's.
        partition, clients: how the data are dealt to clients first, of which `client` is one; for trying things out.
        valid: share of the training examples that is held out for validation.
        seed: of the draws that split them.
        target, types: of a table: the column to predict, and what columns are where the guess is wrong.
    """
    source: str | Pool = data
    if Path(data).suffix.lower() in SUFFIXES:
        require(target is not None, f"{data} is a table: say which column is to be predicted, such as --target died")
        source = table(data, target=target, types=types)
    else:
        require(target is None and types is None, f"--target and --types are for tables, and {data} is none")
    if client is None:
        require(
            partition is None and clients is None,
            "--partition and --clients deal data to clients: say which one this node is, such as --client 0",
        )
        return load(source, "iid", clients=1, seed=seed, valid=valid)
    dealt = load(source, partition, clients=clients, seed=seed, valid=valid)
    if client in dealt.clients:
        number = dealt.clients.index(client)
    elif client.isdecimal() and int(client) < dealt.n_clients:
        number = int(client)
    elif client.isdecimal():
        raise UsageError(f"--client {client}: {data} has clients 0 to {dealt.n_clients - 1}")
    else:
        raise unknown("client", client, dealt.clients)
    return one_of(dealt, number)


def one_of(federation: Federation, client: int) -> Federation:
    """One client's examples, and nothing else."""
    parts: dict[str, Any] = {part: getattr(federation, part).of(client) for part in ("train", "valid", "test")}
    names = federation.clients[client : client + 1]
    return replace(federation, **parts, clients=names, group=None, group_names=(), protected=None, source=None)
