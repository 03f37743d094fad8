"""DPA-SGD on handwriting and on sensors: ring, complete graph, FedAvg and FedAvg with tasks, in rounds and in seconds.

Seconds are a function of settings alone: t_k+ = max_{i in N(k)} (t_i + tau c_i) + max_{i in N(k)} delta_ik between
neighbours, and the slowest of all clients and of their links where there is a center. They cost no training.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ..report.curves import Curves
from ..report.figure import Heat
from ..runs.recipes import build_method
from ..simulate.clock import Delays, Load
from ..stacks.cohort import Cohort
from .judge import claim, listed
from .rows import at_end, between_tasks, cell, rows, settings_of
from .table import Claim, Row, Runs, Table, Verdict, figure

LINKS = (0.0, 0.3, 1.0, 3.0)  # seconds, as the authors planned
COMPUTE, JITTER = 0.2, 0.5  # seconds a step, and how much a moment differs from the next: ours

# Learning rates and penalties by `sweeps/dpa-sgd-*.toml`, on a fifth of every client's training examples.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedAvg": ("fedavg", {}),
    "FedAvg-MTL": ("mtl", {"strength": 1e-4}),
    "ring": ("dpa-sgd", {"graph": "ring", "strength": 1e-4}),
    "complete graph": ("dpa-sgd", {"graph": "complete", "strength": 1e-5}),
    "ring, tasks averaged": ("dpa-sgd", {"graph": "ring", "strength": 1e-4, "mix_task": True}),
}
WORDS = {"unipen62": "handwriting", "features(har)": "sensors"}
STAND_INS = {
    "handwriting": "unipen62, 8 writers drawn by the seed (stands in for FEMNIST)",
    "sensors": "har, 30 subjects",
}
WRITERS = 317  # more clients than these are dealt


def _settings(method: str, data: str, clients: int, rounds: int, **given: Any) -> dict[str, Any]:
    name, own = METHODS[method]
    dealt = {} if clients <= WRITERS else {"partition": "dirichlet=0.3"}
    rate = 0.1 if (name, data) == ("mtl", "features(har)") else 0.3
    own = {"lr": rate, "steps": 5, "batch": 10} | own | given
    every = 5 if clients <= 32 else 25
    return cell(name, data, "mlp", rounds, own, evaluate_every=every, clients=clients, **dealt)


def timeline(settings: Mapping[str, Any], seed: int, link: float) -> tuple[float, ...]:
    """When the last client is done with every round, from 0 on: no data and no training are needed for it."""
    words = tuple(sorted((key, str(value)) for key, value in settings["set"].items()))  # equal for a row and its run
    return _timeline(settings["method"], words, settings["clients"], settings["rounds"], seed, link)


@lru_cache(maxsize=256)
def _timeline(
    name: str, words: tuple[tuple[str, str], ...], clients: int, rounds: int, seed: int, link: float
) -> tuple[float, ...]:
    method, clock = build_method(name, dict(words)), Delays(COMPUTE, link, jitter=JITTER)
    one = torch.zeros(1, 1)
    state = method.begin({"model": one, "task": one} if name != "fedavg" else {"model": one}, clients)
    every, times, out = torch.arange(clients), torch.zeros(clients, dtype=torch.float64), [0.0]
    for number in range(rounds):
        sizes = torch.full((clients,), 100)  # steps are given, so sizes do not matter
        cohort = Cohort(every, sizes, torch.ones(clients, dtype=torch.float64), clients, seed, number)
        times = clock.advance(times, Load(method.at(number)[0], state, cohort, 1))
        out.append(float(times.max()))
    return tuple(out)


MAIN = {
    f"{method}, {WORDS[data]}": _settings(method, data, clients, rounds)
    for data, clients, rounds in (("unipen62", 8, 300), ("features(har)", 30, 200))
    for method in METHODS
}


def _many(method: str, clients: int) -> dict[str, Any]:
    return _settings(method, "unipen62", clients, 150 if clients < 128 else 60)  # what a core does in minutes


def _size(clients: int, method: str) -> Row:
    data = f"unipen62, {clients} " + ("writers" if clients <= WRITERS else "clients dealt by dirichlet=0.3")
    return Row(f"{method}, {clients} clients", _many(method, clients), data=data)


def _density(p: float) -> Row:
    given = _settings("ring", "unipen62", 32, 150, graph=f"erdos-renyi(p={p})", strength=1e-5)
    return Row(f"density {p}, 32 clients", given, data="unipen62, 32 writers")


def _seconds(name: str, given: Mapping[str, Any], link: float) -> Row:
    what, data = f"simulated seconds of {given['rounds']} rounds", f"the clock alone, {given['clients']} clients"

    return Row(
        f"{name}, links of {link:g} s", given, None, lambda run: timeline(given, run["seed"], link)[-1], what, data
    )


def _faster(words: str) -> Claim:
    def judge(found: dict[tuple[float, str], float]) -> Verdict:
        shares = {link: found[link, "ring"] / found[link, "FedAvg"] for link in LINKS}
        shown = ", ".join(f"{100 * (1 - share):.0f} % at {link:g} s" for link, share in shares.items())
        holds = all(share <= 0.9 for share in shares.values())
        return holds, f"less time for as many rounds: {shown}; the authors' page: about 20 %"

    text = f"For as many rounds the ring needs less time than FedAvg, by a tenth or more ({words})."
    settings = {(link, m): f"{m}, {words}, links of {link:g} s" for link in LINKS for m in ("FedAvg", "ring")}
    return claim(text, settings, judge)


def _comparable(words: str, method: str) -> Claim:
    text = f"The {method} is at most 2 points below FedAvg and FedAvg-MTL ({words})."

    def judge(found: dict[str, float]) -> Verdict:
        bound = max(found["FedAvg"], found["FedAvg-MTL"]) - 2
        return found[method] >= bound, listed(found, "{} {:.1f} %", "; ")

    return claim(text, {name: f"{name}, {words}" for name in METHODS}, judge)


def _curves(runs: Runs, words: str, link: float | None) -> Curves:
    def seconds(folder: Path, rounds: list[int]) -> list[float]:
        settings = settings_of(folder)
        ends = timeline(settings.model_dump(), settings.seed, link or 0.0)
        return [ends[round] for round in rounds]

    title = words if link is None else f"{words}, links of {link:g} s"
    dress: dict[str, Any] = {"title": title, "xlabel": "rounds" if link is None else "simulated seconds"}
    dress |= {"ylim": (0.8 if words == "sensors" else 0.0, None), "ylabel": "accuracy, mean of clients"}
    groups = {method: runs[f"{method}, {words}"] for method in METHODS}
    return Curves(groups, "macro_accuracy", "rounds" if link is None else seconds, dress=dress)


def _related(runs: Runs, method: str, bar: str = "") -> Heat:
    dress = {"title": f"{method}: how tasks are related", "xlabel": "subject", "ylabel": "subject"}
    return Heat(between_tasks(runs.first(f"{method}, sensors")), bar, dress)


DPA_SGD = Table(
    name="dpa-sgd",
    title="DPA-SGD: a ring against a center, in rounds and in seconds",
    reference=(
        "Decentralised periodic averaging with a federated multi-task objective, as its authors' page and poster "
        "describe it (8 clients on a ring, FEMNIST, 300 rounds); averaging after Wang and Joshi, Cooperative SGD,"
        " 2018, https://arxiv.org/abs/1808.07576."
    ),
    data="unipen62, handwriting of 62 classes in the place of FEMNIST; har, windows of a phone's sensors as features",
    what="test accuracy in %, mean of the clients, at the last round; or simulated seconds where a row says so",
    measure=at_end("metrics", "macro_accuracy", scale=100),
    rows=(
        *(Row(name, given, data=STAND_INS[name.rsplit(", ", 1)[1]]) for name, given in MAIN.items()),
        *rows(_size, (16, 32, 64, 128, 256, 512), ("FedAvg", "ring")),
        *rows(_density, (0.3, 0.6, 0.9)),
        *rows(lambda name, link: _seconds(name, MAIN[name], link), MAIN, LINKS),
        *rows(lambda n, how: _seconds(f"{how}, {n} clients", _many(how, n), 1.0), (64, 512), ("FedAvg", "ring")),
    ),
    claims=(
        *map(_faster, STAND_INS),
        *(_comparable(words, method) for words in WORDS.values() for method in ("ring", "ring, tasks averaged")),
    ),
    figures={
        "dpa-sgd-curves.png": figure(
            lambda runs: [[_curves(runs, words, link) for link in (None, 0.3, 3.0)] for words in WORDS.values()]
        ),
        "dpa-sgd-covariances.png": figure(
            lambda runs: [[_related(runs, "ring"), _related(runs, "FedAvg-MTL", "correlation")]]
        ),
    },
)
