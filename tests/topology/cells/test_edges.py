"""Looking at edges: the command, the maps, and the table of simulated times."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from polycentric import CellMap, CellRegions, Matchings, Normalised, Overlap, RingCells, UsageError, hierarchical
from polycentric.cli import outcome
from polycentric.learn import Train
from polycentric.method import Exchange, Method
from polycentric.methods import METHODS
from polycentric.report.layout import spots_of_cells
from polycentric.report.maps import draw_map
from polycentric.reproduce import TABLES
from polycentric.reproduce.fedmes import FEDMES, ends, over_by, round_time, rounds_by
from polycentric.reproduce.rows import history
from polycentric.runs.grid import digest
from polycentric.runs.settings import Settings
from polycentric.runs.start import built_method
from polycentric.simulate.clock import Load
from polycentric.stacks.cohort import Cohort
from polycentric.topology.cells.coverage import covered
from polycentric.topology.cells.shapes import Attached


def shown(capsys, *words: str) -> dict:
    assert outcome(["topology", "show", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_topology_show_tells_the_numbers_of_the_paper(capsys):
    found = shown(capsys, "fedmes", "--set", "cells=overlap(u=20, v=10)", "--set", "alpha_v=1.3")
    assert (found["edges"], found["clients"], found["pairs"], found["in_overlaps"]) == (3, 90, 120, 30)
    assert found["regions"] == {"0": 20, "1": 20, "2": 20, "0+1": 10, "0+2": 10, "1+2": 10}
    assert found["zeta"] == pytest.approx(0.576, abs=5e-4)
    assert found["column_sums"] == pytest.approx([0.6522, 1.6957], abs=5e-5)
    assert not found["doubly_stochastic"]
    assert found["counts"] == pytest.approx([0.6522, 1.6957], abs=5e-5)  # equal cells: as in one step
    assert shown(capsys, "fedmes", "--set", "alpha_u=2")["doubly_stochastic"]
    assert shown(capsys, "fedmes", "--set", "cells=overlap(u=30, v=0)")["zeta"] == 1.0
    assert shown(capsys, "fedmes", "--set", "cells=overlap(u=30, v=0)")["counts"] is None  # they never agree


def test_topology_show_of_a_hierarchy(capsys):
    found = shown(capsys, "hierarchical", "--set", "every=5", "--clients", "30")
    assert (found["clients"], found["in_overlaps"], found["cloud_every"]) == (30, 0, 5)
    assert found["in_cells"] == [10, 10, 10]


@pytest.mark.parametrize("name", METHODS)
def test_topology_show_has_words_for_every_method(name, capsys):
    """In every phase; none is left with the bare name of a class."""
    found = shown(capsys, name, "--clients", "12")
    assert found["clients"] == 12
    for words in found.get("stages", {}).values():
        assert " " in words and "center" in words
    assert outcome(["topology", "show", name, "--clients", "12"]) == 0


def test_topology_show_has_the_clients_and_the_seed_of_a_config(capsys, tmp_path: Path):
    (tmp_path / "c.toml").write_text('method = "fedmes"\nclients = 24\nseed = 5\n[set]\ncells = "map(edges=4)"\n')
    found = shown(capsys, str(tmp_path / "c.toml"))
    assert found["clients"] == 24
    assert found == shown(capsys, "fedmes", "--set", "cells=map(edges=4)", "--clients", "24", "--seed", "5")
    assert found != shown(capsys, str(tmp_path / "c.toml"), "--seed", "6")


@pytest.mark.parametrize("name", ["map.jpg", "map"])
def test_a_figure_in_a_format_that_we_do_not_write_is_refused(name, capsys, tmp_path: Path):
    assert outcome(["topology", "show", "fedmes", "--png", str(tmp_path / name)]) == 2
    assert "a figure's file must end in .png, .svg or .pdf" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_topology_show_of_graphs(capsys, tmp_path: Path):
    ring = shown(capsys, "dpsgd", "--clients", "8", "--png", str(tmp_path / "ring.png"))
    assert (ring["links"], ring["neighbours"]) == (8, [2, 2])
    assert ring["zeta"] == pytest.approx((1 + 2 * math.cos(2 * math.pi / 8)) / 3)
    star = shown(capsys, "dpa-sgd", "--clients", "8", "--set", "graph=star", "--png", str(tmp_path / "hub.png"))
    assert (star["links"], star["neighbours"]) == (7, [1, 7])
    matcha = shown(capsys, "matcha", "--clients", "8", "--set", "budget=0.5", "--png", str(tmp_path / "matcha.png"))
    plan = Matchings(budget=0.5).plan(8)
    assert (matcha["links"], matcha["matchings"], matcha["rho"]) == (8, len(plan.p), plan.rho)
    assert all((tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG" for name in ("ring", "hub", "matcha"))


def test_topology_show_of_clusters_has_no_more_centers_than_clients(capsys):
    stages = shown(capsys, "fesem", "--clients", "3")["stages"]
    assert list(stages) == ["round 0", "from round 1"] and "one center becomes 3" in stages["round 0"]
    assert list(shown(capsys, "meta", "--set", "rounds=5")["stages"]) == ["round 0 to 4", "from round 5"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fedavg", "--png", "x.png"], "fedavg has neither edges nor a graph to draw"),
        (["fedmes", "--rounds", "0,x"], "--rounds takes up to six whole numbers"),
        (["fedmes", "--set", "cells=map(radius=0.01)"], "set nearest=true"),
        (["fedmes", "--set", "cells=ringg"], "did you mean 'ring'?"),
        (["fedmes", "--set", "cells=table(nowhere.csv)"], "'nowhere.csv' cannot be read"),
    ],
)
def test_a_mistake_is_said_in_one_line(words, message, capsys):
    assert outcome(["topology", "show", *words]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("geometry", "n", "rounds"),
    [
        (Overlap(20, 10), 90, (0,)),
        (Attached(Overlap(3, 2, 1)), 16, (0,)),
        (CellMap(9, speed=0.05), 40, (0, 5, 10)),
        (CellMap(36), 300, (0,)),
    ],
    ids=repr,
)
def test_maps_are_drawn(geometry, n, rounds, tmp_path: Path):
    path = draw_map(geometry, n, tmp_path / "map.png", rounds=rounds)
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert path.read_bytes() == draw_map(geometry, n, tmp_path / "again.png", rounds=rounds).read_bytes()


@pytest.mark.parametrize(
    "cells",
    [Overlap(20, 10), Overlap(0, 20, 30), Overlap(10, 10, 30), Overlap(0, 30), Overlap(30, 0), RingCells(4, 15, 10),
     RingCells(4, 0, 25), RingCells(8, 10, 5), RingCells(20, 10, 5), Overlap(9000, 4000),
     CellRegions("0:10 1:20 0+1:10 0+2:30 1+2:20")],
    ids=repr,
)  # fmt: skip
def test_who_stands_in_a_circle_is_covered_by_its_edge(cells):
    cover = covered(cells, cells.default_n_clients)
    stations, radii, at = spots_of_cells(cover)
    inside = np.hypot(*np.moveaxis(at[:, None] - stations, -1, 0)) < radii
    assert (radii > 0).all() and np.array_equal(inside, cover.table.toarray().T > 0)


def test_a_hierarchy_that_is_not_there_yet_is_not_beaten():
    """Not run is not the same as run and not reached."""
    claim = next(c for c in FEDMES.claims if "(c, mnist" in c.text)
    times = {f"time c mnist: hierarchical T={every}": [30.0] for every in (1, 2, 5, 10)}
    times["time c mnist: FedMes (20,10)"] = [8.0]
    assert claim.judge(times)[0] is True
    assert claim.judge(times | {"time unmixed c mnist: FedMes (20,10)": [13.0]})[0] is True
    lost = claim.judge(times | {"time unmixed c mnist: FedMes (20,10)": [math.nan]})
    assert lost[0] is False and "unmixed not there" in lost[1]


def test_where_circles_would_lie_there_are_none():
    _, radii, at = spots_of_cells(
        covered(CellRegions("0:5 1:5 2:5 3:5 0+2:5 1+3:5"), 30)
    )  # opposite cells, not neighbours
    assert (radii == 0).all()
    assert len(np.unique(at.round(3), axis=0)) == 30  # nobody stands on anybody


@pytest.mark.parametrize(
    ("every", "zeta", "said"),
    [(1, 0.0, "all agree after every round"), (5, 1.0, "no agreement, until the cloud averages")],
)
def test_a_hierarchy_agrees_when_it_meets(every, zeta, said, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # or a narrow terminal would break the line
    words = ["topology", "show", "hierarchical", "--set", f"every={every}"]
    assert outcome([*words, "--json"]) == 0 and json.loads(capsys.readouterr().out)["zeta"] == pytest.approx(zeta)
    assert outcome(words) == 0 and said in capsys.readouterr().out


# -- simulated time ------------------------------------------------------------------------------------------


def test_the_mean_time_of_a_round():  # E10
    assert round_time() == pytest.approx(1.1)
    assert [round_time(every) for every in (1, 2, 5, 10)] == pytest.approx([10.1, 5.6, 2.9, 2.0])
    assert [rounds_by(80, every) for every in (0, 1, 5)] == [72, 7, 27]


@pytest.mark.parametrize(("every", "t_c"), [(0, 10.0), (1, 10.0), (2, 8.0), (5, 40.0), (10, 10.0)])
def test_rounds_end_when_the_clock_says(every, t_c):
    clock, topology = Normalised(t_c=t_c), hierarchical(cells=Overlap(2, 0), every=every).exchanges[0].topology
    times, index = torch.zeros(6, dtype=torch.float64), torch.arange(6)
    for round in range(12):
        cohort = Cohort(index, torch.ones(6).long(), torch.ones(6).double(), 6, 0, round)
        exchange = Exchange(learn=(Train(batch=1),), topology=topology)
        state = Method.of("made", exchange).begin({"model": torch.zeros(1, 4)}, 6)
        times = clock.advance(times, Load(exchange, state, cohort, 4))
        assert ends(round + 1, every, t_c) == pytest.approx(float(times.max()))
        assert over_by(float(times.max()), every, t_c) == round + 1
        assert over_by(float(times.max()) - 0.01, every, t_c) == round


@pytest.mark.parametrize("every", [1, 2, 5, 10])
def test_it_is_what_the_rounds_in_which_the_edges_meet_add_up_to(every):
    topology = hierarchical(every=every).exchanges[0].topology
    times = [10.1 if topology.wires.meets_cloud(round) else 1.1 for round in range(10)]
    assert sum(times) / 10 == pytest.approx(round_time(every))


def test_every_row_can_be_built_and_is_read_within_its_run():
    assert TABLES["fedmes"] is FEDMES
    assert len({row.setting for row in FEDMES.rows}) == len(FEDMES.rows)
    for row in FEDMES.rows:
        settings = Settings.of(dict(row.settings))
        built_method(settings)
        assert len(digest(settings)) == 12


def test_a_row_is_read_off_the_history_of_its_run(tmp_path: Path):
    row = next(row for row in FEDMES.rows if row.setting == "c mnist: FedMes (20,10)")
    later = next(row for row in FEDMES.rows if row.setting == "alpha: ratio 1")
    time = next(row for row in FEDMES.rows if row.setting == "time c mnist: FedMes (20,10)")
    assert row.settings == later.settings == time.settings  # one run, read three times
    lines = [json.dumps({"round": r, "average_accuracy": r / 200}) for r in range(1, 110)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert row.measure and later.measure and time.measure
    summary = {"run_dir": str(tmp_path)}
    assert row.measure(summary) == pytest.approx(36.0)
    assert later.measure(summary) == pytest.approx(54.5)
    assert math.isnan(time.measure(summary))
    with pytest.raises(UsageError, match="nowhere"):
        history(tmp_path / "nowhere")
    every = {r.setting: r for r in FEDMES.rows if r.setting.startswith(("clock", "c ", "b ", "a "))}
    for r in every.values():  # whatever is read was run
        (tmp_path / "metrics.jsonl").write_text(
            "\n".join(json.dumps({"round": k, "average_accuracy": 0.5}) for k in range(r.settings["rounds"] + 1))
        )
        assert r.measure and r.measure(summary) == 50.0, r.setting


@pytest.mark.parametrize(("words", "seconds"), [(["fedmes"], 11.0), (["hierarchical", "--set", "every=5"], 29.0)])
def test_the_clock_agrees_with_the_times_of_the_table(words, seconds, tmp_path: Path, capsys):  # E10
    how = ["--partition", "cells=c", "--clients", "9", "--rounds", "10", "--clock", "normalised", "--quiet", "--json"]
    assert outcome(["run", *words, *how, "--set", "steps=1", "--out", str(tmp_path / "run")]) == 0
    assert json.loads(capsys.readouterr().out)["simulated_seconds"] == pytest.approx(seconds)
