"""Which model serves whom: every client's, every center's, and what of it is a client's own.

A client's model is `down @ centers` together with what it keeps. Parameters are *personal* where every client has its
own: it keeps them, its center is at its home, or a center holds a row for each client. Where none are, clients share
whole models, and a center's row is a model that can be taken out and handed to anybody.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import UsageError, require
from ..stacks.stack import Stacks
from .evaluate import all_clients, assign_newcomers, held

if TYPE_CHECKING:
    from .loop import Run


@dataclass(frozen=True, eq=False)
class Holder:
    """A client or a center, and the parameters of its model by the names they are cut into."""

    rows: Stacks  # {name: (width,)}
    client: int | None = None
    center: int | None = None
    name: str = ""  # of the client

    @property
    def words(self) -> str:
        """Who it is, for messages."""
        return f"center {self.center}" if self.client is None else f"client '{self.name}'"

    @property
    def file_name(self) -> str:
        """A name for its files; two of a run never have the same, whatever clients are called."""
        if self.client is None:
            return f"center-{self.center}"
        safe = re.sub(r"[^A-Za-z0-9_-]+", "_", self.name).strip("_")[:60]
        return f"client-{self.client}" + (f"-{safe}" if safe and safe != str(self.client) else "")

    def to_json(self) -> dict[str, Any]:
        """Who it is, for a JSON file."""
        return {"center": self.center} if self.client is None else {"client": self.name, "number": self.client}


def client_number(run: Run, who: int | str) -> int:
    """The number of a client by its name, or by its number; a name goes before a number that is spelled the same."""
    names = run.federation.clients
    if isinstance(who, str):
        found = [k for k, name in enumerate(names) if name == who]
        require(
            len(found) < 2, f"{len(found)} clients are called '{who}': say which by its number, such as {found[:1]}"
        )
        if found:
            return found[0]
        if not who.isascii() or not who.isdigit():
            near = difflib.get_close_matches(who, names, n=1, cutoff=0.5)
            hint = f"did you mean '{near[0]}'?" if near else f"they are called {', '.join(names[:5])}, ..."
            raise UsageError(f"no client is called '{who}': {hint} There are {len(names)}, numbered from 0")
    number = int(who)
    require(0 <= number < len(names), f"there is no client {number}: there are {len(names)}, 0 to {len(names) - 1}")
    return number


def personal(run: Run) -> tuple[str, ...]:
    """The names of parameters of which every client has its own; empty: clients share whole models."""
    topology, n = run.now.exchange.topology, run.federation.n_clients
    own_home = topology.at_home or not centers_are_models(run)
    apart = {name for name in run.clients.task.names if topology.n_rows(n, name) != topology.n_centers(n)}
    apart |= run.state.kept.keys() - set(run.now.exchange.receives)
    return tuple(name for name in run.clients.task.names if own_home or name in apart)


def centers_are_models(run: Run) -> bool:
    """Whether a row of the centers is a model, and not something that models are sums of."""
    one = all_clients(run.clients, run.state)[:1]
    return run.now.exchange.topology.down(run.state.memory, one, "model").rest != "none"


def untrained(run: Run) -> Tensor:
    """Clients with parameters of their own that were never trained, (clients,) bool."""
    took = run.tally.took
    if not personal(run):
        return torch.zeros(run.federation.n_clients, dtype=torch.bool)
    if took is None:  # before the first round, or saved by a version that did not count
        return run.clients.held_out_mask | (run.federation.train.sizes == 0)
    return took == 0


def warn_untrained(run: Run, client: int) -> None:
    """Say where a model, or a part of it, is as it was before training."""
    if bool(untrained(run)[client]):
        name, what = run.federation.clients[client], "model" if "model" in personal(run) else "part of the model"
        warnings.warn(
            f"client '{name}' never took part, and in {run.method.name} every client has a {what} of its own: this "
            "client's is as it was before training",
            stacklevel=3,
        )


def warn_held_out(run: Run) -> None:
    """Say where clients that are held out are scored with models that were never trained."""
    if bool(run.clients.held_out_mask.any()) and (own := personal(run)):
        what = "whole models" if "model" in own else f"{' and '.join(own)} parts"
        warnings.warn(
            f"in {run.method.name} every client has {what} of its own, so those held out have untrained ones: their "
            "scores in use say nothing of the method; in summary.json, average, ensemble and vote do",
            stacklevel=3,
        )


def rows_of_clients(run: Run, index: Tensor) -> Iterator[tuple[int, Stacks]]:
    """The parameters of every one of these clients' models, {name: (width,)}, in their order."""
    exchange, everyone = run.now.exchange, all_clients(run.clients, run.state)
    state = assign_newcomers(run.method, run.state, run.clients)
    for block in everyone[index].blocks(run.clients.block_size):
        rows = held(exchange, state, run.clients, block)
        for at, client in enumerate(block.index.tolist()):
            yield client, {name: rows[name][at] for name in run.clients.task.names}


def row_of_center(run: Run, center: int) -> Stacks:
    """The parameters of a center's model; refused where a center holds no whole one."""
    n, names = len(run.state.centers["model"]), run.clients.task.names
    require(0 <= center < n, f"there is no center {center}: {run.method.name} has {n}, 0 to {n - 1}")
    missing = [name for name in names if name != "model"]
    require(not missing, f"a center has no {', '.join(missing)}: use model_of(client=0) for a client's model")
    good = centers_are_models(run)
    require(good, f"the centers of {run.method.name} hold no models: use model_of(client=0) for a client's model")
    return {"model": run.state.centers["model"][center]}


def holder(run: Run, client: int | str | None = None, center: int | None = None) -> Holder:
    """One client or one center; neither: the center, where it is the only one and has a whole model."""
    require(client is None or center is None, f"client {client!r} or center {center!r}: say one of the two")
    own = "sealed" in run.given or (
        "nodes" in run.given and bool(set(run.clients.task.names) - run.state.centers.keys())
    )
    require(
        not own,
        f"{run.folder.path if run.folder else 'the run'} was served, and clients' models, or parts of them, are theirs "
        "alone: every node has left its own in its --state folder",
    )
    if client is not None:
        k = client_number(run, client)
        warn_untrained(run, k)
        _, rows = next(rows_of_clients(run, torch.tensor([k])))
        return Holder(rows, client=k, name=run.federation.clients[k])
    n = len(run.state.centers["model"])
    if center is None and (n > 1 or personal(run)):
        there = "clients have models, or parts of them, of their own" if personal(run) else f"there are {n} centers"
        raise UsageError(
            f"{run.method.name}: {there}, so say whose model is wanted: client='{run.federation.clients[0]}' or "
            "center=0 (in the command --client NAME or --center K)"
        )
    return Holder(row_of_center(run, center or 0), center=center or 0)


def everybody(run: Run) -> list[Holder]:
    """All centers where clients share whole models, otherwise all clients; without their parameters."""
    if not personal(run):
        return [Holder({}, center=center) for center in range(len(run.state.centers["model"]))]
    return [Holder({}, client=k, name=name) for k, name in enumerate(run.federation.clients)]


def holders(run: Run) -> Iterator[Holder]:
    """The same with their parameters, one after another."""
    if not personal(run):
        yield from (replace(each, rows=row_of_center(run, each.center or 0)) for each in everybody(run))
        return
    if bool((new := untrained(run)).any()):
        some = [run.federation.clients[k] for k in new.nonzero()[:3, 0].tolist()]
        warnings.warn(
            f"{int(new.sum())} clients never took part ({', '.join(some)}{', ...' * (int(new.sum()) > 3)}): what they "
            "have of their own is as it was before training",
            stacklevel=3,
        )
    every = rows_of_clients(run, torch.arange(run.federation.n_clients))
    yield from (replace(each, rows=rows) for each, (_, rows) in zip(everybody(run), every, strict=True))
