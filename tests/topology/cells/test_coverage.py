"""Who is covered by whom: shapes, tables, maps, movement; in memory that is linear in the coverage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from polycentric import CellMap, CellRegions, CellTable, Overlap, RingCells, UsageError
from polycentric.topology.cells.coverage import covered
from polycentric.topology.cells.shapes import Attached, shared
from polycentric.topology.cells.tables import GivenCells, geometry
from support import valid

LAW = settings(max_examples=40)


def regions(geometry, n=None):
    """How many clients every region has."""
    cells = covered(geometry, n or geometry.default_n_clients)
    counts = torch.bincount(cells.regions.of, minlength=len(cells.regions.edges)).tolist()
    return dict(zip(cells.regions.names(), counts, strict=True))


# -- shapes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "natural", "wanted"),
    [
        (Overlap(20, 10), 90, {"0": 20, "1": 20, "2": 20, "0+1": 10, "0+2": 10, "1+2": 10}),
        (Overlap(0, 30), 90, {"0+1": 30, "0+2": 30, "1+2": 30}),
        (Overlap(30, 0), 90, {"0": 30, "1": 30, "2": 30}),
        (Overlap(0, 20, 30), 90, {"0+1": 20, "0+2": 20, "1+2": 20, "0+1+2": 30}),
        (
            Overlap(10, 10, 30),
            90,
            {"0": 10, "1": 10, "2": 10, "0+1": 10, "0+2": 10, "1+2": 10, "0+1+2": 30},
        ),
        (
            CellRegions("0:10 1:20 2:0 0+1:10 0+2:30 1+2:20"),
            90,
            {"0": 10, "1": 20, "0+1": 10, "0+2": 30, "1+2": 20},
        ),
        (
            RingCells(4, 15, 10),
            100,
            {"0": 15, "1": 15, "2": 15, "3": 15, "0+1": 10, "0+3": 10, "1+2": 10, "2+3": 10},
        ),
        (RingCells(2, 1, 2), 6, {"0": 1, "1": 1, "0+1": 4}),
        (RingCells(1, 1, 2), 3, {"0": 3}),
    ],
)
def test_the_papers_shapes(geometry, natural, wanted):
    assert geometry.default_n_clients == natural
    assert regions(geometry) == wanted
    valid(covered(geometry, natural))


def test_the_asymmetric_cells_are_equally_large():
    assert covered(CellRegions("0:10 1:20 0+1:10 0+2:30 1+2:20"), 90).sizes.tolist() == [50, 50, 50]


@LAW
@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(1, 60))
def test_any_number_of_clients_is_shared_out_in_proportion(u, v, w, n):
    if u + v + w == 0:
        return
    counts = regions(Overlap(u, v, w), n)
    assert sum(counts.values()) == n
    for name, count in counts.items():
        exact = n * {1: u, 2: v, 3: w}[len(name.split("+"))] / (3 * (u + v) + w)
        assert abs(count - exact) < 1


@LAW
@given(st.integers(0, 50), st.lists(st.integers(0, 20), min_size=1, max_size=8).filter(any))
def test_largest_remainders_add_up(n, sizes):
    out = shared(n, sizes)
    assert sum(out) == n
    assert all(abs(o - n * s / sum(sizes)) < 1 for o, s in zip(out, sizes, strict=True))


@pytest.mark.parametrize("geometry", [Overlap(20, 10), Overlap(0, 20, 30), RingCells(5, 3, 4), Overlap(5, 7)])
def test_attached_clients_have_one_of_their_edges_and_overlaps_are_split_evenly(geometry):
    n = geometry.default_n_clients
    cells, one = covered(geometry, n), covered(Attached(geometry), n)
    valid(one)
    assert one.covers.tolist() == [1] * n
    mine = set(zip(cells.edge.tolist(), cells.client.tolist(), strict=True))
    assert set(zip(one.edge.tolist(), one.client.tolist(), strict=True)) <= mine
    for number, edges in enumerate(cells.regions.edges):
        counts = torch.bincount(one.edge[cells.regions.of == number], minlength=geometry.n_edges)[list(edges)]
        assert int(counts.max() - counts.min()) <= 1
    assert int(one.sizes.max() - one.sizes.min()) <= 1  # these shapes treat all edges alike


def test_links_of_some_clients_are_those_of_the_table():
    cells = covered(Overlap(3, 2, 1), 16)
    index = torch.tensor([15, 0, 9, 3])
    edge, place = cells.links(index)
    dense = torch.as_tensor(cells.table.toarray())[:, index]
    assert sorted(zip(edge.tolist(), place.tolist(), strict=True)) == sorted(map(tuple, dense.nonzero().tolist()))
    assert [len(part) for part in cells.links(index[:0])] == [0, 0]


@pytest.mark.parametrize("geometry", [RingCells(16, 0, 1), RingCells(4, 0, 25), Overlap(0, 3), Overlap(1, 3, 2)])
def test_whoever_is_left_over_goes_to_the_smallest_edge(geometry):
    sizes = covered(Attached(geometry), geometry.default_n_clients).sizes
    assert int(sizes.max() - sizes.min()) <= 1


# -- tables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cells.csv", "1,0\n1,1\n0,1\n"),
        ("cells.csv", "first,second\n1,0\n1,1\n0,1\n"),
        ("cells.csv", "1.0,0.0\n1,1\n0,1\n"),
        ("cells.csv", "client,edge\n2,1\n0,0\n1,0\n1,1\n"),
        ("cells.toml", "edges = 2\nclients = [[0], [0, 1], [1]]\n"),
    ],
)
def test_a_table_from_a_file(name, text, tmp_path: Path):
    (tmp_path / name).write_text(text)
    table = CellTable(str(tmp_path / name))
    assert table == GivenCells.of(torch.tensor([[1, 1, 0], [0, 1, 1]]))
    assert repr(table).startswith("GivenCells(2 edges, 3 clients, ")
    assert regions(table) == {"0": 1, "1": 1, "0+1": 1}
    assert geometry(f"table({tmp_path / name})") == table


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "1,0\n0,0\n", "client 1 is in no cell"),
        ("a.csv", "1,0\n1\n", "line 2: 2 numbers are wanted, got '1'"),
        ("a.csv", "first,second\n1,0\n\n1\n", "line 4: 2 numbers are wanted, got '1'"),
        ("a.csv", '1,"0\n' + "0" * 200_000, "field larger than field limit"),
        ("a.csv", "1,0\n1,nan\n", "line 2: 2 numbers are wanted"),
        ("a.csv", "1,0\n2,0\n", "client 1, edge 0: a table of cells holds 0 and 1, got 2"),
        ("a.csv", "", "has no clients"),
        ("a.csv", "client,edge\n0,0\n5,0\n", "client 1 is in no cell (4 such clients)"),
        ("a.csv", "client,edge\n0,0.5\n", "line 2: clients and edges are whole numbers from 0, got '0,0.5'"),
        ("a.csv", "client,edge\n0,-1\n", "line 2: clients and edges are whole numbers from 0, got '0,-1'"),
        ("a.csv", "client,edge\n1e30,0\n", "line 2: clients and edges are whole numbers from 0, got '1e30,0'"),
        ("a.toml", "edges = 2\n", "must say `edges = 3` and"),
        ("a.toml", "edges = 2\nclients = [[0], [2]]\n", "the edges of client 1 must be numbers from 0 to 1, got [2]"),
        ("a.toml", "edges = [", "cannot be read as TOML"),
    ],
)
def test_a_table_that_is_wrong_says_where(name, text, message, tmp_path: Path):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as wrong:
        CellTable(str(tmp_path / name))
    assert message in str(wrong.value)


def test_a_table_that_is_not_there():
    with pytest.raises(UsageError, match=r"'nowhere.csv' cannot be read: No such file"):
        CellTable("nowhere.csv")


def test_pairs_may_be_headed_either_way(tmp_path: Path):
    (tmp_path / "a.csv").write_text("client,edge\n0,0\n1,0\n1,1\n")
    (tmp_path / "b.csv").write_text("edge,client\n0,0\n0,1\n1,1\n")
    assert CellTable(str(tmp_path / "a.csv")) == CellTable(str(tmp_path / "b.csv"))


def test_cells_may_be_given_as_a_text_an_array_or_lists():
    table = [[1, 1, 0], [0, 1, 1]]
    wanted = GivenCells.of(torch.tensor(table))
    assert geometry(table) == geometry(np.array(table)) == geometry(torch.tensor(table)) == wanted
    assert geometry("overlap(u=4, v=2)") == Overlap(4, 2)
    for wrong in (0.5 * torch.ones(2, 3), torch.full((2, 3), torch.nan), -torch.ones(2, 3), np.full((2, 3), 2)):
        with pytest.raises(UsageError, match="holds 0 and 1"):
            geometry(wrong)
    for strange in (object(), [[1, 0], [1]], {"a": 1}):
        with pytest.raises(UsageError, match="cells must be a geometry such as Overlap"):
            geometry(strange)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path):
    with (tmp_path / "large.csv").open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(UsageError, match="larger than 64 MiB"):
        CellTable(str(tmp_path / "large.csv"))


# -- mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Overlap(0, 0), "not all of them 0, got 0, 0, 0"),
        (lambda: Overlap(-1, 2), "numbers of clients >= 0, not all of them 0"),
        (lambda: RingCells(0), "RingCells.edges must be from 1 to 100,000, got 0"),
        (lambda: CellRegions("0;10"), "CellRegions takes EDGES:CLIENTS such as 0:10 or 0+1:5, got '0;10'"),
        (lambda: CellRegions(""), "CellRegions has no clients"),
        (lambda: CellMap(0), "CellMap.edges must be from 1"),
        (lambda: CellMap(4, radius=-1), "CellMap.radius must be in [1e-9, inf), got -1"),
        (lambda: CellMap(4, metres=0), "CellMap.metres must be in (0, 1e12], got 0"),
        (lambda: CellMap(4, speed=float("nan")), "CellMap.speed must be in [0, inf), got nan"),
    ],
)
def test_a_mistake_is_named(build, message):
    with pytest.raises(UsageError) as wrong:
        build()
    assert message in str(wrong.value)
