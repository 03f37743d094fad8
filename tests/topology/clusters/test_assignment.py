"""Clusters: one-hot matrices, the E-step and the M-step, and the distances behind them."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from matrices import FOUR, LAW, close, everyone, exact, exchange, matrices, received
from polycentric.stacks.all_rows import squared_distances
from polycentric.stacks.cohort import View
from polycentric.stacks.stack import Layout
from polycentric.topology import Clusters, Star
from polycentric.topology.clusters.assignment import agreement, shared_information
from support import random

# -- clusters ------------------------------------------------------------------------------------------------

placements = st.lists(st.integers(0, 2), min_size=1, max_size=10)


@LAW
@given(placements)
def test_averaging_in_clusters_is_an_orthogonal_projection(place):  # F3
    memory = {"assignment": torch.tensor(place)}
    down, up = matrices(Clusters(3), everyone([5] * len(place)), memory)
    projection = down @ up
    close(projection @ projection, projection)
    close(projection, projection.T)
    close(projection.sum(1), torch.ones(len(place)))


@LAW
@given(placements, st.integers(0, 10**6))
def test_averaging_by_data_in_clusters_is_idempotent(place, seed):
    sizes = torch.randint(1, 50, (len(place),), generator=torch.Generator().manual_seed(seed))
    memory = {"assignment": torch.tensor(place)}
    down, up = matrices(Clusters(3, weighted=True), everyone(sizes), memory)
    close(down @ up @ down @ up, down @ up)
    close(sizes.double() @ down @ up, sizes)  # the data-weighted mean is preserved


@LAW
@given(st.integers(1, 10), st.integers(0, 10**6))
def test_the_global_mean_is_preserved_by_the_m_step(n, seed):  # F7
    topology, cohort = Clusters(3), everyone([5] * n)
    centers, sent = random(seed, 3, 4), random(seed + 1, n, 4)
    memory, after = exchange(topology, topology.remembers(n), cohort, centers, sent)
    close(received(topology, memory, cohort, after).mean(0), sent.mean(0))


@LAW
@given(st.integers(1, 10), st.integers(0, 10**6))
def test_neither_step_increases_the_distance(n, seed):  # F4
    topology, cohort = Clusters(3), everyone([5] * n)
    centers, sent = random(seed, 3, 4), random(seed + 1, n, 4)
    before = topology.remembers(n)
    after = before | topology.place(before, cohort, {"model": centers}, {"model": sent})

    def distance(memory, centers):
        return float((sent - received(topology, memory, cohort, centers)).square().sum())

    _, moved = exchange(topology, before, cohort, centers, sent)
    assert distance(after, centers) <= distance(before, centers) + 1e-12
    assert distance(after, moved) <= distance(after, centers) + 1e-12


def test_a_cluster_without_clients_keeps_its_center():
    topology, cohort = Clusters(2), everyone([5, 5])
    centers, sent = exact([[0.0], [100.0]]), exact([[1.0], [3.0]])
    memory, after = exchange(topology, topology.remembers(2), cohort, centers, sent)
    assert memory["assignment"].tolist() == [0, 0]
    assert after.tolist() == [[2.0], [100.0]]


def test_ties_go_to_the_lowest_number():
    topology, cohort = Clusters(3), everyone([5, 5])
    centers = {"model": exact([[-4.0], [1.0], [1.0]])}
    placed = topology.place(topology.remembers(2), cohort, centers, {"model": exact([[-9.0], [1.5]])})
    assert placed["assignment"].tolist() == [0, 1]


@LAW
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40), st.integers(0, 10**6))
def test_where_all_centers_are_the_same_everybody_is_at_the_first(k, n, width, seed):  # C8: before a warm-up
    centers, sent = random(seed, 1, width).repeat(k, 1), random(seed + 1, n, width)
    placed = Clusters(k).place(Clusters(k).remembers(n), everyone([5] * n), {"model": centers}, {"model": sent})
    assert placed["assignment"].tolist() == [0] * n


def test_nobody_moves_in_frozen_clusters():
    topology = Clusters(2, frozen=True)
    assert topology.place({}, FOUR, {"model": random(0, 2, 3)}, {"model": random(1, 4, 3)}) == {}


def test_one_cluster_by_data_is_a_star():
    for mine, star in zip(matrices(Clusters(1, weighted=True), FOUR), matrices(Star(), FOUR), strict=True):
        close(mine, star)


@pytest.mark.parametrize("n", [1, 2, 7, 9])
def test_who_begins_together_has_room_for_as_many_centers_as_there_are_clients(n):
    """K of them at most, and nothing to warn of: so many are allowed, not asked for."""
    model, like = Layout(("weight",), ((3,),)), random(0, 1, 3)
    assert Clusters(7, together=True).fitted(model, like, n).k == min(7, n)


def test_a_center_with_one_client_is_not_robbed_for_an_empty_one():
    """The farthest client, 0.4 away, is alone at its center; the next has company."""
    topology, cohort = Clusters(3, reseed=True), everyone([5, 5, 5])
    centers = {"model": exact([[0.0], [10.0], [99.0]])}
    placed = topology.place(topology.remembers(3), cohort, centers, {"model": exact([[0.0], [0.3], [10.4]])})
    assert placed["assignment"].tolist() == [0, 2, 1] and placed["reseeded"].tolist() == [0, 1, 0]
    lonely = topology.place(topology.remembers(2), everyone([5, 5]), centers, {"model": exact([[0.3], [10.4]])})
    assert lonely["assignment"].tolist() == [0, 1]  # nobody can be spared


@pytest.mark.parametrize("weighted", [False, True])
def test_a_center_is_the_mean_of_the_last_rows_of_its_clients_who_are_away_too(weighted):
    sizes, rows = torch.tensor([1, 2, 5]), exact([[1.0], [2.0], [30.0]])
    topology = Clusters(2, weighted=weighted, absent="last").fitted(Layout(("weight",), ((1,),)), rows[:1], 3)
    memory, centers = topology.remembers(3), exact([[0.0], [40.0]])
    memory, centers = exchange(topology, memory, everyone(sizes), centers, rows)
    memory, centers = exchange(topology, memory, everyone(sizes, 1)[:1], centers, exact([[4.0]]))
    close(centers, [[(4 + 2 * 2) / 3 if weighted else 3.0], [30.0]])


# -- distances -----------------------------------------------------------------------------------------------


@LAW
@given(
    st.integers(1, 6),
    st.integers(1, 4),
    st.sampled_from([0.0, 1e3, 1e7]),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 10**6),
)
def test_distances_are_right_far_from_the_origin_too(n, k, offset, dtype, seed):
    rows, centers = (random(seed, n, 5) + offset).to(dtype), (random(seed + 1, k, 5) + offset).to(dtype)
    by_hand = (rows[:, None].double() - centers.double()).square().sum(2)
    plain = torch.cdist(rows.double(), centers.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
    close(by_hand, plain, 1e-9)
    close(squared_distances(rows, centers), plain, 1e-10 if dtype == torch.float64 else 1e-5)


def test_a_row_has_no_distance_to_itself():
    rows = random(0, 5, 3) + 1e6
    close(squared_distances(rows, rows).diagonal(), torch.zeros(5))


def test_distances_in_float32_are_right_where_centers_are_far_apart():
    rows, centers = torch.full((1, 3), 0.1), torch.tensor([[0.0] * 3, [2e4] * 3])
    close(squared_distances(rows, centers)[0, 0], 3 * 0.1**2, 1e-4)


@LAW
@given(st.integers(0, 10**6))
def test_wide_rows_are_measured_in_pieces(seed):
    rows, centers = random(seed, 2, 3).repeat(1, 30_000), random(seed + 1, 3, 3).repeat(1, 30_000)
    close(squared_distances(rows, centers), 30_000 * squared_distances(rows[:, :3], centers[:, :3]), 1e-9)


def test_what_is_told_of_clusters_counts_those_who_train():
    """Five clients at two of three centers: the fourth is held out, the last attacks."""
    memory = {
        "assignment": torch.tensor([0, 0, 2, 0, 2]),
        "placed": torch.tensor([True, True, True, False, False]),
        "moves": torch.tensor([1, 2, 0, 9, 1]),
        "distance": torch.tensor([1.0, 2.0, 6.0, 9.0, 9.0]),
        "last_round": torch.tensor([3, -1, 1, -1, -1]),
    }
    before = {"assignment": torch.tensor([0, 2, 2, 1, 2]), "placed": torch.ones(5, dtype=torch.bool)}
    trains, honest = torch.tensor([True, True, True, False, True]), torch.tensor([True, True, True, True, False])
    shown = Clusters(3).shows(View(6, memory, {}, before, trains, honest, torch.tensor([1, 1, 0, 0, 0])))
    assert shown | {"nmi": 1.0} == {
        "clusters": 2.0,
        "largest_cluster": 2.0,
        "among_attackers": 1.0,  # the third
        "moves": 4.0,
        "reassigned": 1.0,  # the second
        "intra_cluster": 3.0,
        "staleness": 3.0,  # after round 5, one was there in round 3 and one in round 1
        "ari": 1.0,
        "nmi": 1.0,
    }


def test_where_nobody_trains_there_is_no_cluster():
    nobody = torch.zeros(2, dtype=torch.bool)
    shown = Clusters(3).shows(View(1, Clusters(3).remembers(2), {}, None, nobody, ~nobody, None))
    assert shown["clusters"] == shown["largest_cluster"] == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 3)), max_size=60))
def test_agreement_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    found, group = (np.array([pair[k] for pair in pairs], dtype=np.int64) for k in (0, 1))
    assert agreement(found, group) == pytest.approx(adjusted_rand_score(group, found), abs=1e-12)
    assert shared_information(found, group) == pytest.approx(normalized_mutual_info_score(group, found), abs=1e-9)


def test_agreement_of_a_million_clients_does_not_overflow() -> None:
    group = np.arange(1_000_000) % 2
    assert agreement(group, group) == 1.0
    assert agreement(group, np.roll(group, 1)) == 1.0  # other names
    assert abs(agreement(group, np.arange(1_000_000) // 500_000)) < 1e-5
