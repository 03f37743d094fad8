"""What releases promise: dp-accounting's numbers, closed forms, and what must grow with what."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator

import dp_accounting as dp
import pytest
from dp_accounting import pld, rdp
from scipy.stats import norm

from polycentric import UsageError
from polycentric.parts.accountant import COARSE, FINE, Chance, Release, epsilon, named, noise_for


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


def of_library(kind: str, noise: float, chance: Chance, times: int) -> rdp.RdpAccountant:
    """Straight from dp-accounting."""
    event = dp.GaussianDpEvent(noise)
    if kind == "replace":
        event = dp.SampledWithoutReplacementDpEvent(chance.of, chance.n, event)
        count = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    else:
        event = dp.PoissonSampledDpEvent(chance.rate, event)
        count = rdp.RdpAccountant()
    return count.compose(event, times)


DELTAS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
FEW = [(1.0, 0.05, 200), (0.8, 0.2, 1)]
MANY = list(itertools.product((0.7, 1.0, 1.5, 3.0), (0.01, 0.05, 0.2), (1, 50, 1000)))


@pytest.mark.parametrize("settings", [FEW, pytest.param(MANY, marks=pytest.mark.long)], ids=["24", "432"])
def test_epsilon_is_that_of_dp_accounting(settings: list[tuple[float, float, int]]) -> None:
    """Both samplings; where it is smaller without sampling that is taken, and none is larger."""
    for z, q, times in settings:
        for kind, chance in (("add", Chance("poisson", q)), ("replace", Chance("fixed", q, round(1000 * q), 1000))):
            library = of_library(kind, z, chance, times)
            for delta in DELTAS:
                ours = epsilon([Release(z, chance, kind, times)], delta, "rdp")  # type: ignore[arg-type]
                plain = epsilon([Release(z, times=times)], delta)
                assert ours == pytest.approx(min(library.get_epsilon(delta), plain), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("noise", "rate", "times"), [(1.5, 0.05, 200), (1.0, 0.2, 50), (1.0, 0.01, 1000)])
def test_the_tight_one_is_dp_accountings_and_below_renyis(noise: float, rate: float, times: int) -> None:
    release, delta = Release(noise, Chance("poisson", rate), "add", times), 1e-5
    count = pld.PLDAccountant(value_discretization_interval=FINE)
    count.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), times)
    tight, quick = epsilon([release], delta), epsilon([release], delta, "rdp")
    assert tight == pytest.approx(count.get_epsilon(delta), abs=1e-9) and tight < 0.95 * quick
    assert tight <= epsilon([release], delta, grid=COARSE) <= tight + 2e-3
    assert (named([release], tight), named([Release(1.0)], 4.4)) == ("pld", "exact")


def test_releases_of_several_kinds_are_dp_accountings_composed() -> None:
    told = [Release(1.5, Chance("poisson", 0.2), "add", 9), Release(4.0, times=3)]
    for by, count in (("pld", pld.PLDAccountant(value_discretization_interval=FINE)), ("rdp", rdp.RdpAccountant())):
        count.compose(dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(1.5)), 9).compose(dp.GaussianDpEvent(4.0), 3)
        assert epsilon(told, 1e-5, by) == pytest.approx(count.get_epsilon(1e-5), abs=1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("clients", "rate", "noise", "times", "told"),
    [(2000, 0.05, 1.5, 200, 2.087), (2000, 0.05, 3.0, 200, 0.809), (500, 0.2, 1.0, 200, 18.74),
     (1000, 0.05, 0.8087 / 0.3, 30, 0.310)],
)  # fmt: skip
def test_known_values_by_whole_orders(clients: int, rate: float, noise: float, times: int, told: float) -> None:
    release = Release(noise, Chance("poisson", rate), "add", times)
    found = epsilon([release], clients**-1.1, "rdp", orders=range(2, 257))
    assert found == pytest.approx(told, abs=6e-3 if told > 1 else 6e-4)


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_without_sampling_it_is_the_exact_curve_of_the_normal_mechanism(noise: float) -> None:
    """delta(eps) = Phi(1/2z - eps z) - e^eps Phi(-1/2z - eps z), and T releases are one with noise z / sqrt(T)."""
    for times in (1, 9):
        found, z = epsilon([Release(noise, times=times)], 1e-5), noise / math.sqrt(times)
        delta = norm.cdf(0.5 / z - found * z) - math.exp(found) * norm.cdf(-0.5 / z - found * z)
        assert delta == pytest.approx(1e-5, rel=1e-6)
    three = epsilon([Release(noise), Release(2 * noise, times=4)], 1e-5)
    assert three == pytest.approx(epsilon([Release(noise / math.sqrt(2))], 1e-5))
    assert epsilon([Release(1.0)], 1e-5) == pytest.approx(4.3772, abs=1e-4)


def test_more_noise_fewer_rounds_and_rarer_draws_cost_less() -> None:
    def of(noise: float = 1.0, rate: float = 0.1, times: int = 30) -> float:
        return epsilon([Release(noise, Chance("poisson", rate), "add", times)], 1e-5, grid=COARSE)

    assert of(noise=1.2) < of() < of(noise=0.9)
    assert of(times=10) < of() < of(times=60)
    assert of(rate=0.05) < of() < of(rate=0.2) < epsilon([Release(1.0, times=30)], 1e-5)
    assert epsilon([Release(0.0)], 1e-5) == math.inf and epsilon([], 1e-5) == 0.0
    assert epsilon([Release(1.0, times=0)], 1e-5) == 0.0


def test_releases_that_do_not_agree_who_neighbours_are_gain_nothing_by_sampling() -> None:
    fixed, poisson = Chance("fixed", 0.1, 10, 100), Chance("poisson", 0.1)
    both = epsilon([Release(0.5, fixed, "replace"), Release(1.0, poisson, "add")], 1e-5)
    assert both == pytest.approx(epsilon([Release(1.0, times=2)], 1e-5))


@pytest.mark.parametrize("target", [0.5, 2.0])
def test_noise_for_an_epsilon_is_the_least_that_keeps_it(target: float) -> None:
    def releases(noise: float) -> list[Release]:
        return [Release(noise, Chance("poisson", 0.05), "add", 100)]

    noise = noise_for(target, 1e-4, releases)
    assert epsilon(releases(noise), 1e-4, grid=COARSE) <= target < epsilon(releases(noise * 0.998), 1e-4, grid=COARSE)


def test_bad_values_are_refused() -> None:
    for delta in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(UsageError, match=r"delta must be in \(0, 1\), got"):
            epsilon([Release(1.0)], delta)
    with pytest.raises(UsageError, match="epsilon must be positive, got 0"):
        noise_for(0.0, 1e-5, lambda noise: [Release(noise)])
    with pytest.raises(UsageError, match="cannot be met by any noise up to a million"):
        noise_for(1e-9, 1e-12, lambda noise: [Release(noise, times=100)])
