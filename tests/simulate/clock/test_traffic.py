"""Bytes: read off the matrices that did the work (methods.md 18.3; d numbers of b bytes in a row)."""

import networkx
import pytest
import torch
from hypothesis import given, settings, strategies as st

import polycentric
from polycentric.learn import Train
from polycentric.method import Exchange, Held, Method
from polycentric.round import Trip, run_round
from polycentric.simulate.clock import Traffic, traffic
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.stack import KeepPrivate
from polycentric.topology import Alone, Cells, Clusters, Graph, Star, TwoLevel, metropolis

LAW = settings(max_examples=50)
D = 7
N = 6


def some(*index, n=N):
    index = torch.tensor(index, dtype=torch.int64)
    return Cohort(index, index + 1, torch.ones(len(index)), n, seed=0, round=0)


def cost(topology, asked, arrived=None, dtype=torch.float32, **exchange):
    exchange = Exchange(learn=(Train(),), topology=topology, **exchange)
    state = Method.of("made", exchange).begin({"model": torch.zeros(1, D, dtype=dtype)}, asked.n_clients)
    return traffic(Trip(exchange, state, asked, asked if arrived is None else arrived))


subsets = st.lists(st.integers(0, N - 1), unique=True)


@LAW
@given(
    subsets,
    st.sampled_from([Star(), Star(equal=True), Star(denominator=3), Clusters(3), Clusters(3, weighted=True)]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_stars_and_clusters_move_one_row_each_way_for_every_client(index, topology, dtype):
    b = torch.empty((), dtype=dtype).element_size()
    assert cost(topology, some(*index), dtype=dtype) == Traffic(len(index) * D * b, len(index) * D * b)


@LAW
@given(subsets)
def test_alone_costs_nothing(index):
    assert cost(Alone(), some(*index)) == Traffic(0, 0)


@LAW
@given(subsets, st.integers(0, 10**6))
def test_a_graph_pays_for_both_ends_of_every_edge_between_those_who_are_there(index, seed):
    graph = networkx.gnp_random_graph(N, 0.5, seed=seed)
    edges = graph.subgraph(index).number_of_edges()
    topology = Graph(metropolis(graph, disconnected="allow"))
    assert cost(topology, some(*index)) == Traffic(
        0, 2 * edges * D * 4, between=2 * edges * D * 4
    )  # the diagonal is free


def test_a_name_that_is_only_carried_along_in_a_graph_costs_nothing():
    topology = Graph(metropolis(networkx.cycle_graph(N)), only_own=("sums",))
    both = cost(topology, some(*range(N)), sends=("model", "sums"))
    assert both == cost(topology, some(*range(N))) == Traffic(0, 2 * N * D * 4, between=2 * N * D * 4)


def test_whoever_is_asked_receives_and_whoever_arrived_has_sent():
    assert cost(Star(), some(0, 2, 3, 5), some(2)) == Traffic(4 * D * 4, 1 * D * 4)
    assert cost(Star(), some()) == Traffic(0, 0)


def test_every_name_that_travels_is_paid_for():
    together = cost(
        Star(), some(0, 1), sends=("model", "fisher", "count"), holds={"count": Held(1)}, receives=("model",)
    )
    assert together == Traffic(2 * D * 4, 2 * (D + D + 1) * 4)


def test_a_scalar_that_is_told_costs_one_number():  # AFL: + 1 scalar
    assert cost(Star(), some(0, 1, 2), tells=("loss",)) == Traffic(3 * D * 4, 3 * (D + 1) * 4)
    assert cost(Star(), some(0, 1), tells=("loss",), holds={"loss": Held(5)}) == Traffic(2 * D * 4, 2 * (D + 5) * 4)


CELLS = Cells(torch.tensor([[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1]]))  # client 2 is a bridge


def test_edges_send_to_every_client_they_cover():
    assert cost(CELLS, some(*range(N))).down == 7 * D * 4
    assert cost(TwoLevel(CELLS.geometry, every=0), some(*range(N))).down == 7 * D * 4


def test_a_bridge_uploads_once_and_all_its_edges_listen():
    assert cost(CELLS, some(*range(N))).up == N * D * 4


def test_traffic_adds_up():
    assert Traffic(1, 2) + Traffic(10, 20) == Traffic(11, 22)


@pytest.mark.parametrize("private", [(), ("*bias",), ("*",)])
def test_what_is_private_is_not_paid_for(private):
    federation = polycentric.load("digits", clients=4, seed=0)
    cut = KeepPrivate(*private) if private else polycentric.stacks.stack.WHOLE
    task = polycentric.Task.of(federation, torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)), cut=cut)
    clients = polycentric.Simulation(federation, task, executor="looped")
    method = polycentric.fedavg(select=polycentric.Uniform(3), cut=cut, steps=1)
    before = method.begin(task.start(), 4)
    _, (trip,) = run_round(method, before, clients)
    shared = {(): 650, ("*bias",): 640, ("*",): 0}[private]
    assert traffic(trip) == Traffic(3 * shared * 4, 3 * shared * 4)
