"""FedAvg as meta-learning: accuracy at new clients, before and after they personalise the model.

The table of Jiang et al., 2019: FedAvg(E) for several E and cohorts, then Reptile with Adam, then personalisation;
and a model trained centrally to the same accuracy.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..report.figure import colour, panels
from .table import Claim, Measure, Row, Table, Values

ROUNDS = 60  # of FedAvg(E)
REPTILE = 40  # rounds of Reptile after that
EQUAL = 0.75  # test accuracy at which the central model and FedAvg's are compared
EPOCHS = (2, 5, 10, 20)
COHORTS = (5, 20)
BEFORE, AFTER = "initial", "personalised"

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
CONTINUED = f"20 clients, E=5, {REPTILE} rounds more"
TUNED = f"20 clients, E=5, then {REPTILE} rounds of Reptile with Adam"
CENTRAL = f"trained centrally to {100 * EQUAL:.0f} %"
ALIKE = f"20 clients, E=5, to {100 * EQUAL:.0f} %"


def _accuracy(when: str) -> Measure:
    """The mean accuracy of the clients held out, each counted the same."""

    def measure(summary: dict[str, Any]) -> float:
        found = summary["held_out"]["in_use" if when == BEFORE else "personalised"]["macro_accuracy"]
        return math.nan if found is None else float(found)

    return measure


def _reached(when: str) -> Measure:
    """The same, of runs that reached their target; the others make no number."""
    accuracy = _accuracy(when)
    return lambda summary: math.nan if summary["rounds_to_target"] is None else accuracy(summary)


def _name(cohort: int, epochs: int) -> str:
    return f"{cohort} clients, E={epochs}"


def _run(rounds: int, own: dict[str, Any], cohort: int = 20, method: str = "fedavg", every: int = 10) -> dict[str, Any]:
    center = {"center": MOMENTUM} if method == "fedavg" else {"first": MOMENTUM, "second": "adam(lr=0.001, eps=1e-5)"}
    return {
        "method": method,
        "data": "unipen62",
        "model": "femnist-cnn",
        "rounds": rounds,
        "evaluate_every": every,
        "fine_tune": 5,
        "held_out": 0.25,
        "held_out_seed": 0,
        "set": {"select": f"uniform(n={cohort})", "lr": 0.02, "batch": 20} | center | own,
    }


def _rows() -> tuple[Row, ...]:
    rows = []

    def both(name: str, settings: dict[str, Any], paper: Sequence[float | None] = (None, None)) -> None:
        measure = _reached if "target" in settings else _accuracy
        for when, number in zip((BEFORE, AFTER), paper, strict=True):
            what = f"{when} accuracy at clients held out"
            rows.append(Row(f"{name}, {when}", settings, number, measure=measure(when), what=what))

    for (cohort, epochs), (before, _, after, _) in PAPER.items():
        both(_name(cohort, epochs), _run(ROUNDS, {"epochs": epochs}, cohort), (before, after))
    both(CONTINUED, _run(ROUNDS + REPTILE, {"epochs": 5}))
    both(TUNED, _run(ROUNDS + REPTILE, {"rounds": ROUNDS, "epochs": 5, "steps": 10}, method="meta"))
    both(ALIKE, _run(200, {"epochs": 5}, every=1) | {"target": EQUAL})
    both(CENTRAL, _run(4000, {"steps": 1, "center": "momentum(lr=2, beta=0.9)"}, every=5) | {"target": EQUAL})
    return tuple(rows)


def _numbers(values: Values, name: str, when: str) -> list[float] | None:
    found = values.get(f"{name}, {when}")
    return None if not found or any(map(math.isnan, found)) else found


def _mean(values: Values, name: str, when: str) -> float:
    found = _numbers(values, name, when)
    return math.nan if found is None else statistics.fmean(found)


MISSING = "a row was not run, or a seed did not reach its target"


def _steadier(values: Values) -> tuple[bool | None, str]:
    """Root mean square over the eight rows of the deviation between seeds."""
    deviations = {}
    for when in (BEFORE, AFTER):
        found = [_numbers(values, _name(*key), when) for key in PAPER]
        if any(one is None or len(one) < 2 for one in found):
            return None, MISSING
        deviations[when] = math.sqrt(statistics.fmean([statistics.variance(one) for one in found if one]))
    if not deviations[AFTER]:
        return None, "the seeds do not differ"
    ratio = deviations[BEFORE] / deviations[AFTER]
    theirs = [math.sqrt(statistics.fmean([row[at] ** 2 for row in PAPER.values()])) for at in (1, 3)]
    return ratio >= 2, (
        f"standard deviation between seeds {deviations[BEFORE]:.4f} before and {deviations[AFTER]:.4f} after, "
        f"{ratio:.1f} times; {theirs[0]:.4f} and {theirs[1]:.4f} in the paper, {theirs[0] / theirs[1]:.1f} times"
    )


def _up_to_a_point(cohort: int) -> Claim:
    def judge(values: Values) -> tuple[bool | None, str]:
        found = {epochs: _mean(values, _name(cohort, epochs), AFTER) for epochs in EPOCHS}
        if any(map(math.isnan, found.values())):
            return None, MISSING
        best = max(found, key=lambda epochs: found[epochs])
        paper = max(EPOCHS, key=lambda epochs: PAPER[cohort, epochs][2])
        shown = ", ".join(f"E={epochs} {value:.4f}" for epochs, value in found.items())
        return min(EPOCHS) < best < max(EPOCHS), f"{shown}: best with E={best}, with E={paper} in the paper"

    return Claim(f"{cohort} clients a round: a larger E helps personalised accuracy up to a point.", judge)


def _higher(better: str, worse: str, when: Sequence[str], text: str) -> Claim:
    def judge(values: Values) -> tuple[bool | None, str]:
        pairs = {w: (_mean(values, better, w), _mean(values, worse, w)) for w in (BEFORE, AFTER)}
        if any(math.isnan(a) or math.isnan(b) for a, b in pairs.values()):
            return None, MISSING
        shown = ", ".join(f"{w} {a:.4f} against {b:.4f}" for w, (a, b) in pairs.items())
        return all(pairs[w][0] > pairs[w][1] for w in when), shown

    return Claim(text, judge)


def _draw(out: Path, runs: Mapping[str, Sequence[Path]]) -> list[tuple[str, str]]:
    """Accuracy before and after by E, and every client before and after in one run."""
    found: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for key in PAPER:
        ends = [json.loads((p / "summary.json").read_text()) for p in runs.get(f"{_name(*key)}, {AFTER}", ())]
        pairs = [(_accuracy(BEFORE)(s), _accuracy(AFTER)(s)) for s in ends if "metrics" in s]
        if pairs:
            found[key] = pairs
    if not found:
        return []
    name = "meta.png"
    with panels(out / name, 1, 2, size=(4.4, 3.5)) as axes:
        left, right = axes[0]
        for number, cohort in enumerate(COHORTS):
            mine = {epochs: found[cohort, epochs] for epochs in EPOCHS if (cohort, epochs) in found}
            for at, (when, line) in enumerate(((BEFORE, "--"), (AFTER, "-"))):
                columns = [[pair[at] for pair in pairs] for pairs in mine.values()]
                middle = [statistics.fmean(c) for c in columns]
                spread = [statistics.stdev(c) if len(c) > 1 else 0.0 for c in columns]
                left.errorbar(
                    list(mine), middle, spread, color=colour(number), linestyle=line, marker="o", markersize=4,
                    capsize=3, label=f"{cohort} clients a round, {when}",
                )  # fmt: skip
        left.set_xscale("log")
        left.set_xticks(EPOCHS, [str(epochs) for epochs in EPOCHS])
        left.minorticks_off()
        left.set_xlabel("E")
        left.set_ylabel("accuracy at clients held out")
        left.legend(fontsize=8, handlelength=3.2)  # long enough to tell dashed from solid
        shown = next((key for key in ((20, 5), *found) if key in found), None)
        assert shown is not None
        with (runs[f"{_name(*shown)}, {AFTER}"][0] / "clients.csv").open(encoding="utf-8") as file:
            lines = [row for row in csv.DictReader(file) if row["accuracy_in_use"] and row["accuracy_personalised"]]
        right.scatter(
            [float(row["accuracy_in_use"]) for row in lines],
            [float(row["accuracy_personalised"]) for row in lines],
            s=[6 + float(row["test_examples"]) / 8 for row in lines],
            alpha=0.4, linewidth=0, color=colour(2),
        )  # fmt: skip
        right.axline((0, 0), gradient=1, color="#999999", linewidth=0.8)
        right.set_xlim(0, 1.02)
        right.set_ylim(0, 1.02)
        right.set_xlabel("initial accuracy")
        right.set_ylabel("personalised accuracy")
        right.set_title(f"every writer, {_name(*shown)}, one seed")
    return [(name, "Left: mean accuracy of the writers held out, before and after 5 epochs of their own, with one "
                   "standard deviation over the seeds. Right: all writers of one run; the area grows with their "
                   "test examples.")]  # fmt: skip


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
    rows=_rows(),
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
        _higher(
            TUNED,
            CONTINUED,
            (BEFORE, AFTER),
            "It does so more than as many further rounds of FedAvg.",
        ),
        _higher(
            ALIKE, CENTRAL, (AFTER,), "A centrally trained model of equal accuracy personalises worse than FedAvg's."
        ),
    ),
    seeds=5,
    draw=_draw,
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
