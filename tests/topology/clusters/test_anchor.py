"""Clients grouped by their updates from one common model: labels, restarts, costs, and what it mends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

import polycentric as pc
from polycentric.stacks import Layout
from polycentric.topology.clusters.anchor import Anchored, relabelled
from support import everyone

BAD: dict[str, Any] = {"restarts": 1, "seeding": "random", "warm_up": 1}
TRAINING: dict[str, Any] = {"lr": 0.1, "epochs": 2}
LAYOUT = Layout.of(torch.nn.Linear(2, 1, bias=False))


def memory(k: int, assignment: list[int]) -> dict[str, torch.Tensor]:
    place = torch.tensor(assignment)
    return Anchored(k).remembers(len(place)) | {"assignment": place, "placed": torch.ones(len(place)).bool()}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.permutations(range(4)))
@settings(max_examples=60)
def test_a_renamed_partition_gets_its_old_names_back(found: list[int], names: list[int]) -> None:
    before = torch.tensor(found)
    assert relabelled(torch.tensor(names)[before], before, 4).tolist() == found


def test_updates_that_go_the_same_way_are_one_group_and_few_must_move() -> None:
    """Two directions; the present groups are wrong at one client, and lengths do not count."""
    ways = torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 1.0]] * 3)
    length = torch.tensor([1.0, 9.0, 2.0, 5.0, 3.0, 1.0, 8.0])[:, None]
    centers = {"model": torch.tensor([[10.0, 20.0], [30.0, 40.0]])}
    sent = {"model": centers["model"].mean(0) + ways * length}
    note = Anchored(2).place(memory(2, [1, 1, 1, 0, 0, 0, 0]), everyone(7), centers, sent)
    assert note["assignment"].tolist() == [1, 1, 1, 1, 0, 0, 0]
    assert note["moves"].tolist() == [0, 0, 0, 1, 0, 0, 0] and note["moved_in"].tolist()[3] == 0


def test_what_comes_down_is_the_mean_of_the_centers() -> None:
    down = Anchored(3).down({}, everyone(4), "model")
    centers = torch.randn(3, 5, dtype=torch.float64)
    torch.testing.assert_close(down @ centers, centers.mean(0).expand(4, 5))


def test_who_is_away_counts_by_the_update_it_sent_last() -> None:
    """Two directions, of which only one comes: without the others' last updates it would be cut in two."""
    ways = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [0.0, 1.0], [0.1, 1.0], [-0.1, 1.0]])
    centers = {"model": torch.zeros(2, 2)}
    topology = Anchored(2, absent="last").fitted(LAYOUT, torch.zeros(1, 2), 6)
    first = memory(2, [0, 0, 0, 1, 1, 1]) | topology.remembers(6) | {"assignment": torch.tensor([0, 0, 0, 1, 1, 1])}
    whole = topology.place(first, everyone(6), centers, {"model": ways})
    assert whole["assignment"].tolist() == [0, 0, 0, 1, 1, 1] and whole["way_round"].tolist() == [0] * 6
    come = everyone(6, round=5)[torch.tensor([0, 1, 2])]
    later = topology.place(first | whole, come, centers, {"model": ways[:3]})
    assert later["assignment"].tolist() == [0, 0, 0] and later["way_round"].tolist() == [5] * 3
    alone = Anchored(2).place(first | whole, come, centers, {"model": ways[:3]})
    assert len(set(alone["assignment"].tolist())) == 2


def test_the_age_of_a_matching_is_told(rotated: pc.Federation) -> None:
    how: dict[str, Any] = {"absent": "last", "first": pc.Uniform(n=30), "every": 2}
    run = pc.run(pc.fesem(k=4, **how, **TRAINING), rotated, rounds=5, fine_tune=0, evaluate_every=1)
    ages = [row["match_age"] for row in run.history if "match_age" in row]
    assert len(ages) == 3 and ages[0] == 0 and ages[1] == 1 and ages[2] > 0


@pytest.fixture(scope="module")
def rotated() -> pc.Federation:
    return pc.load("digits", partition=pc.Rotations(4), clients=40, seed=2)


def trained(federation: pc.Federation, match: str, **how: Any) -> pc.Run:
    return pc.run(pc.fesem(k=4, match=match, **BAD, **TRAINING), federation, seed=2, fine_tune=0, **how)


def test_a_bad_start_is_mended_where_distances_cannot(rotated: pc.Federation) -> None:
    distance, anchor = (trained(rotated, match, rounds=16, evaluate_every=16) for match in ("distance", "anchor"))
    assert distance.metrics["ari"] < 0.5 and anchor.metrics["ari"] == 1.0
    assert anchor.metrics["micro_accuracy"] > distance.metrics["micro_accuracy"] + 0.1
    assert anchor.metrics["moves"] > 10


def test_an_anchored_exchange_costs_one_model_each_way_and_time(rotated: pc.Federation) -> None:
    """Rounds 0 to 6, of which the sixth (number 5) has one exchange more."""
    distance, anchor = (trained(rotated, match, rounds=7, evaluate_every=7) for match in ("distance", "anchor"))
    for way in ("bytes_up", "bytes_down"):
        assert getattr(anchor.tally, way) == getattr(distance.tally, way) * 8 // 7
    assert anchor.tally.seconds > distance.tally.seconds


def test_the_executor_does_not_matter_and_resuming_neither(rotated: pc.Federation, tmp_path: Any) -> None:
    runs = [trained(rotated, "anchor", rounds=7, executor=ex, dtype="float64") for ex in ("looped", "stacked")]
    assert torch.equal(runs[0].state.memory["assignment"], runs[1].state.memory["assignment"])
    torch.testing.assert_close(runs[0].state.centers["model"], runs[1].state.centers["model"], rtol=0, atol=1e-9)


def test_matching_by_loss_begins_as_fesem_and_goes_on_as_ifca(rotated: pc.Federation) -> None:
    how: dict[str, Any] = {"rounds": 3, "fine_tune": 0, "seed": 0}
    mine = pc.run(pc.fesem(k=3, match="loss", warm_up=2, **TRAINING), rotated, **how)
    theirs = pc.run(pc.ifca(k=3, first="clustered", warm_up=2, **TRAINING), rotated, **how)
    assert torch.equal(mine.state.centers["model"], theirs.state.centers["model"])


def test_two_groups_of_unequal_size_are_dealt() -> None:
    federation = pc.load("digits", pc.Rotations(2, 10, upright=0.8))
    assert federation.group is not None and federation.group.tolist() == [0] * 8 + [1] * 2
    with pytest.raises(pc.UsageError, match="upright"):
        pc.Rotations(2, 10, upright=1.5)
