"""Selection: who takes part depends on the key and on nothing else."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from polycentric.errors import UsageError
from polycentric.parts.select import Churn, Everyone, Poisson, Stragglers, Uniform
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.draw import uniform

LAW = settings(max_examples=50)


def clients(n, round=0, seed=0, turn=0):
    index = torch.arange(n)
    return Cohort(index, index + 1, torch.ones(n, dtype=torch.float64), n, seed, round, turn)


def chosen(select, everyone):
    return set(select({}, everyone).index.tolist())


@pytest.mark.parametrize("some", [[], [2], [4, 0], [1, 3, 0, 4, 2]])
def test_a_cohort_without_some_is_the_others_in_their_order(some):
    left = clients(5).without(clients(5)[torch.tensor(some, dtype=torch.int64)])
    assert left.index.tolist() == [k for k in range(5) if k not in some]
    assert torch.equal(left.sizes, left.index + 1)


@LAW
@given(st.integers(1, 50), st.data(), st.integers(0, 10**9))
def test_uniform_takes_exactly_n_different_clients(n, data, seed):
    wanted = data.draw(st.integers(1, n))
    cohort = Uniform(wanted)({}, clients(n, seed=seed))
    assert len(cohort) == len(set(cohort.index.tolist())) == wanted
    assert torch.equal(cohort.sizes, cohort.index + 1)  # sizes and effort go with their client
    assert cohort.n_clients == n


@pytest.mark.parametrize(
    ("share", "n", "wanted"), [(0.1, 100, 10), (0.1, 3, 1), (0.5, 7, 4), (1.0, 7, 7), (0.001, 50, 1), (0.26, 10, 3)]
)
def test_a_share_is_rounded_but_never_to_nobody(share, n, wanted):
    assert len(Uniform(share=share)({}, clients(n))) == wanted


def test_uniform_finds_all_clients_equally_likely():
    n, wanted, rounds = 20, 5, 4000
    counts = torch.zeros(n)
    for round in range(rounds):
        counts[Uniform(wanted)({}, clients(n, round)).index] += 1
    expected = rounds * wanted / n
    chi_square = float(((counts - expected) ** 2 / expected).sum()) / (1 - wanted / n)
    # 19 degrees of freedom: mean 19, variance 38; five standard deviations on either side are never left by luck.
    assert abs(chi_square - (n - 1)) < 5 * math.sqrt(2 * (n - 1))


def test_uniform_finds_all_pairs_equally_likely():
    n, rounds = 6, 6000
    pairs = {}
    for round in range(rounds):
        pair = tuple(Uniform(2)({}, clients(n, round)).index.tolist())
        pairs[pair] = pairs.get(pair, 0) + 1
    assert len(pairs) == 15
    expected = rounds / 15
    chi_square = sum((count - expected) ** 2 / expected for count in pairs.values())
    assert abs(chi_square - 14) < 5 * math.sqrt(28)


def test_some_of_very_many_are_found_without_a_draw_for_everyone(monkeypatch):
    select, everyone = Uniform(1000), clients(100_001, round=2, seed=5)
    first = select({}, everyone)
    assert len(first) == len(set(first.index.tolist())) == 1000 and torch.equal(first.sizes, first.index + 1)
    assert torch.equal(first.index, first.index.sort().values)
    with monkeypatch.context() as closed:
        closed.setattr("polycentric.parts.select.smallest", None)
        assert torch.equal(select({}, everyone).index, first.index)
        assert not torch.equal(select({}, clients(100_001, round=3, seed=5)).index, first.index)
        sparse = everyone[everyone.index % 2 == 0].join([everyone[everyone.index % 2 == 1]])  # places are not numbers
        assert bool(torch.isin(select({}, sparse).index, sparse.index).all())
    monkeypatch.setattr("polycentric.parts.select.some_of", None)
    assert len(select({}, clients(100_000))) == 1000  # as ever
    assert len(Uniform(share=0.5)({}, everyone)) == 50_000  # more than a permutation is good for


@pytest.mark.parametrize("select", [Uniform(5), Poisson(0.3), Stragglers(Uniform(5), 0.4)], ids=str)
def test_the_key_decides_and_every_part_of_it_counts(select):
    def draw(**key):
        cohort = select({}, clients(50, **key))
        return cohort.index.tolist(), cohort.effort.tolist()

    assert draw(seed=1, round=2, turn=3) == draw(seed=1, round=2, turn=3)
    keys = [{}, {"seed": 1}, {"round": 1}, {"turn": 1}]
    assert len({str(draw(**key)) for key in keys}) == len(keys)


@LAW
@given(
    st.sampled_from([Uniform(4), Uniform(share=0.3), Poisson(0.4), Stragglers(Uniform(6), 0.5)]),
    st.integers(6, 30),
    st.integers(0, 10**6),
)
def test_the_order_of_the_clients_does_not_matter(select, n, seed):
    everyone = clients(n, seed=seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    a, b = select({}, everyone), select({}, everyone[order])
    assert set(zip(a.index.tolist(), a.effort.tolist(), strict=True)) == set(
        zip(b.index.tolist(), b.effort.tolist(), strict=True)
    )


@LAW
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_a_coin_is_tossed_for_every_client_by_itself(n, seed):
    some = clients(40, seed=seed)[:n]  # who else is there does not matter
    assert chosen(Poisson(0.3), some) == {k for k in chosen(Poisson(0.3), clients(40, seed=seed)) if k < n}


def test_everyone_is_everyone():
    everyone = clients(7)
    assert Everyone()({}, everyone) is everyone


def test_more_clients_than_there_are_means_all_and_a_warning():
    with pytest.warns(
        UserWarning, match="^9 clients a round were asked for, but only 7 have data: all of them take part$"
    ):
        assert chosen(Uniform(9), clients(7)) == set(range(7))


def test_poisson_comes_at_its_rate():
    n, rounds, rate = 200, 200, 0.15
    sizes = torch.tensor([len(Poisson(rate)({}, clients(n, round))) for round in range(rounds)]).double()
    deviation = math.sqrt(n * rate * (1 - rate))
    assert abs(float(sizes.mean()) - n * rate) < 5 * deviation / math.sqrt(rounds)
    assert float(sizes.std()) == pytest.approx(deviation, rel=5 / math.sqrt(2 * rounds))


def test_a_poisson_cohort_may_be_empty_and_is_still_a_cohort():
    sizes = [len(Poisson(0.01)({}, clients(5, round))) for round in range(100)]
    assert 0 in sizes
    assert all(len(Poisson(1.0)({}, clients(5, round))) == 5 for round in range(5))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_exactly_a_share_of_the_cohort_is_slow(share):
    for round in range(20):
        cohort = Stragglers(Uniform(10), share)({}, clients(30, round))
        assert int((cohort.effort < 1).sum()) == round_half(share * 10)
        dropped = Stragglers(Uniform(10), share, drop=True)({}, clients(30, round))
        assert len(dropped) == 10 - round_half(share * 10)
        assert bool((dropped.effort == 1).all())
        assert set(dropped.index.tolist()) == set(cohort.index[cohort.effort == 1].tolist())


def test_the_share_of_the_slow_is_rounded():
    assert [len(Stragglers(Everyone(), 0.6, drop=True)({}, clients(n))) for n in (1, 2, 3, 4)] == [0, 1, 1, 2]


def round_half(number):
    return math.floor(number + 0.5)


def test_epochs_of_the_slow_are_uniform_on_one_to_all():
    epochs, counts = 5, torch.zeros(6)
    for round in range(100):
        effort = Stragglers(Everyone(), 1.0)({}, clients(100, round)).effort
        assert bool(((effort > 0) & (effort <= 1)).all())
        counts += torch.bincount((effort * epochs).ceil().long(), minlength=6)
    assert counts[0] == 0
    expected = float(counts.sum()) / epochs
    chi_square = float(((counts[1:] - expected) ** 2 / expected).sum())
    assert abs(chi_square - 4) < 5 * math.sqrt(8)


def test_who_is_slow_has_nothing_to_do_with_who_is_chosen_first():
    rounds, both = 400, 0
    for round in range(rounds):
        cohort = Stragglers(Uniform(20), 0.5)({}, clients(40, round))
        slow = set(cohort.index[cohort.effort < 1].tolist())
        both += len(slow & chosen(Uniform(10), clients(40, round)))  # those of the twenty with the smallest draws
    deviation = math.sqrt(10 * 0.5 * 0.5 * 10 / 19)  # hypergeometric: 10 slow and 10 first, of 20
    assert both / rounds == pytest.approx(5, abs=5 * deviation / math.sqrt(rounds))


def test_stragglers_remember_and_note_what_the_inner_selection_does():
    class Curious(Everyone):
        def remembers(self, n_clients):
            return {"value": torch.zeros(n_clients)}

        def note(self, cohort, sent):
            return {"value": sent["loss"]}

    slow = Stragglers(Curious(), 0.5)
    assert torch.equal(slow.remembers(3)["value"], torch.zeros(3))
    assert torch.equal(slow.note(None, {"loss": torch.ones(2)})["value"], torch.ones(2))


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Uniform(), "Uniform takes n or share: Uniform(n=10) or Uniform(share=0.1)"),
        (lambda: Uniform(1, 0.5), "Uniform takes n or share: Uniform(n=10) or Uniform(share=0.1)"),
        (lambda: Uniform(0), "Uniform.n must be at least 1, got 0; try 10"),
        (lambda: Uniform(share=0.0), "Uniform.share must be in (0, 1], got 0.0; try 0.1"),
        (lambda: Uniform(share=1.5), "Uniform.share must be in (0, 1], got 1.5; try 0.1"),
        (lambda: Poisson(0), "Poisson.rate must be in (0, 1], got 0; try 0.1"),
        (lambda: Poisson(float("nan")), "Poisson.rate must be in (0, 1], got nan; try 0.1"),
        (lambda: Stragglers(Everyone(), -0.1), "Stragglers.share must be in [0, 1], got -0.1; try 0.5"),
        (lambda: Stragglers(Everyone(), 1.1), "Stragglers.share must be in [0, 1], got 1.1; try 0.5"),
    ],
)
def test_a_mistake_is_named(build, text):
    with pytest.raises(UsageError) as wrong:
        build()
    assert str(wrong.value) == text


def test_a_cohort_of_a_few_is_drawn_as_ever():
    everyone = clients(8, 3, turn=1)
    draws = uniform(*everyone.key, "select", everyone.index)
    assert torch.equal(Uniform(n=3)({}, everyone).index, everyone.index[draws.argsort()[:3].sort().values])


# -- clients that come and go --------------------------------------------------------------------------------


def presence(churn, n, rounds, seed=0):
    return torch.stack([churn.there(seed, k, torch.arange(n)) for k in range(rounds)])  # (rounds, clients)


def test_churn_keeps_the_share_and_the_length_it_was_asked_for():
    there = presence(Churn(away=0.3, rounds=6), 2000, 60)
    assert abs(float(there.double().mean()) - 0.7) < 0.02
    assert abs(float(there[0].double().mean()) - 0.7) < 0.03  # from the first round on
    back = float((~there[:-1] & there[1:]).sum() / (~there[:-1]).sum())
    gone = float((there[:-1] & ~there[1:]).sum() / there[:-1].sum())
    assert back == pytest.approx(1 / 6, abs=0.01)
    assert gone == pytest.approx(0.3 / 0.7 / 6, abs=0.01)


def test_churn_without_absence_is_everyone_and_short_stretches_are_coins():
    assert bool(presence(Churn(away=0.0, rounds=4), 50, 20).all())
    there = presence(Churn(away=0.5, rounds=2), 4000, 12)
    again = float((there[:-1] & there[1:]).double().mean())
    assert again == pytest.approx(0.25, abs=0.01)  # independent from round to round, as Poisson(0.5)
    assert len(Poisson(0.5)({}, clients(4000))) == pytest.approx(2000, abs=150)


def test_churn_does_not_depend_on_who_is_asked_about():
    churn, some = Churn(away=0.4, rounds=5), torch.tensor([3, 17, 40])
    for k in (0, 1, 7, 30):
        whole = churn.there(5, k, torch.arange(50))
        assert churn.there(5, k, some).tolist() == whole[some].tolist()


def test_the_chance_to_be_drawn_is_what_an_accountant_is_told():
    assert (Uniform(n=3).chance(12).rate, Uniform(n=3).chance(12).n) == (0.25, 3)
    assert Uniform(share=0.5).chance(8).rate == 0.5 and Poisson(0.3).chance(8).rate == 0.3
    assert Uniform(n=9).chance(9).kind == Everyone().chance(9).kind == "all"
