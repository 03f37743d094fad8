"""What a drawing of a topology shows: its links, how often they are used, and places where they can be seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import polycentric as pc
from polycentric.report.graphs import draw_graph, pictured
from polycentric.report.layout import spots_of, sunflower
from polycentric.stacks.cohort import Cohort
from polycentric.topology import Duals, Matchings, TaskGraph, TaskStar, Topology
from polycentric.topology.cells.shapes import Attached
from polycentric.topology.clusters.assignment import Clusters

DRAWN = {
    "alone": pc.Alone(),
    "star": pc.Star(),
    "clusters": Clusters(3),
    "cells": pc.Cells(pc.Overlap(3, 1)),
    "hierarchy": pc.TwoLevel(Attached(pc.Overlap(3, 1))),
    "map": pc.Cells(pc.CellMap(edges=4)),
    "ring": pc.Gossip(pc.Ring()),
    "many": pc.Gossip(pc.ErdosRenyi(0.3)),
    "matchings": Matchings(pc.Ring(), 0.5),
    "tasks": TaskStar(),
    "neighbours": TaskGraph(),
    "duals": Duals(),
}
N = {"many": 20}
every_topology = pytest.mark.parametrize("name", DRAWN)


@every_topology
def test_a_picture_has_the_links_of_the_topology_and_a_place_for_everybody(name: str) -> None:
    topology, n = DRAWN[name], N.get(name, 12)
    picture = pictured(topology, n)
    one, other, share = picture.links
    assert picture.n_clients == n and bool((other < n).all())
    assert bool(((share >= 0) & (share <= 1)).all())
    spots = spots_of(picture)
    assert spots.clients.shape == (n, 2) and spots.centers.shape == (picture.n_centers, 2)
    assert len(spots.radii) == picture.n_centers and np.isfinite(spots.clients).all()
    assert len(np.unique(spots.clients.round(9), axis=0)) == n, "two clients stand at one place"
    if picture.n_centers:
        assert sorted(set(other.tolist())) == list(range(n)) and int(one.max()) < picture.n_centers
    else:
        assert bool((one < other).all())


def test_pictures_tell_centers_from_neighbours() -> None:
    centers = {name: pictured(topology, N.get(name, 12)).n_centers for name, topology in DRAWN.items()}
    assert centers == {"alone": 0, "star": 1, "clusters": 3, "cells": 3, "hierarchy": 3, "map": 4, "ring": 0} | {
        "many": 0, "matchings": 0, "tasks": 1, "neighbours": 0, "duals": 1,
    }  # fmt: skip
    links = {name: len(pictured(DRAWN[name], 12).links.sender) for name in ("alone", "ring", "matchings", "cells")}
    assert links == {"alone": 0, "ring": 12, "matchings": 12, "cells": 15}
    assert pictured(DRAWN["cells"], 12).several and not pictured(DRAWN["hierarchy"], 12).several


def test_a_cluster_is_drawn_around_its_center() -> None:
    topology = Clusters(3)
    memory = topology.remembers(12) | {"assignment": torch.tensor([0] * 8 + [2] * 4)}
    ones = torch.ones(12, dtype=torch.int64)
    picture = topology.picture(memory, Cohort(torch.arange(12), ones, ones.double(), 12, 0, 0))
    assert picture.links.receiver.tolist() == [0] * 8 + [2] * 4
    spots = spots_of(picture)
    away = np.hypot(*np.moveaxis(spots.clients[:, None] - spots.centers[[0, 2]], -1, 0))  # nobody talks to the other
    assert away.argmin(1).tolist() == [0] * 8 + [1] * 4


def test_matchings_are_drawn_as_often_as_their_coins_fell() -> None:
    topology = Matchings(pc.Ring(), 0.5)
    before, after = pictured(topology, 8, seed=3), pictured(topology, 8, seed=3, rounds=40)
    assert before.part is not None and after.part is not None
    plan = topology.plan(8)
    assert torch.equal(before.links.weight, torch.from_numpy(plan.p)[before.part])
    fell = torch.stack([topology.active(3, r, 8) for r in range(40)]).double().mean(0)
    assert torch.equal(after.links.weight, fell[after.part])


def test_a_sunflower_fills_its_disc() -> None:
    at = sunflower(500)
    away = np.hypot(*at.T)
    assert away.max() < 1 and np.sort(away) == pytest.approx(np.sqrt((np.arange(500) + 0.5) / 500))


@pytest.mark.parametrize("topology", [DRAWN["ring"], DRAWN["matchings"], DRAWN["many"]], ids=["ring", "matcha", "many"])
def test_graphs_are_drawn(topology: Topology, tmp_path) -> None:
    draw_graph(topology, 20, tmp_path / "graph.png")
    assert (tmp_path / "graph.png").read_bytes()[:4] == b"\x89PNG"


# -- how tasks are related -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["mtl", "mocha", "dpa-sgd"])
def test_relations_are_correlations(method: str) -> None:
    run = pc.run(method, "digits", clients=6, rounds=2, model="logistic", device="cpu")
    found = run.now.exchange.topology.relations(run.state.memory)
    assert found is not None and found.shape == (6, 6)
    known = ~found.isnan()
    assert bool(known.diagonal().all()) and torch.allclose(found.diagonal(), torch.ones(6).double())
    assert bool((found[known].abs() <= 1 + 1e-9).all())
    assert bool(known.all()) == (method != "dpa-sgd")
    assert pc.Star().relations({}) is None
