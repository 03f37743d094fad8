"""FedAvg as meta-learning: accuracy at new clients, before and after they personalise the model.

The table of Jiang et al., 2019: FedAvg(E) for several E and cohorts, then Reptile with Adam, then personalisation;
and a model trained centrally to the same accuracy.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..report.figure import Drawn, Panel, Points, colour
from .judge import claim, listed, reached
from .rows import at_end, cell, rows
from .table import Claim, Measure, Row, Runs, Table, Values, Verdict, figure

ROUNDS = 60  # of FedAvg(E)
REPTILE = 40  # rounds of Reptile after that
EQUAL = 0.75  # test accuracy at which the central model and FedAvg's are compared
EPOCHS = (2, 5, 10, 20)
COHORTS = (5, 20)
BEFORE, AFTER = "initial", "personalised"
BOTH = (BEFORE, AFTER)

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
MISSING = "a row was not run, or a seed did not reach its target"


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


def _steadier(values: Values) -> Verdict:
    """Root mean square over the eight rows of the deviation between seeds."""
    off = {}
    for when in BOTH:
        found = [reached(values, f"{_name(*key)}, {when}") for key in PAPER]
        if any(len(one) < 2 for one in found):
            return None, MISSING
        off[when] = math.sqrt(statistics.fmean([statistics.variance(one) for one in found]))
    if not off[AFTER]:
        return None, "the seeds do not differ"
    ratio = off[BEFORE] / off[AFTER]
    theirs = [math.sqrt(statistics.fmean([row[at] ** 2 for row in PAPER.values()])) for at in (1, 3)]
    return ratio >= 2, (
        f"standard deviation between seeds {off[BEFORE]:.4f} before and {off[AFTER]:.4f} after, "
        f"{ratio:.1f} times; {theirs[0]:.4f} and {theirs[1]:.4f} in the paper, {theirs[0] / theirs[1]:.1f} times"
    )


def _up_to_a_point(cohort: int) -> Claim:
    def judge(found: dict[int, float]) -> Verdict:
        best = max(found, key=lambda epochs: found[epochs])
        paper = max(EPOCHS, key=lambda epochs: PAPER[cohort, epochs][2])
        shown = f"{listed(found, 'E={} {:.4f}')}: best with E={best}, with E={paper} in the paper"
        return min(EPOCHS) < best < max(EPOCHS), shown

    text = f"{cohort} clients a round: a larger E helps personalised accuracy up to a point."
    return claim(text, {epochs: f"{_name(cohort, epochs)}, {AFTER}" for epochs in EPOCHS}, judge, MISSING)


def _higher(better: str, worse: str, when: Sequence[str], text: str) -> Claim:
    def judge(found: dict[tuple[str, str], float]) -> Verdict:
        shown = ", ".join(f"{w} {found[better, w]:.4f} against {found[worse, w]:.4f}" for w in BOTH)
        return all(found[better, w] > found[worse, w] for w in when), shown

    return claim(text, {(name, w): f"{name}, {w}" for name in (better, worse) for w in BOTH}, judge, MISSING)


def _by_epochs(runs: Runs) -> Points:
    lines = {
        f"{cohort} clients a round, {when}": {
            float(epochs): [x for x in runs.numbers(f"{_name(cohort, epochs)}, {when}") if not math.isnan(x)]
            for epochs in EPOCHS
        }
        for cohort in COHORTS
        for when in BOTH
    }
    number = {label: COHORTS.index(int(label.split()[0])) for label in lines}
    return Points(
        lines,
        style=lambda label: {"number": number[label], "linestyle": "--" if label.endswith(BEFORE) else "-"},
        dress={"xscale": "log", "xlabel": "E", "ylabel": "accuracy at clients held out"},
    )


def _writers(runs: Runs) -> Drawn:
    """Every client of one run, before and after."""
    shown = next((name for name in (_name(20, 5), *RUNS) if runs[f"{name}, {AFTER}"]), "")

    def draw(axis: Any) -> None:
        with (Path(runs.first(f"{shown}, {AFTER}")) / "clients.csv").open(encoding="utf-8") as file:
            lines = [row for row in csv.DictReader(file) if row["accuracy_in_use"] and row["accuracy_personalised"]]
        before, after = ([float(row[f"accuracy_{when}"]) for row in lines] for when in ("in_use", "personalised"))
        area = [6 + float(row["test_examples"]) / 8 for row in lines]
        axis.scatter(before, after, s=area, alpha=0.4, linewidth=0, color=colour(2))
        axis.axline((0, 0), slope=1, color="#999999", linewidth=0.8)
        axis.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel="initial accuracy", ylabel="personalised accuracy")
        axis.set_title(f"every writer, {shown}, one seed")

    return Drawn(draw, bool(shown))


def _panels(runs: Runs) -> list[list[Panel]]:
    return [[_by_epochs(runs), _writers(runs)]]


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
        Claim(
            "Accuracy varies far less between seeds after personalisation than before (at least two times).", _steadier
        ),
        *(_up_to_a_point(cohort) for cohort in COHORTS),
        _higher(
            TUNED,
            _name(20, 5),
            (BEFORE, AFTER),
            "Reptile with Adam improves initial and personalised accuracy of the model it starts from.",
        ),
        _higher(TUNED, CONTINUED, BOTH, "It does so more than as many further rounds of FedAvg."),
        _higher(
            ALIKE, CENTRAL, (AFTER,), "A centrally trained model of equal accuracy personalises worse than FedAvg's."
        ),
    ),
    figures=(
        figure(
            "meta.png",
            "Left: mean accuracy of the writers held out, before and after 5 epochs of their own, with one standard "
            "deviation over the seeds. Right: all writers of one run; the area grows with their test examples.",
            _panels,
        ),
    ),
    notes=(
        "FedAvg(E): batches of 20, clients' lr 0.02, momentum 0.9 at the center, the FEMNIST net (two convolutions, "
        "dense 248). These settings follow an open implementation of the paper; nothing was tuned here.",
        f"{ROUNDS} rounds, where that implementation has 500: with 20 clients a round a writer takes part 5 times on "
        "average, there 4 times (20 of 2,500). The center takes far fewer steps than there.",
        "Personalised: 5 epochs on the client's own training examples with the clients' lr and batches, scored on its "
        "test examples. Every client counts the same.",
        "Reptile: 10 steps at every client, Adam(lr 0.001, eps 1e-5) at the center, not tuned.",
        "Trained centrally: every round one step on 20 examples each of 20 writers drawn anew, weighed by their data, "
        "momentum 0.9 at the center. A mean of single steps is a step on the mean loss: nobody drifts, so this is SGD "
        "on the pooled data in batches of 400, with a rate of 0.04.",
        f"The central model and FedAvg's to compare it with stop at the first evaluation (every 5 steps; every round) "
        f"at which accuracy over all test examples of the writers that train is {100 * EQUAL:.0f} %.",
    ),
)
