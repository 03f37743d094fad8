"""Many centers: the laws of FeSEM and of the clustering that begins it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import polycentric as pc
from polycentric.data import Federation
from polycentric.parts.aggregate import Mean
from polycentric.round import receive
from polycentric.runs.choose_k import sampled
from polycentric.runs.evaluate import assign_newcomers
from polycentric.runs.start import prepare
from polycentric.stacks.all_rows import inner_products, squared_distances
from polycentric.topology import Choice, Clusters, Seeding, Splitting
from polycentric.topology.clusters.assignment import agreement
from support import everyone

LAW = settings(max_examples=40)


def rows_of(seed: int, n: int, width: int = 3) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cost(rows: Tensor, assignment: Tensor) -> float:
    """Sum of squared distances to the mean of the own cluster."""
    return sum(
        float((mine - mine.mean(0)).square().sum()) for k in assignment.unique() for mine in [rows[assignment == k]]
    )


@pytest.fixture(scope="module")
def rotated() -> Federation:
    return pc.load("digits", partition=pc.Rotations(4), clients=40)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("executor", ["looped", "stacked"])
def test_one_center_is_fedavg(rotated: Federation, weighted: bool, executor: str) -> None:
    """F1."""
    how = {"rounds": 3, "dtype": "float64", "executor": executor, "fine_tune": 0}
    one = pc.run(pc.fesem(k=1, weighted=weighted, warm_up=None, lr=0.1), rotated, **how)
    average = pc.run(pc.fedavg(equal=not weighted, lr=0.1), rotated, **how)
    torch.testing.assert_close(one.state.centers["model"], average.state.centers["model"], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))])
def test_true_groups_are_found_and_serve_better_than_one_center(seed: int) -> None:
    """F6, on real digits: four rotations, four centers; better by at least 10 points of accuracy."""
    federation = pc.load("digits", partition=pc.Rotations(4), clients=40, seed=seed)
    training = {"lr": 0.1, "epochs": 5}  # and 10 epochs before the clustering
    many = pc.run(pc.fesem(k=4, **training), federation, rounds=20, seed=seed, evaluate_every=20)
    one = pc.run(pc.fedavg(**training), federation, rounds=20, seed=seed, evaluate_every=20)
    assert many.metrics["ari"] == 1.0
    assert many.metrics["micro_accuracy"] > one.metrics["micro_accuracy"] + 0.1


def test_a_pull_is_a_prox_to_the_own_center(rotated: Federation) -> None:
    method = pc.fesem(k=2, pull=0.3)
    assert [term.mu for term in method.at(1)[-1].learn[0].terms] == [0.3]
    free, tied = (pc.run(pc.fesem(k=2, pull=p, lr=0.1, epochs=3), rotated, rounds=2) for p in (0.0, 5.0))
    assert not torch.allclose(free.state.centers["model"], tied.state.centers["model"])


def test_the_mean_over_all_clients_is_kept_by_an_m_step(rotated: Federation) -> None:
    """F7: with learning rate zero after round 0, centers weighted by their sizes keep the mean of what was sent."""
    run = prepare(pc.fesem(k=3, lr=0.1), rotated, dtype="float64")
    answers = list(run.clients.answers(run.method.at(0)[0], run.state, run.clients.everyone(0)))
    sent = torch.cat([answer.sent["model"] for answer in answers])
    state, _ = pc.run_round(run.method, run.state, run.clients)
    sizes = torch.bincount(state.memory["assignment"], minlength=3).double()
    mean = sizes @ state.centers["model"] / sizes.sum()
    torch.testing.assert_close(mean, sent.mean(0), rtol=1e-10, atol=1e-10)


def test_an_empty_cluster_keeps_its_center(rotated: Federation) -> None:
    run = pc.run(pc.fesem(k=4, lr=0.1), rotated, rounds=1, dtype="float64")
    state = run.state
    far = state.centers["model"].clone()
    far[2] += 1e3
    place = state.memory["assignment"]
    memory = state.memory | {"assignment": torch.where(place == 2, 0, place)}  # nobody begins there
    moved, _ = pc.run_round(run.method, type(state)({"model": far}, {}, memory, 1), run.clients)
    assert not bool((moved.memory["assignment"] == 2).any())
    assert torch.equal(moved.centers["model"][2], far[2])
    assert not torch.equal(moved.centers["model"][0], far[0])


def test_more_centers_than_clients_are_not_made_and_that_is_said() -> None:
    federation = pc.load("digits", clients=3)
    with pytest.warns(UserWarning, match="5 centers were asked for, but there are only 3 clients"):
        run = pc.run(pc.fesem(k=5, lr=0.1), federation, rounds=2)
    assert run.state.centers["model"].shape[0] == 3
    assert run.state.centers["model"].isfinite().all()


def test_fewer_than_one_center_is_refused() -> None:
    with pytest.raises(pc.UsageError, match="k must be at least 1, got 0"):
        pc.fesem(k=0)


def test_models_that_are_all_the_same_are_not_clustered_in_silence(rotated: Federation) -> None:
    with pytest.raises(
        pc.UsageError, match="warm_up must be at least 1 or None, got 0: all models would be the same; try 5"
    ):
        pc.fesem(warm_up=0)
    with pytest.warns(UserWarning, match="all clients sent the same model, so clustering them means nothing"):
        run = pc.run(pc.fesem(k=3, lr=0.0), rotated, rounds=1, fine_tune=0)
    assert run.state.memory["assignment"].tolist() == [0] * 40


# -- the settings -------------------------------------------------------------------------------------------


def rounds_of(method: pc.Method, federation: Federation, rounds: int, **how: Any) -> tuple[pc.Run, list[pc.State]]:
    run = prepare(method, federation, dtype="float64", **how)
    states = [run.state]
    for _ in range(rounds):
        states.append(pc.run_round(run.method, states[-1], run.clients)[0])
    return run, states


def test_as_many_centers_as_clients_is_training_alone() -> None:
    """F2: with r_i = i and nobody moving, a center is its client."""
    federation = pc.load("digits", clients=5)
    frozen = pc.Exchange(learn=(pc.Train(lr=0.1),), topology=pc.Clusters(5, frozen=True))
    _, many = rounds_of(pc.Method.of("frozen", frozen), federation, 3)
    _, alone = rounds_of(pc.nofed(lr=0.1), federation, 3)
    torch.testing.assert_close(many[-1].centers["model"], alone[-1].centers["model"], rtol=1e-10, atol=1e-10)


@LAW
@given(st.integers(1, 4), st.lists(st.integers(1, 9), min_size=4, max_size=8), st.booleans(), st.integers(0, 10**6))
def test_down_after_up_is_a_projection(k: int, sizes: list[int], weighted: bool, seed: int) -> None:
    """F3: P^2 = P, P 1 = 1; without weights also P = P^T."""
    n = len(sizes)
    who = replace(everyone(n), sizes=torch.tensor(sizes))
    topology = Clusters(k, weighted)
    place = torch.randint(k, (n,), generator=torch.Generator().manual_seed(seed))
    place[:k] = torch.arange(k)  # nobody is empty
    memory = {"assignment": place}
    p = (topology.down(memory, who, "model") @ topology.up(memory, who, "model")).to_dense()
    torch.testing.assert_close(p @ p, p)
    torch.testing.assert_close(p.sum(1), torch.ones(n).double())
    assert weighted or torch.allclose(p, p.T)


def test_the_mean_of_a_cluster_is_that_of_clustered_fl_of_ifca_and_of_tkm() -> None:
    """F8: one assignment, one aggregation; TKM's at beta = 0, where it trims nothing."""
    place, parent = torch.tensor([1, 2, 2, 1, 2]), torch.tensor([-1, 0, 0])
    who = replace(everyone(5), sizes=torch.tensor([3, 1, 4, 1, 5]))
    for weighted in (False, True):
        mine = Clusters(3, weighted).up({"assignment": place}, who, "model").to_dense()
        tree = Splitting(weighted=weighted).up({"assignment": place, "parent": parent}, who, "model").to_dense()
        choice = Choice(3, weighted).up({"assignment": place}, who, "model").to_dense()
        assert torch.equal(mine, tree) and torch.equal(mine, choice)
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own, found = torch.ones(3, 4, dtype=torch.float64), []
    for method in (pc.fesem(k=3), pc.tkm(k=3, beta=0.0)):
        rounds = method.at(1)[-1]
        up = rounds.topology.up({"assignment": place}, who, "model")
        total = rounds.aggregate.start(up, own)
        rounds.aggregate.add(total, rounds.aggregate.part(up, rows))
        found.append(rounds.aggregate.settle(total, own).values)
    torch.testing.assert_close(found[0], torch.stack([own[0], rows[[0, 3]].mean(0), rows[[1, 2, 4]].mean(0)]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-14, atol=0)


@pytest.mark.parametrize(("features", "layers"), [("last_layer", "head"), ("dense1.*", "dense1"), ("*.bias", "bias")])
def test_distances_see_nothing_but_the_features(rotated: Federation, features: str, layers: str) -> None:
    run, (_, state) = rounds_of(pc.fesem(k=4, features=features, match="distance", lr=0.1), rotated, 1)
    layout = run.clients.task.layouts["model"]
    inside = torch.cat([torch.full((n,), layers in name) for name, n in zip(layout.names, layout.sizes, strict=True)])
    assert 0 < int(inside.sum()) < len(inside)
    topology = run.method.at(1)[-1].topology
    centers = state.centers["model"]
    sent = centers[[3, 1, 2, 0]].clone()
    sent[:, ~inside] = 1e3 * torch.rand(int((~inside).sum()), dtype=torch.float64)  # must not matter
    found = topology.place(state.memory, run.clients.everyone(1)[:4], {"model": centers}, {"model": sent})
    assert found["assignment"].tolist() == [3, 1, 2, 0]


def test_features_of_nothing_are_refused_with_the_names_there_are(rotated: Federation) -> None:
    with pytest.raises(pc.UsageError, match=r"no parameter matches features='conv\*'; the model has dense1.weight"):
        prepare(pc.fesem(features="conv*"), rotated)
    with pytest.raises(pc.UsageError, match="needs a model"):
        Clusters(2, features="last_layer").place({}, everyone(2), {"model": rows_of(0, 2)}, {"model": rows_of(1, 2)})


@pytest.mark.parametrize("weighted", [False, True])
def test_the_absent_count_by_the_row_they_sent_last(rotated: Federation, weighted: bool) -> None:
    method = pc.fesem(k=3, absent="last", weighted=weighted, select=pc.Uniform(n=7), lr=0.1)
    run, states = rounds_of(method, rotated, 3)
    last = torch.zeros_like(states[-1].memory["last"])
    for state in states[:-1]:  # replay what was sent
        exchange = run.method.at(state.round)[-1]
        cohort = exchange.select(state.memory, run.clients.everyone(state.round, len(run.method.at(state.round)) - 1))
        for answer in run.clients.answers(exchange, state, cohort):
            last[answer.block.index] = answer.sent["model"]
    place = states[-1].memory["assignment"]
    sizes = rotated.train.sizes.double() if weighted else torch.ones(40).double()
    for k in set(place.tolist()):
        mine = place == k
        mean = (sizes[mine] @ last[mine]) / sizes[mine].sum()
        torch.testing.assert_close(states[-1].centers["model"][k], mean, rtol=1e-10, atol=1e-10)
    assert sorted(set(states[-1].memory["last_round"].tolist())) == [0, 1, 2]


def test_with_everybody_there_nobody_is_absent(rotated: Federation) -> None:
    _, out = rounds_of(pc.fesem(k=3, lr=0.1), rotated, 3)
    _, last = rounds_of(pc.fesem(k=3, absent="last", lr=0.1), rotated, 3)
    torch.testing.assert_close(last[-1].centers["model"], out[-1].centers["model"], rtol=1e-10, atol=1e-10)


def test_an_empty_center_begins_again_at_the_farthest_row() -> None:
    topology = Clusters(3, reseed=True)
    centers = torch.tensor([[0.0], [10.0], [99.0]])
    sent = torch.tensor([[0.0], [1.0], [14.0], [10.0]])
    note = topology.place(topology.remembers(4), everyone(4), {"model": centers}, {"model": sent})
    assert note["assignment"].tolist() == [0, 0, 2, 1]
    assert note["reseeded"].tolist() == [0, 0, 1, 0]
    alone = topology.place(topology.remembers(2), everyone(2), {"model": centers}, {"model": sent[[1, 2]]})
    assert alone["assignment"].tolist() == [0, 1]  # neither center can spare its only client


@settings(max_examples=40)
@given(st.data(), st.integers(1, 8), st.integers(0, 14))
def test_empty_centers_are_filled_one_after_another(data: st.DataObject, k: int, n: int) -> None:
    """As by the definition: for each in turn, the farthest client that is not yet taken, of a center with more."""
    topology, some = Clusters(k, reseed=True), everyone(n + 4)[:n]
    nearest, distance, before = (
        data.draw(st.lists(st.integers(0, top), min_size=size, max_size=size))
        for top, size in ((k - 1, n), (4, n), (k - 1, n + 4))
    )
    placed = torch.tensor([data.draw(st.booleans()) for _ in range(n + 4)])
    memory = topology.remembers(n + 4) | {"assignment": torch.tensor(before), "placed": placed}
    where, taken = nearest.copy(), [0] * n
    for empty in range(k):
        count = [
            sum(i == j for i in where) + sum(b == j for b, p in zip(before[n:], placed[n:], strict=True) if p)
            for j in range(k)
        ]
        can = [i for i in range(n) if count[where[i]] > 1 and not taken[i] and distance[i] > 0]
        if count[empty] == 0 and can:
            who = min(can, key=lambda i: (-distance[i], i))
            where[who], taken[who] = empty, 1
    far = torch.tensor(distance, dtype=torch.float64)
    after, chosen = topology.refilled(memory, some, torch.tensor(nearest, dtype=torch.int64), far)
    assert after.tolist() == where and chosen.tolist() == taken


def test_a_center_whose_clients_are_away_is_not_empty() -> None:
    topology = Clusters(2, reseed=True)
    memory = topology.remembers(4) | {"placed": torch.ones(4, dtype=torch.bool)}
    note = topology.place(
        memory, everyone(4)[torch.tensor([0, 2])], {"model": rows_of(0, 2)}, {"model": rows_of(0, 2)[[0, 0]] + 0.1}
    )
    assert note["assignment"].tolist() == [0, 0]  # clients 1 and 3 are at center 1


@pytest.mark.parametrize("newcomers", ["loss", "steps"])
def test_who_never_trained_is_scored_under_a_center_of_its_own(rotated: Federation, newcomers: Any) -> None:
    method = pc.fesem(k=4, lr=0.1, epochs=2, newcomers=newcomers)
    run = pc.run(method, rotated, rounds=6, held_out=0.25, fine_tune=0)
    new = run.clients.held_out_mask
    assert not bool(run.state.memory["placed"][new].any())
    place = assign_newcomers(run.method, run.state, run.clients).memory["assignment"]
    assert agreement(place.numpy(), rotated.group.numpy()) == 1.0  # type: ignore[union-attr]
    average = pc.run(pc.fedavg(lr=0.1, epochs=2), rotated, rounds=6, held_out=0.25, fine_tune=0)
    mine, other = (r.summary()["held_out"]["in_use"]["micro_accuracy"] for r in (run, average))
    assert mine > other + 0.05
    client = int(new.nonzero()[0])
    row = torch.cat([p.flatten() for p in run.model_of(client=client).parameters()])
    assert torch.equal(row.detach(), run.state.centers["model"][place[client]])


@pytest.mark.parametrize("executor", ["looped", "stacked"])
def test_steps_are_those_of_training_from_every_center(blobs: Any, executor: str) -> None:
    run, (_, state) = rounds_of(pc.fesem(k=2, lr=0.1, newcomers="steps"), blobs(), 1, executor=executor)
    exchange, everybody = run.method.at(1)[0], run.clients.everyone(1)
    rows = receive(exchange, state, everybody)
    ways = []
    for name in ("candidate0", "candidate1"):
        learned = run.clients.run(pc.Train(lr=0.1), {"model": rows[name], "start": rows[name]}, everybody)["model"]
        ways.append((learned - rows[name]).square().sum(1))
    found = run.clients.run(exchange.learn[0], rows, everybody)["choice"][:, 0]
    assert torch.equal(found.long(), torch.stack(ways, 1).argmin(1))
    assert 0 < int(found.sum()) < 5


def test_late_clients_are_placed_before_they_train(rotated: Federation) -> None:
    method = pc.fesem(k=4, first=pc.Uniform(n=20), lr=0.1, epochs=2)
    _, states = rounds_of(method, rotated, 2)
    assert int(states[1].memory["placed"].sum()) == 20
    assert bool(states[2].memory["placed"].all())
    assert agreement(states[2].memory["assignment"].numpy(), rotated.group.numpy()) > 0.9  # type: ignore[union-attr]


def test_every_evaluation_tells_of_the_clusters(rotated: Federation) -> None:
    run = pc.run(
        pc.fesem(k=4, lr=0.1, epochs=2, select=pc.Uniform(n=20), absent="last"), rotated, rounds=3, fine_tune=0
    )
    rows = run.history
    assert [row["reassigned"] for row in rows[1:2]] == [0.0]  # nobody had a place before
    for row, sizes in ((rows[-1], torch.bincount(run.state.memory["assignment"])),):
        assert row["clusters"] == int((sizes > 0).sum()) and row["largest_cluster"] == int(sizes.max())
        assert row["intra_cluster"] == pytest.approx(float(run.state.memory["distance"].mean()))
        assert row["staleness"] == float((2 - run.state.memory["last_round"]).double().mean()) > 0
    assert run.metrics["ari"] <= run.metrics["nmi"] == 1.0 or run.metrics["nmi"] < 1.0
    assert "clusters" not in pc.run(pc.fedavg(), rotated, rounds=1, fine_tune=0).metrics


def test_reassigned_counts_who_moved(rotated: Federation) -> None:
    run = pc.run(pc.ifca(k=4, lr=0.1), rotated, rounds=3, fine_tune=0)
    _, states = rounds_of(run.method, rotated, 3)
    moved = [int((a.memory["assignment"] != b.memory["assignment"]).sum()) for a, b in itertools.pairwise(states)]
    assert moved[0] > 0  # but to be placed for the first time is no move
    assert [row["reassigned"] for row in run.history[1:]] == [0, *moved[1:]]
    assert run.history[-1]["moves"] == sum(moved[1:])


# -- how many -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["valid", "distance"])
def test_the_true_number_of_groups_is_chosen(by: Any) -> None:
    federation = pc.load("digits", partition=pc.Rotations(4), clients=40, valid=0.2)
    k, trials = pc.choose_k(federation, (2, 4, 8), by=by, rounds=3 if by == "valid" else 1, lr=0.1, epochs=5)
    assert k == 4
    assert [trial.k for trial in trials] == [2, 4, 8]


def test_the_number_is_chosen_without_a_look_at_test_examples() -> None:
    federation = pc.load("digits", partition=pc.Rotations(2), clients=10, valid=0.3)
    wrong = replace(federation, test=replace(federation.test, y=(federation.test.y + 1) % 10))
    a, b = (pc.choose_k(f, (1, 2), rounds=1, lr=0.1) for f in (federation, wrong))
    assert a == b


def test_a_sample_is_some_of_the_clients_with_all_they_have() -> None:
    federation = pc.load("digits", partition=pc.Rotations(4), clients=20, valid=0.2)
    some = sampled(federation, 7, seed=3)
    assert some.n_clients == 7
    for new, name in enumerate(some.clients):
        old = federation.clients.index(name)
        assert torch.equal(some.train.of(new).x, federation.train.of(old).x)
        assert torch.equal(some.valid.of(new).y, federation.valid.of(old).y)
        assert some.group is not None and federation.group is not None
        assert some.group[new] == federation.group[old]
    assert sampled(federation, 99) is federation


def test_choosing_needs_something_to_choose_by(rotated: Federation) -> None:
    with pytest.raises(pc.UsageError, match="needs a validation split: load the data with"):
        pc.choose_k(rotated)
    with pytest.raises(pc.UsageError, match="ks must be >= 1"):
        pc.choose_k(rotated, (0, 1), by="distance")


# -- the clustering ------------------------------------------------------------------------------------------


@LAW
@given(st.integers(2, 7), st.integers(1, 4), st.integers(0, 10**6), st.sampled_from(["kmeans++", "random"]))
def test_distances_by_inner_products_are_distances(n: int, k: int, seed: int, seeding: str) -> None:
    """The cost that Lloyd reports is the cost of the partition it returns."""
    rows = rows_of(seed, n)
    total, assignment = Seeding(k, seeding=seeding).lloyd(inner_products(rows), everyone(n), 0)  # type: ignore[arg-type]
    assert total == pytest.approx(cost(rows, assignment), rel=1e-9, abs=1e-9)


@LAW
@given(st.integers(3, 7), st.integers(0, 10**6))
def test_a_partition_that_lloyd_returns_is_stable(n: int, seed: int) -> None:
    """F4: another E-step moves nobody to a strictly nearer center."""
    rows = rows_of(seed, n)
    _, assignment = Seeding(2).lloyd(inner_products(rows), everyone(n), 0)
    centers = torch.stack(
        [rows[assignment == k].mean(0) if bool((assignment == k).any()) else rows.mean(0) + 99 for k in range(2)]
    )
    own = squared_distances(rows, centers)[torch.arange(n), assignment]
    assert bool((own <= squared_distances(rows, centers).min(1).values + 1e-9).all())


def test_twenty_restarts_nearly_always_find_the_best_of_all_partitions_of_a_few_rows() -> None:
    missed = 0
    for seed in range(100):
        rows = rows_of(seed, n := 4 + seed % 4)
        found = cost(rows, Seeding(2).place({}, everyone(n), {}, {"model": rows})["assignment"])
        best = min(cost(rows, torch.tensor(p)) for p in itertools.product([0, 1], repeat=n))
        assert found >= best * (1 - 1e-9)
        missed += found > best * (1 + 1e-9)
    assert missed <= 1


def test_well_separated_groups_are_found_whatever_their_order() -> None:
    """F5, F6: relabelling and order change nothing but labels."""
    group = torch.tensor([0, 1, 2, 1, 0, 2, 2, 1, 0, 0])
    rows = 50.0 * rows_of(1, 3, 40)[group] + 0.1 * rows_of(2, 10, 40)
    for order in (torch.arange(10), torch.randperm(10, generator=torch.Generator().manual_seed(0))):
        found = Seeding(3).place({}, everyone(10), {}, {"model": rows[order].float()})["assignment"]
        assert agreement(found.numpy(), group[order].numpy()) == 1.0


def test_memory_of_the_steps_does_not_grow_with_clients_times_centers_times_parameters() -> None:
    """The largest tensor made by an E- or M-step over a block is a block of the width in float64, or the centers'."""
    width, k = 1 << 17, 16
    centers = rows_of(0, k, width).float()
    largest = {}
    for n in (8, 64):
        rows = centers[torch.arange(n) % k]
        with Largest() as seen:
            squared_distances(rows, centers)
        largest[n] = seen.numbers
        with Largest() as seen:
            inner_products(rows)
        assert seen.numbers <= n * (1 << 13)
    assert largest[8] <= k * (1 << 13)
    assert largest[64] <= 64 * (1 << 13) < 64 * width
    total = Mean().start(Clusters(k).up({"assignment": torch.zeros(0).long()}, everyone(64)[:0], "model"), centers)
    with Largest() as seen:
        up = Clusters(k).up({"assignment": torch.arange(64) % k}, everyone(64), "model")
        Mean().add(total, Mean().part(up, rows))
    assert seen.numbers <= k * width < 64 * width


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes, in numbers; views are not made."""

    numbers = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        mine = [out] if isinstance(out, Tensor) else []
        self.numbers = max([self.numbers, *(t.numel() for t in mine if t._base is None and not op.is_view)])
        return out


def test_inner_products_of_wide_rows_are_summed_in_pieces() -> None:
    rows = rows_of(3, 4, 5).repeat(1, 30_000) + 1e3
    centered = rows - rows.mean(0)
    torch.testing.assert_close(inner_products(rows), centered @ centered.T, rtol=1e-9, atol=1e-6)
