"""MATCHA against vanilla and periodic D-PSGD: loss over iterations and over simulated time, at five budgets."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ..report.curves import Curves
from ..report.figure import Drawn, grid
from ..report.graphs import draw_links, draw_rho, pictured
from ..topology import Matchings
from ..topology.graphs.decomposition import Activation, plan_for
from ..topology.graphs.networks import MATCHA_8, MATCHA_16, Network, Ring
from .judge import MISSING, claim_by_seed, error_of, every, finite, less, mean, reached
from .rows import cell, history, rows, settings_of
from .table import Claim, Measure, Row, Runs, Table, Values, Verdict, figure

BUDGETS = (1.0, 0.5, 0.25, 0.1, 0.02)
COMPUTE, MATCHING = 1.0, 1.0  # what a step takes, and what a matching takes, in the same unit
TAIL = 10  # evaluations at the end over which a loss is averaged


class Learned(NamedTuple):
    """What is learned."""

    file: str  # its name among the figures
    source: str
    model: str
    rounds: int
    target: float  # of the test loss
    held_back: float = 0.0  # share of the training images that nobody sees


WORK = {
    "Fashion-MNIST": Learned("fashion-mnist", "fashion-mnist", "mlp", 1500, 0.55),
    "Fashion-MNIST, 150 images a client": Learned("fashion-mnist-few", "fashion-mnist", "mlp", 1500, 0.7, 0.98),
    "CIFAR-10": Learned("cifar-10", "cifar10", "lg-lenet", 3000, 1.5),
}
# name -> (schedule, budget); `alone` is training without any communication
WAYS: dict[str, tuple[Activation, float]] = {
    "vanilla": ("matcha", 1.0),
    **{f"MATCHA {b:g}": ("matcha", b) for b in BUDGETS[1:]},
    **{f"periodic {b:g}": ("periodic", b) for b in BUDGETS[1:]},
    "alone": ("matcha", 0.0),
}


def _rows(data: str, name: str) -> Iterator[Row]:
    (schedule, budget), work = WAYS[name], WORK[data]
    mixing = {"graph": "matcha-8", "budget": budget} | ({"schedule": schedule} if schedule != "matcha" else {})
    own = {"lr": 0.1, "batch": 32, "decay": 0.1 ** (1 / work.rounds)}  # a tenth of the rate at the end
    own |= {"steps": 1} if name == "alone" else mixing
    more: dict[str, Any] = {"partition": "iid", "clients": 8, "evaluate_every": work.rounds // 60}
    more |= {"valid": work.held_back} if work.held_back else {}
    run = cell("nofed" if name == "alone" else "matcha", work.source, work.model, work.rounds, own, **more)
    what, time = f"test loss after {work.rounds:,} iterations", f"simulated time to a test loss of {work.target:g}"
    yield Row(f"{data}, {name}, loss", run, None, _loss, what, data)
    yield Row(f"{data}, {name}, time", run, None, _time(schedule, budget, work.target), time, data)


def _loss(summary: dict[str, Any]) -> float:
    """The test loss of all clients, over the last evaluations."""
    return statistics.fmean(row["micro_loss"] for row in history(summary["run_dir"])[-TAIL:])


def elapsed(schedule: Activation, budget: float, seed: int, rounds: int) -> np.ndarray:
    """Simulated time after 0 .. rounds iterations, (rounds + 1,): a step each, and the matchings one after another."""
    coins = Matchings(MATCHA_8, budget, schedule).active(seed, torch.arange(rounds), 8)
    took = COMPUTE + MATCHING * coins.double().sum(1).numpy()
    return np.concatenate([[0.0], np.cumsum(took)])


def _time(schedule: Activation, budget: float, target: float) -> Measure:
    def measure(summary: dict[str, Any]) -> float:
        rows = history(summary["run_dir"])
        there = next((row["round"] for row in rows if row["micro_loss"] <= target), None)
        clock = elapsed(schedule, budget, summary["seed"], rows[-1]["round"])
        return math.nan if there is None else float(clock[there])

    return measure


# -- claims --------------------------------------------------------------------------------------------------


def _half(data: str) -> Claim:
    def judge(found: dict[str, list[float]]) -> Verdict:
        full, half = found.values()
        a, b, spread = statistics.fmean(full), statistics.fmean(half), math.hypot(error_of(full), error_of(half))
        far = f"{b:.4f} against {a:.4f}, {100 * (b / a - 1):+.1f} %"
        return b <= 1.01 * a, f"test loss {far} (standard error of the difference {spread:.4f}; 1 % is allowed)"

    settings = {way: f"{data}, {way}, loss" for way in ("vanilla", "MATCHA 0.5")}
    return claim_by_seed(f"Half of the communication costs nothing per iteration ({data}).", settings, judge, least=2)


def _faster(data: str) -> Claim:
    def judge(values: Values) -> Verdict:
        if len(reached(values, f"{data}, vanilla, time")) < 2:
            return None, "vanilla was not run with two seeds, or did not get there"
        took = {name: mean(values, f"{data}, {name}, time") for name in WAYS}
        times = {b: took["vanilla"] / took[f"MATCHA {b:g}"] for b in BUDGETS[1:]}
        found = [(ratio, budget) for budget, ratio in times.items() if not math.isnan(ratio)]
        if not found:
            return None, "no budget below 1 got there"
        best, at = max(found)
        shown = ", ".join(f"{ratio:.2f} at {budget:g}" for ratio, budget in found)
        alone = "never there" if math.isnan(took["alone"]) else f"{took['vanilla'] / took['alone']:.2f}"
        said = f"at most {best:.2f} times, at a budget of {at:g} ({shown}; alone: {alone})"
        return best >= 5, f"{said}, where a matching takes as long as a step"

    return Claim(f"Up to 5 times less time to the same loss ({data}).", judge)


def _of_plans(text: str, judge: Callable[[], Verdict]) -> Claim:
    """What follows from the plans alone; it is told where anything was run."""
    return Claim(text, lambda values: judge() if any(finite(values, row) for row in values) else (None, MISSING))


def _delay() -> Verdict:
    rounds = WORK["Fashion-MNIST"].rounds
    waits = [np.diff(elapsed("matcha", 0.02, seed, rounds)) - COMPUTE for seed in range(5)]
    ratio = 5 * MATCHING / float(np.mean(waits))
    return abs(ratio / 50 - 1) < 0.1, f"{ratio:.1f} times fewer matchings over {len(waits)} x {rounds:,} iterations"


def _rather(data: str) -> Claim:
    def judge(values: Values) -> Verdict:
        found = {b: [reached(values, f"{data}, {w} {b:g}, loss") for w in ("MATCHA", "periodic")] for b in BUDGETS[1:]}
        pairs = {budget: pair for budget, pair in found.items() if min(map(len, pair)) > 1}
        if not pairs:
            return None, "no pair of rows was run with two seeds"
        means = [(*map(statistics.fmean, pair), budget) for budget, pair in pairs.items()]
        shown = ", ".join("{:.4f} against {:.4f} at {:g}".format(*line) for line in means)
        return every(less(*pair) for pair in pairs.values()), shown

    return Claim(
        f"At the same budget MATCHA ends lower than periodic averaging on this graph, at every budget ({data}).", judge
    )


GRAPHS: dict[str, tuple[Network, int]] = {"ER-8": (MATCHA_8, 8), "ring-8": (Ring(), 8), "ER-16": (MATCHA_16, 16)}
# The plans' numbers as they were computed beforehand, by another program: lambda_2, alpha, rho, rho of periodic.
PLANS: dict[tuple[str, float], tuple[float | None, float | None, float, float]] = {
    ("ER-8", 1.0): (0.67002, 0.28571, 0.65378, 0.65378),
    ("ER-8", 0.75): (0.66473, 0.33294, 0.60793, 0.74033),
    ("ER-8", 0.5): (0.56120, 0.39643, 0.64398, 0.82689),
    ("ER-8", 0.25): (0.28060, 0.55399, 0.81611, 0.91344),
    ("ER-8", 0.1): (0.11224, 0.56207, 0.93679, 0.96538),
    ("ER-8", 0.02): (0.02245, 0.51155, 0.98852, 0.99308),
    ("ring-8", 1.0): (0.58579, 0.43613, 0.55431, 0.55431),
    ("ring-8", 0.75): (None, None, 0.66027, 0.66573),
    ("ring-8", 0.5): (None, None, 0.78391, 0.77716),
    ("ring-8", 0.25): (None, None, 0.91105, 0.88858),
    ("ring-8", 0.1): (None, None, 0.96848, 0.95543),
    ("ring-8", 0.02): (None, None, 0.99406, 0.99109),
    ("ER-16", 1.0): (0.80582, 0.19307, 0.71305, 0.71305),
    ("ER-16", 0.75): (0.79644, None, 0.67986, 0.78479),
    ("ER-16", 0.5): (0.66779, None, 0.67555, 0.85652),
    ("ER-16", 0.25): (0.34631, None, 0.79766, 0.92826),
    ("ER-16", 0.1): (0.13852, None, 0.92238, 0.97130),
    ("ER-16", 0.02): (0.02770, None, 0.98583, 0.99426),
}


def _compared() -> list[tuple[str, float, list[tuple[float | None, float]]]]:
    """(graph, budget, [(beforehand, ours), ...]) for lambda_2, alpha, rho and rho of periodic."""
    out = []
    for (name, budget), known in PLANS.items():
        plan, other = plan_for(*GRAPHS[name], budget), plan_for(*GRAPHS[name], budget, "periodic")
        ours = (plan.lambda_2, plan.alpha, plan.rho, other.rho)
        out.append((name, budget, list(zip(known, ours, strict=True))))
    return out


def _planned() -> Verdict:
    off = [abs(known - ours) for _, _, pairs in _compared() for known, ours in pairs if known is not None]
    exact = sum(gap < 5.1e-6 for gap in off)
    return max(off) < 1.05e-5, f"{exact} of {len(off)} to the last of five digits, the others within {max(off):.0e}"


PAGE = """# The plans behind MATCHA: connectivity, mixing weight, rho

lambda_2 of the expected Laplacian, the best alpha, and rho = |E[W^T W] - J| for three graphs, as
`polycentric.topology.graphs.decomposition` finds them; in brackets the number computed beforehand by another program, where
there is one. Made by `polycentric reproduce matcha`.

| graph | budget | lambda_2 | alpha | rho | rho, periodic |
|---|---|---|---|---|---|
{}

ER-8 and ER-16 are the graphs of the paper's figures 1a and 3b with its matchings (5 and 8); the ring
has 2. Where a number differs by one in the fifth digit, the probabilities are the reason: lambda_2 is flat
around its maximum, so p is known to fewer digits than lambda_2, and alpha and rho follow p.
"""  # noqa: E501


def _page_of_plans() -> str:
    lines = []
    for name, budget, pairs in _compared():
        cells = [f"{ours:.5f}" + (f" ({known:.5f})" if known is not None else "") for known, ours in pairs]
        lines.append(f"| {name} | {budget:g} | {' | '.join(cells)} |")
    return PAGE.format("\n".join(lines))


# -- figures -------------------------------------------------------------------------------------------------


def _draw_plans(path: Path, runs: Runs) -> bool:
    path.with_suffix(".md").write_text(_page_of_plans(), encoding="utf-8")

    return grid(path, [[Drawn(partial(draw_rho, network=g, n=n), dress={"title": k}) for k, (g, n) in GRAPHS.items()]])


def _used(runs: Runs) -> list[list[Drawn]]:
    used = pictured(Matchings(MATCHA_8, 0.5), 8, rounds=WORK["Fashion-MNIST"].rounds)
    return [[Drawn(lambda axis: draw_links(axis, used), dress={"title": "budget 0.5, seed 0"})]]


def _clock(folder: Path, rounds: list[int]) -> np.ndarray:
    settings = settings_of(folder)
    schedule, budget = settings.set.get("schedule", "matcha"), float(settings.set.get("budget", 0.0))
    return elapsed(schedule, budget, settings.seed, rounds[-1])[rounds]


def _style(name: str) -> Mapping[str, Any]:
    """A colour for each budget; dotted, without a band: periodic averaging."""
    schedule, budget = WAYS[name]
    dotted = {"linestyle": ":", "linewidth": 1.3, "spread": False, "label": None} if schedule == "periodic" else {}
    return {"number": (*BUDGETS, 0.0).index(budget)} | dotted


def _curves(runs: Runs, data: str) -> list[list[Curves]]:
    groups, target = {name: runs[f"{data}, {name}, loss"] for name in WAYS}, WORK[data].target
    loss: dict[str, Any] = {"ylabel": "test loss", "ylim": (None, 1.5 * target)}
    first = loss | {"title": data, "xlabel": "iterations"}
    time = loss | {"xlabel": "simulated time (step = matching = 1)", "xscale": "log", "xlim": (30, None)}
    apart = {"xlabel": "iterations", "ylabel": "consensus distance", "yscale": "log"}
    over_rounds = Curves(groups, "micro_loss", "rounds", target, _style, first)
    over_time = Curves(groups, "micro_loss", _clock, target, _style, time)
    distance = Curves(groups, lambda row: row["consensus"] if row["round"] else None, style=_style, dress=apart)
    return [[over_rounds, over_time, distance]]


MATCHA = Table(
    name="matcha",
    title="MATCHA: less communication on a graph",
    reference=(
        "Wang et al., MATCHA: speeding up decentralized SGD via matching decomposition sampling, 2019, "
        "https://arxiv.org/abs/1905.09435. Claims from the abstract; the paper trains ResNet-50 and other large nets."
    ),
    data=(
        "Fashion-MNIST with an MLP and CIFAR-10 with a small convolutional net, dealt evenly (IID) to 8 clients on the "
        "paper's ER-8 graph: stand-ins for the paper's nets and data"
    ),
    what="test loss at the end, and simulated time to a loss",
    measure=_loss,
    rows=rows(_rows, WORK, WAYS),
    claims=(
        _of_plans("The plans have the numbers computed beforehand (lambda_2, alpha, rho).", _planned),
        *map(_half, WORK),
        *map(_faster, WORK),
        _of_plans("50 times less communication delay at a budget of 0.02.", _delay),
        *map(_rather, WORK),
    ),
    figures={
        "matcha-plans.png": _draw_plans,
        "matcha-graph.png": figure(_used),
        **{f"matcha-{work.file}.png": figure(partial(_curves, data=data)) for data, work in WORK.items()},
    },
)
