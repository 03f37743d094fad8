"""How many centers FeSEM finds with k="auto": where the groups are known, where there are none, and what it pays."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from ..report.curves import Curves
from ..report.figure import Panel
from .judge import claim_by_seed, clearly, error_of, listed
from .rows import at_end, cell, rows
from .table import Measure, Row, Runs, Table, Verdict, figure

GROUPS = (1, 2, 3, 4, 5, 6, 8)
DIGITS: dict[str, Any] = {"data": "digits", "clients": 40, "model": "mlp"}
MNIST: dict[str, Any] = {"data": "mnist", "clients": 100, "model": "2nn"}
KNOWN: dict[str, tuple[dict[str, Any], int]] = {  # a federation, and how many groups it has
    **{f"digits, {g} rotations": (DIGITS | {"partition": f"rotations={g}"}, g) for g in GROUPS[1:]},
    "digits, IID": (DIGITS | {"partition": "iid"}, 1),
    "digits, groups of 32 and 8": (DIGITS | {"partition": "rotations(k=2, upright=0.8)"}, 2),
    "MNIST, IID": (MNIST | {"partition": "iid"}, 1),
    "MNIST, groups of 80 and 20": (MNIST | {"partition": "rotations(k=2, upright=0.8)"}, 2),
    "MNIST, 4 rotations": (MNIST | {"partition": "rotations=4"}, 4),
}
UNKNOWN: dict[str, dict[str, Any]] = {  # clients that are unlike, in groups that nobody knows or that are not there
    **{f"digits, Dirichlet({a})": DIGITS | {"partition": f"dirichlet={a}"} for a in (1, 0.3, 0.1)},
    "digits, two classes each": DIGITS | {"partition": "classes=2"},
    "MNIST, Dirichlet(0.3)": MNIST | {"partition": "dirichlet=0.3"},
    "handwriting by writer": {"data": "unipen62", "partition": "natural", "model": "mlp"},
    "faces by person": {"data": "celeba-smile", "partition": "natural", "model": "mlp"},
}
SETS = {name: what for name, (what, _) in KNOWN.items()} | UNKNOWN
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "one center": ("fedavg", {"equal": True}),
    "as many as found": ("fesem", {"k": "auto"}),
    "four centers": ("fesem", {"k": 4}),
}
ROUNDS = 30
MEASURES: Mapping[str, Measure] = {
    "K": at_end("metrics", "clusters"),
    "ARI": at_end("metrics", "ari"),
    "accuracy": at_end("metrics", "micro_accuracy", scale=100),
    "fine-tuned": at_end("personalised", "micro_accuracy", scale=100),
    "MB": lambda summary: (summary["bytes_up"] + summary["bytes_down"]) / 1e6,
}


def _name(data: str, method: str, measure: str) -> str:
    return f"{data}: {method}: {measure}"


def _row(data: str, method: str, measure: str) -> Row | None:
    what = dict(SETS[data])
    grouped = KNOWN.get(data, ({}, 1))[1] > 1
    if (measure == "ARI" and not grouped) or (method == "one center" and measure in ("K", "ARI")):
        return None
    name, own = METHODS[method]
    training: dict[str, Any] = {"lr": 0.1, "epochs": 2} | ({"batch": 50} if "MNIST" in data else {})
    settings = cell(name, what.pop("data"), what.pop("model"), ROUNDS, training | own, evaluate_every=5, **what)
    where = {"section": data, "line": method, "column": measure}
    return Row(
        _name(data, method, measure), settings | {"fine_tune": 1}, None, MEASURES[measure], measure, data, **where
    )


def _counted(data: str, k: int) -> Any:
    def judge(found: dict[str, list[float]]) -> Verdict:
        right = sum(value == k for value in found["K"])
        return right >= 0.9 * len(
            found["K"]
        ), f"{right} of {len(found['K'])} seeds; found {sorted(map(int, found['K']))}"

    text = f"{data}: as many centers are found as there are groups, {k}, in nine of ten seeds."
    return claim_by_seed(text, {"K": _name(data, "as many as found", "K")}, judge)


def _pays(data: str) -> Any:
    def judge(found: dict[str, list[float]]) -> Verdict:
        one, found_ = found["one center"], found["as many as found"]
        gains = [b - a for a, b in zip(one, found_, strict=False)]
        told = f"{listed({name: statistics.fmean(v) for name, v in found.items()}, '{} {:.1f} %')}"
        error = f" ± {error_of(gains):.1f}" if len(gains) > 1 else ""
        worse = clearly(gains) is False
        return not worse, f"{told}: {statistics.fmean(gains):+.1f}{error} points"

    text = f"{data}: as many centers as are found serve clients no worse than one."
    names = ("one center", "as many as found")
    return claim_by_seed(text, {method: _name(data, method, "accuracy") for method in names}, judge)


def _curves(runs: Runs) -> list[list[Panel]]:
    groups = {name: runs[_name(name, "as many as found", "K")] for name in SETS}
    known = {name.removeprefix("digits, "): groups[name] for name in list(KNOWN)[: len(GROUPS)]}
    unknown = {name: groups[name] for name in UNKNOWN}
    dress = {"ylabel": "centers"}
    return [[
        Curves(known, "clusters", dress=dress | {"title": "digits in known groups"}),
        Curves(unknown, "clusters", dress=dress | {"title": "clients unlike, groups not known"}),
    ]]  # fmt: skip


HOW_MANY = Table(
    name="how-many",
    title="FeSEM: how many centers are found, and whether they pay",
    reference=(
        "Ours: centers are counted by what clients learn on two halves of their examples; see docs/methods/fesem.md. "
        "FeSEM: Xie et al., Multi-center federated learning, 2020, https://arxiv.org/abs/2005.01026."
    ),
    data="named in each section; groups are rotations of all of a client's images",
    what="centers found, ARI with the true groups, accuracy in use and after one epoch of fine-tuning in %, megabytes",
    measure=MEASURES["accuracy"],
    rows=rows(_row, SETS, METHODS, MEASURES),
    claims=(*(_counted(data, k) for data, (_, k) in KNOWN.items()), *(_pays(data) for data in SETS)),
    seeds=10,
    figures={"how-many.png": figure(_curves)},
)
