"""Neighbours on a graph: weights that are doubly stochastic whoever is there."""

import math
import resource

import networkx
import pytest
import torch
from hypothesis import given, strategies as st

from matrices import LAW, close, everyone, exact, exchange, matrices
from polycentric.errors import UsageError
from polycentric.stacks.mixing import Mixing
from polycentric.topology import Graph, metropolis
from polycentric.topology.graphs.gossip import doubly_stochastic
from support import random


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


@pytest.mark.parametrize(("weights", "so"), [
    ([[0.5, 0.5], [0.5, 0.5]], True),
    ([[-0.5, 1.5], [1.5, -0.5]], True),
    ([[1.0, 0.0], [0.0, 0.5]], False),  # one row of two does not sum to one
    ([[1.0, 0.0], [0.5, 0.5]], False),  # not symmetric
    ([[0.5, 0.5]], False),
    ([[1.0, 0.0, 0.0], [0.0, 1.5, 0.0], [0.0, 0.0, 0.5]], False),
])  # fmt: skip
def test_every_row_of_a_doubly_stochastic_mixing_sums_to_one(weights, so):
    assert doubly_stochastic(Mixing.dense(exact(weights), "keep")) == so


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
        "the rows of the weights of a Graph must sum to 1, and one is off by 0.25: use metropolis(graph)",
    ),
    "square": (
        lambda: Graph(Mixing.dense(torch.ones(1, 2), "keep")),
        "the weights of a Graph are clients x clients, got 1 x 2",
    ),
    "nodes": (
        lambda: Graph(metropolis(networkx.cycle_graph(4))).n_centers(5),
        "the graph is for 4 clients, but the federation has 5: give weights for clients 0 .. 4, or name one, as in "
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


def test_every_link_counts_once_and_nobody_is_its_own_neighbour():
    facts = Graph(metropolis(networkx.path_graph(3))).facts(3)
    assert (facts["links"], facts["neighbours"]) == (2, [1, 2])


def test_the_mixing_of_nobody_is_doubly_stochastic():
    assert doubly_stochastic(Mixing.dense(torch.zeros(0, 0), "keep"))
