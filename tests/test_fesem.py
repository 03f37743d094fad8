"""Many centers: the laws of FeSEM and of the clustering that begins it."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import polycentric as pc
from polycentric.cohort import Cohort
from polycentric.data import Federation
from polycentric.loop import prepare
from polycentric.metrics import agreement
from polycentric.topology import Seeding, inner_products, squared_distances

LAW = settings(max_examples=40, deadline=None, derandomize=True)


def everyone(n: int) -> Cohort:
    return Cohort(torch.arange(n), torch.ones(n, dtype=torch.int64), torch.ones(n).double(), n, seed=0, round=0)


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


@pytest.mark.parametrize("seed", range(3))
def test_true_groups_are_found_and_serve_better_than_one_center(seed: int) -> None:
    """F6, on real digits: four rotations, four centers."""
    federation = pc.load("digits", partition=pc.Rotations(4), clients=40, seed=seed)
    training = {"lr": 0.1, "epochs": 5}  # and 10 epochs before the clustering
    many = pc.run(pc.fesem(k=4, **training), federation, rounds=20, seed=seed, evaluate_every=20)
    one = pc.run(pc.fedavg(**training), federation, rounds=20, seed=seed, evaluate_every=20)
    assert many.metrics["ari"] == 1.0
    assert many.metrics["micro_accuracy"] > one.metrics["micro_accuracy"] + 0.03


def test_a_pull_is_a_prox_to_the_own_center(rotated: Federation) -> None:
    method = pc.fesem(k=2, pull=0.3)
    assert [term.mu for term in method.at(1)[0].learn[0].terms] == [0.3]
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


def test_more_centers_than_clients_leaves_some_empty() -> None:
    federation = pc.load("digits", clients=3)
    run = pc.run(pc.fesem(k=5, lr=0.1), federation, rounds=2)
    assert run.state.centers["model"].shape[0] == 5
    assert run.state.centers["model"].isfinite().all()


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


@LAW
@given(st.integers(4, 7), st.integers(0, 10**6))
def test_twenty_restarts_find_the_best_of_all_partitions_of_a_few_rows(n: int, seed: int) -> None:
    rows = rows_of(seed, n)
    found = Seeding(2).place({}, everyone(n), {}, {"model": rows})["assignment"]
    every = (torch.tensor(p) for p in itertools.product([0, 1], repeat=n))
    assert cost(rows, found) == pytest.approx(min(cost(rows, p) for p in every), rel=1e-9)


def test_well_separated_groups_are_found_whatever_their_order() -> None:
    """F5, F6: relabelling and order change nothing but labels."""
    group = torch.tensor([0, 1, 2, 1, 0, 2, 2, 1, 0, 0])
    rows = 50.0 * rows_of(1, 3, 40)[group] + 0.1 * rows_of(2, 10, 40)
    for order in (torch.arange(10), torch.randperm(10, generator=torch.Generator().manual_seed(0))):
        found = Seeding(3).place({}, everyone(10), {}, {"model": rows[order].float()})["assignment"]
        assert agreement(found.numpy(), group[order].numpy()) == 1.0


def test_inner_products_of_wide_rows_are_summed_in_pieces() -> None:
    rows = rows_of(3, 4, 5).repeat(1, 30_000) + 1e3
    centered = rows - rows.mean(0)
    torch.testing.assert_close(inner_products(rows), centered @ centered.T, rtol=1e-9, atol=1e-6)
