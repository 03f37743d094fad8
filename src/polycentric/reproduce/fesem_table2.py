"""Thirteen methods on two federations: micro and macro accuracy and F1, in use and after fine-tuning."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from .judge import MISSING, clearly, error_of, finite
from .rows import at_end, rows
from .table import Claim, Row, Table, Values, Verdict

METRICS = {
    "micro_accuracy": "micro acc.",
    "micro_f1": "micro F1",
    "macro_accuracy": "macro acc.",
    "macro_f1": "macro F1",
}
STAND_INS = {"unipen62": "unipen62 in FEMNIST's place", "celeba-smile": "celeba-smile, a part of FedCelebA"}

# The paper's numbers in %, in the order of METRICS: FEMNIST, FedCelebA. HypCluster is in its second version only.
PAPER: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "NoFed": ((79.4, 67.6, 81.3, 51.0), (83.8, 66.0, 83.9, 67.2)),
    "FedSGD": ((70.1, 61.2, 71.5, 46.7), (75.7, 60.7, 75.6, 55.6)),
    "FedAvg": ((84.9, 67.9, 84.9, 45.4), (86.1, 78.0, 86.1, 54.2)),
    "FedDist": ((79.3, 67.5, 79.8, 50.5), (71.8, 61.0, 71.6, 61.1)),
    "FedDWS": ((80.4, 67.2, 80.6, 51.7), (73.4, 59.3, 73.4, 50.3)),
    "Robust(4)": ((78.4, 53.1, 77.6, 53.6), (90.1, 68.0, 90.1, 68.3)),
    "Clustered": ((84.1, 64.3, 84.2, 64.4), (86.7, 67.8, 87.0, 67.8)),
    "HypCluster(3)": ((82.5, 61.3, 82.2, 61.6), (76.1, 53.5, 72.7, 53.8)),
    "FedDANE": ((40.0, 31.8, 41.7, 31.7), (76.6, 61.8, 75.9, 62.1)),
    "FedProx": ((51.8, 34.2, 52.3, 34.4), (83.4, 60.9, 84.3, 65.2)),
    "FeSEM(2)": ((84.8, 65.5, 84.8, 52.0), (89.1, 64.6, 89.0, 56.0)),
    "FeSEM(3)": ((87.0, 68.5, 86.9, 41.7), (88.1, 64.3, 87.5, 55.9)),
    "FeSEM(4)": ((90.3, 70.6, 91.0, 53.4), (93.6, 74.8, 94.1, 69.5)),
}
BY_EPOCHS = ("FedAvg by epochs", "FeSEM(4) by epochs")  # ours, on unipen62: writers with more data take more steps
STEPS = 13  # of a writer's visit: as many as an epoch takes on average
EPOCHS = 10  # of a person's visit, as in the paper's second version
MANY = ("FedAvg", "Robust(4)", "Clustered", "HypCluster(3)", "FeSEM(2)", "FeSEM(3)", "FeSEM(4)")

# How a client's models are looked at: name -> (section of the page, which methods, where in the summary).
VIEWS: dict[str, tuple[str, Sequence[str], tuple[str, ...]]] = {
    "own center": ("every client under its own center", tuple(PAPER), ("metrics",)),
    "fine-tuned": ("the same after one epoch of local fine-tuning", tuple(PAPER), ("personalised",)),
    "best center": (
        "not a result: for every client the center that does best on its test examples",
        MANY,
        ("optimistic",),
    ),
    "one center": (
        "not a result: one center for everybody, the one that does best on all test examples",
        MANY,
        ("optimistic", "one_center"),
    ),
}

# One budget for all: so many visits of a client.
CLIENTS = {"unipen62": 317, "celeba-smile": 277}
COHORT, ROUNDS = 30, 100
ALONE = 30  # rounds of everybody alone
EVERY = 20  # rounds from one matching by updates to the next

# Learning rates, from the sweeps in sweeps/ on a validation split; methods that are not named have FedAvg's.
RATES: dict[str, dict[str, float]] = {
    "unipen62": {"FedAvg": 0.1, "FedSGD": 0.3, "NoFed": 0.1, "FedDANE": 0.3},
    "celeba-smile": {"FedAvg": 0.03, "FedSGD": 0.1, "NoFed": 0.01, "FedDANE": 0.003},
}


def cell(name: str, data: str) -> dict[str, Any]:
    """The settings of one run, without its seed."""
    rates, writers = RATES[data], data == "unipen62"
    name, _, by_epochs = name.partition(" by ")
    method, _, inside = name.partition("(")
    method = {"Robust": "tkm", "Clustered": "cfl", "HypCluster": "ifca"}.get(method, method.lower())
    own: dict[str, Any] = {"lr": rates.get(name, rates["FedAvg"]), "batch": 20 if writers else 10}
    k, _, matched = inside.rstrip(")").partition(", ")
    own |= {"k": k if k == "auto" else int(k)} if inside else {}
    if method == "fedsgd":
        own["batch"] = 200 if writers else "all"
    elif not by_epochs:
        own |= {"steps": STEPS} if writers else {"epochs": EPOCHS}
    own |= {"select": f"uniform(n={COHORT})"} if method != "nofed" else {}
    rounds = ROUNDS if method != "nofed" else ALONE
    if matched:  # everybody takes part in a matching: they are few, and paid for in rounds
        own |= {"every": EVERY} | ({"warm_up": "none"} if k != "auto" else {})
        rounds = 3 * EVERY
    elif method in ("fesem", "tkm"):  # the first round is of everybody, and paid for in rounds
        own |= {"warm_up": "none"} | ({"match": "distance"} if method == "fesem" else {})  # the paper's
        rounds = 1 + round((ROUNDS * COHORT - CLIENTS[data]) / COHORT)
    named = {"method": method, "data": data, "model": "femnist-cnn" if writers else "celeba-cnn", "rounds": rounds}
    return named | {"evaluate_every": 5 if method == "fesem" else 25, "optimistic": True, "set": own}


def setting(name: str, data: str, view: str = "own center", metric: str = "micro_accuracy") -> str:
    """What a number of this table is called."""
    return f"{name}, {data}, {view}, {metric.replace('_', ' ')}"


def _row(data: str, view: str, name: str, metric: str) -> Row | None:
    title, names, path = VIEWS[view]
    if name not in (*names, *(BY_EPOCHS if data == "unipen62" else ())):
        return None
    at, stand_in = list(STAND_INS).index(data), STAND_INS[data]
    paper = PAPER[name][at][list(METRICS).index(metric)] if name in PAPER else None
    what, where = f"{metric.replace('_', ' ')} in %, {title}", (f"{stand_in}: {title}", name, METRICS[metric])
    measure = at_end(*path, metric, scale=100)
    return Row(setting(name, data, view, metric), cell(name, data), paper, measure, what, stand_in, *where)


# -- claims --------------------------------------------------------------------------------------------------


def lead(values: Values, a: str, b: str) -> list[float]:
    """a - b, seed by seed; empty where there is nothing to compare."""
    pairs = zip(values.get(a, []), values.get(b, []), strict=False)
    return [x - y for x, y in pairs if not math.isnan(x) and not math.isnan(y)]


def shown(found: list[float]) -> str:
    """A difference in words."""
    mean = f"{statistics.fmean(found):+.1f}"
    if len(found) < 2:
        return f"{mean} points (one seed)"
    return f"{mean} ± {error_of(found):.1f} points (mean and standard error, {len(found)} seeds)"


def above(values: Values, a: str, b: str) -> Verdict:
    """Whether a is clearly above b, or below; None in between."""
    found = lead(values, a, b)
    return (clearly(found), shown(found)) if found else (None, MISSING)


def _versus(data: str, a: str, b: str, text: str, view: str = "own center") -> Claim:
    sides = setting(a, data, view), setting(b, data, view)
    return Claim(f"{STAND_INS[data]}{text}", lambda values: above(values, *sides))


def _extreme(data: str, name: str, text: str, pick: Callable[..., str]) -> Claim:
    def judge(values: Values) -> Verdict:
        found = {other: finite(values, setting(other, data)) for other in PAPER}
        if not all(found.values()):
            return None, MISSING
        means = {other: statistics.fmean(numbers) for other, numbers in found.items()}
        best = pick(means, key=means.__getitem__)
        rival = pick((m for m in means if m != name), key=means.__getitem__)
        sides = (name, rival) if pick is max else (rival, name)
        holds, words = above(values, *(setting(side, data) for side in sides))
        return (holds if best == name else False), f"it is {best} here, at {means[best]:.1f}; against {rival}: {words}"

    return Claim(f"{STAND_INS[data]}: {name} has the {text} micro accuracy of all methods.", judge)


def _optimism(data: str) -> Claim:
    def judge(values: Values) -> Verdict:
        views = ("own center", "best center", "one center")
        leads = [lead(values, setting("FeSEM(4)", data, view), setting("FedAvg", data, view)) for view in views]
        if not all(leads):
            return None, MISSING
        own, each, one = leads
        worth = statistics.fmean(each) - statistics.fmean(own)
        return clearly(own), (
            f"under its own center {shown(own)}; with the best center of every client by test labels {shown(each)}, so "
            f"that choice alone is worth {worth:+.1f}; with one center for all {shown(one)}"
        )

    return Claim(f"{STAND_INS[data]}: FeSEM(4)'s lead over FedAvg needs no choice of centers by test labels.", judge)


def _claims(data: str) -> tuple[Claim, ...]:
    return (
        _extreme(data, "FeSEM(4)", "highest", max),
        _versus(data, "FeSEM(4)", "FedAvg", ": FeSEM(4) is above FedAvg in micro accuracy."),
        _versus(data, "FeSEM(4)", "FeSEM(2)", ": four centers are better than two."),
        _versus(data, "FedAvg", "NoFed", ": FedAvg is above training alone."),
        _versus(data, "FeSEM(4)", "FedAvg", ": FeSEM(4) is above FedAvg after fine-tuning, too.", "fine-tuned"),
        _optimism(data),
    )


REFERENCE = "Xie et al., Multi-center federated learning, 2020, https://arxiv.org/abs/2005.01026, {}."

FESEM_TABLE2 = Table(
    name="fesem-table2",
    title="Thirteen methods on two federations",
    reference=REFERENCE.format("Table 2; HypCluster from its second version"),
    data=(
        "stand-ins: unipen62 (317 writers, 62 classes, UNIPEN handwriting) for FEMNIST, and celeba-smile (277 persons, "
        "6,178 images of 32 x 32) for FedCelebA, of which it is a part"
    ),
    what="micro and macro accuracy and F1, in %",
    measure=at_end("metrics", "micro_accuracy", scale=100),
    rows=rows(_row, STAND_INS, VIEWS, (*PAPER, *BY_EPOCHS), METRICS),
    claims=(
        *(claim for data in STAND_INS for claim in _claims(data)),
        _versus("unipen62", "FeSEM(4) by epochs", "FedAvg by epochs", ", by epochs: FeSEM(4) is above FedAvg."),
        _extreme("unipen62", "FedDANE", "lowest", min),
    ),
)

# -- the same with the E-step that lives ---------------------------------------------------------------------

MATCHED = ("FedAvg", "FeSEM(4)", "FeSEM(4, anchored)", "FeSEM(auto, anchored)")


def _matched(data: str, view: str, name: str, work: str, metric: str) -> Row | None:
    if work and data != "unipen62":
        return None
    title, _, path = VIEWS[view]
    what, stand_in = f"{metric.replace('_', ' ')} in %, {title}", STAND_INS[data]
    if metric == "clusters":
        what = "how many centers have clients"
    measure = at_end(*path, metric, scale=1 if metric == "clusters" else 100)
    if metric == "clusters" and (view != "own center" or "FeSEM" not in name):
        return None
    column = METRICS.get(metric, "K")
    where = (f"{stand_in}: {title}", name + work, column)
    setting_ = setting(name + work, data, view, metric)
    return Row(setting_, cell(name + work, data) | {"optimistic": False}, None, measure, what, stand_in, *where)


def _matched_versus(data: str, work: str, view: str) -> list[Claim]:
    how = f"{', by epochs' if work else ''}{', fine-tuned' if view == 'fine-tuned' else ''}"
    pairs = (("FeSEM(4, anchored)", "FeSEM(4)"), ("FeSEM(4, anchored)", "FedAvg"), ("FeSEM(auto, anchored)", "FedAvg"))
    return [_versus(data, a + work, b + work, f"{how}: {a} is above {b} in micro accuracy.", view) for a, b in pairs]


FESEM_MATCHED = Table(
    name="fesem-matched",
    title="Table 2 once more: FeSEM matched by updates from one model",
    reference=REFERENCE.format("Table 2"),
    data=FESEM_TABLE2.data,
    what=(
        "micro and macro accuracy and F1, in %, after as many visits of clients as there (at most 3,000, matchings "
        "included); by steps, and by epochs"
    ),
    measure=FESEM_TABLE2.measure,
    rows=rows(_matched, STAND_INS, ("own center", "fine-tuned"), MATCHED, ("", " by epochs"), (*METRICS, "clusters")),
    claims=tuple(
        claim
        for data in STAND_INS
        for work in (("", " by epochs") if data == "unipen62" else ("",))
        for view in ("own center", "fine-tuned")
        for claim in _matched_versus(data, work, view)
    ),
)
