"""Who belongs where, and what everybody learns: the clusters of a run, read from it.

What clients hold at the end of a round is their center, the same for all of its members; so everybody is visited once
more, and what they would send is looked at. Nothing is mixed by that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError
from ...method import State
from ...runs.loop import Run, trainer_of
from ...stacks.draw import uniform
from ...topology import inner_products
from ...topology.clusters.clustered import agreement, shared_information
from .distances import Floats, Ints


@dataclass(frozen=True, eq=False)
class Looks:
    """The clients that have data, their clusters, and the inner products of what they learn."""

    index: Tensor  # (m,) which clients
    place: Ints  # (m,) the center of each
    gram: Floats  # (m, m) of their models, moved to the mean
    group: Ints | None = None  # (m,) known groups, to judge by
    group_names: tuple[str, ...] = ()


def places_of(run: Run) -> Ints:
    """Every client's center at the end of a run; a UsageError where clients have none."""
    found = run.method.at(run.state.round)[-1].topology.assignment(run.state.memory)
    if found is None:
        raise UsageError(
            f"a run of {run.method.name} has no clusters to show: its clients are not assigned to one of several "
            "centers; fesem, ifca, cfl and tkm do so (`polycentric methods`)"
        )
    places: Ints = found.cpu().numpy()
    return places


def local_models(run: Run) -> tuple[Tensor, Tensor]:
    """(clients, what each would send next): one more visit of everybody who has data, without mixing."""
    exchange, everyone = run.method.at(run.state.round)[-1], run.clients.everyone(run.state.round)
    if "model" not in exchange.sends:
        raise UsageError(f"clients of {run.method.name} send no models, so there is nothing to compare")
    answers = list(run.clients.answers(exchange, run.state, everyone))
    return _in_order([(answer.block.index, answer.sent["model"].cpu()) for answer in answers])


def updates(run: Run) -> tuple[Tensor, Tensor]:
    """(clients, w_i - w): what each learns in one visit when all begin from the same w, the mean of their centers."""
    train = trainer_of(run.method)
    if train is None:
        raise UsageError(f"method {run.method.name} does not say how its clients train, so updates cannot be compared")
    plain = replace(train, terms=())
    everyone = run.clients.everyone(run.state.round)
    counts = torch.bincount(torch.from_numpy(places_of(run))[everyone.index], minlength=len(_centers(run.state)))
    centers = _centers(run.state)
    mean = (counts.double().to(centers.device) @ centers.double() / counts.sum()).to(centers.dtype)
    found = []
    for block in everyone.blocks(run.clients.block_size):
        rows = {"model": mean.expand(len(block), -1).contiguous()}
        learned = run.clients.run(plain, rows | {"start": rows["model"]}, block)["model"]
        found.append((block.index, (learned - mean).cpu()))
    return _in_order(found)


def looks(run: Run, clients: int | None = None) -> Looks:
    """What there is to see of a run; of at most `clients` clients, drawn by the run's seed."""
    places = places_of(run)
    index, models = local_models(run)
    if clients is not None and clients < len(index):
        kept = uniform(run.clients.seed, "shown", index).argsort()[:clients].sort().values
        index, models = index[kept], models[kept]
    group = run.federation.group
    return Looks(
        index,
        places[index.numpy()],
        inner_products(models).numpy(),
        None if group is None else group[index].numpy(),
        run.federation.group_names,
    )


def statistics(run: Run) -> list[dict[str, Any]]:
    """Each cluster in numbers: clients, examples, shares of the labels and, where known, of the protected attribute."""
    places, train, protected = places_of(run), run.federation.train, run.federation.protected
    owner, labels = train.owner.cpu().numpy(), train.y.cpu().numpy()
    accuracy = run.scores["in_use"].accuracy if "in_use" in run.scores else None
    out = []
    for k in np.unique(places):
        mine = places == k
        row: dict[str, Any] = {"cluster": int(k), "clients": int(mine.sum()), "examples": int(mine[owner].sum())}
        if run.federation.classes:
            counts = np.bincount(labels[mine[owner]], minlength=len(run.federation.classes))
            row["labels"] = {
                name: float(n / max(1, counts.sum()))
                for name, n in zip(run.federation.classes, counts.tolist(), strict=True)
            }
        if protected is not None:
            row["protected"] = float(protected.numpy()[mine].astype(float).mean())
        if accuracy is not None and np.isfinite(accuracy[mine]).any():
            row["macro_accuracy"] = float(np.nanmean(accuracy[mine]))
        out.append(row)
    return out


def told(run: Run) -> dict[str, Any]:
    """The clusters of a run in one JSON object: sizes, and their agreement with known groups."""
    places = places_of(run)
    names, counts = np.unique(places, return_counts=True)
    out: dict[str, Any] = {"sizes": {int(k): int(n) for k, n in zip(names, counts, strict=True)}}
    if run.federation.group is not None:
        group = run.federation.group.numpy()
        out |= {"ari": agreement(places, group), "nmi": shared_information(places, group)}
    return out


def _in_order(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    index = torch.cat([index for index, _ in parts])
    order = index.argsort()
    return index[order], torch.cat([rows for _, rows in parts])[order]


def _centers(state: State) -> Tensor:
    return state.centers["model"]
