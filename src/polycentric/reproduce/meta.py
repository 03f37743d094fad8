"""FedAvg as meta-learning: accuracy at new clients, before and after they personalise the model."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from ..report.figure import Drawn, Points, colour
from .judge import claim, claim_by_seed, listed
from .rows import at_end, cell, clients_of, rows
from .table import Claim, Measure, Row, Runs, Table, Verdict, figure

ROUNDS, REPTILE = 60, 40  # of FedAvg(E), and of Reptile after that
EQUAL = 0.75  # test accuracy at which the central model and FedAvg's are compared
EPOCHS, COHORTS = (2, 5, 10, 20), (5, 20)
BOTH = BEFORE, AFTER = "initial", "personalised"

# (clients a round, E) -> the paper's initial and personalised accuracy, with their standard deviations
PAPER: dict[tuple[int, int], tuple[float, float, float, float]] = {
    (5, 2): (0.7473, 0.0260, 0.8292, 0.0061),
    (5, 5): (0.8028, 0.0512, 0.8712, 0.0049),
    (5, 10): (0.7879, 0.0316, 0.8820, 0.0023),
    (5, 20): (0.7430, 0.0309, 0.8782, 0.0021),
    (20, 2): (0.8403, 0.0173, 0.8957, 0.0011),
    (20, 5): (0.8471, 0.0084, 0.9057, 0.0017),
    (20, 10): (0.8480, 0.0036, 0.9032, 0.0017),
    (20, 20): (0.8391, 0.0081, 0.8953, 0.0022),
}
MOMENTUM = "momentum(lr=1, beta=0.9)"


def _run(rounds: int, own: dict[str, Any], cohort: int = 20, method: str = "fedavg", every: int = 10) -> dict[str, Any]:
    center = {"center": MOMENTUM} if method == "fedavg" else {"first": MOMENTUM, "second": "adam(lr=0.001, eps=1e-5)"}
    own = {"select": f"uniform(n={cohort})", "lr": 0.02, "batch": 20} | center | own
    more: dict[str, Any] = {"evaluate_every": every, "fine_tune": 5, "held_out": 0.25, "held_out_seed": 0}
    return cell(method, "unipen62", "femnist-cnn", rounds, own, **more)


def _name(cohort: int, epochs: int) -> str:
    return f"{cohort} clients, E={epochs}"


CONTINUED = f"20 clients, E=5, {REPTILE} rounds more"
TUNED = f"20 clients, E=5, then {REPTILE} rounds of Reptile with Adam"
CENTRAL = f"trained centrally to {100 * EQUAL:.0f} %"
ALIKE = f"20 clients, E=5, to {100 * EQUAL:.0f} %"
RUNS = {_name(cohort, epochs): _run(ROUNDS, {"epochs": epochs}, cohort) for cohort, epochs in PAPER} | {
    CONTINUED: _run(ROUNDS + REPTILE, {"epochs": 5}),
    TUNED: _run(ROUNDS + REPTILE, {"rounds": ROUNDS, "epochs": 5, "steps": 10}, method="meta"),
    ALIKE: _run(200, {"epochs": 5}, every=1) | {"target": EQUAL},
    CENTRAL: _run(4000, {"steps": 1, "center": "momentum(lr=2, beta=0.9)"}, every=5) | {"target": EQUAL},
}


def _accuracy(when: str, target: bool = False) -> Measure:
    """The mean accuracy of the clients held out, each counted the same; of runs that reached their target, if any."""
    accuracy = at_end("held_out", "in_use" if when == BEFORE else "personalised", "macro_accuracy")
    return lambda summary: math.nan if target and summary["rounds_to_target"] is None else accuracy(summary)


def _rows(name: str) -> Iterator[Row]:
    paper = {_name(*key): (before, after) for key, (before, _, after, _) in PAPER.items()}.get(name, (None, None))
    for when, number in zip(BOTH, paper, strict=True):
        measure = _accuracy(when, "target" in RUNS[name])
        yield Row(f"{name}, {when}", RUNS[name], number, measure, f"{when} accuracy at clients held out")


def _rms(deviations: Sequence[float]) -> float:
    return math.sqrt(statistics.fmean(x * x for x in deviations))


def _steadier(found: dict[tuple[str, tuple[int, int]], list[float]]) -> Verdict:
    """Root mean square over the eight rows of the deviation between seeds."""
    before, after = (_rms([statistics.stdev(found[when, key]) for key in PAPER]) for when in BOTH)
    if not after:
        return None, "the seeds do not differ"
    first, last = (_rms([row[at] for row in PAPER.values()]) for at in (1, 3))
    return before / after >= 2, (
        f"standard deviation between seeds {before:.4f} before and {after:.4f} after, {before / after:.1f} times; "
        f"{first:.4f} and {last:.4f} in the paper, {first / last:.1f} times"
    )


def _up_to_a_point(cohort: int) -> Claim:
    def judge(found: dict[int, float]) -> Verdict:
        best = max(found, key=lambda epochs: found[epochs])
        paper = max(EPOCHS, key=lambda epochs: PAPER[cohort, epochs][2])
        shown = f"{listed(found, 'E={} {:.4f}')}: best with E={best}, with E={paper} in the paper"
        return min(EPOCHS) < best < max(EPOCHS), shown

    text = f"{cohort} clients a round: a larger E helps personalised accuracy up to a point."
    return claim(text, {epochs: f"{_name(cohort, epochs)}, {AFTER}" for epochs in EPOCHS}, judge)


def _higher(text: str, better: str, worse: str, when: Sequence[str] = BOTH) -> Claim:
    def judge(found: dict[tuple[str, str], float]) -> Verdict:
        shown = ", ".join(f"{w} {found[better, w]:.4f} against {found[worse, w]:.4f}" for w in BOTH)
        return all(found[better, w] > found[worse, w] for w in when), shown

    return claim(text, {(name, w): f"{name}, {w}" for name in (better, worse) for w in BOTH}, judge)


def _by_epochs(runs: Runs) -> Points:
    lines, style = {}, {}
    for cohort, when in itertools.product(COHORTS, BOTH):
        numbers = {epochs: runs.numbers(f"{_name(cohort, epochs)}, {when}") for epochs in EPOCHS}
        label = f"{cohort} clients a round, {when}"
        lines[label] = {float(epochs): [x for x in mine if not math.isnan(x)] for epochs, mine in numbers.items()}
        style[label] = {"number": COHORTS.index(cohort), "linestyle": "--" if when == BEFORE else "-"}
    return Points(
        lines,
        style=style.__getitem__,
        dress={"xscale": "log", "xlabel": "E", "ylabel": "accuracy at clients held out"},
    )


def _writers(runs: Runs) -> Drawn:
    """Every client of one run, before and after."""
    shown = next((name for name in (_name(20, 5), *RUNS) if runs[f"{name}, {AFTER}"]), "")

    def draw(axis: Any) -> None:
        found = clients_of(runs.first(f"{shown}, {AFTER}"))
        lines = [row for row in found if row["accuracy_in_use"] and row["accuracy_personalised"]]
        before, after = ([float(row[f"accuracy_{when}"]) for row in lines] for when in ("in_use", "personalised"))
        area = [6 + float(row["test_examples"]) / 8 for row in lines]
        axis.scatter(before, after, s=area, alpha=0.4, linewidth=0, color=colour(2))
        axis.axline((0, 0), slope=1, color="#999999", linewidth=0.8)

    dress = {"xlim": (0, 1.02), "ylim": (0, 1.02), "xlabel": "initial accuracy", "ylabel": "personalised accuracy"}
    return Drawn(draw, bool(shown), dress | {"title": f"every writer, {shown}, one seed"})


META = Table(
    name="meta",
    title="FedAvg as meta-learning: initial and personalised accuracy",
    reference=(
        "Jiang et al., Improving federated learning personalization via model agnostic meta learning, 2019, "
        "https://arxiv.org/abs/1909.12488 (EMNIST-62, 3,400 writers)."
    ),
    data=(
        "unipen62, handwriting of 317 writers in the place of EMNIST-62; a quarter of the writers, the same for all "
        "seeds, are held out of training and scored. The paper's accuracies are of other data: compare orderings only"
    ),
    what="mean accuracy of the clients held out",
    measure=_accuracy(BEFORE),
    rows=rows(_rows, RUNS),
    claims=(
        claim_by_seed(
            "Accuracy varies far less between seeds after personalisation than before (at least two times).",
            {(when, key): f"{_name(*key)}, {when}" for when in BOTH for key in PAPER},
            _steadier,
            least=2,
        ),
        *map(_up_to_a_point, COHORTS),
        _higher(
            "Reptile with Adam improves initial and personalised accuracy of the model it starts from.",
            TUNED,
            _name(20, 5),
        ),
        _higher("It does so more than as many further rounds of FedAvg.", TUNED, CONTINUED),
        _higher(
            "A centrally trained model of equal accuracy personalises worse than FedAvg's.", ALIKE, CENTRAL, [AFTER]
        ),
    ),
    figures={
        "meta.png": figure(lambda runs: [[_by_epochs(runs), _writers(runs)]]),
    },
)
