"""Accuracy over simulated time: edges with overlapping cells against a hierarchy with a far cloud.

A round of FedMes takes t_comp + t_edge, one that ends in the cloud t_comp + t_c t_edge. A number at time t is that of
round t / (mean time of a round), the latency the paper gives; for other clouds, that of the last round over by then.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..report.curves import Curves
from ..report.figure import Points
from ..runs.folder import Folder
from .judge import MISSING, claim, listed, mean
from .rows import at_end, cell, history, rows, settings_of
from .table import Claim, Measure, Row, Runs, Table, Values, Verdict, figure

T_EDGE, T_COMP, T_CLOUD = 1.0, 0.1, 10.0
MODELS = {"mnist": "mnist-cnn", "fashion-mnist": "fmnist-cnn", "cifar10": "vgg11"}
SHORT = {"mnist": "mnist", "fashion-mnist": "fmnist", "cifar10": "cifar"}
RATIO = {"mnist": 1.3, "fashion-mnist": 1.5, "cifar10": 1.5}  # the paper's best alpha_v / alpha_u in setting c
LR = {"mnist": 0.01, "fashion-mnist": 0.01, "cifar10": 0.001}  # VGG-11 with GroupNorm learns nothing at 0.01

ALONE, OVERLAP, HALF = "overlap(u=30,v=0)", "overlap(u=0,v=30)", "overlap(u=20,v=10)"
BEST = "FedMes (20,10), ratio"  # with the best ratio, in setting c


class PlotLine(NamedTuple):
    """FedMes, or a hierarchy with a cloud `every` so many rounds."""

    cells: str
    every: int = 0
    ratio: float = 1.0  # alpha_v / alpha_u
    mixed: bool = True  # clients of an overlap have classes of all their cells
    model: str = ""  # empty: the one for the data


BRIDGED = {"FedMes (0,30)": PlotLine(OVERLAP), "FedMes (20,10)": PlotLine(HALF), BEST: PlotLine(HALF)}
CLOUDED = {f"hierarchical T={every}": PlotLine(ALONE, every) for every in (1, 2, 5, 10)}
LINES = BRIDGED | {"no overlap": PlotLine(ALONE)} | CLOUDED
READ = (*BRIDGED, "no overlap", "hierarchical T=1", "hierarchical T=5")
# At which time, and what is read from the plots there, in %.
PAPER: dict[tuple[str, str], tuple[int, tuple[float | None, ...]]] = {
    ("a", "mnist"): (50, (98.5, 98.5, None, 98.5, 96.5, 98.0)),
    ("a", "fashion-mnist"): (180, (89.8, 89.8, None, 89.2, 89.5, 89.6)),
    ("a", "cifar10"): (180, (78.5, 78.5, None, 71.0, 71.0, 78.0)),
    ("b", "mnist"): (150, (97.4, 97.3, None, 94.6, 96.0, 97.3)),
    ("b", "fashion-mnist"): (150, (85.5, 85.5, None, 84.2, 84.0, 85.3)),
    ("b", "cifar10"): (1000, (65.0, 64.5, None, 52.5, 55.0, 63.0)),
    ("c", "mnist"): (80, (97.0, 95.5, 96.5, 43.0, 90.0, 93.0)),
    ("c", "fashion-mnist"): (150, (77.0, 76.0, 77.5, 46.0, 77.0, 77.0)),
    ("c", "cifar10"): (1500, (64.0, 61.0, 62.0, 33.0, 45.0, 56.0)),
}
ALPHA_TIME = 120  # of the sweep over alpha_v / alpha_u, MNIST, setting c
ALPHAS: dict[float, float | None] = {0.1: 94.5, 1.0: None, 1.3: None, 3.0: 95.0, 10.0: 92.5}
CLOCK_TIME = {"mnist": 60, "fashion-mnist": 80}  # when the paper looks at other clouds, setting c
CLOUDS = (8.0, 10.0, 20.0, 40.0)
CLOCKED = ("FedMes (20,10)", "hierarchical T=1", "hierarchical T=5")
AIMS = {"mnist": 0.90, "fashion-mnist": 0.70}  # accuracies whose time is measured, setting c
DATA = {
    "mnist": "MNIST, 60,000 + 10,000",
    "fashion-mnist": "Fashion-MNIST, 60,000 + 10,000",
    "cifar10": "CIFAR-10 from a JPEG copy, a stand-in for the original pixels",
}
SHAPES = {
    "triple overlap (0,30,0)": OVERLAP,
    "triple overlap (20,10,0)": HALF,
    "triple overlap (0,20,30)": "overlap(u=0,v=20,w=30)",
    "triple overlap (10,10,30)": "overlap(u=10,v=10,w=30)",
    "asymmetric": "regions(0:10 1:20 0+1:10 0+2:30 1+2:20)",
    "four cells (15,10)": "ring(edges=4,u=15,v=10)",
    "four cells (0,25)": "ring(edges=4,u=0,v=25)",
}


def round_time(every: int = 0, t_c: float = T_CLOUD) -> float:
    """The mean time of a round: no cloud (`every` = 0), or one every so many rounds.

    >>> [round(round_time(every), 3) for every in (0, 1, 2, 5, 10)]
    [1.1, 10.1, 5.6, 2.9, 2.0]
    """
    near, far = T_COMP + T_EDGE, T_COMP + t_c * T_EDGE
    return near if not every else (near * (every - 1) + far) / every


def rounds_by(time: float, every: int = 0, t_c: float = T_CLOUD) -> int:
    """How many rounds are over at a time.

    >>> rounds_by(80), rounds_by(80, 1), rounds_by(80, 5)
    (72, 7, 27)
    """
    return math.floor(time / round_time(every, t_c) + 1e-9)


def ends(rounds: int, every: int = 0, t_c: float = T_CLOUD) -> float:
    """When a round is over, by the clock.

    >>> [round(ends(5, every), 3) for every in (0, 1, 5, 10)]
    [5.5, 50.5, 14.5, 5.5]
    """
    met = rounds // every if every else 0
    return rounds * (T_COMP + T_EDGE) + met * (t_c - 1) * T_EDGE


def over_by(time: float, every: int = 0, t_c: float = T_CLOUD) -> int:
    """How many rounds are over at a time, by the clock.

    >>> over_by(80), over_by(80, 1), over_by(80, 5)
    (72, 7, 29)
    """
    rounds = rounds_by(time)
    return next(r for r in range(rounds, -1, -1) if ends(r, every, t_c) <= time + 1e-9)


# -- rows ----------------------------------------------------------------------------------------------------


def accuracies(folder: str | Path) -> dict[int, float]:
    """The accuracy of the mean of all edges after every round, in %; of the one model where there is one."""
    found = {row["round"]: row.get("average_accuracy") for row in history(folder)}
    return {round: 100 * accuracy for round, accuracy in found.items() if accuracy is not None}


def _at(rounds: int) -> Measure:
    return lambda summary: accuracies(summary["run_dir"]).get(rounds, math.nan)


def _time_to(aim: float, every: int, summary: dict[str, Any]) -> float:
    there = [round for round, accuracy in accuracies(summary["run_dir"]).items() if accuracy >= 100 * aim]
    return ends(min(there), every) if there else math.nan


def _own(summary: dict[str, Any]) -> float:
    """The mean of the accuracies that the edges' own models have in the end, in %."""
    lines = Folder(Path(summary["run_dir"])).read_edges()
    return 100 * statistics.fmean(float(line.split(",")[1]) for line in lines) if lines else math.nan


def _row(
    name: str, setting: str, data: str, line: PlotLine, time: int, paper: float | None = None, said: str = ""
) -> Row:
    """The accuracy at a time."""
    cells, every, ratio, mixed, model = line
    rounds = longest = rounds_by(time, every)
    if (setting, data, cells, model) == ("c", "mnist", HALF, "") and ratio in ALPHAS:
        longest = max(rounds, rounds_by(ALPHA_TIME))  # as many rounds as the longest reading of the run needs
    own: dict[str, Any] = {"every": every} if every else {"alpha_v": ratio} if ratio != 1.0 else {}
    own |= {"cells": cells, "select": "by-cell(n=20)", "lr": LR[data], "momentum": 0.9, "epochs": 5, "batch": 10}
    partition = f"cells(setting={setting},cells={cells}{'' if mixed else ',mixed=false'})"
    more: dict[str, Any] = {"partition": partition, "clients": 100 if cells.startswith("ring") else 90}
    run = cell("hierarchical" if every else "fedmes", data, model or MODELS[data], longest, own, **more)
    return Row(name, run, paper, _at(rounds), f"test accuracy of the mean of all edges at t = {time}, %", said)


def _lines(head: str, setting: str, data: str, names: Iterable[str] = LINES, mixed: bool = True) -> Iterator[Row]:
    """Lines of one plot, at the time it ends."""
    time, found = PAPER[setting, data]
    paper = dict(zip(READ, found, strict=True))
    for name in names:
        line, words = LINES[name]._replace(mixed=mixed), f"{head}: {name}"
        if name == BEST:
            line, words = line._replace(ratio=RATIO[data]), f"{words} {RATIO[data]}"
        if name != BEST or setting == "c":
            yield _row(words, setting, data, line, time, paper.get(name), DATA[data])


def _main(data: str, setting: str) -> Iterator[Row]:
    return _lines(f"{setting} {SHORT[data]}", setting, data)


def _unmixed(data: str) -> Iterator[Row]:
    """Setting c where a client of an overlap has the classes of one of its cells; hierarchies do not change."""
    return _lines(f"unmixed c {SHORT[data]}", "c", data, BRIDGED, mixed=False)


def _alone(data: str, setting: str) -> Row:
    """No overlap, and the edges' own models in the place of their mean: the paper does not say which it draws."""
    row = next(row for row in _main(data, setting) if row.setting.endswith("no overlap"))
    return replace(row, setting=f"own {row.setting}", measure=_own, what="mean of the edges' own test accuracies, %")


def _times(data: str) -> Iterator[Row]:
    what = f"simulated time to {100 * AIMS[data]:.0f} %"
    for row in (*_main(data, "c"), *_unmixed(data)):
        measure = partial(_time_to, AIMS[data], row.settings["set"].get("every", 0))
        yield replace(row, setting=f"time {row.setting}", paper=None, measure=measure, what=what)


def _clocks(data: str, t_c: float) -> Iterator[Row]:
    time = CLOCK_TIME[data]
    what = f"test accuracy at t = {time} with a cloud {t_c:g} times as far, %"
    for row in _main(data, "c"):
        if row.setting.endswith(CLOCKED):
            rounds = over_by(time, row.settings["set"].get("every", 0), t_c)
            name = f"clock t_c={t_c:g}, {row.setting}"
            yield replace(row, setting=name, paper=None, measure=_at(rounds), what=what)


def _alphas(mixed: bool, ratio: float) -> Row:
    name = f"{'' if mixed else 'unmixed '}alpha: ratio {ratio:g}"
    return _row(name, "c", "mnist", PlotLine(HALF, ratio=ratio, mixed=mixed), ALPHA_TIME, ALPHAS[ratio])


def _shape(name: str) -> Row:
    return _row(f"shape: {name}", "c", "mnist", PlotLine(SHAPES[name]), PAPER["c", "mnist"][0])


def _logistic(setting: str, name: str) -> Row:
    line, time = LINES[name]._replace(model="logistic"), PAPER[setting, "mnist"][0]
    return _row(f"logistic {setting}: {name}", setting, "mnist", line, time)


# -- claims --------------------------------------------------------------------------------------------------


def _bridges(data: str) -> Claim:
    _, (_, theirs, _, alone, *_) = PAPER["c", data]

    def judge(found: dict[str, float]) -> Verdict:
        overlap, none = found.values()
        shown = f"{overlap:.1f} % against {none:.1f} % here, {theirs:g} against {alone:g} in the paper"
        return overlap >= none + 20, shown

    settings = {name: f"c {SHORT[data]}: {name}" for name in ("FedMes (20,10)", "no overlap")}
    return claim(f"In setting c bridges decide ({SHORT[data]}): 20 points and more.", settings, judge)


def _sooner(data: str) -> Claim:
    head = f"c {SHORT[data]}:"

    def judge(values: Values) -> Verdict:
        rows = {
            "FedMes (20,10)": f"time {head} FedMes (20,10)",
            "unmixed": f"time unmixed {head} FedMes (20,10)",  # as the hierarchies' data
            **{f"T={every}": f"time {head} hierarchical T={every}" for every in (1, 2, 5, 10)},
        }
        ran = {name: mean(values, row) for name, row in rows.items() if values.get(row)}
        mine: dict[str, float] = {name: ran.pop(name) for name in ("FedMes (20,10)", "unmixed") if name in ran}
        if math.isnan(mine.get("FedMes (20,10)", math.nan)) or not ran:
            return None, MISSING
        best = min((time for time in ran.values() if not math.isnan(time)), default=math.inf)
        holds = all(time < best for time in mine.values())
        return holds, f"{listed(_when(mine), '{} {}')}; {listed(_when(ran), '{}: {}')}"

    aim = f"{100 * AIMS[data]:.0f} %"
    return Claim(f"FedMes is at {aim} sooner than every hierarchy (c, {SHORT[data]}, simulated time).", judge)


def _when(times: Mapping[str, float]) -> dict[str, str]:
    return {name: "not there" if math.isnan(time) else f"{time:.0f}" for name, time in times.items()}


# -- figures -------------------------------------------------------------------------------------------------

# Where the accuracies of a plot begin to be told apart.
FLOOR = {"a mnist": 0.9, "b mnist": 0.8, "a fmnist": 0.75, "b fmnist": 0.5, "logistic a": 0.4, "logistic b": 0.4}


def _by_clock(folder: Path, rounds: list[int]) -> list[float]:
    every = int(settings_of(folder).set.get("every", 0))
    return [ends(round, every) for round in rounds]


def _over_time(runs: Runs, setting: str, data: str, logistic: bool = False) -> Curves:
    """Accuracy over simulated time; dashed: hierarchies."""
    clouds = {name: f"cloud every {n} round{'s' if n > 1 else ''}" for name, (_, n, *_) in CLOUDED.items()}
    head = f"logistic {setting}" if logistic else f"{setting} {SHORT[data]}"
    title = f"{data}{', logistic regression' if logistic else ''}, setting {setting}"
    dress = {"title": title, "ylabel": "test accuracy", "ylim": (FLOOR.get(head, 0.0), 1)}
    return Curves(
        {clouds.get(name, name): runs[f"{head}: {name}"] for name in LINES if name != BEST},
        "average_accuracy",
        _by_clock,
        style=lambda label: {"linestyle": "--"} if label in clouds.values() else {},
        dress=dress | {"xlim": (0, PAPER[setting, data][0]), "xlabel": "simulated time (t_edge = 1)"},
    )


def _by_ratio(runs: Runs) -> Points:
    lines: dict[str, dict[float, Any]] = {
        "here": {ratio: runs.numbers(f"alpha: ratio {ratio:g}") for ratio in ALPHAS},
        "read from the paper": {ratio: [] if paper is None else [paper] for ratio, paper in ALPHAS.items()},
    }
    dress = {"xscale": "log", "xlabel": "alpha_v / alpha_u", "ylabel": "test accuracy, %"}
    return Points(
        lines if any(map(len, lines["here"].values())) else {},
        style=lambda label: {"linestyle": "none", "spread": False, "marker": "o" if label == "here" else "x"},
        dress=dress | {"title": f"mnist, setting c, t = {ALPHA_TIME}"},
    )


def _by_cloud(runs: Runs, data: str) -> Points:
    lines = {
        name: {t_c: runs.numbers(f"clock t_c={t_c:g}, c {SHORT[data]}: {name}") for t_c in CLOUDS} for name in CLOCKED
    }
    dress = {"title": f"{data}, setting c, t = {CLOCK_TIME[data]}", "xscale": "log", "ylim": (0, 100)}
    dress |= {"xlabel": "time to the cloud / time to the edge", "ylabel": "test accuracy, %"}
    return Points(lines, dress=dress)


FEDMES = Table(
    name="fedmes",
    title="FedMes: accuracy over simulated time",
    reference=(
        "Han et al., FedMes: speeding up federated learning with multiple edge servers, IEEE JSAC 2021. The paper's "
        "numbers are read from its figures."
    ),
    data="MNIST and Fashion-MNIST, 60,000 + 10,000; CIFAR-10 from a JPEG copy, a stand-in for the original pixels",
    what="test accuracy of the mean of all edges, %",
    measure=at_end("metrics", "average_accuracy", scale=100),
    rows=(
        *rows(_main, MODELS, "cba"),
        *rows(_alone, AIMS, "cba"),
        *rows(_unmixed, AIMS),
        *rows(_times, AIMS),
        *rows(_alphas, (True, False), ALPHAS),
        *rows(_clocks, CLOCK_TIME, CLOUDS),
        *rows(_shape, SHAPES),
        *rows(_logistic, "abc", [name for name in READ if name != BEST]),
    ),
    claims=(
        *map(_bridges, AIMS),
        *map(_sooner, AIMS),
        claim(
            "The best weight of a bridge is 1.3 (MNIST, setting c).",
            {ratio: f"alpha: ratio {ratio:g}" for ratio in ALPHAS},
            lambda found: (max(found, key=found.__getitem__) == 1.3, listed(found, "{:g}: {:.1f} %")),
        ),
    ),
    seeds=2,
    holds=lambda paper, ours: abs(paper - ours) <= 3,
    figures={
        "fedmes-time.png": figure(lambda runs: [[_over_time(runs, s, data) for s in "abc"] for data in MODELS]),
        "fedmes-alpha.png": figure(lambda runs: [[_by_ratio(runs)]]),
        "fedmes-clock.png": figure(lambda runs: [[_by_cloud(runs, data) for data in CLOCK_TIME]]),
        "fedmes-logistic.png": figure(lambda runs: [[_over_time(runs, s, "mnist", True) for s in "abc"]]),
    },
)
