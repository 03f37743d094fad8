"""Active selection: clients with a high loss come more often; and what it takes to undo that in the mean.

The names V1, V2, ... are those of the specifications of the methods.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import polycentric as pc
from polycentric import (
    Active,
    Federation,
    Method,
    State,
    Stragglers,
    Uniform,
    UsageError,
    fedavg,
    fedcurv,
    feddane,
    feddist,
    fedprox,
    fedsgd,
    fomaml,
    maml,
    meta,
    reptile,
    run_round,
)
from polycentric.parts import inclusion
from polycentric.parts.inclusion import arrive_first
from polycentric.parts.select import Select
from polycentric.runs.loop import Run
from polycentric.simulate.clock import Traffic, traffic
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.draw import normal
from polycentric.stacks.stack import Stacks
from support import Make, every_executor, ready

LAW = settings(max_examples=50)
TRAINING: dict[str, Any] = {"lr": 0.05, "epochs": 2, "batch": 20}
SLOW: dict[str, Any] = {"lr": 0.005, "batch": 20}  # FedDANE with few clients


def clients(n: int, round: int = 0, seed: int = 0, turn: int = 0) -> Cohort:
    index = torch.arange(n)
    return Cohort(index, index + 1, torch.ones(n, dtype=torch.float64), n, seed, round, turn)


def told(*values: float) -> Stacks:
    """The memory after everybody has told a value."""
    return {
        "value": torch.tensor(values, dtype=torch.float64),
        "value_round": torch.zeros(len(values), dtype=torch.int64),
    }


def picks(select: Select, memory: Stacks, rounds: int) -> Tensor:
    """Who was chosen in every round, (rounds, clients) of zeros and ones."""
    n = len(memory["value"])
    out = torch.zeros(rounds, n, dtype=torch.float64)
    for round in range(rounds):
        out[round, select(memory, clients(n, round)).index] = 1
    return out


def all_equally_likely(chosen: Tensor) -> bool:
    """Whether clients come equally often, by chi-square: never more than five standard deviations off by luck."""
    rounds, n = chosen.shape
    wanted = float(chosen.sum(1)[0])
    expected = rounds * wanted / n
    chi_square = float(((chosen.sum(0) - expected) ** 2 / expected).sum()) / (1 - wanted / n)
    return abs(chi_square - (n - 1)) < 5 * math.sqrt(2 * (n - 1))


def assert_chance(chosen: Tensor, chance: Tensor) -> None:
    spread = (chance * (1 - chance) / len(chosen)).sqrt()
    assert bool(((chosen.mean(0) - chance).abs() <= 5 * spread + 1e-12).all()), (chosen.mean(0), chance)


VALUES = (5.0, 0.1, 40.0, 3.0, 0.0, 7.0, 900.0, 2.0, 2.5, 11.0)


# -- V1 to V5: the draw --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "select",
    [
        Active(n=3, explore=1.0, sharpness=5.0),
        Active(n=3, explore=1.0, ignore=0.0),
        Active(n=3, ignore=0.0, sharpness=0.0, explore=0.0),
        Active(n=3, ignore=0.0, sharpness=0.0, explore=0.4),
        Uniform(n=3),
    ],
    ids=str,
)
def test_V1_V2_pure_exploring_and_no_sharpness_are_uniform(select: Select) -> None:
    chosen = picks(select, told(*VALUES), 700)
    assert all_equally_likely(chosen)
    cohorts = {tuple(row.nonzero()[:, 0].tolist()) for row in chosen}
    assert len(cohorts) > 0.99 * math.comb(10, 3) * (1 - math.exp(-700 / math.comb(10, 3)))  # every cohort comes


def test_V1_V2_otherwise_it_is_not_uniform() -> None:
    for select in (Active(n=3, ignore=0.0, sharpness=0.05, explore=0.0), Active(n=3, ignore=0.5, sharpness=0.0)):
        assert not all_equally_likely(picks(select, told(*VALUES), 150))


@LAW
@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=20, unique=True), st.data(), st.integers(0, 10**6))
def test_V3_with_great_sharpness_the_highest_values_win(values: list[int], data: Any, seed: int) -> None:
    n = data.draw(st.integers(1, len(values)))
    cohort = Active(n, ignore=0.0, sharpness=1e9, explore=0.0)(told(*values), clients(len(values), seed=seed))
    best = sorted(range(len(values)), key=lambda k: -values[k])[:n]
    assert cohort.index.tolist() == sorted(best)


@LAW
@given(
    st.lists(st.floats(0, 100), min_size=4, max_size=15),
    st.floats(-50, 1000),
    st.sampled_from([Active(3), Active(2, ignore=0.0, sharpness=1.0), Active(4, explore=0.5, sharpness=0.3)]),
    st.integers(0, 10**6),
)
def test_V4_a_constant_added_to_all_values_changes_nothing(
    values: list[float], constant: float, select: Active, seed: int
) -> None:
    values = [round(value, 3) for value in values]  # so that what is equal stays equal, and what is not does not
    everyone = clients(len(values), seed=seed)
    plain = select(told(*values), everyone)
    assert select(told(*(round(value + round(constant, 3), 3) for value in values)), everyone).index.equal(plain.index)


@pytest.mark.parametrize("values", [VALUES, (math.nan,) * 10, (math.inf,) * 10, (0.0,) * 10])
@pytest.mark.parametrize("ignore", [0.0, 0.75])
@pytest.mark.parametrize("explore", [0.0, 0.1, 1.0])
def test_V5_as_many_as_there_are_is_everybody(values: Any, ignore: float, explore: float) -> None:
    for memory in (told(*values), Active(10).remembers(10)):
        cohort = Active(10, ignore=ignore, explore=explore)(memory, clients(10))
        assert cohort.index.tolist() == list(range(10))
        assert cohort.sizes.tolist() == list(range(1, 11))


def test_more_clients_than_there_are_means_all_and_a_warning() -> None:
    with pytest.warns(UserWarning, match="11 clients a round were asked for, but only 10 have data"):
        assert len(Active(11)(told(*VALUES), clients(10))) == 10


def test_one_client_is_drawn_as_the_softmax_of_the_values_says() -> None:
    values = (0.0, 1.0, 2.0, 3.0, 0.5)
    chance = torch.softmax(0.7 * torch.tensor(values, dtype=torch.float64), 0)
    assert_chance(picks(Active(1, ignore=0.0, sharpness=0.7, explore=0.0), told(*values), 800), chance)


def test_two_clients_are_drawn_one_after_the_other_without_replacement() -> None:
    values = (0.0, 1.0, 2.0, 3.0)
    p = torch.softmax(torch.tensor(values, dtype=torch.float64), 0).tolist()
    chance = torch.zeros(4, dtype=torch.float64)
    for first, second in itertools.permutations(range(4), 2):
        chance[[first, second]] += p[first] * p[second] / (1 - p[first])
    assert_chance(picks(Active(2, ignore=0.0, sharpness=1.0, explore=0.0), told(*values), 800), chance)


def test_values_too_great_for_an_exponential_do_no_harm() -> None:
    chosen = picks(Active(1, ignore=0.0, sharpness=10.0, explore=0.0), told(1e5, 1e5, 1e30, 1e30), 100)
    assert not chosen[:, :2].any()
    assert_chance(chosen, torch.tensor([0, 0, 0.5, 0.5], dtype=torch.float64))


@pytest.mark.parametrize(("ignore", "over"), [(0.0, 0), (0.3, 3), (0.29, 2), (0.75, 7), (0.9, 9)])
def test_the_least_values_are_passed_over(ignore: float, over: int) -> None:
    chosen = picks(Active(1, ignore=ignore, sharpness=0.0, explore=0.0), told(*VALUES), 200)
    best = sorted(range(10), key=lambda k: -VALUES[k])[: 10 - over]
    chance = torch.zeros(10, dtype=torch.float64)
    chance[best] = 1 / len(best)
    assert_chance(chosen, chance)


def test_a_part_of_the_cohort_is_drawn_uniformly_from_those_left() -> None:
    chosen = picks(Active(4, ignore=0.0, sharpness=1e9, explore=0.5), told(*VALUES), 500)
    assert bool((chosen.sum(1) == 4).all())
    best = sorted(range(10), key=lambda k: -VALUES[k])[:2]
    left = [k for k in range(10) if k not in best]
    assert bool((chosen[:, best] == 1).all())
    assert all_equally_likely(chosen[:, left])


def test_fewer_survivors_than_wanted_are_filled_uniformly() -> None:
    chosen = picks(Active(6, ignore=0.75, sharpness=1.0, explore=0.0), told(*VALUES), 500)
    assert bool((chosen.sum(1) == 6).all())
    best = sorted(range(10), key=lambda k: -VALUES[k])[:3]  # 7 of 10 are passed over
    left = [k for k in range(10) if k not in best]
    assert bool((chosen[:, best] == 1).all())
    assert all_equally_likely(chosen[:, left])


# -- values that are missing, or no numbers ------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("ignore", [0.0, 0.25])
def test_a_value_that_is_not_finite_never_wins(bad: float, ignore: float) -> None:
    memory = told(bad, 1.0, bad, 3.0, 2.0, 0.0, 5.0, 4.0)
    chosen = picks(Active(5, ignore=ignore, sharpness=0.1, explore=0.0), memory, 60)
    assert not chosen[:, [0, 2]].any()
    assert bool((chosen.sum(1) == 5).all())
    only_bad = picks(Active(3, ignore=ignore, explore=0.0), told(*(bad,) * 8), 200)
    assert all_equally_likely(only_bad)  # with nothing to go by


@pytest.mark.parametrize("select", [Active(3, ignore=0.9, sharpness=9.0, explore=0.0), Active(3, 0.0, 0.0, 0.0)])
def test_clients_never_valued_come_first_in_random_order(select: Active) -> None:
    memory = told(*(1e12, math.inf, math.nan, 1e300, 0.0, 1.0, 2.0, 3.0))
    memory["value_round"][4:] = -1
    chosen = picks(select, memory, 300)
    assert not chosen[:, :4].any()
    assert all_equally_likely(chosen[:, 4:])
    memory["value_round"][5:] = 3
    chosen = picks(select, memory, 30)
    assert bool(chosen[:, 4].all())


def test_everybody_is_tried_before_anybody_comes_again(blobs: Make) -> None:
    method = fedavg(select=Active(3, explore=0.0), **TRAINING)
    prepared = ready(method, blobs((4,) * 10))
    state, seen = prepared.state, []
    for _ in range(4):
        state, (trip,) = run_round(method, state, prepared.clients)
        seen.append(set(trip.cohort.index.tolist()))
    assert len(set.union(*seen[:3])) == 9
    assert set.union(*seen) == set(range(10))


@pytest.mark.parametrize("n", [1, 2])
def test_a_client_whose_answers_are_lost_does_not_come_first_for_ever(n: int, blobs: Make) -> None:
    # Its loss overflows: it never tells a value, and must not be asked in every round for that.
    federation = blobs((8,) * 6)
    bad = (federation.train.owner == 0)[:, None]
    federation = replace(federation, train=replace(federation.train, x=torch.where(bad, 1e200, federation.train.x)))
    method = fedavg(select=Active(n, ignore=0.0, explore=0.0), **TRAINING)
    prepared = ready(method, federation, model=squaring)
    state, asked = prepared.state, []
    for _ in range(16):
        state, (trip,) = run_round(method, state, prepared.clients)
        asked.append(0 in trip.cohort.index.tolist())
    assert sum(asked) <= 2, f"client 0 was asked in {sum(asked)} of 16 rounds and never gave an answer"


# -- in a run ------------------------------------------------------------------------------------------------


class Squares(nn.Module):
    """Overflows on large inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square()


def squaring(shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(*shape, 4), Squares(), nn.Linear(4, n_outputs))


def value_of(prepared: Run, w: Tensor, client: int) -> float:
    """sqrt(n_k) times the mean loss, which is 1/sqrt(n_k) times the sum."""
    part = prepared.federation.train.of(client)
    losses = nn.functional.cross_entropy(
        prepared.clients.task.outputs({"model": w}, part.x), part.y, reduction="none"
    ).detach()
    assert float(losses.sum() / len(part) ** 0.5) == pytest.approx(len(part) ** 0.5 * float(losses.mean()), rel=1e-12)
    return len(part) ** 0.5 * float(losses.mean())


ACTIVE = Active(3, ignore=0.4, sharpness=0.5, explore=0.3)
METHODS: dict[str, Callable[[Select], Method]] = {
    "fedavg": lambda select: fedavg(select=select, **TRAINING),
    "fedsgd": lambda select: fedsgd(lr=0.05, select=select),
    "fedprox": lambda select: fedprox(select=select, **TRAINING),
    "fedprox with stragglers": lambda select: fedprox(select=select, stragglers=0.5, **TRAINING | {"epochs": 4}),
    "fedprox adaptive": lambda select: fedprox(select=select, adaptive=True, **TRAINING),
    "feddane": lambda select: feddane(select=select, **SLOW),
    "feddane with stragglers": lambda select: feddane(select=Stragglers(select, 0.4), epochs=3, **SLOW),
    "fedcurv": lambda select: fedcurv(select=select, **TRAINING),
    "feddist": lambda select: feddist(select=select, **TRAINING),
    "reptile": lambda select: reptile(select=select, lr=0.05, steps=3, batch=5),
    "maml": lambda select: maml(select=select, steps=2),
    "fomaml": lambda select: fomaml(select=select, steps=2),
    "meta": lambda select: meta(rounds=2, epochs=1, steps=2, select=select, lr=0.05),
}
every_method = pytest.mark.parametrize("name", METHODS)
FAR = (300, 7, 12, 1, 30, 9, 14)  # more than one chunk of examples, and one example


@every_method
def test_a_value_is_told_at_the_model_received_and_ages_until_the_client_comes_again(name: str, blobs: Make) -> None:
    method = METHODS[name](ACTIVE)
    prepared = ready(method, blobs(FAR))
    state, values, when = prepared.state, [0.0] * 7, [-1] * 7
    for round in range(5):
        w = state.centers["model"][0]  # the first exchange of FedDANE does not move it
        state, trips = run_round(method, state, prepared.clients)
        for trip in trips:
            assert len(trip.cohort) == 3
            for k in trip.arrived.index.tolist():
                values[k], when[k] = value_of(prepared, w, k), round
        expected = torch.tensor(values, dtype=torch.float64)
        torch.testing.assert_close(state.memory["value"], expected, rtol=1e-10, atol=0)
        assert state.memory["value_round"].tolist() == when
    assert len({*when}) > 1  # some values have aged


@dataclass(frozen=True, eq=False)
class Replay(Select):
    """The cohorts that somebody else chose."""

    cohorts: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        return everyone[self.cohorts[everyone.round, everyone.turn]]


def chosen_by(method: Method, federation: Federation, rounds: int, **how: Any) -> tuple[State, Replay]:
    prepared = ready(method, federation, **how)
    state, replay = prepared.state, Replay()
    for round in range(rounds):
        state, trips = run_round(method, state, prepared.clients)
        replay.cohorts.update({(round, turn): trip.cohort.index for turn, trip in enumerate(trips)})
    return state, replay


@every_method
@every_executor
def test_V6_with_the_same_cohorts_it_is_the_method_itself(name: str, executor: Any, blobs: Make) -> None:
    federation = blobs((23, 7, 12, 1, 30, 9, 14))
    active, replay = chosen_by(METHODS[name](ACTIVE), federation, 3, executor=executor)
    plain, _ = chosen_by(METHODS[name](replay), federation, 3, executor=executor)
    for mine, theirs in ((active.centers, plain.centers), (active.kept, plain.kept)):
        assert mine.keys() == theirs.keys()
        for stack in mine:
            torch.testing.assert_close(mine[stack], theirs[stack], rtol=1e-10, atol=1e-10)
    assert plain.memory.keys() == active.memory.keys() - {"value", "value_round"}


def test_V6_stragglers_that_are_dropped_are_not_there_and_tell_nothing(blobs: Make) -> None:
    federation = blobs((23, 7, 12, 1, 30, 9, 14))
    slow, replay = chosen_by(fedavg(select=Active(4), stragglers=0.5, **TRAINING), federation, 4)
    plain, _ = chosen_by(fedavg(select=replay, **TRAINING), federation, 4)
    torch.testing.assert_close(slow.centers["model"], plain.centers["model"], rtol=1e-10, atol=1e-10)
    assert all(len(cohort) == 2 for cohort in replay.cohorts.values())
    came = {k for cohort in replay.cohorts.values() for k in cohort.tolist()}
    assert {k for k, when in enumerate(slow.memory["value_round"].tolist()) if when >= 0} == came


def test_a_value_is_one_number_more_on_the_way_up(blobs: Make) -> None:
    method = fedavg(select=Active(3), **TRAINING)
    prepared = ready(method, blobs())
    _, (trip,) = run_round(method, prepared.state, prepared.clients)
    row = prepared.clients.task.width * 8
    assert traffic(trip) == Traffic(down=3 * row, up=3 * (row + 8))


# -- weighing ------------------------------------------------------------------------------------------------


def drawn_in_turn(rates: list[float], n: int) -> Tensor:
    """Chances to be among n drawn without replacement, by adding up all orders."""
    out = torch.zeros(len(rates), dtype=torch.float64)
    for order in itertools.permutations(range(len(rates)), n):
        chance, left = 1.0, sum(rates)
        for k in order:
            chance, left = chance * rates[k] / left, left - rates[k]
        out[list(order)] += chance
    return out


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("rates", [[1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 4 + [50.0], [1e-3, 1.0, 1.0, 40.0, 1e5]], ids=str)
def test_chances_to_be_drawn_are_those_of_all_orders(rates: list[float], n: int) -> None:
    found = arrive_first(torch.tensor(rates, dtype=torch.float64).log(), n)
    torch.testing.assert_close(found, drawn_in_turn(rates, n), rtol=5e-5, atol=1e-7)


@pytest.mark.parametrize(("many", "n", "spread"), [(300, 18, 4.0), (200, 99, 2.0), (60, 59, 3.0), (8, 4, 1e7)])
def test_chances_to_be_drawn_add_up_and_follow_the_rates(many: int, n: int, spread: float) -> None:
    found = arrive_first(torch.linspace(0, spread, many, dtype=torch.float64), n)
    assert float(found.sum()) == pytest.approx(n, rel=5e-5)
    assert bool((found.diff() > -1e-5).all()) and bool((found <= 1 + 1e-9).all())


def test_chances_of_nobody_and_of_everybody() -> None:
    rates = torch.tensor([0.0, -1e9, 3.0], dtype=torch.float64)
    assert arrive_first(rates, 0).tolist() == [0, 0, 0] and arrive_first(rates, 3).tolist() == [1, 1, 1]


def test_many_draws_are_off_by_less_than_a_hundredth(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = 3 * normal("rates", torch.arange(300))
    quick = arrive_first(rates, 100)
    monkeypatch.setattr(inclusion, "DRAWN", 101)
    exact = arrive_first(rates, 100)
    assert 0 < float((quick / exact - 1).abs().max()) < 0.01
    monkeypatch.setattr(inclusion, "HELD", 300 * 100 * 7)  # seven moments at a time
    torch.testing.assert_close(arrive_first(rates, 100), exact, rtol=1e-12, atol=0)


LINE = torch.linspace(0, 4, 40, dtype=torch.float64)
WEIGHED = {
    "the defaults, 10": Active(10, weigh=True),
    "the defaults, 20": Active(20, weigh=True),
    "sharp": Active(10, ignore=0.0, sharpness=0.6, explore=0.0, weigh=True),
    "sharp, with explorers": Active(12, ignore=0.3, sharpness=0.6, explore=0.25, weigh=True),
    "fewer survivors than wanted": Active(15, ignore=0.9, sharpness=0.5, explore=0.2, weigh=True),
}


@pytest.mark.parametrize("select", WEIGHED.values(), ids=WEIGHED)
@pytest.mark.parametrize("new", [0, 3], ids=["all told", "three never asked"])
def test_weighed_sums_are_unbiased(select: Active, new: int) -> None:
    memory = told(*LINE.tolist())
    memory["value_round"][:new] = -1
    chance = select.chances(select.scores(memory, clients(40)))
    assert float(chance.sum()) == pytest.approx(select.n, rel=5e-5)
    cohort = select(memory, clients(40))
    torch.testing.assert_close(cohort.count, select.n / (40 * chance[cohort.index]))
    chosen = picks(replace(select, weigh=False), memory, 2000)
    for x in (LINE, torch.ones_like(LINE)):
        sums = chosen @ (x / chance) / 40
        assert abs(float(sums.mean() - x.mean())) < 3 * float(sums.std()) / math.sqrt(len(sums)) + 1e-4
    assert new or float((chosen @ LINE).mean()) / select.n > 2.1  # there is something to undo


@pytest.mark.parametrize("n", [10, 20, 40])
def test_the_weighed_mean_of_the_defaults_is_that_of_all_clients(n: int) -> None:
    """2.000; a mean divides by its weights, which leaves something where one of ten is an explorer with most of it."""
    select, memory = Active(n, weigh=True), told(*LINE.tolist())
    weight = 1 / select.chances(select.scores(memory, clients(40)))
    chosen = picks(replace(select, weigh=False), memory, 2000 if n < 40 else 2)
    means = chosen @ (weight * LINE) / (chosen @ weight)
    assert abs(float(means.mean()) - 2) < 0.04 * (n == 10) + 3 * float(means.std()) / math.sqrt(len(means)) + 1e-12


def test_everybody_weighs_one_where_all_are_drawn() -> None:
    for memory in (told(*VALUES), Active(10).remembers(10)):
        cohort = Active(10, weigh=True)(memory, clients(10))
        assert cohort.count is not None and cohort.count.tolist() == [1] * 10
    plain, weighed = (Active(4, explore=0.5, weigh=weigh)(told(*VALUES), clients(10)) for weigh in (False, True))
    assert plain.index.equal(weighed.index) and plain.count is None  # who is drawn is the same


def test_as_many_explorers_as_round_says() -> None:
    """0.9 * 7 = 6.3, 0.9 * 8 = 7.2, 0.7 * 5 = 3.5, 0.6 * 6 = 3.6 and 0.9 * 4 = 3.6 are drawn by value."""
    for n, explore, by_value in ((7, 0.1, 6), (8, 0.1, 7), (5, 0.3, 4), (6, 0.4, 4), (4, 0.1, 4)):
        chosen = picks(Active(n, ignore=0.0, sharpness=1e9, explore=explore), told(*range(20)), 60)
        assert int((chosen.mean(0) == 1).sum()) == by_value, (n, explore)


def test_weighing_that_cannot_work_is_said() -> None:
    with pytest.warns(UserWarning, match=r"no client of 4 is drawn by chance, so those passed over never come.*0.25"):
        picks(Active(4, weigh=True), told(*range(20)), 1)
    for quiet in (Active(4, explore=0.25, weigh=True), Active(4, ignore=0.0, weigh=True), Active(4)):
        picks(quiet, told(*range(20)), 1)


def test_weights_are_used_where_the_center_takes_its_mean(blobs: Make) -> None:
    federation = blobs((23, 7, 12, 1, 30, 9, 14))
    method = fedavg(select=replace(ACTIVE, weigh=True), **TRAINING)
    prepared = ready(method, federation)
    state = prepared.state
    for _ in range(4):
        before, (state, (trip,)) = state, run_round(method, state, prepared.clients)
    (answer,) = prepared.clients.answers(method.at(3)[0], before, trip.cohort)
    assert answer.block.count is not None and len(answer.block.count.unique()) > 1
    weight = answer.block.count * answer.block.sizes
    expected = weight @ answer.sent["model"] / weight.sum()
    torch.testing.assert_close(state.centers["model"][0], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Active(0), "Active.n must be at least 1, got 0"),
        (lambda: Active(1, ignore=1.0), r"Active.ignore must be in \[0, 1\), got 1.0"),
        (lambda: Active(1, sharpness=-1.0), "Active.sharpness must be in \\[0, inf\\), got -1.0"),
        (lambda: Active(1, sharpness=math.inf), "Active.sharpness must be in \\[0, inf\\), got inf"),
        (lambda: Active(1, explore=1.1), r"Active.explore must be in \[0, 1\], got 1.1"),
    ],
)
def test_a_mistake_is_named(build: Callable[[], Active], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        build()


def test_the_age_of_values_is_told() -> None:
    """Everybody every round: all are fresh. One of four in turn: 0, 1, 2 and 3 rounds old after the first tour."""
    federation = pc.load("digits", partition=pc.Iid(4))
    fresh = pc.run(pc.fedavg(select=pc.Active(4)), federation, model="logistic", rounds=3, fine_tune=0)
    assert "value_age" not in fresh.history[0] and [row["value_age"] for row in fresh.history[1:]] == [0, 0, 0]
    turns = pc.run(pc.fedavg(select=pc.Active(1, explore=0)), federation, model="logistic", rounds=4, fine_tune=0)
    assert [row["value_age"] for row in turns.history[1:]] == [0, 0.5, 1, 1.5]
    plain = pc.run(pc.fedavg(), federation, model="logistic", rounds=1, fine_tune=0)
    assert "value_age" not in plain.history[-1]
