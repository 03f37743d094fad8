"""Edges with cells that overlap, and a cloud above them, as matrices."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st

from matrices import FOUR, LAW, close, everyone, exact, exchange, matrices, normalised, received
from polycentric.errors import UsageError
from polycentric.topology import CellClusters, Cells, Clusters, Star, TwoLevel
from support import random

# -- cells: FedMes -------------------------------------------------------------------------------------------


def three_cells(u, v):
    """The symmetric geometry: u clients in each cell alone, v in each of the three overlaps."""
    cells = torch.zeros(3, 3 * (u + v))
    for i in range(3):
        cells[i, i * u : (i + 1) * u] = 1
        first = 3 * u + i * v
        cells[[i, (i + 1) % 3], first : first + v] = 1
    return cells


def fedmes(u, v, bridge):
    """(down, up) after a round in which everybody took part, equal sizes."""
    topology, cohort = Cells(three_cells(u, v), bridge), everyone([7] * (3 * (u + v)))
    memory, _ = topology.meet(topology.remembers(len(cohort)), cohort, {})
    return matrices(topology, cohort, memory)


@LAW
@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from([0.1, 0.5, 1.0, 1.3, 1.5, 3.0]))
def test_fedmes_is_doubly_stochastic_only_where_a_bridge_counts_half(u, v, bridge):  # E7
    down, up = fedmes(u, v, bridge)
    mixing = down @ up
    close(mixing.sum(1), torch.ones(3 * (u + v)))
    alpha_u = 1 / (u + 2 * v * bridge)
    columns = [(u + v) * alpha_u] * (3 * u) + [2 * (u + v) * alpha_u * bridge] * (3 * v)
    close(mixing.sum(0), exact(columns))
    assert bool(((mixing.sum(0) - 1).abs() < 1e-10).all()) == (bridge == 0.5)


@pytest.mark.parametrize(("bridge", "alone", "overlap"), [(1.0, 0.75, 1.5), (1.3, 0.6522, 1.6957), (1.5, 0.6, 1.8)])
def test_fedmes_columns_at_20_10(bridge, alone, overlap):  # methods.md 20
    columns = torch.mm(*fedmes(20, 10, bridge)).sum(0)
    close(columns[:60], torch.full((60,), alone), 5e-5)
    close(columns[60:], torch.full((30,), overlap), 5e-5)


@pytest.mark.parametrize("u, v", [(20, 10), (0, 30), (30, 0), (3, 5)])
@pytest.mark.parametrize("bridge", [0.5, 1.0, 1.3, 1.5])
def test_edges_agree_at_the_rate_of_the_formula(u, v, bridge):  # E8
    down, up = fedmes(u, v, bridge)
    alpha_u = 1 / (u + 2 * v * bridge)
    eigenvalues = torch.linalg.eigvals(up @ down).abs().sort(descending=True).values
    close(eigenvalues[0], 1.0)
    close(eigenvalues[1], alpha_u * u + alpha_u * bridge * v / 2)


def test_every_edge_that_covers_everybody_is_a_star():  # E5
    topology = Cells(torch.ones(3, 4))
    down, up = matrices(topology, FOUR)
    for row in down @ up:
        close(row, matrices(Star(), FOUR)[1][0])


@LAW
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6))
def test_where_no_edge_heard_any_a_client_takes_a_plain_mean(edges, clients, seed):
    covers = torch.rand(edges, clients, generator=torch.Generator().manual_seed(seed)) < 0.5
    covers[0] = True
    down, _ = matrices(Cells(covers.double()), everyone([3] * clients))
    close(down, (covers.double() / covers.sum(0)).T)


def test_a_client_listens_to_edges_by_the_data_they_heard():
    topology = Cells(exact([[1, 1, 0], [0, 1, 1]]))
    cohort = everyone([10, 20, 40])
    memory, _ = topology.meet(topology.remembers(3), cohort, {})
    assert memory["heard"].tolist() == [30, 60]
    close(matrices(topology, cohort, memory)[0], exact([[1, 0], [1 / 3, 2 / 3], [0, 1]]))
    memory, _ = topology.meet(memory, cohort[torch.tensor([0])], {})  # an edge that heard nobody has no say
    assert memory["heard"].tolist() == [10, 0]
    close(matrices(topology, cohort, memory)[0], exact([[1, 0], [1, 0], [0, 1]]))


def test_an_edge_has_learned_once_it_has_heard_anybody():
    topology, cohort, seen = Cells(exact([[1, 1, 0], [0, 0, 1]])), everyone([1, 1, 1]), []
    memory = topology.remembers(3)
    for who in ([], [1], [2], []):
        memory, _ = topology.meet(memory, cohort[torch.tensor(who, dtype=torch.int64)], {})
        seen.append(topology.learned(memory).tolist())
    assert seen == [[False, False], [True, False], [True, True], [True, True]]


def test_every_edge_keeps_the_best_of_its_clusterings():
    """The corners of a rectangle: cut along the longer side Lloyd's iteration would stay, and is worse."""
    rows = exact([[0, 0], [0, 1], [1.2, 0], [1.2, 1]])
    topology, cohort = CellClusters(exact([[1, 1, 1, 1]]), k=2, seeds=True), everyone([1] * 4)
    choice = topology.place(topology.remembers(4), cohort, {}, {"model": rows})["choice"][:, 0].tolist()
    assert choice[0] == choice[1] != choice[2] == choice[3]


def test_all_models_of_an_edge_stand_at_it():
    wires = CellClusters(exact([[1, 1, 0], [0, 1, 1]]), k=3).wires
    assert wires.machine_of(torch.arange(6)).tolist() == [0, 0, 0, 1, 1, 1]


def test_sparse_cells_are_the_same_cells():
    cells = exact([[1.0, 1, 1, 0], [0, 0, 1, 1]])
    for dense, sparse in zip(matrices(Cells(cells), FOUR), matrices(Cells(cells.to_sparse()), FOUR), strict=True):
        close(dense, sparse)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            lambda: Cells(exact([[1, 0, 1, 0]])),
            "client 1 is in no cell (2 such clients): every client needs an edge that covers it; put it into a "
            "cell, for example that of the nearest edge",
        ),
        (lambda: Cells(torch.ones(1, 2), bridge=0), "Cells.bridge must be positive, got 0; try 1"),
        (
            lambda: Cells(torch.ones(1, 2)).n_centers(3),
            "the cells cover 2 clients, but the federation has 3: take --clients 2, or cells for any number of "
            "clients, such as overlap(u=20, v=10)",
        ),
        (lambda: Clusters(0), "Clusters.k must be at least 1, got 0"),
        (lambda: Star(denominator=0), "Star.denominator must be positive, got 0; try the number of clients you expect"),
        (
            lambda: TwoLevel(torch.ones(1, 2), every=-1),
            "TwoLevel.every must be 0 (never) or a number of rounds, got -1; try 5",
        ),
    ],
)
def test_a_mistake_is_named(build, text):
    with pytest.raises(UsageError) as wrong:
        build()
    assert str(wrong.value) == text


def test_a_stored_zero_covers_nobody():
    stored = torch.sparse_coo_tensor(
        torch.tensor([[0, 0], [0, 1]]), torch.tensor([1.0, 0.0]), (1, 2), check_invariants=True
    )
    with pytest.raises(UsageError, match="client 1 is in no cell"):
        Cells(stored)


# -- two levels ----------------------------------------------------------------------------------------------


def one_cell_each(edges, clients, seed):
    place = torch.randint(edges, (clients,), generator=torch.Generator().manual_seed(seed))
    return Cells(torch.nn.functional.one_hot(place, edges).T)


@LAW
@given(st.integers(1, 4), st.integers(1, 8), st.integers(0, 10**6))
def test_a_cloud_that_meets_every_round_is_a_star(edges, clients, seed):  # E6
    cells = one_cell_each(edges, clients, seed)
    cohort = everyone(torch.randint(1, 99, (clients,), generator=torch.Generator().manual_seed(seed)))
    topology, sent = TwoLevel(cells.geometry, every=1), random(seed, clients, 3)
    memory, after = exchange(topology, topology.remembers(clients), cohort, random(seed + 1, edges, 3), sent)
    _, star = exchange(Star(), {}, cohort, random(seed + 2, 1, 3), sent)
    close(after, star.expand(edges, -1))
    close(received(topology, memory, cohort, after), star.expand(clients, -1))


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_when_they_meet_the_mixing_is_cloud_after_edge():
    topology, cohort = TwoLevel(exact([[1, 1, 0], [0, 0, 1]])), everyone([1, 2, 5])
    memory, _ = topology.meet(topology.remembers(3), cohort, {"model": torch.zeros(2, 1)})
    both = topology.cloud({"since": memory["heard"]}) @ topology.up(memory, cohort, "model")
    close(normalised(both), exact([[1, 2, 5], [1, 2, 5]]) / 8)


def test_the_cloud_counts_what_edges_heard_since_they_met():
    """An edge that hears nobody in the last round before they meet has learned in those before."""
    topology = TwoLevel(exact([[1, 1, 0], [0, 0, 1]]), every=3)
    memory, centers = topology.remembers(3), exact([[0.0], [0.0]])
    for round, heard in enumerate(([0, 1, 2], [2], [0])):
        cohort = replace(everyone([1, 2, 5])[torch.tensor(heard)], round=round)
        memory, centers = exchange(topology, memory, cohort, centers, exact([[1.0], [1.0], [9.0]])[heard])
    close(centers, exact([[1.0], [1.0]]) * (4 * 1 + 10 * 9) / 14)  # 1 + 2 + 1 examples and 5 + 5
    assert memory["since"].tolist() == [0, 0] and memory["learned"].tolist() == [True, True]


def test_edges_that_all_hear_nobody_meet_the_next_time():
    topology = TwoLevel(exact([[1, 1, 0], [0, 0, 1]]), every=1)
    memory, centers = topology.remembers(3), {"model": exact([[1.0], [3.0]])}
    memory, after = topology.meet(memory | {"since": exact([1.0, 2.0])}, everyone([1, 2, 5])[:0], centers)
    assert torch.equal(after["model"], centers["model"]) and memory["since"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("every", "meets"), [(0, [False] * 6), (1, [True] * 6), (2, [False, True] * 3), (3, [False, False, True] * 2)]
)
def test_the_cloud_meets_every_so_many_rounds(every, meets):
    topology = TwoLevel(exact([[1, 1, 0], [0, 0, 1]]), every=every)
    sent = exact([[1.0], [2.0], [30.0]])
    met = []
    for round in range(6):
        _, after = exchange(topology, topology.remembers(3), everyone([1, 1, 1], round), torch.zeros(2, 1), sent)
        met.append(bool(after[0] == after[1]))
        if not met[-1]:
            close(after, exact([[1.5], [30.0]]))
    assert met == meets


def test_a_cloud_that_heard_nobody_changes_nothing():
    topology, centers = TwoLevel(torch.eye(2)), random(0, 2, 3)
    _, after = exchange(topology, topology.remembers(2), everyone([1, 1])[:0], centers, torch.zeros(0, 3))
    assert torch.equal(after, centers)


def test_names_the_cloud_does_not_average_stay_at_the_edges():
    topology, other = TwoLevel(torch.eye(2)), random(0, 2, 3)
    _, after = topology.meet(topology.remembers(2), everyone([1, 1]), {"model": random(1, 2, 3), "other": other})
    assert torch.equal(after["other"], other)
    close(after["model"][0], after["model"][1])
