"""Two of eleven clients attack in sixteen ways: which rules hold where clients' data are alike or differ."""

from __future__ import annotations

import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

from ..report.figure import Drawn, Panel, heat
from ..runs.grid import finished, run_cells
from ..runs.settings import Settings
from .judge import MISSING, claim_by_seed, clearly, every
from .rows import at_end, cell, rows
from .table import Claim, Row, Runs, Table, Verdict, figure

CLIENTS, SHARE, POINTS, SEEDS = 11, 0.2, 3.0, 3
CLEAN, MEAN, BEST = "no attack", "mean", "clipping(nnm), inertia"
PARTITIONS = {"IID": "iid", "Dirichlet(0.3)": "dirichlet=0.3"}
TRAINING: dict[str, Any] = {"lr": 1.0, "decay": 0.98, "batch": 20, "steps": 8, "equal": True}
INERTIA: dict[str, Any] = {"inertia": 0.9}
RULES: dict[str, dict[str, Any]] = {
    MEAN: {},
    "trimmed mean": {"aggregate": "trimmed-mean(beta=0.2)"},
    "median": {"aggregate": "median"},
    "geometric median": {"aggregate": "geometric-median"},
    "Krum": {"aggregate": "krum(attackers=0.2)"},
    "nnm(trimmed mean)": {"aggregate": "nnm(trimmed-mean(beta=0.2))"},
    "bucketing(median)": {"aggregate": "bucketing(median)"},
    "clipping, inertia": {"aggregate": "clipping"} | INERTIA,
    BEST: {"aggregate": "clipping(nnm(trimmed-mean(beta=0.2)))"} | INERTIA,
}
ATTACKS = {
    CLEAN: "honest()",
    "NaN": "nan()",
    "idle": "sign-flip(scale=0)",
    "sign flip 1": "sign-flip(scale=1)",
    "sign flip 3": "sign-flip(scale=3)",
    "sign flip 10": "sign-flip(scale=10)",
    "noise 10": "large-norm(scale=10)",
    "ones": "same-value(value=1)",
    "zeros": "zeros()",
    "labels": "label-flip()",
    "ALIE 1.5": "alie(z=1.5)",
    "ALIE 4": "alie(z=4)",
    "IPM 0.5": "ipm(eps=0.5)",
    "IPM 5": "ipm(eps=5)",
    "stale": "stale()",
    "one number": "one-coordinate()",
    "collusion": "collusion(scale=3)",
}
ROUNDS = 100
ACCURACY = at_end("metrics", "micro_accuracy", scale=100)


def _name(partition: str, rule: str, attack: str) -> str:
    return f"{partition}, {rule}: {attack}"


def _settings(partition: str, rule: str, attack: str) -> dict[str, Any]:
    words = ATTACKS[attack].replace("(", f"(share={SHARE}, ").replace(", )", ")")
    own, more = TRAINING | RULES[rule], {"partition": PARTITIONS[partition], "clients": CLIENTS, "attack": words}
    return cell("fedavg", "digits", "mlp", ROUNDS, own, evaluate_every=ROUNDS, **more)


def _row(partition: str, rule: str, attack: str) -> Row:
    where: dict[str, Any] = {"section": partition, "line": rule, "column": attack}
    return Row(_name(partition, rule, attack), _settings(partition, rule, attack), **where)


def held(partition: str = "Dirichlet(0.3)", rule: str = BEST, seed: int = 0) -> int:
    """How many of the 16 attacks a rule holds with one seed: within 3 points of the mean that nobody attacks."""
    cells = {
        (line, attack): Settings.of({**_settings(partition, line, attack), "seed": seed, "device": "cpu"})
        for line, attack in ((MEAN, CLEAN), *((rule, attack) for attack in ATTACKS if attack != CLEAN))
    }
    with tempfile.TemporaryDirectory() as home:
        run_cells(list(cells.values()), Path(home))
        accuracy = {key: ACCURACY(finished(each, Path(home)) or {}) for key, each in cells.items()}
    return _held(accuracy.pop((MEAN, CLEAN)), list(accuracy.values()))


def _held(clean: float, attacked: list[float]) -> int:
    return sum(accuracy >= clean - POINTS for accuracy in attacked)


def _counts(found: dict[str, list[float]]) -> list[int]:
    """Of every seed: how many attacks hold; `found` has the clean mean and the attacked rule."""
    attacked = [values for attack, values in found.items() if attack != CLEAN]
    return [_held(clean, list(each)) for clean, *each in zip(found[CLEAN], *attacked, strict=False)]


def _holds(partition: str, rule: str) -> Claim:
    def judge(found: dict[str, list[float]]) -> Verdict:
        if any(map(math.isnan, found[CLEAN])):
            return None, MISSING
        seeds = min(map(len, found.values()))  # those that all rows have
        means = {attack: statistics.fmean(values[:seeds]) for attack, values in found.items()}
        clean, attacks = means.pop(CLEAN), len(ATTACKS) - 1
        said = f"{_held(clean, list(means.values()))} of {attacks} on average over seeds"
        said += f", {', '.join(map(str, _counts(found)))} by seed"
        sure = {attack: _within(found[CLEAN], found[attack]) for attack in means}
        beyond = [attack for attack, within in sure.items() if within is False]
        said += f"; clearly within {list(sure.values()).count(True)}, clearly beyond {len(beyond)}"
        lost = {attack: math.inf if math.isnan(each) else clean - each for attack, each in means.items()}
        worst = max(lost, key=lambda attack: lost[attack])
        most = f"most points are lost under {worst}: {lost[worst]:.1f}"
        return every(sure.values()), f"{said}; {most if lost[worst] < math.inf else f'it diverges under {worst}'}"

    settings = {CLEAN: _name(partition, MEAN, CLEAN)}
    settings |= {attack: _name(partition, rule, attack) for attack in ATTACKS if attack != CLEAN}
    text = f"{partition}, {rule}: within {POINTS:g} points of the mean that nobody attacks, under every attack."
    return claim_by_seed(text, settings, judge, lambda values, setting: values.get(setting) or [])


def _within(clean: list[float], attacked: list[float]) -> bool | None:
    """Whether a rule clearly loses less than 3 points, or more, seed by seed; one that diverges in all has lost."""
    if all(map(math.isnan, attacked)):
        return False
    return clearly([POINTS - (before - after) for before, after in zip(clean, attacked, strict=False)])


def _lost(runs: Runs, partition: str) -> Panel:
    """Points lost against the mean that nobody attacks, on average over seeds."""

    def lost(rule: str, attack: str) -> float:
        clean, attacked = (runs.numbers(_name(partition, *which)) for which in ((MEAN, CLEAN), (rule, attack)))
        found = [before - after for before, after in zip(clean, attacked, strict=False)]
        return statistics.fmean(found or [math.nan])

    table = [[lost(rule, attack) for attack in ATTACKS] for rule in RULES]

    def draw(axis: Any) -> None:
        image = heat(axis, table, (0.0, 10.0), "viridis_r")
        axis.set_xticks(range(len(ATTACKS)), list(ATTACKS), rotation=90)
        axis.set_yticks(range(len(RULES)), list(RULES))
        axis.figure.colorbar(image, ax=axis, shrink=0.4, label="points lost")

    there = not all(math.isnan(number) for line in table for number in line)
    return Drawn(draw, there, dress={"title": partition})


HOSTILE = Table(
    name="hostile",
    title="Two of eleven clients attack, in sixteen ways",
    reference=(
        "Nearest-neighbour mixing: Allouah et al., Fixing by mixing, 2023, https://arxiv.org/abs/2302.01772. "
        "Bucketing: Karimireddy et al., 2022, https://arxiv.org/abs/2006.09365. Clipping, momentum of clients: "
        "Karimireddy et al., 2021, https://arxiv.org/abs/2012.10333. The settings are ours."
    ),
    data=f"scikit-learn's digits, {CLIENTS} clients, dealt alike (IID) or by Dirichlet(0.3); a dense net of 128 units",
    what="accuracy of the nine honest clients in %",
    measure=ACCURACY,
    rows=rows(_row, PARTITIONS, RULES, ATTACKS),
    claims=tuple(_holds(partition, rule) for partition in PARTITIONS for rule in RULES),
    seeds=SEEDS,
    figures={"hostile.png": figure(lambda runs: [[_lost(runs, partition)] for partition in PARTITIONS])},
)
