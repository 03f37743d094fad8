"""MOCHA on the sensors of phones: one model, a model for each subject, or related models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..parts.select import Everyone, Stragglers
from ..report.curves import Curves
from ..report.figure import Heat
from ..runs.loop import Run
from ..runs.start import prepared
from ..simulate.clock import Delays, Load
from .judge import claim, listed
from .rows import between_tasks, cell, error, rows, settings_of
from .table import Claim, Row, Runs, Table, Verdict, figure

ROUNDS = 200
KINDS = {"one model": "same", "a model each": "none", "related": "learned"}
PLAIN, SKEWED = "random windows", "random windows, skewed"

# Data, the paper's errors in %, and penalties by `sweeps/mocha-*.toml`, on a fifth of the training windows.
SPLITS: dict[str, tuple[str, str, tuple[float, ...] | None, tuple[float, ...]]] = {
    PLAIN: ("features(har,SITTING,shuffled)", "natural", (2.23, 1.34, 0.46), (1e-2, 1e-3, 1e-2)),
    SKEWED: ("features(har,SITTING,shuffled)", "skewed=50", (2.41, 3.87, 1.93), (1e-1, 1e-3, 1e-3)),
    "last fifth": ("features(har,SITTING)", "natural", None, (1e-2, 1e-3, 1e-2)),
    "last fifth, skewed": ("features(har,SITTING)", "skewed=50", None, (1e-1, 1e-3, 1e-3)),
    "six activities, last fifth": ("features(har)", "natural", None, (1e-2, 1e-3, 1e-2)),
}
TROUBLE: dict[str, dict[str, Any]] = {
    "stragglers": {"stragglers": 1.0},
    "half of them absent": {"select": "poisson(rate=0.5)"},
}


def _row(split: str, kind: str, trouble: str = "") -> Row:
    data, partition, paper, strengths = SPLITS[split]
    at = list(KINDS).index(kind)
    own = {"relation": KINDS[kind], "strength": strengths[at]} | TROUBLE.get(trouble, {})
    run = cell("mocha", data, "logistic", ROUNDS, own, evaluate_every=5, partition=partition)
    return Row(f"{kind}, {split}{trouble and ', '}{trouble}", run, paper[at] if paper and not trouble else None)


def _best(split: str) -> Claim:
    return claim(
        f"Related models err less than one model and than a model each ({split}).",
        {kind: f"{kind}, {split}" for kind in KINDS},
        lambda mean: (mean["related"] < min(mean["one model"], mean["a model each"]), listed(mean, "{} {:.2f} %")),
    )


def _trouble(mean: dict[str, float]) -> Verdict:
    without = mean.pop("")
    shown = listed(mean, "{} {:.2f} %")
    return all(error <= without + 0.2 for error in mean.values()), f"{shown}, without trouble {without:.2f} %"


# The authors' model of time, in units of a flop: eight for a coordinate step, and so many for a round on a link.
FLOPS, LINKS = 8.0, {"WiFi": 10.0, "LTE": 100.0, "3G": 1000.0}


def times(run: Run, rounds: int, link: float, slow: bool, waits: bool) -> list[float]:
    """When every round of MOCHA ends, by `Delays(compute=8, link=link)`; nothing is trained.

    `slow`: machines have a speed u_k, anew in every round, uniform on [0.1, 1], as `stragglers=1` draws it. MOCHA takes
    what they get done, u_k of their steps; who `waits` lets everyone do all steps, in 1 / u_k of the time.
    """
    exchange, clock, now, out = run.method.at(0)[0], Delays(compute=FLOPS, link=link), 0.0, []
    for round in range(rounds):
        everyone = run.clients.everyone(round)
        cohort = exchange.select(run.state.memory, everyone)
        load = Load(exchange, run.state, cohort, run.clients.task.width)
        needs = clock.needs(load)
        if slow and waits:
            speed = Stragglers(Everyone(), 1.0, least=0.1)(run.state.memory, everyone).effort.double()[cohort.index]
            needs = needs + clock.at_client(load) * (1 / speed - 1)
        now += float(needs.max()) if len(cohort) else 0.0
        out.append(now)
    return out


# words -> row, machines are slow, all wait for them
TIMED = {
    "fixed accuracy: all wait for the slow": (f"related, {PLAIN}", True, True),
    "MOCHA: the slow do less": (f"related, {PLAIN}, stragglers", True, False),
    "half absent, nobody slow": (f"related, {PLAIN}, half of them absent", False, False),
}


@lru_cache(maxsize=64)
def _ends(folder: Path, rounds: int, slow: bool, waits: bool) -> list[float]:
    return times(prepared(settings_of(folder)), rounds, 0.0, slow, waits)


def _over_time(runs: Runs, words: str, link: float) -> Curves:
    """The gap over simulated time, a line for each seed."""
    of = {run: kind for kind, (row, *_) in TIMED.items() for run in runs[row]}

    def at(folder: Path, rounds: list[int]) -> list[float]:
        ends = _ends(folder, rounds[-1], *TIMED[of[folder]][1:])
        return [ends[round - 1] + link * round for round in rounds]

    def style(name: str) -> Mapping[str, Any]:
        number, seed = map(int, name.split())
        return {"number": number, "label": None if seed else list(TIMED)[number], "linewidth": 1.0}

    lines = {f"{k} {seed}": [run] for k, (row, *_) in enumerate(TIMED.values()) for seed, run in enumerate(runs[row])}
    dress = {"xscale": "log", "yscale": "log", "title": f"{words}: {link:,.0f} a round"}
    dress |= {"xlabel": "simulated time, flops", "ylabel": "duality gap, sum over tasks"}
    return Curves(lines, "gap", at, None, style, dress)


def _over_rounds(runs: Runs) -> list[list[Curves]]:
    names = [*(f"{kind}, {PLAIN}" for kind in KINDS), *(f"related, {PLAIN}, {words}" for words in TROUBLE)]
    groups = {name.replace(f", {PLAIN}", ""): runs[name] for name in names}
    gap = Curves(groups, "gap", dress={"yscale": "log", "ylabel": "duality gap, sum over tasks"})

    def lacks(row: dict[str, Any]) -> float | None:
        return 100 * (1 - row["macro_accuracy"]) if "gap" in row else None

    return [[gap, Curves(groups, lacks, dress={"ylabel": "test error, mean of tasks, %"})]]


def _related(runs: Runs, split: str, bar: str = "") -> Heat:
    dress = {"title": split, "xlabel": "subject", "ylabel": "subject"}
    return Heat(between_tasks(runs.first(f"related, {split}")), bar, dress)


MOCHA = Table(
    name="mocha",
    title="MOCHA: one model, a model each, or related models",
    reference=(
        "Smith et al., Federated multi-task learning, NeurIPS 2017, https://arxiv.org/abs/1705.10467: prediction "
        "error on Human Activity and its skewed version (mean of 10 shuffles)."
    ),
    data="har, 30 subjects, windows of a phone's sensors as 119 features of ours; the paper has the 561 of UCI",
    what="test error in %, mean of the subjects",
    measure=error("macro_accuracy"),
    rows=(*rows(_row, SPLITS, KINDS), *(_row(PLAIN, "related", words) for words in TROUBLE)),
    claims=(
        *map(_best, SPLITS),
        claim(
            "Stragglers and absent clients do not hurt the result (0.2 points at most).",
            {"": f"related, {PLAIN}"} | {words: f"related, {PLAIN}, {words}" for words in TROUBLE},
            _trouble,
        ),
    ),
    figures={
        "mocha-gap.png": figure(_over_rounds),
        "mocha-time.png": figure(lambda runs: [[_over_time(runs, words, link) for words, link in LINKS.items()]]),
        "mocha-covariance.png": figure(
            lambda runs: [[_related(runs, PLAIN), _related(runs, SKEWED, "correlation of tasks")]]
        ),
    },
)
