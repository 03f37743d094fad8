"""How many groups there are: the error of a foretold half by hand, groups made by hand, and whole runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import polycentric as pc
from polycentric.runs.evaluate import assign_newcomers
from polycentric.runs.start import prepare
from polycentric.stacks.all_rows import inner_products
from polycentric.topology.clusters import how_many
from polycentric.topology.clusters.assignment import agreement
from polycentric.topology.clusters.how_many import ByWays, HowMany, IfItPays, beyond, foretold
from polycentric.topology.clusters.splitting import cosines
from support import everyone, random

TRAINING: dict[str, Any] = {"lr": 0.1, "epochs": 2}


def made(groups: list[int], noise: float = 1.0, width: int = 300, seed: int = 0) -> torch.Tensor:
    """Both halves of some clients: the way of their group, and chance; (2 clients, width)."""
    ways, n = random(seed, max(groups) + 1, width), len(groups)
    return torch.cat([ways[groups], ways[groups]]) + noise * random(seed + 1, 2 * n, width)


def products(rows: torch.Tensor) -> torch.Tensor:
    return inner_products(rows, origin=torch.zeros_like(rows[0]))


def test_the_error_is_that_of_a_plain_loop() -> None:
    rows, place = made([0, 0, 0, 1, 1, 2, 2, 1]), torch.tensor([0, 0, 1, 1, 1, 2, 2, 3])
    n = len(place)
    both = (rows[:n] + rows[n:]) / 2
    for i, error in enumerate(foretold(products(rows), place, 4).tolist()):
        means = [
            both[[j for j in range(n) if place[j] == g and j != i]].mean(0)
            for g in range(4)
            if any(place[j] == g and j != i for j in range(n))
        ]
        each = []
        for one, other in ((rows[i], rows[n + i]), (rows[n + i], rows[i])):
            nearest = min(means, key=lambda mean: float((one - mean).square().sum()))
            each.append(float((other - nearest).square().sum()))
        assert error == pytest.approx(sum(each) / 2)


def test_a_client_is_not_put_where_nobody_else_is() -> None:
    """The last is alone, and nearer to nothing than to the others, who want the contrary."""
    error = foretold(products(torch.tensor([[1.0], [1.0], [-1.0]]).repeat(2, 1).double()), torch.tensor([0, 0, 1]), 2)
    assert error.tolist() == [0.0, 0.0, 4.0]


@pytest.mark.parametrize(
    ("gain", "errors"), [([1, 3], 2), ([-1, -1, -4, -4], -5 / 3**0.5), ([2, 2, 2], 0), ([0, 0], 0)]
)
def test_a_mean_is_told_in_its_standard_errors(gain: list[int], errors: float) -> None:
    assert beyond(torch.tensor(gain).double()) == pytest.approx(errors)


def test_no_more_groups_are_tried_than_would_have_two_clients_each(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(how_many, "lloyd", lambda gram, start, k, n: tried.append(k) or (0.0, start))
    HowMany(12, together=True).regrouped(products(made([0] * 7)), torch.zeros(7).long(), everyone(7))
    assert set(tried) == {1, 2, 3}


@pytest.mark.parametrize(("groups", "settled"), [([0] * 12, True), ([0] * 6 + [1] * 6, False)])
def test_one_group_is_settled_at_once_and_several_are_proposed(groups: list[int], settled: bool) -> None:
    part, n = HowMany(4, together=True), len(groups)
    rows, centers = made(groups), {"model": torch.zeros(4, 300)}
    found = part.place(part.remembers(n), everyone(n, round=3), centers, {"half0": rows[:n], "half1": rows[n:]})
    assert ("assignment" in found) == settled and found["proposed_in"].tolist() == [3] * n
    assert agreement(found["proposed"].numpy(), torch.tensor(groups).numpy()) == 1.0


def test_what_is_no_number_is_like_nothing() -> None:
    groups = [0] * 6 + [1] * 6
    rows, part = made(groups) / 100, HowMany(4, by="distance", together=True)
    rows[0] = torch.nan
    sent = {"half0": rows[:12], "half1": rows[12:]}
    found = part.place(part.remembers(12), everyone(12), {"model": torch.zeros(4, 300)}, sent)["proposed"]
    assert agreement(found[1:].numpy(), torch.tensor(groups[1:]).numpy()) == 1.0


def test_everybodys_mean_has_a_share_for_every_client_of_a_group() -> None:
    topology = IfItPays(3, together=True)
    memory = topology.remembers(5) | HowMany(3).remembers(5)
    memory |= {"proposed": torch.tensor([0, 0, 2, 0, 2]), "proposed_in": torch.tensor([4, 4, 4, 4, 3])}
    down = topology.down(memory, everyone(5, round=4)[:2], "one1")
    assert down.of == "half1" and down.to_dense().tolist() == [[0.75, 0.0, 0.25]] * 2


def test_newcomers_go_the_way_that_is_most_like_theirs() -> None:
    """Centers went right and up from (100, 0); the newcomers go right, up, and left and a little down."""
    here = torch.tensor([100.0, 0.0])
    right, up = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    apart = torch.tensor([0.0, 0.5])  # what was chance in either half
    centers = {
        "half0": here + torch.stack([right + apart, up + apart, -up]),
        "half1": here + torch.stack([right - apart, up - apart, -up]),
        "anchor": here.expand(3, 2),
    }
    memory = ByWays(3).remembers(2) | {"assignment": torch.tensor([0, 1]), "placed": torch.ones(2).bool()}
    sent = {"model": here + torch.stack([2 * right + up, right + 2 * up, -right - 0.1 * up])}
    assert ByWays(3).place(memory, everyone(3), centers, sent)["assignment"].tolist() == [0, 1, 1]


@pytest.mark.parametrize("sizes", [[24], [12, 12], [20, 4], [8, 8, 8], [12, 6, 3, 3], [4] * 6, [5] * 8])
def test_groups_are_counted(sizes: list[int]) -> None:
    """From one center, with as much chance in a half as there is way of its group."""
    groups = [g for g, size in enumerate(sizes) for _ in range(size)]
    halves = cosines(products(made(groups)))
    found = HowMany(12, together=True).regrouped(halves, torch.zeros(len(groups)).long(), everyone(len(groups)))
    assert agreement(found.numpy(), torch.tensor(groups).numpy()) == 1.0
    assert len(set(found.tolist())) == len(sizes)


@pytest.mark.parametrize("present", [[0, 1, 2, 3], [0, 0, 0, 0], [0, 0, 1, 1]])
def test_centers_merge_and_split_to_the_groups_there_are(present: list[int]) -> None:
    """Four quarters of 24 clients, two groups of two quarters: from four centers, from one; from two nobody moves."""
    groups, here = ([g for g in labels for _ in range(6)] for labels in ([0, 0, 1, 1], present))
    halves = cosines(products(made(groups)))
    found = HowMany(8, together=True).regrouped(halves, torch.tensor(here), everyone(24))
    assert agreement(found.numpy(), torch.tensor(groups).numpy()) == 1.0


def test_where_there_are_no_groups_it_is_fedavg_bit_by_bit() -> None:
    federation = pc.load("digits", partition="iid", clients=20)
    how: dict[str, Any] = {"rounds": 6, "fine_tune": 0, "evaluate_every": 6}
    auto, average = (
        pc.run(method, federation, **how)
        for method in (pc.fesem(k="auto", **TRAINING), pc.fedavg(equal=True, **TRAINING))
    )
    assert auto.metrics["clusters"] == 1.0
    assert torch.equal(auto.state.centers["model"][0], average.state.centers["model"][0])


@pytest.fixture(scope="module")
def found() -> pc.Run:
    """Three rotations, with a quarter of the clients held out."""
    federation = pc.load("digits", partition=pc.Rotations(3), clients=32)
    return pc.run(pc.fesem(k="auto", **TRAINING), federation, rounds=7, fine_tune=0, held_out=0.25)


def test_rotations_are_counted_and_the_record_says_when(found: pc.Run) -> None:
    assert [row["clusters"] for row in found.history] == [1.0] * 2 + [3.0] * 6 and found.metrics["ari"] == 1.0
    assert "intra_cluster" not in found.metrics  # nobody is placed by the distance to a center


def test_newcomers_are_placed_by_one_model_each_way(found: pc.Run) -> None:
    place = assign_newcomers(found.method, found.state, found.clients).memory["assignment"]
    new = found.clients.held_out_mask
    assert bool(new.any()) and not bool(found.state.memory["placed"][new].any())
    assert agreement(place[new].numpy(), found.federation.group[new].numpy()) == 1.0  # type: ignore[index]
    assert found.summary()["held_out"]["in_use"]["micro_accuracy"] > 0.6


def test_a_center_that_nobody_uses_is_offered_to_nobody(found: pc.Run) -> None:
    learned = found.now.exchange.topology.learned(found.state.memory)
    assert learned is not None and int(learned.sum()) == 3


@pytest.mark.parametrize("k", ["auto", 2])
def test_clients_that_drift_are_moved_and_the_record_says_when(k: Any) -> None:
    """After round 6 four of twelve upright clients are turned by half a turn, as the other group is."""
    before, after = (pc.load("digits", partition=pc.Rotations(2), clients=24) for _ in range(2))
    drift = before.group == 0  # type: ignore[operator]
    drift[drift.nonzero()[4:, 0]] = False
    turned = {
        name: replace(split, x=torch.where(drift[split.owner][:, None, None, None], split.x.flip(-1, -2), split.x))
        for name, split in (("train", after.train), ("test", after.test))
    }
    method = pc.fesem(k=k, **TRAINING)
    first = pc.run(method, before, rounds=6, fine_tune=0, evaluate_every=6)
    assert first.metrics["ari"] == 1.0
    later = prepare(method, replace(after, **turned, source=None), rounds=11, fine_tune=0, evaluate_every=1)
    later.state = first.state
    later.go()
    place = later.state.memory["assignment"]
    now = torch.where(drift, 1, before.group)  # type: ignore[arg-type]
    assert agreement(place.numpy(), now.numpy()) == 1.0
    moved = later.state.memory["moved_in"] >= 0
    assert torch.equal(moved, drift) and set(later.state.memory["moved_in"][drift].tolist()) == {10}


@pytest.mark.parametrize(("before", "gain", "after"), [
    ([0, 0, 0, 0], [1, 1, 0, -1], [0, 0, 1, 1]),
    ([0, 0, 0, 0], [1, 0, 0, -1], [0, 0, 0, 0]),
    ([0, 0, 1, 1], [1, 0, 0, -3], [0, 0, 1, 1]),
    ([0, 1, 1, 1], [-1, -1, -2, -1], [1, 1, 1, 1]),
])  # fmt: skip
def test_several_centers_must_pay(before: list[int], gain: list[int], after: list[int]) -> None:
    """From one to several where they gain at all; from several to one, the largest, only where they clearly lose."""
    topology, place = IfItPays(3, together=True), torch.tensor(before)
    memory = topology.remembers(4) | HowMany(3).remembers(4)
    memory |= {"assignment": place, "proposed": torch.tensor([0, 0, 1, 1]), "placed": torch.ones(4).bool()}
    told = {"gain0": torch.tensor(gain)[:, None].double(), "gain1": torch.zeros(4, 1)}
    found = topology.place(memory, everyone(4), {}, told)
    assert found["assignment"].tolist() == after and found["before"].tolist() == before
    centers = {"model": torch.tensor([[1.0], [2.0], [3.0]])}
    new = topology.meet(memory | found, everyone(4), centers)[1]["model"][:, 0].tolist()
    assert new == [1.0, 1.0 if 1 in after and 1 not in before else 2.0, 3.0]


@pytest.mark.parametrize(("partition", "several"), [("dirichlet=0.3", False), ("classes=2", True)])
def test_clients_that_differ_without_groups_get_several_centers_only_where_that_pays(
    partition: str, several: bool
) -> None:
    """Labels alone: with three tenths of skew one center serves best, with two classes a client several do."""
    federation = pc.load("digits", partition=partition, clients=40)
    how: dict[str, Any] = {"model": "mlp", "rounds": 4, "fine_tune": 0, "evaluate_every": 4}
    auto, average = (
        pc.run(method, federation, **how)
        for method in (pc.fesem(k="auto", **TRAINING), pc.fedavg(equal=True, **TRAINING))
    )
    assert (auto.metrics["clusters"] > 1) == several
    gain = auto.metrics["micro_accuracy"] - average.metrics["micro_accuracy"]
    assert gain > 0.1 if several else gain == 0


def test_the_executor_does_not_matter() -> None:
    federation = pc.load("digits", partition=pc.Rotations(2), clients=12)
    how: dict[str, Any] = {"rounds": 3, "fine_tune": 0, "dtype": "float64"}
    runs = [pc.run(pc.fesem(k="auto", **TRAINING), federation, executor=ex, **how) for ex in ("looped", "stacked")]
    assert torch.equal(runs[0].state.memory["assignment"], runs[1].state.memory["assignment"])
    torch.testing.assert_close(runs[0].state.centers["model"], runs[1].state.centers["model"], rtol=0, atol=1e-9)


def test_settings_that_would_do_nothing_are_refused() -> None:
    for wrong in ({"match": "distance"}, {"absent": "last"}, {"newcomers": "loss"}, {"seeding": "random"}):
        with pytest.raises(pc.UsageError, match="cannot be chosen with k='auto'"):
            pc.fesem(k="auto", **wrong)
    with pytest.raises(pc.UsageError, match="most=5 is for k='auto'"):
        pc.fesem(k=4, most=5)


def test_the_middle_of_halves_is_their_mean() -> None:
    rows = made([0, 0, 1, 2])
    torch.testing.assert_close(how_many.middle(products(rows)), products((rows[:4] + rows[4:]) / 2))


@pytest.mark.parametrize(("now", "other", "stays"), [(1.0, 2.0, "now"), (2.0, 1.0, "other"), (2.0, 2.0, "neither")])
def test_another_number_of_groups_is_taken_only_where_it_beats_all_groupings_of_this_one(
    now: float, other: float, stays: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups are there. Errors are told: of one group, of these two, and of the best two that clustering finds."""
    here, halves = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1]), products(made([0, 0, 0, 0, 1, 1, 1, 1], noise=0.1))
    chance = 0.1 * torch.tensor([1.0, -1, 1, -1, 1, -1, 1, -1], dtype=torch.float64)

    def told(halves: torch.Tensor, place: torch.Tensor, k: int) -> torch.Tensor:
        means = {1: 1.0 - chance, 2: (now if torch.equal(place, here) else other) + chance}
        return means.get(k, chance + 9.0)

    monkeypatch.setattr(how_many, "foretold", told)
    found = HowMany(4, together=True).regrouped(halves, here, everyone(8))
    best = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    expected = {"now": here, "other": best, "neither": torch.zeros(8).long()}[stays]
    assert agreement(found.numpy(), expected.numpy()) == 1.0


def test_a_gain_is_counted_by_example() -> None:
    """Three clients gain 0.1 with one example each, a fourth loses 5 with 100: 0.05 for each."""
    topology = IfItPays(3, together=True)
    memory = topology.remembers(4) | HowMany(3).remembers(4)
    memory |= {"assignment": torch.zeros(4).long(), "proposed": torch.tensor([0, 0, 1, 1])}
    told = {"gain0": torch.tensor([[0.1], [0.1], [0.1], [-5.0]]).double(), "gain1": torch.zeros(4, 1)}
    cohort = replace(everyone(4), sizes=torch.tensor([1, 1, 1, 100]))
    assert topology.place(memory, cohort, {}, told)["assignment"].tolist() == [0, 0, 1, 1]


def test_all_begin_from_the_mean_of_the_centers_in_use() -> None:
    memory = {"assignment": torch.tensor([0, 2, 2]), "placed": torch.ones(3).bool()}
    centers = {"model": torch.tensor([[1.0], [50.0], [4.0]])}
    assert how_many._anchor(memory, centers, 3).tolist() == [2.5]
