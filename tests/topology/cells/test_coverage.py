"""Who is covered by whom: shapes, tables, maps, movement; in memory that is linear in the coverage."""

from __future__ import annotations

import re
import tempfile
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polycentric import CellMap, CellRegions, CellTable, Overlap, RingCells, UsageError
from polycentric.topology.cells.coverage import Coverage, covered
from polycentric.topology.cells.fill import shared
from polycentric.topology.cells.geometries import geometry
from polycentric.topology.cells.shapes import Attached
from polycentric.topology.cells.tables import GivenCells
from support import Largest

LAW = settings(max_examples=40)


def regions(geometry, n=None):
    """How many clients every region has."""
    cells = covered(geometry, n or geometry.default_n_clients)
    counts = torch.bincount(cells.regions.of, minlength=len(cells.regions.edges)).tolist()
    return dict(zip(cells.regions.names(), counts, strict=True))


def valid(cells: Coverage) -> None:
    """What holds of every coverage."""
    assert bool((cells.covers >= 1).all())
    assert int(cells.covers.sum()) == int(cells.sizes.sum()) == len(cells.edge)
    assert bool(((cells.edge >= 0) & (cells.edge < cells.n_edges)).all())
    pair = cells.client * cells.n_edges + cells.edge
    assert torch.equal(pair, torch.unique(pair))


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


def test_a_place_that_lacks_a_number_is_refused(tmp_path: Path):
    (tmp_path / "p.csv").write_text("kind,x,y,radius\nedge,5,,1\nclient,5,1,\n")
    with pytest.raises(UsageError, match="line 2: 3 numbers are wanted, got '5,,1'"):
        CellMap(places=str(tmp_path / "p.csv"), radius=0.5)
    (tmp_path / "p.csv").write_text("kind,x,y,radius\nedge,5,1,0\n")
    with pytest.raises(UsageError, match="edge 0 has no positive radius"):
        CellMap(places=str(tmp_path / "p.csv"))


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path):
    with (tmp_path / "large.csv").open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(UsageError, match="larger than 64 MiB"):
        CellTable(str(tmp_path / "large.csv"))


# -- maps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edges", [1, 2, 3, 5, 9, 12])
def test_the_default_radius_covers_the_square(edges):
    valid(covered(CellMap(edges), 300, seed=3))


def test_a_map_covers_those_within_the_radius():
    geometry = CellMap(edges=4, radius=0.3, nearest=True)
    at, cells = geometry.positions(200, 5, 0), covered(geometry, 200, seed=5)
    away = np.hypot(*(geometry.stations[:, None] - at[None]).transpose(2, 0, 1))
    inside = away <= 0.3
    lost = ~inside.any(0)
    assert lost.any()
    inside[away[:, lost].argmin(0), np.flatnonzero(lost)] = True
    assert np.array_equal(cells.table.toarray() > 0, inside)


def test_a_client_that_no_station_reaches_is_refused_unless_the_nearest_may_have_it():
    with pytest.raises(
        UsageError, match=r"no station reaches it at .* in round 0; raise the radius, or set nearest=true"
    ):
        covered(CellMap(4, 0.2), 200)


def test_places_from_a_file(tmp_path: Path):
    (tmp_path / "places.csv").write_text("kind,x,y,radius\nedge,0,0,2\nedge,3,0,2\nclient,-1,0,\nclient,1.5,0,\n")
    geometry = CellMap(places=str(tmp_path / "places.csv"))
    assert (geometry.n_edges, geometry.default_n_clients) == (2, 2)
    assert covered(geometry, 2).table.toarray().tolist() == [[1, 1], [0, 1]]
    with pytest.raises(UsageError, match="places for 2 clients, but the federation has 3"):
        covered(geometry, 3)
    (tmp_path / "places.csv").write_text("kind,x,y,radius\nedge,0,0,2\nedge,3,0,2\nclient,-1,0,\nclient,1,0,\n")
    assert CellMap(places=str(tmp_path / "places.csv")) != geometry  # another content, another map
    (tmp_path / "places.csv").write_text("kind,x,y\nedge,0,0\n")
    with pytest.raises(UsageError, match="edge 0 has no radius"):
        CellMap(places=str(tmp_path / "places.csv"))


# -- clients that move ---------------------------------------------------------------------------------------


def test_where_a_walker_is_depends_on_seed_round_and_client_alone():
    geometry = CellMap(9, speed=0.07, pause=0.5)
    here = geometry.positions(40, 1, 13)
    assert np.array_equal(CellMap(9, speed=0.07, pause=0.5).positions(40, 1, 13), here)
    assert np.array_equal(geometry.positions(25, 1, 13), here[:25])  # in any company
    assert not np.array_equal(geometry.positions(40, 2, 13), here)


@pytest.mark.parametrize("pause", [0.0, 2.0])
def test_walkers_stay_in_the_square_and_never_walk_further_than_their_speed(pause):
    geometry = CellMap(9, speed=0.07, pause=pause)
    way = np.stack([geometry.positions(60, 0, round) for round in range(40)])
    assert (way >= 0).all() and (way <= 1).all()
    steps = np.hypot(*np.diff(way, axis=0).transpose(2, 0, 1))
    assert steps.max() <= 0.07 + 1e-12
    assert 0.05 < steps.mean() <= 0.07 if not pause else steps.min() == 0
    assert np.hypot(*(way[-1] - way[0]).T).mean() > 0.2


@pytest.mark.parametrize("clients", ["", "client,1,2,\nclient,3,2,\nclient,2,5,\n"], ids=["not placed", "placed"])
def test_walkers_stay_where_clients_are_placed_or_else_where_stations_reach(clients, tmp_path: Path):
    (tmp_path / "places.csv").write_text(f"kind,x,y,radius\nedge,0,0,9\nedge,4,1,7\n{clients}")
    geometry = CellMap(places=str(tmp_path / "places.csv"), speed=3.0, nearest=True)
    way = np.concatenate([geometry.positions(3, seed, 5) for seed in range(100)])
    low, high = ([1, 2], [3, 5]) if clients else ([-9, -9], [11, 9])
    assert (way >= low).all() and (way <= high).all()
    room = np.subtract(high, low)
    assert (way.min(0) < low + 0.1 * room).all() and (way.max(0) > high - 0.1 * room).all()  # and all over it


@pytest.mark.parametrize("seed", [0, 1])
def test_the_coverage_of_walkers_is_valid_in_every_round_and_changes(seed):
    geometry = CellMap(9, speed=0.1)
    tables = []
    for round in range(25):
        cells = covered(geometry, 50, seed, round)
        valid(cells)
        tables.append(cells.table.toarray())
    changes = [int((a != b).sum()) for a, b in pairwise(tables)]
    assert min(changes) > 0


def test_a_map_that_walkers_may_leave_is_refused_before_they_do():
    with pytest.raises(UsageError, match=r"may leave all cells, near \(0, 0\): raise the radius, or set nearest=true"):
        CellMap(1, radius=0.5, speed=0.3)
    assert CellMap(1, radius=0.5, speed=0.3, nearest=True).moves
    assert CellMap(1, radius=0.7072, speed=0.3).moves  # the corners are 0.7071 away
    with pytest.raises(UsageError, match="may leave all cells"):  # the corners are covered, and the middle is not
        CellMap(4, radius=0.35, speed=0.01)


@pytest.mark.parametrize("missing", [None, 4])
@pytest.mark.parametrize("twice", [False, True])
def test_circles_that_only_touch_leave_no_hole_but_where_one_is_missing(missing, twice, tmp_path: Path):
    """A grid whose circles all meet in the corners of its tiles; a tile's hole then has cusps, and no other corners."""
    tiles = [(i + 0.5, j + 0.5) for i in range(3) for j in range(3)]
    rows = [f"edge,{x},{y},{0.5**0.5!r}" for k, (x, y) in enumerate(tiles) if k != missing]
    rows = ["kind,x,y,radius", *rows, *(rows if twice else []), "client,0,0,", "client,3,3,"]
    (tmp_path / "p.csv").write_text("\n".join(rows))
    if missing is None:
        assert CellMap(places=str(tmp_path / "p.csv"), speed=0.1).moves
    else:
        with pytest.raises(UsageError, match=r"may leave all cells, near \([12], [12]\)"):
            CellMap(places=str(tmp_path / "p.csv"), speed=0.1)


@LAW
@given(st.integers(1, 12), st.integers(0, 10**6), st.floats(0.2, 1.2), st.booleans())
def test_a_map_has_a_hole_iff_it_is_refused_to_walkers(n, seed, reach, round):
    generator = np.random.default_rng(seed)
    stations, radii = generator.uniform(-0.2, 1.2, (n, 2)), reach * generator.uniform(0.5, 1, n)
    if round:  # so that several circles meet in one place, touch, or are the same
        stations, radii = stations.round(1), radii.round(1) + 0.1
    places = "".join(f"edge,{x!r},{y!r},{r!r}\n" for (x, y), r in zip(stations.tolist(), radii.tolist(), strict=True))
    corners = "client,0,0,\nclient,1,1,\n"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "p.csv").write_text("kind,x,y,radius\n" + places + corners)
        try:
            CellMap(places=f"{folder}/p.csv", speed=0.1)
            hole = None
        except UsageError as error:
            hole = [float(number) for number in re.search(r"near \((\S+), (\S+)\)", str(error)).groups()]

    def open_at(points):
        return (np.linalg.norm(points[:, None] - stations, axis=2) > radii).all(1)

    if hole is None:
        assert not open_at(generator.uniform(0, 1, (4000, 2))).any()
    else:  # named with three digits
        around = np.clip(np.array(hole) + generator.uniform(-0.02, 0.02, (20_000, 2)), 0, 1)
        assert open_at(around).any()


def test_whoever_cannot_go_anywhere_stays_and_nobody_is_too_fast_to_follow(tmp_path: Path):
    (tmp_path / "one.csv").write_text("kind,x,y,radius\nedge,0,0,2\nclient,1,0,\n")
    assert CellMap(places=str(tmp_path / "one.csv"), speed=0.1).positions(1, 0, 50).tolist() == [[1, 0]]
    with pytest.raises(UsageError, match=r"speed must be at most 10 times across the map in a round, 14.1, got 1e\+17"):
        CellMap(4, speed=1e17)


def test_a_walker_changes_its_edge_only_where_another_has_come_nearer():
    geometry = CellMap(9, speed=0.02)
    stations = torch.as_tensor(geometry.stations)
    for round in range(5):
        at = torch.as_tensor(geometry.positions(60, 0, round))
        nearest = torch.cdist(at, stations).argmin(1)
        assert torch.equal(covered(Attached(geometry), 60, 0, round).edge, nearest)


@pytest.mark.parametrize("geometry", [RingCells(16, 0, 1), RingCells(4, 0, 25), Overlap(0, 3), Overlap(1, 3, 2)])
def test_whoever_is_left_over_goes_to_the_smallest_edge(geometry):
    sizes = covered(Attached(geometry), geometry.default_n_clients).sizes
    assert int(sizes.max() - sizes.min()) <= 1


def test_a_trace_is_held_until_the_next_line(tmp_path: Path):
    (tmp_path / "trace.csv").write_text("round,client,x,y\n0,0,0.25,0.5\n0,1,0.25,0.5\n3,1,0.75,0.5\n5,0,0.75,0.5\n")
    geometry = CellMap(2, radius=0.4, nearest=True, trace=str(tmp_path / "trace.csv"))
    assert geometry.moves and geometry.default_n_clients == 2
    edge = [covered(geometry, 2, round=round).edge.tolist() for round in (0, 2, 3, 4, 5, 99)]
    assert edge == [[0, 0], [0, 0], [0, 1], [0, 1], [1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("round,x\n", "must begin with the line round,client,x,y"),
        ("round,client,x,y\n", "has no line but its heading"),
        ("round,client,x,y\n1,0,0,0\n", "does not say where client 0 is in round 0"),
        ("round,client,x,y\n0,0.5,0,0\n", "whole numbers from 0"),
        ("round,client,x,y\n0,99999999,0,0\n", "names client 99999999 but has only 1 lines"),
        ("round,client,x,y\n0,0,0\n", "line 2: 4 numbers are wanted"),
        ("round,client,x,y\n0,0,0.5,0.5\n3,0,9,9\n", "client 0 is in no cell in round 3, at (9, 9)"),
    ],
)
def test_a_trace_that_is_wrong_says_where(text, message, tmp_path: Path):
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(UsageError) as wrong:
        covered(CellMap(trace=str(tmp_path / "trace.csv")), 1)
    assert message in str(wrong.value)


def test_a_trace_of_other_clients_than_are_placed_is_refused(tmp_path: Path):
    (tmp_path / "trace.csv").write_text("round,client,x,y\n0,0,0.5,0.5\n")
    (tmp_path / "places.csv").write_text("kind,x,y,radius\nedge,0.5,0.5,1\nclient,0,0,\nclient,1,1,\n")
    with pytest.raises(UsageError, match=r"places 2 clients, and '.*trace.csv' moves 1: leave them out of one"):
        CellMap(places=str(tmp_path / "places.csv"), trace=str(tmp_path / "trace.csv"))


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Overlap(0, 0), "not all of them 0, got 0, 0, 0"),
        (lambda: Overlap(-1, 2), "numbers of clients from 0 up"),
        (lambda: RingCells(0), "RingCells.edges must be from 1 to 100,000, got 0"),
        (lambda: CellRegions("0;10"), "CellRegions takes EDGES:CLIENTS such as 0:10 or 0+1:5, got '0;10'"),
        (lambda: CellRegions(""), "CellRegions has no clients"),
        (lambda: CellMap(0), "CellMap.edges must be from 1"),
        (lambda: CellMap(4, radius=-1), "CellMap.radius must be a positive number, got -1"),
        (lambda: CellMap(4, metres=0), "CellMap.metres must be a positive number, got 0"),
        (lambda: CellMap(4, speed=float("nan")), "CellMap.speed must be a number from 0 up, got nan"),
    ],
)
def test_a_mistake_is_named(build, message):
    with pytest.raises(UsageError) as wrong:
        build()
    assert message in str(wrong.value)


# -- large maps ----------------------------------------------------------------------------------------------


def peak_of(edges: int, clients: int) -> tuple[int, int, int]:
    """(bytes at most, those of the largest tensor, pairs) of a coverage, its regions and the links of a cohort."""
    geometry = CellMap(edges, speed=0.01, seed=edges)
    tracemalloc.start()
    with Largest() as largest:
        cells = geometry.cover(clients, 0, 1)
        cells.regions.names()
        cells.links(torch.arange(0, clients, 7))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak, largest.bytes, len(cells.edge)


def test_memory_is_linear_in_the_coverage_not_in_clients_times_edges():
    few, small, pairs = peak_of(16, 8_000)
    many, large, others = peak_of(256, 8_000)
    assert others < 1.3 * pairs  # about as many pairs, sixteen times as many edges
    assert many < 2 * few
    assert large < 2 * small
