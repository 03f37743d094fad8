"""Gate: what noise costs a general model, and what a private one beside it saves, client by client."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..report.figure import Points
from .judge import as_good, claim, claim_by_seed, every, less, listed, means_of
from .rows import at_end, cell, clients_of, rows
from .table import Claim, Measure, Row, Runs, Table, Verdict, figure

Found = dict[tuple[str, int], list[float]]  # by kind and noise: every seed's score
NOISES = (0, 2, 4)  # the paper's: none, low, high
CLIP = 1.0
KINDS = GENERAL, PRIVATE, BOTH = "general only (DP-FL)", "private only", "mixture"
GAIN = "clients that the mixture serves no worse than the general model, %"


@dataclass(frozen=True)
class Data:
    """Data, the general model (the private one is linear), and how both are trained: 5 steps of 32 in a round."""

    run: Mapping[str, Any]
    rounds: int
    lr: float
    private_lr: float
    numbers: bool = False  # to predict, not classes

    @property
    def score(self) -> Measure:
        """Accuracy in %, or the root of the mean squared error; every client counts the same."""
        return at_end("metrics", "macro_rmse") if self.numbers else at_end("metrics", "macro_accuracy", scale=100)

    @property
    def what(self) -> str:
        """What that is."""
        return "root mean squared error" if self.numbers else "accuracy in %"


# Learning rates: the best without noise of 0.1, 0.3 and 1, on a fifth of the training examples after 100 rounds (two
# Gaussians) and 40 (sensors); of handwriting none were tried. Noise does not change them.
SETS: dict[str, Data] = {
    "two Gaussians": Data({"data": "domains(2)", "model": "mlp"}, 100, 0.1, 0.1, numbers=True),
    "sensors by subject": Data({"data": "features(har)", "model": "mlp", "partition": "natural"}, 100, 1.0, 0.3),
    "handwriting by writer": Data({"data": "unipen62", "model": "mlp", "partition": "natural"}, 100, 0.3, 0.1),
}


def _run(data: Data, kind: str, noise: int) -> dict[str, Any]:
    hide = f"dp-sgd(clip={CLIP:g}, noise={noise})"
    training: dict[str, Any] = {"batch": 32, "steps": 5}
    what = dict(data.run)
    name, model = what.pop("data"), what.pop("model")
    own: dict[str, tuple[str, str, dict[str, Any]]] = {
        GENERAL: ("fedavg", model, {"lr": data.lr, "hide": hide}),
        PRIVATE: ("nofed", "logistic", {"lr": data.private_lr}),
        BOTH: ("gate", model, {"lr": data.lr, "hide": hide, "private": "logistic", "private_lr": data.private_lr}),
    }
    method, model, more = own[kind]
    return cell(method, name, model, data.rounds, training | more, evaluate_every=20, **what)


def no_worse(summary: dict[str, Any]) -> float:
    """The share of clients, in %, whose mixture does at least as well as the general model, which is DP-FL's."""
    served = []
    for row in clients_of(summary["run_dir"]):
        if row.get("accuracy_general_in_use"):
            served.append(float(row["accuracy_in_use"]) >= float(row["accuracy_general_in_use"]))
        elif row.get("rmse_general_in_use"):
            served.append(float(row["rmse_in_use"]) <= float(row["rmse_general_in_use"]))
    return 100 * sum(served) / len(served) if served else math.nan


def _name(data: str, kind: str, noise: int) -> str:
    return f"{data}: {kind}: noise {noise}"


def _row(data: str, kind: str, noise: int) -> Row:
    where = {"section": f"{data}, {SETS[data].what}", "line": kind, "column": f"noise {noise}"}
    own = SETS[data]
    if kind == GAIN:
        return Row(_name(data, kind, noise), _run(own, BOTH, noise), None, no_worse, kind, data, **where)
    return Row(_name(data, kind, noise), _run(own, kind, noise), None, own.score, own.what, data, **where)


def _costs(data: str, found: Found, kind: str) -> list[float]:
    """What the high noise costs, seed by seed: in points of accuracy, or in units of error."""
    sign = 1 if SETS[data].numbers else -1
    return [sign * (high - low) for low, high in zip(found[kind, NOISES[0]], found[kind, NOISES[-1]], strict=False)]


def _claims(data: str) -> tuple[Claim, ...]:
    numbers = SETS[data].numbers
    of = {(kind, noise): _name(data, kind, noise) for kind in KINDS for noise in NOISES}
    form = "{} {:.2f}" if numbers else "{} {:.1f} %"

    def told(found: Found, kind: str) -> str:
        return listed({f"noise {z}": statistics.fmean(found[kind, z]) for z in NOISES}, form)

    def drops(found: Found) -> Verdict:
        least = [first / 2 if numbers else 10.0 for first in found[GENERAL, NOISES[0]]]
        return less(least, _costs(data, found, GENERAL)), told(found, GENERAL)

    def little(found: Found) -> Verdict:
        mixture, general = _costs(data, found, BOTH), _costs(data, found, GENERAL)
        holds = every([less([0.0] * len(general), general), less(mixture, [cost / 5 for cost in general])])
        lost = f"it loses {statistics.fmean(mixture):.2f}, DP-FL {statistics.fmean(general):.2f}"
        return holds, f"{told(found, BOTH)}; {lost}"

    def best(found: Found) -> Verdict:
        sign = -1 if numbers else 1
        scores = {key: [sign * x for x in seeds] for key, seeds in found.items()}
        better = [as_good(scores[BOTH, z], scores[kind, z]) for z in NOISES for kind in (GENERAL, PRIVATE)]
        means = means_of(found)
        shown = {f"noise {z}": "/".join(f"{means[kind, z]:.2f}" for kind in KINDS) for z in NOISES}
        return every(better), f"{listed(shown, '{} {}')} (general, private, mixture)"

    def everybody(found: dict[int, float]) -> Verdict:
        return all(share == 100 for share in found.values()), listed(found, "noise {} {:.1f} %")

    much = "by half its error" if numbers else "by 10 points"
    gains = {noise: _name(data, GAIN, noise) for noise in NOISES}
    return (
        claim_by_seed(f"{data}: DP-FL gets much worse from noise 0 to 4, at least {much}.", of, drops),
        claim_by_seed(f"{data}: the mixture loses at most a fifth of that.", of, little),
        claim_by_seed(f"{data}: at every noise the mixture is at least as good as either model alone.", of, best),
        claim(f"{data}: no client is served worse by the mixture than by DP-FL.", gains, everybody),
    )


def _over_noise(runs: Runs, data: str) -> Points:
    lines = {
        kind: {
            float(noise): [x for x in runs.numbers(_name(data, kind, noise)) if not math.isnan(x)] for noise in NOISES
        }
        for kind in KINDS
    }
    return Points(lines, dress={"title": data, "xlabel": "noise multiplier", "ylabel": SETS[data].what})


GATE_TABLE = Table(
    name="gate",
    title="Gate: a private model beside one that is trained under noise",
    reference=(
        "Peterson, Kanani, Marathe, Private federated learning with domain adaptation, 2019, "
        "https://arxiv.org/abs/1912.06733 (two Gaussians, and the spam filters of the ECML-PKDD challenge of 2006)."
    ),
    data=(
        "two clients that see one curved function from two sides (made by a formula), the activities of 30 subjects "
        "(har, 119 features of ours) and the handwriting of 317 writers (unipen62). The paper's mails are not here: "
        "compare orderings only"
    ),
    what="score of every client's own test examples, the mean of the clients",
    measure=at_end("metrics", "macro_accuracy", scale=100),
    rows=rows(_row, SETS, (*KINDS, GAIN), NOISES),
    claims=tuple(one for data in SETS for one in _claims(data)),
    seeds=3,
    figures={"gate.png": figure(lambda runs: [[_over_noise(runs, data) for data in SETS]])},
)
