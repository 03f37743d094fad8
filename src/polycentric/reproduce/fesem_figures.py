"""FeSEM over its iterations, and its clusters: the runs of fesem-table2, looked at more closely."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from ..report import clusters
from ..report.curves import Curves, curve
from ..runs.loop import Run
from ..runs.start import open as open_run
from ..topology.clusters.assignment import shared_information
from .fesem_table2 import FESEM_TABLE2, REFERENCE, STAND_INS, cell
from .judge import error_of, finite, listed
from .rows import at_end, rows
from .table import Claim, Figure, Measure, Row, Runs, Table, Values, Verdict, figure

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
    (measure, words), stand_in = looks[what], STAND_INS[data]
    run = cell(name, data)
    return Row(_setting(name, data, what), run, None, measure, words, stand_in, stand_in, line=name, column=what)


def _last_fifth(summary: dict[str, Any]) -> float:
    """The change of micro accuracy over the last fifth of the rounds, in points."""
    try:
        rounds, values = curve(Path(summary["run_dir"]), "micro_accuracy")
    except UsageError:
        return math.nan
    before = values[rounds <= 0.8 * summary["rounds"]]
    return float(100 * (values[-1] - before[-1])) if len(before) else math.nan


def _first_and_last(summary: dict[str, Any]) -> float:
    """The intra-cluster distance at the last look over that at the first."""
    try:
        _, values = curve(Path(summary["run_dir"]), "intra_cluster")
    except UsageError:
        return math.nan
    return float(values[-1] / values[0]) if len(values) > 1 and values[0] > 0 else math.nan


CONVERGENCE: dict[str, tuple[Measure, str]] = {
    LAST: (MICRO, "micro accuracy at the end in %"),
    CHANGE: (_last_fifth, "micro accuracy, last less that after four fifths of the rounds, in points"),
    SPREAD: (_first_and_last, "ratio of intra-cluster distances"),
}


def _settled(data: str) -> Claim:
    def judge(values: Values) -> Verdict:
        found = {name: finite(values, _setting(name, data, CHANGE)) for name in NAMES}
        if not all(found.values()):
            return None, "not every K was run"
        means = {name: statistics.fmean(change) for name, change in found.items()}
        return all(abs(mean) < 1 for mean in means.values()), listed(means, "{} {:+.2f}")

    text = "FeSEM has converged after its iterations (less than a point in the last fifth)."
    return Claim(f"{STAND_INS[data]}: {text}", judge)


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
    claims=tuple(_settled(data) for data in STAND_INS),
    notes=("These are the runs of `fesem-table2`; nothing is run again. Settings and stand-ins are said there.",),
    figures=(
        figure(
            "fesem-convergence.png",
            "Mean and one standard deviation over seeds, at every fifth round.",
            lambda runs: [[_curves(runs, data, accuracy) for accuracy in (True, False)] for data in STAND_INS],
        ),
    ),
    shares=FESEM_TABLE2.name,
)


# -- clusters ------------------------------------------------------------------------------------------------


def _members(summary: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
    """(center, test examples, known group) of every client at the end of a run."""
    folder = Path(summary["run_dir"])
    try:
        last = (folder / "places.csv").read_text(encoding="utf-8").splitlines()[-1]
        with (folder / "clients.csv").open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
    except (OSError, IndexError):
        return None
    group = [line["group"] for line in lines]
    known = np.array([int(g) for g in group]) if all(group) else None
    places, sizes = [int(word) for word in last.split(",")[1:]], [int(line["test_examples"]) for line in lines]
    return (np.array(places), np.array(sizes), known) if len(places) == len(sizes) else None


def _by_size(summary: dict[str, Any]) -> float:
    """How much of the variance of log(examples) lies between the clusters: 0 nothing, 1 all of it."""
    found = _members(summary)
    if found is None:
        return math.nan
    places, sizes, _ = found
    log = np.log(np.maximum(sizes, 1))
    inside = sum(((log[places == k] - log[places == k].mean()) ** 2).sum() for k in np.unique(places))
    whole = ((log - log.mean()) ** 2).sum()
    return float(1 - inside / whole) if whole > 0 else math.nan


def _largest(summary: dict[str, Any]) -> float:
    found = _members(summary)
    return math.nan if found is None else 100 * float(np.bincount(found[0]).max() / len(found[0]))


def _nmi(summary: dict[str, Any]) -> float:
    found = _members(summary)
    return math.nan if found is None or found[2] is None else shared_information(found[0], found[2])


CLUSTERS: dict[str, tuple[Measure, str]] = {
    ARI: (at_end("metrics", "ari"), "adjusted Rand index with the collecting sites"),
    NMI: (_nmi, "normalized mutual information with the collecting sites"),
    SIZE: (_by_size, "share of the variance of log(examples) between clusters"),
    LARGEST: (_largest, "share of the clients in the largest cluster in %"),
}


def _sites(values: Values) -> Verdict:
    if not (found := finite(values, _setting("FeSEM(4)", "unipen62", ARI))):
        return None, "not run"
    mean, error = statistics.fmean(found), error_of(found) if len(found) > 1 else 0.0
    words = f"ARI {mean:.2f} ± {error:.2f} with the 17 sites, where 0 is chance and 1 the same groups"
    return (mean > 0 if abs(mean) > 2 * error else None), words


def _not_size(values: Values) -> Verdict:
    if not (found := finite(values, _setting("FeSEM(4)", "unipen62", SIZE))):
        return None, "not run"
    mean = statistics.fmean(found)
    said = f"{mean:.0%} of the variance of log(examples) lies between clusters (below 25 % holds, above 50 % does not)"
    return (True if mean < 0.25 else False if mean > 0.5 else None), said


@lru_cache(maxsize=1)
def _ended(folder: Path) -> Run:
    return open_run(folder, device="auto")


def _look(name: str, caption: str, data: str, draw: Callable[[Run, Path], object]) -> Figure:
    def drawn(path: Path, runs: Runs) -> object:
        return draw(_ended(runs.first(_setting("FeSEM(4)", data, SIZE))), path)

    return Figure(f"fesem-clusters-{name}.png", caption, drawn)


def _map(run: Run, path: Path) -> None:
    clusters.draw_map(clusters.looks(run, 100), path, seed=run.clients.seed)


def _examples(run: Run, path: Path) -> None:
    names, counts = np.unique(clusters.places_of(run), return_counts=True)
    largest = sorted(names[np.argsort(-counts, kind="stable")][:2].tolist())
    clusters.draw_examples(run, path, clients=4, columns=16, clusters=largest)


def _figures(data: str) -> Iterator[Figure]:
    head = f"{data}, FeSEM(4), seed 0:"
    yield _look(data, f"{head} PCA and t-SNE of what 100 clients learn next.", data, _map)
    faces = " No images: faces are personal data." if data == "celeba-smile" else ""
    yield _look(f"{data}-numbers", f"{head} the clusters in numbers.{faces}", data, clusters.draw_numbers)
    if data == "unipen62":
        words = "The two largest clusters: a line is a writer, a column a class; colours as on the map."
        yield _look(f"{data}-examples", words, data, _examples)


FESEM_CLUSTERS = Table(
    name="fesem-clusters",
    title="What FeSEM's clusters are",
    reference=REFERENCE.format("its figures of clusters"),
    data=FESEM_TABLE2.data,
    what="agreement of clusters with what is known of the clients",
    measure=CLUSTERS[ARI][0],
    rows=rows(_row, (CLUSTERS,), STAND_INS, (*NAMES, BY_EPOCHS), CLUSTERS),
    claims=(
        Claim("On unipen62 the clusters have to do with who collected the writing.", _sites),
        Claim("On unipen62 the clusters are more than writers with much and with little data.", _not_size),
    ),
    notes=(
        "These are the runs of `fesem-table2`; nothing is run again. Settings and stand-ins are said there.",
        "The paper shows that clusters look apart after PCA, and examples of two of them. Looking apart is what "
        "k-means makes of any cloud, so we ask what the clusters agree with: the 17 sites that collected the writing "
        "(known to nobody while training), and how many examples a client has, since who takes more steps moves "
        "farther. On unipen62 every writer takes as many steps as the others, except in the line by epochs.",
        "A map shows what clients would send next, after one more epoch from their centers; the models they hold are "
        "those of the centers and equal within a cluster.",
    ),
    figures=tuple(figure for data in STAND_INS for figure in _figures(data)),
    shares=FESEM_TABLE2.name,
)
