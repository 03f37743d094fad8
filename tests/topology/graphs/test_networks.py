"""Graphs by name, what is refused, and gossip on them: means are kept, the absent change nothing but the diagonal."""

from __future__ import annotations

import math

import networkx
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from polycentric import (
    Churn,
    Complete,
    Edges,
    ErdosRenyi,
    Exponential,
    Geometric,
    Gossip,
    PathGraph,
    Ring,
    SmallWorld,
    StarGraph,
    Torus,
    UsageError,
    dpsgd,
    fedavg,
    nofed,
    run,
    run_round,
)
from polycentric.language import entries, value_of
from polycentric.runs.models_apart import consensus
from polycentric.runs.recipes import build_method
from polycentric.runs.start import prepare
from polycentric.simulate.clock import traffic
from polycentric.topology import metropolis, weights_for
from polycentric.topology.graphs.gossip import doubly_stochastic
from polycentric.topology.graphs.networks import MATCHA_16, Matched, Network, graph_for
from support import everyone, model, small

ALL = [
    Ring(), PathGraph(), Torus(), Complete(), StarGraph(), Exponential(), ErdosRenyi(0.4), Geometric(0.5),
    SmallWorld(4, 0.2),
]  # fmt: skip


def pairs(graph):
    return sorted(tuple(sorted(edge)) for edge in graph.edges)


# -- what they look like -------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", ALL, ids=repr)
@pytest.mark.parametrize("n", [6, 12, 30])
def test_a_network_is_connected_simple_and_the_same_every_time(network, n):
    graph = graph_for(network, n)
    assert sorted(graph.nodes) == list(range(n))
    assert networkx.is_connected(graph)
    assert not list(networkx.nodes_with_selfloops(graph))
    assert pairs(network.of(n)) == pairs(network.of(n))


@pytest.mark.parametrize("network", [n for n in ALL if not isinstance(n, Torus)], ids=repr)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_clients_are_a_graph_too(network, n):
    assert networkx.is_connected(graph_for(network, n))


def test_their_degrees_are_those_of_the_name():
    def degrees(network, n):
        return [d for _, d in sorted(network.of(n).degree)]

    assert degrees(Ring(), 7) == [2] * 7
    assert degrees(PathGraph(), 4) == [1, 2, 2, 1]
    assert degrees(Torus(), 12) == [4] * 12
    assert degrees(Torus(rows=2), 12) == [3] * 12
    assert degrees(Complete(), 5) == [4] * 5
    assert degrees(StarGraph(), 5) == [4, 1, 1, 1, 1]
    assert degrees(Exponential(), 16) == [7] * 16  # +-1, +-2, +-4, and 8
    assert sum(degrees(SmallWorld(4, 0.3), 20)) == 4 * 20


def test_random_graphs_follow_their_seed_and_their_density():
    assert pairs(ErdosRenyi(0.3).of(20)) != pairs(ErdosRenyi(0.3, seed=1).of(20))
    assert pairs(Geometric(0.4).of(20)) != pairs(Geometric(0.4, seed=1).of(20))
    edges = [ErdosRenyi(0.3, seed=k).of(40).number_of_edges() for k in range(20)]
    assert abs(sum(edges) / len(edges) / math.comb(40, 2) - 0.3) < 0.02
    assert pairs(ErdosRenyi(1.0).of(6)) == pairs(Complete().of(6))


@pytest.mark.parametrize("name", [n for n in entries(Network) if n != "file"])
def test_every_name_can_be_typed(name):
    network = value_of("graph", name, Network)
    n = {"matcha-16": 16}.get(name, 8)
    assert build_method("dpsgd", {"graph": name}) == dpsgd(graph=network)
    assert graph_for(network, n).number_of_nodes() == n


def test_settings_of_a_graph_can_be_typed():
    assert build_method("dpsgd", {"graph": "erdos-renyi(p=0.5, seed=3)"}) == dpsgd(graph=ErdosRenyi(0.5, 3))
    assert build_method("matcha", {"graph": "torus", "graph.rows": 4}).at(0)[0].topology.graph == Torus(4)


def test_an_edge_file_and_a_networkx_graph_are_networks(tmp_path):
    (tmp_path / "edges.txt").write_text("# four in a row\n0 1\n2,1\n\n2 3 # the last\n1 2\n")
    read = Edges.read(str(tmp_path / "edges.txt"))
    assert read == Edges.of_graph(networkx.path_graph(4))
    assert dpsgd(graph=networkx.path_graph(4)) == dpsgd(graph=read)
    assert dpsgd(graph=networkx.path_graph(4)) != dpsgd(graph=networkx.cycle_graph(4))
    assert repr(dpsgd(graph=networkx.path_graph(4))) != repr(dpsgd(graph=networkx.star_graph(3)))
    assert build_method("dpsgd", {"graph": f"file({tmp_path / 'edges.txt'})"}) == dpsgd(graph=read)


# -- what is refused -----------------------------------------------------------------------------------------

REFUSED = {
    "directed": (lambda: dpsgd(graph=networkx.cycle_graph(3, networkx.DiGraph)), "the graph is directed"),
    "loop": (lambda: dpsgd(graph=networkx.Graph([(0, 1), (1, 1)])), "client 1 has an edge to itself"),
    "repeated": (lambda: dpsgd(graph=networkx.MultiGraph([(0, 1), (0, 1)])), "repeated edges"),
    "numbers": (lambda: dpsgd(graph=networkx.Graph([(1, 2)])), "numbered 0 .. n-1"),
    "not a graph": (lambda: dpsgd(graph=[(0, 1)]), "such as Ring(), or a networkx graph, got list"),
    "two parts": (lambda: graph_for(Edges(((0, 1), (2, 3)), 4), 4), "the graph has 2 parts"),
    "isolated": (lambda: graph_for(Edges(((0, 1),), 3), 3), "client 2 has no neighbour at all"),
    "too few": (lambda: Gossip(Edges(((0, 1),), 2)).n_centers(5), "the graph is for 2 clients, but"),
    "too many": (lambda: Gossip(MATCHA_16).n_centers(8), "the graph is for 16 clients"),
    "no torus": (lambda: Torus().of(7), "7 clients do not make a torus of 1 rows; use graph=ring"),
    "rows": (lambda: Torus(5).of(12), "12 clients do not make a torus of 5 rows"),
    "p": (lambda: ErdosRenyi(1.5), "ErdosRenyi.p must be in [0, 1], got 1.5"),
    "radius": (lambda: Geometric(0), "Geometric.radius must be positive, got 0"),
    "odd k": (lambda: SmallWorld(3), "SmallWorld.k must be an even number"),
    "never connected": (lambda: graph_for(ErdosRenyi(0.0), 4), "the graph has 4 parts"),
    "shared client": (lambda: Matched((((0, 1), (1, 2)),)), "matching 0 has two edges that share a client"),
    "edge twice": (lambda: Matched((((0, 1),), ((1, 0),))), "an edge is in two matchings"),
    "steps": (lambda: dpsgd(steps=0), "steps must be at least 1, got 0"),
    "away": (lambda: Churn(away=1.0), "Churn.away must be in [0, 1), got 1.0"),
    "too short": (lambda: Churn(away=0.5, rounds=1), "Churn.rounds must be at least 1 / (1 - away) = 2"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_with_a_reason(what):
    build, text = REFUSED[what]
    with pytest.raises(UsageError) as wrong:
        build()
    assert text in str(wrong.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0 1\n1 x\n", "line 2 of"),
        ("0 1 0.5\n", "an edge is two client numbers, such as 0 1"),
        ("0 1\n2 2\n", "joins client 2 with itself"),
        ("-1 2\n", "an edge is two client numbers"),
        ("# nothing\n", "has no edges"),
        ("0 99999999999999999999\n", "an edge is two client numbers"),
    ],
)
def test_a_bad_edge_file_is_refused_with_the_line(tmp_path, text, reason):
    (tmp_path / "edges.txt").write_text(text)
    with pytest.raises(UsageError, match=reason):
        Edges.read(str(tmp_path / "edges.txt"))


def test_a_missing_or_binary_edge_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        Edges.read(str(tmp_path / "none.txt"))
    (tmp_path / "edges.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="it is not text"):
        Edges.read(str(tmp_path / "edges.bin"))


# -- gossip --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", ALL, ids=repr)
def test_weights_are_doubly_stochastic_whoever_is_there(network):
    n = 12
    assert doubly_stochastic(weights_for(network, n))
    there = everyone(n)[torch.tensor([0, 2, 3, 7, 8, 11])]
    up = Gossip(network).up({}, there, "model").to_dense()
    block = up[there.index]
    torch.testing.assert_close(block, block.T, rtol=0, atol=1e-12)
    torch.testing.assert_close(block.sum(1), torch.ones(6).double(), rtol=0, atol=1e-12)
    assert up[torch.tensor([1, 4, 5, 6, 9, 10])].abs().max() == 0


@pytest.mark.parametrize("select", ["everyone", "uniform(n=3)", "churn(away=0.4, rounds=3)"])
def test_mixing_keeps_the_mean_of_the_models(select, blobs):  # G7
    federation = blobs((9, 8, 12, 7, 10, 11))
    method = build_method("dpsgd", {"graph": "path", "select": select, "lr": 0.0})
    prepared = prepare(method, federation, model=small, dtype="float64")
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(prepared.state.centers["model"].shape, generator=generator, dtype=torch.float64)
    state = type(prepared.state)({"model": rows}, {}, prepared.state.memory, 0)
    apart = consensus(method, state, prepared.clients)
    for _ in range(4):
        state, _ = run_round(method, state, prepared.clients)
        torch.testing.assert_close(state.centers["model"].mean(0), rows.mean(0), rtol=0, atol=1e-12)
    assert consensus(method, state, prepared.clients) < apart


@pytest.mark.parametrize("steps", [1, 4])
def test_on_the_complete_graph_it_is_unweighted_fedavg(steps, blobs):
    ours = model(dpsgd(graph=Complete(), steps=steps, lr=0.1, batch=5), blobs())
    other = model(fedavg(equal=True, steps=steps, lr=0.1, batch=5), blobs())
    torch.testing.assert_close(ours, other.expand_as(ours), rtol=1e-10, atol=1e-12)


def test_without_edges_it_is_training_alone(blobs):
    ours = model(dpsgd(graph=ErdosRenyi(0.0), disconnected="allow", steps=3, lr=0.1, batch=5), blobs())
    torch.testing.assert_close(ours, model(nofed(steps=3, lr=0.1, batch=5), blobs()), rtol=1e-12, atol=1e-12)


def test_consensus_is_the_distance_from_the_mean(blobs):
    done = run(dpsgd(lr=0.1), blobs(), model=small, rounds=3, dtype="float64")
    rows = done.state.centers["model"]
    by_hand = float(torch.linalg.matrix_norm(rows - rows.mean(0)))
    assert done.history[-1]["consensus"] == pytest.approx(by_hand, rel=1e-12)
    assert done.history[0]["consensus"] < 1e-12
    assert "consensus" not in run(fedavg(lr=0.1), blobs(), model=small, rounds=1).history[-1]


# -- many clients --------------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """Remembers the numbers in the largest tensor that anything made."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for made in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(made, torch.Tensor):
                size = made._nnz() if made.layout is torch.sparse_coo else made.numel()
                self.numbers = max(self.numbers, size)
        return out


def test_a_round_of_many_clients_holds_nothing_larger_than_edges_and_models(blobs):
    n = 2000
    method = dpsgd(graph=SmallWorld(4, 0.1), lr=0.1, batch=1, select=Churn(0.3, 4))
    prepared = prepare(method, blobs((1,) * n, test=0, classes=2), model=small, dtype="float64")
    with Largest() as largest:
        state, trips = run_round(method, prepared.state, prepared.clients)
        traffic(trips[0])
        weights = metropolis(graph_for(SmallWorld(4, 0.1), n))
    width = state.centers["model"].shape[1]
    assert len(weights.weight) == n + 2 * 2 * n
    assert n * width <= largest.numbers <= 8 * n * width  # a matrix of clients x clients would be n * n
    assert 8 * n * width < n * n / 4
