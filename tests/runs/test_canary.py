"""Canaries: what they prove never exceeds what is stated, unless the mechanism is broken; then it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import polycentric as pc
from polycentric import Gaussian, Method, UsageError, dp_fedavg, fedavg, fedmes, ifca
from polycentric.method import Exchange
from polycentric.parts.accountant import Chance, Release, epsilon
from polycentric.runs.canary import canary
from polycentric.runs.separation import least_epsilon
from polycentric.stacks import Heard, Stacks
from polycentric.stacks.cohort import Cohort
from support import Make, everyone, ready

DELTA = 0.01


@dataclass(frozen=True)
class HalfTheNoise(Gaussian):
    """A bug: the noise of half the z that is stated."""

    def at_centers(self, heard: dict[str, Heard], *rest: Any) -> dict[str, Heard]:
        assert self.noise is not None
        return Gaussian(self.clip, self.noise / 2).at_centers(heard, *rest)


@dataclass(frozen=True)
class NoClip(Gaussian):
    """A bug: updates leave as long as they are."""

    def at_clients(self, rows: Stacks) -> Stacks:
        return rows


def exchange(privacy: Gaussian, rate: float) -> Exchange:
    return Exchange((pc.Train(),), pc.Star(expected=rate), pc.Poisson(rate), privacy=privacy)


@pytest.mark.parametrize(("z", "rate"), [(0.5, 1.0), (1.0, 1.0), (1.5, 1.0), (0.7, 0.5), (0.5, 0.2)])
def test_what_is_proved_is_below_what_is_stated_and_not_far(z: float, rate: float) -> None:
    found = canary(exchange(Gaussian(2.0, z), rate), everyone(250), DELTA, trials=3000)
    assert 0.25 * found.stated < found.lower <= found.stated
    chance = Chance("poisson", rate) if rate < 1 else Chance()
    assert found.stated == pytest.approx(epsilon([Release(z, chance, "add")], DELTA))


@pytest.mark.parametrize(
    ("broken", "z", "rate"), [(HalfTheNoise, 2.0, 1.0), (HalfTheNoise, 1.5, 0.5), (NoClip, 2.0, 1.0)]
)
def test_a_broken_mechanism_is_caught(broken: type[Gaussian], z: float, rate: float) -> None:
    found = canary(exchange(broken(0.5, z), rate), everyone(250), DELTA, trials=3000)
    assert found.caught and "the statement is WRONG" in found.words and found.to_json()["caught"]
    assert not canary(exchange(Gaussian(0.5, z), rate), everyone(250), DELTA, trials=2000).caught


# -- through exchanges ---------------------------------------------------------------------------------------

METHODS: Mapping[str, tuple[Method, str]] = {
    "dp-fedavg": (dp_fedavg(select=pc.Poisson(0.5), noise=1.0), "add"),
    "fixed": (dp_fedavg(select=pc.Uniform(share=0.5), noise=1.5), "replace"),
    "quantile": (dp_fedavg(select=pc.Poisson(0.5), noise=1.0, quantile=0.5), "add"),
    "fedavg": (fedavg(privacy=Gaussian(0.3, 1.0)), "zero"),
    "fedmes": (fedmes(privacy=Gaussian(0.3, 1.0)), "zero"),
}


@pytest.mark.parametrize("name", METHODS)
def test_exchanges_keep_what_they_state(name: str) -> None:
    method, neighbours = METHODS[name]
    found = canary(method.exchanges[0], everyone(64), DELTA, trials=400)
    assert found.neighbours == neighbours and not found.caught and "no contradiction" in found.words
    assert found.trials > 350 and 0 < found.lower <= found.stated
    release = method.exchanges[0].release(64)
    assert release is not None and found.stated == epsilon([release], DELTA)


def test_rounds_are_counted_together() -> None:
    hides = dp_fedavg(select=pc.Poisson(1.0), noise=3.0).exchanges[0]
    one, four = (canary(hides, everyone(100), DELTA, trials=500, rounds=rounds) for rounds in (1, 4))
    assert one.lower < four.lower <= four.stated and one.stated < four.stated


def test_what_has_no_canary_is_refused() -> None:
    private = ifca(k=2, privacy=Gaussian(1.0, 1.0, least=2))
    for method in (fedavg(), private, dp_fedavg(noise=0.0)):
        with pytest.raises(UsageError, match="a canary is for exchanges that hide clients"):
            canary(method.exchanges[0], everyone(10), DELTA)
    with pytest.raises(UsageError, match="trials >= 20 and rounds >= 1, got 5 and 1"):
        canary(dp_fedavg().exchanges[0], everyone(10), DELTA, trials=5)


@pytest.mark.long
@pytest.mark.parametrize("broken", [False, True])
def test_whole_runs_keep_what_they_state(broken: bool, made: Make) -> None:
    """Two rounds of dp-fedavg, training and all: client 0 pulls far along one axis, or not at all."""
    z, clip, n, delta = 2.0, 0.5, 5, 0.05
    method = dp_fedavg(select=pc.Poisson(1.0), clip=clip, noise=z, lr=0.5, steps=1, batch=None)
    if broken:
        method = Method.of("broken", replace(method.exchanges[0], privacy=HalfTheNoise(clip, z)))
    values = {}
    for world, pull in (("present", 100.0), ("absent", 0.0)):
        federation = made([(torch.zeros(1, 1), torch.tensor([pull * (k == 0)])) for k in range(n)])
        values[world] = [
            float(ready(method, federation, model=AtZero, rounds=2, seed=seed, evaluate_every=2, fine_tune=0)
                  .go().state.centers["model"][0, 0])
            for seed in range(1000 * (world == "absent"), 1000 * (world == "absent") + 700)
        ]  # fmt: skip
    lower = least_epsilon(values["present"], values["absent"], delta)
    promised = epsilon([Release(z, times=2)], delta)
    assert (lower > promised) == broken


class AtZero(torch.nn.Module):
    """A number that begins at zero, whatever the input."""

    def __init__(self) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value.expand(len(x), 1)


def test_a_canary_is_a_client_that_counts_most() -> None:
    """Where clients count by examples, noise is for the largest: with the largest as canaries most is proved."""
    sizes = torch.tensor([50, *[1] * 49])
    unequal = Cohort(torch.arange(50), sizes, torch.ones(50).double(), 50, 0, 0)
    found = canary(fedavg(privacy=Gaussian(1.0, 1.0)).exchanges[0], unequal, DELTA, trials=100)
    assert found.lower <= found.stated
