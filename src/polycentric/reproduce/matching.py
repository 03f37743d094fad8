"""How clients are matched with centers in FeSEM, from good and from bad starts: by distance, by loss, by an anchor."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from ..report.curves import Curves
from ..report.figure import Panel
from .judge import claim_by_seed, clearly, error_of, listed
from .rows import at_end, cell, rows
from .table import Measure, Row, Runs, Table, Verdict, figure

MATCHES = ("distance", "loss", "anchor")
BAD: dict[str, Any] = {"restarts": 1, "seeding": "random", "warm_up": 1}  # one draw of K clients after one epoch
STARTS: dict[str, dict[str, Any]] = {"good start": {}, "bad start": BAD}
SETS: dict[str, dict[str, Any]] = {
    "digits, 4 rotations": {"data": "digits", "partition": "rotations=4", "clients": 40, "model": "mlp", "k": 4},
    "MNIST, 4 rotations": {"data": "mnist", "partition": "rotations=4", "clients": 100, "model": "2nn", "k": 4},
    "MNIST, 2 unequal groups": {
        "data": "mnist",
        "partition": "rotations(k=2, upright=0.8)",
        "clients": 100,
        "model": "2nn",
        "k": 2,
    },
    "handwriting by writer": {"data": "unipen62", "partition": "natural", "model": "mlp", "k": 4},
    "faces by person": {"data": "celeba-smile", "partition": "natural", "model": "mlp", "k": 4},
    "digits without groups": {"data": "digits", "partition": "iid", "clients": 40, "model": "mlp", "k": 4},
}
GROUPED = tuple(SETS)[:3]  # where the true groups are known
ALONE = "one center"
ROUNDS = 30
MEASURES: Mapping[str, Measure] = {
    "ARI": at_end("metrics", "ari"),
    "accuracy": at_end("metrics", "micro_accuracy", scale=100),
    "fine-tuned": at_end("personalised", "micro_accuracy", scale=100),
    "moves": at_end("metrics", "moves"),
    "MB": lambda summary: (summary["bytes_up"] + summary["bytes_down"]) / 1e6,
}


def _name(data: str, start: str, match: str, measure: str) -> str:
    return f"{data}: {start}, {match}: {measure}"


def _training(data: str) -> dict[str, Any]:
    return {"lr": 0.1, "epochs": 2} | ({"batch": 50} if "MNIST" in data else {})


def _row(data: str, start: str, match: str, measure: str) -> Row | None:
    what = dict(SETS[data])
    k, source, model = what.pop("k"), what.pop("data"), what.pop("model")
    if (measure == "ARI" and data not in GROUPED) or (measure == "moves" and match == "loss"):
        return None
    one = start == ALONE
    own = _training(data) | ({"equal": True} if one else {"k": k, "match": match} | STARTS[start])
    method, line = ("fedavg", ALONE) if one else ("fesem", f"{start}, {match}")
    settings = cell(method, source, model, ROUNDS, own, evaluate_every=5, **what) | {"fine_tune": 1}
    setting = _name(data, start, match, measure)
    return Row(setting, settings, None, MEASURES[measure], measure, data, section=data, line=line, column=measure)


def _one(data: str, measure: str) -> Row | None:
    return _row(data, ALONE, "fedavg", measure) if measure not in ("ARI", "moves") else None


def _all_found(data: str, match: str) -> Any:
    def judge(found: dict[str, list[float]]) -> Verdict:
        ari = found["ARI"]
        there = sum(value > 0.99 for value in ari)
        return there >= 0.9 * len(ari), f"{there} of {len(ari)} starts end at an adjusted Rand index of 1"

    text = f"{data}: matched by {match}, nine of ten bad starts end in the true groups."
    return claim_by_seed(text, {"ARI": _name(data, "bad start", match, "ARI")}, judge)


def _better(data: str, start: str, low: str, high: str) -> Any:
    def judge(found: dict[str, list[float]]) -> Verdict:
        gains = [b - a for a, b in zip(found[low], found[high], strict=False)]
        both = {name: statistics.fmean(values) for name, values in found.items()}
        error = f" ± {error_of(gains):.1f}" if len(gains) > 1 else ""
        return clearly(gains), f"{listed(both, '{} {:.1f} %')}: {statistics.fmean(gains):+.1f}{error} points"

    text = f"{data}, {start}: {high} serves clients better than {low}."
    return claim_by_seed(text, {match: _name(data, start, match, "accuracy") for match in (low, high)}, judge)


def _curves(runs: Runs) -> list[list[Panel]]:
    panels: list[Panel] = []
    for data in GROUPED:
        groups = {match: runs[_name(data, "bad start", match, "ARI")] for match in MATCHES}
        panels.append(Curves(groups, "ari", dress={"title": f"{data}, bad starts", "ylabel": "adjusted Rand index"}))
    return [panels]


MATCHING = Table(
    name="matching",
    title="FeSEM: how clients are matched with centers",
    reference=(
        "Distance: Xie et al., Multi-center federated learning, 2020, https://arxiv.org/abs/2005.01026. Loss: Ghosh "
        "et al., An efficient framework for clustered federated learning, 2020, https://arxiv.org/abs/2006.04088."
    ),
    data="named in each section; a bad start is one random clustering after one epoch",
    what="ARI with the true groups, accuracy in use and after one epoch of fine-tuning in %, moves and megabytes",
    measure=MEASURES["accuracy"],
    rows=(
        *rows(_row, SETS, ("good start", "bad start"), MATCHES, MEASURES),
        *rows(_one, SETS, MEASURES),
    ),
    claims=(
        *(_all_found(data, match) for data in GROUPED for match in MATCHES),
        *(_better(data, start, "distance", "anchor") for data in SETS for start in ("good start", "bad start")),
    ),
    seeds=10,
    figures={"matching.png": figure(_curves)},
)
