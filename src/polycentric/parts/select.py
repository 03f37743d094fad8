"""Who takes part: a selection sees what it remembers and everyone who has data, and picks a cohort."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from ..errors import require, within
from ..language import register
from ..learn import Learner, Value
from ..stacks import Cohort, Stacks, View
from ..stacks.draw import smallest, some_of, uniform
from .accountant import Chance
from .inclusion import arrive_first

MANY = 100_000  # clients up to which everyone has a draw of their own, the smallest of which win
FEW = 20  # of very many, one in so many or fewer: a permutation of more takes longer than a draw for everyone


class Select(ABC):
    """Picks the cohort of an exchange."""

    learn: tuple[Learner, ...] = ()  # what clients must find out for it before they train
    tells: tuple[str, ...] = ()  # names of what they tell it

    @abstractmethod
    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """Some of everyone."""

    def chance(self, able: int) -> Chance:
        """How a cohort is drawn of so many; by default in a way that gains no privacy."""
        return Chance("some")

    def fitted(self, topology: Any) -> Select:
        """Itself, once the topology beside it is known; a `Topology`, which stands above this room."""
        return self

    def remembers(self, n_clients: int) -> Stacks:
        """What the selection must remember from round to round, as it is at the beginning."""
        return {}

    def note(self, cohort: Cohort, sent: Stacks) -> Stacks:
        """Rows of memory (cohort, ...), from what the clients told."""
        return {}

    def missed(self, cohort: Cohort) -> Stacks:
        """Rows of memory (cohort, ...) of clients that were asked and whose answer did not come."""
        return {}

    def shows(self, view: View) -> dict[str, float]:
        """What is worth looking at beside the scores, by name."""
        return {}


def _warn_of_few(wanted: int, everyone: Cohort) -> None:
    if wanted > len(everyone):
        there = f"but only {len(everyone)} have data: all of them take part"
        warnings.warn(f"{wanted} clients a round were asked for, {there}", stacklevel=3)


@dataclass(frozen=True)
class Everyone(Select):
    """All clients that have data, every time."""

    def chance(self, able: int) -> Chance:
        """Nobody is drawn."""
        return Chance()

    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """Everyone."""
        return everyone


@dataclass(frozen=True)
class Sometimes(Select):
    """Nobody, but in every `every`-th round those whom another selection picks; never in round 0."""

    every: int
    who: Select = Everyone()

    def __post_init__(self) -> None:
        within(self, every=">= 1; try 5")

    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """When it is time."""
        return self.who(memory, everyone) if everyone.round and everyone.round % self.every == 0 else everyone[:0]


@dataclass(frozen=True)
class Uniform(Select):
    """`n` clients, or a `share` of them, without replacement, all equally likely.

    Of more than MANY clients, those at the places that a keyed permutation gives: a round then does not cost more the
    more there are, and who is drawn hangs together with how many there are.
    """

    n: int | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        one = (self.n is None) != (self.share is None)
        require(one, "Uniform takes n or share: Uniform(n=10) or Uniform(share=0.1)")
        within(self, n=">= 1; try 10", share="(0, 1]; try 0.1")

    def wanted(self, able: int) -> int:
        """How many of so many."""
        return self.n if self.n is not None else max(1, round((self.share or 0) * able))

    def chance(self, able: int) -> Chance:
        """So many of all, without replacement."""
        n = self.wanted(able)
        return Chance("fixed", n / able, n, able) if n < able else Chance()

    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """The clients with the smallest draws, in order of their numbers; of very many, some by a permutation."""
        wanted = self.wanted(len(everyone))
        _warn_of_few(wanted, everyone)
        if len(everyone) > MANY and wanted * FEW <= len(everyone):
            return everyone[some_of(len(everyone), wanted, *everyone.key, "select")]
        return everyone[smallest(wanted, *everyone.key, "select", everyone.index)]


@dataclass(frozen=True)
class Poisson(Select):
    """Every client takes part with probability `rate`, independently; the cohort may be empty."""

    rate: float

    def __post_init__(self) -> None:
        within(self, rate="(0, 1]; try 0.1")

    def chance(self, able: int) -> Chance:
        """Every client by itself."""
        return Chance("poisson", self.rate) if self.rate < 1 else Chance()

    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """A coin for every client."""
        return everyone[uniform(*everyone.key, "select", everyone.index) < self.rate]


@dataclass(frozen=True)
class Churn(Select):
    """Clients go away for several rounds and come back, each independently.

        there -> away  with probability  away / (1 - away) / rounds,        away -> there  with  1 / rounds

    so that a share `away` of the clients is away on average, for `rounds` rounds at a time. Where a client is follows
    from (seed, round, client), so nothing is remembered.

    Reduces to:  `Everyone()` with away = 0; independent coins, as `Poisson(1 - away)`, with rounds = 1 / (1 - away).
    """

    away: float = 0.2
    rounds: float = 5.0

    def __post_init__(self) -> None:
        within(self, away="[0, 1); try 0.2")
        least = 1 / (1 - self.away)
        require(
            least <= self.rounds * (1 + 1e-9) and self.rounds < math.inf,
            f"Churn.rounds must be at least 1 / (1 - away) = {least:.4g}, got {self.rounds}; "
            f"try {max(5, math.ceil(least))}",
        )

    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """Those who are there."""
        return everyone[self.there(everyone.seed, everyone.round, everyone.index)]

    def there(self, seed: int, round: int, index: Tensor) -> Tensor:
        """Which of these clients are there in a round, (clients,) bool; the same whoever else is asked about."""
        leave, back = self.away / (1 - self.away) / self.rounds, 1 / self.rounds
        # One uniform number moves both chains: u < leave sends whoever is there away, u > 1 - back brings whoever is
        # away back. So the newest round with either decides, and a look back over the rounds since it is enough.
        there = uniform(seed, "churn", index) >= self.away
        known = torch.zeros(len(index), dtype=torch.bool)
        for past in range(round, 0, -1):
            u = uniform(seed, past, "churn", index)
            gone, came = ~known & (u < leave), ~known & (u > 1 - back)
            there = (there & ~gone) | came
            known |= gone | came
            if bool(known.all()):
                break
        return there


@dataclass(frozen=True)
class Active(Select):
    """Prefer clients whose loss was high when they last took part (Active FL).

        v_k = sqrt(n_k) F_k(w)        told by client k when it trains; it ages until k trains again

    The floor(alpha1 m) clients of least value are passed over; (1 - alpha3) n of the cohort are drawn without
    replacement with p_k ~ exp(alpha2 v_k), by adding Gumbel noise to alpha2 v_k and taking the largest, which
    cannot overflow; the rest are drawn uniformly from those left. Clients that have not told a value yet come
    first, in random order; a value that is not finite never wins.

    `weigh`: the plain draw is biased towards high losses; a client's weight is multiplied by n / (m pi_k), pi_k its
    chance to take part, so that the sum of weights and values estimates that over all m clients without bias, and the
    mean, which divides by the sum of the weights, up to a part that vanishes as cohorts grow:

        pi_k = q_k + (1 - q_k) (n - b) / (m - b)      b = round((1 - alpha3) n), or all survivors if fewer

    q_k: to be among b drawn one after another without replacement (`parts.inclusion`). All weights are 1 at n = m.

    Symbols:     alpha1 = `ignore`, alpha2 = `sharpness`, alpha3 = `explore`, n = `n`.
    Reduces to:  `Uniform(n)` with explore = 1, or with ignore = sharpness = 0; the n highest values as sharpness
                 grows with ignore = explore = 0. Adding a constant to all values changes nothing.
    Beware:      it chases label noise, and the value itself tells something about the client's data.
    Reference:   Goetz et al., Active federated learning, 2019, https://arxiv.org/abs/1909.12641
    """

    n: int
    ignore: float = 0.75
    sharpness: float = 0.01
    explore: float = 0.1
    weigh: bool = False
    learn = (Value(),)  # at the model received
    tells = ("value",)

    def __post_init__(self) -> None:
        within(
            self,
            n=">= 1; try 10",
            ignore="[0, 1); try 0.75",
            sharpness="[0, inf); try 0.01",
            explore="[0, 1]; try 0.1",
        )

    def remembers(self, n_clients: int) -> Stacks:
        """The last value of every client, and the round it is from (-1: none yet)."""
        return {
            "value": torch.zeros(n_clients, dtype=torch.float64),
            "value_round": torch.full((n_clients,), -1, dtype=torch.int64),
        }

    def note(self, cohort: Cohort, sent: Stacks) -> Stacks:
        """Fresh values."""
        when = torch.full((len(cohort),), cohort.round, dtype=torch.int64)
        return {"value": sent["value"][:, 0].double(), "value_round": when}

    def missed(self, cohort: Cohort) -> Stacks:
        """Asked, and worth nothing: it must not come first for ever."""
        return self.note(cohort, {"value": torch.full((len(cohort), 1), math.nan)})

    def shows(self, view: View) -> dict[str, float]:
        """How old the clients' values are on average, in rounds."""
        when = view.memory["value_round"]
        known = when[when >= 0]
        return {"value_age": float((view.round - 1 - known).double().mean())} if len(known) else {}

    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """Most by value, some at random."""
        n = min(self.n, len(everyone))
        _warn_of_few(self.n, everyone)
        if self.weigh and self.ignore > 0 and round((1 - self.explore) * self.n) == self.n:
            explorer = f"explore={math.ceil(100 / self.n) / 100}"
            nobody = f"no client of {self.n} is drawn by chance, so those passed over never come and no weight makes up"
            warnings.warn(f"Active(weigh=True): {nobody} for them; set ignore=0, or {explorer}", stacklevel=3)
        score = self.scores(memory, everyone)
        race = score - (-uniform(*everyone.key, "active", everyone.index).log()).log()
        by_value = race.argsort(descending=True, stable=True)[: self.by_value(score)]
        left = uniform(*everyone.key, "explore", everyone.index).index_fill(0, by_value, math.inf)
        chosen = torch.cat([by_value, left.argsort()[: n - len(by_value)]]).sort().values
        cohort = everyone[chosen]
        if not self.weigh:
            return cohort
        return replace(cohort, count=n / (len(everyone) * self.chances(score)[chosen].clamp(min=1e-12)))

    def by_value(self, score: Tensor) -> int:
        """How many are drawn by value; with fewer survivors than wanted the rest come by chance."""
        return min(round((1 - self.explore) * min(self.n, len(score))), int((score > -math.inf).sum()))

    def chances(self, score: Tensor) -> Tensor:
        """pi_k, to take part in a round, (clients,)."""
        drawn, able = self.by_value(score), score > -math.inf
        chance = torch.zeros_like(score).masked_scatter(able, arrive_first(score[able], drawn))
        return chance + (1 - chance) * (min(self.n, len(score)) - drawn) / max(1, len(score) - drawn)

    def scores(self, memory: Stacks, everyone: Cohort) -> Tensor:
        """alpha2 v_k; minus infinity for those passed over, more than anybody's for those never asked."""
        value, when = memory["value"][everyone.index].double(), memory["value_round"][everyone.index]
        known = when >= 0
        fine = known & value.isfinite()
        ranked = torch.where(known, torch.where(fine, value, -math.inf), math.inf)
        passed_over = ranked.argsort(stable=True)[: int(self.ignore * len(everyone) + 1e-9)]
        top = value[fine].max() if bool(fine.any()) else 0.0  # before multiplying, so that nothing overflows
        score = torch.where(fine, self.sharpness * (value - top), -math.inf).index_fill(0, passed_over, -math.inf)
        first = torch.full_like(score, 1e6)  # beyond any Gumbel noise
        return torch.where(known, score, first)


def inner(name: str) -> Any:
    """An attribute that is the one of the inner part `of`."""
    return property(attrgetter(f"of.{name}"))


class Around(Select):
    """A selection around another one, `of`: what that one asks, is told and remembers goes through."""

    of: Select
    learn, tells = inner("learn"), inner("tells")
    remembers, note, missed, shows = inner("remembers"), inner("note"), inner("missed"), inner("shows")

    def fitted(self, topology: Any) -> Select:
        """The inner selection for a topology."""
        of = self.of.fitted(topology)
        return self if of is self.of else replace(self, of=of)  # type: ignore[type-var]


@dataclass(frozen=True)
class Stragglers(Around):
    """A `share` of the cohort is slow: it does only part of its work, or is dropped (`drop`).

    A slow client's effort u is uniform on (0, 1], so that ceil(u E) epochs are uniform on 1 .. E. FedAvg
    waits for nobody and drops them, FedProx takes what they have done (Li et al., MLSys 2020).
    """

    of: Select
    share: float
    drop: bool = False
    least: float = 0.0  # of the work, that even the slowest does (MOCHA: 0.1)

    def __post_init__(self) -> None:
        within(self, share="[0, 1]; try 0.5", least="[0, 1]; try 0")

    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """The inner cohort, slowed down."""
        cohort = self.of(memory, everyone)
        slow = torch.zeros(len(cohort), dtype=torch.bool)
        slow[uniform(*cohort.key, "slow", cohort.index).argsort()[: round(self.share * len(cohort))]] = True
        done = self.least + (1 - self.least) * uniform(*cohort.key, "effort", cohort.index)
        effort = torch.where(slow, done, cohort.effort)
        return cohort[~slow] if self.drop else replace(cohort, effort=effort)


register(Select, "everyone", Everyone)
register(Select, "uniform", Uniform)
register(Select, "poisson", Poisson)
register(Select, "active", Active)
register(Select, "churn", Churn)
