"""FeSEM over its iterations, and its clusters: the runs of fesem-table2, looked at more closely."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..report import clusters
from ..report.curves import Curves
from ..runs.folder import Folder
from ..runs.loop import Run
from ..runs.metrics import Integers
from ..runs.start import open as open_run
from ..topology.clusters.assignment import shared_information
from .fesem_table2 import FESEM_TABLE2, REFERENCE, STAND_INS, cell
from .judge import claim_by_seed, claim_of_row, clearly, error_of, finite, listed
from .rows import at_end, clients_of, history, rows
from .table import Claim, Draw, Measure, Row, Runs, Table, Verdict, figure

NAMES = tuple(f"FeSEM({k})" for k in (2, 3, 4))
BY_EPOCHS = "FeSEM(4) by epochs"
CHANGE, LAST, SPREAD = "change over the last fifth", "micro accuracy", "intra-cluster distance, last over first"
ARI, NMI, SIZE, LARGEST = "ARI with the sites", "NMI with the sites", "explained by size", "clients in the largest, %"
MICRO = at_end("metrics", "micro_accuracy", scale=100)


def _setting(name: str, data: str, what: str) -> str:
    return f"{name}, {data}, {what}"


def _row(looks: Mapping[str, tuple[Measure, str]], data: str, name: str, what: str) -> Row | None:
    """A number of some runs of fesem-table2."""
    if data != "unipen62" and (name == BY_EPOCHS or what in (ARI, NMI)):  # the sites are known of the writers only
        return None
    stand_in = STAND_INS[data]
    return Row(_setting(name, data, what), cell(name, data), None, *looks[what], stand_in, stand_in, name, what)


def _last_fifth(summary: dict[str, Any]) -> float:
    """The change of micro accuracy over the last fifth of the rounds, in points."""
    found = {row["round"]: row["micro_accuracy"] for row in history(summary["run_dir"])}
    before = [accuracy for round, accuracy in found.items() if round <= 0.8 * summary["rounds"]]
    return float(100 * (list(found.values())[-1] - before[-1])) if before else math.nan


def _first_and_last(summary: dict[str, Any]) -> float:
    """The intra-cluster distance at the last look over that at the first."""
    found = [row.get("intra_cluster") for row in history(summary["run_dir"])]
    values = [value for value in found if value is not None]
    return float(values[-1] / values[0]) if len(values) > 1 and values[0] > 0 else math.nan


CONVERGENCE: dict[str, tuple[Measure, str]] = {
    LAST: (MICRO, "micro accuracy at the end in %"),
    CHANGE: (_last_fifth, "micro accuracy, last less that after four fifths of the rounds, in points"),
    SPREAD: (_first_and_last, "ratio of intra-cluster distances"),
}


def _settled(data: str) -> Claim:
    def judge(found: dict[str, list[float]]) -> Verdict:
        means = {name: statistics.fmean(change) for name, change in found.items()}
        return all(abs(mean) < 1 for mean in means.values()), listed(means, "{} {:+.2f}")

    text = f"{STAND_INS[data]}: FeSEM has converged after its iterations (less than a point in the last fifth)."
    return claim_by_seed(text, {name: _setting(name, data, CHANGE) for name in NAMES}, judge, finite)


def _curves(runs: Runs, data: str, accuracy: bool) -> Curves:
    groups = {name: runs[_setting(name, data, LAST)] for name in NAMES}
    metric, words = ("micro_accuracy", "micro accuracy") if accuracy else ("intra_cluster", "intra-cluster distance")
    return Curves(groups, metric, dress={"title": f"{data}: {words}", "ylabel": ""})


FESEM_CONVERGENCE = Table(
    name="fesem-convergence",
    title="FeSEM with two, three and four centers over its iterations",
    reference=REFERENCE.format("its figure of convergence"),
    data=FESEM_TABLE2.data,
    what="micro accuracy, its change at the end, and the intra-cluster distance",
    measure=MICRO,
    rows=rows(_row, (CONVERGENCE,), STAND_INS, NAMES, CONVERGENCE),
    claims=tuple(map(_settled, STAND_INS)),
    figures={
        "fesem-convergence.png": figure(
            lambda runs: [[_curves(runs, data, accuracy) for accuracy in (True, False)] for data in STAND_INS]
        ),
    },
    shares=FESEM_TABLE2.name,
)


# -- clusters ------------------------------------------------------------------------------------------------


def _places(summary: dict[str, Any]) -> Integers:
    """The center of every client at the end of a run."""
    places = Folder(Path(summary["run_dir"])).read_places()
    return np.array(places[max(places)])


def _by_size(summary: dict[str, Any]) -> float:
    """How much of the variance of log(examples) lies between the clusters: 0 nothing, 1 all of it."""
    places, sizes = _places(summary), [int(line["test_examples"]) for line in clients_of(summary["run_dir"])]
    log = np.log(np.maximum(sizes, 1))
    inside = sum(((log[places == k] - log[places == k].mean()) ** 2).sum() for k in np.unique(places))
    whole = ((log - log.mean()) ** 2).sum()
    return float(1 - inside / whole) if whole > 0 else math.nan


def _largest(summary: dict[str, Any]) -> float:
    places = _places(summary)
    return 100 * float(np.bincount(places).max() / len(places))


def _nmi(summary: dict[str, Any]) -> float:
    group = [line["group"] for line in clients_of(summary["run_dir"])]
    return shared_information(_places(summary), np.array(group, dtype=int)) if all(group) else math.nan


CLUSTERS: dict[str, tuple[Measure, str]] = {
    ARI: (at_end("metrics", "ari"), "adjusted Rand index with the collecting sites"),
    NMI: (_nmi, "normalized mutual information with the collecting sites"),
    SIZE: (_by_size, "share of the variance of log(examples) between clusters"),
    LARGEST: (_largest, "share of the clients in the largest cluster in %"),
}


AGREE, BY_SIZE = (_setting("FeSEM(4)", "unipen62", what) for what in (ARI, SIZE))


def _sites(found: list[float]) -> Verdict:
    mean, error = statistics.fmean(found), error_of(found) if len(found) > 1 else 0.0
    words = f"ARI {mean:.2f} ± {error:.2f} with the 17 sites, where 0 is chance and 1 the same groups"
    return clearly(found), words


def _not_size(found: list[float]) -> Verdict:
    mean = statistics.fmean(found)
    said = f"{mean:.0%} of the variance of log(examples) lies between clusters (below 25 % holds, above 50 % does not)"
    return (True if mean < 0.25 else False if mean > 0.5 else None), said


@lru_cache(maxsize=2)
def _ended(folder: Path) -> Run:
    return open_run(folder, device="auto")


def _look(data: str, draw: Callable[[Run, Path], object]) -> Draw:
    return lambda path, runs: draw(_ended(runs.first(_setting("FeSEM(4)", data, SIZE))), path)


def _map(run: Run, path: Path) -> None:
    clusters.draw_map(clusters.looks(run, 100), path, seed=run.clients.seed)


def _examples(run: Run, path: Path) -> None:
    names, counts = np.unique(clusters.places_of(run), return_counts=True)
    largest = sorted(names[np.argsort(-counts, kind="stable")][:2].tolist())
    clusters.draw_examples(run, path, clients=4, columns=16, clusters=largest)


FESEM_CLUSTERS = Table(
    name="fesem-clusters",
    title="What FeSEM's clusters are",
    reference=REFERENCE.format("its figures of clusters"),
    data=FESEM_TABLE2.data,
    what="agreement of clusters with what is known of the clients",
    measure=CLUSTERS[ARI][0],
    rows=rows(_row, (CLUSTERS,), STAND_INS, (*NAMES, BY_EPOCHS), CLUSTERS),
    claims=(
        claim_of_row("On unipen62 the clusters have to do with who collected the writing.", AGREE, _sites),
        claim_of_row(
            "On unipen62 the clusters are more than writers with much and with little data.", BY_SIZE, _not_size
        ),
    ),
    figures={
        **{f"fesem-clusters-{data}.png": _look(data, _map) for data in STAND_INS},
        **{f"fesem-clusters-{data}-numbers.png": _look(data, clusters.draw_numbers) for data in STAND_INS},
        "fesem-clusters-unipen62-examples.png": _look("unipen62", _examples),  # no faces: they are personal data
    },
    shares=FESEM_TABLE2.name,
)
