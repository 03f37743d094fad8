"""Draws: pure functions of their key, uniform, and the same bits everywhere."""

import itertools
import math
import zlib

import pytest
import torch
from hypothesis import given, settings, strategies as st

from polycentric.stacks.draw import bits, normal, seed_of, seeded, shuffled, smallest, some_of, uniform

LAW = settings(max_examples=50)
WORD = (1 << 64) - 1


def by_hand(*key):
    """splitmix64's finaliser over the parts of a key, in Python's own integers; the result is signed."""
    state = 0
    for part in key:
        part = zlib.crc32(part.encode()) if isinstance(part, str) else part
        h = (state * 31 + part + 0x1E3779B97F4A7C15) & WORD
        h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & WORD
        state = h ^ (h >> 31)
    return state - (1 << 64) if state >> 63 else state


# Made by `by_hand`: should the hash ever change, runs that were begun could not be resumed.
KNOWN = {
    (0, 0, "select", 7): 4653465844382672322,
    (12, 3, 1, "slow", 10**12): -5175048119952727133,
    (2**62, -5, "batch"): -3573337616957421771,
}


@pytest.mark.parametrize("key", KNOWN, ids=str)
def test_three_known_values(key):
    assert by_hand(*key) == KNOWN[key]
    assert int(bits(*key)) == KNOWN[key]


@LAW
@given(st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(max_size=8)), max_size=5))
def test_bits_are_those_of_splitmix_in_plain_python(key):
    assert int(bits(*key)) == by_hand(*key)
    assert float(uniform(*key)) == (((by_hand(*key) & WORD) >> 11) + 0.5) / 2**53
    assert seed_of(*key) == by_hand(*key) & (2**63 - 1)


@LAW
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=20), st.integers(0, 10**9), st.randoms())
def test_a_draw_does_not_depend_on_who_else_draws(clients, seed, random):
    together = uniform(seed, 3, "select", torch.tensor(clients)).tolist()
    alone = [float(uniform(seed, 3, "select", client)) for client in clients]
    assert together == alone
    order = random.sample(range(len(clients)), len(clients))
    moved = uniform(seed, 3, "select", torch.tensor([clients[i] for i in order])).tolist()
    assert moved == [together[i] for i in order]


def test_keys_broadcast():
    clients, epochs = torch.arange(4)[:, None], torch.arange(3)
    table = bits(1, clients, "epoch", epochs)
    assert table.shape == (4, 3)
    for i, j in itertools.product(range(4), range(3)):
        assert int(table[i, j]) == by_hand(1, i, "epoch", j)


def test_every_part_of_a_key_and_its_place_count():
    keys = [(0, 0, "a", 0), (1, 0, "a", 0), (0, 1, "a", 0), (0, 0, "b", 0), (0, 0, "a", 1), (0, 0, "a"), (0, "a", 0, 0)]
    assert len({int(bits(*key)) for key in keys}) == len(keys)


def test_neighbouring_keys_share_half_of_their_bits():
    a, b = bits(5, torch.arange(10_000)), bits(5, torch.arange(1, 10_001))
    different = (a ^ b).numpy().astype("uint64")
    mean = sum(int(x).bit_count() for x in different) / 10_000
    assert mean == pytest.approx(32, abs=5 * 4 / 100)  # a binomial(64, 1/2) has deviation 4


def test_uniform_is_uniform_on_the_open_interval():
    n = 200_000
    draws = uniform(3, "test", torch.arange(n))
    assert draws.dtype == torch.float64
    assert bool(((draws > 0) & (draws < 1)).all())
    assert float(draws.mean()) == pytest.approx(1 / 2, abs=5 * math.sqrt(1 / 12 / n))
    assert float(draws.var()) == pytest.approx(1 / 12, abs=5 * math.sqrt(1 / 180 / n))
    steps = torch.arange(1, n + 1, dtype=torch.float64) / n
    assert float((draws.sort().values - steps).abs().max()) < 2.5 / math.sqrt(n)  # Kolmogorov and Smirnov


def test_normal_is_normal():
    n = 200_000
    draws = normal(3, "test", torch.arange(n))
    for power, moment, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert float((draws**power).mean()) == pytest.approx(moment, abs=5 * math.sqrt(variance / n))
    exact = torch.special.ndtr(draws.sort().values)
    steps = torch.arange(1, n + 1, dtype=torch.float64) / n
    assert float((exact - steps).abs().max()) < 2.5 / math.sqrt(n)


@LAW
@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.integers(0, 10**9))
def test_a_shuffle_permutes_every_segment_by_itself(sizes, seed):
    segment = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    order = shuffled(segment, seed, segment, torch.arange(len(segment)))
    assert sorted(order.tolist()) == list(range(len(segment)))
    assert torch.equal(segment[order], segment)


@LAW
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**9))
def test_a_segment_is_shuffled_the_same_in_any_company(n, other, seed):
    def order(sizes, names):
        segment = torch.repeat_interleave(torch.tensor(names), torch.tensor(sizes))
        counter = torch.cat([torch.arange(size) for size in sizes])
        place = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        return shuffled(place, seed, segment, counter)

    together, alone = order([other, n], [3, 8]), order([n], [8])
    assert torch.equal(together[other:] - other, alone)


def test_every_order_of_three_is_equally_likely():
    n = 12_000
    segment = torch.arange(n).repeat_interleave(3)
    order = shuffled(segment, 1, segment, torch.arange(3).repeat(n)).view(n, 3) % 3
    counts = torch.bincount(order @ torch.tensor([9, 3, 1]), minlength=27)
    there = counts[counts > 0].double()
    assert len(there) == 6
    chi_square = float(((there - n / 6) ** 2 / (n / 6)).sum())
    assert abs(chi_square - 5) < 5 * math.sqrt(10)


@LAW
@given(st.integers(1, 300), st.integers(0, 10**9))
def test_some_of_all_is_everyone_once(n, seed):
    assert some_of(n, n, seed, "some").tolist() == list(range(n))


@LAW
@given(st.integers(100_000, 10**12), st.integers(1, 200), st.integers(0, 10**9))
def test_some_are_different_in_order_and_always_the_same(n, count, seed):
    drawn = some_of(n, count, seed, "some")
    assert len(drawn) == count and bool((drawn[1:] > drawn[:-1]).all())
    assert 0 <= int(drawn[0]) and int(drawn[-1]) < n
    assert torch.equal(drawn, some_of(n, count, seed, "some"))


@pytest.mark.parametrize(("n", "count"), [(20, 5), (101, 1), (64, 30)])
def test_some_are_any_of_them_equally_often(n, count):
    times, counts = 2000, torch.zeros(n)
    for k in range(times):
        counts[some_of(n, count, k, "some")] += 1
    expected = times * count / n
    chi_square = float(((counts - expected) ** 2 / expected).sum()) / (1 - (count - 1) / (n - 1))
    assert abs(chi_square - (n - 1)) < 5 * math.sqrt(2 * (n - 1))


def test_some_are_any_pair_equally_often():
    times, pairs = 3000, {}
    for k in range(times):
        pair = tuple(some_of(6, 2, k, "some").tolist())
        pairs[pair] = pairs.get(pair, 0) + 1
    assert len(pairs) == 15
    chi_square = sum((seen - times / 15) ** 2 / (times / 15) for seen in pairs.values())
    assert abs(chi_square - 14) < 5 * math.sqrt(28)


def test_some_of_very_many_lie_evenly_and_apart_from_each_other():
    n, count, bins = 1_000_003, 1000, 50
    counts, both = torch.zeros(bins), 0
    for k in range(200):
        drawn = some_of(n, count, 0, k, 0, "select")
        counts += torch.bincount(drawn * bins // n, minlength=bins)
        both += int(torch.isin(drawn, some_of(n, count, 0, k + 1, 0, "select")).sum())
    expected = 200 * count / bins
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - (bins - 1)) < 5 * math.sqrt(2 * (bins - 1))
    assert abs(both - 200) < 5 * math.sqrt(200)  # one in a thousand is drawn in the next round again


def test_modules_that_draw_by_themselves_draw_by_the_key():
    def drawn(key):
        with seeded(torch.device("cpu"), key, "modules"):
            return torch.randn(3)

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_a_draw_leaves_torchs_own_generator_alone():
    before = torch.random.get_rng_state()
    uniform(1, torch.arange(5))
    with seeded(torch.device("cpu"), 1):
        torch.rand(1)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("clients", [1, 7, 1000, 40_000, 100_001])
@pytest.mark.parametrize("n", [1, 6, 900])
def test_the_smallest_draws_are_those_of_a_full_sort(clients: int, n: int) -> None:
    who = torch.arange(clients) * 5 + 2
    for seed in range(3):
        full = uniform(seed, 1, "select", who).argsort()[:n].sort().values
        assert torch.equal(smallest(n, seed, 1, "select", who), full)


def test_the_smallest_draws_are_found_where_the_bound_was_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    def high(*key):
        return 0.9 + uniform(*key) / 10

    monkeypatch.setattr("polycentric.stacks.draw.uniform", high)
    who = torch.arange(50_000)
    assert torch.equal(smallest(20, 3, "select", who), high(3, "select", who).argsort()[:20].sort().values)
