"""Topologies: every one is a pair of matrices, and the matrices have laws."""

import networkx
import torch
from hypothesis import given, strategies as st

from matrices import FOUR, LAW, close, everyone, exact, exchange, matrices
from polycentric.topology import Alone, Cells, Clusters, Graph, Star, metropolis
from support import random

# -- four clients, as in the docstring -----------------------------------------------------------------------


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
