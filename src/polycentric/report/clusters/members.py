"""Who belongs where, and what everybody learns: the clusters of a run, read from it.

What clients hold at the end of a round is their center, the same for all of its members; so everybody is visited once
more, and what they would send is looked at. Nothing is mixed by that. Distances, PCA and t-SNE follow from the inner
products of the clients' rows (clients x clients, float64), so nothing here grows with the square of a model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...data.table_file import csv_text
from ...errors import UsageError, require
from ...runs.loop import Run, trainer_of
from ...runs.metrics import Integers, Reals
from ...stacks.all_rows import inner_products
from ...stacks.cohort import Cohort
from ...stacks.draw import seed_of, uniform
from ...topology import similarities
from ...topology.clusters.assignment import agreement, shared_information


@dataclass(frozen=True, eq=False)
class Looks:
    """The clients that have data, their clusters, and the inner products of what they learn."""

    index: Tensor  # (m,) which clients
    place: Integers  # (m,) the center of each
    gram: Reals  # (m, m) of their models, moved to the mean
    group: Integers | None = None  # (m,) known groups, to judge by
    group_names: tuple[str, ...] = ()


def places_of(run: Run) -> Integers:
    """Every client's center at the end of a run; a UsageError where clients have none."""
    found = run.method.in_use(run.state.round).topology.assignment(run.state.memory)
    if found is None:
        raise UsageError(
            f"a run of {run.method.name} has no clusters to show: its clients are not assigned to one of several "
            "centers; fesem, ifca, cfl and tkm do so (`polycentric methods`)"
        )
    places: Integers = found.cpu().numpy()
    return places


def some_of(run: Run, clients: int | None) -> Cohort:
    """Everybody who has data; or at most so many of them, drawn by the run's seed."""
    everyone = run.clients.everyone(run.state.round)
    if clients is None or clients >= len(everyone):
        return everyone
    return everyone[uniform(run.clients.seed, "shown", everyone.index).argsort()[:clients].sort().values]


def local_models(run: Run, clients: int | None = None) -> tuple[Tensor, Tensor]:
    """(clients, what each would send next): one more visit of everybody who has data, or of some, without mixing."""
    exchange, everyone = run.method.in_use(run.state.round), some_of(run, clients)
    if "model" not in exchange.sends:
        raise UsageError(f"clients of {run.method.name} send no models, so there is nothing to compare")
    answers = list(run.clients.answers(exchange, run.state, everyone))
    return _in_order([(answer.block.index, answer.sent["model"].cpu()) for answer in answers])


def updates(run: Run, clients: int | None = None) -> tuple[Tensor, Tensor]:
    """(clients, w_i - w): what each learns in one visit when all begin from the same w, the mean of their centers.

    Of everybody who has data, or of at most so many `clients`, drawn by the run's seed.
    """
    train = trainer_of(run.method)
    if train is None:
        raise UsageError(f"method {run.method.name} does not say how its clients train, so updates cannot be compared")
    plain = replace(train, terms=())
    everyone = run.clients.everyone(run.state.round)
    centers = run.state.centers["model"]
    places = np.zeros(run.federation.n_clients, dtype=np.int64) if len(centers) == 1 else places_of(run)
    counts = torch.bincount(torch.from_numpy(places)[everyone.index], minlength=len(centers))
    mean = (counts.double().to(centers.device) @ centers.double() / counts.sum()).to(centers.dtype)
    found = []
    for block in some_of(run, clients).blocks(run.clients.block_size):
        rows = {"model": mean.expand(len(block), -1).contiguous()}
        learned = run.clients.run(plain, rows | {"start": rows["model"]}, block)["model"]
        found.append((block.index, (learned - mean).cpu()))
    return _in_order(found)


def looks(run: Run, clients: int | None = None) -> Looks:
    """What there is to see of a run; of at most `clients` clients, drawn by the run's seed."""
    places = places_of(run)
    index, models = local_models(run, clients)
    group = run.federation.group
    known = None if group is None else group[index].numpy()
    return Looks(index, places[index.numpy()], inner_products(models).numpy(), known, run.federation.group_names)


class OverRounds(NamedTuple):
    """Clusters over the evaluated rounds."""

    rounds: list[int]
    places: Integers  # (rounds, clients) the center of each
    sizes: Integers  # (clusters, rounds)
    moved: Integers  # (rounds - 1,) clients that changed their center since the round before


def over_rounds(places: Mapping[int, Sequence[int]]) -> OverRounds:
    """The sizes of all clusters and who moved, from every client's center by the round."""
    rounds = sorted(places)
    table = np.array([places[r] for r in rounds], dtype=np.int64)
    n = int(table.max(initial=0)) + 1
    sizes = np.stack([np.bincount(row, minlength=n) for row in table], axis=1)
    return OverRounds(rounds, table, sizes, (np.diff(table, axis=0) != 0).sum(1))


def statistics(run: Run) -> list[dict[str, Any]]:
    """Each cluster in numbers: clients, examples, shares of the labels and, where known, of the protected attribute."""
    places, train, protected = places_of(run), run.federation.train, run.federation.protected
    owner, labels = train.owner.cpu().numpy(), train.y.cpu().numpy()
    accuracy = run.scores["in_use"].accuracy if "in_use" in run.scores else None
    out = []
    for k in np.unique(places):
        mine = places == k
        row: dict[str, Any] = {"cluster": int(k), "clients": int(mine.sum()), "examples": int(mine[owner].sum())}
        if run.federation.kind == "classes":
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


def write_members(run: Run, path: Path) -> Path:
    """A line for every client: its name, its cluster and, where one is known, its group."""
    places, federation = places_of(run), run.federation
    names = federation.group_names
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[list[Any]] = [["client", "cluster", *(["group"] if federation.group is not None else [])]]
    for k, client in enumerate(federation.clients):
        group = [] if federation.group is None else [int(federation.group[k])]
        rows.append([client, int(places[k]), *(names[g] if names else g for g in group)])
    path.write_text(csv_text(rows), encoding="utf-8", newline="")
    return path


def _in_order(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    index = torch.cat([index for index, _ in parts])
    order = index.argsort()
    return index[order], torch.cat([rows for _, rows in parts])[order]


def matched(labels: Any, reference: Any) -> Integers:
    """The labels renamed so that they agree with a reference on as many clients as possible.

    The Hungarian method on the table of overlaps: labels and colours stay with their clients from round to round and
    from run to run. A label without a partner gets the next number that the reference does not use.

    >>> matched([1, 1, 0, 0, 2], [0, 0, 1, 1, 1]).tolist()
    [0, 0, 1, 1, 2]
    """
    from scipy.optimize import linear_sum_assignment

    mine, theirs = np.asarray(labels, dtype=np.int64), np.asarray(reference, dtype=np.int64)
    require(mine.shape == theirs.shape, f"labels of {len(mine)} clients cannot be matched with those of {len(theirs)}")
    names, own = np.unique(mine, return_inverse=True)
    others, other = np.unique(theirs, return_inverse=True)
    overlap = np.zeros((len(names), len(others)), dtype=np.int64)
    np.add.at(overlap, (own, other), 1)
    rows, columns = linear_sum_assignment(-overlap)
    new = np.full(len(names), -1, dtype=np.int64)
    new[rows] = others[columns]
    free = (n for n in range(len(names) + int(others.max(initial=-1)) + 1) if n not in set(others.tolist()))
    for k in np.flatnonzero(new < 0):
        new[k] = next(free)
    return new[own]


def squared_distances(gram: Reals) -> Reals:
    """|x_i - x_j|^2 = G_ii - 2 G_ij + G_jj, never below zero."""
    own = np.diag(gram)
    out: Reals = np.clip(own[:, None] - 2 * gram + own[None], 0, None)
    np.fill_diagonal(out, 0.0)
    return out


def intra_cluster_distance(gram: Reals, place: Integers) -> float:
    """FeSEM's objective, 1/m sum_i |x_i - mean of its cluster|^2, from inner products."""
    total = 0.0
    for k in np.unique(place):
        mine = gram[np.ix_(place == k, place == k)]
        total += float(np.trace(mine) - mine.sum() / len(mine))
    return max(0.0, total) / max(1, len(place))


def principal(gram: Reals, n: int = 2) -> tuple[Reals, Reals]:
    """(coordinates (m, n), share of the variance of each): PCA of rows by their inner products.

    With J = I - 11^T/m and J G J = U S U^T, the coordinates are U S^(1/2). The largest entry of every column is
    positive, so the picture is the same every time.
    """
    m = len(gram)
    middle = gram - gram.mean(0) - gram.mean(1)[:, None] + gram.mean()
    values, vectors = np.linalg.eigh((middle + middle.T) / 2)
    order = np.argsort(values)[::-1][:n]
    values, vectors = np.clip(values, 0, None), vectors[:, order]
    total = float(values.sum())
    signs = np.sign(vectors[np.abs(vectors).argmax(0), np.arange(vectors.shape[1])])
    found = vectors * np.where(signs == 0, 1.0, signs) * np.sqrt(values[order])
    if found.shape[1] < n:  # fewer clients than axes
        found = np.hstack([found, np.zeros((m, n - found.shape[1]))])
    share = values[order] / total if total > 0 else np.zeros(len(order))
    return found, np.pad(share, (0, n - len(share)))


def neighbours(gram: Reals, seed: int = 0) -> Reals:
    """t-SNE of rows by their distances, (m, 2); begun from the PCA, so that one seed gives one picture."""
    from sklearn.manifold import TSNE

    m = len(gram)
    require(m >= 4, f"t-SNE needs at least 4 clients, got {m}")
    first = principal(gram)[0]
    first = first / max(float(first[:, 0].std()), 1e-300) * 1e-4
    perplexity = float(min(30, max(2, (m - 1) // 3)))
    tsne = TSNE(
        metric="precomputed", init=first, perplexity=perplexity, random_state=seed_of(seed, "t-sne") % (1 << 32)
    )
    return np.asarray(tsne.fit_transform(np.sqrt(squared_distances(gram))), dtype=np.float64)


def cosines(rows: Tensor) -> Reals:
    """alpha_ij = <d_i, d_j> / |d_i| |d_j|, in float64; 0 where an update is zero."""
    found: Reals = similarities(rows).numpy()
    return found
