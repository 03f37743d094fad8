"""Clusterings of many clients and to many centers: the same partitions, without a number for every two clients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import polycentric as pc
from polycentric.data import Federation
from polycentric.errors import UsageError
from polycentric.parts.aggregate import Mean
from polycentric.stacks.all_rows import inner_products
from polycentric.stacks.draw import uniform
from polycentric.topology.clusters import anchor, seeding, splitting
from polycentric.topology.clusters.seeding import ManyRows, Seeding, TrimmedSeeding, lloyd, seeded
from support import Largest, Make, everyone, random


def groups(n: int, k: int = 4, width: int = 6) -> tuple[Tensor, Tensor]:
    """Rows of k groups far apart, and whose every row is."""
    group = torch.arange(n) % k
    return random(1, n, width) + 30 * torch.eye(k, width, dtype=torch.float64)[group], group


def same_partition(a: Tensor, b: Tensor) -> bool:
    return bool(((a[:, None] == a) == (b[:, None] == b)).all())


def test_seeds_are_drawn_by_the_distance_from_all_seeds_before() -> None:
    gram, draws = inner_products(random(0, 40, 5)), uniform(0, "seeding", torch.arange(9))
    own, seeds = gram.diag(), [int(draws[0] * 40)]
    for draw in draws[1:].tolist():  # the definition, all minima anew
        chance = (own[:, None] - 2 * gram[:, seeds] + own[seeds]).min(1).values.clamp(min=0)
        chance[seeds] = 0
        seeds.append(int(torch.searchsorted(chance.cumsum(0), draw * float(chance.sum())).clamp(max=39)))
    by_hand = (own[:, None] - 2 * gram[:, seeds] + own[seeds]).argmin(1)
    assert torch.equal(seeded(gram, draws, "kmeans++"), by_hand)


@pytest.mark.parametrize("k", [3, 17])
def test_many_centers_are_the_means_that_few_are(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gram = inner_products(random(2, 60, 5))
    start = seeded(gram, uniform(0, "seeding", torch.arange(k)), "kmeans++")
    few = lloyd(gram, start, k, 100)
    monkeypatch.setattr(seeding, "FEW", 1)
    many = lloyd(gram, start, k, 100)
    assert many[0] == pytest.approx(few[0], rel=1e-12) and torch.equal(many[1], few[1])


def plain_lloyd(gram: Tensor, nearest: Tensor, k: int, iterations: int) -> tuple[float, Tensor]:
    """The definition: all means and all distances anew, center by center."""
    for _ in range(iterations):
        distance = torch.full((k, len(gram)), torch.inf, dtype=torch.float64)
        for center in torch.unique(nearest).tolist():
            mine = nearest == center
            distance[center] = gram.diag() - 2 * gram[mine].mean(0) + gram[mine][:, mine].mean()
        last, nearest = nearest, distance.argmin(0)
        if torch.equal(last, nearest):
            break
    return float(distance.min(0).values.clamp(min=0).sum()), nearest


@pytest.mark.parametrize("numbers", [1, 4 * 90 * 7, 1 << 22])
@pytest.mark.parametrize("few", [1, 64])
@pytest.mark.parametrize("iterations", [1, 3, 100])
def test_distances_renewed_where_rows_moved_are_all_distances_anew(
    iterations: int, few: int, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeding, "FEW", few)
    monkeypatch.setattr(seeding, "NUMBERS", numbers)
    gram, start = inner_products(random(4, 90, 3)), torch.arange(90) % 19  # of 20: one is empty
    fast, plain = lloyd(gram, start, 20, iterations), plain_lloyd(gram, start, 20, iterations)
    assert torch.equal(fast[1], plain[1]) and fast[0] == pytest.approx(plain[0], rel=1e-12)


def test_the_spread_is_the_same_over_few_centers_and_over_many(monkeypatch: pytest.MonkeyPatch) -> None:
    gram, place = inner_products(random(5, 50, 4)), torch.arange(50) % 11
    few = anchor.spread(gram, place, 12)
    monkeypatch.setattr(anchor, "FEW", 1)
    monkeypatch.setattr(seeding, "FEW", 1)
    assert anchor.spread(gram, place, 12) == pytest.approx(few, rel=1e-12)


def test_cosines_of_some_rows_at_a_time_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random(6, 30, 4)
    rows[3] = 0
    at_once = splitting.similarities(rows)
    monkeypatch.setattr(splitting, "NUMBERS", 70)
    assert torch.equal(splitting.similarities(rows), at_once)


@pytest.mark.parametrize("pieces", [7, 1 << 22])
def test_many_clients_are_clustered_as_few_are(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, group = groups(200)
    part, cohort = Seeding(4), everyone(200)
    exact = part.place({}, cohort, {}, {"model": rows})
    monkeypatch.setattr(seeding, "MANY", 100)
    monkeypatch.setattr(seeding, "SAMPLE", 40)
    monkeypatch.setattr(seeding, "NUMBERS", pieces)
    with Largest() as largest:
        some = part.place({}, cohort, {}, {"model": rows})
    assert same_partition(some["assignment"], group) and same_partition(exact["assignment"], group)
    assert float(some["distance"][0]) == pytest.approx(float(exact["distance"][0]), rel=1e-9)
    assert largest.bytes < 200 * 200 * 8  # no number for every two clients


@pytest.mark.parametrize("by", ["cosine", "distance"])
def test_many_updates_are_grouped_as_few_are(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, group = groups(200)
    part, cohort = anchor.Anchored(4, by=by), everyone(200)  # type: ignore[arg-type]
    memory, centers = part.remembers(200), {"model": torch.zeros(4, 6, dtype=torch.float64)}
    memory["assignment"] = (group + (torch.arange(200) < 10)) % 4  # ten are in the wrong group
    exact = part.place(memory, cohort, centers, {"model": rows})
    for module, name, value in ((anchor, "MANY", 100), (seeding, "MANY", 100), (seeding, "SAMPLE", 40)):
        monkeypatch.setattr(module, name, value)
    some = part.place(memory, cohort, centers, {"model": rows})
    assert torch.equal(some["assignment"], exact["assignment"]) and same_partition(some["assignment"], group)
    assert float(some["distance"][0]) == pytest.approx(float(exact["distance"][0]), rel=1e-6)


@pytest.mark.parametrize(
    ("many", "sample", "k", "n"), [(100, 10, 2, 10), (100, 10, 5, 20), (15, 10, 5, 15), (200, 10, 5, None)]
)
def test_seeds_are_tried_on_some_of_many(
    many: int, sample: int, k: int, n: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SAMPLE of them or four times K, never more than MANY; all, where they are not more than MANY."""
    monkeypatch.setattr(seeding, "MANY", many)
    monkeypatch.setattr(seeding, "SAMPLE", sample)
    some = seeding.sampled(everyone(200), k)
    assert n == (None if some is None else len(some))
    assert some is None or (some.diff() > 0).all()


def test_clustering_what_is_all_the_same_is_said() -> None:
    with pytest.warns(UserWarning, match="all clients sent the same model"):
        same = Seeding(2).place({}, everyone(3), {}, {"model": torch.ones(3, 2)})
    assert same["assignment"].tolist() == [0, 0, 0] and same["distance"].tolist() == [0.0] * 3
    Seeding(2).place({}, everyone(1), {}, {"model": torch.ones(1, 2)})  # nobody to be told apart
    Seeding(2).place({}, everyone(3), {}, {"model": torch.tensor([[-1.0], [0.0], [1.0]])})  # one is the mean of all
    Seeding(1).place({}, everyone(3), {}, {"model": torch.ones(3, 2)})


def test_the_distance_that_is_told_is_the_mean_over_clients() -> None:
    rows = torch.tensor([[0.0], [2.0], [10.0], [14.0]], dtype=torch.float64)  # two pairs: 1 + 1 + 4 + 4
    placed = Seeding(2).place({}, everyone(4), {}, {"model": rows})
    assert same_partition(placed["assignment"], torch.tensor([0, 0, 1, 1])) and placed["distance"].tolist() == [2.5] * 4


def test_directions_of_many_rows_are_of_length_one_and_zero_stays_zero() -> None:
    rows = torch.tensor([[3.0, 4.0], [1.0, 1.0], [1.0, 2.0]])
    ((_, part),) = ManyRows(rows, origin=torch.ones(2), unit=True).parts()
    torch.testing.assert_close(part, torch.tensor([[2 / 13**0.5, 3 / 13**0.5], [0, 0], [0, 1]]).double())


def test_means_of_many_rows_leave_out_who_is_nowhere() -> None:
    rows = torch.tensor([[1.0], [3.0], [50.0], [7.0]])
    count, mean = ManyRows(rows).means(torch.tensor([0, 0, -1, 2]), 3)
    assert count.tolist() == [2, 0, 1] and mean.tolist() == [[2], [0], [7]]


def test_rows_have_the_spread_of_their_inner_products() -> None:
    rows, place = random(3, 30, 5), torch.arange(30) % 4
    gram = inner_products(rows, origin=torch.ones(5))
    assert ManyRows(rows, None, torch.ones(5)).spread(place, 4) == pytest.approx(
        anchor.spread(gram, place, 4), rel=1e-12
    )


def test_updates_of_many_are_grouped_by_direction_from_seeds_of_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two directions, and lengths that differ more than they do."""
    way, length = torch.arange(200) % 2, torch.where(torch.arange(200) % 4 < 2, 1.0, 100.0)
    rows = length[:, None] * (torch.eye(2, 6)[way] + 0.01 * random(3, 200, 6))
    part, centers = anchor.Anchored(2), {"model": torch.zeros(2, 6, dtype=torch.float64)}
    for module, name, value in ((anchor, "MANY", 100), (seeding, "MANY", 100), (seeding, "SAMPLE", 40)):
        monkeypatch.setattr(module, name, value)
    memory = part.remembers(200) | {"assignment": (torch.arange(200) % 4) // 2}
    assert same_partition(part.place(memory, everyone(200), centers, {"model": rows})["assignment"], way)


def test_the_largest_draw_falls_on_a_row_whatever_sums_round_to() -> None:
    for n in range(3, 120):
        gram = inner_products(random(n, n, 3))
        assert int(seeded(gram, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64), "kmeans++").max()) == 1


def test_rows_that_are_the_same_have_no_spread() -> None:
    assert ManyRows(torch.full((5, 2), 0.1)).spread(torch.zeros(5).long(), 1) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("numbers", [7, 20, 40])
def test_clusters_of_many_rows_do_not_depend_on_how_many_are_read_at_once(
    numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More centers than columns, so that what is read at once is measured in turns."""
    rows, start = random(5, 33, 2), torch.arange(33) % 5
    whole = ManyRows(rows).lloyd(torch.arange(33), start, 5, 20)
    monkeypatch.setattr(seeding, "NUMBERS", numbers)
    some = ManyRows(rows).lloyd(torch.arange(33), start, 5, 20)
    assert torch.equal(some[1], whole[1]) and some[0] == pytest.approx(whole[0], rel=1e-12)


def test_seeds_of_trimmed_clusters_are_drawn_by_distance_or_evenly() -> None:
    """From the first row, a draw of one half falls on the far row by distance, and evenly on the near one."""
    rows = torch.tensor([[0.0], [1.0], [100.0]])
    for how, second in (("kmeans++", 2), ("random", 1)):
        part = TrimmedSeeding(2, seeding=how, rule=Mean())  # type: ignore[arg-type]
        assert part._seeds(rows, [0.0, 0.5])[1].argmin() == second


def many(n: int, blobs: Make) -> Federation:
    return blobs((1,) * n, test=1, shape=(2,), classes=2)


def test_more_centers_than_can_be_found_are_refused_before_the_first_round(blobs: Make) -> None:
    with pytest.raises(UsageError, match=r"k=2001 centers are too many .* at most 2,000, or nofed"):
        pc.run(pc.fesem(k=2001), many(2001, blobs), model="logistic", rounds=1)


@pytest.mark.parametrize("method", ["mtl", "mocha"])
def test_covariances_that_do_not_fit_are_refused_before_the_first_round(method: str) -> None:
    with pytest.raises(UsageError, match=r"100,000,000 pairs of tasks do not fit: .* 5,792 clients"):
        pc.METHODS[method]().exchanges[-1].topology.remembers(10_000)
