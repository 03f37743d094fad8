"""What releases promise: an epsilon for a delta, and the noise that an epsilon asks for.

    release      a sum to which everybody adds at most one unit, plus normal noise of standard deviation z
    epsilon      of all releases together, (epsilon, delta)-differential privacy

Who could have been there matters as much as the noise. Two federations are *neighbours* if they differ in one member
(a client, or one example of a client); what a member adds is at most one unit long:

    zero         the member is in both and adds nothing in one of them. Who takes part, and how much everybody counts,
                 is no secret, so drawing a cohort gains nothing.
    add          the member is missing in one of them. Everybody takes part by a coin of their own (`Poisson`), and the
                 sum is divided by a fixed number; the draw is secret, and that is worth much.
    replace      another member stands in its place, so the sum moves by up to two units. A cohort of fixed size
                 is drawn.

Without sampling T releases are one with noise z / sqrt(T), whose exact curve is known (Balle and Wang, ICML 2018):

    delta(epsilon)  =  Phi(1 / 2z - epsilon z)  -  e^epsilon Phi(-1 / 2z - epsilon z)

With sampling the numbers are those of the library dp-accounting: by privacy loss distributions ("pld", Poisson only),
or by Renyi differential privacy ("rdp"). All are upper bounds; exact and pld are tight.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, reduce
from typing import Any, Literal, NamedTuple

from ..errors import require

Accountant = Literal["pld", "rdp"]
Neighbours = Literal["zero", "add", "replace"]
# Grids of the last word, and of what is asked for again and again: over 1,000 releases an epsilon is up to 2e-4 and
# 3e-3 larger than by dp-accounting's own grid of 1e-4.
FINE, COARSE = 2.5e-4, 1e-3
LARGE = 50.0  # an epsilon beyond which nothing is promised that is worth the time of a tight bound
WORDS = {
    "zero": "the update of one {unit} is zero in one of the two; who takes part is no secret",
    "add": "one {unit} is missing in one of the two; who takes part is secret",
    "replace": "one {unit} is another in one of the two; who takes part is secret",
}


class Chance(NamedTuple):
    """How a cohort is drawn."""

    kind: Literal["all", "poisson", "fixed", "some"] = "all"  # "some": in a way that gains nothing
    rate: float = 1.0  # of every member, to take part
    n: int = 0  # fixed: so many
    of: int = 0  # of so many

    @property
    def gains(self) -> bool:
        """Whether it is worth anything that nobody knows who was drawn."""
        return self.kind in ("poisson", "fixed")


class Release(NamedTuple):
    """Something that is told, `times` times over."""

    noise: float  # standard deviation over how far one member moves the sum; 0: nothing is hidden
    chance: Chance = Chance()
    neighbours: Neighbours = "zero"
    times: int = 1


def epsilon(
    releases: Sequence[Release],
    delta: float,
    accountant: Accountant = "pld",
    *,
    grid: float = FINE,
    orders: Sequence[float] | None = None,
) -> float:
    """The epsilon that these releases together promise at delta; infinite where nothing is promised.

    Arguments:
        accountant: "pld", the tight one where there is one; "rdp": of Renyi's orders.
        grid: of privacy losses; a coarser one is quicker and gives a little more, never less.
        orders: of Renyi's divergence; None: those of dp-accounting.

    >>> round(epsilon([Release(1.0)], 1e-5), 3)
    4.377
    """
    require(0 < delta < 1, f"delta must be in (0, 1), got {delta}; try 1e-5")
    there = tuple(release for release in _agreed(releases) if release.times)
    if not there or any(release.noise <= 0 for release in there):
        return math.inf if there else 0.0
    plain = _exact(math.fsum(release.times / release.noise**2 for release in there) ** -0.5, delta)
    if not any(release.chance.gains for release in there):
        return plain
    # Whoever is drawn less often is never told more of: what holds without sampling holds with it.
    tight = accountant == "pld" and there[0].neighbours != "replace"
    if not tight or plain >= LARGE:
        plain = min(plain, _accounted(there, delta, "rdp", FINE, tuple(orders) if orders else None))
    return min(plain, _accounted(there, delta, "pld", grid, None)) if tight and plain < LARGE else plain


def named(releases: Sequence[Release], found: float) -> str:
    """By what an epsilon was found: "exact", "pld" or "rdp"."""
    there = _agreed(releases)
    if not any(release.chance.gains for release in there):
        return "exact"
    return "rdp" if there[0].neighbours == "replace" or found >= LARGE else "pld"


def noise_for(target: float, delta: float, releases: Callable[[float], Sequence[Release]]) -> float:
    """The least noise, to one part in 1,000, with which `releases(noise)` promise the target epsilon at delta.

    >>> round(noise_for(4.3772, 1e-5, lambda noise: [Release(noise)]), 2)
    1.0
    """
    from scipy.optimize import brentq

    require(target > 0 and not math.isnan(target), f"epsilon must be positive, got {target}; try 8")

    def over(log_noise: float) -> float:
        """log(epsilon / target), which falls, almost along a line; above 0: not enough noise."""
        found = epsilon(releases(math.exp(log_noise)), delta, grid=COARSE)
        return math.log(max(found, 1e-3 * min(target, 1.0))) - math.log(target)

    low = high = 0.0
    while over(high) > 0:
        low, high = high, high + 1
        require(
            high < math.log(1e6),
            f"epsilon={target:g} at delta={delta:.3g} cannot be met by any noise up to a million: use a larger "
            "epsilon, fewer rounds, or more clients",
        )
    while over(low) <= 0:
        low, high = low - 1, low
        if low < math.log(1e-6):
            return math.exp(high)  # as good as none is asked for
    near = 3e-4
    found = brentq(over, low, high, xtol=near)
    while over(found) > 0:
        found += near
    return math.exp(found)


def _agreed(releases: Sequence[Release]) -> tuple[Release, ...]:
    """The releases read in one way: where they have other neighbours than each other, none gains by its sampling."""
    kinds = {release.neighbours for release in releases}
    if kinds <= {"zero", "add"} or len(kinds) <= 1:
        return tuple(releases)
    # Told of a sum that a replaced member moves twice as far: its noise was halved for that.
    back = {"replace": 2.0}
    return tuple(Release(back.get(r.neighbours, 1.0) * r.noise, times=r.times) for r in releases)


def _exact(noise: float, delta: float) -> float:
    """The epsilon at which log delta(epsilon) is that of delta, by halving: the curve falls."""
    from scipy.special import log_ndtr

    def above(epsilon: float) -> bool:
        far = epsilon * noise + 0.5 / noise
        first, second = float(log_ndtr(1 / noise - far)), epsilon + float(log_ndtr(-far))
        return second < first and first + math.log1p(-math.exp(second - first)) > math.log(delta)

    low, high = 0.0, 1.0
    if not above(low):
        return 0.0
    while above(high):
        low, high = high, 2 * high
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if above(middle) else (low, middle)
    return high


@lru_cache(maxsize=4096)
def _accounted(
    releases: tuple[Release, ...], delta: float, by: Accountant, grid: float, orders: tuple[float, ...] | None
) -> float:
    from dp_accounting import rdp

    with _quiet():
        if by == "pld":
            losses = [_losses(r._replace(times=1), grid).self_compose(r.times) for r in releases]
            return float(reduce(lambda a, b: a.compose(b), losses).get_epsilon_for_delta(delta))
        once = [_divergences(r._replace(times=1), orders) for r in releases]
        total = sum(r.times * found.rdp for r, found in zip(releases, once, strict=True))
        return float(rdp.compute_epsilon(once[0].orders, total, delta)[0])


# What takes long is one release, not how often it comes: a run that tells its epsilon every round asks for one of each.


@lru_cache(maxsize=64)
def _divergences(release: Release, orders: tuple[float, ...] | None) -> Any:
    """The library's Renyi divergences of one release."""
    import dp_accounting as dp
    from dp_accounting import rdp

    related, event = dp.NeighboringRelation, dp.GaussianDpEvent(release.noise)
    if release.chance.kind == "poisson":
        event = dp.PoissonSampledDpEvent(release.chance.rate, event)
    elif release.chance.kind == "fixed":
        event = dp.SampledWithoutReplacementDpEvent(release.chance.of, release.chance.n, event)
    relation = related.REPLACE_ONE if release.neighbours == "replace" else related.ADD_OR_REMOVE_ONE
    return rdp.RdpAccountant(orders, relation).compose(event)


@lru_cache(maxsize=4)
def _losses(release: Release, grid: float) -> Any:
    """The library's distribution of the privacy losses of one release; it may be large, so few are kept."""
    from dp_accounting.pld import privacy_loss_distribution as of

    rate = release.chance.rate if release.chance.kind == "poisson" else 1.0
    return of.from_gaussian_mechanism(release.noise, value_discretization_interval=grid, sampling_prob=rate)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's word about every order that it leaves out."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
