"""Topologies: every one is a pair of matrices, and the matrices have laws."""

import math
import resource
from dataclasses import replace

import networkx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from polycentric.errors import UsageError
from polycentric.parts.aggregate import Mean
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.mixing import Mixing
from polycentric.stacks.stack import write
from polycentric.topology import Alone, Cells, Clusters, Graph, Star, TwoLevel, metropolis, squared_distances
from support import random

LAW = settings(max_examples=50)


def close(a, b, tolerance=1e-10):
    a, b = (x.double() if isinstance(x, torch.Tensor) else exact(x) for x in (a, b))
    assert_close(a, b, rtol=tolerance, atol=tolerance)


def exact(values):
    return torch.tensor(values, dtype=torch.float64)


def everyone(sizes, round=0):
    sizes = torch.as_tensor(sizes)
    return Cohort(torch.arange(len(sizes)), sizes, torch.ones(len(sizes)), len(sizes), seed=0, round=round)


def matrices(topology, cohort, memory=None, name="model"):
    """(down, up) as dense matrices, rows of `up` divided where it shares."""
    memory = topology.remembers(cohort.n_clients) if memory is None else memory
    down, up = topology.down(memory, cohort, name), topology.up(memory, cohort, name)
    assert down.shape == (len(cohort), topology.n_centers(cohort.n_clients))
    assert up.shape == down.shape[::-1]
    return [normalised(m) for m in (down, up)]


def normalised(mixing):
    matrix, total = mixing.to_dense(), mixing.total[:, None]
    return matrix / torch.where(total > 0, total, 1.0) if mixing.rest == "share" else matrix


def exchange(topology, memory, cohort, centers, sent):
    """One exchange of averaging: (memory, centers) after it."""
    memory = write(memory, [(cohort.index, topology.place(memory, cohort, {"model": centers}, {"model": sent}))])
    up, mean = topology.up(memory, cohort, "model"), Mean()
    total = mean.start(up, centers)
    mean.add(total, up, sent)
    memory, stepped = topology.meet(memory, cohort, {"model": mean.settle(total, centers).values})
    return memory, stepped["model"]


def received(topology, memory, cohort, centers):
    return topology.down(memory, cohort, "model") @ centers


# -- four clients, as in the docstring -----------------------------------------------------------------------

FOUR = everyone([1, 2, 3, 4])


def test_a_star_is_one_row_up_and_a_column_of_ones_down():
    down, up = matrices(Star(), FOUR)
    close(down, torch.ones(4, 1))
    close(up, exact([[0.1, 0.2, 0.3, 0.4]]))
    close(matrices(Star(equal=True), FOUR)[1], torch.full((1, 4), 0.25))


def test_a_star_with_a_fixed_denominator_keeps_what_is_missing():
    up = Star(denominator=6).up({}, FOUR, "model")
    assert up.rest == "keep"
    close(up.to_dense(), [[1 / 6] * 4])
    center, sent = random(0, 1, 3), random(1, 4, 3)
    _, after = exchange(Star(denominator=6), {}, FOUR, center, sent)
    close(after, center / 3 + sent.sum(0) / 6)


def test_alone_is_the_identity_both_ways():
    down, up = matrices(Alone(), FOUR)
    close(down, torch.eye(4))
    close(up, torch.eye(4))


def test_clusters_are_one_hot_both_ways():
    down, up = matrices(Clusters(2), FOUR)
    close(down, exact([[1, 0], [0, 1], [1, 0], [0, 1]]))
    close(up, exact([[0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5]]))
    close(matrices(Clusters(2, weighted=True), FOUR)[1], exact([[1 / 4, 0, 3 / 4, 0], [0, 1 / 3, 0, 2 / 3]]))


def test_cells_weigh_bridges_and_a_bridge_hears_both():
    cells = Cells(exact([[1, 1, 1, 0], [0, 0, 1, 1]]), bridge=2.0)
    up = cells.up(cells.remembers(4), FOUR, "model")
    close(up.to_dense(), exact([[1, 2, 6, 0], [0, 0, 6, 4]]))
    memory = {"heard": exact([6.0, 7.0])}
    close(matrices(cells, FOUR, memory)[0], exact([[1, 0], [1, 0], [6 / 13, 7 / 13], [0, 1]]))


def test_a_path_graph_is_metropolis_up_and_the_identity_down():
    down, up = matrices(Graph(metropolis(networkx.path_graph(4))), FOUR)
    close(down, torch.eye(4))
    close(up, exact([[2, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 2]]) / 3)


# -- star and alone ------------------------------------------------------------------------------------------


@LAW
@given(st.lists(st.integers(1, 100), min_size=1, max_size=8))
def test_down_up_of_a_star_has_rank_one(sizes):
    down, up = matrices(Star(), everyone(sizes))
    assert int(torch.linalg.matrix_rank(down @ up)) == 1


def test_some_of_the_clients_use_some_of_the_columns():
    some = everyone([1, 2, 3, 4])[torch.tensor([3, 1])]
    close(matrices(Star(), some)[1], exact([[2 / 3, 1 / 3]]))
    close(matrices(Alone(), some)[0], torch.eye(4)[[3, 1]])
    close(matrices(Alone(), some)[1], torch.eye(4)[:, [3, 1]])


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
    placed = topology.place({}, cohort, centers, {"model": exact([[-9.0], [1.5]])})
    assert placed["assignment"].tolist() == [0, 1]


@LAW
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40), st.integers(0, 10**6))
def test_where_all_centers_are_the_same_everybody_is_at_the_first(k, n, width, seed):  # C8: before a warm-up
    centers, sent = random(seed, 1, width).repeat(k, 1), random(seed + 1, n, width)
    placed = Clusters(k).place({}, everyone([5] * n), {"model": centers}, {"model": sent})
    assert placed["assignment"].tolist() == [0] * n


def test_nobody_moves_in_frozen_clusters():
    topology = Clusters(2, frozen=True)
    assert topology.place({}, FOUR, {"model": random(0, 2, 3)}, {"model": random(1, 4, 3)}) == {}


def test_one_cluster_by_data_is_a_star():
    for mine, star in zip(matrices(Clusters(1, weighted=True), FOUR), matrices(Star(), FOUR), strict=True):
        close(mine, star)


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


def test_sparse_cells_are_the_same_cells():
    cells = exact([[1.0, 1, 1, 0], [0, 0, 1, 1]])
    for dense, sparse in zip(matrices(Cells(cells), FOUR), matrices(Cells(cells.to_sparse()), FOUR), strict=True):
        close(dense, sparse)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            lambda: Cells(exact([[1, 0, 1, 0]])),
            "client 1 is in no cell (2 such clients): every client needs an edge that covers it; give it one, "
            "for example the nearest",
        ),
        (lambda: Cells(torch.ones(1, 2), bridge=0), "Cells.bridge must be positive, got 0"),
        (
            lambda: Cells(torch.ones(1, 2)).n_centers(3),
            "the cells cover 2 clients, but the federation has 3: take --clients 2, or cells for any number of "
            "clients, such as overlap(u=20, v=10)",
        ),
        (lambda: Clusters(0), "Clusters.k must be at least 1, got 0"),
        (lambda: Star(denominator=0), "Star.denominator must be positive, got 0"),
        (
            lambda: TwoLevel(torch.ones(1, 2), every=-1),
            "TwoLevel.every must be 0 (never) or a number of rounds, got -1",
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


# -- graphs --------------------------------------------------------------------------------------------------


def some_graph(n, p, seed):
    return networkx.gnp_random_graph(n, p, seed=seed)


graphs = st.builds(some_graph, st.integers(1, 10), st.floats(0, 1), st.integers(0, 10**6))


@LAW
@given(graphs)
def test_metropolis_is_symmetric_doubly_stochastic_and_not_negative(graph):
    weights = metropolis(graph, disconnected="allow").to_dense()
    close(weights, weights.T)
    close(weights.sum(1), torch.ones(len(weights)))
    assert bool((weights >= -1e-12).all())
    degree = dict(graph.degree)
    for i, j in graph.edges:
        close(weights[i, j], 1 / (1 + max(degree[i], degree[j])))


@LAW
@given(graphs, st.integers(0, 10**6))
def test_gossip_stays_doubly_stochastic_whoever_is_there(graph, seed):
    n = graph.number_of_nodes()
    there = (torch.rand(n, generator=torch.Generator().manual_seed(seed)) < 0.6).nonzero()[:, 0]
    cohort = everyone([1] * n)[there]
    up = Graph(metropolis(graph, disconnected="allow")).up({}, cohort, "model")
    full = torch.eye(n, dtype=torch.float64)  # an absent client keeps its model
    full[:, there] = up.to_dense()
    absent = torch.ones(n, dtype=torch.bool)
    absent[there] = False
    assert not bool(up.to_dense()[absent].any())
    close(full, full.T)
    close(full.sum(0), torch.ones(n))
    assert bool((full >= -1e-12).all())


@LAW
@given(graphs, st.integers(0, 10**6))
def test_gossip_preserves_the_mean_of_all_models(graph, seed):
    n = graph.number_of_nodes()
    there = (torch.rand(n, generator=torch.Generator().manual_seed(seed)) < 0.6).nonzero()[:, 0]
    cohort = everyone([1] * n)[there]
    centers = random(seed, n, 3)
    sent = centers[there]  # lr = 0
    _, after = exchange(Graph(metropolis(graph, disconnected="allow")), {}, cohort, centers, sent)
    close(after.mean(0), centers.mean(0))


def second(weights):
    return float(torch.linalg.eigvalsh(weights.to_dense()).abs().sort(descending=True).values[1])


@pytest.mark.parametrize("k", range(4, 40, 5))
def test_a_ring_mixes_at_the_rate_of_the_formula(k):
    assert second(metropolis(networkx.cycle_graph(k))) == pytest.approx(
        (1 + 2 * math.cos(2 * math.pi / k)) / 3, abs=1e-10
    )


@pytest.mark.parametrize(
    ("k", "zeta"), [(3, 0.0), (4, 0.333333), (5, 0.539345), (8, 0.804738), (16, 0.949253), (32, 0.987190)]
)
def test_a_ring_mixes_at_the_rate_of_the_table(k, zeta):  # methods.md 20
    assert second(metropolis(networkx.cycle_graph(k))) == pytest.approx(zeta, abs=5e-7)


def test_a_complete_graph_averages_at_once():
    close(metropolis(networkx.complete_graph(5)).to_dense(), exact([[0.2] * 5] * 5))


def test_names_that_are_only_carried_along_are_not_mixed():
    topology = Graph(metropolis(networkx.cycle_graph(4)), only_own=("sums",))
    cohort = everyone([1] * 4)[torch.tensor([2, 0])]
    close(topology.up({}, cohort, "sums").to_dense(), torch.eye(4)[:, [2, 0]])


def test_gossip_takes_negative_weights():  # MATCHA
    weights = Mixing.dense(exact([[-0.5, 1.5], [1.5, -0.5]]), "keep")
    close(matrices(Graph(weights), everyone([1, 1]))[1], weights.to_dense())


GRAPH_MISTAKES = {
    "disconnected": (
        lambda: metropolis(networkx.empty_graph(3)),
        "the graph has 3 parts that never hear each other, so there is no consensus; connect them, or pass "
        "disconnected='allow'; client 0 has no neighbour at all",
    ),
    "directed": (
        lambda: metropolis(networkx.cycle_graph(3, networkx.DiGraph)),
        "the graph is directed: neighbours must hear each other",
    ),
    "numbers": (
        lambda: metropolis(networkx.Graph([(1, 2)])),
        "the clients of the graph must be numbered 0 .. n-1",
    ),
    "asymmetric": (
        lambda: Graph(Mixing.dense(exact([[0.5, 0.5], [0.4, 0.6]]), "keep")),
        "the weights of a Graph are not symmetric, so its mean would drift: use metropolis(graph)",
    ),
    "rows": (
        lambda: Graph(Mixing.dense(exact([[0.5, 0.25], [0.25, 0.5]]), "keep")),
        "a row of the weights of a Graph is off one by 0.25: use metropolis(graph)",
    ),
    "square": (
        lambda: Graph(Mixing.dense(torch.ones(1, 2), "keep")),
        "the weights of a Graph are clients x clients, got 1 x 2",
    ),
    "nodes": (
        lambda: Graph(metropolis(networkx.cycle_graph(4))).n_centers(5),
        "the graph is for 4 clients, but the federation has 5: weigh a graph for clients 0 .. 4, or name one, as in "
        "dpsgd(graph=Ring())",
    ),
}


@pytest.mark.parametrize("mistake", GRAPH_MISTAKES)
def test_a_mistake_in_a_graph_is_named_by(mistake):
    build, text = GRAPH_MISTAKES[mistake]
    with pytest.raises(UsageError) as wrong:
        build()
    assert str(wrong.value) == text


def test_a_graph_of_ten_thousand_nodes_stays_sparse(monkeypatch):
    n = 10_000

    def dense(self):
        raise AssertionError("a dense matrix was made of a sparse one")

    monkeypatch.setattr(Mixing, "to_dense", dense)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    topology = Graph(metropolis(networkx.cycle_graph(n)))
    cohort = everyone([1] * n)[torch.arange(0, n, 3)]
    up = topology.up({}, cohort, "model")
    rows = random(0, len(cohort), 2)
    exchange(topology, {}, cohort, random(1, n, 2), rows)
    assert len(topology.weights.weight) == 3 * n
    assert len(up.weight) <= 3 * len(cohort)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB
    assert grown < 8 * n * n / 1024 / 4  # a quarter of one dense matrix


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
