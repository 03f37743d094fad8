"""FeSEM over its iterations, and its clusters: the runs of fesem-table2, looked at more closely."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from .fesem_table2 import FESEM_TABLE2, REFERENCE, STAND_INS, cell
from .table import Claim, Measure, Row, Table, Values, history

CENTERS = (2, 3, 4)
NAMES = tuple(f"FeSEM({k})" for k in CENTERS)
BY_EPOCHS = "FeSEM(4) by epochs"


def curve(folder: Path, name: str) -> tuple[list[int], list[float]]:
    """(rounds, values) of a number in a run's metrics."""
    found = [(row["round"], float(row[name])) for row in history(folder) if row.get(name) is not None]
    return [r for r, _ in found], [v for _, v in found]


def _last_fifth(summary: dict[str, Any]) -> float:
    """The change of micro accuracy over the last fifth of the rounds, in points."""
    try:
        rounds, values = curve(Path(summary["run_dir"]), "micro_accuracy")
    except UsageError:
        return math.nan
    before = [v for r, v in zip(rounds, values, strict=True) if r <= 0.8 * summary["rounds"]]
    return 100 * (values[-1] - before[-1]) if before else math.nan


def _first_and_last(summary: dict[str, Any]) -> float:
    """The intra-cluster distance at the last look over that at the first."""
    try:
        _, values = curve(Path(summary["run_dir"]), "intra_cluster")
    except UsageError:
        return math.nan
    return values[-1] / values[0] if len(values) > 1 and values[0] > 0 else math.nan


def _finite(values: Values, setting: str) -> list[float]:
    return [value for value in values.get(setting, []) if not math.isnan(value)]


def _setting(name: str, data: str, what: str) -> str:
    return f"{name}, {data}, {what}"


CHANGE, LAST, SPREAD = "change over the last fifth", "micro accuracy", "intra-cluster distance, last over first"


def _convergence_rows() -> tuple[Row, ...]:
    looks: dict[str, tuple[Measure, str]] = {
        LAST: (lambda s: 100 * float(s["metrics"]["micro_accuracy"]), "micro accuracy at the end in %"),
        CHANGE: (_last_fifth, "micro accuracy, last less that after four fifths of the rounds, in points"),
        SPREAD: (_first_and_last, "ratio of intra-cluster distances"),
    }
    return tuple(
        _row(name, data, what, measure, words)
        for data in STAND_INS
        for name in NAMES
        for what, (measure, words) in looks.items()
    )


def _row(name: str, data: str, what: str, measure: Measure, words: str) -> Row:
    """A number of some runs of fesem-table2."""
    stand_in = STAND_INS[data]
    return Row(
        _setting(name, data, what), cell(name, data), None, measure, words, stand_in, stand_in, line=name, column=what
    )


def _settled(data: str) -> Claim:
    def judge(values: Values) -> tuple[bool | None, str]:
        found = {name: _finite(values, _setting(name, data, CHANGE)) for name in NAMES}
        if not all(found.values()):
            return None, "not every K was run"
        means = {name: statistics.fmean(change) for name, change in found.items()}
        return all(abs(mean) < 1 for mean in means.values()), ", ".join(f"{n} {m:+.2f}" for n, m in means.items())

    return Claim(
        f"{STAND_INS[data]}: FeSEM has converged after its iterations (less than a point in the last fifth).", judge
    )


def _draw_convergence(out: Path, done: Mapping[str, Sequence[Path]]) -> list[tuple[str, str]]:
    from ..report.figure import band, panels

    name, shown = (
        "fesem-convergence.png",
        {"micro_accuracy": "micro accuracy, %", "intra_cluster": "intra-cluster distance"},
    )
    if not any(done.get(_setting(method, data, LAST)) for method in NAMES for data in STAND_INS):
        return []
    with panels(out / name, len(STAND_INS), len(shown), size=(4.4, 2.9)) as axes:
        for row, data in enumerate(STAND_INS):
            for column, (number, title) in enumerate(shown.items()):
                axis = axes[row, column]
                for place, method in enumerate(NAMES):
                    found = [curve(folder, number) for folder in done.get(_setting(method, data, LAST), ())]
                    scale = 100 if number == "micro_accuracy" else 1
                    values = [[scale * x for x in v] for r, v in found if r and r == found[0][0]]
                    if values:
                        band(axis, found[0][0], values, place, method)
                axis.set_title(f"{data}: {title}")
                axis.set_xlabel("round")
                if axis.lines:
                    axis.legend(loc="lower right" if column == 0 else "upper right")
    return [(name, "Mean and one standard deviation over seeds, at every fifth round.")]


FESEM_CONVERGENCE = Table(
    name="fesem-convergence",
    title="FeSEM with two, three and four centers over its iterations",
    reference=REFERENCE.format("its figure of convergence"),
    data=FESEM_TABLE2.data,
    what="micro accuracy, its change at the end, and the intra-cluster distance",
    measure=lambda summary: 100 * float(summary["metrics"]["micro_accuracy"]),
    rows=_convergence_rows(),
    claims=tuple(_settled(data) for data in STAND_INS),
    notes=("These are the runs of `fesem-table2`; nothing is run again. Settings and stand-ins are said there.",),
    draw=_draw_convergence,
    shares=FESEM_TABLE2.name,
)


# -- clusters ------------------------------------------------------------------------------------------------


def _members(summary: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
    """(center, test examples, known group) of every client at the end of a run."""
    folder = Path(summary["run_dir"])
    try:
        last = (folder / "places.csv").read_text(encoding="utf-8").splitlines()[-1]
        with (folder / "clients.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, IndexError):
        return None
    group = [row["group"] for row in rows]
    known = np.array([int(g) for g in group]) if all(group) else None
    places, sizes = np.array([int(word) for word in last.split(",")[1:]]), [int(row["test_examples"]) for row in rows]
    return (places, np.array(sizes), known) if len(places) == len(sizes) else None


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
    from ..topology.clusters.agreement import shared_information

    found = _members(summary)
    return math.nan if found is None or found[2] is None else shared_information(found[0], found[2])


def _ari(summary: dict[str, Any]) -> float:
    value = summary["metrics"].get("ari")
    return math.nan if value is None else float(value)


ARI, NMI, SIZE, LARGEST = "ARI with the sites", "NMI with the sites", "explained by size", "clients in the largest, %"


def _cluster_rows() -> tuple[Row, ...]:
    looks: dict[str, tuple[Measure, str]] = {
        ARI: (_ari, "adjusted Rand index with the collecting sites"),
        NMI: (_nmi, "normalized mutual information with the collecting sites"),
        SIZE: (_by_size, "share of the variance of log(examples) between clusters"),
        LARGEST: (_largest, "share of the clients in the largest cluster in %"),
    }
    rows = []
    for data in STAND_INS:
        for name in (*NAMES, *((BY_EPOCHS,) if data == "unipen62" else ())):
            for what, (measure, words) in looks.items():
                if data == "unipen62" or what in (SIZE, LARGEST):  # the sites are known of the writers only
                    rows.append(_row(name, data, what, measure, words))
    return tuple(rows)


def _sites(values: Values) -> tuple[bool | None, str]:
    found = _finite(values, _setting("FeSEM(4)", "unipen62", ARI))
    if not found:
        return None, "not run"
    mean, error = statistics.fmean(found), statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else 0.0
    words = f"ARI {mean:.2f} ± {error:.2f} with the 17 sites, where 0 is chance and 1 the same groups"
    return (mean > 0 if abs(mean) > 2 * error else None), words


def _not_size(values: Values) -> tuple[bool | None, str]:
    found = _finite(values, _setting("FeSEM(4)", "unipen62", SIZE))
    if not found:
        return None, "not run"
    mean = statistics.fmean(found)
    holds = True if mean < 0.25 else False if mean > 0.5 else None
    return (
        holds,
        f"{mean:.0%} of the variance of log(examples) lies between clusters (below 25 % holds, above 50 % does not)",
    )


def _draw_clusters(out: Path, done: Mapping[str, Sequence[Path]]) -> list[tuple[str, str]]:
    from ..errors import UsageError

    figures: list[tuple[str, str]] = []
    for data in STAND_INS:
        folders = done.get(_setting("FeSEM(4)", data, SIZE), ())
        made = [
            (f"fesem-clusters-{data}.png", f"{data}, FeSEM(4), seed 0: PCA and t-SNE of what 100 clients learn next."),
            (
                f"fesem-clusters-{data}-numbers.png",
                f"{data}, FeSEM(4), seed 0: the clusters in numbers."
                + (" No images: faces are personal data." if data == "celeba-smile" else ""),
            ),
        ]
        if data == "unipen62":
            words = "The two largest clusters: a line is a writer, a column a class; colours as on the map."
            made.append((f"fesem-clusters-{data}-examples.png", words))
        try:
            if folders:
                _look_closely(data, folders[0], [out / name for name, _ in made])
        except UsageError:
            pass  # its checkpoint is not here: the figures stay as they were
        figures += [(name, caption) for name, caption in made if (out / name).is_file()]
    return figures


def _look_closely(data: str, folder: Path, paths: list[Path]) -> None:
    from ..report import clusters
    from ..runs.grid import ended
    from ..runs.record import Folder

    run = ended(Folder.open(folder), "auto")
    clusters.draw_map(clusters.looks(run, 100), paths[0], seed=run.clients.seed)
    clusters.draw_numbers(run, paths[1])
    if data == "unipen62":
        names, counts = np.unique(clusters.places_of(run), return_counts=True)
        largest = sorted(names[np.argsort(-counts, kind="stable")][:2].tolist())
        clusters.draw_examples(run, paths[2], clients=4, columns=16, clusters=largest)


FESEM_CLUSTERS = Table(
    name="fesem-clusters",
    title="What FeSEM's clusters are",
    reference=REFERENCE.format("its figures of clusters"),
    data=FESEM_TABLE2.data,
    what="agreement of clusters with what is known of the clients",
    measure=_ari,
    rows=_cluster_rows(),
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
    draw=_draw_clusters,
    shares=FESEM_TABLE2.name,
)
