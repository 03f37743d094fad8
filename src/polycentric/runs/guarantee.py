"""What a run promises its clients: releases counted from round 0, an epsilon so far, a budget, noise for an epsilon.

Every exchange of a private method is a release; `parts.accountant` says what they come to together. Nothing is
remembered for it: the rounds that are done say all, so an epsilon never falls, whatever is resumed.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..errors import UsageError, require
from ..method import Exchange, Method
from ..parts.accountant import COARSE, FINE, WORDS, Release, epsilon, named, noise_for

OF_EXAMPLES = "one example adds nothing in one of the two; how many there are, and who takes part, is no secret"

if TYPE_CHECKING:
    from .loop import Run


def delta_of(delta: float | None, n_clients: int) -> float:
    """The delta of a guarantee: as set, or m^-1.1 for m clients."""
    return max(2, n_clients) ** -1.1 if delta is None else delta


def releases(method: Method, rounds: int, able: int) -> list[Release] | None:
    """All that so many rounds tell of one client, equal releases counted together; None: something is not hidden."""
    counted: Counter[Release] = Counter()
    for exchange, times in _times(method, rounds):
        if not exchange.sends + exchange.told:
            continue
        release = exchange.release(able)
        if release is None:
            return None
        counted[release] += times
    return [release._replace(times=times) for release, times in counted.items()]


def example_releases(method: Method, rounds: int, sizes: Tensor) -> list[Release] | None:
    """All that so many rounds tell of one example of clients of these sizes; None: something is not hidden."""
    counted: Counter[Release] = Counter()
    for exchange, times in _times(method, rounds):
        found = exchange.example_releases(sizes)
        if found is None:
            return None
        for release in found:
            counted[release._replace(times=1)] += times * release.times
    return [release._replace(times=times) for release, times in counted.items()]


def told_of(run: Run, rounds: int) -> dict[str, list[Release]]:
    """What so many rounds tell of one client, and of one example; where nothing is promised, there is none."""
    everyone = run.clients.everyone(0)
    clients = releases(run.method, rounds, len(everyone))
    examples = example_releases(run.method, rounds, everyone.sizes)
    return {unit: found for unit, found in (("client", clients), ("example", examples)) if found}


def _times(method: Method, rounds: int) -> Iterator[tuple[Exchange, int]]:
    """Every exchange, and how many of the rounds have it."""
    left = rounds
    for number, (length, exchanges) in enumerate(method.phases):
        last = number == len(method.phases) - 1
        here = left if last else min(length, left)
        yield from ((exchange, here) for exchange in exchanges if here)
        left -= here


def spent(run: Run, rounds: int | None = None, grid: float = FINE) -> dict[str, dict[str, Any]]:
    """What the rounds so far promise, by what is hidden: a client, an example; empty: nothing is promised.

    Rounds after the best one count too, where the run was stopped by its patience.
    """
    done = max([run.state.round, *(row["round"] for row in run.history[-1:])]) if rounds is None else rounds
    return {unit: _promise(run, unit, told, grid) for unit, told in told_of(run, done).items()}


def _promise(run: Run, unit: str, told: list[Release], grid: float) -> dict[str, Any]:
    members = run.federation.n_clients if unit == "client" else int(run.clients.everyone(0).sizes.sum())
    delta = delta_of(run.settings.delta, members)
    found = epsilon(told, delta, grid=grid)
    kinds = {release.neighbours for release in told}
    neighbours = kinds.pop() if len(kinds) == 1 else "zero"
    words = WORDS[neighbours] if unit == "client" else OF_EXAMPLES
    return {
        "epsilon": found,
        "delta": delta,
        "unit": unit,
        "neighbours": neighbours,
        "meaning": words.format(unit=unit),
        "accountant": named(told, found),
    }


def smallest(promises: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """The promise that is told first: that of clients, which covers their examples too."""
    return promises.get("client") or promises.get("example")


def so_far(run: Run) -> dict[str, float]:
    """The epsilon of the rounds so far, for a line of metrics: quickly, and never below the last word."""
    found = smallest(spent(run, run.state.round, COARSE))
    return {} if found is None or not math.isfinite(found["epsilon"]) else {"epsilon": found["epsilon"]}


def affordable(run: Run, rounds: int, budget: float) -> bool:
    """Whether so many rounds cost no more than a budget."""
    found = smallest(spent(run, rounds, COARSE))
    return found is not None and bool(found["epsilon"] <= budget)


@dataclass(frozen=True)
class Budget:
    """Another round would cost more than the budget."""

    epsilon: float

    def reason(self, run: Run) -> str:
        """Says after which round."""
        last = run.state.round >= run.settings.rounds
        if last or affordable(run, run.state.round + 1, self.epsilon):
            return ""
        found = smallest(spent(run, 1, COARSE)) or {}
        return f"one more round would cost more than epsilon {self.epsilon:g} at delta {found.get('delta', 0.0):.3g}"


def asked_of(method: Method) -> set[float]:
    """The epsilons that noise is to be found for."""
    return {wanted for exchange in method.exchanges if (wanted := exchange.privacy.wants) is not None}


def calibrated(method: Method, rounds: int, able: int, delta: float) -> Method:
    """The method with the noise that its epsilon asks for over so many rounds."""
    asked = asked_of(method)
    if not asked:
        return method
    target = min(asked)
    require(len(asked) == 1, f"a method has one epsilon for all its exchanges, got {target:g} and others")
    require(rounds >= 1, f"epsilon={target:g} is for the rounds of a run, and there are none: use rounds=1 or more")

    def told(noise: float) -> list[Release]:
        found = releases(with_noise(method, noise), rounds, able)
        if found is None:
            raise UsageError(f"epsilon={target:g} cannot be promised: {method.name} also sends what is not hidden")
        return found

    return with_noise(method, noise_for(target, delta, told))


def with_noise(method: Method, noise: float) -> Method:
    """The method with so much noise wherever an epsilon was asked for."""

    def exchange(each: Exchange) -> Exchange:
        return each if each.privacy.wants is None else replace(each, privacy=each.privacy.with_noise(noise))

    phases = tuple((length, tuple(map(exchange, exchanges))) for length, exchanges in method.phases)
    return replace(method, phases=phases)


def unnoised(run: Run) -> list[str]:
    """What reads clients' examples beside the noised sums, and has a say in the models that are released."""
    settings, said = run.settings, []
    if settings.patience is not None:
        by = settings.monitor or "score"
        said.append(f"patience={settings.patience} chooses the round by the {by} of the clients' validation examples")
    if settings.target is not None:
        said.append(f"target={settings.target:g} chooses the round by the score of the clients' test examples")
    if run.federation.scaling is not None:
        said.append("features are scaled by the means and deviations of all clients' training examples")
    told = releases(run.method, 1, len(run.clients.everyone(0))) or []
    if run.clock.deadline is not None and any(release.neighbours == "replace" for release in told):
        said.append(f"deadline={run.clock.deadline:g} lets it show who was late: a mean is over those who came")
    return said


def warn_choice(methods: Sequence[Method], what: str) -> None:
    """Say that a choice between private runs is itself no private one."""
    n = sum(
        any(e.privacy.covers is not None or any(learner.hides for learner in e.chain) for e in method.exchanges)
        for method in methods
    )
    if n:
        warnings.warn(
            f"{what} chooses between {n} private runs by scores of the clients' examples, which no noise hides; every "
            "run tells of the same clients, so their epsilons add up, and that of the chosen one is too small",
            stacklevel=3,
        )


def check_promise(run: Run) -> None:
    """Refuse a budget that acts on nothing or lasts for no round; say what makes a guarantee weaker than it looks."""
    settings, method = run.settings, run.method
    found = smallest(spent(run, 1, COARSE))
    for name in ("epsilon", "delta"):
        require(
            found is not None or getattr(settings, name) is None,
            f"{name}={getattr(settings, name)} is of a privacy part, and {method.name} has none here: use dp-fedavg, "
            'or --set "privacy=gaussian(clip=1, noise=1)", or leave it out',
        )
    if found is None:
        return
    sizes, delta, unit = run.clients.everyone(0).sizes, found["delta"], found["unit"]
    members = len(sizes) if unit == "client" else int(sizes.sum())
    if delta >= 1 / max(members, 1):
        warnings.warn(
            f"delta={delta:.3g} is not below one in {members} {unit}s, so it allows to publish one of them as a whole: "
            f"use delta={max(members, 2) ** -1.1:.2g} or less",
            stacklevel=4,
        )
    if any(e.topology.weighs == "examples" for e in method.exchanges if e.privacy.covers is not None):
        warnings.warn(
            "clients count by their examples, so how many each of them has is taken for public, and the largest "
            "decides the noise: equal=True, or dp-fedavg, counts clients",
            stacklevel=4,
        )
    for said in unnoised(run):
        warnings.warn(f"{said}, which no noise hides and epsilon does not count", stacklevel=4)
    budget = settings.epsilon
    require(
        budget is None or found["epsilon"] <= budget,
        f"epsilon={budget} at delta={delta:.3g} does not last for one round: use more noise, or let it be found: "
        f'--set "privacy=gaussian(clip=1, epsilon={budget})"',
    )
