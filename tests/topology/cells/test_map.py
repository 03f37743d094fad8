"""Maps: stations and their reach, clients that walk or follow a trace, and memory that is linear in the coverage."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from polycentric import CellMap, UsageError
from polycentric.topology.cells.coverage import covered
from polycentric.topology.cells.shapes import Attached
from support import Largest, valid

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


def test_a_walker_who_leaves_all_cells_is_refused_when_it_does():
    hole = CellMap(4, radius=0.34, speed=1.0)  # all stand in a cell at first, and the middle of the map is in none
    valid(covered(hole, 20))
    with pytest.raises(UsageError, match=r"no station reaches it at .* in round \d+; raise the radius, or set nearest"):
        for round in range(200):
            covered(hole, 20, 0, round)
    everywhere = replace(hole, nearest=True)
    assert all(valid(covered(everywhere, 20, 0, round)) is None for round in range(20))


def test_a_map_is_what_its_settings_and_its_files_say(tmp_path: Path):
    places = tmp_path / "places.csv"
    places.write_text("kind,x,y,radius\nedge,0,0,2\nedge,3,0,2\n")
    one, same = CellMap(places=str(places), speed=0.1), CellMap(places=str(places), speed=0.1)
    assert one == same and hash(one) == hash(same) and repr(one) == repr(same)
    assert replace(one, speed=0.2) != one and replace(one, metres=2.0) == one  # who is covered is the same
    places.write_text("kind,x,y,radius\nedge,0,0,2\nedge,3,0,2.5\n")
    other = CellMap(places=str(places), speed=0.1)
    assert other != one and repr(other) != repr(one)
    assert one.radii.tolist() == [2, 2] and same.n_edges == 2  # read when it was made, and not again
    assert CellMap(4) == CellMap(4) and CellMap(4).digest == ""


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
        ("round,client,x,y\n", "has a heading and no other line"),
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


def test_a_place_that_lacks_a_number_is_refused(tmp_path: Path):
    (tmp_path / "p.csv").write_text("kind,x,y,radius\nedge,5,,1\nclient,5,1,\n")
    with pytest.raises(UsageError, match="line 2: 3 numbers are wanted, got '5,,1'"):
        CellMap(places=str(tmp_path / "p.csv"), radius=0.5)
    (tmp_path / "p.csv").write_text("kind,x,y,radius\nedge,5,1,0\n")
    with pytest.raises(UsageError, match="edge 0 has no positive radius"):
        CellMap(places=str(tmp_path / "p.csv"))


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
